//! Reading files: by copy, or by lending bytes of the medium.

use super::extent_cache::{CachedExtent, ExtentCache};
use super::inode::{Inode, InodeState};
use super::inode_lock::Snapshot;
use super::options::AtimePolicy;
use super::{Engine, Need};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::map::{self, MapRef, Part};
use pramfs_medium::pmem::{Lent, Region};
use pramfs_medium::sync::RwLockReadGuard;
use pramfs_medium::types::{Bno, FileType, Ino};

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
        let at = self.lookup_extent(extents, size_snapshot.records, (offset, into.len()))?;
        let done = copy(&self.vol.region, at, into) && self.validate(inode, size_snapshot.changes);
        done.then_some(into.len())
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

    /// Reads without a lock, see [`inode_lock`](super::inode_lock). Returns `None`,
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
        let still = || self.validate(inode, snapshot.changes);
        if let Some(at) = self.lookup_extent(extents, snapshot.records, (offset, len)) {
            self.vol.region.read(at, &mut into[..len]).ok()?;
            return still().then_some(len);
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

    /// Looks up the offset in the region of a range of a file (offset and length).
    /// `None` if it is not cached, or not within one written block or huge leaf.
    #[inline]
    pub(super) fn lookup_extent(
        &self,
        extents: &ExtentCache,
        records: u64,
        (offset, len): (u64, usize),
    ) -> Option<u64> {
        let geo = &self.vol.geo;
        // Constants for the default block size: fewer instructions.
        if geo.block_log2 == 12 {
            return extent_in(extents, records, (offset, len), (12, 9));
        }
        self.extent_in_any_block_size(extents, records, (offset, len))
    }

    #[cold]
    #[inline(never)]
    fn extent_in_any_block_size(
        &self,
        extents: &ExtentCache,
        records: u64,
        range: (u64, usize),
    ) -> Option<u64> {
        let geo = &self.vol.geo;
        extent_in(extents, records, range, (geo.block_log2, geo.fan_log2))
    }

    /// Caches the place of a range of a file, unless `still` says that it may have
    /// changed meanwhile. A range of several blocks is cached only if it starts in a
    /// huge leaf.
    pub(super) fn fill_extent(
        &self,
        extents: &ExtentCache,
        records: u64,
        map: &MapRef,
        (offset, len): (u64, usize),
        still: impl FnOnce() -> bool,
    ) {
        let geo = &self.vol.geo;
        let index = geo.file_block(offset);
        let within = geo.slot_of(index) as usize;
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
        let part = index.0 >> geo.fan_log2;
        extents.put(records, part, (within, geo.fan() as usize), known, still);
    }

    #[inline]
    fn read_inode(&self, inode: &Inode, offset: u64, into: &mut [u8]) -> Result<usize> {
        let state = self.open_for_read(inode)?;
        let left = state.disk.size.saturating_sub(offset);
        let len = usize::try_from(left).map_or(into.len(), |left| left.min(into.len()));
        let hole = || self.check_hole_of(inode, &state);
        self.read_map(&state.map(), offset, &mut into[..len], hole)
    }

    /// Lends the bytes of a range, on the medium itself, to `f` while `f` runs. The
    /// range ends at the end of the file. Returns `None` without calling `f` if the
    /// bytes
    ///
    /// - are not contiguous,
    /// - are not written,
    /// - were lost, or
    /// - may be visible through a direct mapping.
    ///
    /// Meanwhile only the region itself ([`Region::window`]) can store to the bytes.
    /// Writers of the file wait for `f`, and so do calls that map it for writing. `f`
    /// must therefore call neither.
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
            if !self.vol.pins.is_empty() {
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
            f(self.vol.region.lend(at, len)?);
            Ok(Some(len as usize))
        })
    }

    /// Copies a range of a file map out. Holes and unwritten blocks read as zeros.
    /// The caller limits the range to the file. `hole` is called at each hole to
    /// check that it is one. Returns the number of bytes before the first lost one.
    ///
    /// # Errors
    /// [`Error::Lost`] if the first byte was lost.
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
            let index = geo.file_block(offset);
            let blocks = (within + into.len() as u64).div_ceil(geo.block_size);
            let extent = map::run(&self.vol, map, index, blocks)?;
            let bytes = geo.bytes(extent.count) - within;
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

    /// Takes the lock of a read. Sets the atime before the read: a lending read may
    /// answer its caller before it returns, and the caller must not see the old
    /// atime then.
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

    /// Tells whether the next read of a file may set its atime. A cache of the
    /// bytes, such as the page cache, must then drop them, so that the read reaches
    /// the engine.
    ///
    /// # Errors
    /// [`Error::Stale`] if the inode does not exist.
    pub fn read_sets_atime(&self, ino: Ino) -> Result<bool> {
        let inode = self.inode(ino)?;
        let state = inode.state.read();
        Ok(self.atime_due(&state))
    }

    /// Whether a read may have to set the atime: a cheap, conservative test.
    #[inline]
    fn atime_due(&self, state: &InodeState) -> bool {
        let d = &state.disk;
        let at = (d.atime_sec, d.atime_nsec);
        match self.atime.policy() {
            AtimePolicy::NoAtime => false,
            _ if d.flags & pramfs_medium::media::inode::FL_NOATIME != 0 => false,
            AtimePolicy::StrictAtime => true,
            AtimePolicy::Relatime => {
                at <= (d.mtime_sec, d.mtime_nsec)
                    || at <= (d.ctime_sec, d.ctime_nsec)
                    || self.now().sec.saturating_sub(d.atime_sec) >= super::attr::DAY
            }
        }
    }
}

/// As [`Engine::lookup_extent`], for this block size and number of pointers per
/// block.
#[inline(always)]
fn extent_in(
    extents: &ExtentCache,
    records: u64,
    (offset, len): (u64, usize),
    (block_log2, fan_log2): (u32, u32),
) -> Option<u64> {
    let part_log2 = block_log2 + fan_log2;
    let index = (offset >> block_log2) & ((1 << fan_log2) - 1);
    // Excludes an empty range and one past the end of the extent.
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

/// Checks that an inode is a regular file and still exists.
#[inline]
pub(crate) fn check_file(inode: &Inode, state: &InodeState) -> Result<()> {
    state.alive(inode.ino)?;
    match state.kind() {
        FileType::Regular => Ok(()),
        FileType::Directory => Err(Error::IsDirectory),
        _ => Err(Error::Invalid("not a regular file")),
    }
}
