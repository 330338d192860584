//! Who may write what a region lies on, besides the process that opens it.
//!
//! Whoever can write a region can write every byte of it: set-user-ID programs,
//! device files, the contents of files that only their owner may read. So a name
//! that somebody else could have put there is not enough; what counts is the
//! object behind the descriptor that is mapped.
//!
//! Invariant: everything here is read from an open descriptor, once. A name that
//! is replaced later changes nothing.

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
    /// Looks at an open descriptor.
    ///
    /// # Errors
    /// Of fstat.
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

    /// Device and inode, which tell whether two descriptors, or a descriptor
    /// and a name, mean the same object.
    pub fn object(&self) -> (u64, u64) {
        self.object
    }

    /// The user who owns it.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Why the object is not in the hands of `user` alone, as the rest of a
    /// sentence; `None` where it is.
    ///
    /// A regular file has to belong to that very user, and nobody else may have
    /// the right to write it. An access ACL needs no look of its own: the
    /// group bits of a file that has one are its mask, without whose `w` no
    /// entry for a user or a group gives the right to write. A device node
    /// belongs to root as a rule, and to a group (`disk`) of administrators that
    /// may write it.
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
    fn a_file_is_its_owners_alone_or_not() {
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
    fn a_device_may_be_of_root_and_of_a_group() {
        for kind in [libc::S_IFBLK, libc::S_IFCHR] {
            assert_eq!(with(0, kind | 0o660).objection(0), None);
            assert_eq!(with(0, kind | 0o660).objection(1000), None);
            assert_eq!(with(1000, kind | 0o600).objection(1000), None);
            assert!(with(1000, kind | 0o600).objection(0).is_some());
            assert!(with(0, kind | 0o666).objection(0).is_some());
        }
    }
}
