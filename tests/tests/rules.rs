//! Shows that each rule of the journal is needed: the same run crashes once with the rule
//! on, and all completed operations are there; and once with the rule off, and some are
//! missing. `docs/consistency.md` has the rules.

use pramfs::{
    FileType, Result,
    inode::{Credentials, Fs, Ino, LeaseMode, SetAttr},
};
use pramfs_medium::journal::{Rules, set_thread_lane};
use pramfs_medium::media::Geometry;
use pramfs_medium::pmem::{EventKind, SimBackend};
use pramfs_tests::appender::{Appended, Appender};
use pramfs_tests::random::Random;
use pramfs_tests::recorded::{Recorded, STALE, recover, recovered_tree};
use pramfs_tests::region::{quiet, region_of, repeatable};

const CX: Credentials<'_> = Credentials::new(0, 0);
const LEN: usize = 2 << 20;

/// A fresh file system with two lanes.
fn fresh(rules: Rules) -> Recorded {
    set_thread_lane(0);
    let mut format = repeatable(4096);
    format.lanes = Some(2);
    Recorded::new(LEN, &format, rules)
}

fn chmod(fs: &Fs, ino: Ino, perm: u32) {
    let set = SetAttr {
        perm: Some(perm),
        ..SetAttr::default()
    };
    fs.setattr(&CX, ino, &set).unwrap();
}

/// Writes enough records on this thread's lane to overwrite the earlier ones.
fn pass_by(fs: &Fs, other: Ino) {
    (0..3).for_each(|i| chmod(fs, other, 0o600 + i));
}

/// Everything stored so far reaches the medium, and the power fails.
fn crash(mut rec: Recorded) -> Result<Fs> {
    recover(&rec.machine().most())
}

/// Shows that `run` needs the rule switched off by `off`. The result of `run` tells
/// whether the completed operations were there after a crash.
fn needed(off: fn(&mut Rules), run: impl Fn(Rules) -> Result<(), String>) {
    let on = Rules::default();
    if let Err(what) = run(on) {
        panic!("with all rules on: {what}");
    }
    let mut without = on;
    off(&mut without);
    match run(without) {
        Ok(()) => panic!("nothing breaks without the rule"),
        Err(what) => println!("without the rule: {what}"),
    }
}

fn expect<T: PartialEq + std::fmt::Debug>(found: T, expected: T, what: &str) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: {found:?} instead of {expected:?}"))
}

fn said(e: pramfs::Error) -> String {
    e.to_string()
}

// ---- rule 1

/// Lane 0 changes an inode and stays idle. Lane 1 changes it again, and then so much else
/// that its own record is overwritten.
#[test]
fn rule_1_hand_over_old_record_does_not_undo_new() {
    needed(
        |r| r.hand_over = false,
        |rules| {
            let rec = fresh(rules);
            let f = rec.fs.create(&CX, Ino::ROOT, b"f", 0o600).unwrap().ino;
            let g = rec.fs.create(&CX, Ino::ROOT, b"g", 0o600).unwrap().ino;
            chmod(&rec.fs, f, 0o611);
            set_thread_lane(1);
            chmod(&rec.fs, f, 0o622);
            pass_by(&rec.fs, g);
            let fs = crash(rec).map_err(said)?;
            expect(fs.getattr(f).map_err(said)?.perm, 0o622, "the mode")
        },
    );
}

/// The same with a directory: its leaf and the sum of the leaf.
#[test]
fn rule_1_hand_over_keeps_directory_consistent() {
    needed(
        |r| r.hand_over = false,
        |rules| {
            let rec = fresh(rules);
            let d = rec.fs.mkdir(&CX, Ino::ROOT, b"d", 0o700).unwrap().ino;
            let g = rec.fs.create(&CX, Ino::ROOT, b"g", 0o600).unwrap().ino;
            rec.fs.create(&CX, d, b"first", 0o600).unwrap();
            rec.fs.link(g, d, b"second").unwrap();
            set_thread_lane(1);
            rec.fs.unlink(d, b"second").unwrap();
            rec.fs.create(&CX, d, b"third", 0o600).unwrap();
            let h = rec.fs.mkdir(&CX, Ino::ROOT, b"h", 0o700).unwrap().ino;
            pass_by(&rec.fs, h);
            let fs = crash(rec).map_err(said)?;
            let names = ["first", "second", "third"].map(|n| fs.lookup(d, n.as_bytes()).is_ok());
            let errors: Vec<_> = ["first", "third"]
                .iter()
                .filter_map(|n| fs.lookup(d, n.as_bytes()).err().map(said))
                .collect();
            expect(errors, Vec::new(), "look-ups")?;
            expect(names, [true, false, true], "which names there are")
        },
    );
}

