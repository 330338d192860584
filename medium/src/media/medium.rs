//! [`Medium`]: a region and its geometry, which belong together.

use super::Geometry;
use crate::pmem::Region;

/// A region, and the sizes and places of the file system in it.
#[derive(Debug, Clone, Copy)]
pub struct Medium<'m> {
    /// The memory.
    pub region: &'m Region,
    /// Sizes and places.
    pub geo: &'m Geometry,
}
