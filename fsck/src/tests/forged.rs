//! Forged blocks: a user who knows the uuid can write blocks into a file that look
//! like metadata. A repair that searches for lost blocks finds them. It must not
//! trust them, and they must not slow it down.

use zerocopy::IntoBytes;

use super::clean::quiet;
use super::plant::Plant;
use super::readable::{bytes_of, tree, worse};
use super::repair::run;
use crate::{Lost, Policy};
use pramfs::inode::Credentials;
use pramfs::inode::Fs;
use pramfs_medium::htree::{Image, TreeKind};
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::bitmap::BitmapKind;
use pramfs_medium::media::htree::LeafHeader;
use pramfs_medium::media::inode::INODE_SIZE;
use pramfs_medium::media::pointer::{Ptr, PtrAt};
use pramfs_medium::media::superblock::INODE_TABLE_OFFSET;
use pramfs_medium::pmem::{Region, RegionAccess};
use pramfs_medium::types::RegionOffset;
use pramfs_medium::types::{Bno, FileType, Ino};

/// Makes a block that is in use and has no owner, like a block of a file whose
/// pointers were lost.
fn lost_block(p: &Plant) -> u64 {
    let block = p.free_block();
    p.set_bit(BitmapKind::Blocks, block, true);
    block
}

fn bytes_at(p: &Plant, block: u64) -> Vec<u8> {
    let mut bytes = vec![0; p.geo.block_size as usize];
    p.region
        .read(p.geo.offset(Bno(block)).0, &mut bytes)
        .unwrap();
    bytes
}

/// Returns one of the last inodes, its block of the inode table, and a forged copy
/// of the inode with more permissions.
fn victim(p: &Plant) -> (Ino, u64, DiskInode) {
    let ino = Ino(p.big.0 + 250);
    let mut forged = p.inode(ino);
    forged.mode |= 0o4777;
    forged.seal(p.geo.seed, ino);
    (ino, p.geo.block_at(RegionOffset(p.home(ino))).0, forged)
}

/// Clears the pointer to the inode's block of the inode table.
fn lose_table_block(p: &Plant, ino: Ino) {
    let d: DiskInode = p.region.read_pod(INODE_TABLE_OFFSET).unwrap();
    assert_eq!(d.height, 1);
    let number = ino.0 / p.geo.inodes_per_block();
    let at = p.geo.offset(Ptr(d.root).block()).0 + number * 8;
    assert!(p.region.load_u64(at).unwrap() != 0);
    p.put(at, &[0; 8]);
}

#[test]
fn forged_inode_in_file_is_not_table_block() {
    let p = Plant::new();
    let before = tree(&bytes_of(&p.region)).unwrap();
    let (ino, real, forged) = victim(&p);
    let block = lost_block(&p);
    assert!(block < real, "{block} {real}");
    let mut bytes = vec![0x33; p.geo.block_size as usize];
    let at = (ino.0 % p.geo.inodes_per_block() * INODE_SIZE) as usize;
    bytes[at..at + 256].copy_from_slice(forged.as_bytes());
    p.put(p.geo.offset(Bno(block)).0, &bytes);
    lose_table_block(&p, ino);
    let report = run(&p.region, Policy::Yes);
    assert!(report.is_sound() && p.check().is_clean(), "{report}");
    let after = tree(&bytes_of(&p.region)).unwrap();
    assert_eq!(worse(&before, &after), [""; 0], "{report}");
    assert_eq!(p.inode(ino).mode & 0o7777, 0o644);
}

