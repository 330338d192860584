//! fsync, sync, and the times that may lag behind.

use std::sync::atomic::Ordering;

use super::inode::{Core, Inode, Lazy, put_inode};
use super::{Need, Shared};
use crate::error::{Error, Result};
use crate::types::Ino;

impl Shared {
    /// Puts the lazy times of a locked inode into a record of their own.
    pub(super) fn write_times(&self, inode: &Inode, core: &mut Core) -> Result<()> {
        if core.gone || !(core.lazy.mtime || core.lazy.atime) {
            return Ok(());
        }
        let mut tx = self.vol.begin_at(&inode.place);
        let mut new = core.d;
        put_inode(&mut tx, inode, core, &mut new)?;
        tx.commit()?;
        core.committed(&new);
        Ok(())
    }

    /// Writes the times that are due.
    pub(super) fn write_lazy(&self) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        self.op(Need::Write, || self.write_lazy_all(false))
    }

    /// Flushes what the last records of idle lanes have left in the processor's
    /// caches. That is durable by the journal already; but a page that goes bad
    /// should find as little of it as can be. The timer does this.
    ///
    /// # Errors
    /// Those of the region.
    pub fn settle(&self) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        self.op(Need::Write, || self.vol.journal.settle(&self.vol.region))
    }

    /// Writes lazy times; the lagging atimes too if `atime`. An inode whose times
    /// cannot be written keeps those of no other from it.
    ///
    /// # Errors
    /// The first of those that writing the times has met.
    pub(super) fn write_lazy_all(&self, atime: bool) -> Result<()> {
        let mut result = Ok(());
        let due = std::mem::take(&mut *self.lazy.lock());
        for ino in due {
            // An inode with lazy mtime stays in memory.
            let Some(inode) = self.cache.get(ino) else {
                continue;
            };
            inode.listed.store(false, Ordering::Relaxed);
            let mut core = inode.core.write();
            if core.lazy.mtime || atime {
                let written = self.write_times(&inode, &mut core);
                if core.lazy.mtime {
                    // Not written; for another time.
                    self.note_lazy(&inode);
                }
                result = result.and(written);
            }
        }
        if atime {
            // The exclusive lock only where it is needed: it empties the caches.
            let lags = |inode: &Inode| inode.core.read().lazy != Lazy::default();
            for inode in self.cache.all().iter().filter(|i| lags(i)) {
                let written = self.write_times(inode, &mut inode.core.write());
                result = result.and(written);
            }
        }
        result
    }

    /// Everything about a file is on the medium. Data and metadata are durable
    /// already when their operation returns; what remains are times, and the
    /// write-out of media that are not flushed by cache lines.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::Io`].
    pub fn fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        self.op(Need::Write, || {
            let inode = self.iget_user(ino)?;
            if !data_only {
                let lazy = inode.core.read().lazy;
                if lazy.mtime || lazy.atime {
                    self.write_times(&inode, &mut inode.core.write())?;
                }
            }
            self.sync_medium()
        })
    }

    /// As [`fsync`](Self::fsync), for everything.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sync(&self) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        self.op(Need::Write, || {
            self.free_forgotten_inodes();
            self.write_lazy_all(true)?;
            self.sync_medium()
        })
    }

    pub(super) fn sync_medium(&self) -> Result<()> {
        self.vol
            .region
            .backend()
            .sync_all()
            .map_err(|e| Error::Io(format!("msync: {e}")))
    }
}
