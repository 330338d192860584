//! A mount under load for a given time; its server is stopped meanwhile, and killed.
//!
//! `PRAMFS_LOAD_SECONDS` is the time of the load, by default 10 (`make test-load`: ten
//! minutes). `PRAMFS_LOAD_SEED` repeats its operations.

mod killed;
mod memory;
mod writers;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One test at a time: a process started by one test briefly holds all descriptors of the
/// other, and with them its mount.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A directory outside of the file system.
fn directory() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    let base = if shm.is_dir() {
        shm.to_owned()
    } else {
        std::env::temp_dir()
    };
    tempfile::Builder::new()
        .prefix("pramfs-test-")
        .tempdir_in(base)
        .unwrap()
}
