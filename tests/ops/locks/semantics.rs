//! What locks promise: they work between processes of one machine.

use std::path::Path;
use std::process::Command;

use rustix::io::Errno;

use crate::support::file::cached;
use crate::support::mount::mounted;

const CHILD: &str = "PRAMFS_TEST_LOCKED_FILE";

/// The kernel implements locks; they work between processes of this machine.
#[test]
fn flock_and_fcntl_locks_hold_within_machine() {
    use rustix::fs::{FlockOperation, fcntl_lock, flock};
    // The other process tries to take the record lock and reports the result.
    if let Some(path) = std::env::var_os(CHILD) {
        let file = cached(Path::new(&path));
        let got = fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive);
        std::process::exit(if got.is_ok() { 0 } else { 7 });
    }
    let Some((_one, mount)) = mounted("locks", "") else {
        return;
    };
    let path = mount.at("f");
    let (one, two) = (cached(&path), cached(&path));
    flock(&one, FlockOperation::LockExclusive).unwrap();
    let busy = flock(&two, FlockOperation::NonBlockingLockShared);
    assert_eq!(busy, Err(Errno::WOULDBLOCK));
    // Unlocks instead of closing: a child that another test is starting has a copy of the
    // descriptor until it executes its program, and the lock would live as long.
    flock(&one, FlockOperation::Unlock).unwrap();
    flock(&two, FlockOperation::NonBlockingLockShared).unwrap();
    let other = || {
        let status = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "locks::semantics::flock_and_fcntl_locks_hold_within_machine",
            ])
            .env(CHILD, &path)
            .stdout(std::process::Stdio::null())
            .status();
        status.unwrap().code().unwrap()
    };
    fcntl_lock(&two, FlockOperation::LockExclusive).unwrap();
    assert_eq!(other(), 7);
    drop(two);
    assert_eq!(other(), 0);
}
