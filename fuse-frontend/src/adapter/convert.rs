//! Converts numbers and structures between the FUSE protocol and the engine.
//!
//! Three of them need care:
//! * the protocol calls the root node 1, the engine calls it inode 2; every
//!   other number is the same on both sides, and `stat` shows the engine's;
//! * a device number travels in the kernel's 32-bit packing, the engine keeps
//!   the C library's `dev_t`;
//! * a time before 1970 arrives from `fuser` with its nanoseconds subtracted instead of
//!   added.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType as Kind, Generation, INodeNo, Request, TimeOrNow};
use pramfs::{
    FileType,
    inode::{Attr, Credentials, DirEntry, Ino, SetAttr, SetTime, Time},
};

use super::serve::{Refusal, Served};

/// Returns the engine's number of a node.
///
/// # Errors
/// ESTALE for the engine's reserved numbers; such a node can only come from a forged
/// file handle.
pub(super) fn ino(node: INodeNo) -> Served<Ino> {
    match node {
        INodeNo::ROOT => Ok(Ino::ROOT),
        INodeNo(n) if n >= Ino::FIRST_FREE.0 => Ok(Ino(n)),
        _ => Err(Refusal::Request(Errno::ESTALE, "no such node")),
    }
}

/// Returns the protocol's number of an inode.
pub(super) fn node(ino: Ino) -> INodeNo {
    if ino == Ino::ROOT {
        INodeNo::ROOT
    } else {
        INodeNo(ino.0)
    }
}

/// Returns the credentials for an operation that makes an inode.
pub(super) fn creator(req: &Request, umask: u32) -> Credentials<'static> {
    Credentials::new(req.uid(), req.gid()).with_umask(umask)
}

/// Returns the file type of the protocol.
pub(super) fn kind(kind: FileType) -> Kind {
    match kind {
        FileType::Regular => Kind::RegularFile,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::CharDevice => Kind::CharDevice,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::Fifo => Kind::NamedPipe,
        FileType::Socket => Kind::Socket,
    }
}

/// Returns the attributes for `stat`.
pub(super) fn attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino.0),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.btime),
        kind: kind(attr.kind),
        perm: (attr.perm & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: pack_device(attr.rdev),
        blksize: attr.blksize,
        flags: 0,
    }
}

/// Returns the attributes for a reply with an entry, where the number is the node's.
pub(super) fn entry(of: &Attr) -> (FileAttr, Generation) {
    let root = of.ino == Ino::ROOT;
    let attr = FileAttr {
        ino: node(of.ino),
        ..attr(of)
    };
    // The kernel requires generation 0 for the root.
    (attr, Generation(if root { 0 } else { of.generation }))
}

/// Returns a negative entry.
pub(super) fn no_entry() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: Kind::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// Returns a directory entry without attributes. `fuser` cannot omit attributes from a
/// readdirplus reply, so this one has impossible ones: the kernel passes name, number and
/// type to the reader, rejects the rest and releases the reference. A reader that needs
/// attributes looks the name up.
pub(super) fn name_only(of: &DirEntry<'_>) -> FileAttr {
    FileAttr {
        ino: node(of.ino),
        size: u64::MAX,
        kind: kind(of.kind),
        ..no_entry()
    }
}

/// Returns the changes of a setattr request.
pub(super) fn set_attr(
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    size: Option<u64>,
    atime: Option<TimeOrNow>,
    mtime: Option<TimeOrNow>,
    ctime: Option<SystemTime>,
) -> SetAttr {
    SetAttr {
        perm: mode.map(|mode| mode & 0o7777),
        uid,
        gid,
        size,
        atime: atime.map(set_time),
        mtime: mtime.map(set_time),
        ctime: ctime.map(arrived_time),
        flags: None,
    }
}

fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(arrived_time(time)),
    }
}

/// Converts a time unpacked by `fuser`. The request means epoch - seconds + nanoseconds,
/// but before 1970 `fuser` returns epoch - (seconds + nanoseconds). So both fields are
/// taken from the distance to the epoch unchanged.
fn arrived_time(time: SystemTime) -> Time {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Time {
            sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            nsec: after.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            Time {
                sec: 0i64
                    .checked_sub_unsigned(before.as_secs())
                    .unwrap_or(i64::MIN),
                nsec: before.subsec_nanos(),
            }
        }
    }
}

/// Converts a time for a reply. A time that `SystemTime` cannot express becomes 1970.
fn system_time(time: Time) -> SystemTime {
    let whole = Duration::from_secs(time.sec.unsigned_abs());
    let base = if time.sec < 0 {
        UNIX_EPOCH.checked_sub(whole)
    } else {
        UNIX_EPOCH.checked_add(whole)
    };
    base.and_then(|base| base.checked_add(Duration::from_nanos(time.nsec.into())))
        .unwrap_or(UNIX_EPOCH)
}

/// Converts `dev_t` of the C library to the kernel's packing: 8 bits of the minor, 12
/// of the major, 12 more of the minor.
fn pack_device(device: u64) -> u32 {
    let (major, minor) = (libc::major(device), libc::minor(device));
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xfff00) << 12)
}

/// Converts the kernel's packing to `dev_t`.
pub(super) fn unpack_device(packed: u32) -> u64 {
    libc::makedev(
        (packed >> 8) & 0xfff,
        (packed & 0xff) | ((packed >> 12) & 0xfff00),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_numbers_differ_only_for_root() {
        assert_eq!(ino(INodeNo::ROOT).unwrap(), Ino::ROOT);
        assert_eq!(node(Ino::ROOT), INodeNo::ROOT);
        assert_eq!(ino(INodeNo(16)).unwrap(), Ino(16));
        assert_eq!(node(Ino(16)), INodeNo(16));
        for reserved in [0, 2, 3, 4, 15] {
            assert_eq!(
                ino(INodeNo(reserved)).unwrap_err().errno().code(),
                libc::ESTALE
            );
        }
    }

    #[test]
    fn device_numbers_survive_packing() {
        for (major, minor) in [(0, 0), (1, 3), (259, 70_000), (0xfff, 0xfffff)] {
            let device = libc::makedev(major, minor);
            assert_eq!(
                unpack_device(pack_device(device)),
                device,
                "{major}:{minor}"
            );
        }
    }

    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        // `fuser`'s unpacking of -2 s + 800,000,000 ns.
        let arrived = UNIX_EPOCH - Duration::new(2, 800_000_000);
        assert_eq!(
            arrived_time(arrived),
            Time {
                sec: -2,
                nsec: 800_000_000
            }
        );
        // Its packing of the same time.
        let sent = system_time(Time {
            sec: -2,
            nsec: 800_000_000,
        });
        assert_eq!(
            UNIX_EPOCH.duration_since(sent).unwrap(),
            Duration::new(1, 200_000_000)
        );
        assert_eq!(
            system_time(Time {
                sec: i64::MIN,
                nsec: 0
            }),
            UNIX_EPOCH - Duration::from_secs(1 << 63)
        );
        assert_eq!(
            system_time(Time {
                sec: i64::MAX,
                nsec: u32::MAX
            }),
            UNIX_EPOCH
        );
    }
}
