//! Recovery, mkfs, mount and unmount: their results after a crash, and the results of a
//! crash in them.

use pramfs::format::format;
use pramfs::{
    Access, Error, XattrMode,
    inode::{Credentials, Fs, Ino, SetAttr},
};
use pramfs_medium::journal::{Rules, set_thread_lane};
use pramfs_medium::media::superblock::{DYNAMIC_OFFSET, STATE_ACTIVE, STATE_CLEAN};
use pramfs_medium::media::{Geometry, SuperDynamic, probe_superblock};
use pramfs_medium::pmem::{Event, EventKind, RegionAccess, SimBackend};
use pramfs_tests::crash::Machine;
use pramfs_tests::crash::images::{Limits, everywhere};
use pramfs_tests::crash::machine::Torn;
use pramfs_tests::recorded::{Recorded, STALE, options, recover, recovered_tree};
use pramfs_tests::region::{mount, region_of, repeatable};
use pramfs_tests::tree::Tree;

const CX: Credentials<'_> = Credentials::new(0, 0);
const LEN: usize = 512 << 10;

fn fresh() -> Recorded {
    set_thread_lane(0);
    let mut format = repeatable(4096);
    format.lanes = Some(2);
    Recorded::new(LEN, &format, Rules::default())
}

fn create(fs: &Fs, name: &str) -> Ino {
    fs.create(&CX, Ino::ROOT, name.as_bytes(), 0o600)
        .unwrap()
        .ino
}

fn chmod(fs: &Fs, ino: Ino, perm: u32) {
    let set = SetAttr {
        perm: Some(perm),
        ..SetAttr::default()
    };
    fs.setattr(&CX, ino, &set).unwrap();
}

fn on_another_thread(fs: &Fs, lane: u32, run: impl FnOnce(&Fs) + Send) {
    std::thread::scope(|s| {
        s.spawn(|| {
            set_thread_lane(lane);
            run(fs);
        });
    });
}

fn is_slot(geo: &Geometry, at: u64) -> bool {
    (geo.slot_offset(0, 0).0..geo.journal_offset.0 + geo.journal_len).contains(&at)
}

/// An image in which the next record, started by `run`, is torn after its header.
fn torn_by(rec: &mut Recorded, run: impl FnOnce(&Fs)) -> Vec<u8> {
    let from = rec.now();
    run(&rec.fs);
    let geo = rec.geometry();
    let stores = |e: &Event| e.kind == EventKind::NtStore && is_slot(&geo, e.offset);
    let at = from + rec.events()[from..].iter().position(stores).unwrap();
    let record = rec.events()[at].clone();
    rec.at(at + 1)
        .words(|at, seq| seq == record.seq && at < record.offset + 32)
}

/// The timer flushes completely, since the next record does not flush again and the one
/// after it reuses the slot.
#[test]
fn idle_lane_changes_are_flushed_completely() {
    for settle in [false, true] {
        let mut rec = fresh();
        let before = rec.sim.counters();
        let first = create(&rec.fs, "first");
        if settle {
            // On the timer's thread, whose flushes our fences do not complete.
            on_another_thread(&rec.fs, 1, |fs| {
                fs.settle().unwrap();
                fs.settle().unwrap();
            });
        }
        let second = create(&rec.fs, "second");
        create(&rec.fs, "third");
        assert_eq!((rec.sim.counters() - before).redundant_flushes, 0);
        let image = rec.machine().least();
        let fs = recover(&image).unwrap();
        for (name, ino) in [("first", first), ("second", second)] {
            assert_eq!(fs.lookup(Ino::ROOT, name.as_bytes()).unwrap().ino, ino);
        }
    }
}

/// A write over blocks that are not contiguous needs no record, and fences by itself.
#[test]
fn overwrite_across_extents_is_durable_on_return() {
    let mut rec = fresh();
    let fs = &rec.fs;
    let (file, between) = (create(fs, "file"), create(fs, "between"));
    for ino in [file, between, file] {
        fs.append(&CX, ino, &[1; 4096]).unwrap();
    }
    let extents = fs.file_extents(file, 0, 8192).unwrap();
    assert_eq!(extents.len(), 2, "the blocks are contiguous");
    assert_eq!(fs.write(&CX, file, 4000, &[2; 200]).unwrap(), 200);
    let fs = recover(&rec.machine().least()).unwrap();
    let mut data = vec![0; 8192];
    fs.read(file, 0, &mut data).unwrap();
    let mut expected = vec![1; 8192];
    expected[4000..4200].fill(2);
    assert!(data == expected);
}

