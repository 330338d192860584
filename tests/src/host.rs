//! File systems with little room, for regions that lie on them.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::UnmountFlags;
use tempfile::TempDir;

/// A file system of its own, unmounted at the end.
#[derive(Debug)]
pub struct Host {
    dir: TempDir,
    mounted: bool,
    /// The image of a disk below it.
    _image: Option<TempDir>,
}

impl Host {
    /// A tmpfs with these options. `None` has been said loudly.
    ///
    /// # Panics
    /// Where there is no directory for it.
    pub fn tmpfs(test: &str, options: &str) -> Option<Host> {
        let host = Host {
            dir: tempfile::tempdir().expect("a directory"),
            mounted: false,
            _image: None,
        };
        host.mount(test, &["-t", "tmpfs", "-o", options, "none"])
    }

    /// An ext4 of so many bytes, on a loop device. `None` has been said loudly.
    ///
    /// # Panics
    /// Where there is no place for it.
    pub fn ext4(test: &str, len: u64) -> Option<Host> {
        let images = tempfile::tempdir().expect("a directory");
        let image = images.path().join("image");
        let file = File::create(&image).expect("an image");
        file.set_len(len).expect("room for an image");
        let made = Command::new("mkfs.ext4")
            .args(["-q", "-F", "-m", "0"])
            .arg(&image)
            .status();
        if !made.is_ok_and(|s| s.success()) {
            crate::skip::skipped(format_args!("no mkfs.ext4: {test} has not been run"));
            return None;
        }
        let host = Host {
            dir: tempfile::tempdir().expect("a directory"),
            mounted: false,
            _image: Some(images),
        };
        let source = image.display().to_string();
        host.mount(test, &["-t", "ext4", "-o", "loop", &source])
    }

    fn mount(mut self, test: &str, args: &[&str]) -> Option<Host> {
        let out = Command::new("mount").args(args).arg(self.path()).output();
        match out {
            Ok(out) if out.status.success() => {
                self.mounted = true;
                Some(self)
            }
            refused => {
                crate::skip::skipped(format_args!(
                    "cannot mount {args:?}: {test} has not been run: {refused:?}"
                ));
                None
            }
        }
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A path on it.
    pub fn at(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Another program takes all that is left of it, in a file of this name.
    ///
    /// # Panics
    /// Where the file cannot be made.
    pub fn fill(&self, name: &str) -> PathBuf {
        let path = self.at(name);
        let mut file = File::create(&path).expect("another file");
        for len in [1 << 20, 64 << 10, 4096] {
            let bytes = vec![7; len];
            while file.write_all(&bytes).is_ok() {}
        }
        // What is written later may find less.
        let _full = file.sync_all();
        path
    }

    /// Bytes that it has left.
    ///
    /// # Panics
    /// Where it does not say.
    pub fn free(&self) -> u64 {
        let host = rustix::fs::statvfs(self.path()).expect("a file system");
        host.f_bavail * host.f_frsize
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.mounted && rustix::mount::unmount(self.dir.path(), UnmountFlags::DETACH).is_err() {
            eprintln!("{} stays mounted", self.dir.path().display());
        }
    }
}

/// A copy of a file in which pages of zeros are holes, as `cp --sparse=always`
/// makes it.
///
/// # Panics
/// Where it cannot be made.
pub fn sparse_copy(from: &Path, to: &Path) {
    let bytes = fs::read(from).expect("the original");
    let copy = File::create(to).expect("a copy");
    copy.set_len(bytes.len() as u64).expect("its length");
    for (at, page) in (0..).step_by(4096).zip(bytes.chunks(4096)) {
        if page.iter().any(|b| *b != 0) {
            std::os::unix::fs::FileExt::write_all_at(&copy, page, at).expect("a page");
        }
    }
}
