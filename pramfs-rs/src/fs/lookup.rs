//! lookup and getattr.

use std::sync::Arc;

use super::attr_cache::{AttrSlot, SeqToken};
use super::dcache::Probe;
use super::inode::{Inode, InodeState};
use super::refs::By;
use super::{Engine, Need, names};
use crate::error::{Error, Result};
use crate::pmem::Region;
use crate::types::{Attr, Ino};

impl Engine {
    /// Attributes of an inode.
    ///
    /// # Errors
    /// [`Error::Stale`] for a number that names nothing.
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

    /// An inode to be held, in memory for as long as that.
    ///
    /// # Errors
    /// As for [`getattr`](Self::getattr).
    pub(crate) fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        self.op(Need::Read, || {
            let inode = self.iget_user(ino)?;
            inode.state.read().alive(ino)?;
            Ok(inode)
        })
    }

    /// Finds a name in a directory; `.` and `..` too.
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

    /// As [`lookup`](Self::lookup), with a reference (see
    /// [`unpin`](Self::unpin)) taken before any_group can remove the inode.
    ///
    /// # Errors
    /// As for [`lookup`](Self::lookup).
    #[inline]
    pub fn lookup_pinned(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.lookup_by(parent, name, By::Count)
    }

    /// As [`lookup`](Self::lookup), with a reference taken before any_group can
    /// remove the inode.
    pub(crate) fn lookup_by(&self, parent: Ino, name: &[u8], by: By) -> Result<Attr> {
        if let Some((attr, seen)) = self.known(parent, name) {
            // Who removes the name hides the inode and then asks for references:
            // either it meets this one, or what was seen is shown no more.
            self.refs.add(attr.ino, 1, by);
            if self.cache.names.attrs.is_current(&seen) {
                return Ok(attr);
            }
            self.release_ref(attr.ino, 1, by);
        }
        self.op_pinned(Need::Read, by, || self.lookup_inode(parent, name, Some(by)))
    }

    /// What a name leads to, without a lock. `None` says nothing: the name may
    /// not be there, its inode be changing, or the file system have ended.
    #[inline(always)]
    fn known(&self, parent: Ino, name: &[u8]) -> Option<(Attr, SeqToken)> {
        let names = &self.cache.names;
        let found = names.find(&Probe::new(names.key, parent, name)?)?;
        self.is_up().then_some(found)
    }

    fn lookup_inode(&self, parent: Ino, name: &[u8], pin: Option<By>) -> Result<Attr> {
        names::check_lookup(name)?;
        let mut probe = Probe::new(self.cache.names.key, parent, name);
        let dir = self.iget_user(parent)?;
        loop {
            let dir_state = dir.state.read();
            self.check_dir(&dir, &dir_state)?;
            let child: Arc<Inode> = match name {
                b"." => {
                    if let Some(by) = pin {
                        self.refs.add(dir.ino, 1, by);
                    }
                    return Ok(self.publish(&dir, &dir_state, None));
                }
                // Where a removed directory stood may be anything by now.
                b".." if dir_state.disk.nlink == 0 => return Err(Error::NotFound),
                b".." => {
                    // No entry, and kept by no directory's lock.
                    probe = None;
                    self.iget_user(Ino(dir_state.disk.parent_or_rdev))?
                }
                _ => {
                    let entry = self.entry(&dir_state, name)?.ok_or(Error::NotFound)?;
                    // Where it is going to be shown; finding it takes as long.
                    self.cache.names.attrs.prefetch(Ino(entry.ino));
                    let found = self.inode_of(&dir_state, name, Ino(entry.ino));
                    if let Err(Error::Corrupt { .. }) = found {
                        self.note_name(Ino(entry.ino), parent, name);
                    }
                    found?
                }
            };
            // Which inode it is, is settled; its lock may be lower than the
            // directory's and is not waited for under that.
            let (state, probe) = match child.state.try_read() {
                Some(state) => (state, probe.as_ref()),
                None => {
                    drop(dir_state);
                    (child.state.read(), None)
                }
            };
            if state.gone {
                continue;
            }
            if let Some(by) = pin {
                self.refs.add(child.ino, 1, by);
            }
            return Ok(self.publish(&child, &state, probe));
        }
    }

    /// Attributes of a locked inode, which the caches show from now on, by a
    /// name if the lock of its directory is held too.
    fn publish(&self, inode: &Inode, state: &InodeState, name: Option<&Probe>) -> Attr {
        let attr = state.attr(&self.vol.geo);
        if Region::any_faults() {
            // What was found may have been zeros; the end of this operation will
            // tell, and the caches would not forget.
            return attr;
        }
        let names = &self.cache.names;
        // Before it is shown: whoever locks the inode after this finds out.
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
    use crate::format::{FormatOptions, format};
    use crate::pmem::HeapBackend;
    use crate::{
        MountOptions,
        inode::{Ctx, Fs},
    };

    #[test]
    fn sync_invalidates_only_inodes_it_writes() {
        let region = Region::new("test", HeapBackend::boxed(4 << 20));
        format(&region, &FormatOptions::default()).unwrap();
        let options = MountOptions {
            background: false,
            ..MountOptions::default()
        };
        let fs = Fs::open(region, options).unwrap();
        let make = |name| fs.create(&Ctx::default(), Ino::ROOT, name, 0o644);
        let (idle, lags) = (make(b"a").unwrap().ino, make(b"b").unwrap().ino);
        fs.write(lags, 0, &[1; 4096]).unwrap();
        // In place: its times are newer in memory.
        fs.write(lags, 0, &[2; 4096]).unwrap();
        for ino in [idle, lags] {
            fs.getattr(ino).unwrap();
        }
        let known = |ino| fs.cache.names.attrs.get(ino).is_some();
        assert!(known(idle) && known(lags));
        fs.sync().unwrap();
        assert!(known(idle) && !known(lags));
    }
}
