//! [`Metadata`] and [`FileTimes`].

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pramfs_medium::error::{Error, Result};
use pramfs_medium::types::{Attr, FileType, Ino, SetAttr, SetTime, Time};

/// A consistent snapshot of the metadata of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata {
    attr: Attr,
}

impl From<Attr> for Metadata {
    fn from(attr: Attr) -> Metadata {
        Metadata { attr }
    }
}

impl Metadata {
    /// Returns the type of the file.
    pub fn file_type(&self) -> FileType {
        self.attr.kind
    }

    /// Returns whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.attr.kind == FileType::Directory
    }

    /// Returns whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.attr.kind == FileType::Regular
    }

    /// Returns whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.attr.kind == FileType::Symlink
    }

    /// Returns the size in bytes.
    #[expect(clippy::len_without_is_empty, reason = "as std::fs::Metadata")]
    pub fn len(&self) -> u64 {
        self.attr.size
    }

    /// Returns the permission bits with suid, sgid and sticky.
    pub fn permissions(&self) -> Permissions {
        Permissions::from_mode(self.attr.perm)
    }

    /// Returns type and permission bits, like `st_mode`.
    pub fn mode(&self) -> u32 {
        self.attr.kind.mode_bits() | self.attr.perm
    }

    /// Returns the inode number.
    pub fn ino(&self) -> Ino {
        self.attr.ino
    }

    /// Returns the number of names.
    pub fn nlink(&self) -> u32 {
        self.attr.nlink
    }

    /// Returns the owner.
    pub fn uid(&self) -> u32 {
        self.attr.uid
    }

    /// Returns the group.
    pub fn gid(&self) -> u32 {
        self.attr.gid
    }

    /// Returns the allocated space in units of 512 bytes.
    pub fn blocks(&self) -> u64 {
        self.attr.blocks
    }

    /// Returns the time of the last change of the contents.
    ///
    /// # Errors
    /// [`Error::TimeOutOfRange`] for a time that [`SystemTime`] cannot hold.
    pub fn modified(&self) -> Result<SystemTime> {
        system_time(self.attr.mtime)
    }

    /// Returns the time of the last read that the mount recorded (`relatime`).
    ///
    /// # Errors
    /// As for [`modified`](Self::modified).
    pub fn accessed(&self) -> Result<SystemTime> {
        system_time(self.attr.atime)
    }

    /// Returns the time of creation.
    ///
    /// # Errors
    /// As for [`modified`](Self::modified).
    pub fn created(&self) -> Result<SystemTime> {
        system_time(self.attr.btime)
    }

    /// Returns the time of the last change of contents or attributes.
    ///
    /// # Errors
    /// As for [`modified`](Self::modified).
    pub fn changed(&self) -> Result<SystemTime> {
        system_time(self.attr.ctime)
    }

    /// Returns all attributes of the lower interface.
    pub fn attr(&self) -> &Attr {
        &self.attr
    }
}

/// The times to set on a file. A time that is not set here stays unchanged.
///
/// ```
/// use std::time::SystemTime;
/// let times = pramfs::FileTimes::new().set_modified(SystemTime::UNIX_EPOCH);
/// # let _ = times;
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[must_use]
pub struct FileTimes {
    accessed: Option<SystemTime>,
    modified: Option<SystemTime>,
}

impl FileTimes {
    /// Makes an empty set of times.
    pub fn new() -> FileTimes {
        FileTimes::default()
    }

    /// Sets the time of the last read.
    pub fn set_accessed(mut self, time: SystemTime) -> FileTimes {
        self.accessed = Some(time);
        self
    }

    /// Sets the time of the last change of the contents.
    pub fn set_modified(mut self, time: SystemTime) -> FileTimes {
        self.modified = Some(time);
        self
    }

    pub(super) fn to_set(self) -> Result<SetAttr> {
        let at = |time: Option<SystemTime>| time.map(|t| time_of(t).map(SetTime::At)).transpose();
        Ok(SetAttr {
            atime: at(self.accessed)?,
            mtime: at(self.modified)?,
            ..SetAttr::default()
        })
    }
}

fn system_time(t: Time) -> Result<SystemTime> {
    let seconds = Duration::from_secs(t.sec.unsigned_abs());
    let whole = if t.sec < 0 {
        UNIX_EPOCH.checked_sub(seconds)
    } else {
        UNIX_EPOCH.checked_add(seconds)
    };
    whole
        .and_then(|whole| whole.checked_add(Duration::from_nanos(t.nsec.into())))
        .ok_or(Error::TimeOutOfRange(t.sec))
}

fn time_of(t: SystemTime) -> Result<Time> {
    let out_of_range = |seconds: u64| Error::TimeOutOfRange(seconds.try_into().unwrap_or(i64::MAX));
    match t.duration_since(UNIX_EPOCH) {
        Ok(after) => Ok(Time {
            sec: after
                .as_secs()
                .try_into()
                .map_err(|_| out_of_range(after.as_secs()))?,
            nsec: after.subsec_nanos(),
        }),
        Err(e) => {
            let before = e.duration();
            // Whole seconds are rounded down, so that nanoseconds count forward.
            let part = u64::from(before.subsec_nanos() > 0);
            let seconds = before.as_secs() + part;
            let nsec = (1_000_000_000 - before.subsec_nanos()) % 1_000_000_000;
            let sec = i64::try_from(seconds).map_err(|_| out_of_range(seconds))?;
            Ok(Time { sec: -sec, nsec })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_time_conversion_round_trips() {
        for (sec, nsec) in [
            (0, 0),
            (0, 999_999_999),
            (-1, 1),
            (-1, 0),
            (1_700_000_000, 5),
            (-62_135_596_800, 999_999_999),
        ] {
            let time = Time { sec, nsec };
            assert_eq!(time_of(system_time(time).unwrap()).unwrap(), time);
        }
    }
}
