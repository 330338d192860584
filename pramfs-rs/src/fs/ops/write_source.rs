//! Sources of a write: bytes of the caller, or bytes of the region that are copied
//! to another place in it.

use pramfs_medium::pmem::RegionAccess as _;
use std::ops::Range;

use pramfs_medium::error::Result;
use pramfs_medium::pmem::{Region, Unfenced};
use pramfs_medium::types::RegionOffset;

/// Bytes to be written, divisible into parts.
pub(crate) trait WriteSource: Copy {
    fn len(self) -> usize;

    fn part(self, range: Range<usize>) -> Self;

    /// Stores the bytes to a place in the region by streaming stores.
    #[cfg_attr(feature = "mutants", track_caller)]
    fn store(self, region: &Region, at: RegionOffset) -> Result<Unfenced>;
}

impl WriteSource for &[u8] {
    #[inline]
    fn len(self) -> usize {
        self.len()
    }

    #[inline]
    fn part(self, range: Range<usize>) -> Self {
        &self[range]
    }

    #[inline]
    #[cfg_attr(feature = "mutants", track_caller)]
    fn store(self, region: &Region, at: RegionOffset) -> Result<Unfenced> {
        region.need_room(at.0, self.len() as u64)?;
        Ok(region.window().nt_store(at.0, self)?)
    }
}

/// Bytes in the region.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MediumRange {
    /// First byte.
    pub at: RegionOffset,
    /// Length, bytes.
    pub len: usize,
}

impl WriteSource for MediumRange {
    fn len(self) -> usize {
        self.len
    }

    fn part(self, range: Range<usize>) -> Self {
        MediumRange {
            at: self.at + range.start as u64,
            len: range.len(),
        }
    }

    #[cfg_attr(feature = "mutants", track_caller)]
    fn store(self, region: &Region, at: RegionOffset) -> Result<Unfenced> {
        region.need_room(at.0, self.len as u64)?;
        Ok(region.window().nt_copy(at.0, self.at.0, self.len as u64)?)
    }
}
