//! Mounts: one of pramfs, and those of the kernel's file systems to compare it with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pramfs::pmem::{BackendKind, Durability, Region, RegionOptions};
use pramfs_tests::mounted::{Mounted, available, program};
use pramfs_tests::watchdog::Watchdog;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

use crate::support::transcript::Transcript;

/// Time limit of a test, on all of its file systems together.
pub const LIMIT: Duration = Duration::from_secs(120);

/// Bytes of each file system.
pub const SIZE: u64 = 64 << 20;

/// A file system of the kernel for comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reference {
    /// tmpfs.
    Tmpfs,
    /// ext4 in a file of a tmpfs.
    Ext4,
}

/// A mounted reference, unmounted on drop.
struct Kernels {
    dir: TempDir,
}

impl Kernels {
    fn mounted(what: Reference) -> Kernels {
        let base = Path::new("/dev/shm");
        let base = if base.is_dir() {
            base.to_owned()
        } else {
            std::env::temp_dir()
        };
        let dir = tempfile::Builder::new()
            .prefix("pramfs-posix-")
            .tempdir_in(base)
            .expect("a directory for the test");
        let at = dir.path().join("mnt");
        fs::create_dir(&at).expect("a mount point");
        match what {
            Reference::Tmpfs => {
                let size = c"size=64M,mode=755";
                mount("none", &at, "tmpfs", MountFlags::empty(), size).expect("mount a tmpfs");
            }
            Reference::Ext4 => {
                let image = dir.path().join("image");
                let file = fs::File::create(&image).expect("an image");
                file.set_len(SIZE).expect("its size");
                run(Command::new("mkfs.ext4")
                    .args(["-q", "-F", "-b", "4096"])
                    .arg(&image));
                run(Command::new("mount")
                    .args(["-o", "loop"])
                    .arg(&image)
                    .arg(&at));
            }
        }
        Kernels { dir }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        // A failed test may leave files open.
        let gone = unmount(self.path(), UnmountFlags::empty())
            .or_else(|_| unmount(self.path(), UnmountFlags::DETACH));
        if let Err(error) = gone {
            eprintln!("{} stays mounted: {error}", self.path().display());
        }
    }
}

fn run(command: &mut Command) {
    let out = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        out.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
}

/// Whether the references are available. Reports the missing ones.
fn can_have(what: Reference, test: &str) -> bool {
    let tool = |name: &str| {
        let dirs = ["/sbin", "/usr/sbin", "/bin", "/usr/bin"];
        dirs.iter().any(|dir| Path::new(dir).join(name).exists())
    };
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let missing = match what {
        Reference::Tmpfs => return true,
        Reference::Ext4 if !tool("mkfs.ext4") => "no mkfs.ext4",
        Reference::Ext4 if !Path::new("/dev/loop-control").exists() => "no loop devices",
        Reference::Ext4 if !known.lines().any(|l| l.ends_with("\text4")) => "no ext4",
        Reference::Ext4 => return true,
    };
    eprintln!("\n*** NOT COMPARED WITH EXT4: {missing}: {test} ***\n");
    false
}

/// For tests that change the umask, which belongs to the process; tests that start a
/// process; tests that open a locked region twice. A process being started briefly holds
/// our descriptors, and with them the lock.
pub fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work` on a mount and on the references, and compares the notes. Skips the test,
/// with a report, if nothing can be mounted.
pub fn agree(test: &str, with: &[Reference], work: impl Fn(&Path, &mut Transcript)) {
    agree_with(test, "", with, work);
}

/// Like [`agree`], on a mount with these options.
pub fn agree_with(
    test: &str,
    options: &str,
    with: &[Reference],
    work: impl Fn(&Path, &mut Transcript),
) {
    if !available(test) {
        return;
    }
    let _one = one_at_a_time();
    let _dog = Watchdog::new(test, LIMIT);
    let ours = {
        let mount = Mounted::new(&program(), SIZE, options);
        let mut notes = Transcript::ours();
        work(&mount.path(), &mut notes);
        mount.unmount();
        let region = pramfs::pmem::RegionOptions::new()
            .open(mount.region())
            .expect("the region");
        let report = pramfs_fsck::check(&region, &Default::default());
        assert!(report.is_clean(), "{test}: {report}");
        notes
    };
    assert!(!ours.is_empty(), "{test} has seen nothing");
    for what in with.iter().filter(|what| can_have(**what, test)) {
        let theirs = {
            let kernels = Kernels::mounted(*what);
            let mut notes = Transcript::of(*what);
            work(&kernels.path(), &mut notes);
            notes
        };
        ours.compare(&theirs, &format!("{test}, {what:?}"));
    }
}

/// Runs `work` on a mount only: for features that the kernel's file systems lack.
pub fn alone(test: &str, options: &str, work: impl FnOnce(&Mounted)) {
    if !available(test) {
        return;
    }
    let _one = one_at_a_time();
    let _dog = Watchdog::new(test, LIMIT);
    work(&Mounted::new(&program(), SIZE, options));
}

/// Maps a file shared: loads and stores use the page cache, `sync_all` is fdatasync.
pub fn map_file(path: &Path) -> Region {
    RegionOptions::new()
        .backend(BackendKind::Native)
        .durability(Durability::Process)
        .lock(false)
        .open(path)
        .expect("map the file")
}

/// Keeps other tests of this kind from running, and ends one that takes too long.
#[derive(Debug)]
pub struct Guard {
    _dog: Watchdog,
    _one: MutexGuard<'static, ()>,
}

/// Like [`alone`], for a test that keeps the mount.
pub fn mounted(test: &str, options: &str) -> Option<(Guard, Mounted)> {
    if !available(test) {
        return None;
    }
    let one = one_at_a_time();
    let guard = Guard {
        _dog: Watchdog::new(test, LIMIT),
        _one: one,
    };
    Some((guard, Mounted::new(&program(), SIZE, options)))
}
