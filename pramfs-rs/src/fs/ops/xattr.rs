//! The operations on extended attributes: get, list, set, remove.
//!
//! Invariant: setting or removing an attribute takes one record, which also has the inode.
//! This file checks names, sizes and flags. The storage of values is in
//! [`steps::xattrs`](crate::fs::steps::xattrs), the rules of ACLs in `steps::acl`.

use crate::credentials::Credentials;
use crate::fs::engine::completeness::Hole;
use crate::fs::inode::Inode;
use crate::fs::inode::disk::touch_ctime;
use crate::fs::inode::large_values::{map_of_value, parse_large};
use crate::fs::inode::lock::InodeGuard;
use crate::fs::inode::state::InodeState;
use crate::fs::ops::create::Label;
use crate::fs::ops::lost;
use crate::fs::policy::chattr;
use crate::fs::steps::attributes::lock_and_check_group;
use crate::fs::steps::xattrs::{Stored, check_mode, is_acl};
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::htree::{self, TreeRef};
use pramfs_medium::media::acl::ACCESS;
use pramfs_medium::media::checksum::crc;
use pramfs_medium::media::htree::{NAME_MAX, VALUE_IN_BLOCKS as BLOCKS, VALUE_MAX};
use pramfs_medium::types::{FileType, Ino, XattrMode};

/// Maximum list of names, bytes: the limit of the kernel.
const LIST_MAX: usize = 65_536;

/// Checks that an attribute name can be set.
fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Error::NameTooLong(name.len(), NAME_MAX));
    }
    const SPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    if SPACES.contains(&name) {
        return Err(Error::Invalid(
            "an extended attribute needs a name after its namespace",
        ));
    }
    let ok = SPACES.iter().any(|s| name.starts_with(s)) || is_acl(name);
    if !ok || name.contains(&0) {
        return Err(Error::NotSupported(
            "extended attributes outside of user., trusted., security. and POSIX ACLs",
        ));
    }
    Ok(())
}

