//! POSIX ACLs as values of `system.posix_acl_access` and
//! `system.posix_acl_default`, in the kernel's format, version 2.
//!
//! A value is a 32-bit version and entries of 8 bytes: tag and permissions
//! (16 bits each), and the id of a named user or group. This module parses and
//! checks ACLs; `fs/` decides when an ACL applies.

use crate::error::Error;
use smallvec::SmallVec;

/// Attribute with the ACL that controls access to the object.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// Attribute of a directory with the ACL that new objects in it inherit.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

/// The only version of the format.
pub const VERSION: u32 = 2;
/// Size of an entry, bytes.
pub const ENTRY: usize = 8;

/// Tag of the entry of the owner.
pub const USER_OBJ: u16 = 0x01;
/// Tag of the entry of a named user.
pub const USER: u16 = 0x02;
/// Tag of the entry of the owning group.
pub const GROUP_OBJ: u16 = 0x04;
/// Tag of the entry of a named group.
pub const GROUP: u16 = 0x08;
/// Tag of the mask, which limits named users and all groups.
pub const MASK: u16 = 0x10;
/// Tag of the entry of all others.
pub const OTHER: u16 = 0x20;

/// The id in an entry without a named user or group.
pub const NO_ID: u32 = u32::MAX;

/// One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AclEntry {
    /// The class of users that the entry applies to.
    pub tag: u16,
    /// Read 4, write 2, execute 1.
    pub perm: u16,
    /// The user of a [`USER`] entry or the group of a [`GROUP`] entry.
    pub id: u32,
}

/// A valid ACL: sorted by tag, with each of the three base entries once, and with
/// a mask if it names a user or group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl(SmallVec<[AclEntry; 8]>);

/// The reason why a value is not a valid ACL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AclFault {
    /// The version of the format is unknown.
    Version,
    /// The value is malformed, with the reason.
    Wrong(&'static str),
}

impl Acl {
    /// Parses a value. Returns `None` for a value without entries, which means no
    /// ACL.
    ///
    /// # Errors
    /// The reason why the value is not a valid ACL.
    pub fn parse(value: &[u8]) -> Result<Option<Acl>, AclFault> {
        let (version, rest) = value
            .split_first_chunk::<4>()
            .ok_or(AclFault::Wrong("an ACL without a version"))?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(AclFault::Version);
        }
        let (entries, []) = rest.as_chunks::<ENTRY>() else {
            return Err(AclFault::Wrong("an ACL with an incomplete entry"));
        };
        if entries.is_empty() {
            return Ok(None);
        }
        let entry = |[t0, t1, p0, p1, id @ ..]: &[u8; ENTRY]| AclEntry {
            tag: u16::from_le_bytes([*t0, *t1]),
            perm: u16::from_le_bytes([*p0, *p1]),
            id: u32::from_le_bytes(*id),
        };
        let acl = Acl(entries.iter().map(entry).collect());
        acl.check().map(|()| Some(acl)).map_err(AclFault::Wrong)
    }

    fn check(&self) -> Result<(), &'static str> {
        let (mut last, mut named) = (0, false);
        for e in &self.0 {
            if e.perm & !7 != 0 {
                return Err("an ACL with unknown permissions");
            }
            let several = match e.tag {
                USER_OBJ | GROUP_OBJ | MASK | OTHER => false,
                USER | GROUP if e.id != NO_ID => true,
                USER | GROUP => return Err("an ACL with a user or group entry without an id"),
                _ => return Err("an ACL with an unknown tag"),
            };
            if e.tag < last || e.tag == last && !several {
                return Err("an ACL whose entries are not in order");
            }
            (last, named) = (e.tag, named || several);
        }
        let has = |tag| self.0.iter().any(|e| e.tag == tag);
        if !(has(USER_OBJ) && has(GROUP_OBJ) && has(OTHER)) {
            return Err("an ACL without owner, group or others");
        }
        if named && !has(MASK) {
            return Err("an ACL that names a user or group and has no mask");
        }
        Ok(())
    }

    /// Encodes the ACL as an attribute value.
    pub fn encode(&self) -> SmallVec<[u8; 128]> {
        let mut out = SmallVec::from_slice(&VERSION.to_le_bytes());
        for e in &self.0 {
            let id = match e.tag {
                USER | GROUP => e.id,
                _ => NO_ID,
            };
            out.extend_from_slice(&e.tag.to_le_bytes());
            out.extend_from_slice(&e.perm.to_le_bytes());
            out.extend_from_slice(&id.to_le_bytes());
        }
        out
    }

    /// Returns the nine permission bits that show the ACL, and whether they express
    /// all of it. If a mask exists, the group bits are those of the mask.
    pub fn mode(&self) -> (u32, bool) {
        let (mut mode, mut all) = (0, true);
        let mut mask = None;
        for e in &self.0 {
            let perm = u32::from(e.perm);
            match e.tag {
                USER_OBJ => mode |= perm << 6,
                GROUP_OBJ => mode |= perm << 3,
                OTHER => mode |= perm,
                MASK => (mask, all) = (Some(perm), false),
                _ => all = false,
            }
        }
        match mask {
            Some(mask) => (mode & 0o707 | mask << 3, all),
            None => (mode, all),
        }
    }

    /// Changes the ACL as `chmod` does.
    pub fn set_mode(&mut self, mode: u32) {
        self.on_classes(|perm, bits| *perm = bits, mode);
    }

    /// Turns a default ACL into the access ACL of a new file with this mode. Both
    /// become the permissions that ACL and mode allow.
    pub fn narrow(&mut self, mode: &mut u32) {
        self.on_classes(|perm, bits| *perm &= bits, *mode);
        *mode = *mode & !0o777 | self.mode().0;
    }

    /// Calls `f` for the three entries that correspond to the bits of a mode.
    fn on_classes(&mut self, mut f: impl FnMut(&mut u16, u16), mode: u32) {
        let masked = self.0.iter().any(|e| e.tag == MASK);
        for e in &mut self.0 {
            let shift = match e.tag {
                USER_OBJ => 6,
                MASK => 3,
                GROUP_OBJ if !masked => 3,
                OTHER => 0,
                _ => continue,
            };
            f(&mut e.perm, (mode >> shift & 7) as u16);
        }
    }
}

