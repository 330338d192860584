//! Mount namespaces that tests make, and tests that none may disturb.
//!
//! A new mount namespace has a copy of every mount that is there. A server ends when the last copy
//! of its mount has gone, and `umount.fuse.pramfs` does not wait for copies elsewhere. So a test
//! about the end of a server has [`none_made`], and other tests make namespaces by [`spawn`].

use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use pramfs_tests::mounted::wait_until;

static MAKING: RwLock<()> = RwLock::new(());

/// Keeps other tests from making a mount namespace. To be taken before the mount is made.
pub(super) fn none_made() -> RwLockReadGuard<'static, ()> {
    MAKING.read().unwrap_or_else(PoisonError::into_inner)
}

/// Starts unshare(1), and returns when it has its mount namespace.
pub(super) fn spawn(unshare: &mut Command) -> Child {
    let _alone = MAKING.write().unwrap_or_else(PoisonError::into_inner);
    let child = unshare.spawn().unwrap();
    let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let (ours, pid) = (of("self"), child.id().to_string());
    // Or when it has ended: then there is nothing to read.
    assert!(wait_until(|| of(&pid) != ours), "no mount namespace");
    child
}

/// As [`Command::output`], of unshare(1).
pub(super) fn output(unshare: &mut Command) -> Output {
    unshare
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    spawn(unshare).wait_with_output().unwrap()
}
