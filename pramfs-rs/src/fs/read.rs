//! Reading files: by copy, and by lending the medium itself.

use super::extent_cache::{CachedExtent, ExtentCache};
use super::inode::{Inode, InodeState};
use super::inode_lock::Snapshot;
use super::options::AtimePolicy;
use super::{Engine, Need};
use crate::error::{Error, Result};
use crate::map::{self, MapRef, Part};
use crate::pmem::{Lent, Region};
use crate::sync::RwLockReadGuard;
use crate::types::{Bno, FileType, Ino};

impl Engine {
    /// Copies bytes of a file out; returns how many there were before its end, or
    /// before some that were lost. Holes and unwritten blocks read as zeros.
    ///
    /// # Errors
    /// [`Error::IsDirectory`], [`Error::Invalid`] for what is no regular file,
    /// [`Error::Lost`] where the first byte was lost, [`Error::Corrupt`].
    pub fn read(&self, ino: Ino, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.op(Need::Read, || {
            self.read_inode(&*self.iget_user(ino)?, offset, into)
        })
    }

    /// As [`read`](Self::read), for who holds the inode: without a lock where
    /// no writer is near.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    #[inline]
    pub(crate) fn read_held(
        &self,
        inode: &Inode,
        extents: &ExtentCache,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize> {
        match self.read_known(inode, extents, offset, into, Region::read_wide) {
            Some(n) => Ok(n),
            None => self.read_otherwise(inode, extents, offset, into),
        }
    }

    /// Reads a range within the file whose place is known. `None`, and anything
    /// in `into`, where it is not, where `copy` does not do it, or as for
    /// [`read_unlocked`](Self::read_unlocked).
    ///
    /// Nothing else is in here, and with a `copy` that calls nothing there are no
    /// registers to be saved: what stands between two copies is counted in
    /// instructions.
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
        if self.atime.line() > size_snapshot.atime_until {
            return None;
        }
        let end = offset.checked_add(into.len() as u64)?;
        if end > size_snapshot.size {
            return None;
        }
        let at = self.lookup_extent(extents, size_snapshot.records, (offset, into.len()))?;
        let done = copy(&self.vol.region, at, into) && self.validate(inode, size_snapshot.changes);
        done.then_some(into.len())
    }

    #[inline(never)]
    fn read_otherwise(
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

    /// A look at a file that needs no lock to be read.
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

    /// Whether what was read after a look is what the file has. A change that
    /// failed half-way says so before it gives its lock back.
    #[inline]
    fn validate(&self, inode: &Inode, changes: u64) -> bool {
        inode.state.validate(changes) && !self.vol.has_failed()
    }

    /// See [`inode_lock`](super::inode_lock). `None`, and anything in `into`,
    /// where a writer came between, the atime is due, or there is an error for
    /// the other way to find.
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
        let still = || self.validate(inode, snapshot.changes);
        if let Some(at) = self.lookup_extent(extents, snapshot.records, (offset, len)) {
            self.vol.region.read(at, &mut into[..len]).ok()?;
            return still().then_some(len);
        }
        // Who counts the blocks of a file needs its lock.
        let hole = || match inode.complete.is_known() {
            true => Ok(()),
            false => Err(Error::Stale(inode.ino)),
        };
        let read = self.read_map(&snapshot.map, offset, &mut into[..len], hole);
        if read.ok()? != len {
            return None;
        }
        if len != 0 {
            self.fill_extent(
                extents,
                snapshot.records,
                &snapshot.map,
                (offset, len),
                still,
            );
        }
        still().then_some(len)
    }

    /// Where a range of a file (offset and length) stands in the region, if
    /// that is known, and it lies in one written block or in a large leaf.
    #[inline]
    pub(super) fn lookup_extent(
        &self,
        extents: &ExtentCache,
        records: u64,
        (offset, len): (u64, usize),
    ) -> Option<u64> {
        let geo = &self.vol.geo;
        // Constants where they mostly are: fewer instructions.
        if geo.block_log2 == 12 {
            return known_in(extents, records, (offset, len), (12, 9));
        }
        self.known_in_small_blocks(extents, records, (offset, len))
    }

