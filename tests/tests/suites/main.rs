//! Test suites of other projects, on a mount: pjdfstest and fsx (crates), stress-ng, fio
//! and dbench (Debian). After each, the file system is unmounted, and fsck must find
//! nothing.
//!
//! By default they take some minutes; `PRAMFS_SUITES=long` is the long run (`make
//! test-suites`). `expected/` lists the failing cases with reasons; the lists are exact.

mod aio;
mod dbench;
mod exerciser;
mod fio;
mod fsx;
mod pjdfstest;
mod stress_ng;

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pramfs_tests::suite::Expected;

/// Whether the long run was requested.
fn long() -> bool {
    match std::env::var("PRAMFS_SUITES").as_deref() {
        Ok("long") => true,
        Ok("") | Err(_) => false,
        Ok(other) => panic!("PRAMFS_SUITES={other}: long, or nothing"),
    }
}

fn expected(name: &str) -> Expected {
    Expected::read(
        PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("tests/suites/expected")
            .join(name),
    )
}

/// Runs one suite at a time, from before it mounts. Suites rely on their time limits, and
/// a mount namespace made by one of them keeps the mounts of its creation until it ends.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
