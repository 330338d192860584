//! Finds out which other users may write the object behind a region.
//!
//! A user who can write a region can write every byte of the file system: set-user-ID
//! programs, device files, the contents of files readable only by their owners. A name that
//! another user could have created is not sufficient evidence. The check uses the object
//! behind the mapped descriptor.
//!
//! Invariant: everything here is read once from an open descriptor. Replacing the name
//! later changes nothing.

use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, Mode};

/// Owner and mode of the object behind an open region.
///
/// ```
/// use pramfs_medium::pmem::Ownership;
/// let file = tempfile::tempfile().unwrap();
/// let ownership = Ownership::of(&file)?;
/// assert_eq!(ownership.objection(ownership.owner()), None);
/// assert!(ownership.objection(ownership.owner() + 1).unwrap().contains("belongs to"));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ownership {
    object: (u64, u64),
    owner: u32,
    mode: u32,
}

impl Ownership {
    /// Reads owner and mode of an open descriptor.
    ///
    /// # Errors
    /// Errors of fstat.
    pub fn of(fd: impl std::os::fd::AsFd) -> std::io::Result<Ownership> {
        Ok(Ownership::from_stat(fd.as_fd())?)
    }

    fn from_stat(fd: BorrowedFd<'_>) -> rustix::io::Result<Ownership> {
        let st = rustix::fs::fstat(fd)?;
        Ok(Ownership {
            object: (st.st_dev, st.st_ino),
            owner: st.st_uid,
            mode: st.st_mode,
        })
    }

    /// Returns device and inode. They tell whether two descriptors, or a descriptor and a
    /// name, refer to the same object.
    pub fn object(&self) -> (u64, u64) {
        self.object
    }

    /// Returns the user who owns the object.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Returns why others than `user` control the object, as the rest of a sentence; `None`
    /// if `user` alone does.
    ///
    /// A regular file must belong to `user`, and no other user may have write permission.
    /// An access ACL needs no separate check: the group bits of a file with an ACL are its
    /// mask, and without `w` in the mask no entry for a user or a group grants write
    /// permission. A device node usually belongs to root, and may be writable by a group
    /// (`disk`) of administrators.
    pub fn objection(&self, user: u32) -> Option<String> {
        let device = FileType::from_raw_mode(self.mode) != FileType::RegularFile;
        let theirs = self.owner != user && !(device && self.owner == 0);
        if theirs {
            return Some(format!("belongs to user {}", self.owner));
        }
        let mode = Mode::from_raw_mode(self.mode);
        let by_group = mode.contains(Mode::WGRP) && !device;
        let by_others = mode.contains(Mode::WOTH);
        let whom = match (by_group, by_others) {
            (false, false) => return None,
            (true, false) => "its group, or others by an ACL, may",
            (_, true) => "everybody may",
        };
        Some(format!(
            "is not safe from others: {whom} write it (mode {:04o})",
            self.mode & 0o7777
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(owner: u32, mode: u32) -> Ownership {
        Ownership {
            object: (1, 2),
            owner,
            mode,
        }
    }

    #[test]
    fn file_writable_by_others_raises_objection() {
        let file = libc::S_IFREG;
        for (owner, mode, user, says) in [
            (0, 0o600, 0, None),
            (0, 0o644, 0, None),
            (1000, 0o600, 1000, None),
            (1000, 0o600, 0, Some("user 1000")),
            (0, 0o600, 1000, Some("user 0")),
            (0, 0o660, 0, Some("its group")),
            (0, 0o620, 0, Some("its group")),
            (0, 0o602, 0, Some("everybody")),
            (0, 0o666, 0, Some("everybody")),
        ] {
            let objection = with(owner, file | mode).objection(user);
            assert_eq!(objection.is_some(), says.is_some(), "{owner} {mode:o}");
            assert!(says.is_none_or(|says| objection.unwrap().contains(says)));
        }
    }

    #[test]
    fn device_of_root_and_group_is_accepted() {
        for kind in [libc::S_IFBLK, libc::S_IFCHR] {
            assert_eq!(with(0, kind | 0o660).objection(0), None);
            assert_eq!(with(0, kind | 0o660).objection(1000), None);
            assert_eq!(with(1000, kind | 0o600).objection(1000), None);
            assert!(with(1000, kind | 0o600).objection(0).is_some());
            assert!(with(0, kind | 0o666).objection(0).is_some());
        }
    }
}
