//! mkdir and rmdir on a mount.

use pramfs_tests::syscalls::errno;
use rustix::fs::Mode;

use crate::support::file::seen;
use crate::support::mount::Reference::Tmpfs;
use crate::support::mount::agree;

/// A new file system has no lost+found. A repair creates it.
#[test]
fn mkdir_of_lost_and_found_works_as_any_name() {
    agree("lost+found", &[Tmpfs], |dir, n| {
        let path = dir.join("lost+found");
        n.note("at first", seen(&path));
        n.call("mkdir", errno(rustix::fs::mkdir(&path, Mode::RWXU)));
        n.call("rmdir", errno(rustix::fs::rmdir(&path)));
    });
}
