//! Times and attributes between `fuser` and the protocol.
//!
//! A time before 1970 arrives from `fuser` with its nanoseconds subtracted instead of added.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use pramfs_fuse_protocol::flags::SetattrValid;
use pramfs_fuse_protocol::wire::{Attr, SetattrIn};

/// The fields of SETATTR that `fuser` passes on.
#[derive(Default)]
pub(super) struct Changes {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<TimeOrNow>,
    pub mtime: Option<TimeOrNow>,
    pub ctime: Option<SystemTime>,
}

impl Changes {
    /// Packs them again.
    pub(super) fn pack(self) -> SetattrIn {
        let mut valid = SetattrValid::empty();
        let mut note = |flag, given: bool| valid.set(flag, given);
        note(SetattrValid::MODE, self.mode.is_some());
        note(SetattrValid::UID, self.uid.is_some());
        note(SetattrValid::GID, self.gid.is_some());
        note(SetattrValid::SIZE, self.size.is_some());
        note(SetattrValid::ATIME, self.atime.is_some());
        note(SetattrValid::MTIME, self.mtime.is_some());
        note(SetattrValid::CTIME, self.ctime.is_some());
        let is_now = |time| matches!(time, Some(TimeOrNow::Now));
        note(SetattrValid::ATIME_NOW, is_now(self.atime));
        note(SetattrValid::MTIME_NOW, is_now(self.mtime));
        let new = |time| match time {
            Some(TimeOrNow::SpecificTime(time)) => arrived_time(time),
            _ => (0, 0),
        };
        let (atime, atimensec) = new(self.atime);
        let (mtime, mtimensec) = new(self.mtime);
        let (ctime, ctimensec) = self.ctime.map_or((0, 0), arrived_time);
        SetattrIn {
            valid,
            size: self.size.unwrap_or(0),
            atime,
            mtime,
            ctime,
            atimensec,
            mtimensec,
            ctimensec,
            mode: self.mode.unwrap_or(0),
            uid: self.uid.unwrap_or(0),
            gid: self.gid.unwrap_or(0),
            ..SetattrIn::default()
        }
    }
}

/// Returns seconds and nanoseconds of a time unpacked by `fuser`. The request means epoch -
/// seconds + nanoseconds, but before 1970 `fuser` returns epoch - (seconds + nanoseconds). So
/// both fields are taken from the distance to the epoch unchanged.
fn arrived_time(time: SystemTime) -> (u64, u32) {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (after.as_secs(), after.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            (before.as_secs().wrapping_neg(), before.subsec_nanos())
        }
    }
}

/// Converts a time for a reply. A time that `SystemTime` cannot express becomes 1970.
fn system_time(sec: u64, nsec: u32) -> SystemTime {
    let sec = sec.cast_signed();
    let whole = Duration::from_secs(sec.unsigned_abs());
    let base = if sec < 0 {
        UNIX_EPOCH.checked_sub(whole)
    } else {
        UNIX_EPOCH.checked_add(whole)
    };
    base.and_then(|base| base.checked_add(Duration::from_nanos(nsec.into())))
        .unwrap_or(UNIX_EPOCH)
}

/// Returns the type of a mode.
pub(super) fn kind(mode: u32) -> FileType {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        libc::S_IFIFO => FileType::NamedPipe,
        libc::S_IFSOCK => FileType::Socket,
        _ => FileType::RegularFile,
    }
}

/// Unpacks attributes.
pub(super) fn attr(of: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(of.ino),
        size: of.size,
        blocks: of.blocks,
        atime: system_time(of.atime, of.atimensec),
        mtime: system_time(of.mtime, of.mtimensec),
        ctime: system_time(of.ctime, of.ctimensec),
        crtime: UNIX_EPOCH,
        kind: kind(of.mode),
        perm: (of.mode & 0o7777) as u16,
        nlink: of.nlink,
        uid: of.uid,
        gid: of.gid,
        rdev: of.rdev,
        blksize: of.blksize,
        flags: of.flags.bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        // `fuser`'s unpacking of -2 s + 800,000,000 ns.
        let arrived = UNIX_EPOCH - Duration::new(2, 800_000_000);
        let minus_two = (-2i64).cast_unsigned();
        assert_eq!(arrived_time(arrived), (minus_two, 800_000_000));
        // Its packing of the same time.
        let sent = system_time(minus_two, 800_000_000);
        assert_eq!(
            UNIX_EPOCH.duration_since(sent).unwrap(),
            Duration::new(1, 200_000_000)
        );
        assert_eq!(
            system_time(i64::MIN.cast_unsigned(), 0),
            UNIX_EPOCH - Duration::from_secs(1 << 63)
        );
        assert_eq!(system_time(i64::MAX.cast_unsigned(), u32::MAX), UNIX_EPOCH);
    }

    #[test]
    fn packed_changes_have_the_flags_of_what_is_given() {
        assert_eq!(Changes::default().pack(), SetattrIn::default());
        let changes = Changes {
            size: Some(7),
            atime: Some(TimeOrNow::Now),
            mtime: Some(TimeOrNow::SpecificTime(UNIX_EPOCH + Duration::new(3, 4))),
            ..Changes::default()
        };
        let packed = changes.pack();
        let expected = SetattrValid::SIZE
            | SetattrValid::ATIME
            | SetattrValid::ATIME_NOW
            | SetattrValid::MTIME;
        assert_eq!(packed.valid, expected);
        assert_eq!((packed.size, packed.mtime, packed.mtimensec), (7, 3, 4));
    }
}
