//! Real programs on a mount: a compiler, git, SQLite, PostgreSQL, rsync, tar, Python's
//! own tests, an overlay, an NFS export. After each, the file system is unmounted, and
//! fsck must find nothing.
//!
//! By default a sample of a few minutes; `PRAMFS_PROGRAMS=full` (`make test-programs`)
//! extends every part.

mod acknowledged;
mod copies;
mod git;
mod nfs;
mod overlay;
mod postgres;
mod python;
mod running;
mod sqlite;
mod workspace;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pramfs_tests::mounted::Mounted;

/// Debian's Python, with all modules; another may come first in the path.
const PYTHON: &str = "/usr/bin/python3";
/// Time limit of a step.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Whether the full run was requested.
fn full() -> bool {
    match std::env::var("PRAMFS_PROGRAMS").as_deref() {
        Ok("full") => true,
        Ok("") | Err(_) => false,
        Ok(other) => panic!("PRAMFS_PROGRAMS={other}: full, or nothing"),
    }
}

/// Runs one test at a time, from before it mounts. Tests rely on their time limits; a
/// program started by one test briefly holds all descriptors of another; and a mount
/// namespace keeps the mounts of its creation until it ends.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sources from which this test was built.
fn sources() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .canonicalize()
        .unwrap()
}

/// Lets users other than root reach the mount point.
fn let_others_in(mount: &Mounted) {
    let above = mount.path().parent().unwrap().to_owned();
    std::fs::set_permissions(above, PermissionsExt::from_mode(0o755)).unwrap();
}
