//! Following a file map by reading only: which block holds block `index` of a
//! file. The engine's own cursor (`map/`) builds on the same step.

use super::geometry::Geometry;
use super::pointer::{Ptr, PtrAt};
use crate::error::{Error, Result};
use crate::pmem::Region;
use crate::types::{Bno, Ino};

/// Root of a file map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapRoot {
    /// Owner, which seeds the checks.
    pub ino: Ino,
    /// Root pointer.
    pub root: Ptr,
    /// Levels of pointer blocks.
    pub height: u32,
}

/// A leaf that covers an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaf {
    /// First file block that the leaf (or hole) covers.
    pub first: u64,
    /// File blocks that it covers.
    pub count: u64,
    /// First block; `None` for a hole.
    pub block: Option<Bno>,
    /// Allocated, reads as zeros.
    pub unwritten: bool,
}

impl MapRoot {
    /// File blocks that a tree of this height can hold.
    #[inline]
    pub fn capacity(&self, geo: &Geometry) -> u64 {
        1u64.checked_shl(geo.fan_log2 * self.height)
            .unwrap_or(u64::MAX)
    }

    /// Where the root pointer stands.
    #[inline]
    pub fn root_at(&self, geo: &Geometry) -> PtrAt {
        PtrAt {
            fs_seed: geo.seed,
            ino: self.ino,
            level: self.height,
            index: 0,
        }
    }

    /// Checks a pointer that is not a hole and gives its block, which lies in
    /// the region with all the blocks that the pointer covers.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    #[inline(always)]
    pub fn open(&self, geo: &Geometry, ptr: Ptr, at: PtrAt) -> Result<Bno> {
        if !ptr.fits(at) {
            return Err(self.damaged(at, "the check of the pointer does not fit"));
        }
        let span = if ptr.is_leaf() {
            if at.level != 1 || !geo.huge_leaves || geo.block_log2 != 12 {
                return Err(self.damaged(at, "a large leaf where there can be none"));
            }
            1u64 << geo.fan_log2
        } else {
            1
        };
        let b = ptr.block();
        if b.0 == 0 || b.0 + span > geo.blocks || !b.0.is_multiple_of(span) {
            return Err(self.damaged(at, "the pointer leaves the region"));
        }
        Ok(b)
    }

    #[cold]
    fn damaged(&self, at: PtrAt, what: &str) -> Error {
        Error::corrupt(
            format!("{}, pointer {} of level {}", self.ino, at.index, at.level),
            what,
        )
    }

    /// The leaf that covers file block `index`.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn find(&self, region: &Region, geo: &Geometry, index: u64) -> Result<Leaf> {
        let mut level = self.height;
        if index >= self.capacity(geo) {
            let first = self.capacity(geo);
            return Ok(Leaf {
                first,
                count: u64::MAX - first,
                block: None,
                unwritten: false,
            });
        }
        let mut ptr = self.root;
        loop {
            let shift = geo.fan_log2 * level;
            let at = PtrAt {
                fs_seed: geo.seed,
                ino: self.ino,
                level,
                index: index >> shift,
            };
            let (first, count) = (index >> shift << shift, 1u64 << shift);
            if ptr.is_hole() {
                return Ok(Leaf {
                    first,
                    count,
                    block: None,
                    unwritten: false,
                });
            }
            let block = self.open(geo, ptr, at)?;
            if level == 0 || ptr.is_leaf() {
                return Ok(Leaf {
                    first,
                    count,
                    block: Some(block),
                    unwritten: ptr.is_unwritten(),
                });
            }
            level -= 1;
            let slot = index >> (geo.fan_log2 * level) & ((1 << geo.fan_log2) - 1);
            ptr = Ptr(region.load_u64(geo.offset(block) + slot * 8)?);
        }
    }
}