    #[cold]
    #[inline(never)]
    fn known_in_small_blocks(
        &self,
        extents: &ExtentCache,
        records: u64,
        range: (u64, usize),
    ) -> Option<u64> {
        let geo = &self.vol.geo;
        known_in(extents, records, range, (geo.block_log2, geo.fan_log2))
    }

    /// Keeps where a range of a file lies that was not known, unless `still`
    /// says that this may have changed meanwhile. Of a range of several blocks
    /// only a large leaf is of use.
    pub(super) fn fill_extent(
        &self,
        extents: &ExtentCache,
        records: u64,
        map: &MapRef,
        (offset, len): (u64, usize),
        still: impl FnOnce() -> bool,
    ) {
        let geo = &self.vol.geo;
        let index = offset >> geo.block_log2;
        let within = (index & ((1 << geo.fan_log2) - 1)) as usize;
        let one = (offset & (geo.block_size - 1)) + len as u64 <= geo.block_size;
        let known = match map::part(&self.vol, map, index) {
            Ok(Some(Part::Leaf(first))) => CachedExtent::Leaf(first),
            Ok(Some(Part::Table(table))) if one => {
                match map::in_table(&self.vol, map, table, index) {
                    Ok(Some(block)) => CachedExtent::Block(block),
                    _ => return,
                }
            }
            _ => return,
        };
        let part = index >> geo.fan_log2;
        extents.put(records, part, (within, 1 << geo.fan_log2), known, still);
    }

    #[inline]
    fn read_inode(&self, inode: &Inode, offset: u64, into: &mut [u8]) -> Result<usize> {
        let state = self.open_for_read(inode)?;
        let left = state.disk.size.saturating_sub(offset);
        let len = usize::try_from(left).map_or(into.len(), |left| left.min(into.len()));
        let hole = || self.check_hole_of(inode, &state);
        self.read_map(&state.map(), offset, &mut into[..len], hole)
    }

