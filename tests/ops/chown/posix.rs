//! chown on a mount: the bits that it clears.

use pramfs_tests::syscalls::{Caller, as_caller, errno};
use rustix::fs::{Gid, Mode, Uid};

use crate::support::mode::{STRANGER, chmod, mode};
use crate::support::mount::Reference::{Ext4, Tmpfs};
use crate::support::mount::agree;

#[test]
fn chown_clears_suid_sgid() {
    agree("suid and chown", &[Tmpfs, Ext4], |dir, n| {
        let path = dir.join("f");
        std::fs::write(&path, "").expect("a file");
        for bits in [0o6777, 0o6766, 0o2711, 0o4700] {
            for (uid, gid) in [
                (Some(1), None),
                (None, Some(1)),
                (Some(2), Some(2)),
                (None, None),
            ] {
                n.call("chmod", chmod(&path, bits));
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                n.call("chown", errno(rustix::fs::chown(&path, uid, gid)));
                n.note(format!("{bits:o}"), mode(&path));
            }
        }
        let d = dir.join("d");
        n.call("mkdir", errno(rustix::fs::mkdir(&d, Mode::RWXU)));
        n.call("chmod", chmod(&d, 0o6777));
        let one = Some(Uid::from_raw(1));
        n.call("chown", errno(rustix::fs::chown(&d, one, None)));
        n.note("a directory", mode(&d));
        n.call("chown", errno(rustix::fs::chown(&d, None, None)));
        n.note("a directory, of nobody new", mode(&d));
    });
}

/// A user who can see a program must not be able to remove its rights.
#[test]
fn empty_chown_by_other_user_keeps_suid_sgid() {
    agree("suid and chown by a stranger", &[Tmpfs, Ext4], |dir, n| {
        let path = dir.join("f");
        std::fs::write(&path, "").expect("a file");
        for bits in [0o4755, 0o6755, 0o4777, 0o2755, 0o755] {
            n.call("chmod", chmod(&path, bits));
            let done = as_caller(STRANGER, || errno(rustix::fs::chown(&path, None, None)));
            if bits & 0o6000 == 0 {
                n.call(format!("chown {bits:o}"), done);
            } else {
                for from in [Tmpfs, Ext4] {
                    let why = "the kernel asks us as it asks for an overlay, \
                               which must not be refused";
                    n.differs("chown", done, from, (Ok(()), Err(libc::EPERM)), why);
                }
            }
            n.note(format!("{bits:o}"), mode(&path));
        }
        // The same call by root and by the owner, who may clear them.
        let owner = Some(Uid::from_raw(500));
        n.call("chown", errno(rustix::fs::chown(&path, owner, None)));
        for who in [Caller::ROOT, STRANGER] {
            n.call("chmod", chmod(&path, 0o6755));
            let done = as_caller(who, || errno(rustix::fs::chown(&path, None, None)));
            n.call("chown of nothing", done);
            n.note(format!("by {}", who.uid), mode(&path));
        }
    });
}
