//! Each kind of damage is found.

use super::run::ScrubOptions;
use super::support_tests::*;
use super::verify::{BlockSum, DataBlock, VerifyData};
use crate::fs::Engine;
use crate::fs::inode::state::InodeState;
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::htree::TreeRef;
use pramfs_medium::map::{self, MapRef};
use pramfs_medium::media::pointer::Ptr;
use pramfs_medium::media::retired::RetiredCopy;
use pramfs_medium::media::scrub::FINISHED;
use pramfs_medium::media::superblock::{DYNAMIC_OFFSET, INODE_TABLE_OFFSET};
use pramfs_medium::pmem::RegionAccess as _;
use pramfs_medium::types::{FileBlock, Ino};
use std::sync::atomic::Ordering;

#[test]
fn scrub_of_intact_file_system_reads_all_and_finds_nothing() {
    let Planted { fs, data, .. } = planted();
    let (record, found) = scrub(&fs);
    assert_eq!(found, []);
    assert_eq!(record.state, FINISHED);
    assert_eq!((record.found, record.findings, record.completed), (0, 0, 1));
    let all = fs.bytes_to_scrub();
    assert!(
        record.done > data * 1024 && record.done <= all + (64 << 10),
        "{record:?}"
    );
    // What is not read is the rest of the inode table, and unused bitmaps.
    assert!(record.done > all / 2, "{} of {all}", record.done);
    let (record, found) = scrub(&fs);
    assert_eq!((found.len(), record.completed), (0, 2));
    fs.close().unwrap();
}

/// Each place where a bit is flipped, and the kind that must be found.
#[test]
fn scrub_finds_each_kind_of_damage() {
    type Place = fn(&Planted) -> u64;
    let cases: &[(&str, Damage, Place)] = &[
        ("first page", Damage::SuperblockDamaged, |_| 0x38),
        ("copy", Damage::SuperblockDamaged, |p| {
            p.fs.vol.geo.copy_offset.0 + 0x38
        }),
        ("checkpoint", Damage::CheckpointDamaged, |_| {
            DYNAMIC_OFFSET + 0x10
        }),
        ("internal inode", Damage::InternalInodeDamaged, |p| {
            p.fs.vol.geo.copy_offset.0 + INODE_TABLE_OFFSET + 16
        }),
        ("lane", Damage::RetiredWordDamaged, |p| {
            let at = p.fs.vol.geo.retired_offset(1).0;
            let w = p.fs.region_to_damage().window();
            let pending = w.store(at, &77u64.to_le_bytes()).unwrap();
            let _ = w.fence(pending);
            at
        }),
        ("copy of a lane's word", Damage::RetiredWordDamaged, |p| {
            RetiredCopy::place(&p.fs.vol.geo, 2).unwrap().0 + 8
        }),
        ("record", Damage::LaneDamaged, |p| {
            let lane = p.fs.vol.journal.thread_lane();
            p.fs.vol.geo.slot_offset(lane, 0).0 + 64
        }),
        ("bitmap", Damage::BitmapSum, |p| {
            let (bitmap, _) =
                p.fs.vol
                    .blocks
                    .bitmap_offset(p.fs.vol.medium(), 0)
                    .unwrap()
                    .unwrap();
            bitmap.0 + 80
        }),
        ("sum of a group", Damage::BitmapSum, |p| {
            let (_, desc) =
                p.fs.vol
                    .inodes
                    .bitmap_offset(p.fs.vol.medium(), 0)
                    .unwrap()
                    .unwrap();
            desc.0 + 8
        }),
        ("pointer of a group", Damage::BitmapPointer, |p| {
            p.fs.vol.blocks.desc_offset(p.fs.vol.medium(), 1).unwrap().0
        }),
        ("pointer to the inode table", Damage::MapPointer, |p| {
            let disk = crate::fs::engine::superblock::internal(
                p.fs.vol.medium(),
                INODE_TABLE_OFFSET,
                Ino::INODE_TABLE,
            );
            to(&p.fs, disk.unwrap().root)
        }),
        ("inode", Damage::InodeDamaged, |p| {
            p.fs.iget(p.file).unwrap().home.0 + 0x60
        }),
        ("pointer of a file", Damage::MapPointer, |p| {
            state(&p.fs, p.file, |s| to(&p.fs, s.disk.root)) + 8
        }),
        ("leaf of a directory", Damage::TreeLeaf, |p| {
            let root = state(&p.fs, p.dir, |s| to(&p.fs, s.disk.root));
            let slot = p.fs.region_to_damage().load_u64(root).unwrap();
            to(&p.fs, slot) + 700
        }),
        ("index block of a directory", Damage::TreePointer, |p| {
            state(&p.fs, p.dir, |s| to(&p.fs, s.disk.root)) + 32
        }),
        ("leaf of attributes", Damage::TreeLeaf, |p| {
            state(&p.fs, p.file, |s| to(&p.fs, s.disk.xattr_root)) + 700
        }),
        ("large attribute", Damage::XattrChecksum, |p| {
            // The first of its blocks: the last that were allocated before the inodes.
            let tree = state(&p.fs, p.file, |s| TreeRef::xattrs(&s.disk));
            let mut at = 0;
            pramfs_medium::htree::find(&p.fs.vol, &tree, b"user.large", &mut |_, value| {
                let large =
                    crate::fs::inode::large_values::parse_large(&p.fs.vol.geo, p.file, value);
                let map = crate::fs::inode::large_values::map_of_value(
                    &p.fs.vol.geo,
                    &large.unwrap(),
                    p.file,
                    b"user.large",
                );
                let leaf = map::find(&p.fs.vol, &map, FileBlock(2)).unwrap();
                at = p.fs.vol.geo.offset(leaf.block.unwrap()).0;
            })
            .unwrap();
            at + 9
        }),
        ("target", Damage::TargetChecksum, |p| {
            state(&p.fs, p.link, |s| to(&p.fs, s.disk.root)) + 100
        }),
        ("orphan slot", Damage::OrphanSlotDamaged, |p| {
            let at = state(&p.fs, Ino::ORPHANS, |s| to(&p.fs, s.disk.root));
            let w = p.fs.region_to_damage().window();
            let pending = w.store(at + 8, &77u64.to_le_bytes()).unwrap();
            let _ = w.fence(pending);
            at + 8
        }),
    ];
    for (name, kind, place) in cases {
        let p = planted();
        let at = place(&p);
        flip(&p.fs, at);
        let (record, found) = scrub(&p.fs);
        let kinds: Vec<_> = found.iter().map(|found| found.kind).collect();
        assert!(kinds.contains(kind), "{name}: {found:?}");
        assert_eq!(record.state, FINISHED, "{name}");
        assert_eq!(record.findings, found.len() as u64, "{name}");
        assert_ne!(record.first.time_sec, 0, "{name}");
        assert!(
            found.iter().all(|found| found.text.contains("fsck.pramfs")),
            "{name}: {found:?}"
        );
        // A scrub applies no error policy: the program that meets the damage does.
        assert!(!p.fs.is_read_only(), "{name}");
        drop(p.fs);
    }
}

