//! Space shared by several writers (xfstests 371), reads and writes at the largest offset
//! (525), and owners in a user namespace (317).

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use pramfs_tests::syscalls::errno;
use rustix::fs::{FallocateFlags, fallocate};

use crate::Reference::{Ext4, Tmpfs};
use crate::{SIZE, agree, alone, map_file};

fn new(path: &Path) -> File {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .expect("a file")
}

/// 371: a writer and an allocator take turns with space that is enough for both. Space
/// freed by one is available to the other, and neither gets ENOSPC.
#[test]
fn freed_space_serves_concurrent_writer() {
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

/// With a page of the kernel (tmpfs), the store finds the lack of space; with pramfs,
/// write-back does.
#[test]
fn mmap_store_on_full_region_fails_in_msync() {
    alone("mmap on a full region", "", |mount| {
        let path = mount.at("f");
        let file = new(&path);
        file.set_len(SIZE * 2).expect("a hole");
        let map = map_file(&path);
        for at in (0..SIZE * 2).step_by(4096) {
            drop(map.window().store(at, b"changed!").expect("store"));
        }
        let error = map.sync_all().expect_err("more than there is space for");
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        // A later open does not report the error again.
        drop(map);
        file.sync_all().expect_err("each descriptor is told once");
        file.sync_all().expect("it was told");
        let bytes = file.metadata().expect("stat").blocks() * 512;
        assert!(bytes > SIZE / 2 && bytes <= SIZE, "{bytes}");
        drop(file);
        fs::remove_file(&path).expect("unlink");
        fs::write(mount.at("g"), vec![1; 1 << 20]).expect("there is space again");
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

/// 317: files created by root of a user namespace belong, outside of it, to the user who
/// maps to that root. Files of unmapped users appear as owned by nobody.
#[test]
fn user_namespace_maps_file_owners() {
    agree("owners in a user namespace", &[Tmpfs, Ext4], |dir, n| {
        fs::write(dir.join("of-root"), "x").expect("a file");
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(dir, all).expect("chmod");
        // Other users reach the mount point only if they may search the directories above
        // it.
        let above = dir.parent().expect("a directory").to_owned();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&above, open).expect("chmod");
        let script = "cd \"$0\" && touch mine && mkdir d && stat -c '%n %u %g' mine d of-root";
        let out = Command::new("setpriv")
            .args(["--reuid=500", "--regid=500", "--clear-groups"])
            .args(["unshare", "-Ur", "sh", "-c", script])
            .arg(dir)
            .output()
            .expect("setpriv and unshare");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        if said.contains("unshare failed") {
            pramfs_tests::skip::skipped(format_args!("no user namespaces here: {said}"));
        }
        n.note("inside", String::from_utf8_lossy(&out.stdout).into_owned());
        for name in ["mine", "d", "of-root"] {
            let owner = fs::metadata(dir.join(name)).map(|m| (m.uid(), m.gid()));
            n.note(name, owner.map_err(|e| e.raw_os_error()));
        }
    });
}
