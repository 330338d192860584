//! Calls that pramfs does not support fail with the errno that programs expect.

use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::process::Command;

use rustix::io::{Errno, ReadWriteFlags};

use crate::support::file::cached;
use crate::support::mount::mounted;

/// Unsupported calls fail with the errno that programs expect.
#[test]
fn unsupported_calls_fail_with_known_errno() {
    use rustix::fs::FallocateFlags;
    let Some((_one, mount)) = mounted("refusals", "") else {
        return;
    };
    let (file, other) = (cached(&mount.at("f")), cached(&mount.at("g")));
    assert!(rustix::fs::ioctl_ficlone(&other, &file).is_err());
    for mode in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
        assert_eq!(
            rustix::fs::fallocate(&file, mode, 0, 4096),
            Err(Errno::OPNOTSUPP)
        );
    }
    let unshare = rustix::fs::fallocate(&file, FallocateFlags::UNSHARE_RANGE, 0, 4096);
    assert_eq!(unshare, Err(Errno::OPNOTSUPP));

    /// `_IOWR('f', 11, struct fiemap)`, `_IOWR(0x94, 54, ...)`, `_IOWR('X', 119, int)`.
    const REQUESTS: [(&str, libc::c_ulong); 3] = [
        ("FS_IOC_FIEMAP", 0xc020_660b),
        ("FIDEDUPERANGE", 0xc018_9436),
        ("FIFREEZE", 0xc004_5877),
    ];
    for (what, request) in REQUESTS {
        let mut argument = [0u64; 32];
        // SAFETY: the argument is longer than any of these structures; its zeros say that
        // there is room for no extents and no files.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), request, &mut argument) };
        assert_eq!(done, -1, "{what}");
    }

    file.write_all_at(b"x", 0).unwrap();
    // 0x80: RWF_DONTCACHE.
    for flag in [
        ReadWriteFlags::NOWAIT,
        ReadWriteFlags::from_bits_retain(0x80),
    ] {
        let mut byte = [0];
        let mut room = [std::io::IoSliceMut::new(&mut byte)];
        let read = rustix::io::preadv2(&file, &mut room, 0, flag);
        assert_eq!(read, Err(Errno::OPNOTSUPP), "{flag:?}");
    }

    let swap = mount.at("swap");
    std::fs::write(&swap, vec![0; 10 << 20]).unwrap();
    let made = Command::new("mkswap").arg("-q").arg(&swap).status();
    assert!(made.is_ok_and(|status| status.success()), "mkswap");
    let name = CString::new(swap.as_os_str().as_bytes()).unwrap();
    // SAFETY: the name is a string that outlives the call.
    let done = unsafe { libc::swapon(name.as_ptr(), 0) };
    assert_eq!((done, errno()), (-1, libc::EINVAL));

    // fanotify: reports events of an inode, but not of a whole file system where file
    // handles are requested.
    let flags = libc::FAN_CLASS_NOTIF | libc::FAN_REPORT_FID | libc::FAN_CLOEXEC;
    // SAFETY: creates a descriptor, and touches no memory.
    let watch = unsafe { libc::fanotify_init(flags, 0) };
    assert!(watch >= 0, "fanotify_init: {}", errno());
    // SAFETY: the descriptor is new and has no other owner.
    let watch = unsafe { OwnedFd::from_raw_fd(watch) };
    let path = CString::new(mount.path().as_os_str().as_bytes()).unwrap();
    let mark = |extent| {
        let flags = libc::FAN_MARK_ADD | extent;
        let (watch, mask) = (watch.as_raw_fd(), libc::FAN_MODIFY);
        // SAFETY: the path is a string that outlives the call.
        match unsafe { libc::fanotify_mark(watch, flags, mask, libc::AT_FDCWD, path.as_ptr()) } {
            0 => Ok(()),
            _ => Err(errno()),
        }
    };
    assert_eq!(mark(libc::FAN_MARK_INODE), Ok(()));
    assert_eq!(mark(libc::FAN_MARK_MOUNT), Err(libc::ENODEV));
    assert_eq!(mark(libc::FAN_MARK_FILESYSTEM), Err(libc::ENODEV));
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
