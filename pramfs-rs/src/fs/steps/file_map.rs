//! The file map of a locked file: copying out, zeroing, finding places.
//!
//! Invariant: a hole is reported as zeros, or filled, only after a check that it is a hole
//! and not a lost pointer ([`Engine::check_hole`]). A lost range is an error.
//!
//! The map itself is in `pramfs_medium::map`, the extent cache in
//! [`extent_cache`](crate::fs::cache::extent_cache). Size and times are left to the
//! callers.

use crate::fs::Engine;
use crate::fs::cache::extent_cache::{CachedExtent, ExtentCache};
use crate::fs::engine::completeness::Hole;
use crate::fs::inode::state::InodeState;
use pramfs_medium::error::{Error, Result};
use pramfs_medium::map::{self, Extent, MapRef, Part};
use pramfs_medium::media::geometry::MapShape;
use pramfs_medium::types::{Bno, FileBlock, Ino, RegionOffset};
use pramfs_medium::volume::Record;

impl Engine {
    /// Returns the offset up to which growth to a size zeroes what it passes over: if other
    /// processes may have mapped the file past its end, they see zeros there, up to the next
    /// page.
    #[inline]
    pub(crate) fn end_of_zeros(&self, state: &InodeState, size: u64) -> u64 {
        let geo = &self.vol.geo;
        match state.leases.are_mapped_ahead() {
            true => geo.file_offset(geo.file_block_from(size)),
            false => size,
        }
    }

    /// Looks up the offset in the region of a range of a file.
    /// `None` if it is not cached, or not within one written block or huge leaf.
    #[inline]
    pub(crate) fn lookup_extent(
        &self,
        extents: &ExtentCache,
        records: u64,
        offset: u64,
        len: usize,
    ) -> Option<RegionOffset> {
        let geo = &self.vol.geo;
        // Constants for the default block size: fewer instructions.
        if geo.has_default_shape() {
            return extent_in(extents, records, offset, len, MapShape::DEFAULT);
        }
        self.extent_in_any_block_size(extents, records, offset, len)
    }

    #[cold]
    #[inline(never)]
    fn extent_in_any_block_size(
        &self,
        extents: &ExtentCache,
        records: u64,
        offset: u64,
        len: usize,
    ) -> Option<RegionOffset> {
        extent_in(extents, records, offset, len, self.vol.geo.map_shape())
    }

    /// Caches the place of a range of a file, unless `is_current` returns false: it may
    /// have changed meanwhile. A range of several blocks is cached only if it starts in a
    /// huge leaf.
    pub(crate) fn fill_extent(
        &self,
        extents: &ExtentCache,
        records: u64,
        map: &MapRef,
        offset: u64,
        len: usize,
        is_current: impl FnOnce() -> bool,
    ) {
        let geo = &self.vol.geo;
        let index = geo.file_block(offset);
        let within = geo.slot_of(index) as usize;
        let one = geo.within_block(offset) + len as u64 <= geo.block_size;
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
        let part = geo.index_at(1, index);
        let of = (within, geo.fan() as usize);
        extents.put(records, part, of, known, is_current);
    }

    /// Copies a range of a file map out. Holes and unwritten blocks read as zeros.
    /// The caller limits the range to the file. `hole` is called at each hole to
    /// check that it is one. Returns the number of bytes before the first lost one.
    ///
    /// # Errors
    /// [`Error::Lost`] if the first byte was lost.
    #[inline]
    pub(crate) fn read_map(
        &self,
        map: &MapRef,
        mut offset: u64,
        mut into: &mut [u8],
        hole: impl Fn() -> Result<()>,
    ) -> Result<usize> {
        let geo = &self.vol.geo;
        let mut done = 0;
        while !into.is_empty() {
            let within = geo.within_block(offset);
            let index = geo.file_block(offset);
            let blocks = geo.blocks_for(within + into.len() as u64);
            let extent = map::run(&self.vol, map, index, blocks)?;
            let bytes = geo.bytes(extent.count) - within;
            let n = usize::try_from(bytes).map_or(into.len(), |n| n.min(into.len()));
            let (now, rest) = into.split_at_mut(n);
            match extent.block {
                Some(block) if !extent.unwritten => {
                    self.vol.medium().read(geo.offset(block) + within, now)?
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
    pub(crate) fn lost(&self, ino: Ino, offset: u64) -> Error {
        Error::Lost { ino, offset }
    }

    /// Zeroes the parts of a byte range that lie in written blocks. The caller makes
    /// the range visible afterwards, or is changing it to zeros.
    pub(crate) fn zero_written(
        &self,
        tx: &mut Record<'_>,
        map: &MapRef,
        from: u64,
        to: u64,
    ) -> Result<()> {
        let geo = &self.vol.geo;
        let mut at = from;
        while at < to {
            let index = geo.file_block(at);
            let extent = map::run(&self.vol, map, index, geo.blocks_of(at, to))?;
            let end = to.min(geo.file_offset(index + extent.count));
            if let Some(block) = extent.block.filter(|_| !extent.unwritten) {
                tx.zero_new(geo.offset(block) + (at - geo.file_offset(index)), end - at)?;
            }
            at = end;
        }
        Ok(())
    }

    /// Checks that a hole to be filled is one, and not a lost pointer. A hole past
    /// the end of a file needs no check: there no data can be lost, and any
    /// difference to the block count stays the same.
    #[inline]
    pub(crate) fn may_fill(&self, state: &InodeState, extent: &Extent) -> Result<()> {
        if extent.lost {
            return Ok(());
        }
        let end = self.vol.geo.file_block_from(state.disk.size);
        if extent.under >= end && state.disk.root != 0 {
            return Ok(());
        }
        self.check_hole(state, Hole::Contents)
    }

    /// Returns the block after the one that holds file block `index - 1`, so that
    /// the file continues there.
    pub(crate) fn goal(&self, map: &MapRef, index: FileBlock) -> Result<Option<Bno>> {
        let Some(before) = index.0.checked_sub(1).map(FileBlock) else {
            return Ok(None);
        };
        let leaf = map::look(&self.vol, map, before)?;
        Ok(leaf.block.map(|b| b.after(before - leaf.first + 1)))
    }
}

/// As [`Engine::lookup_extent`], for this shape.
#[inline(always)]
fn extent_in(
    extents: &ExtentCache,
    records: u64,
    offset: u64,
    len: usize,
    shape: MapShape,
) -> Option<RegionOffset> {
    // Excludes an empty range and one past the end of the extent, of `bytes` bytes.
    let place = |first: Bno, bytes: u64| {
        let within = offset & (bytes - 1);
        let fits = (len as u64).wrapping_sub(1) < bytes - within;
        fits.then_some(shape.offset(first) + within)
    };
    match extents.get(records, shape.part_at(offset), shape.slot_at(offset))? {
        CachedExtent::Leaf(first) => place(first, shape.part()),
        CachedExtent::Block(block) => place(block, shape.block()),
    }
}