/// Two flushes of a view share the fence of one drain.
#[test]
fn flushed_stores_are_durable_after_drain() {
    let mut rec = fresh();
    let file = create(&rec.fs, "file");
    rec.fs.append(&CX, file, &[1; 8192]).unwrap();
    let view = rec.fs.open_file(file).unwrap();
    let view = view.map(0..8192, Access::Write).unwrap();
    for at in [64, 4096] {
        view.write(at, &[2; 64]).unwrap();
        view.flush(at..at + 64).unwrap();
    }
    view.drain().unwrap();
    let fs = recover(&rec.machine().least()).unwrap();
    let mut data = vec![0; 8192];
    fs.read(file, 0, &mut data).unwrap();
    let mut expected = vec![1; 8192];
    expected[64..128].fill(2);
    expected[4096..4160].fill(2);
    assert!(data == expected);
}

/// Blocks freed by a lane become available when the lane is retired, to any thread. The
/// retirement is durable before it is visible.
#[test]
fn retirement_is_durable_before_blocks_are_reused() {
    let mut rec = fresh();
    let fs = &rec.fs;
    let file = create(fs, "file");
    let short = create(fs, "short");
    fs.write(&CX, short, 0, &[1; 3 * 4096]).unwrap();
    // The last record of lane 0; its replay clears the bits of these blocks.
    let set = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    fs.setattr(&CX, short, &set).unwrap();
    // A third thread retires the lane, with its own fences, and ends.
    on_another_thread(fs, 1, |fs| {
        fs.statfs().unwrap();
    });
    on_another_thread(fs, 1, |fs| {
        let (mut at, block) = (0, [2; 4096]);
        while fs.write(&CX, file, at, &block).is_ok() {
            at += 4096;
        }
        // The journal no longer holds its records of those blocks.
        (0..3).for_each(|i| chmod(fs, file, 0o640 + i));
    });
    let image = rec.machine().least();
    let tree = recovered_tree(&image).unwrap();
    assert!(tree.nodes.len() > 2);
}

/// Two consecutive crashes, each with a torn record in the same lane.
#[test]
fn torn_slots_of_two_crashes_are_not_damage() {
    for records in 0..2 {
        let mut rec = fresh();
        let f = create(&rec.fs, "f");
        (0..records).for_each(|i| chmod(&rec.fs, f, 0o640 + i));
        let image = torn_by(&mut rec, |fs| chmod(fs, f, 0o611));
        // After each mount, the lane starts with its first slot again.
        for _ in 0..3 {
            let mut again = Recorded::from_image(&image, Rules::default()).unwrap();
            assert_eq!(again.fs.recovery().torn, 1);
            for records in 0..3 {
                (0..records).for_each(|i| chmod(&again.fs, f, 0o640 + i));
                let image = torn_by(&mut again, |fs| chmod(fs, f, 0o622));
                let fs = recover(&image).unwrap();
                let report = fs.recovery();
                assert!(report.damage.is_empty(), "{:?}", report.damage);
                assert_eq!(report.torn, 1);
                assert_ne!(fs.getattr(f).unwrap().perm, 0o622);
            }
        }
    }
}

/// Both slots of a lane unreadable cannot come from a crash: it is reported.
#[test]
fn two_unreadable_slots_of_lane_are_damage() {
    let mut rec = fresh();
    let f = create(&rec.fs, "f");
    chmod(&rec.fs, f, 0o611);
    let geo = rec.geometry();
    let mut image = rec.machine().least();
    for slot in 0..2 {
        image[geo.slot_offset(0, slot).0 as usize + 40] ^= 1;
    }
    let fs = recover(&image).unwrap();
    assert_eq!(fs.recovery().damage.len(), 1, "{:?}", fs.recovery().damage);
}

/// An image with live records in two lanes, a torn one, an unlinked file that was open,
/// and an interrupted truncation.
fn eventful() -> Vec<u8> {
    let mut rec = fresh();
    let fs = &rec.fs;
    let (f, g) = (create(fs, "f"), create(fs, "g"));
    fs.append(&CX, f, &[1; 20_000]).unwrap();
    let open = create(fs, "open");
    fs.append(&CX, open, &[2; 20_000]).unwrap();
    for i in 0..4u8 {
        let name = format!("user.{i}");
        fs.setxattr(&CX, open, name.as_bytes(), &[i; 9000], XattrMode::Set)
            .unwrap();
    }
    fs.hold(open).into_count();
    fs.unlink(Ino::ROOT, b"open").unwrap();
    on_another_thread(fs, 1, |fs| {
        fs.append(&CX, g, &[3; 5000]).unwrap();
        chmod(fs, g, 0o644);
    });
    chmod(fs, f, 0o611);
    torn_by(&mut rec, |fs| chmod(fs, f, 0o622))
}

