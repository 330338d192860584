//! Opens, checks, changes and reopens one image of each released version of the format.
//!
//! `golden/v1.img` was written by `PRAMFS_WRITE_GOLDEN=1 cargo test -p pramfs-tests
//! --test golden`. The image of a released version is never rewritten; a new version adds
//! one.
//! written again; a new version adds one.

use std::path::PathBuf;
use std::sync::Arc;

use pramfs::{
    Clock, Fallocate, FileType, MountOptions, XattrMode,
    inode::{Credentials, Fs, Ino, Time},
};
use pramfs_fsck::{CheckOptions, check};
use pramfs_medium::journal::set_thread_lane;
use pramfs_medium::pmem::SimBackend;
use pramfs_tests::region::{SMALLEST, formatted, mount, quiet, region_of, repeatable};
use pramfs_tests::tree::Tree;

const CX: Credentials<'_> = Credentials::new(7, 8).with_umask(0o022);

#[derive(Debug)]
struct Stopped;

impl Clock for Stopped {
    fn now(&self) -> Time {
        Time {
            sec: 1_700_000_123,
            nsec: 456_789_012,
        }
    }
}

fn options() -> MountOptions {
    MountOptions {
        clock: Arc::new(Stopped),
        ..quiet()
    }
}

fn path() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/v1.img"))
}

fn text(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 7 % 251) as u8).collect()
}

/// Contents of the image.
fn fill(fs: &Fs) {
    let root = Ino::ROOT;
    let dir = fs.mkdir(&CX, root, b"dir", 0o775).unwrap().ino;
    for i in 0..40 {
        fs.create(&CX, dir, format!("file {i:02}").as_bytes(), 0o640)
            .unwrap();
    }
    let long = fs.create(&CX, root, &[b'n'; 255], 0o600).unwrap().ino;
    fs.write(&CX, long, 0, &text(10_000)).unwrap();
    fs.link(long, dir, b"another name").unwrap();
    let sparse = fs.create(&CX, root, b"sparse", 0o644).unwrap().ino;
    fs.write(&CX, sparse, 1 << 44, b"far out").unwrap();
    fs.fallocate(
        &CX,
        sparse,
        Fallocate::Allocate { keep_size: true },
        0,
        2 * 4096,
    )
    .unwrap();
    fs.symlink(&CX, root, b"short", b"dir/file 00").unwrap();
    fs.symlink(&CX, root, b"long", &[b'x'; 1000]).unwrap();
    fs.mknod(&CX, root, b"pipe", FileType::Fifo.mode_bits() | 0o600, 0)
        .unwrap();
    fs.mknod(
        &CX,
        root,
        b"null",
        FileType::CharDevice.mode_bits() | 0o666,
        0x103,
    )
    .unwrap();
    fs.setxattr(&CX, long, b"user.small", b"in line", XattrMode::Set)
        .unwrap();
    fs.setxattr(&CX, long, b"user.large", &text(5000), XattrMode::Set)
        .unwrap();
}

fn expected() -> (SimBackend, Tree) {
    set_thread_lane(0);
    let sim = formatted(SMALLEST, &repeatable(4096)).unwrap();
    let fs = mount(&sim, options()).unwrap();
    fill(&fs);
    let tree = Tree::of(&fs).unwrap();
    fs.close().unwrap();
    (sim, tree)
}

fn assert_clean(sim: &SimBackend) {
    let report = check(&region_of(sim), &CheckOptions::default());
    assert!(report.is_clean(), "{report}");
}

#[test]
fn version_1_image_is_readable_and_writable() {
    let (made, tree) = expected();
    if std::env::var_os("PRAMFS_WRITE_GOLDEN").is_some() {
        std::fs::write(path(), made.image()).unwrap();
    }
    let image = std::fs::read(path()).expect("the golden image is part of the repository");
    use_image(&SimBackend::from_image(&image).unwrap(), &tree);
}

/// Checks, reads, changes and reopens what [`fill`] has made.
fn use_image(sim: &SimBackend, tree: &Tree) {
    assert_clean(sim);

    let fs = mount(sim, options()).unwrap();
    let found = Tree::of(&fs).unwrap();
    assert!(found == *tree, "{}", tree.differences(&found));

    let long = fs.lookup(Ino::ROOT, &[b'n'; 255]).unwrap();
    assert_eq!((long.nlink, long.size, long.uid), (2, 10_000, 7));
    let mut back = vec![0; 10_000];
    assert_eq!(fs.read(long.ino, 0, &mut back).unwrap(), 10_000);
    assert_eq!(back, text(10_000));
    assert_eq!(fs.getxattr(long.ino, b"user.large").unwrap(), text(5000));
    let sparse = fs.lookup(Ino::ROOT, b"sparse").unwrap();
    assert_eq!(sparse.size, (1 << 44) + 7);

    fs.append(&CX, long.ino, b"more").unwrap();
    fs.unlink(Ino::ROOT, b"sparse").unwrap();
    fs.mkdir(&CX, Ino::ROOT, b"new", 0o755).unwrap();
    let changed = Tree::of(&fs).unwrap();
    fs.close().unwrap();
    assert_clean(sim);

    let fs = mount(sim, options()).unwrap();
    let again = Tree::of(&fs).unwrap();
    assert!(again == changed, "{}", changed.differences(&again));
    fs.close().unwrap();
}

/// `golden/grown.img`: the image of version 1, grown to twice its size, and used since. Written by
/// `PRAMFS_WRITE_GROWN=1`.
fn grown_path() -> PathBuf {
    path().with_file_name("grown.img")
}

/// The image of version 1 in a region of twice its size.
fn grown() -> (SimBackend, Tree) {
    let mut image = std::fs::read(path()).expect("the golden image is part of the repository");
    image.resize(2 * SMALLEST, 0);
    let sim = SimBackend::from_image(&image).unwrap();
    set_thread_lane(0);
    let fs = mount(&sim, options()).unwrap();
    let done = fs.grow(None).unwrap();
    assert_eq!((done.from, done.to), (SMALLEST as u64, 2 * SMALLEST as u64));
    // More than was free before.
    let more = fs.create(&CX, Ino::ROOT, b"more", 0o600).unwrap().ino;
    let data = text(150_000);
    assert_eq!(fs.write(&CX, more, 0, &data).unwrap(), data.len());
    let tree = Tree::of(&fs).unwrap();
    fs.close().unwrap();
    (sim, tree)
}

#[test]
fn version_1_image_grows() {
    let (sim, tree) = grown();
    use_image(&sim, &tree);
}

#[test]
fn grown_image_is_readable_and_writable() {
    // What it holds is the same in each run; its bytes are those of the version that wrote it.
    let (made, tree) = grown();
    if std::env::var_os("PRAMFS_WRITE_GROWN").is_some() {
        std::fs::write(grown_path(), made.image()).unwrap();
    }
    let image = std::fs::read(grown_path()).expect("the golden image is part of the repository");
    use_image(&SimBackend::from_image(&image).unwrap(), &tree);
}

#[test]
fn mkfs_writes_golden_static_superblock() {
    let image = std::fs::read(path()).expect("the golden image is part of the repository");
    let sim = formatted(SMALLEST, &repeatable(4096)).unwrap();
    assert_eq!(image[..512], sim.image()[..512]);
}
