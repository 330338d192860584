//! Damage in many places takes work in proportion: a repair must not walk over
//! everything for each finding. The work is the number of reads of the medium, which
//! the load of the machine does not change.

use zerocopy::IntoBytes;

use super::clean::{fresh, quiet};
use super::repair::run;
use crate::view::READS;
use crate::{Policy, check};
use pramfs::inode::Credentials;
use pramfs::inode::Fs;
use pramfs_medium::htree::{Image, TreeKind, TreeRef};
use pramfs_medium::media::htree::LeafHeader;
use pramfs_medium::media::pointer::Ptr;
use pramfs_medium::media::{DiskInode, probe_superblock};
use pramfs_medium::pmem::{Region, RegionAccess};
use pramfs_medium::types::{Bno, FileType, Ino};

const BLOCK: usize = 4096;

fn made(files: u64, make: impl FnOnce(&Fs)) -> Region {
    let fs = Fs::open(
        fresh((8 << 20) + files as usize * 3000, BLOCK as u32),
        quiet(),
    )
    .unwrap();
    make(&fs);
    let (region, report) = crate::check_fs(fs, &Default::default()).unwrap();
    assert!(report.is_clean(), "{report}");
    region.unwrap()
}

fn mkdir(fs: &Fs, parent: Ino, name: &str) -> Ino {
    let made = fs.mkdir(&Credentials::ROOT, parent, name.as_bytes(), 0o755);
    made.unwrap().ino
}

/// Repairs, and returns the number of reads.
fn repaired(region: &Region, findings: u64) -> u64 {
    let before = READS.get();
    let report = run(region, Policy::Yes);
    let reads = READS.get() - before;
    assert!(report.is_sound(), "{:?}", report.left().next());
    assert!(report.findings.len() as u64 >= findings, "{findings}");
    assert!(check(region, &Default::default()).is_clean());
    reads
}

/// Every inode named in a directory is lost, so every name in it is removed.
fn lost_inodes(files: u64) -> u64 {
    let region = made(files, |fs| {
        let dir = mkdir(fs, Ino::ROOT, "big");
        for i in 0..files {
            let name = format!("{i}");
            fs.create(&Credentials::ROOT, dir, name.as_bytes(), 0o644)
                .unwrap();
        }
    });
    let geo = probe_superblock(&region).unwrap().geometry();
    let mut damaged = 0;
    for at in (0..region.len()).step_by(DiskInode::SIZE) {
        let Ok(d) = region.read_pod::<DiskInode>(at) else {
            break;
        };
        let user = Ino::FIRST_FREE.0..Ino::INODE_TABLE.0;
        let fits = user.contains(&d.ino) && d.crc == d.expected_crc(geo.seed, Ino(d.ino));
        if fits && FileType::from_mode(d.mode) == Some(FileType::Regular) {
            let noise = [0x77; DiskInode::SIZE];
            region.window().store_unflushed(at, &noise).unwrap();
            damaged += 1;
        }
    }
    assert_eq!(damaged, files);
    repaired(&region, files)
}

/// Every subdirectory of one directory also has a name in another: the leaves of
/// the second are copies of those of the first.
fn second_names(dirs: u64) -> u64 {
    let mut inos = (Ino(0), Ino(0));
    let region = made(2 * dirs, |fs| {
        inos = (mkdir(fs, Ino::ROOT, "a"), mkdir(fs, Ino::ROOT, "b"));
        for i in 0..dirs {
            let name = format!("{i}");
            mkdir(fs, inos.0, &name);
            fs.create(&Credentials::ROOT, inos.1, name.as_bytes(), 0o644)
                .unwrap();
        }
    });
    let geo = probe_superblock(&region).unwrap().geometry();
    let mut leaves = [Vec::new(), Vec::new()];
    for block in 0..geo.blocks() {
        let mut bytes = vec![0; BLOCK];
        region.read(geo.offset(Bno(block)).0, &mut bytes).unwrap();
        let image = Image { bytes };
        let h = image.header();
        if !image.bytes.starts_with(b"hlf1") {
            continue;
        }
        let tree = |ino: Ino| TreeRef {
            ino,
            kind: TreeKind::Directory,
            root: Ptr::HOLE,
            blocks: 0,
        };
        // Leaves that are no longer in a tree may be copied, without effect.
        for (ino, leaves) in [inos.0, inos.1].into_iter().zip(&mut leaves) {
            if h.owner == ino.0 {
                leaves.push((h.depth, h.prefix, block, tree(ino), image.bytes.clone()));
            }
        }
    }
    let [from, to] = leaves;
    for (depth, prefix, block, tree, _) in &to {
        let same = |l: &&(u16, u64, u64, TreeRef, Vec<u8>)| l.0 == *depth && l.1 == *prefix;
        let Some((.., bytes)) = from.iter().rev().find(same) else {
            continue;
        };
        let mut image = Image {
            bytes: bytes.clone(),
        };
        let mut header = image.header();
        header.owner = tree.ino.0;
        image.bytes[..LeafHeader::SIZE].copy_from_slice(header.as_bytes());
        let sum = image.sum(tree.leaf_seed(&geo, Bno(*block)));
        let at = std::mem::offset_of!(LeafHeader, sum);
        image.bytes[at..at + 8].copy_from_slice(&sum.to_le_bytes());
        region
            .window()
            .store_unflushed(geo.offset(Bno(*block)).0, &image.bytes)
            .unwrap();
    }
    repaired(&region, dirs)
}

/// Eight times the damage takes about eight times as many reads. With a walk over
/// everything for each finding it would take 64 times as many.
#[track_caller]
fn linear(n: u64, reads: fn(u64) -> u64) {
    let (few, many) = (reads(n), reads(8 * n));
    println!("{n}: {few} reads, {}: {many} reads", 8 * n);
    assert!(many < few * 12, "{n}: {few} reads, {}: {many} reads", 8 * n);
}

#[test]
fn many_lost_inodes_take_linear_work() {
    linear(5000, lost_inodes);
}

#[test]
fn many_second_names_take_linear_work() {
    linear(1000, second_names);
}