#[test]
fn ambiguous_inode_table_blocks_are_skipped() {
    let p = Plant::new();
    let (ino, real, forged) = victim(&p);
    let block = lost_block(&p);
    assert!(block < real, "{block} {real}");
    let mut bytes = bytes_at(&p, real);
    let at = (ino.0 % p.geo.inodes_per_block() * INODE_SIZE) as usize;
    bytes[at..at + 256].copy_from_slice(forged.as_bytes());
    p.put(p.geo.offset(Bno(block)).0, &bytes);
    lose_table_block(&p, ino);
    let report = run(&p.region, Policy::Yes);
    assert!(report.is_sound() && p.check().is_clean(), "{report}");
    let fs = Fs::open(Region::new("test", Box::new(p.sim.clone())), quiet()).unwrap();
    for i in 0..300 {
        if let Ok(entry) = fs.lookup(p.big, format!("file {i}").as_bytes()) {
            assert_eq!(entry.perm, 0o644, "file {i}");
        }
    }
}

#[test]
fn forged_leaf_cannot_name_foreign_directory() {
    let p = Plant::new();
    let t = p.tree(p.sub, TreeKind::Directory);
    // A copy of the leaf with "a" renamed to "x", which names a directory elsewhere.
    let mut at = 0;
    p.leaf(p.sub, TreeKind::Directory, b"a", |_, found| at = found);
    let mut image = Image {
        bytes: bytes_at(&p, t.root.block().0),
    };
    image.bytes[at..at + 8].copy_from_slice(&(p.hash(b"x") | 1).to_le_bytes());
    image.bytes[at + 11] = (FileType::Directory.mode_bits() >> 12) as u8;
    image.bytes[at + 12..at + 20].copy_from_slice(&p.dir.0.to_le_bytes());
    image.bytes[at + 20] = b'x';
    let block = Bno(lost_block(&p));
    let mut header = image.header();
    header.sum = image.sum(t.leaf_seed(&p.geo, block));
    image.bytes[..LeafHeader::SIZE].copy_from_slice(header.as_bytes());
    p.put(p.geo.offset(block).0, &image.bytes);
    p.put(p.home(p.sub), &[0x5a; 256]);
    let report = run(&p.region, Policy::Yes);
    assert!(report.is_sound() && p.check().is_clean(), "{report}");
    let codes: Vec<_> = report.issues().map(|i| i.code()).collect();
    assert!(!codes.contains(&"directory-names"), "{report}");
    let after = tree(&bytes_of(&p.region)).unwrap();
    let there = |path: &[u8]| after.contains_key(path);
    assert!(there(b"/dir/sub/a") && there(b"/dir/sub/b"), "{report}");
    assert!(!there(b"/dir/sub/x"), "{report}");
    let reported = |l: &crate::Loss| l.ino == Some(p.sub) && l.what == Lost::Names { count: 1 };
    assert!(report.lost.iter().any(reported), "{:?}", report.lost);
}

/// The inode table has a block at the very end of a map of maximum height, and
/// counts one block too many. The repair follows its pointers, not all possible
/// block numbers.
#[test]
fn forged_inode_table_map_repair_terminates() {
    let p = Plant::new();
    let d: DiskInode = p.region.read_pod(INODE_TABLE_OFFSET).unwrap();
    let (fan, height) = (p.geo.fan_log2, p.geo.max_height());
    let pointer = |block: u64, level: u32, index: u64| {
        let place = PtrAt {
            fs_seed: p.geo.seed,
            ino: Ino::INODE_TABLE,
            level,
            index,
        };
        Ptr::new(Bno(block), 0, place).0
    };
    let put = |block: u64, slot: u64, word: u64| {
        p.put(p.geo.offset(Bno(block)).0 + slot * 8, &word.to_le_bytes());
    };
    let new = || {
        let block = lost_block(&p);
        p.put(
            p.geo.offset(Bno(block)).0,
            &vec![0; p.geo.block_size as usize],
        );
        block
    };
    let mut blocks = d.blocks;
    // From the old root up to the new one.
    let (mut word, mut top) = (d.root, 0);
    for level in u32::from(d.height) + 1..=height {
        top = new();
        blocks += 1;
        put(top, 0, word);
        word = pointer(top, level, 0);
    }
    // From there down to the last possible block.
    let (last, mut above) = ((1u64 << fan) - 1, top);
    let mut index = 0;
    for level in (0..height).rev() {
        index = index << fan | last;
        let block = new();
        blocks += 1;
        put(above, last, pointer(block, level, index));
        above = block;
    }
    p.internal(&p.pages(), INODE_TABLE_OFFSET, |d| {
        (d.root, d.height, d.blocks) = (word, height as u8, blocks + 1);
    });
    let codes: Vec<_> = p.check().issues().map(|i| i.code()).collect();
    assert_eq!(codes, ["blocks-missing"]);
    let report = run(&p.region, Policy::Yes);
    assert!(report.is_sound() && p.check().is_clean(), "{report}");
}

