//! Plants one defect of each kind. A check finds exactly that one.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::plant::{Case, Plant, WINDOW_START, expect};
use crate::{CheckOptions, Issue, Page, Part, check};
use pramfs_medium::error::Damage;
use pramfs_medium::htree::TreeKind;
use pramfs_medium::media::acl;
use pramfs_medium::media::bitmap::{BitmapKind, GroupDesc};
use pramfs_medium::media::checksum::{crc, seal};
use pramfs_medium::media::features::{APPEND_WINDOWS, BAD_BLOCKS, PARKED_LEASES};
use pramfs_medium::media::inode::FL_LOST;
use pramfs_medium::media::pointer::{Ptr, SHARED, UNWRITTEN};
use pramfs_medium::media::scrub::SCRUB_OFFSET;
use pramfs_medium::media::superblock::*;
use pramfs_medium::pmem::RegionAccess;
use pramfs_medium::types::{Bno, FileType, Ino, LeaseMode};

macro_rules! cases {
    ($($(#[$doc:meta])* $name:ident: $code:literal => $case:expr;)*) => {
        $(#[test] $(#[$doc])* fn $name() { expect($case); })*
        /// Every case, with the short name of the expected finding.
        pub const CASES: &[(&str, Case)] = &[$(($code, $case),)*];
    };
}

cases! {
    no_superblock: "no-superblock" => |p| {
        for page in p.pages() {
            p.put(page, &[0; 8]);
        }
        vec![Issue::NoSuperblock {
            why: "no pramfs file system was found: is it the right device or file?".into(),
        }]
    };
    first_superblock_damaged: "superblock-damaged" => |p| {
        p.flip(0x60, 1);
        vec![Issue::SuperblockDamaged { page: Page::First, what: "checksum mismatch" }]
    };
    superblock_copy_damaged: "superblock-damaged" => |p| {
        p.put(p.geo.copy_offset.0, &[0; 8]);
        vec![Issue::SuperblockDamaged { page: Page::Copy, what: "no magic number" }]
    };
    superblocks_differ: "superblocks-differ" => |p| {
        p.fixed(p.geo.copy_offset.0, |sb| sb.created_sec ^= 1);
        vec![Issue::SuperblocksDiffer]
    };
    labels_differ: "labels-differ" => |p| {
        p.fixed(p.geo.copy_offset.0, |sb| sb.label[0] = b'x');
        vec![Issue::LabelsDiffer]
    };
    grow_interrupted: "grow-interrupted" => |p| {
        p.fixed(p.geo.copy_offset.0, |sb| sb.inodes_max += 512);
        vec![Issue::GrowInterrupted]
    };
    forged_size_in_copy: "superblocks-differ" => |p| {
        p.fixed(p.geo.copy_offset.0, |sb| *sb = sb.grown(1 << 40));
        vec![Issue::SuperblocksDiffer]
    };
    feature_of_leases_differs: "labels-differ" => |p| {
        p.fixed(p.geo.copy_offset.0, |sb| sb.ro_compat ^= PARKED_LEASES);
        vec![Issue::LabelsDiffer]
    };
    feature_of_append_windows_differs: "labels-differ" => |p| {
        p.fixed(p.geo.copy_offset.0, |sb| sb.incompat ^= APPEND_WINDOWS);
        vec![Issue::LabelsDiffer]
    };
    unknown_features: "unknown-features" => |p| {
        p.fixed(0, |sb| sb.incompat |= 1 << 40);
        vec![Issue::UnknownFeatures { names: vec!["bit 40".into()] }]
    };
    checkpoint_damaged: "checkpoint-damaged" => |p| {
        p.dynamic(&[p.geo.copy_offset.0], |d| d.checkpoint ^= 1);
        vec![Issue::CheckpointDamaged { page: Page::Copy }]
    };
    dynamic_words_differ: "dynamic-words-differ" => |p| {
        p.dynamic(&[p.geo.copy_offset.0], |d| d.mounts += 1);
        vec![Issue::DynamicWordsDiffer]
    };
    state_unknown: "state-unknown" => |p| {
        p.dynamic(&p.pages(), |d| d.state = 77);
        vec![Issue::StateUnknown { state: 77 }]
    };
    not_unmounted: "not-unmounted" => |p| {
        p.dynamic(&p.pages(), |d| d.state = STATE_ACTIVE);
        vec![Issue::NotUnmounted]
    };
    errors_recorded: "errors-recorded" => |p| {
        p.dynamic(&p.pages(), |d| {
            (d.first_error.errno, d.first_error.count) = (117, 1);
            (d.last_error.errno, d.last_error.count) = (5, 3);
        });
        vec![Issue::ErrorsRecorded { count: 3, errno: 117 }]
    };
    scrub_findings: "scrub-findings" => |p| {
        p.put_scrub(1, |r| r.findings = 2);
        p.put_scrub(2, |r| r.findings = 3);
        vec![Issue::ScrubFindings { count: 3 }]
    };
    scrub_record_damaged: "scrub-record-damaged" => |p| {
        p.put_scrub(1, |_| ());
        p.put_scrub(2, |_| ());
        for page in p.pages() {
            p.flip(page + SCRUB_OFFSET + 0x10, 1);
        }
        vec![Issue::ScrubRecordDamaged]
    };
    internal_inode_damaged: "internal-inode-damaged" => |p| {
        p.flip(INODE_GROUPS_OFFSET + 0x20, 4);
        vec![Issue::InternalInodeDamaged { page: Page::First, ino: Ino::INODE_GROUPS }]
    };
    internal_inode_lost: "internal-inode-lost" => |p| {
        for page in p.pages() {
            p.flip(page + BLOCK_GROUPS_OFFSET + 0x20, 4);
        }
        vec![Issue::InternalInodeLost { ino: Ino::BLOCK_GROUPS }]
    };
    internal_inodes_differ: "internal-inodes-differ" => |p| {
        p.internal(&[p.geo.copy_offset.0], INODE_TABLE_OFFSET, |d| d.mtime_sec += 1);
        vec![Issue::InternalInodesDiffer { ino: Ino::INODE_TABLE }]
    };

    live_records: "live-records" => |p| {
        p.dynamic(&p.pages(), |d| d.checkpoint = seal(p.geo.seed, 1));
        for lane in 0..p.geo.lanes {
            p.put(p.geo.retired_offset(lane).0, &[0; 16]);
        }
        let report = p.check();
        let records = report.issues().find_map(|i| match i {
            Issue::LiveRecords { records } => Some(*records),
            _ => None,
        });
        assert!(!report.complete && records.is_some_and(|n| n > 0 && n <= 2 * u64::from(p.geo.lanes)));
        vec![Issue::LiveRecords { records: records.unwrap() }]
    };
    retired_word_damaged: "retired-word-damaged" => |p| {
        p.put(p.geo.retired_offset(1).0, &[0x55; 8]);
        vec![Issue::RetiredWordDamaged { lane: 1, copy: 0 }]
    };
    retired_word_copy_damaged: "retired-word-damaged" => |p| {
        p.put(p.geo.retired_offset(1).0 + 8, &[0x55; 8]);
        vec![Issue::RetiredWordDamaged { lane: 1, copy: 1 }]
    };
    record_torn: "record-torn" => |p| {
        p.put(p.geo.slot_offset(2, 1).0, b"prec");
        p.put(p.geo.slot_offset(2, 1).0 + 20, &[0x55; 30]);
        vec![Issue::RecordTorn { lane: 2, slot: 1 }]
    };
    lane_damaged: "lane-damaged" => |p| {
        for slot in 0..2 {
            p.put(p.geo.slot_offset(3, slot).0, &[0x55; 30]);
        }
        vec![Issue::LaneDamaged { lane: 3 }]
    };

    descriptors_missing: "descriptor-missing" => |p| {
        p.internal(&p.pages(), BLOCK_GROUPS_OFFSET, |d| (d.root, d.blocks) = (0, 0));
        let kind = BitmapKind::Blocks;
        (0..3).map(|group| Issue::DescriptorMissing { kind, group }).collect()
    };
    bitmap_pointer: "bitmap-pointer" => |p| {
        p.flip(p.desc_at(BitmapKind::Blocks, 0) + 2, 0x10);
        vec![Issue::BitmapPointer { kind: BitmapKind::Blocks, group: 0 }]
    };
    block_bitmap_sum: "bitmap-sum" => |p| {
        p.flip(p.desc_at(BitmapKind::Blocks, 0) + 9, 0x10);
        vec![Issue::BitmapSum { kind: BitmapKind::Blocks, group: 0 }]
    };
    inode_bitmap_sum: "bitmap-sum" => |p| {
        p.flip(p.desc_at(BitmapKind::Inodes, 0) + 9, 0x10);
        vec![Issue::BitmapSum { kind: BitmapKind::Inodes, group: 0 }]
    };
    bitmap_sum_of_unused_group: "bitmap-sum" => |p| {
        let at = p.desc_at(BitmapKind::Inodes, 1);
        let unused = GroupDesc::unused(&p.geo, BitmapKind::Inodes, 1);
        assert_eq!(p.region.load_u64(at).unwrap(), unused.bitmap);
        p.flip(at + 8, 1);
        vec![Issue::BitmapSum { kind: BitmapKind::Inodes, group: 1 }]
    };
    cleared_descriptor: "bitmap-pointer" => |p| {
        p.put(p.desc_at(BitmapKind::Inodes, 1), &[0; 32]);
        vec![Issue::BitmapPointer { kind: BitmapKind::Inodes, group: 1 }]
    };
    bits_past_end: "bits-past-end" => |p| {
        let group = p.geo.blocks() / p.geo.bits_per_group();
        make_group(p, group);
        p.set_bit(BitmapKind::Blocks, p.geo.blocks() + 3, true);
        vec![Issue::BitsPastEnd { kind: BitmapKind::Blocks, group }]
    };
    blocks_leaked: "blocks-leaked" => |p| {
        let start = p.free_block();
        p.set_bit(BitmapKind::Blocks, start, true);
        vec![Issue::BlocksLeaked { start, len: 1 }]
    };
    run_of_blocks_leaked: "blocks-leaked" => |p| {
        let start = 8000;
        (start..start + 100).for_each(|b| p.set_bit(BitmapKind::Blocks, b, true));
        vec![Issue::BlocksLeaked { start, len: 100 }]
    };
    blocks_free: "blocks-free" => |p| {
        let start = p.block_of(p.file, 17);
        p.set_bit(BitmapKind::Blocks, start, false);
        vec![Issue::BlocksFree { start, len: 1 }]
    };
    block_used_twice: "block-used-twice" => |p| {
        let block = p.block_of(p.file, 17);
        let (at, place) = p.pointer_of(p.sparse, 3);
        p.put(at, &Ptr::new(Bno(block), 0, place).0.to_le_bytes());
        p.edit(p.sparse, |d| d.blocks += 1);
        vec![Issue::BlockUsedTwice { block, ino: p.sparse }]
    };

    reserved_inode_free: "reserved-inode-free" => |p| {
        p.set_bit(BitmapKind::Inodes, 7, false);
        vec![Issue::ReservedInodeFree { ino: Ino(7) }]
    };
    inode_missing: "inode-missing" => |p| {
        p.set_bit(BitmapKind::Inodes, 8100, true);
        vec![Issue::InodeMissing { ino: Ino(8100) }]
    };
    inode_damaged: "inode-damaged" => |p| {
        p.flip(p.home(p.file) + 0x22, 1);
        vec![Issue::InodeDamaged { ino: p.file }]
    };
    inode_with_another_number: "inode-damaged" => |p| {
        let mut d = p.inode(p.empty);
        d.ino += 1;
        d.seal(p.geo.seed, p.empty);
        p.put(p.home(p.empty), zerocopy::IntoBytes::as_bytes(&d));
        vec![Issue::InodeDamaged { ino: p.empty }]
    };
    inode_type: "inode-field" => |p| {
        p.edit(p.empty, |d| d.mode = 0o644);
        vec![Issue::InodeField { ino: p.empty, what: "the mode has no valid file type" }]
    };
    inode_size: "inode-field" => |p| {
        p.edit(p.empty, |d| d.size = 1 << 63);
        vec![Issue::InodeField { ino: p.empty, what: "the size is out of range" }]
    };
    inode_time: "inode-field" => |p| {
        p.edit(p.empty, |d| d.btime_nsec = 1_000_000_000);
        vec![Issue::InodeField { ino: p.empty, what: "the nanoseconds of a timestamp are out of range" }]
    };
    inode_flags: "inode-field" => |p| {
        p.edit(p.empty, |d| d.flags = 1 << 30);
        vec![Issue::InodeField { ino: p.empty, what: "unknown flags are set" }]
    };
    pipe_with_contents: "inode-field" => |p| {
        p.edit(p.pipe, |d| d.size = 1);
        vec![Issue::InodeField { ino: p.pipe, what: "it has contents, but cannot have any" }]
    };
    root_with_another_parent: "inode-field" => |p| {
        p.edit(Ino::ROOT, |d| d.parent_or_rdev = 99);
        vec![Issue::InodeField { ino: Ino::ROOT, what: "the root directory is not its own parent" }]
    };
    inode_reserved: "inode-reserved" => |p| {
        p.edit(p.file, |d| d.unsummed_to = 1);
        vec![Issue::InodeReserved { ino: p.file }]
    };
    lost_flag_without_marks: "lost-flag" => |p| {
        p.edit(p.file, |d| d.flags |= FL_LOST);
        vec![Issue::LostFlag { ino: p.file, marked: false }]
    };
    lost_marks_without_flag: "lost-flag" => |p| {
        let (block, (at, place)) = (p.block_of(p.file, 200), p.pointer_of(p.file, 200));
        p.put(at, &Ptr::lost(place).0.to_le_bytes());
        p.edit(p.file, |d| d.blocks -= 1);
        p.set_bit(BitmapKind::Blocks, block, false);
        vec![Issue::LostFlag { ino: p.file, marked: true }]
    };
    lost_flag_of_a_directory: "inode-field" => |p| {
        p.edit(p.dir, |d| d.flags |= FL_LOST);
        vec![Issue::InodeField { ino: p.dir, what: "unknown flags are set" }]
    };
    block_count: "block-count" => |p| {
        let recorded = p.inode(p.file).blocks - 5;
        p.edit(p.file, |d| d.blocks = recorded);
        vec![Issue::BlockCount { ino: p.file, recorded, found: recorded + 5 }]
    };
    inode_table_block_count: "block-count" => |p| {
        let d: pramfs_medium::media::DiskInode = p.region.read_pod(INODE_TABLE_OFFSET).unwrap();
        p.internal(&p.pages(), INODE_TABLE_OFFSET, |d| d.blocks -= 1);
        vec![Issue::BlockCount { ino: Ino::INODE_TABLE, recorded: d.blocks - 1, found: d.blocks }]
    };
    blocks_missing: "blocks-missing" => |p| {
        let recorded = p.inode(p.file).blocks + 5;
        p.edit(p.file, |d| d.blocks = recorded);
        vec![Issue::BlocksMissing { ino: p.file, recorded, found: recorded - 5 }]
    };
    inode_table_blocks_missing: "blocks-missing" => |p| {
        let d: pramfs_medium::media::DiskInode = p.region.read_pod(INODE_TABLE_OFFSET).unwrap();
        p.internal(&p.pages(), INODE_TABLE_OFFSET, |d| d.blocks += 1);
        vec![Issue::BlocksMissing { ino: Ino::INODE_TABLE, recorded: d.blocks + 1, found: d.blocks }]
    };
    map_empty: "map-empty" => |p| {
        // Empty the second pointer block, and free what it led to.
        let (at, _) = p.pointer_of(p.file, 128);
        for i in 128..256 {
            p.set_bit(BitmapKind::Blocks, p.block_of(p.file, i), false);
        }
        p.put(at, &[0; 1024]);
        p.edit(p.file, |d| d.blocks -= 128);
        vec![Issue::MapEmpty { ino: p.file, part: Part::Contents, level: 1, first: 128 }]
    };
    tree_empty: "tree-empty" => |p| {
        let index = p.tree(p.big, TreeKind::Directory).root.block();
        p.put(p.geo.offset(index).0, &[0; 1024]);
        vec![Issue::TreeEmpty { ino: p.big, part: Part::Entries, level: 0, index: 0 }]
    };
    entries_missing: "entries-missing" => |p| {
        let recorded = p.inode(p.big).size + 3;
        p.edit(p.big, |d| d.size = recorded);
        vec![Issue::EntriesMissing { ino: p.big, recorded, found: recorded - 3 }]
    };
    lsns_used_up: "lsns-used-up" => |p| {
        let newest = (1 << 52) - 2;
        p.dynamic(&p.pages(), |d| d.checkpoint = pramfs_medium::media::checksum::seal(p.geo.seed, newest));
        vec![Issue::LsnsUsedUp { newest }]
    };
    orphan_with_nonzero_link_count: "inode-leaked" => |p| {
        p.edit(p.gone, |d| d.nlink = 1);
        vec![Issue::InodeLeaked { ino: p.gone }]
    };
    map_pointer: "map-pointer" => |p| {
        p.flip(p.pointer_of(p.file, 200).0 + 1, 0x20);
        vec![Issue::MapPointer { ino: p.file, part: Part::Contents, level: 0, first: 200 }]
    };
    map_pointer_with_shared_flag: "map-pointer" => |p| {
        let (at, place) = p.pointer_of(p.file, 200);
        let ptr = Ptr::new(Bno(p.block_of(p.file, 200)), SHARED, place);
        p.put(at, &ptr.0.to_le_bytes());
        vec![Issue::MapPointer { ino: p.file, part: Part::Contents, level: 0, first: 200 }]
    };
    map_root: "map-pointer" => |p| {
        p.edit(p.file, |d| d.root ^= 1 << 50);
        vec![Issue::MapPointer { ino: p.file, part: Part::Contents, level: 2, first: 0 }]
    };
    map_hole_in_a_symlink: "map-hole" => |p| {
        let block = p.block_of(p.long, 0);
        p.edit(p.long, |d| (d.root, d.blocks) = (1, 0));
        p.edit(p.long, |d| d.root = 0);
        p.set_bit(BitmapKind::Blocks, block, false);
        vec![Issue::MapHole { ino: p.long, part: Part::Contents, first: 0 }]
    };
    map_hole_in_an_attribute: "map-hole" => |p| {
        p.large(|v| v.len += 1024);
        vec![Issue::MapHole { ino: p.file, part: Part::XattrValue, first: 5 }]
    };
    short_target: "bad-target" => |p| {
        p.edit(p.short, |d| d.target[3] = 0);
        vec![Issue::BadTarget { ino: p.short }]
    };
    empty_target: "bad-target" => |p| {
        p.edit(p.short, |d| (d.size, d.target) = (0, [0; 96]));
        vec![Issue::BadTarget { ino: p.short }]
    };
    long_target: "bad-target" => |p| {
        let mut target = [b'l'; 500];
        target[7] = 0;
        p.put(p.geo.bytes(p.block_of(p.long, 0)), &target);
        let sum = crc(p.geo.seed, &target);
        p.edit(p.long, |d| d.target[..4].copy_from_slice(&sum.to_le_bytes()));
        vec![Issue::BadTarget { ino: p.long }]
    };
    target_checksum: "target-checksum" => |p| {
        p.flip(p.geo.bytes(p.block_of(p.long, 0)), 1);
        vec![Issue::TargetChecksum { ino: p.long }]
    };
    inode_leaked: "inode-leaked" => |p| {
        let ino = p.free;
        p.put_inode(ino, p.inode(p.empty));
        p.set_bit(BitmapKind::Inodes, ino.0, true);
        vec![Issue::InodeLeaked { ino }]
    };
    orphan_without_a_slot: "inode-leaked" => |p| {
        p.put(p.orphan_slot(p.slot_of(p.gone)), &[0; 8]);
        vec![Issue::InodeLeaked { ino: p.gone }]
    };

    tree_root: "tree-pointer" => |p| {
        p.edit(p.sub, |d| d.root ^= 1 << 60);
        vec![Issue::TreePointer { ino: p.sub, part: Part::Entries, level: 0, index: 0 }]
    };
    tree_pointer: "tree-pointer" => |p| {
        let index = p.tree(p.big, TreeKind::Directory).root.block();
        p.flip(p.geo.offset(index).0 + 7 * 8, 1);
        vec![Issue::TreePointer { ino: p.big, part: Part::Entries, level: 1, index: 7 }]
    };
    tree_pointer_missing: "tree-pointer" => |p| {
        // One of the slots of a leaf becomes a hole.
        let index = p.tree(p.big, TreeKind::Directory).root.block();
        let at = |i: u64| p.geo.offset(index).0 + i * 8;
        let block = |i: u64| Ptr(p.region.load_u64(at(i)).unwrap()).block();
        let i = (0..127).find(|i| i % 2 == 0 && block(*i) == block(i + 1)).unwrap();
        p.put(at(i + 1), &[0; 8]);
        vec![Issue::TreePointer { ino: p.big, part: Part::Entries, level: 1, index: i + 1 }]
    };
    tree_leaf_sum: "tree-leaf" => |p| {
        let block = p.tree(p.sub, TreeKind::Directory).root.block().0;
        p.flip(p.geo.bytes(block) + 700, 1);
        vec![Issue::TreeLeaf { ino: p.sub, part: Part::Entries, block, what: "its checksum does not fit" }]
    };
    tree_leaf_of_another_inode: "tree-leaf" => |p| {
        let block = p.leaf(p.sub, TreeKind::Directory, b"a", |b, _| b[0x10] ^= 1);
        vec![Issue::TreeLeaf { ino: p.sub, part: Part::Entries, block, what: "it belongs to another inode" }]
    };
    name_with_another_hash: "tree-leaf" => |p| {
        let block = p.leaf(p.sub, TreeKind::Directory, b"a", |b, at| b[at + 20] = b'c');
        vec![Issue::TreeLeaf { ino: p.sub, part: Part::Entries, block, what: "a hash is not that of its name" }]
    };
    name_with_a_slash: "tree-leaf" => |p| {
        let block = p.leaf(p.sub, TreeKind::Directory, b"a", |b, at| b[at + 20] = b'/');
        vec![Issue::TreeLeaf { ino: p.sub, part: Part::Entries, block, what: "a name or value that cannot be" }]
    };
    item_count: "tree-leaf" => |p| {
        let block = p.leaf(p.file, TreeKind::Xattrs, b"user.small", |b, _| b[6] += 1);
        vec![Issue::TreeLeaf { ino: p.file, part: Part::Xattrs, block, what: "the number of items is wrong" }]
    };
    duplicate_name: "duplicate-name" => |p| {
        let mut tag = 0;
        p.leaf(p.sub, TreeKind::Directory, b"a", |b, at| {
            tag = b[64 + (at - p.geo.leaf.slots_at) / 32];
        });
        p.leaf(p.sub, TreeKind::Directory, b"b", |b, at| {
            b[at..at + 8].copy_from_slice(&(p.hash(b"a") | 1).to_le_bytes());
            b[at + 20] = b'a';
            b[64 + (at - p.geo.leaf.slots_at) / 32] = tag;
        });
        vec![Issue::DuplicateName { ino: p.sub, part: Part::Entries, name: b"a".to_vec() }]
    };

    dangling_entry: "dangling-entry" => |p| {
        let ino = p.free;
        p.entry(Ino::ROOT, b"link", ino, FileType::Regular);
        p.edit(p.file, |d| d.nlink = 1);
        vec![Issue::DanglingEntry { dir: Ino::ROOT, name: b"link".to_vec(), ino }]
    };
    entry_reserved: "entry-reserved" => |p| {
        p.entry(Ino::ROOT, b"link", Ino::LEASES, FileType::Regular);
        p.edit(p.file, |d| d.nlink = 1);
        vec![Issue::EntryReserved { dir: Ino::ROOT, name: b"link".to_vec(), ino: Ino::LEASES }]
    };
    entry_type: "entry-type" => |p| {
        p.entry(Ino::ROOT, b"link", p.file, FileType::Fifo);
        vec![Issue::EntryType { dir: Ino::ROOT, name: b"link".to_vec(), ino: p.file }]
    };
    entry_count: "entry-count" => |p| {
        p.edit(p.sub, |d| d.size = 1);
        vec![Issue::EntryCount { ino: p.sub, recorded: 1, found: 2 }]
    };
    link_count_of_a_file: "link-count" => |p| {
        p.edit(p.file, |d| d.nlink = 3);
        vec![Issue::LinkCount { ino: p.file, recorded: 3, found: 2 }]
    };
    link_count_of_a_directory: "link-count" => |p| {
        p.edit(p.dir, |d| d.nlink = 2);
        vec![Issue::LinkCount { ino: p.dir, recorded: 2, found: 3 }]
    };
    directory_names: "directory-names" => |p| {
        p.entry(Ino::ROOT, b"link", p.sub, FileType::Directory);
        p.edit(p.file, |d| d.nlink = 1);
        p.edit(Ino::ROOT, |d| d.nlink += 1);
        vec![Issue::DirectoryNames { ino: p.sub, names: 2 }]
    };
    directory_parent: "directory-parent" => |p| {
        p.edit(p.sub, |d| d.parent_or_rdev = 2);
        vec![Issue::DirectoryParent { ino: p.sub, recorded: Ino::ROOT, found: p.dir }]
    };
    directory_loop: "directory-loop" => |p| {
        // dir/sub/a names dir, and the root's entry dir names the file a.
        let a = p.inode_named_a();
        p.entry(p.sub, b"a", p.dir, FileType::Directory);
        p.entry(Ino::ROOT, b"dir", a, FileType::Regular);
        p.edit(p.dir, |d| d.parent_or_rdev = p.sub.0);
        p.edit(p.sub, |d| d.nlink += 1);
        p.edit(Ino::ROOT, |d| d.nlink -= 1);
        vec![Issue::DirectoryLoop { ino: p.dir }]
    };
    directory_in_itself: "directory-loop" => |p| {
        let a = p.inode_named_a();
        p.entry(p.sub, b"a", p.sub, FileType::Directory);
        p.entry(p.dir, b"sub", a, FileType::Regular);
        p.edit(p.sub, |d| (d.parent_or_rdev, d.nlink) = (p.sub.0, 3));
        p.edit(p.dir, |d| d.nlink -= 1);
        vec![Issue::DirectoryLoop { ino: p.sub }]
    };
    name_of_orphan: "name-of-orphan" => |p| {
        p.edit(p.empty, |d| d.nlink = 0);
        vec![Issue::NameOfOrphan { ino: p.empty }]
    };

    xattr_item: "xattr-item" => |p| {
        p.leaf(p.file, TreeKind::Xattrs, b"user.small", |b, at| b[at + 11] = 9);
        vec![Issue::XattrItem { ino: p.file, name: b"user.small".to_vec() }]
    };
    xattr_checksum: "xattr-checksum" => |p| {
        p.large(|v| v.crc ^= 1);
        vec![Issue::XattrChecksum { ino: p.file, name: b"user.large".to_vec() }]
    };
    acl_damaged: "acl-damaged" => |p| {
        // Its version.
        p.leaf(p.sparse, TreeKind::Xattrs, acl::ACCESS, |b, at| b[at + 12] = 1);
        vec![Issue::AclDamaged { ino: p.sparse, name: acl::ACCESS.to_vec() }]
    };
    acl_mode: "acl-mode" => |p| {
        p.edit(p.sparse, |d| d.mode ^= 0o010);
        vec![Issue::AclMode { ino: p.sparse, recorded: 0o670, found: 0o660 }]
    };
    xattr_value_pointer: "map-pointer" => |p| {
        p.large(|v| v.height += 1);
        vec![Issue::MapPointer { ino: p.file, part: Part::XattrValue, level: 2, first: 0 }]
    };

    orphan_slot_damaged: "orphan-slot-damaged" => |p| {
        p.put(p.orphan_slot(50), &[0x55; 8]);
        vec![Issue::OrphanSlotDamaged { slot: 50 }]
    };
    orphan_slot_names_free_inode: "orphan-slot-wrong" => |p| {
        let ino = p.free;
        p.put(p.orphan_slot(50), &p.slot_word(50, ino).to_le_bytes());
        vec![Issue::OrphanSlotWrong { slot: 50, ino }]
    };
    orphan_slot_names_directory_in_use: "orphan-slot-wrong" => |p| {
        p.put(p.orphan_slot(50), &p.slot_word(50, p.dir).to_le_bytes());
        vec![Issue::OrphanSlotWrong { slot: 50, ino: p.dir }]
    };
    interrupted_truncation_is_clean: "clean" => |p| {
        p.put(p.orphan_slot(50), &p.slot_word(50, p.file).to_le_bytes());
        assert_eq!(p.check().counts.truncations, 1);
        vec![]
    };
    orphan_twice: "orphan-twice" => |p| {
        p.put(p.orphan_slot(50), &p.slot_word(50, p.gone).to_le_bytes());
        vec![Issue::OrphanTwice { slot: 50, ino: p.gone }]
    };
    orphan_not_empty: "orphan-not-empty" => |p| {
        // The tree of dir moves to the removed directory.
        p.entry(Ino::ROOT, b"dir", p.gone_dir, FileType::Directory);
        let (dir, gone) = (p.inode(p.dir), p.inode(p.gone_dir));
        p.put_inode(p.gone_dir, pramfs_medium::media::DiskInode { root: gone.root, nlink: 2, ..gone });
        p.put_inode(p.dir, pramfs_medium::media::DiskInode { nlink: 0, ..dir });
        p.put(p.orphan_slot(p.slot_of(p.gone_dir)), &[0; 8]);
        p.put(p.orphan_slot(50), &p.slot_word(50, p.dir).to_le_bytes());
        vec![Issue::OrphanNotEmpty { ino: p.dir }]
    };
    lease_slot_damaged: "lease-slot-damaged" => |p| {
        p.put(p.lease_slot(0), &[0x55; 8]);
        vec![Issue::LeaseSlotDamaged { slot: 0, appended: false }]
    };
    lease_slot_with_appended_bytes_damaged: "lease-slot-damaged" => |p| {
        p.put_window(|_| {});
        p.put(p.lease_slot(1), &[0x55; 8]);
        vec![Issue::LeaseSlotDamaged { slot: 1, appended: true }]
    };
    lease_slot_names_free_inode: "lease-slot-wrong" => |p| {
        p.put_lease(p.free, 1);
        vec![Issue::LeaseSlotWrong { slot: 1, ino: p.free }]
    };
    lease_slot_names_directory: "lease-slot-wrong" => |p| {
        p.put_lease(p.dir, p.inode(p.dir).generation);
        vec![Issue::LeaseSlotWrong { slot: 1, ino: p.dir }]
    };
    lease_slot_names_earlier_generation: "lease-slot-wrong" => |p| {
        p.put_lease(p.file, p.inode(p.file).generation - 1);
        vec![Issue::LeaseSlotWrong { slot: 1, ino: p.file }]
    };
    lease_features_missing: "lease-feature-missing" => |p| {
        for page in p.pages() {
            p.fixed(page, |sb| sb.ro_compat &= !PARKED_LEASES);
        }
        vec![Issue::LeaseFeatureMissing { name: "parked_leases" }]
    };
    bad_block_list_damaged: "bad-block-list-damaged" => |p| {
        for page in p.pages() {
            p.fixed(page, |sb| {
                (sb.badblock_root, sb.ro_compat) = (500, sb.ro_compat | BAD_BLOCKS);
            });
        }
        let what = "block 500 of the list of bad blocks: the pointer to it does not fit its place";
        vec![Issue::BadBlockListDamaged { what: what.into() }]
    };
    bad_block_unlisted: "bad-block-unlisted" => |p| {
        let start = p.geo.blocks() - 9;
        let at = p.geo.offset(Bno(start)).0;
        p.region.mark_bad(at..at + 1);
        vec![Issue::BadBlockUnlisted { start, len: 1 }]
    };
    append_window_in_free_slot: "append-window-left" => |p| {
        p.put_window(|slot| slot.end = 0);
        p.put(p.lease_slot(1), &[0; 64]);
        vec![Issue::AppendWindowLeft { slot: 1, appended: false }]
    };
    append_window_with_bytes_in_free_slot: "append-window-left" => |p| {
        p.put_window(|_| {});
        p.put(p.lease_slot(1), &[0; 64]);
        vec![Issue::AppendWindowLeft { slot: 1, appended: true }]
    };
    append_window_damaged: "append-window-damaged" => |p| {
        p.put_window(|slot| slot.window_start = 0x5555_5555_5555);
        let what = "the check of its append window does not fit";
        vec![Issue::AppendWindowDamaged { slot: 1, ino: p.file, what, bytes: (100 << 10) + 100 }]
    };
    unused_append_window_damaged: "append-window-damaged" => |p| {
        p.put_window(|slot| (slot.window_start, slot.end) = (0x5555_5555_5555, 0));
        let what = "the check of its append window does not fit";
        vec![Issue::AppendWindowDamaged { slot: 1, ino: p.file, what, bytes: 0 }]
    };
    append_window_of_lease_to_read: "append-window-damaged" => |p| {
        p.put_window_of(LeaseMode::Read, (WINDOW_START, 300 << 10), |_| {});
        let what = "its append window is impossible";
        vec![Issue::AppendWindowDamaged { slot: 1, ino: p.file, what, bytes: 0 }]
    };
    append_window_of_file_with_two_leases: "append-window-wrong" => |p| {
        p.put_window(|_| {});
        p.put_lease_in(2, p.file, p.inode(p.file).generation);
        let what = "it is in use with another lease of the file";
        vec![Issue::AppendWindowWrong { slot: 1, ino: p.file, what }]
    };
    append_window_past_end_of_file: "append-window-wrong" => |p| {
        p.put_window(|_| {});
        p.edit(p.file, |d| d.size = WINDOW_START - 1);
        let what = "it starts past the end of the file";
        vec![Issue::AppendWindowWrong { slot: 1, ino: p.file, what }]
    };
    append_window_below_end_of_file: "append-window-wrong" => |p| {
        p.put_window_of(LeaseMode::Write, (WINDOW_START - 5000, WINDOW_START - 1000), |_| {});
        let what = "it ends before the end of the file";
        vec![Issue::AppendWindowWrong { slot: 1, ino: p.file, what }]
    };
    append_window_without_blocks: "append-window-wrong" => |p| {
        p.put_window_of(LeaseMode::Write, (WINDOW_START, 301 << 10), |_| {});
        let what = "the file has no written block for part of it";
        vec![Issue::AppendWindowWrong { slot: 1, ino: p.file, what }]
    };
    append_window_with_unwritten_block: "append-window-wrong" => |p| {
        p.put_window(|_| {});
        let (at, place) = p.pointer_of(p.file, 280);
        let ptr = Ptr::new(Bno(p.block_of(p.file, 280)), UNWRITTEN, place);
        p.put(at, &ptr.0.to_le_bytes());
        let what = "the file has no written block for part of it";
        vec![Issue::AppendWindowWrong { slot: 1, ino: p.file, what }]
    };
    append_end_damaged: "append-end-damaged" => |p| {
        p.put_window(|slot| slot.end ^= 0x0101);
        vec![Issue::AppendEndDamaged { slot: 1, ino: p.file, bytes: (100 << 10) + 100 }]
    };
    append_end_past_window: "append-end-damaged" => |p| {
        p.put_window(|slot| {
            let window = slot.append_window(p.geo.seed, 1).unwrap().unwrap();
            slot.end = window.word_of(window.limit + 1);
        });
        vec![Issue::AppendEndDamaged { slot: 1, ino: p.file, bytes: (100 << 10) + 100 }]
    };
    append_window_open: "append-window-open" => |p| {
        p.put_window(|_| {});
        vec![Issue::AppendWindowOpen { slot: 1, ino: p.file, bytes: 1000 }]
    };
    append_window_merged_in_part: "append-window-open" => |p| {
        p.put_window(|_| {});
        p.edit(p.file, |d| d.size += 400);
        vec![Issue::AppendWindowOpen { slot: 1, ino: p.file, bytes: 600 }]
    };
    append_window_merged: "append-window-open" => |p| {
        p.put_window(|_| {});
        p.edit(p.file, |d| d.size += 5000);
        vec![Issue::AppendWindowOpen { slot: 1, ino: p.file, bytes: 0 }]
    };
    unused_append_window: "append-window-open" => |p| {
        p.put_window(|slot| slot.end = 0);
        vec![Issue::AppendWindowOpen { slot: 1, ino: p.file, bytes: 0 }]
    };
    several_leases_are_clean: "clean" => |p| {
        p.put_lease(p.empty, p.inode(p.empty).generation);
        assert_eq!(p.check().counts.leases, 2);
        vec![]
    };
    lease_table_with_hole: "map-hole" => |p| {
        p.edit(Ino::LEASES, |d| d.size = 2 * p.geo.block_size);
        vec![Issue::MapHole { ino: Ino::LEASES, part: Part::Contents, first: 1 }]
    };
}

impl Plant {
    fn inode_named_a(&self) -> Ino {
        let mut ino = 0;
        self.leaf(self.sub, TreeKind::Directory, b"a", |b, at| {
            ino = u64::from_le_bytes(b[at + 12..at + 20].try_into().unwrap());
        });
        Ino(ino)
    }
}

/// Creates the bitmap of a block group, in its last block.
fn make_group(p: &Plant, group: u64) {
    let at = p.desc_at(BitmapKind::Blocks, group);
    let unused = GroupDesc::unused(&p.geo, BitmapKind::Blocks, group);
    if p.region.load_u64(at).unwrap() != unused.bitmap {
        return;
    }
    let block = Bno(p.geo.blocks() - 1);
    let place = BitmapKind::Blocks.bitmap_at(&p.geo, group);
    p.put(p.geo.offset(block).0, &vec![0; p.geo.block_size as usize]);
    p.put(at, &Ptr::new(block, 0, place).0.to_le_bytes());
    p.set_bit(BitmapKind::Blocks, block.0, true);
}

#[test]
fn failing_medium_is_reported_as_unreadable() {
    let p = Plant::new();
    let sim = p.sim.clone();
    let options = CheckOptions {
        progress: Some(Arc::new(move |_, _, _| sim.inject_fault())),
        ..CheckOptions::default()
    };
    let report = check(&p.region, &options);
    let why = "test failed during a read".to_owned();
    assert_eq!(
        report.issues().collect::<Vec<_>>(),
        [&Issue::Unreadable { why }]
    );
    assert!(!report.complete);
}

#[test]
fn every_finding_has_test_case() {
    let known: BTreeSet<_> = Damage::ALL.iter().map(|kind| kind.code()).collect();
    // Planted by the test above, by a test of repairs, and by those of data checksums.
    let mut planted = BTreeSet::from(["unreadable", "records-refused", "data-sum", "marked-range"]);
    for (code, case) in CASES {
        let issues = case(&Plant::new());
        for i in &issues {
            assert_eq!(i.code(), *code);
        }
        planted.extend(issues.iter().map(|i| i.code()));
    }
    let missing: Vec<_> = known.difference(&planted).collect();
    assert!(missing.is_empty(), "no case for {missing:?}");
}
