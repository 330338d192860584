//! lookup and getattr.

use pramfs_medium::pmem::RegionAccess as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::fs::cache::attr_cache::{AttrSlot, SeqToken};
use crate::fs::cache::probe::Probe;
use crate::fs::inode::Inode;
use crate::fs::inode::refs::By;
use crate::fs::inode::state::InodeState;
use crate::fs::policy::names;
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::pmem::Region;
use pramfs_medium::types::{Attr, Ino};

impl Engine {
    /// Returns the attributes of an inode.
    ///
    /// # Errors
    /// [`Error::Stale`] if no inode has this number.
    pub fn getattr(&self, ino: Ino) -> Result<Attr> {
        match self.cache.names.attrs.get(ino) {
            Some(attr) if self.is_up() => Ok(attr),
            _ => self.getattr_locked(ino),
        }
    }

    fn getattr_locked(&self, ino: Ino) -> Result<Attr> {
        self.op(Need::Read, || {
            let inode = self.iget_user(ino)?;
            let state = inode.state.read();
            state.alive(ino)?;
            Ok(self.publish(&inode, &state, None))
        })
    }

    /// Finds a name in a directory, including `.` and `..`.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::NameTooLong`].
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        match self.known(parent, name) {
            Some((attr, _)) => Ok(attr),
            None => self.lookup_locked(parent, name),
        }
    }

    fn lookup_locked(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.op(Need::Read, || self.lookup_inode(parent, name, None))
    }

    /// As [`lookup`](Self::lookup), and takes a reference before the inode can be
    /// removed.
    pub(crate) fn lookup_with_ref(&self, parent: Ino, name: &[u8], by: By) -> Result<Attr> {
        if let Some((attr, seen)) = self.known(parent, name) {
            // A removal hides the inode and then checks for references. Either it
            // finds this reference, or the check below fails.
            self.refs.add(attr.ino, 1, by);
            if self.cache.names.attrs.is_current(&seen) {
                return Ok(attr);
            }
            self.release_ref(attr.ino, 1, by);
        }
        self.op_with_ref(Need::Read, Some(by), || {
            self.lookup_inode(parent, name, Some(by))
        })
    }

    /// Looks a name up in the caches without a lock. `None` means only that the
    /// answer is not cached: the name may be missing, its inode changing, or the
    /// file system closed.
    #[inline(always)]
    fn known(&self, parent: Ino, name: &[u8]) -> Option<(Attr, SeqToken)> {
        let names = &self.cache.names;
        let found = names.find(&Probe::new(names.key, parent, name)?)?;
        self.is_up().then_some(found)
    }

    fn lookup_inode(&self, parent: Ino, name: &[u8], by: Option<By>) -> Result<Attr> {
        names::check_lookup(name)?;
        let mut probe = Probe::new(self.cache.names.key, parent, name);
        let dir = self.iget_user(parent)?;
        loop {
            let dir_state = dir.state.read();
            self.check_dir(&dir, &dir_state)?;
            let child: Arc<Inode> = match name {
                b"." => {
                    if let Some(by) = by {
                        self.refs.add(dir.ino, 1, by);
                    }
                    return Ok(self.publish(&dir, &dir_state, None));
                }
                // The former parent of a removed directory may have been reused.
                b".." if dir_state.disk.nlink == 0 => return Err(Error::NotFound),
                b".." => {
                    // Not an entry, so no directory lock keeps it; do not cache it.
                    probe = None;
                    // Not of a user: that would lock a file, if damage has put one here.
                    match Ino(dir_state.disk.parent_or_rdev) {
                        parent if parent < Ino::FIRST_FREE && parent != Ino::ROOT => {
                            return Err(Error::Stale(parent));
                        }
                        parent => self.iget(parent)?,
                    }
                }
                _ => {
                    let entry = self.entry(&dir_state, name)?.ok_or(Error::NotFound)?;
                    // Its slot is used below; the prefetch overlaps the search.
                    self.cache.names.attrs.prefetch(Ino(entry.ino));
                    let found = self.inode_of(&dir_state, name, Ino(entry.ino));
                    if let Err(Error::Corrupt { .. }) = found {
                        self.note_name(Ino(entry.ino), parent, name);
                    }
                    found?
                }
            };
            // The inode is known. Its lock may be lower than the directory's, so do
            // not wait for it while holding that.
            let grows = child.grows.load(Ordering::Acquire);
            let (state, probe) = match child.state.try_read().filter(|_| !grows) {
                Some(state) => (state, probe.as_ref()),
                None => {
                    drop(dir_state);
                    if grows {
                        self.merge_appended(&child)?;
                    }
                    (child.state.read(), None)
                }
            };
            if state.gone {
                continue;
            }
            if let Some(by) = by {
                self.refs.add(child.ino, 1, by);
            }
            return Ok(self.publish(&child, &state, probe));
        }
    }

    /// Returns the attributes of a locked inode and publishes them in the caches,
    /// also under a name if the caller holds the lock of its directory.
    fn publish(&self, inode: &Inode, state: &InodeState, name: Option<&Probe>) -> Attr {
        let attr = state.attr(&self.vol.geo);
        if Region::any_faults() || state.leases.window().is_some() {
            // After a fault the bytes may be zeros. The operation's end detects that,
            // but the caches would keep them. With an append window, the size changes
            // without a lock.
            return attr;
        }
        let names = &self.cache.names;
        // Before publishing, so that a later exclusive lock invalidates the slot.
        inode
            .state
            .set_attr_slot(|| AttrSlot::new(&names.attrs, inode.ino));
        names.publish(&attr, name);
        attr
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        MountOptions,
        inode::{Credentials, Fs},
    };
    use pramfs_medium::format::{FormatOptions, format};
    use pramfs_medium::pmem::HeapBackend;

    #[test]
    fn sync_invalidates_only_inodes_it_writes() {
        let region = Region::new("test", HeapBackend::boxed(4 << 20));
        format(&region, &FormatOptions::default()).unwrap();
        let options = MountOptions {
            background: false,
            ..MountOptions::default()
        };
        let fs = Fs::open(region, options).unwrap();
        let make = |name| fs.create(&Credentials::ROOT, Ino::ROOT, name, 0o644);
        let (idle, lags) = (make(b"a").unwrap().ino, make(b"b").unwrap().ino);
        fs.write(&Credentials::ROOT, lags, 0, &[1; 4096]).unwrap();
        // An overwrite in place leaves its times newer in memory.
        fs.write(&Credentials::ROOT, lags, 0, &[2; 4096]).unwrap();
        for ino in [idle, lags] {
            fs.getattr(ino).unwrap();
        }
        let known = |ino| fs.cache.names.attrs.get(ino).is_some();
        assert!(known(idle) && known(lags));
        fs.sync().unwrap();
        assert!(known(idle) && !known(lags));
    }
}
