//! POSIX ACLs as they stand in the values of `system.posix_acl_access` and
//! `system.posix_acl_default`: the kernel's own format, of version 2.
//!
//! A value is a 32-bit version and entries of 8 bytes: tag, permissions
//! (16 bits each), and the user or group that a tag of a named one is about.
//! What is read here is checked here; when a list applies is decided in `fs/`.

use crate::error::Error;
use smallvec::SmallVec;

/// Attribute of the list that decides who may do what.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// Attribute of a directory: the list that what is made in it begins with.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

/// The only version of the format.
pub const VERSION: u32 = 2;
/// Bytes of an entry.
pub const ENTRY: usize = 8;

/// Tag of the owner's entry.
pub const USER_OBJ: u16 = 0x01;
/// Tag of a named user's.
pub const USER: u16 = 0x02;
/// Tag of the owning group's.
pub const GROUP_OBJ: u16 = 0x04;
/// Tag of a named group's.
pub const GROUP: u16 = 0x08;
/// Tag of the most that named users and all groups can have.
pub const MASK: u16 = 0x10;
/// Tag of everybody else's.
pub const OTHER: u16 = 0x20;

/// The id of an entry that is about nobody in particular.
pub const NO_ID: u32 = u32::MAX;

/// One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AclEntry {
    /// Whom it is about.
    pub tag: u16,
    /// Read 4, write 2, execute 1.
    pub perm: u16,
    /// The user or group of [`USER`] and [`GROUP`].
    pub id: u32,
}

/// A list that is sound: in the order of the tags, the three base entries once
/// each, and with a mask where somebody is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl(SmallVec<[AclEntry; 8]>);

/// Why a value is no list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AclFault {
    /// Another version of the format.
    Version,
    /// What is wrong.
    Wrong(&'static str),
}

impl Acl {
    /// Reads a value; `None` for one without entries, which stands for no list.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(value: &[u8]) -> Result<Option<Acl>, AclFault> {
        let (version, rest) = value
            .split_first_chunk::<4>()
            .ok_or(AclFault::Wrong("an ACL without a version"))?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(AclFault::Version);
        }
        let (entries, []) = rest.as_chunks::<ENTRY>() else {
            return Err(AclFault::Wrong("half an entry in an ACL"));
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
                USER | GROUP => return Err("an ACL with an entry of nobody"),
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
            return Err("an ACL that names somebody and has no mask");
        }
        Ok(())
    }

    /// The value that stands for it.
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

    /// The nine permission bits that show it, and whether they say all of it.
    /// The group's are the mask's, where there is one.
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

    /// What `chmod` makes of it.
    pub fn set_mode(&mut self, mode: u32) {
        self.on_classes(|perm, bits| *perm = bits, mode);
    }

    /// What a new file of this mode has of a default list; the mode becomes
    /// what both allow.
    pub fn narrow(&mut self, mode: &mut u32) {
        self.on_classes(|perm, bits| *perm &= bits, *mode);
        *mode = *mode & !0o777 | self.mode().0;
    }

    /// The three entries that the bits of a mode stand for.
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

/// Whether an attribute of an inode of this mode is to be an ACL and is none:
/// no list, not in line, or where there can be none.
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
    fn a_value_comes_back_as_it_was() {
        for entries in [&BASE[..], &FULL] {
            assert_eq!(parsed(entries).encode().to_vec(), value(entries));
        }
        assert_eq!(Acl::parse(&value(&[])), Ok(None));
    }

    #[test]
    fn what_is_no_list_is_refused() {
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
    fn the_mode_is_owner_mask_and_others() {
        assert_eq!(parsed(&BASE).mode(), (0o640, true));
        assert_eq!(parsed(&FULL).mode(), (0o751, false));
    }

    #[test]
    fn chmod_changes_owner_mask_and_others() {
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
    fn a_new_file_has_what_list_and_mode_allow() {
        let (mut acl, mut mode) = (parsed(&FULL), 0o102_666);
        acl.narrow(&mut mode);
        assert_eq!(mode, 0o102_640);
        assert_eq!(acl.mode(), (0o640, false));
        let (mut acl, mut mode) = (parsed(&BASE), 0o040_777);
        acl.narrow(&mut mode);
        assert_eq!(mode, 0o040_640);
    }
}