// ---- rule 2

/// Lane 0 frees an inode and its block and stays idle; lane 1 would allocate both.
#[test]
fn rule_2_delayed_release_keeps_reused_inode() {
    needed(
        |r| r.delayed_release = false,
        |rules| {
            let rec = fresh(rules);
            let fs = &rec.fs;
            let d = fs.mkdir(&CX, Ino::ROOT, b"d", 0o700).unwrap().ino;
            set_thread_lane(1);
            let e = fs.mkdir(&CX, Ino::ROOT, b"e", 0o700).unwrap().ino;
            let other = fs.create(&CX, e, b"other", 0o600).unwrap().ino;
            set_thread_lane(0);
            let f = fs.create(&CX, d, b"f", 0o600).unwrap().ino;
            fs.append(&CX, f, &[1; 4096]).unwrap();
            fs.unlink(d, b"f").unwrap();
            set_thread_lane(1);
            let g = fs.create(&CX, e, b"g", 0o600).unwrap().ino;
            fs.append(&CX, g, &[2; 4096]).unwrap();
            pass_by(fs, other);
            println!("freed {f}, taken {g}");
            let fs = crash(rec).map_err(said)?;
            let found = fs.lookup(e, b"g").map_err(said)?.ino;
            expect(found, g, "the inode")?;
            // Later allocations must not get the blocks of g.
            set_thread_lane(0);
            let h = fs.create(&CX, d, b"h", 0o600).map_err(said)?.ino;
            fs.append(&CX, h, &[3; 4096]).map_err(said)?;
            let mut data = vec![0; 4096];
            fs.read(g, 0, &mut data).map_err(said)?;
            expect(data[0], 2, "the contents")
        },
    );
}

/// The same with a single block, freed by a truncation.
#[test]
fn rule_2_delayed_release_never_shares_freed_block() {
    needed(
        |r| r.delayed_release = false,
        |rules| {
            let rec = fresh(rules);
            let fs = &rec.fs;
            let make = |name: &[u8]| fs.create(&CX, Ino::ROOT, name, 0o600).unwrap().ino;
            let (a, b, c) = (make(b"a"), make(b"b"), make(b"c"));
            // So full that freed blocks are allocated next.
            let free = fs.statfs().unwrap().available;
            fs.append(&CX, c, &vec![9; ((free - 4) << 12) as usize])
                .unwrap();
            fs.append(&CX, a, &[1; 4096]).unwrap();
            let block = |fs: &Fs, ino| fs.file_extents(ino, 0, 4096).unwrap()[0].region_offset;
            let freed = block(fs, a);
            chmod(fs, c, 0o600);
            chmod(fs, c, 0o601);
            chmod(fs, c, 0o602);
            let set = SetAttr {
                size: Some(0),
                ..SetAttr::default()
            };
            fs.setattr(&CX, a, &set).unwrap();
            set_thread_lane(1);
            let mut taken = Vec::new();
            for i in 0..8 {
                if fs.append(&CX, b, &[2; 4096]).is_err() {
                    break;
                }
                taken.extend(fs.file_extents(b, i << 12, 4096).unwrap()[0].region_offset);
                if taken.last().copied() == freed {
                    break;
                }
            }
            pass_by(fs, b);
            let fs = crash(rec).map_err(said)?;
            let size = fs.getattr(b).map_err(said)?.size as usize;
            set_thread_lane(0);
            while fs.append(&CX, a, &[3; 4096]).is_ok() {}
            let mut data = vec![0; size];
            fs.read(b, 0, &mut data).map_err(said)?;
            expect(
                data.iter().position(|&x| x != 2),
                None,
                "the first foreign byte",
            )
        },
    );
}

