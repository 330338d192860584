//! A mark of a lost range that stands where none is valid.

use pramfs::inode::{Fs, Ino};
use pramfs::{Damage, Error, XattrMode};
use pramfs_fsck::{CheckOptions, Policy, RepairOptions, check, repair};
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::pointer::{Ptr, PtrAt};
use pramfs_medium::media::superblock::INODE_TABLE_OFFSET;
use pramfs_tests::readable::copy_of;
use pramfs_tests::region::{fresh, quiet};
use zerocopy::FromBytes;

use crate::support::lost::{CX, FL_LOST, geometry, list, open, put_inode};

/// A loss mark is valid only in the contents of a file.
#[test]
fn lost_marks_outside_file_data_are_damage() {
    let (sim, fs) = fresh(4 << 20, 512).unwrap();
    let dir = fs.mkdir(&CX, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    let ino = fs.create(&CX, dir, b"file", 0o644).unwrap().ino;
    fs.setxattr(&CX, ino, b"user.small", b"value", XattrMode::Set)
        .unwrap();
    let large = fs.create(&CX, Ino::ROOT, b"large", 0o644).unwrap().ino;
    fs.setxattr(&CX, large, b"user.large", &[9; 5000], XattrMode::Set)
        .unwrap();
    let link = fs
        .symlink(&CX, Ino::ROOT, b"link", &[b'x'; 300])
        .unwrap()
        .ino;
    for i in 0..40 {
        fs.create(&CX, Ino::ROOT, format!("{i}").as_bytes(), 0o644)
            .unwrap();
    }
    fs.close().unwrap();
    let image = sim.image();
    let seed = geometry(&image).seed;
    let mark = |ino: Ino, level, index| {
        let at = PtrAt {
            fs_seed: seed,
            ino,
            level,
            index,
        };
        Ptr::lost(at).0
    };
    let euclean = |result: pramfs::Result<()>, what: &str| {
        let errno = result.unwrap_err().errno();
        assert_eq!(errno, libc::EUCLEAN, "{what}");
    };
    let judged = |what: &str, bad: &[u8], f: &dyn Fn(&Fs) -> pramfs::Result<()>| {
        let region = copy_of(bad);
        let report = check(&region, &CheckOptions::default());
        assert!(
            !report.is_sound() && report.marked.is_empty(),
            "{what}: {report}"
        );
        match Fs::open(copy_of(bad), quiet()) {
            Ok(fs) => euclean(f(&fs), what),
            Err(e) => assert_eq!(e.errno(), libc::EUCLEAN, "{what}: {e}"),
        }
        let report = repair(&region, &RepairOptions::new(Policy::Yes)).unwrap();
        assert!(
            report.is_sound() && report.marked.is_empty(),
            "{what}: {report}"
        );
        assert!(
            check(&region, &CheckOptions::default()).is_clean(),
            "{what}"
        );
    };
    let with = |ino: Ino, f: &dyn Fn(&mut DiskInode)| {
        let mut bad = image.clone();
        put_inode(&mut bad, ino, f);
        bad
    };

    let bad = with(dir, &|d| (d.root, d.flags) = (mark(dir, 16, 0), FL_LOST));
    judged("directory", &bad, &|fs| fs.lookup(dir, b"file").map(drop));
    let bad = with(dir, &|d| d.root = mark(dir, 0, 0));
    judged("directory as a file", &bad, &|fs| {
        fs.lookup(dir, b"file").map(drop)
    });
    let bad = with(ino, &|d| d.xattr_root = mark(ino, 32, 0));
    judged("attributes", &bad, &|fs| {
        fs.getxattr(ino, b"user.small").map(drop)
    });
    let bad = with(link, &|d| (d.root, d.height) = (mark(link, 0, 0), 0));
    judged("link", &bad, &|fs| fs.readlink(link).map(drop));
    let bad = with(Ino::ORPHANS, &|d| {
        (d.root, d.height, d.flags) = (mark(Ino::ORPHANS, 0, 0), 0, FL_LOST);
    });
    judged("orphan table", &bad, &|_| {
        Err(Error::corrupt(
            Damage::OrphanSlotDamaged,
            "mounted",
            "without a table",
        ))
    });
    // A block of the inode table.
    let mut bad = image.clone();
    let geo = geometry(&image);
    let table = DiskInode::read_from_bytes(
        &image[INODE_TABLE_OFFSET as usize..INODE_TABLE_OFFSET as usize + 256],
    )
    .unwrap();
    assert_eq!(table.height, 1);
    let index = large.0 * 256 / geo.block_size;
    let at = (geo.offset(Ptr(table.root).block()).0 + index * 8) as usize;
    bad[at..at + 8].copy_from_slice(&mark(Ino::INODE_TABLE, 0, index).to_le_bytes());
    judged("inode table", &bad, &|fs| fs.getattr(large).map(drop));
    // The flag alone, without any lost range, is not damage.
    let bad = with(ino, &|d| d.flags |= FL_LOST);
    let fs = open(copy_of(&bad));
    assert_eq!(list(&fs, ino), None);
    assert_eq!(fs.read(ino, 0, &mut [0; 9]).unwrap(), 0);
}
