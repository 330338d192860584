//! lookup and getattr.

use std::sync::Arc;

use super::dcache::Probe;
use super::inode::Inode;
use super::{Need, Shared, names};
use crate::error::{Error, Result};
use crate::types::{Attr, Ino};

impl Shared {
    /// Attributes of an inode.
    ///
    /// # Errors
    /// [`Error::Stale`] for a number that names nothing.
    pub fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.op(Need::Read, || {
            let inode = self.iget_user(ino)?;
            let core = inode.core.read();
            core.alive(ino)?;
            Ok(core.attr(&self.vol.geo))
        })
    }

    /// An inode to be held, in memory for as long as that.
    ///
    /// # Errors
    /// As for [`getattr`](Self::getattr).
    pub(crate) fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        self.op(Need::Read, || {
            let inode = self.iget_user(ino)?;
            inode.core.read().alive(ino)?;
            Ok(inode)
        })
    }

    /// Finds a name in a directory; `.` and `..` too.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::NameTooLong`].
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.op(Need::Read, || self.lookup_inode(parent, name, false))
    }

    /// As [`lookup`](Self::lookup), with a reference (see
    /// [`unpin`](Self::unpin)) taken before anybody can remove the inode.
    ///
    /// # Errors
    /// As for [`lookup`](Self::lookup).
    pub fn lookup_pinned(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.op_pinned(Need::Read, || self.lookup_inode(parent, name, true))
    }

    fn lookup_inode(&self, parent: Ino, name: &[u8], pin: bool) -> Result<Attr> {
        names::check_lookup(name)?;
        let probe = Probe::new(self.cache.names.key, parent, name);
        if let Some(probe) = &probe {
            self.cache.names.prefetch(probe);
        }
        let dir = self.iget_user(parent)?;
        if let Some(attr) = probe.as_ref().and_then(|p| self.known(&dir, p, pin)) {
            return Ok(attr);
        }
        loop {
            let pc = dir.core.read();
            self.check_dir(&dir, &pc)?;
            let child: Arc<Inode> = match name {
                b"." => {
                    if pin {
                        self.refs.add(dir.ino, 1);
                    }
                    return Ok(pc.attr(&self.vol.geo));
                }
                // Where a removed directory stood may be anything by now.
                b".." if pc.d.nlink == 0 => return Err(Error::NotFound),
                b".." => self.iget_user(Ino(pc.d.parent_or_rdev))?,
                _ => {
                    let child = self.entry_inode(&pc, name)?.ok_or(Error::NotFound)?;
                    if let Some(probe) = &probe {
                        self.cache.names.put(probe, pc.d.generation, &child);
                    }
                    child
                }
            };
            // Which inode it is, is settled; its lock may be lower than the
            // directory's and is not waited for under that.
            let core = match child.core.try_read() {
                Some(core) => core,
                None => {
                    drop(pc);
                    child.core.read()
                }
            };
            if core.gone {
                continue;
            }
            if pin {
                self.refs.add(child.ino, 1);
            }
            return Ok(core.attr(&self.vol.geo));
        }
    }

    /// What a name leads to, by the dentry cache. `None` says nothing: the
    /// name may not be there, or a lock not be free.
    #[inline]
    fn known(&self, dir: &Inode, probe: &Probe, pin: bool) -> Option<Attr> {
        let pc = dir.core.try_read()?;
        if pc.gone || !pc.is_dir() {
            return None;
        }
        let attr = |child: &Arc<Inode>| {
            let core = child.core.try_read()?;
            if core.gone {
                return None;
            }
            child.note_use();
            if pin {
                self.refs.add(child.ino, 1);
            }
            Some(core.attr(&self.vol.geo))
        };
        self.cache.names.with(probe, pc.d.generation, attr)?
    }
}