/// Single lines, pairs and some random combinations.
const LIMITS: Limits = Limits {
    lines: 4,
    pairs: 40,
    random: 10,
    torn: Torn::Edges,
};

#[test]
fn crash_in_recovery_recovers_to_same_state() {
    let image = eventful();
    let expected = recovered_tree(&image).unwrap();
    let mut rec = Recorded::from_image(&image, Rules::default()).unwrap();
    let report = rec.fs.recovery().clone();
    assert!(
        report.records >= 3 && report.torn == 1 && report.orphans == 1,
        "{report:?}"
    );
    let events = rec.events().to_vec();
    everywhere(
        rec.at(0),
        &events,
        &LIMITS,
        1,
        &mut |moment, image| match recovered_tree(image) {
            Ok(t) => {
                let d = expected.differences(&t);
                assert!(d.is_empty(), "crash at event {moment} of recovery:\n{d}");
            }
            Err(e) => panic!("crash at event {moment} of recovery: {e}"),
        },
    );
}

#[test]
fn crash_in_unmount_or_mount_loses_nothing() {
    let sim = SimBackend::from_image(&vec![STALE; LEN]).unwrap();
    let mut format_options = repeatable(4096);
    format_options.lanes = Some(2);
    format(&region_of(&sim), &format_options).unwrap();
    let start = sim.image();
    sim.recording(true);
    let fs = mount(&sim, options(Rules::default())).unwrap();
    set_thread_lane(0);
    let f = create(&fs, "f");
    fs.append(&CX, f, &[1; 5000]).unwrap();
    on_another_thread(&fs, 1, |fs| {
        create(fs, "g");
    });
    // A lagging time, which the unmount writes.
    fs.write(&CX, f, 0, &[2; 8]).unwrap();
    let mut events = sim.take_record();
    let mut machine = Machine::new(start);
    machine.run_all(&events);
    fs.close().unwrap();
    drop(mount(&sim, options(Rules::default())).unwrap());
    events = sim.take_record();
    let expected = recovered_tree(&sim.image()).unwrap().timeless();
    everywhere(
        machine,
        &events,
        &LIMITS,
        1,
        &mut |moment, image| match recovered_tree(image) {
            Ok(t) => {
                let d = expected.differences(&t.timeless());
                assert!(
                    d.is_empty(),
                    "crash at event {moment} of {}:\n{d}",
                    events.len()
                );
            }
            Err(e) => panic!("crash at event {moment} of {}: {e}", events.len()),
        },
    );
}

#[test]
fn crash_in_mkfs_leaves_none_or_whole_file_system() {
    // Over an older file system, whose structures must not reappear. Its last file is in
    // the journal only; and a dead record would restore an old mode.
    let mut rec = fresh();
    let old = create(&rec.fs, "old");
    chmod(&rec.fs, old, 0o611);
    on_another_thread(&rec.fs, 1, |fs| {
        chmod(fs, old, OLD_MODE);
        (0..2).for_each(|i| chmod(fs, Ino::ROOT, 0o750 + i));
    });
    set_thread_lane(1);
    create(&rec.fs, "last");
    set_thread_lane(0);
    let start = rec.machine().least();
    drop(rec);
    crash_in_mkfs(start);
    crash_in_mkfs(vec![STALE; LEN]);
}

/// A block of a file of the file system before mkfs.
const OLD_MODE: u32 = 0o644;

