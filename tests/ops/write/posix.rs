//! write on a mount: space shared by several writers (xfstests 371), the largest offset
//! (525).

use std::fs;
use std::os::unix::fs::FileExt;

use pramfs_tests::syscalls::errno;
use rustix::fs::{FallocateFlags, fallocate};

use crate::support::file::new;
use crate::support::mount::Reference::Tmpfs;
use crate::support::mount::agree;

/// 371: a writer and an allocator take turns with space that is enough for both. Space
/// freed by one is available to the other, and neither gets ENOSPC.
#[test]
fn write_beside_fallocate_gets_freed_space() {
    agree("write beside fallocate", &[Tmpfs], |dir, n| {
        let free = {
            let s = rustix::fs::statvfs(dir).expect("statvfs");
            s.f_bavail * s.f_frsize
        };
        // Together they use nine tenths of the free space.
        let each = (free / 20 * 9) & !4095;
        let refused = std::thread::scope(|s| {
            let writer = s.spawn(|| {
                let path = dir.join("written");
                let bytes = vec![0x5a; 1 << 20];
                (0..20).find_map(|_| {
                    let file = new(&path);
                    let mut at = 0;
                    while at < each {
                        let len = (each - at).min(1 << 20) as usize;
                        if let Err(e) = file.write_all_at(&bytes[..len], at) {
                            return Some(e.raw_os_error());
                        }
                        at += len as u64;
                    }
                    drop(file);
                    fs::remove_file(&path).expect("unlink");
                    None
                })
            });
            let path = dir.join("allocated");
            let allocated = (0..20).find_map(|_| {
                let file = new(&path);
                let done = errno(fallocate(&file, FallocateFlags::empty(), 0, each));
                drop(file);
                fs::remove_file(&path).expect("unlink");
                done.err()
            });
            (writer.join().expect("the writer"), allocated)
        });
        n.note("refused", refused);
    });
}

/// 525: nothing exists beyond the largest offset, and nothing fails unexpectedly.
#[test]
fn io_at_maximum_offset_matches_kernel() {
    agree("the largest offset", &[Tmpfs], |dir, n| {
        let most = i64::MAX as u64;
        let file = new(&dir.join("f"));
        for at in [most - 1, most - 4096, most] {
            n.call(
                format!("truncate {at}"),
                errno(rustix::fs::ftruncate(&file, at)),
            );
        }
        for at in [most - 4096, most - 100, most - 1, most] {
            let mut bytes = [0xee; 4096];
            let got = file.read_at(&mut bytes, at).map_err(|e| e.raw_os_error());
            n.note(format!("read at {at}"), got);
        }
        n.note("size", file.metadata().expect("stat").len());
        n.call("smaller", errno(rustix::fs::ftruncate(&file, 0)));
        for at in [most - 1, most] {
            let put = file.write_at(b"xy", at).map_err(|e| e.raw_os_error());
            n.note(format!("write at {at}"), put);
        }
    });
}