// ---- rule 3

/// Lane 0 sets a bit of a word and stays idle; lane 1 sets another.
#[test]
fn rule_3_bit_masks_replay_keeps_other_bits() {
    needed(
        |r| r.bit_masks = false,
        |rules| {
            let rec = fresh(rules);
            let fs = &rec.fs;
            let d = fs.mkdir(&CX, Ino::ROOT, b"d", 0o700).unwrap().ino;
            set_thread_lane(1);
            let e = fs.mkdir(&CX, Ino::ROOT, b"e", 0o700).unwrap().ino;
            set_thread_lane(0);
            fs.create(&CX, d, b"in-d", 0o600).unwrap();
            set_thread_lane(1);
            let f = fs.create(&CX, e, b"in-e", 0o600).unwrap().ino;
            pass_by(fs, f);
            let fs = crash(rec).map_err(said)?;
            expect(fs.recovery().damage.clone(), Vec::new(), "damage")?;
            fs.lookup(d, b"in-d").map_err(said)?;
            fs.lookup(e, b"in-e").map_err(said)?;
            Ok(())
        },
    );
}

// ---- rule 4

/// A removal that takes several records crashes between any two of them.
#[test]
fn rule_4_orphan_chain_finishes_interrupted_removal() {
    needed(
        |r| r.orphan_chain = false,
        |rules| {
            let mut rec = fresh(rules);
            let empty = recovered_tree(&rec.machine().most()).map_err(said)?.free;
            let f = rec.fs.create(&CX, Ino::ROOT, b"f", 0o600).unwrap().ino;
            // Attributes in separate blocks: one record each.
            for i in 0..12u8 {
                let name = format!("user.{i}");
                let mode = pramfs::XattrMode::Create;
                rec.fs
                    .setxattr(&CX, f, name.as_bytes(), &[i; 9000], mode)
                    .unwrap();
            }
            let from = rec.now();
            rec.fs.unlink(Ino::ROOT, b"f").unwrap();
            let to = rec.now();
            // Blocks that a file system keeps after its first file.
            let grown = empty - recovered_tree(&rec.machine().most()).map_err(said)?.free;
            let mut cut = 0;
            for moment in from..=to {
                if moment < to && rec.events()[moment].kind != EventKind::Fence {
                    continue;
                }
                for image in [rec.at(moment).least(), rec.at(moment).most()] {
                    let t = recovered_tree(&image).map_err(said)?;
                    if t.nodes.contains_key(&b"/f"[..]) {
                        continue;
                    }
                    cut += 1;
                    let lost = (empty - grown).saturating_sub(t.free);
                    expect(lost, 0, "blocks that nobody owns")?;
                }
            }
            assert!(cut > 10, "the removal was one record");
            Ok(())
        },
    );
}

/// The same for a file that was open when its last name was removed.
#[test]
fn rule_4_orphan_chain_frees_unlinked_open_file() {
    needed(
        |r| r.orphan_chain = false,
        |rules| {
            let mut rec = fresh(rules);
            let f = rec.fs.create(&CX, Ino::ROOT, b"f", 0o600).unwrap().ino;
            let before = recovered_tree(&rec.machine().most()).map_err(said)?;
            rec.fs.append(&CX, f, &[1; 100_000]).unwrap();
            rec.fs.hold(f).into_count();
            rec.fs.unlink(Ino::ROOT, b"f").unwrap();
            let after = recovered_tree(&rec.machine().least()).map_err(said)?;
            expect(after.nodes.len(), 1, "names")?;
            expect(
                before.free.saturating_sub(after.free),
                0,
                "blocks that nobody owns",
            )?;
            expect(after.free_inodes, before.free_inodes + 1, "free inodes")
        },
    );
}

// ---- rule 5

