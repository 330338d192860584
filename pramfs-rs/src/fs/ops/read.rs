//! Reading files: by copy, or by lending bytes of the medium.

use std::sync::atomic::Ordering;

use crate::fs::cache::extent_cache::ExtentCache;
use crate::fs::inode::Inode;
use crate::fs::inode::lock::Snapshot;
use crate::fs::inode::state::{InodeState, check_file};
use crate::fs::options::AtimePolicy;
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::map;
use pramfs_medium::pmem::RegionAccess as _;
use pramfs_medium::pmem::{Lent, PmemError, Region};
use pramfs_medium::sync::RwLockReadGuard;
use pramfs_medium::types::{Ino, RegionOffset};

impl Engine {
    /// Copies bytes of a file out. Returns the number of bytes up to the end of the
    /// file or the first lost byte. Holes and unwritten blocks read as zeros.
    ///
    /// # Errors
    /// [`Error::IsDirectory`], [`Error::Invalid`] if it is not a regular file,
    /// [`Error::Lost`] if the first byte was lost, [`Error::Corrupt`].
    pub fn read(&self, ino: Ino, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.op(Need::Read, || {
            self.read_inode(&*self.iget_user(ino)?, offset, into)
        })
    }

    /// As [`read`](Self::read), for a caller that holds the inode. Takes no lock
    /// unless a writer interferes.
    #[inline]
    pub(crate) fn read_from_file(
        &self,
        inode: &Inode,
        extents: &ExtentCache,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize> {
        if self.vol.geo.data_sums {
            return self.read_summed(inode, extents, offset, into);
        }
        match self.read_known(inode, extents, offset, into, Region::read_wide) {
            Some(n) => Ok(n),
            None => self.read_slow(inode, extents, offset, into),
        }
    }

    /// Reads a range within the file whose place is cached. Returns `None`, with
    /// `into` undefined, if the place is not cached, if `copy` fails, or as
    /// [`read_unlocked`](Self::read_unlocked) does.
    ///
    /// This is the fast path, where single instructions count. It contains nothing
    /// else, so that with a `copy` without calls no registers are saved.
    #[inline(always)]
    fn read_known(
        &self,
        inode: &Inode,
        extents: &ExtentCache,
        offset: u64,
        into: &mut [u8],
        copy: impl FnOnce(&Region, u64, &mut [u8]) -> bool,
    ) -> Option<usize> {
        if !self.open.is_open() {
            return None;
        }
        let size_snapshot = inode.state.size_snapshot()?;
        if self.atime.threshold() > size_snapshot.atime_until {
            return None;
        }
        let end = offset.checked_add(into.len() as u64)?;
        if end > size_snapshot.size {
            return None;
        }
        let at = self
            .lookup_extent(extents, size_snapshot.records, offset, into.len())?
            .0;
        let done = copy(&self.vol.region, at, into) && self.validate(inode, size_snapshot.changes);
        done.then_some(into.len())
    }

    /// As [`read_from_file`](Self::read_from_file), with checksums of the data.
    #[inline(never)]
    fn read_summed(
        &self,
        inode: &Inode,
        extents: &ExtentCache,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize> {
        let known = self.read_known_sums(inode, extents, offset, into);
        match known.or_else(|| self.read_unlocked(inode, extents, offset, into)) {
            Some(n) => Ok(n),
            None => self.op(Need::Read, || self.read_inode(inode, offset, into)),
        }
    }

    /// As [`read_known`](Self::read_known), and compares the bytes with their sums. `None` if
    /// one is wrong: without the lock, a writer may have interfered.
    #[inline]
    fn read_known_sums(
        &self,
        inode: &Inode,
        extents: &ExtentCache,
        offset: u64,
        into: &mut [u8],
    ) -> Option<usize> {
        let size = inode.state.size_snapshot()?.size;
        let copy = |region: &Region, at: u64, into: &mut [u8]| {
            let block = self.vol.geo.block_at(RegionOffset(at));
            // The word arrives while the bytes are copied.
            if let Ok(word) = self.vol.blocks.sum_at(self.vol.medium(), block) {
                region.prefetch(word.0);
            }
            let copied = region.read_wide(at, into) || region.read(at, into).is_ok();
            let is_right = |into: &mut [u8]| {
                let right = self.compare_run(inode.ino, size, block, offset, into);
                matches!(right, Ok(n) if n == into.len())
            };
            copied && (inode.is_unsummed(&self.vol.geo, offset, into.len()) || is_right(into))
        };
        self.read_known(inode, extents, offset, into, copy)
    }

    #[inline(never)]
    fn read_slow(
        &self,
        inode: &Inode,
        extents: &ExtentCache,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize> {
        let copy = |region: &Region, at, into: &mut [u8]| region.read(at, into).is_ok();
        let known = self.read_known(inode, extents, offset, into, copy);
        match known.or_else(|| self.read_unlocked(inode, extents, offset, into)) {
            Some(n) => Ok(n),
            None => self.op(Need::Read, || self.read_inode(inode, offset, into)),
        }
    }

    /// Takes a snapshot of a file for a read without a lock. `None` if the file
    /// system is closed, a writer interferes, or the atime may be due.
    #[inline]
    fn snapshot(&self, inode: &Inode) -> Option<Snapshot> {
        if !self.open.is_open() {
            return None;
        }
        let snapshot = inode.state.snapshot(inode.ino)?;
        match self.atime.policy() {
            AtimePolicy::NoAtime => Some(snapshot),
            AtimePolicy::Relatime if self.about_now() < snapshot.atime_until => Some(snapshot),
            AtimePolicy::Relatime | AtimePolicy::StrictAtime => None,
        }
    }

    /// Whether the bytes read since a snapshot are valid. A change that fails
    /// half-way marks the volume as failed before it releases its lock.
    #[inline]
    fn validate(&self, inode: &Inode, changes: u64) -> bool {
        inode.state.validate(changes) && !self.vol.has_failed()
    }

    /// Reads without a lock, see [`inode_lock`](crate::fs::inode::lock). Returns `None`,
    /// with `into` undefined, if a writer interfered, the atime is due, or an error
    /// occurred that the locked path will report.
    fn read_unlocked(
        &self,
        inode: &Inode,
        extents: &ExtentCache,
        offset: u64,
        into: &mut [u8],
    ) -> Option<usize> {
        let snapshot = self.snapshot(inode)?;
        let left = snapshot.size.saturating_sub(offset);
        let len = usize::try_from(left).map_or(into.len(), |left| left.min(into.len()));
        let is_current = || self.validate(inode, snapshot.changes);
        if let Some(at) = self.lookup_extent(extents, snapshot.records, offset, len) {
            self.vol.medium().read(at, &mut into[..len]).ok()?;
            if self.vol.geo.data_sums && !inode.is_unsummed(&self.vol.geo, offset, len) {
                let (size, block) = (snapshot.size, self.vol.geo.block_at(at));
                let bytes = &mut into[..len];
                let right = self.compare_run(inode.ino, size, block, offset, bytes);
                if right.ok()? != len {
                    return None;
                }
            }
            return is_current().then_some(len);
        }
        // Counting the blocks of a file needs its lock.
        let hole = || match inode.complete.is_known() {
            true => Ok(()),
            false => Err(Error::Stale(inode.ino)),
        };
        let read = self.read_map(&snapshot.map, offset, &mut into[..len], hole);
        if read.ok()? != len {
            return None;
        }
        if self.vol.geo.data_sums && !inode.is_unsummed(&self.vol.geo, offset, len) {
            let right = self.compare(&snapshot.map, snapshot.size, offset, &mut into[..len]);
            if right.ok()? != len {
                return None;
            }
        }
        if len != 0 {
            self.fill_extent(
                extents,
                snapshot.records,
                &snapshot.map,
                offset,
                len,
                is_current,
            );
        }
        is_current().then_some(len)
    }

    #[inline]
    fn read_inode(&self, inode: &Inode, offset: u64, into: &mut [u8]) -> Result<usize> {
        let state = self.open_for_read(inode)?;
        let left = state.disk.size.saturating_sub(offset);
        let len = usize::try_from(left).map_or(into.len(), |left| left.min(into.len()));
        let hole = || self.check_hole_of(inode, &state);
        let read = |into: &mut [u8]| self.read_data(&state, offset, into, hole);
        match read(&mut into[..len]) {
            // As before a lost range: the bytes up to the failed page.
            Err(e @ Error::Pmem(PmemError::Faulted { .. })) => {
                match self.readable_part(&state, offset, len)? {
                    Some(part) if part < len => read(&mut into[..part]),
                    _ => Err(e),
                }
            }
            done => done,
        }
    }

    /// Copies a range of a locked file out, as [`read_map`](Self::read_map), and compares it
    /// with its sums. Returns the number of bytes before the first that is lost or wrong.
    ///
    /// # Errors
    /// [`Error::Lost`] or [`Error::WrongSum`] for the first bytes.
    #[inline]
    pub(crate) fn read_data(
        &self,
        state: &InodeState,
        offset: u64,
        into: &mut [u8],
        hole: impl Fn() -> Result<()>,
    ) -> Result<usize> {
        let n = self.read_map(&state.map(), offset, into, hole)?;
        match self.vol.geo.data_sums {
            true => self.compare_locked(state, offset, &mut into[..n]),
            false => Ok(n),
        }
    }

    /// Lends the bytes of a range, on the medium itself, to `f` while `f` runs. The
    /// range ends at the end of the file. Returns `None` without calling `f` if the
    /// bytes
    ///
    /// - are not contiguous,
    /// - are not written,
    /// - were lost,
    /// - have checksums (`data_checksums`),
    /// - may be visible through a direct mapping, or
    /// - are on a medium that no system call can read (physical memory).
    ///
    /// Writers of the file wait for `f`, and so do calls that map it for writing. `f` must
    /// not call the file system: a call could wait for a thread that waits for `f`. With
    /// debug assertions, a call of another file system panics, too, since the lock order
    /// does not tell them apart.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn with_contiguous(
        &self,
        ino: Ino,
        offset: u64,
        len: usize,
        f: &mut dyn FnMut(Lent<'_>),
    ) -> Result<Option<usize>> {
        self.op(Need::Read, || {
            let inode = self.iget_user(ino)?;
            let state = self.open_for_read(&inode)?;
            let len = state.disk.size.saturating_sub(offset).min(len as u64);
            if len == 0 {
                f(Lent::empty());
                return Ok(Some(0));
            }
            // Mappings are created under the exclusive lock: none exists, and none
            // can be created meanwhile.
            // Bytes with checksums are compared in the buffer of the reader.
            let lendable = self.vol.region.is_lendable() && !self.vol.geo.data_sums;
            if !self.vol.pins.is_empty() || !lendable {
                return Ok(None);
            }
            let (geo, map) = (&self.vol.geo, state.map());
            let (first, last) = (geo.file_block(offset), geo.file_block(offset + len - 1));
            let extent = map::run(&self.vol, &map, first, last - first + 1)?;
            let Some(block) = extent.block.filter(|_| !extent.unwritten) else {
                return Ok(None);
            };
            // A run ends at its pointer block; the next run may continue it.
            let mut count = extent.count;
            while first + count <= last {
                let extent = map::run(&self.vol, &map, first + count, last - (first + count) + 1)?;
                if extent.unwritten || extent.block.is_none_or(|b| b != block.after(count)) {
                    return Ok(None);
                }
                count += extent.count;
            }
            let at = geo.offset(block) + (offset - geo.file_offset(first));
            f(self.vol.region.lend(at.0, len)?);
            Ok(Some(len as usize))
        })
    }

    /// Takes the lock of a read. Sets the atime before the read: a lending read may
    /// answer its caller before it returns, and the caller must not see the old
    /// atime then.
    #[inline]
    fn open_for_read<'a>(&self, inode: &'a Inode) -> Result<RwLockReadGuard<'a, InodeState>> {
        if inode.grows.load(Ordering::Acquire) {
            self.merge_appended(inode)?;
        }
        let state = inode.state.read();
        check_file(inode.ino, &state)?;
        if !self.atime_due(&state) {
            return Ok(state);
        }
        drop(state);
        self.touch_atime(inode);
        let state = inode.state.read();
        check_file(inode.ino, &state)?;
        Ok(state)
    }
}
