//! POSIX ACLs. Three operations concern them:
//!
//! - Setting an access ACL changes the mode.
//! - `chmod` changes the access ACL.
//! - A new inode inherits the default ACL of its directory.
//!
//! ACLs are stored as extended attributes. Each of these operations takes one record, which
//! also has the inode.
//!
//! Invariant: the mode and the access ACL of an inode agree ([`Acl::mode`]). An ACL
//! that the mode alone can express is not stored.
//!
//! The kernel enforces the ACLs. Their format is in `pramfs_medium::media::acl`, their
//! storage in [`xattrs`](super::xattrs).

use crate::fs::Engine;
use crate::fs::engine::change::Edit;
use crate::fs::inode::Inode;
use crate::fs::inode::disk::touch_ctime;
use crate::fs::inode::state::{AclPresence, InodeState};
use crate::fs::steps::xattrs::check_mode;
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::acl::{ACCESS, Acl, DEFAULT};
use pramfs_medium::media::htree::VALUE_INLINE;
use pramfs_medium::types::{FileType, Ino, XattrMode};
use pramfs_medium::volume::Plan;

impl Engine {
    /// Returns an ACL of an inode.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the ACL is malformed.
    fn acl(&self, state: &InodeState, name: &[u8]) -> Result<Option<Acl>> {
        let parsed = match self.find_value(state, name)? {
            None => return Ok(None),
            Some((VALUE_INLINE, value)) => Acl::parse(&value).ok().flatten(),
            Some(_) => None,
        };
        parsed
            .map(Some)
            .ok_or_else(|| Error::corrupt(Damage::AclDamaged, Ino(state.disk.ino), "a damaged ACL"))
    }

    /// Returns which ACLs an inode has. Reads the attributes once, and remembers the answer.
    #[cold]
    fn acl_presence(&self, state: &mut InodeState) -> Result<AclPresence> {
        if !state.acls.known {
            state.acls = AclPresence {
                known: true,
                access: self.find_value(state, ACCESS)?.is_some(),
                default: self.find_value(state, DEFAULT)?.is_some(),
            };
        }
        Ok(state.acls)
    }

    /// Gives a new inode the ACLs that it inherits from its directory. `mode` is the
    /// requested mode without the umask, which a default ACL replaces.
    #[inline]
    pub(crate) fn inherit_acl(
        &self,
        tx: &mut Plan<'_>,
        dir: &mut InodeState,
        new: &mut DiskInode,
        mode: u32,
    ) -> Result<()> {
        // Most directories have no attributes at all.
        if dir.disk.xattr_root == 0 || !self.acl_presence(dir)?.default {
            return Ok(());
        }
        self.inherit(tx, dir, new, mode)
    }

    #[cold]
    fn inherit(
        &self,
        tx: &mut Plan<'_>,
        dir: &InodeState,
        new: &mut DiskInode,
        mode: u32,
    ) -> Result<()> {
        let kind = FileType::from_mode(new.mode);
        let Some(mut acl) = self
            .acl(dir, DEFAULT)?
            .filter(|_| kind != Some(FileType::Symlink))
        else {
            return Ok(());
        };
        if kind == Some(FileType::Directory) {
            self.put_value(tx, new, DEFAULT, &acl.encode(), None)?;
        }
        new.mode |= mode & 0o777;
        acl.narrow(&mut new.mode);
        if !acl.mode().1 {
            self.put_value(tx, new, ACCESS, &acl.encode(), None)?;
        }
        Ok(())
    }

    /// Changes the access ACL of an inode to agree with its new mode.
    pub(crate) fn chmod_acl(&self, tx: &mut Plan<'_>, new: &mut Edit<'_>) -> Result<()> {
        if new.before().disk.xattr_root == 0 || !self.acl_presence(new.before_mut())?.access {
            return Ok(());
        }
        let Some(mut acl) = self.acl(new.before(), ACCESS)? else {
            return Ok(());
        };
        let old = self.find_value(new.before(), ACCESS)?;
        acl.set_mode(new.mode);
        self.put_value(tx, new, ACCESS, &acl.encode(), old.as_ref())
    }

    /// Sets an ACL, or removes it if the value has no entries. `keeps_sgid` is true if the
    /// caller is in the file's group, or has the right to keep sgid.
    ///
    /// # Errors
    /// | cause | error |
    /// |---|---|
    /// | malformed ACL | [`Error::Invalid`] |
    /// | unknown version, or a symbolic link | [`Error::NotSupported`] |
    /// | default ACL on a non-directory | [`Error::AccessDenied`] |
    /// | ACL too large to be stored inline | [`Error::AttributeTooLarge`] |
    pub(crate) fn set_acl(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        (name, value): (&[u8], &[u8]),
        mode: XattrMode,
        keeps_sgid: bool,
    ) -> Result<()> {
        let mut acl = Acl::parse(value)?;
        match state.kind() {
            FileType::Symlink => return Err(Error::NotSupported("an ACL on a symbolic link")),
            FileType::Directory => {}
            _ if name == DEFAULT && acl.is_none() => return Ok(()),
            _ if name == DEFAULT => {
                return Err(Error::AccessDenied("a default ACL on a non-directory"));
            }
            _ => {}
        }
        if !self.fits_inline(name, value) {
            return Err(Error::AttributeTooLarge(
                value.len(),
                self.inline_room().saturating_sub(name.len()),
            ));
        }
        let old = self.find_value(state, name)?;
        check_mode(old.is_some(), mode)?;
        let mut new = Edit::new(inode, state);
        if let Some(list) = acl.as_ref().filter(|_| name == ACCESS) {
            let (bits, all) = list.mode();
            new.mode = new.mode & !0o777 | bits;
            if !keeps_sgid {
                new.mode &= !libc::S_ISGID;
            }
            if all {
                acl = None;
            }
        }
        let mut tx = self.begin(inode);
        tx.touch(&inode.last_record);
        match (&acl, &old) {
            (Some(acl), _) => {
                self.put_value(&mut tx, &mut new, name, &acl.encode(), old.as_ref())?;
            }
            (None, Some(old)) => {
                tx.allow_reserve();
                self.take_value(&mut tx, &mut new, name, old)?;
            }
            (None, None) if new.mode == new.before().disk.mode => return Ok(()),
            (None, None) => {}
        }
        touch_ctime(&mut new, self.now());
        let new = new.stage(&mut tx)?;
        tx.decide(None);
        self.commit(tx, [new])?;
        state.acls = AclPresence::default();
        Ok(())
    }
}