#[test]
fn scrub_finds_damaged_list_of_bad_blocks() {
    let Planted { sim, fs, .. } = planted();
    fs.close().unwrap();
    let bad = LEN as u64 - 64 * 1024;
    let range = bad..bad + 5 * 1024;
    sim.set_kernel_bad(vec![range]);
    let fs = open(&sim);
    assert_eq!(fs.vol.bad.count(), 5);
    assert_eq!(scrub(&fs).1, []);
    let root = fs.super_state.fixed.lock().badblock_root;
    let list = to(&fs, root);
    // A bit of an extent, the number of extents, the pointer to the next block.
    for (found_before, at) in (1..).zip([list + 32, list + 8, list + 16]) {
        flip(&fs, at);
        let (record, found) = scrub(&fs);
        let kinds: Vec<_> = found.iter().map(|found| found.kind).collect();
        assert_eq!(kinds, [Damage::BadBlockListDamaged], "{found:?}");
        assert!(found[0].text.contains("fsck.pramfs"), "{found:?}");
        assert_eq!(record.findings, found_before);
        flip(&fs, at);
    }
    // This list passes its check, and is not the one in use.
    let forged = pramfs_medium::media::bad_blocks::ListBlock::new(Ptr(root).block());
    let bytes = forged.bytes(&fs.vol.geo);
    let w = fs.region_to_damage().window();
    let pending = w.store(list, &bytes).unwrap();
    let _ = w.fence(pending);
    drop(w);
    let (_, found) = scrub(&fs);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].kind, Damage::BadBlockListDamaged);
    drop(fs);
}

#[test]
fn copy_of_retired_word_that_scrub_finds_damaged_is_stored_anew_by_next_mount() {
    let Planted { sim, fs, .. } = planted();
    let at = RetiredCopy::place(&fs.vol.geo, 1).unwrap().0;
    flip(&fs, at);
    assert_eq!(scrub(&fs).1.len(), 1);
    fs.close().unwrap();
    let fs = open(&sim);
    assert_eq!(scrub(&fs).1, []);
    fs.close().unwrap();
}