fn crash_in_mkfs(start: Vec<u8>) {
    let sim = SimBackend::from_image(&start).unwrap();
    sim.recording(true);
    let mut format_options = repeatable(4096);
    format_options.uuid = Some([0x77; 16]);
    format(&region_of(&sim), &format_options).unwrap();
    let events = sim.take_record();
    let (mut none, mut whole) = (0, 0);
    let last = events.len();
    let mut check = |moment: usize, image: &[u8]| {
        let at = format!("crash at event {moment} of {last}");
        match probe_superblock(&region_of(&SimBackend::from_image(image).unwrap())) {
            Err(Error::NotMountable(_)) => {
                assert!(moment < last, "mkfs has returned");
                none += 1;
            }
            Err(e) => panic!("{at}: {e}"),
            Ok(info) => {
                let old = info.uuid().into_bytes() == [0x5a; 16];
                assert!(!old || moment <= 3, "{at}: the old file system shows");
                let fs = recover(image).unwrap_or_else(|e| panic!("{at}: {e}"));
                assert!(fs.recovery().used_copy || fs.recovery().damage.is_empty());
                let t = Tree::of(&fs).unwrap_or_else(|e| panic!("{at}: {e}"));
                assert_eq!(t.nodes.len(), if old { 3 } else { 1 }, "{at}");
                if old {
                    let attr = fs.lookup(Ino::ROOT, b"old").unwrap();
                    assert_eq!(attr.perm, OLD_MODE, "{at}");
                }
                create(&fs, "new");
                if moment == last {
                    // Both superblocks, and nothing stale anywhere.
                    recovered_tree(image).unwrap_or_else(|e| panic!("{at}: {e}"));
                }
                whole += 1;
            }
        }
    };
    let images = everywhere(Machine::new(start), &events, &LIMITS, 1, &mut check);
    println!("{images} images: {none} without a file system, {whole} with one");
    assert!(none > 0 && whole > 0);
}

fn dynamic(image: &[u8], page: u64) -> SuperDynamic {
    let sim = SimBackend::from_image(image).unwrap();
    region_of(&sim).read_pod(page + DYNAMIC_OFFSET).unwrap()
}

#[test]
fn dynamic_superblock_words_are_kept_in_both_pages() {
    let mut rec = fresh();
    let copy = rec.geometry().copy_offset.0;
    let image = rec.machine().least();
    let d = dynamic(&image, 0);
    assert_eq!((d.state, d.mounts), (STATE_ACTIVE, 1));
    assert_eq!(d, dynamic(&image, copy));
    let Recorded { sim, fs, .. } = rec;
    fs.close().unwrap();
    let d = dynamic(&sim.image(), 0);
    assert_eq!((d.state, d.mounts), (STATE_CLEAN, 1));
    assert_eq!(d, dynamic(&sim.image(), copy));
    assert_eq!(d.first_error.time_sec, 0);

    // The first and the latest error stay recorded.
    let geo = probe_superblock(&region_of(&sim)).unwrap().geometry();
    let fs = mount(&sim, options(Rules::default())).unwrap();
    let f = create(&fs, "f");
    fs.close().unwrap();
    // Its location: the place of an inode that holds its number.
    let mut image = sim.image();
    let journal = geo.journal_offset.0 as usize..(geo.journal_offset.0 + geo.journal_len) as usize;
    let home = (0..image.len())
        .step_by(256)
        .find(|at| !journal.contains(at) && image[at + 0x80..at + 0x88] == f.0.to_le_bytes())
        .unwrap();
    image[home + 0x58] ^= 1;
    let hurt = SimBackend::from_image(&image).unwrap();
    let fs = mount(&hurt, options(Rules::default())).unwrap();
    for _ in 0..3 {
        let e = fs.getattr(f).unwrap_err();
        assert_eq!(e.errno(), libc::EUCLEAN, "{e}");
    }
    fs.close().unwrap();
    for page in [0, copy] {
        let d = dynamic(&hurt.image(), page);
        assert_eq!((d.first_error.count, d.last_error.count), (1, 3));
        assert_eq!(d.first_error.errno, libc::EUCLEAN as u32);
        assert!(d.last_error.time_sec > d.first_error.time_sec);
    }
}

/// A record that only the checkpoint makes dead: it has been in its slot since before a
/// crash, and later operations have changed the same place.
#[test]
fn checkpoint_falls_back_to_copy() {
    let mut rec = fresh();
    let (f, g) = (create(&rec.fs, "f"), create(&rec.fs, "g"));
    chmod(&rec.fs, f, 0o611);
    let mut rec = Recorded::from_image(&rec.machine().least(), Rules::default()).unwrap();
    set_thread_lane(1);
    chmod(&rec.fs, f, 0o622);
    (0..3).for_each(|i| chmod(&rec.fs, g, 0o640 + i));
    let copy = rec.geometry().copy_offset.0;
    let image = rec.machine().least();
    let at = |page: u64| (page + DYNAMIC_OFFSET) as usize + 0x10;
    let whole = dynamic(&image, 0).checkpoint;
    for page in [0, copy] {
        for damaged in [0, whole ^ 1, whole ^ 1 << 60, u64::MAX] {
            let mut image = image.clone();
            image[at(page)..][..8].copy_from_slice(&damaged.to_le_bytes());
            let fs = recover(&image).unwrap();
            assert_eq!(
                fs.getattr(f).unwrap().perm,
                0o622,
                "page {page:#x}, {damaged:#x}"
            );
        }
    }
    // Without any checkpoint, it is unknown which records are dead.
    let mut image = image;
    for page in [0, copy] {
        image[at(page)] ^= 1;
    }
    let e = recover(&image).unwrap_err();
    assert_eq!(e.errno(), libc::EUCLEAN, "{e}");
}

