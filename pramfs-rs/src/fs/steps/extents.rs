//! The extents of a locked file, and the write-back of what was stored to them without a record.
//!
//! Invariant: a hole is reported only after a check that it is not a lost pointer.

use std::ops::Range;

use crate::fs::Engine;
use crate::fs::engine::completeness::Hole;
use crate::fs::inode::Inode;
use crate::fs::inode::state::{InodeState, check_file};
use pramfs_medium::error::Result;
use pramfs_medium::map;
use pramfs_medium::pmem::RegionAccess as _;
use pramfs_medium::types::FileExtent;

impl Engine {
    /// Returns the extents from `offset` to `end` of a locked file. For a mapping, the
    /// range consists of whole blocks, and may exceed the end of the file within its last
    /// block.
    pub(crate) fn extents_between(
        &self,
        state: &InodeState,
        offset: u64,
        end: u64,
    ) -> Result<Vec<FileExtent>> {
        self.extents_up_to(state, offset, end, usize::MAX)
    }

    /// As [`extents_between`](Self::extents_between), but ends after the extent that follows the
    /// first `most`; that one may be incomplete.
    pub(crate) fn extents_up_to(
        &self,
        state: &InodeState,
        offset: u64,
        end: u64,
        most: usize,
    ) -> Result<Vec<FileExtent>> {
        let geo = &self.vol.geo;
        let mut list: Vec<FileExtent> = Vec::new();
        let mut at = offset;
        while at < end && list.len() <= most {
            let index = geo.file_block(at);
            let extent = map::run(&self.vol, &state.map(), index, geo.blocks_of(at, end))?;
            if extent.is_hole() {
                self.check_hole(state, Hole::Contents)?;
            }
            let stop = end.min(geo.file_offset(index + extent.count));
            let next = FileExtent {
                file_offset: at,
                region_offset: extent
                    .block
                    .map(|b| geo.offset(b).0 + (at - geo.file_offset(index))),
                len: stop - at,
                unwritten: extent.unwritten,
                lost: extent.lost,
            };
            match list.last_mut() {
                Some(last)
                    if (last.unwritten, last.lost) == (next.unwritten, next.lost)
                        && last.region_offset.map(|r| r + last.len) == next.region_offset =>
                {
                    last.len += next.len;
                }
                _ => list.push(next),
            }
            at = stop;
        }
        Ok(list)
    }

    /// Flushes the blocks of a range up to the end of the file. False if it has none.
    pub(crate) fn flush_range(
        &self,
        inode: &Inode,
        state: &InodeState,
        range: Range<u64>,
    ) -> Result<bool> {
        check_file(inode.ino, state)?;
        let geo = &self.vol.geo;
        let end = range.end.min(state.disk.size);
        let start = geo.file_offset(geo.file_block(range.start.min(end)));
        let back = self.vol.region.write_back();
        let mut pending = None;
        for extent in self.extents_between(state, start, end)? {
            if let (Some(at), false) = (extent.region_offset, extent.unwritten) {
                pending = Some(back.flush(at, extent.len)?);
            }
        }
        let Some(pending) = pending else {
            return Ok(false);
        };
        back.fence(pending);
        Ok(true)
    }
}
