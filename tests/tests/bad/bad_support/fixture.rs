//! A small file system for invalid requests, and the check that they change nothing.

use pramfs::{
    AtimePolicy, MountOptions, Result, XattrMode,
    inode::{Fs, Ino},
};
use pramfs_tests::region::{formatted, mount, quiet, repeatable};
use pramfs_tests::tree::Tree;

use super::model::CX;

/// Block sizes of the format.
pub const BLOCK_SIZES: [u32; 4] = [512, 1024, 2048, 4096];

/// A file system with an object of each kind, which reads do not change.
#[derive(Debug)]
pub struct Fixture {
    pub fs: Fs,
    pub dir: Ino,
    pub sub: Ino,
    pub file: Ino,
}

/// On a region of 8 MiB in memory.
pub fn fixture(block_size: u32) -> Fixture {
    let sim = formatted(8 << 20, &repeatable(block_size)).unwrap();
    bed_of(mount(&sim, still()).unwrap())
}

/// Mount options with which reads change nothing.
pub fn still() -> MountOptions {
    MountOptions {
        atime: AtimePolicy::NoAtime,
        ..quiet()
    }
}

/// In a fresh file system.
pub fn bed_of(fs: Fs) -> Fixture {
    let dir = fs.mkdir(&CX, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    let sub = fs.mkdir(&CX, dir, b"sub", 0o755).unwrap().ino;
    let file = fs.create(&CX, dir, b"file", 0o644).unwrap().ino;
    fs.write(&CX, file, 0, &[7; 10_000]).unwrap();
    fs.write(&CX, file, 1 << 20, &[8; 5000]).unwrap();
    fs.setxattr(&CX, file, b"user.a", b"value", XattrMode::Set)
        .unwrap();
    fs.symlink(&CX, dir, b"link", b"file").unwrap();
    fs.create(&CX, sub, b"below", 0o644).unwrap();
    Fixture { fs, dir, sub, file }
}

impl Fixture {
    /// The request fails with one of these errors and changes nothing.
    #[track_caller]
    pub fn refused<T: std::fmt::Debug>(
        &self,
        what: &str,
        errnos: &[i32],
        request: impl FnOnce(&Fs) -> Result<T>,
    ) {
        let before = Tree::of(&self.fs).unwrap();
        let e = request(&self.fs).expect_err(what);
        assert!(errnos.contains(&e.errno()), "{what}: {e} ({})", e.errno());
        assert!(!e.to_string().is_empty(), "{what}");
        let after = Tree::of(&self.fs).unwrap();
        assert!(before == after, "{what}:\n{}", before.differences(&after));
    }

    /// Unmounts and runs the full check.
    #[track_caller]
    pub fn end(self) {
        let (_, report) = pramfs_fsck::check_fs(self.fs, &Default::default()).unwrap();
        assert!(report.is_clean(), "{report}");
    }
}