/// The byte ranges of record slots.
fn is_slot(geo: &Geometry, at: u64) -> bool {
    (geo.slot_offset(0, 0).0..geo.journal_offset.0 + geo.journal_len).contains(&at)
}

/// The record of an operation is torn while the after-images of the previous one are not
/// fenced in place.
#[test]
fn rule_5_two_slots_torn_record_keeps_previous_op() {
    needed(
        |r| r.two_slots = false,
        |rules| {
            let mut rec = fresh(rules);
            let f = rec.fs.create(&CX, Ino::ROOT, b"f", 0o600).unwrap().ino;
            chmod(&rec.fs, f, 0o611);
            let from = rec.now();
            chmod(&rec.fs, f, 0o622);
            let geo = rec.geometry();
            let stores = |e: &pramfs_medium::pmem::Event| {
                e.kind == EventKind::NtStore && is_slot(&geo, e.offset)
            };
            let at = rec.events()[from..].iter().position(stores).unwrap();
            let machine = rec.at(from + at + 1);
            let record = rec.events()[from + at].clone();
            let mut random = Random::new(5);
            for round in 0..200 {
                // All prefixes of the record, then each of its words alone.
                let prefix = record.offset + round * 8;
                let end = record.offset + record.bytes.len() as u64;
                let image = machine.words(|at, seq| {
                    seq == record.seq
                        && if prefix < end {
                            at < prefix
                        } else {
                            random.one_in(2)
                        }
                });
                let fs = recover(&image).map_err(said)?;
                let (report, perm) = (fs.recovery().clone(), fs.getattr(f).map_err(said)?.perm);
                // A record of which every word arrived is not torn.
                if perm != 0o622 {
                    expect(perm, 0o611, "the mode")?;
                }
                expect(report.damage, Vec::<String>::new(), "damage")?;
            }
            Ok(())
        },
    );
}

// ---- new data

/// The record of an append is on the medium; of the other stores, only the certain ones.
#[test]
fn new_data_is_fenced_before_its_record() {
    needed(
        |r| r.data_fence = false,
        |rules| {
            let mut rec = fresh(rules);
            let f = rec.fs.create(&CX, Ino::ROOT, b"f", 0o600).unwrap().ino;
            let from = rec.now();
            rec.fs.append(&CX, f, &[7; 4096]).unwrap();
            let geo = rec.geometry();
            let to = rec.now();
            for moment in from..=to {
                let image = rec.at(moment).lines(|line| is_slot(&geo, line));
                let fs = recover(&image).map_err(said)?;
                let mut data = vec![0; 8192];
                let n = fs.read(f, 0, &mut data).map_err(said)?;
                expect(
                    data[..n].iter().position(|&b| b == STALE),
                    None,
                    "the first byte that nobody wrote",
                )?;
                expect(
                    data[..n].iter().all(|&b| b == 7),
                    true,
                    "all bytes are those written",
                )?;
            }
            Ok(())
        },
    );
}

/// The same for metadata that only the file system writes: the first leaf of a directory.
#[test]
fn new_metadata_is_fenced_before_its_record() {
    needed(
        |r| r.data_fence = false,
        |rules| {
            let mut rec = fresh(rules);
            let d = rec.fs.mkdir(&CX, Ino::ROOT, b"d", 0o700).unwrap().ino;
            let from = rec.now();
            rec.fs.create(&CX, d, b"f", 0o600).unwrap();
            let geo = rec.geometry();
            let to = rec.now();
            for moment in from..=to {
                let image = rec.at(moment).lines(|line| is_slot(&geo, line));
                let t = recovered_tree(&image).map_err(said)?;
                expect(t.nodes[&b"/d"[..]].kind, FileType::Directory, "/d")?;
            }
            Ok(())
        },
    );
}

// ---- rule 6

