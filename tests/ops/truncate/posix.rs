//! truncate at every boundary: the result, the size and each byte afterwards.

use std::fs::File;
use std::os::unix::fs::FileExt;

use pramfs_tests::syscalls::errno;
use rustix::fs::{FallocateFlags, fallocate, ftruncate};

use crate::support::file::{BLOCK, LARGE, new, size_and_runs};
use crate::support::mount::Reference::{Ext4, Tmpfs};
use crate::support::mount::agree;

#[test]
fn truncate_then_extend_shows_zeros() {
    agree("truncate", &[Tmpfs, Ext4], |dir, n| {
        let sizes = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, LARGE, LARGE + 1];
        for written in [0, 10, 5000, LARGE + 5000] {
            for first in sizes {
                for second in sizes {
                    let file = new(&dir.join("f"));
                    file.write_all_at(&vec![0xdd; written as usize], 0)
                        .expect("write");
                    let what = format!("{written}, {first}, {second}");
                    n.call(&what, errno(ftruncate(&file, first)));
                    n.call(&what, errno(ftruncate(&file, second)));
                    n.note(&what, size_and_runs(&file));
                }
            }
        }
        let file = new(&dir.join("f"));
        n.call("too far", errno(ftruncate(&file, 1 << 63)));
        n.call(
            "a directory",
            errno(ftruncate(File::open(dir).expect("open"), 1)),
        );
        let reading = File::open(dir.join("f")).expect("open");
        n.call("for reading", errno(ftruncate(&reading, 1)));
        let none = FallocateFlags::empty();
        n.call("for reading", errno(fallocate(&reading, none, 0, 1)));
        let dir = File::open(dir).expect("open");
        n.call("a directory", errno(fallocate(&dir, none, 0, 1)));
    });
}