/// A fence completes only the flushes of its own thread. The next thread of a lane
/// flushes the changes of the previous one again before it overwrites the record.
#[test]
fn lane_of_two_threads_keeps_changes_of_both() {
    let mut rec = fresh();
    let (f, g) = (create(&rec.fs, "f"), create(&rec.fs, "g"));
    on_another_thread(&rec.fs, 0, |fs| chmod(fs, f, 0o611));
    (0..3).for_each(|i| chmod(&rec.fs, g, 0o640 + i));
    let fs = recover(&rec.machine().least()).unwrap();
    assert_eq!(fs.getattr(f).unwrap().perm, 0o611);
}

/// A thread that takes over a place of another lane fences its unfenced changes.
#[test]
fn hand_over_fences_changes_of_other_thread() {
    let mut rec = fresh();
    let (f, g) = (create(&rec.fs, "f"), create(&rec.fs, "g"));
    on_another_thread(&rec.fs, 1, |fs| {
        let set = SetAttr {
            uid: Some(77),
            ..SetAttr::default()
        };
        fs.setattr(&CX, f, &set).unwrap();
    });
    chmod(&rec.fs, f, 0o611);
    (0..3).for_each(|i| chmod(&rec.fs, g, 0o640 + i));
    let fs = recover(&rec.machine().least()).unwrap();
    let a = fs.getattr(f).unwrap();
    assert_eq!((a.uid, a.perm), (77, 0o611));
}

/// The number of a freed inode is stale at once, even while its bit waits until the
/// record is dead. The number of an uncommitted inode is stale too.
#[test]
fn freed_inode_is_stale_at_once() {
    let rec = fresh();
    let f = create(&rec.fs, "f");
    rec.fs.append(&CX, f, &[1; 100]).unwrap();
    rec.fs.unlink(Ino::ROOT, b"f").unwrap();
    for _ in 0..3 {
        let e = rec.fs.getattr(f).unwrap_err();
        assert_eq!(e.errno(), libc::ESTALE, "{e}");
    }
    let t = Tree::of(&rec.fs).unwrap();
    assert_eq!(t.nodes.len(), 1);
}

/// The page that a mount reads first is stored last, and each page is fenced.
#[test]
fn label_change_is_atomic_and_finished_by_mount() {
    let labels = ["before", "a longer one", "third"];
    // Mounts, reads the label, and uses the contents.
    let label_of = |image: &[u8], at: &str| {
        let fs = recover(image).unwrap_or_else(|e| panic!("{at}: {e}"));
        let label = fs.label();
        fs.create(&CX, Ino::ROOT, b"used", 0o600)
            .unwrap_or_else(|e| panic!("{at}: {e}"));
        fs.close().unwrap();
        recovered_tree(image).unwrap_or_else(|e| panic!("{at}: {e}"));
        label
    };
    let mut rec = fresh();
    rec.fs.set_label(labels[0]).unwrap();
    let from = rec.now();
    let old = rec.machine().least();
    rec.fs.set_label(labels[1]).unwrap();
    let events = rec.events()[from..].to_vec();
    let new = rec.machine().least();
    assert_eq!(label_of(&old, "the first has returned"), labels[0]);
    assert_eq!(label_of(&new, "the second has returned"), labels[1]);
    everywhere(rec.at(from), &events, &LIMITS, 1, &mut |moment, image| {
        let at = format!("crash at event {moment} of {}", events.len());
        let label = label_of(image, &at);
        assert!(labels[..2].contains(&&*label), "{at}: {label}");
    });
    // A mount finds the first page torn and repairs it; then the label changes again,
    // with the copy first.
    let mut torn = new;
    torn[60..512].copy_from_slice(&old[60..512]);
    let mut rec = Recorded::from_image(&torn, Rules::default()).unwrap();
    assert_eq!(rec.fs.label(), labels[1]);
    rec.fs.set_label(labels[2]).unwrap();
    let events = rec.events().to_vec();
    everywhere(rec.at(0), &events, &LIMITS, 1, &mut |moment, image| {
        let at = format!("crash at event {moment} of the mount that mends it");
        let label = label_of(image, &at);
        assert!(labels[1..].contains(&&*label), "{at}: {label}");
    });
}