/// Tells whether an attribute has the name of an ACL but is not valid as one. It is
/// invalid if
///
/// - an inode of this mode cannot have such an ACL,
/// - the value is not in the item, or
/// - the value is not a well-formed ACL with entries.
pub fn fault(mode: u32, kind: u8, name: &[u8], value: &[u8]) -> bool {
    let format = mode & libc::S_IFMT;
    let possible = match name {
        ACCESS => format != libc::S_IFLNK,
        DEFAULT => format == libc::S_IFDIR,
        _ => return false,
    };
    !possible || kind != super::htree::VALUE_INLINE || !matches!(Acl::parse(value), Ok(Some(_)))
}

impl From<AclFault> for Error {
    fn from(fault: AclFault) -> Error {
        match fault {
            AclFault::Version => Error::NotSupported("an ACL of an unknown version"),
            AclFault::Wrong(why) => Error::Invalid(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for (tag, perm, id) in entries {
            out.extend(tag.to_le_bytes());
            out.extend(perm.to_le_bytes());
            out.extend(id.to_le_bytes());
        }
        out
    }

    const BASE: [(u16, u16, u32); 3] = [(1, 6, NO_ID), (4, 4, NO_ID), (32, 0, NO_ID)];
    const FULL: [(u16, u16, u32); 6] = [
        (1, 7, NO_ID),
        (2, 5, 10),
        (2, 6, 11),
        (4, 7, NO_ID),
        (16, 5, NO_ID),
        (32, 1, NO_ID),
    ];

    fn parsed(entries: &[(u16, u16, u32)]) -> Acl {
        Acl::parse(&value(entries)).unwrap().unwrap()
    }

    #[test]
    fn acl_encode_restores_parsed_value() {
        for entries in [&BASE[..], &FULL] {
            assert_eq!(parsed(entries).encode().to_vec(), value(entries));
        }
        assert_eq!(Acl::parse(&value(&[])), Ok(None));
    }

    #[test]
    fn parse_of_malformed_acl_fails() {
        let mut other = value(&BASE);
        other[0] = 1;
        assert_eq!(Acl::parse(&other), Err(AclFault::Version));
        let mut cut = value(&BASE);
        cut.pop();
        assert!(Acl::parse(&cut).is_err());
        assert!(Acl::parse(&[]).is_err());
        let wrong: [&[(u16, u16, u32)]; 8] = [
            &BASE[..2],
            &BASE[1..],
            &[BASE[1], BASE[0], BASE[2]],
            &[BASE[0], BASE[0], BASE[1], BASE[2]],
            &[BASE[0], (2, 7, 5), BASE[1], BASE[2]],
            &[BASE[0], (2, 7, NO_ID), BASE[1], (16, 7, NO_ID), BASE[2]],
            &[BASE[0], BASE[1], (64, 7, NO_ID)],
            &[(1, 8, NO_ID), BASE[1], BASE[2]],
        ];
        for entries in wrong {
            assert!(Acl::parse(&value(entries)).is_err(), "{entries:?}");
        }
    }

    #[test]
    fn acl_mode_is_owner_mask_and_others() {
        assert_eq!(parsed(&BASE).mode(), (0o640, true));
        assert_eq!(parsed(&FULL).mode(), (0o751, false));
    }

    #[test]
    fn set_mode_changes_owner_mask_and_others() {
        let mut acl = parsed(&FULL);
        acl.set_mode(0o4624);
        let mut expected = FULL;
        (expected[0].1, expected[4].1, expected[5].1) = (6, 2, 4);
        assert_eq!(acl, parsed(&expected));
        let mut acl = parsed(&BASE);
        acl.set_mode(0o711);
        assert_eq!(acl.mode(), (0o711, true));
    }

    #[test]
    fn narrow_intersects_default_acl_and_mode() {
        let (mut acl, mut mode) = (parsed(&FULL), 0o102_666);
        acl.narrow(&mut mode);
        assert_eq!(mode, 0o102_640);
        assert_eq!(acl.mode(), (0o640, false));
        let (mut acl, mut mode) = (parsed(&BASE), 0o040_777);
        acl.narrow(&mut mode);
        assert_eq!(mode, 0o040_640);
    }
}