    /// Lends the bytes of a range to `f`, on the medium itself, for as long as
    /// `f` runs; the range ends at the end of the file. `None`, and `f` is not
    /// called, where they do not lie in one piece or are not written, were lost,
    /// or a direct mapping may show them.
    ///
    /// Nobody stores to the bytes meanwhile but by way of the region itself
    /// ([`Region::window`]): writers of the file and those who want a mapping of
    /// it for writing wait for `f`, which therefore calls neither.
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
            // Made under the exclusive lock: there is none, and none will be.
            if !self.vol.pins.is_empty() {
                return Ok(None);
            }
            let (log2, map) = (self.vol.geo.block_log2, state.map());
            let (first, last) = (offset >> log2, (offset + len - 1) >> log2);
            let extent = map::run(&self.vol, &map, first, last - first + 1)?;
            let Some(block) = extent.block.filter(|_| !extent.unwritten) else {
                return Ok(None);
            };
            // A run ends with its pointer block; the next may go on with it.
            let mut count = extent.count;
            while first + count <= last {
                let extent = map::run(&self.vol, &map, first + count, last - first - count + 1)?;
                if extent.unwritten || extent.block.is_none_or(|b| b.0 != block.0 + count) {
                    return Ok(None);
                }
                count += extent.count;
            }
            let at = self.vol.geo.offset(block) + (offset - (first << log2));
            f(self.vol.region.lend(at, len)?);
            Ok(Some(len as usize))
        })
    }

    /// Copies a range of a file map out; holes and unwritten blocks read as
    /// zeros. The caller knows where the file ends. `hole` is asked at each hole
    /// whether it can be one. Gives how many bytes come before what was lost.
    ///
    /// # Errors
    /// [`Error::Lost`] where that is the first of them.
    #[inline]
    pub(super) fn read_map(
        &self,
        map: &MapRef,
        mut offset: u64,
        mut into: &mut [u8],
        hole: impl Fn() -> Result<()>,
    ) -> Result<usize> {
        let geo = &self.vol.geo;
        let mut done = 0;
        while !into.is_empty() {
            let within = offset & (geo.block_size - 1);
            let index = offset >> geo.block_log2;
            let blocks = (within + into.len() as u64).div_ceil(geo.block_size);
            let extent = map::run(&self.vol, map, index, blocks)?;
            let bytes = (extent.count << geo.block_log2) - within;
            let n = usize::try_from(bytes).map_or(into.len(), |n| n.min(into.len()));
            let (now, rest) = into.split_at_mut(n);
            match extent.block {
                Some(block) if !extent.unwritten => {
                    self.vol.region.read(geo.offset(block) + within, now)?
                }
                Some(_) => now.fill(0),
                None if extent.lost && done == 0 => return Err(self.lost(map.ino, offset)),
                None if extent.lost => return Ok(done),
                None => {
                    hole()?;
                    now.fill(0);
                }
            }
            offset += n as u64;
            done += n;
            into = rest;
        }
        Ok(done)
    }

    #[cold]
    pub(super) fn lost(&self, ino: Ino, offset: u64) -> Error {
        Error::Lost { ino, offset }
    }

    /// The lock that a read holds. The atime is set before it and not after:
    /// what lends the bytes may have answered the caller by then, who would
    /// still see the old one.
    #[inline]
    fn open_for_read<'a>(&self, inode: &'a Inode) -> Result<RwLockReadGuard<'a, InodeState>> {
        let state = inode.state.read();
        check_file(inode, &state)?;
        if !self.atime_due(&state) {
            return Ok(state);
        }
        drop(state);
        self.touch_atime(inode);
        let state = inode.state.read();
        check_file(inode, &state)?;
        Ok(state)
    }

    /// Whether the next read of a file may set its atime. What keeps copies of
    /// the bytes, as a page cache does, lets go of them then, so that the read
    /// comes here.
    ///
    /// # Errors
    /// [`Error::Stale`] where there is no such inode.
    pub fn read_sets_atime(&self, ino: Ino) -> Result<bool> {
        let inode = self.inode(ino)?;
        let state = inode.state.read();
        Ok(self.atime_due(&state))
    }

    /// Whether a read may have to set the atime. Cheap, and on the safe side.
    #[inline]
    fn atime_due(&self, state: &InodeState) -> bool {
        let d = &state.disk;
        let at = (d.atime_sec, d.atime_nsec);
        match self.atime.policy() {
            AtimePolicy::NoAtime => false,
            _ if d.flags & crate::media::inode::FL_NOATIME != 0 => false,
            AtimePolicy::StrictAtime => true,
            AtimePolicy::Relatime => {
                at <= (d.mtime_sec, d.mtime_nsec)
                    || at <= (d.ctime_sec, d.ctime_nsec)
                    || self.now().sec.saturating_sub(d.atime_sec) >= super::attr::DAY
            }
        }
    }
}

/// See [`Engine::lookup_extent`], for blocks of such a size with so many pointers.
#[inline(always)]
fn known_in(
    extents: &ExtentCache,
    records: u64,
    (offset, len): (u64, usize),
    (block_log2, fan_log2): (u32, u32),
) -> Option<u64> {
    let part_log2 = block_log2 + fan_log2;
    let index = (offset >> block_log2) & ((1 << fan_log2) - 1);
    // Neither of no bytes nor past the end of what is there.
    let place = |first: Bno, log2: u32| {
        let within = offset & ((1 << log2) - 1);
        let fits = (len as u64).wrapping_sub(1) < (1 << log2) - within;
        fits.then_some((first.0 << block_log2) + within)
    };
    match extents.get(records, offset >> part_log2, index as usize)? {
        CachedExtent::Leaf(first) => place(first, part_log2),
        CachedExtent::Block(block) => place(block, block_log2),
    }
}

/// A regular file that still exists.
#[inline]
pub(crate) fn check_file(inode: &Inode, state: &InodeState) -> Result<()> {
    state.alive(inode.ino)?;
    match state.kind() {
        FileType::Regular => Ok(()),
        FileType::Directory => Err(Error::IsDirectory),
        _ => Err(Error::Invalid("not a regular file")),
    }
}
