//! [`Medium`]: a region and its geometry, which belong together.

use super::Geometry;
use crate::pmem::{PmemError, Region};
use crate::types::RegionOffset;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A region, and the sizes and places of the file system in it.
#[derive(Debug, Clone, Copy)]
pub struct Medium<'m> {
    /// The memory.
    pub region: &'m Region,
    /// Sizes and places.
    pub geo: &'m Geometry,
}

impl Medium<'_> {
    /// Loads an aligned word.
    ///
    /// # Errors
    /// Errors of the region.
    #[inline]
    pub fn load_u64(self, at: RegionOffset) -> Result<u64, PmemError> {
        self.region.load_u64(at.0)
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// Errors of the region.
    #[inline]
    pub fn read(self, at: RegionOffset, into: &mut [u8]) -> Result<(), PmemError> {
        self.region.read(at.0, into)
    }

    /// Copies a structure out.
    ///
    /// # Errors
    /// Errors of the region.
    #[inline]
    pub fn read_pod<T: FromBytes + IntoBytes + Immutable>(
        self,
        at: RegionOffset,
    ) -> Result<T, PmemError> {
        self.region.read_pod(at.0)
    }
}
