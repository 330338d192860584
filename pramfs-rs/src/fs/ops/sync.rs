//! fsync, sync, and lazy times.

use pramfs_medium::pmem::RegionAccess as _;
use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::fs::inode::Inode;
use crate::fs::inode::state::{InodeState, Lazy};
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::types::Ino;

impl Engine {
    /// Puts the lazy times of a locked inode into a record of their own.
    pub(crate) fn write_times(&self, inode: &Inode, state: &mut InodeState) -> Result<()> {
        if state.gone || !(state.lazy.mtime || state.lazy.atime) {
            return Ok(());
        }
        self.change(inode, state, |_, _| Ok(()))
    }

    /// Writes the lazy mtimes that are due.
    pub(crate) fn write_lazy(&self) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        self.op(Need::Write, || self.write_lazy_all(false))
    }

    /// Flushes the after-images of the last records of idle lanes from the
    /// processor's caches. The journal already makes them durable; the flush limits
    /// the loss if a page fails. The timer calls this.
    ///
    /// # Errors
    /// Those of the region.
    pub fn settle(&self) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        self.op(Need::Write, || self.vol.journal.settle(&self.vol.region))
    }

    /// Writes lazy times, including atimes if `atime` is true. Continues with the
    /// other inodes if the times of one cannot be written.
    ///
    /// # Errors
    /// The first error of a write.
    pub(crate) fn write_lazy_all(&self, atime: bool) -> Result<()> {
        let survivor = self.options.survivor.as_ref();
        // Before the list is taken: whatever is listed meanwhile stays listed.
        let end = survivor.map(|kept| kept.end_of_lazy());
        let mut result = Ok(());
        let due = std::mem::take(&mut *self.lazy.lock());
        for ino in due {
            // An inode with lazy mtime stays in memory.
            let Some(inode) = self.cache.get(ino) else {
                continue;
            };
            inode.listed.store(false, Ordering::Relaxed);
            let mut state = inode.state.write();
            if state.lazy.mtime || atime {
                let written = self.write_times(&inode, &mut state);
                if state.lazy.mtime {
                    // Not written; list it again.
                    self.note_lazy(&inode);
                }
                result = result.and(written);
            }
        }
        if let (Ok(()), Some(kept), Some(end)) = (&result, survivor, end) {
            kept.lazy_are_written(end);
        }
        if atime {
            // The exclusive lock only if needed, since it invalidates the caches.
            let lags = |inode: &Inode| inode.state.read().lazy != Lazy::default();
            for inode in self.cache.all().iter().filter(|i| lags(i)) {
                let written = self.write_times(inode, &mut inode.state.write());
                result = result.and(written);
            }
        }
        result
    }

    /// Makes a file completely durable. Data and metadata are already durable when
    /// their operation returns. This call writes lazy times, and syncs media that
    /// are not flushed by cache lines. After damage it writes no times, but still
    /// syncs completed writes.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::Io`].
    pub fn fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        if self.is_read_only() {
            return self.sync_written();
        }
        self.op(Need::Write, || {
            let inode = self.iget_user(ino)?;
            if !data_only {
                let lazy = inode.state.read().lazy;
                if lazy.mtime || lazy.atime {
                    self.write_times(&inode, &mut inode.state.write())?;
                }
            }
            self.sync_medium()
        })
    }

    /// Makes durable what the holder of a lease to write has stored to a range of a file, for a
    /// holder that cannot flush by itself, and sets mtime and ctime.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::Io`]; those of the medium.
    pub fn persist_stores(&self, ino: Ino, range: Range<u64>) -> Result<()> {
        self.op(Need::Write, || {
            let inode = self.iget_user(ino)?;
            let mut state = inode.state.write();
            if self.flush_range(&inode, &state, range.clone())? {
                self.touch_lazily(&inode, &mut state);
            }
            Ok(())
        })
    }

    /// As [`persist_stores`](Self::persist_stores), and leaves the times alone: whoever has
    /// stored sets them, or there may have been no store.
    ///
    /// # Errors
    /// Those of [`persist_stores`](Self::persist_stores).
    pub fn flush_stores(&self, ino: Ino, range: Range<u64>) -> Result<()> {
        self.op(Need::Read, || {
            let inode = self.iget_user(ino)?;
            let state = inode.state.read();
            self.flush_range(&inode, &state, range.clone()).map(drop)
        })
    }

    /// As [`fsync`](Self::fsync), for the whole file system.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sync(&self) -> Result<()> {
        if self.is_read_only() {
            return self.sync_written();
        }
        self.op(Need::Write, || {
            self.free_forgotten_inodes();
            self.write_lazy_all(true)?;
            self.sync_medium()
        })
    }

    /// Syncs the earlier writes of a mount that has become read-only. A mount that
    /// never wrote has nothing to sync.
    fn sync_written(&self) -> Result<()> {
        match self.quiet.load(Ordering::Relaxed) {
            true => Ok(()),
            false => self.op(Need::Read, || self.sync_medium()),
        }
    }

    pub(crate) fn sync_medium(&self) -> Result<()> {
        self.vol
            .region
            .backend()
            .sync_all()
            .map_err(|e| Error::io_failed("msync", e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        MountOptions,
        inode::{Credentials, Fs},
    };
    use pramfs_medium::error::Damage;
    use pramfs_medium::format::{FormatOptions, format};
    use pramfs_medium::pmem::{Region, SimBackend};

    /// Returns a mount that has written a file, after calling `stop`.
    fn written(sim: &SimBackend, stop: impl FnOnce(&Fs)) -> (Fs, Ino) {
        let region = Region::new("sync", Box::new(sim.clone()));
        format(&region, &FormatOptions::default()).unwrap();
        let options = MountOptions {
            background: false,
            ..MountOptions::default()
        };
        let fs = Fs::open(region, options).unwrap();
        let file = fs.create(&Credentials::ROOT, Ino::ROOT, b"file", 0o644);
        let ino = file.unwrap().ino;
        fs.append(&Credentials::ROOT, ino, b"bytes").unwrap();
        stop(&fs);
        (fs, ino)
    }

    fn damage(fs: &Fs) {
        fs.note_damage(&Error::corrupt(
            Damage::Unreadable,
            "something else",
            "it is damaged",
        ));
        assert!(fs.is_read_only());
    }

    /// On media where fences only order stores, only these calls write to the disk.
    #[test]
    fn sync_calls_msync_after_damage() {
        type Call = fn(Fs, Ino) -> Result<()>;
        let calls: [(&str, Call); 6] = [
            ("fsync", |fs, ino| {
                let synced = fs.fsync(ino, false);
                std::mem::forget(fs);
                synced
            }),
            ("sync", |fs, _| {
                let synced = fs.sync();
                std::mem::forget(fs);
                synced
            }),
            ("force_shutdown", |fs, _| {
                let down = fs.force_shutdown();
                std::mem::forget(fs);
                down
            }),
            ("close", |fs, _| fs.close_now()),
            ("drop", |fs, _| {
                drop(fs);
                Ok(())
            }),
            ("close after a failure", |fs, _| {
                fs.vol.fail();
                fs.close_now()
            }),
        ];
        for (name, call) in calls {
            let sim = SimBackend::new(4 << 20).unwrap();
            let (fs, ino) = written(&sim, damage);
            let before = sim.counters().msyncs;
            call(fs, ino).unwrap();
            assert!(sim.counters().msyncs > before, "{name}");
        }
    }

    #[test]
    fn read_only_mount_never_calls_msync() {
        let sim = SimBackend::new(4 << 20).unwrap();
        let (fs, ino) = written(&sim, |_| {});
        fs.close().unwrap();
        let read_only = MountOptions {
            read_only: true,
            ..MountOptions::default()
        };
        let region = Region::new("sync", Box::new(sim.clone()));
        let fs = Fs::open(region, read_only).unwrap();
        let before = sim.counters().msyncs;
        fs.fsync(ino, false).unwrap();
        fs.sync().unwrap();
        fs.close().unwrap();
        assert_eq!(sim.counters().msyncs, before);
    }
}
