//! Finds out whether others than the owner of an open file may write it, now.
//!
//! The holder of a descriptor for reading may open the file anew through `/proc/self/fd`, for
//! writing if the mode and the access ACL of the file let this user. So such a descriptor may
//! be given to another user only while its owner alone may write the file.
//!
//! Invariant: what is not understood counts as a right to write.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::Mode;
use rustix::io::Errno;

/// The access ACL of a file, as the kernel shows it.
const ATTRIBUTE: &str = "system.posix_acl_access";
const VERSION: u32 = 2;
const ENTRY: usize = 8;
const WRITE: u16 = 2;

/// Owner and group of a region's file, and the right of others to write it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permissions {
    /// The user who owns it.
    pub owner: u32,
    /// Its group.
    pub group: u32,
    /// Why users other than its owner may write it, as the rest of a sentence.
    pub objection: Option<String>,
}

impl Permissions {
    /// Reads them from an open descriptor (not of `O_PATH`).
    ///
    /// # Errors
    /// Those of fstat and fgetxattr.
    pub(in crate::pmem) fn of(fd: BorrowedFd<'_>) -> io::Result<Permissions> {
        let stat = rustix::fs::fstat(fd)?;
        let mode = Mode::from_raw_mode(stat.st_mode);
        Ok(Permissions {
            owner: stat.st_uid,
            group: stat.st_gid,
            objection: by_mode(mode).or(by_acl(read(fd)?.as_deref())),
        })
    }
}

fn read(fd: BorrowedFd<'_>) -> io::Result<Option<Vec<u8>>> {
    // As long as an attribute can be.
    let mut bytes = vec![0; 1 << 16];
    match rustix::fs::fgetxattr(fd, ATTRIBUTE, &mut bytes[..]) {
        Ok(len) => {
            bytes.truncate(len);
            Ok(Some(bytes))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The group bits of a file with an ACL are the mask of the ACL.
fn by_mode(mode: Mode) -> Option<String> {
    let whom = match (mode.contains(Mode::WGRP), mode.contains(Mode::WOTH)) {
        (false, false) => return None,
        (true, false) => "its group, or others by an ACL, may",
        (_, true) => "everybody may",
    };
    Some(format!(
        "{whom} write it (mode {:04o})",
        mode.bits() & 0o7777
    ))
}

/// Refuses an entry that gives the right to write, also one that the mask takes away: a chmod
/// would put it in force.
fn by_acl(acl: Option<&[u8]>) -> Option<String> {
    const USER_OBJ: u16 = 1;
    const USER: u16 = 2;
    const GROUP_OBJ: u16 = 4;
    const GROUP: u16 = 8;
    const MASK: u16 = 0x10;
    const OTHER: u16 = 0x20;
    let unknown = || Some("its ACL is not understood".to_owned());
    let acl = acl?;
    let Some((version, entries)) = acl.split_at_checked(size_of::<u32>()) else {
        return unknown();
    };
    let (entries, rest) = entries.as_chunks::<ENTRY>();
    if version != VERSION.to_le_bytes() || !rest.is_empty() {
        return unknown();
    }
    entries.iter().find_map(|entry| {
        let [t0, t1, p0, p1, id @ ..] = *entry;
        let (tag, rights) = (u16::from_le_bytes([t0, t1]), u16::from_le_bytes([p0, p1]));
        let id = u32::from_le_bytes(id);
        let whom = match tag {
            USER_OBJ | MASK => return None,
            USER => format!("user {id}"),
            GROUP_OBJ => "its group".to_owned(),
            GROUP => format!("group {id}"),
            OTHER => "everybody".to_owned(),
            _ => return unknown(),
        };
        (rights & WRITE != 0).then(|| format!("its ACL lets {whom} write it"))
    })
}

#[cfg(test)]
fn set_acl(fd: BorrowedFd<'_>, entries: &[(u16, u16, u32)]) -> io::Result<()> {
    Ok(rustix::fs::fsetxattr(
        fd,
        ATTRIBUTE,
        &encoded(entries),
        rustix::fs::XattrFlags::empty(),
    )?)
}

#[cfg(test)]
fn encoded(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = VERSION.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(rights.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    const NONE: u32 = u32::MAX;

    #[test]
    fn mode_that_lets_others_write_raises_objection() {
        for (mode, says) in [
            (0o600, None),
            (0o644, None),
            (0o755, None),
            (0o620, Some("its group")),
            (0o602, Some("everybody")),
            (0o777, Some("everybody")),
        ] {
            let found = by_mode(Mode::from_raw_mode(0o100_000 | mode));
            assert_eq!(found.is_some(), says.is_some(), "{mode:o}");
            assert!(says.is_none_or(|says| found.unwrap().contains(says)));
        }
    }

    #[test]
    fn acl_that_lets_others_write_raises_objection() {
        let base = [(1, 6, NONE), (4, 4, NONE), (0x20, 4, NONE)];
        for (more, says) in [
            (vec![], None),
            (vec![(2, 4, 1000), (0x10, 7, NONE)], None),
            (vec![(2, 6, 1000), (0x10, 6, NONE)], Some("user 1000")),
            // Out of force by the mask.
            (vec![(2, 2, 1000), (0x10, 4, NONE)], Some("user 1000")),
            (vec![(8, 7, 50), (0x10, 7, NONE)], Some("group 50")),
            (vec![(4, 6, NONE)], Some("its group")),
            (vec![(0x20, 2, NONE)], Some("everybody")),
            (vec![(0x40, 0, NONE)], Some("not understood")),
        ] {
            let acl = encoded(&[&base[..], &more[..]].concat());
            let found = by_acl(Some(&acl));
            assert_eq!(found.is_some(), says.is_some(), "{more:?}");
            assert!(says.is_none_or(|says| found.unwrap().contains(says)));
        }
    }

    #[test]
    fn malformed_acl_raises_objection() {
        assert_eq!(by_acl(None), None);
        for bytes in [&b""[..], b"\x02\0\0", b"\x03\0\0\0", b"\x02\0\0\0\x01"] {
            assert!(by_acl(Some(bytes)).is_some(), "{bytes:?}");
        }
    }

    #[test]
    fn permissions_are_those_of_the_open_file() {
        let file = tempfile::tempfile().unwrap();
        let read = || Permissions::of(file.as_fd()).unwrap();
        let own = rustix::process::geteuid().as_raw();
        assert_eq!((read().owner, read().objection), (own, None));
        rustix::fs::fchmod(&file, 0o620.into()).unwrap();
        assert!(read().objection.is_some());
        rustix::fs::fchmod(&file, 0o600.into()).unwrap();
        let acl = [
            (1, 6, NONE),
            (2, 6, 1000),
            (4, 0, NONE),
            (0x10, 4, NONE),
            (0x20, 0, NONE),
        ];
        match set_acl(file.as_fd(), &acl) {
            Ok(()) => assert!(read().objection.unwrap().contains("ACL")),
            // A file system without ACLs.
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP)),
        }
    }
}
