//! Set-user-id, set-group-id and file capabilities: operations that clear them (xfstests
//! 193 355 673 683-687).

use pramfs_medium::pmem::RegionAccess as _;
use std::path::Path;

use pramfs_tests::syscalls::{Caller, Sys, as_caller, errno};
use rustix::fs::{FallocateFlags, IFlags, Mode, OFlags};

use crate::support::mode::{STRANGER, chmod, mode};
use crate::support::mount::Reference::{self, Ext4, Tmpfs};
use crate::support::mount::{agree, agree_with, map_file};
use crate::support::transcript::Transcript;

fn open(path: &Path, flags: OFlags) -> Sys<std::os::fd::OwnedFd> {
    let flags = flags | OFlags::CLOEXEC;
    errno(rustix::fs::open(path, flags, Mode::from_raw_mode(0o666)))
}

/// An operation that changes a file.
type Change = (&'static str, fn(&Path) -> Sys);

const CHANGES: [Change; 7] = [
    ("write", |path| {
        errno(rustix::io::pwrite(&open(path, OFlags::WRONLY)?, b"x", 0)).map(drop)
    }),
    ("append", |path| {
        errno(rustix::io::write(
            &open(path, OFlags::WRONLY | OFlags::APPEND)?,
            b"x",
        ))
        .map(drop)
    }),
    ("direct write", |path| {
        let fd = open(path, OFlags::WRONLY | OFlags::DIRECT)?;
        let page = Box::new(Page([0x55; 4096]));
        errno(rustix::io::pwrite(&fd, &page.0, 0)).map(drop)
    }),
    ("truncate", |path| {
        errno(rustix::fs::ftruncate(&open(path, OFlags::WRONLY)?, 100))
    }),
    ("fallocate", |path| {
        let fd = open(path, OFlags::WRONLY)?;
        errno(rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, 8192))
    }),
    ("punch", |path| {
        let fd = open(path, OFlags::WRONLY)?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        errno(rustix::fs::fallocate(&fd, flags, 0, 4096))
    }),
    ("open with O_TRUNC", |path| {
        open(path, OFlags::WRONLY | OFlags::TRUNC).map(drop)
    }),
];

#[repr(align(4096))]
struct Page([u8; 4096]);

fn take_away(dir: &Path, n: &mut Transcript) {
    let path = dir.join("f");
    std::fs::write(&path, vec![1; 20_000]).expect("a file");
    for (what, change) in CHANGES {
        for bits in [0o6777, 0o4766, 0o2777, 0o6776, 0o6666, 0o2666, 0o0777] {
            for who in [Caller::ROOT, STRANGER] {
                n.call("chmod", chmod(&path, bits));
                let done = as_caller(who, || change(&path));
                n.call(format!("{what} {bits:o} as {}", who.uid), done);
                n.note(format!("{what} {bits:o} as {}", who.uid), mode(&path));
            }
        }
    }
}

#[test]
fn change_by_unprivileged_caller_clears_suid_sgid() {
    agree("suid", &[Tmpfs, Ext4], take_away);
}

#[test]
fn change_with_cache_writeback_clears_suid_sgid() {
    let options = "cache=writeback";
    agree_with("suid, cache=writeback", options, &[Tmpfs, Ext4], take_away);
}

#[test]
fn change_with_cache_none_clears_suid_sgid() {
    agree_with("suid, cache=none", "cache=none", &[Tmpfs], take_away);
}

/// `cap_net_raw` permitted and effective, as `setcap` writes it (revision 2).
fn file_capability() -> Vec<u8> {
    let words = [0x0200_0001u32, 1 << 13, 0, 0, 0];
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// Every caller's change clears them, also after several changes, when a kernel may have
/// stopped checking.
#[test]
fn change_clears_file_capabilities() {
    const NAME: &str = "security.capability";
    agree("file capabilities", &[Tmpfs, Ext4], |dir, n| {
        let path = dir.join("f");
        std::fs::write(&path, vec![1; 20_000]).expect("a file");
        n.call("chmod", chmod(&path, 0o777));
        for (what, change) in CHANGES {
            for who in [Caller::ROOT, STRANGER] {
                for before in 0..3 {
                    for _ in 0..before {
                        n.call(what, as_caller(who, || change(&path)));
                    }
                    let flags = rustix::fs::XattrFlags::empty();
                    let set = rustix::fs::setxattr(&path, NAME, &file_capability(), flags);
                    n.call("setxattr", errno(set));
                    let done = as_caller(who, || change(&path));
                    n.call(format!("{what} as {}", who.uid), done);
                    let left = rustix::fs::getxattr(&path, NAME, &mut [0; 64][..]);
                    n.call(format!("{what} as {}, left", who.uid), errno(left));
                }
            }
        }
    });
}

/// Write-back is not a change by the process that triggers it.
#[test]
fn write_back_keeps_file_capabilities() {
    for options in ["", "cache=writeback", "cache=none"] {
        let references: &[Reference] = &[Tmpfs, Ext4];
        agree_with("capabilities and mmap", options, references, |dir, n| {
            let path = dir.join("f");
            std::fs::write(&path, vec![1; 8192]).expect("a file");
            let map = map_file(&path);
            drop(map.window().store(100, b"changed").expect("store"));
            let flags = rustix::fs::XattrFlags::empty();
            let set = rustix::fs::setxattr(&path, "security.capability", &file_capability(), flags);
            n.call("setxattr", errno(set));
            map.sync_all().expect("msync");
            let left = rustix::fs::getxattr(&path, "security.capability", &mut [0; 64][..]);
            n.call("left", errno(left));
            n.note(
                "bytes",
                std::fs::read(&path).expect("read")[100..107].to_vec(),
            );
        });
    }
}

#[test]
fn failed_change_keeps_suid_sgid() {
    agree("suid and chattr +a", &[Ext4], |dir, n| {
        let path = dir.join("f");
        std::fs::write(&path, vec![1; 20_000]).expect("a file");
        n.call("chmod", chmod(&path, 0o6777));
        let fd = open(&path, OFlags::WRONLY).expect("open");
        n.call("+a", errno(rustix::fs::ioctl_setflags(&fd, IFlags::APPEND)));
        let truncated = as_caller(STRANGER, || errno(rustix::fs::ftruncate(&fd, 100)));
        n.call("truncate", truncated);
        n.note("truncate", mode(&path));
        let none = IFlags::empty();
        n.call("-a", errno(rustix::fs::ioctl_setflags(&fd, none)));
    });
}
