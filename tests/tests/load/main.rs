//! A mount under load, for as long as is asked for; its server stopped in the
//! middle of it, and killed.
//!
//! `PRAMFS_LOAD_SECONDS` is the time of the load, 10 where it is not set
//! (`make test-load`: ten minutes); `PRAMFS_LOAD_SEED` repeats its operations.

mod killed;
mod memory;
mod writers;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One test at a time: a process that one of them starts has, for a moment, all
/// descriptors of the other, and with them its mount.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A directory beside the file system.
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
