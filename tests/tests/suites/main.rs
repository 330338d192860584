//! Test suites of others, on a mount: pjdfstest and fsx (crates), stress-ng,
//! fio and dbench (Debian). After each the file system is unmounted, and fsck
//! must find nothing.
//!
//! `PRAMFS_SUITES=long` is the long run (`make test-suites`); otherwise it
//! takes some minutes. What does not pass is listed with its reason in
//! `expected/`, and the lists are exact.

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

/// Whether the long run was asked for.
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

/// One suite at a time, before it mounts: they count on the time that they are
/// given, and a mount namespace that one of them makes keeps the mounts that there
/// are until it ends.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