#[test]
fn scrub_finds_forged_byte_and_forged_sum_of_data() {
    let p = planted_with(&["data_checksums"]);
    // The last block is not full.
    p.fs.write(&ROOT, p.file, p.data * 1024, &[7; 100]).unwrap();
    let (_, found) = scrub(&p.fs);
    assert_eq!(found, []);
    let block_of = |index: u64| {
        let map = state(&p.fs, p.file, |s| MapRef::of(&s.disk));
        let leaf = map::look(&p.fs.vol, &map, FileBlock(index)).unwrap();
        let first = leaf.block.unwrap();
        first.after(index - leaf.first.0)
    };
    let data = |index| p.fs.vol.geo.offset(block_of(index)).0;
    flip(&p.fs, data(77) + 512);
    flip(&p.fs, data(p.data) + 96);
    // Past the end of the file, where no sum holds.
    flip(&p.fs, data(p.data) + 104);
    let sum = p.fs.vol.blocks.sum_at(p.fs.vol.medium(), block_of(5));
    flip(&p.fs, sum.unwrap().0);
    let (record, found) = scrub(&p.fs);
    let places: Vec<_> = (found.iter().map(|f| (f.kind, f.ino, f.offset))).collect();
    let at = |block: u64| (Damage::DataSum, Some(p.file), Some(block * 1024));
    assert_eq!(places, [at(5), at(77), at(p.data)]);
    assert!(found[0].text.contains("restore the file"), "{found:?}");
    assert_eq!(record.findings, 3);
    // Written anew, they are right.
    for block in [5, 77] {
        p.fs.write(&ROOT, p.file, block * 1024, &[8; 1024]).unwrap();
    }
    p.fs.write(&ROOT, p.file, p.data * 1024, &[8; 100]).unwrap();
    let (record, found) = scrub(&p.fs);
    assert_eq!((found.len(), record.findings), (0, 3));
    p.fs.close().unwrap();
}

/// Zeros are no damage to a pointer, but the inode counts its blocks.
#[test]
fn scrub_finds_lost_pointers_by_their_number() {
    let p = planted();
    let table = state(&p.fs, p.file, |s| to(&p.fs, s.disk.root));
    let leaf_table = to(&p.fs, p.fs.region_to_damage().load_u64(table).unwrap());
    {
        let w = p.fs.region_to_damage().window();
        let pending = w.store(leaf_table + 64, &[0; 64]).unwrap();
        let _ = w.fence(pending);
    }
    let (_, found) = scrub(&p.fs);
    let kinds: Vec<_> = found.iter().map(|found| (found.kind, found.ino)).collect();
    assert_eq!(kinds, [(Damage::BlockCount, Some(p.file))], "{found:?}");
    drop(p.fs);
}

/// Sums that refuse one block of a file.
struct Refuses {
    ino: Ino,
    index: FileBlock,
    /// How often it refuses.
    times: Cell2,
}

#[derive(Default)]
struct Cell2(std::sync::atomic::AtomicU32);

impl VerifyData for Refuses {
    fn sums(
        &self,
        engine: &Engine,
        state: &InodeState,
        first: DataBlock,
        count: u64,
    ) -> Result<Vec<Option<BlockSum>>> {
        assert!(engine.is_up());
        let known = state.disk.ino == self.ino.0;
        let sum = |i: u64| BlockSum {
            word: first.index.0 + i,
            len: 0,
        };
        Ok((0..count).map(|i| known.then_some(sum(i))).collect())
    }

    fn check(&self, engine: &Engine, of: DataBlock, sum: BlockSum, bytes: &[u8]) -> Result<()> {
        assert_eq!(sum.word, of.index.0);
        assert_eq!(bytes.len() as u64, engine.vol.geo.block_size);
        let map = state_of(engine, self.ino, |s| MapRef::of(&s.disk));
        let leaf = map::look(&engine.vol, &map, of.index).unwrap();
        assert_eq!(
            leaf.block.map(|b| b.0 + (of.index - leaf.first)),
            Some(of.block.0)
        );
        assert!(bytes.iter().all(|byte| *byte == 7));
        let times = &self.times.0;
        let refuses = of.index == self.index
            && times
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                .is_ok();
        match refuses {
            true => Err(Error::corrupt(
                Damage::InodeDamaged,
                of.ino,
                "the sum is wrong",
            )),
            false => Ok(()),
        }
    }
}

fn state_of<T>(engine: &Engine, ino: Ino, f: impl FnOnce(&InodeState) -> T) -> T {
    f(&engine.cache.get(ino).unwrap().state.try_read().unwrap())
}

#[test]
fn block_that_is_refused_is_found_only_if_refused_to_the_last_look() {
    for (times, finds) in [(1, false), (3, false), (4, true)] {
        let p = planted();
        let refuses = Refuses {
            ino: p.file,
            index: FileBlock(77),
            times: Cell2(times.into()),
        };
        let host = Host::new();
        p.fs.run_scrub(ScrubOptions::default(), &refuses, &host)
            .unwrap();
        let found = host.found.into_inner();
        assert_eq!(found.len(), usize::from(finds), "{times}: {found:?}");
        if let Some(found) = found.first() {
            assert_eq!((found.ino, found.offset), (Some(p.file), Some(77 * 1024)));
        }
        p.fs.close().unwrap();
    }
}
