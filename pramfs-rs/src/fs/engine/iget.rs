//! Inodes by number, from memory or from the medium.
//!
//! Invariant: an inode is returned only if its bit on the medium is set and its home passes
//! the checks, or if the bitmap is damaged and the inode has names. The inode may be gone
//! by the time that the caller locks it; the caller checks that
//! ([`InodeState::alive`](crate::fs::inode::state::InodeState::alive)). The cache is in
//! [`inode::cache`](crate::fs::inode::cache).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Engine, Need};
use crate::fs::inode::Inode;
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::media::inode::FL_UNSUMMED;
use pramfs_medium::types::Ino;

impl Engine {
    /// Returns an inode by number, from memory or from the medium.
    #[inline]
    pub(crate) fn iget(&self, ino: Ino) -> Result<Arc<Inode>> {
        if let Some(inode) = self.cache.get(ino) {
            return Ok(inode);
        }
        self.iget_slow(ino)
    }

    #[cold]
    fn iget_slow(&self, ino: Ino) -> Result<Arc<Inode>> {
        match self.load(ino) {
            // mkfs creates these.
            Err(Error::Stale(_)) if ino < Ino::FIRST_FREE => Err(Error::corrupt(
                Damage::ReservedInodeFree,
                ino,
                "the file system has no such inode, and needs it",
            )),
            found => found,
        }
    }

    fn load(&self, ino: Ino) -> Result<Arc<Inode>> {
        self.cache.get_or_load(&self.vol, ino, || {
            // The bit on the medium counts. In memory it is also set for numbers
            // that are allocated but not committed, or freed by a record that is
            // not dead.
            let exists = self.vol.inodes.is_set_at_home(self.vol.medium(), ino.0);
            if let Ok(false) = exists {
                return Err(Error::Stale(ino));
            }
            // The table grows before the bit is set, so a set bit without a block
            // is damage.
            let home = match self.table.home(&self.vol, ino) {
                Err(Error::Stale(_)) if matches!(exists, Ok(true)) => {
                    return Err(Error::corrupt(
                        Damage::InodeMissing,
                        ino,
                        "it is in use, but the inode table has no block for it",
                    ));
                }
                home => home?,
            };
            let d = Inode::load(&self.vol, ino, home)?;
            if let Err(e) = exists {
                // The bitmap is damaged. A valid inode that has names can still be
                // used; only its bit cannot be changed.
                if d.nlink == 0 {
                    return Err(e);
                }
                if ino >= Ino::FIRST_FREE {
                    self.note_damage(&e);
                }
            }
            if d.flags & FL_UNSUMMED != 0 && self.vol.geo.data_sums {
                self.marks.note(ino);
            }
            Ok(Inode::new(ino, home, d))
        })
    }

    /// As [`iget`](Self::iget), for a number from a caller: internal inodes are
    /// stale. What the holder of a lease has appended is merged. Locks the inode for that, so
    /// the caller holds no lock of a file.
    #[inline]
    pub(crate) fn iget_user(&self, ino: Ino) -> Result<Arc<Inode>> {
        if ino < Ino::FIRST_FREE && ino != Ino::ROOT {
            return Err(Error::Stale(ino));
        }
        let inode = self.iget(ino)?;
        if inode.grows.load(Ordering::Acquire) {
            self.merge_appended(&inode)?;
        }
        Ok(inode)
    }

    /// Runs a change of a directory. Reuses the directory that this lane changed
    /// last, which takes two atomic read-modify-writes where the inode cache takes
    /// four. The cached `Arc` prevents eviction, not deletion, hence the check for
    /// `Stale`.
    #[inline]
    pub(crate) fn with_dir<T>(
        &self,
        parent: Ino,
        change: impl Fn(&Arc<Inode>) -> Result<T>,
    ) -> Result<T> {
        let last = &self.last_dirs[self.vol.journal.thread_lane() as usize];
        // Never waits: if another thread of this lane holds it, the inode cache is
        // used instead.
        let mut last = last.try_lock();
        let cached = last.as_mut().and_then(|last| last.take());
        if let Some(dir) = cached.filter(|d| d.ino == parent) {
            let done = change(&dir);
            // If the cached directory was deleted, another inode may have its number.
            if !matches!(&done, Err(Error::Stale(ino)) if *ino == parent) {
                dir.note_use();
                if let Some(last) = &mut last {
                    **last = Some(dir);
                }
                return done;
            }
        }
        let dir = self.iget_user(parent)?;
        let done = change(&dir);
        if let Some(last) = &mut last {
            **last = Some(dir);
        }
        done
    }

    /// Returns an inode; it stays in memory as long as the caller holds it.
    pub(crate) fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        self.op(Need::Read, || {
            let inode = self.iget_user(ino)?;
            inode.state.read().alive(ino)?;
            Ok(inode)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::Credentials;
    use crate::{MountOptions, inode::Fs};
    use pramfs_medium::format::{FormatOptions, format};
    use pramfs_medium::journal::set_thread_lane;
    use pramfs_medium::pmem::{HeapBackend, Region};

    #[test]
    fn dir_cache_detects_inode_reuse() {
        let region = Region::new("dir cache", HeapBackend::boxed(16 << 20));
        format(&region, &FormatOptions::default()).unwrap();
        let options = MountOptions {
            background: false,
            ..MountOptions::default()
        };
        let fs = Fs::open(region, options).unwrap();
        assert!(
            fs.vol.geo.lanes > 1,
            "both threads would share one cached directory"
        );
        let ctx = Credentials::ROOT;
        set_thread_lane(0);
        let old = fs.mkdir(&ctx, Ino::ROOT, b"old", 0o755).unwrap();
        fs.create(&ctx, old.ino, b"file", 0o644).unwrap();
        fs.unlink(old.ino, b"file").unwrap();
        let elsewhere = |f: &(dyn Fn() -> Ino + Sync)| {
            std::thread::scope(|s| {
                s.spawn(|| {
                    set_thread_lane(1);
                    f()
                })
                .join()
                .unwrap()
            })
        };
        let new = elsewhere(&|| {
            fs.rmdir(Ino::ROOT, b"old").unwrap();
            fs.vol.retire_pending().unwrap();
            fs.mkdir(&ctx, Ino::ROOT, b"new", 0o755).unwrap().ino
        });
        assert_eq!(new, old.ino, "the inode number was not reused");
        let file = fs.create(&ctx, new, b"file", 0o644).unwrap();
        assert_eq!(fs.lookup(new, b"file").unwrap().ino, file.ino);
        fs.unlink(new, b"file").unwrap();
        elsewhere(&|| {
            fs.rmdir(Ino::ROOT, b"new").unwrap();
            new
        });
        let late = fs.create(&ctx, new, b"file", 0o644);
        assert!(matches!(late, Err(Error::Stale(_))), "{late:?}");
        fs.close().unwrap();
    }
}
