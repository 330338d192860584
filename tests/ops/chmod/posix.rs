//! chmod on a mount: who may set the sgid bit.

use pramfs_tests::syscalls::{as_caller, errno};
use rustix::fs::{Gid, Uid};

use crate::support::mode::{STRANGER, chmod, mode};
use crate::support::mount::Reference::{Ext4, Tmpfs};
use crate::support::mount::agree;

#[test]
fn chmod_outside_group_clears_sgid() {
    agree("sgid and chmod", &[Tmpfs, Ext4], |dir, n| {
        let path = dir.join("f");
        std::fs::write(&path, "").expect("a file");
        for gid in [500, 700] {
            let (uid, gid) = (Some(Uid::from_raw(500)), Some(Gid::from_raw(gid)));
            n.call("chown", errno(rustix::fs::chown(&path, uid, gid)));
            n.call("chmod", as_caller(STRANGER, || chmod(&path, 0o6755)));
            n.note(format!("{gid:?}"), mode(&path));
        }
    });
}