/// Checks the attributes that a new inode is to have.
///
/// # Errors
/// [`Error::NotSupported`] for a name outside of `security.`, [`Error::Invalid`] for a name that
/// comes twice, [`Error::NameTooLong`], [`Error::AttributeTooLarge`].
pub(crate) fn check_labels(labels: &[Label<'_>]) -> Result<()> {
    for (n, (name, value)) in labels.iter().enumerate() {
        check_name(name)?;
        if !name.starts_with(b"security.") {
            return Err(Error::NotSupported(
                "a new file with attributes outside of security.",
            ));
        }
        if labels[..n].iter().any(|(before, _)| before == name) {
            return Err(Error::Invalid("a new file with one attribute twice"));
        }
        if value.len() > VALUE_MAX {
            return Err(Error::AttributeTooLarge(value.len(), VALUE_MAX));
        }
    }
    Ok(())
}

impl Engine {
    /// Returns the value of an attribute.
    ///
    /// # Errors
    /// [`Error::NoAttribute`], [`Error::NotSupported`] for a name outside the
    /// known namespaces.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.op(Need::Read, || {
            if name != lost::LIST {
                check_name(name)?;
            }
            let inode = self.iget_user(ino)?;
            let state = inode.state.read();
            state.alive(ino)?;
            if name == lost::LIST {
                return self.lost_list(&state)?.ok_or(Error::NoAttribute);
            }
            let (kind, value) = self.find_value(&state, name)?.ok_or(Error::NoAttribute)?;
            if kind != BLOCKS {
                return Ok(value);
            }
            self.read_large(ino, name, &value)
        })
    }

    /// Reads a value in blocks, which its item describes, and checks it. The caller holds the
    /// lock of the inode.
    pub(crate) fn read_large(&self, ino: Ino, name: &[u8], stored: &[u8]) -> Result<Vec<u8>> {
        let bad = || {
            Error::corrupt(
                Damage::XattrChecksum,
                ino,
                "an extended attribute is damaged",
            )
        };
        let large = parse_large(&self.vol.geo, ino, stored)?;
        let mut value = vec![0; large.len as usize];
        let map = map_of_value(&self.vol.geo, &large, ino, name);
        match self.read_map(&map, 0, &mut value, || Err(bad())) {
            // Only regular files can have lost ranges.
            Err(Error::Lost { .. }) => return Err(bad()),
            Ok(read) if read < value.len() => return Err(bad()),
            read => drop(read?),
        }
        if crc(self.vol.geo.seed, &value) != large.crc {
            return Err(bad());
        }
        Ok(value)
    }

    /// Returns the names of all attributes, each followed by a NUL. Includes the list
    /// of lost ranges.
    ///
    /// # Errors
    /// [`Error::AttributeTooLarge`] if the names do not fit 64 KiB.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        self.op(Need::Read, || {
            let inode = self.iget_user(ino)?;
            let state = inode.state.read();
            state.alive(ino)?;
            let mut out = Vec::new();
            if state.disk.xattr_root != 0 {
                let tree = TreeRef::xattrs(&state.disk);
                let hole = || self.check_hole(&state, Hole::Xattrs);
                htree::scan(&self.vol, &tree, 0, &hole, &mut |_, _, name| {
                    out.extend_from_slice(name);
                    out.push(0);
                    std::ops::ControlFlow::Continue(())
                })?;
            }
            if !self.lost_in(&state, 1)?.is_empty() {
                out.extend_from_slice(lost::LIST);
                out.push(0);
            }
            if out.len() > LIST_MAX {
                return Err(Error::AttributeTooLarge(out.len(), LIST_MAX));
            }
            Ok(out)
        })
    }

    /// Sets an attribute of up to 64 KiB. An access ACL also sets the mode, and
    /// clears sgid if the caller is not in the file's group.
    ///
    /// # Errors
    /// [`Error::Exists`] or [`Error::NoAttribute`] by `mode`,
    /// [`Error::AttributeTooLarge`], [`Error::NoSpace`];
    /// [`Error::NotPermitted`] if the file is immutable or append-only;
    /// [`Error::Invalid`] for a malformed ACL, [`Error::AccessDenied`] for a default
    /// ACL on a non-directory.
    pub fn setxattr(
        &self,
        caller: &Credentials<'_>,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.op(Need::Write, || {
            check_name(name)?;
            if value.len() > VALUE_MAX {
                return Err(Error::AttributeTooLarge(value.len(), VALUE_MAX));
            }
            let inode = self.iget_user(ino)?;
            // An access ACL sets the mode of directories as well.
            let asked = |state: &InodeGuard<'_>| {
                (name == ACCESS && state.disk.mode & libc::S_ISGID != 0).then_some(state.disk.gid)
            };
            let (mut state, keeps_sgid) =
                lock_and_check_group(caller, || inode.state.write(), asked);
            state.alive(ino)?;
            chattr::check_write(&state.disk)?;
            if is_acl(name) {
                return self.set_acl(&inode, &mut state, (name, value), mode, keeps_sgid);
            }
            let old = self.find_value(&state, name)?;
            check_mode(old.is_some(), mode)?;
            let attribute = (name, value);
            match self.set_value_locked(&inode, &mut state, attribute, old.as_ref()) {
                // Blocks that were freed recently may be contiguous.
                Err(Error::NoSpace(_)) if self.vol.retire_pending()? => {
                    self.set_value_locked(&inode, &mut state, attribute, old.as_ref())
                }
                done => done,
            }
        })
    }

    fn set_value_locked(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        (name, value): (&[u8], &[u8]),
        old: Option<&Stored>,
    ) -> Result<()> {
        self.change(inode, state, |tx, new| {
            tx.touch(&inode.last_record);
            self.put_value(tx, new, name, value, old)?;
            touch_ctime(new, self.now());
            tx.decide(None);
            Ok(())
        })
    }

    /// Removes an attribute. Removing an ACL leaves the mode unchanged; removing an
    /// ACL that does not exist succeeds.
    ///
    /// # Errors
    /// [`Error::NoAttribute`]; [`Error::NotPermitted`] if the file is immutable or
    /// append-only.
    pub fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.op(Need::Write, || {
            check_name(name)?;
            let inode = self.iget_user(ino)?;
            let mut state = inode.state.write();
            state.alive(ino)?;
            chattr::check_write(&state.disk)?;
            if is_acl(name) && state.kind() == FileType::Symlink {
                return Err(Error::NotSupported("an ACL of a symbolic link"));
            }
            match self.remove_xattr_locked(&inode, &mut state, name, true) {
                Err(Error::NoAttribute) if is_acl(name) => Ok(()),
                done => done,
            }
        })
    }
}