/// Many files with missing blocks, and many possible pointer blocks: each block is
/// compared with all gaps once.
#[test]
fn many_gaps_and_blocks_are_tried_in_one_pass() {
    const FILES: u64 = 50;
    const BLOCKS: u64 = 100;
    let p = Plant::new();
    let region = || Region::new("test", Box::new(p.sim.clone()));
    let fs = Fs::open(region(), quiet()).unwrap();
    let mut inos = Vec::new();
    for i in 0..FILES {
        let name = format!("sparse {i}");
        let ino = fs
            .create(&Credentials::ROOT, Ino::ROOT, name.as_bytes(), 0o644)
            .unwrap()
            .ino;
        fs.write(&Credentials::ROOT, ino, 10 << 20, b"x").unwrap();
        inos.push(ino);
    }
    fs.close().unwrap();
    for ino in inos {
        p.edit(ino, |d| d.blocks += 1);
    }
    for _ in 0..BLOCKS {
        let words: Vec<u64> = (1..=p.geo.block_size / 8).collect();
        p.put(p.geo.offset(Bno(lost_block(&p))).0, words.as_bytes());
    }
    let before = crate::repair::tables_tried();
    let report = run(&p.region, Policy::Yes);
    let tried = crate::repair::tables_tried() - before;
    assert!(report.is_sound() && p.check().is_clean(), "{report}");
    assert!((BLOCKS..BLOCKS * 3).contains(&tried), "{tried}");
}

/// Destroys the bitmap pointer of a group while a file of the group lacks blocks,
/// one of them empty. Returns the offset of the descriptor.
fn without_bitmap(p: &Plant) -> u64 {
    let (at, _) = p.pointer_of(p.file, 8);
    p.put(p.geo.offset(Bno(p.block_of(p.file, 8))).0, &[0; 1024]);
    p.put(at, &[0; 64]);
    let desc = p.desc_at(BitmapKind::Blocks, 0);
    p.put(desc, &[0x5a; 32]);
    desc
}

#[test]
fn preen_rebuilds_no_bitmap_while_blocks_are_hidden() {
    use crate::Outcome;
    let p = Plant::new();
    let desc = without_bitmap(&p);
    let report = run(&p.region, Policy::Preen);
    let outcomes: Vec<_> = report
        .findings
        .iter()
        .map(|f| (f.issue.code(), f.outcome))
        .collect();
    assert!(
        outcomes.contains(&("bitmap-pointer", Outcome::Left)),
        "{outcomes:?}"
    );
    assert_eq!(p.region.load_u64(desc).unwrap(), 0x5a5a_5a5a_5a5a_5a5a);
    let report = run(&p.region, Policy::Yes);
    assert!(report.is_sound() && p.check().is_clean(), "{report}");
}

#[test]
fn data_of_group_with_rebuilt_bitmap_is_kept() {
    let p = Plant::new();
    without_bitmap(&p);
    let report = run(&p.region, Policy::Yes);
    assert!(report.is_sound() && p.check().is_clean(), "{report}");
    // One of the eight lost blocks is empty.
    let kept = report.lost.iter().find_map(|l| match l.what {
        Lost::Kept { count } => Some(count),
        _ => None,
    });
    assert!(kept.is_some_and(|n| n >= 7), "{:?}", report.lost);
}