/// A process maps a file; the file is truncated, others take what is free, and the server
/// dies. The process still finds its bytes, also when the next server has filled the region.
#[test]
fn rule_6_leased_blocks_stay_in_map() {
    needed(
        |r| r.leased_blocks = false,
        |rules| {
            let rec = fresh(rules);
            let attr = rec.fs.create(&CX, Ino::ROOT, b"f", 0o600).unwrap();
            let f = attr.ino;
            rec.fs.write(&CX, f, 0, &[7; 5 * 4096]).unwrap();
            let grant = rec
                .fs
                .grant_lease(f, attr.generation, LeaseMode::Read, 1, 1)
                .unwrap();
            let (slot, id) = (grant.lease().slot, grant.lease().id);
            let mapped = rec.fs.leased_extents(slot, id, 0, 9).unwrap().extents;
            drop(grant);
            let set = SetAttr {
                size: Some(0),
                ..SetAttr::default()
            };
            rec.fs.setattr(&CX, f, &set).unwrap();
            let mut rec = rec;
            let sim = SimBackend::from_image(&rec.machine().most()).unwrap();
            let region = region_of(&sim);
            region.pretend_lease(slot, true);
            let fs = Fs::open(region, quiet()).map_err(said)?;
            let g = fs.create(&CX, Ino::ROOT, b"g", 0o600).unwrap().ino;
            while fs.append(&CX, g, &[9; 4096]).is_ok() {}
            let image = sim.image();
            for extent in mapped {
                let at = extent.region_offset.unwrap() as usize;
                let bytes = &image[at..at + extent.len as usize];
                expect(
                    bytes.iter().find(|b| **b != 7),
                    None,
                    "a byte that is mapped",
                )?;
            }
            Ok(())
        },
    );
}

// ---- rule 7

/// The holder of a lease has appended to a file, and nobody has looked at it since. Then
/// another process appends through the mount.
#[test]
fn rule_7_appended_bytes_are_merged() {
    needed(
        |r| r.merged_sizes = false,
        |rules| {
            let mut rec = fresh(rules);
            let attr = rec.fs.create(&CX, Ino::ROOT, b"f", 0o600).unwrap();
            rec.fs.write(&CX, attr.ino, 0, &[7; 5000]).unwrap();
            let grant = rec
                .fs
                .grant_lease(attr.ino, attr.generation, LeaseMode::Write, 1, 1)
                .unwrap();
            rec.fs
                .region_to_damage()
                .pretend_lease(grant.lease().slot, true);
            drop(grant);
            let holder = Appender::of(&rec.fs, attr.ino)?;
            holder.open(&rec.fs, 1).map_err(said)?;
            let appended = holder.append(&rec.fs, &[8; 3000])?;
            expect(appended, Appended::Yes, "the append")?;
            let at = rec.fs.append(&CX, attr.ino, &[9; 10]).map_err(said)?;
            expect(at, 8000, "the offset of the second append")?;
            let fs = recover(&rec.machine().most()).map_err(said)?;
            let mut bytes = vec![0; 9000];
            let n = fs.read(attr.ino, 0, &mut bytes).map_err(said)?;
            expect(n, 8010, "the size")?;
            let expected = |i: usize| {
                if i < 5000 {
                    7
                } else if i < 8000 {
                    8
                } else {
                    9
                }
            };
            let wrong = (0..n).find(|i| bytes[*i] != expected(*i));
            expect(wrong, None, "a byte")
        },
    );
}

// ---- rule 8

/// A record copies bytes to a file, which is then overwritten in place.
#[test]
fn rule_8_copies_are_retired_before_in_place_change() {
    needed(
        |r| r.copies_retired = false,
        |rules| {
            let rec = fresh(rules);
            let f = rec.fs.create(&CX, Ino::ROOT, b"f", 0o600).unwrap().ino;
            rec.fs.append(&CX, f, &[1; 4096]).unwrap();
            let file = rec.fs.open_file(f).unwrap();
            file.write_atomic(&[2; 4096], 0).unwrap();
            file.write_at(&[3; 100], 50).unwrap();
            drop(file);
            let fs = crash(rec).map_err(said)?;
            let mut found = [0; 200];
            fs.read(f, 0, &mut found).map_err(said)?;
            expect(found[50..150] == [3; 100], true, "the overwrite is there")?;
            expect(
                found[150..] == [2; 50],
                true,
                "the rest is that of the atomic write",
            )
        },
    );
}
