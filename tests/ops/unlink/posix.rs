//! unlink on a mount: sticky directories.

use std::fs;

use pramfs_tests::syscalls::{Caller, as_caller, errno};
use rustix::fs::Mode;

use crate::support::mount::Reference::{Ext4, Tmpfs};
use crate::support::mount::agree;

#[test]
fn unlink_in_sticky_directory_needs_owner() {
    agree("sticky directories", &[Tmpfs, Ext4], |dir, n| {
        let d = dir.join("d");
        fs::create_dir(&d).expect("a directory");
        rustix::fs::chmod(&d, Mode::from_raw_mode(0o1777)).expect("chmod");
        let who = |uid| Caller {
            uid,
            gid: uid,
            umask: 0,
            privileged: false,
        };
        for uid in [500, 501] {
            as_caller(who(uid), || fs::write(d.join(format!("of-{uid}")), "x")).expect("a file");
        }
        as_caller(who(500), || {
            n.call(
                "move another's",
                errno(rustix::fs::rename(d.join("of-501"), d.join("x"))),
            );
            let over = rustix::fs::rename(d.join("of-500"), d.join("of-501"));
            n.call("over another's", errno(over));
            n.call(
                "remove another's",
                errno(rustix::fs::unlink(d.join("of-501"))),
            );
            n.call(
                "move one's own",
                errno(rustix::fs::rename(d.join("of-500"), d.join("x"))),
            );
            n.call("remove one's own", errno(rustix::fs::unlink(d.join("x"))));
        });
    });
}
