//! Reads a file map: finds the block that holds block `index` of a file. The
//! write side (`map/`) uses the same checks.

use crate::media::Medium;
use zerocopy::IntoBytes;

use super::geometry::Geometry;
use super::inode::DiskInode;
use super::pointer::{Ptr, PtrAt};
use crate::error::{Damage, Error, Result};
use crate::pmem::RegionView;
use crate::types::{Bno, FileBlock, Ino};

/// The fault of a pointer through which a caller could read or write a superblock
/// page or the journal, which no object owns.
pub const TO_FIXED: &str = "the pointer leads to a superblock page or the journal";

/// The fault of a pointer block that reads as zeros.
pub const EMPTY_TABLE: &str = "the pointer block that holds it has no pointers: it was lost";

/// The fault of a loss mark outside the contents of a regular file.
pub const NOT_LOST: &str = "it is marked as lost, but only contents of regular files can be";

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
    pub first: FileBlock,
    /// Number of file blocks that it covers.
    pub count: u64,
    /// First block; `None` for a hole or a lost range.
    pub block: Option<Bno>,
    /// Allocated, reads as zeros.
    pub unwritten: bool,
    /// The range is lost: a repair could not recover it.
    pub lost: bool,
}

impl MapRoot {
    /// Returns the file map of an inode.
    #[inline]
    pub fn of(d: &DiskInode) -> MapRoot {
        MapRoot {
            ino: Ino(d.ino),
            root: Ptr(d.root),
            height: u32::from(d.height),
        }
    }

    /// Returns the end of the file blocks that a tree of this height can hold.
    #[inline]
    pub fn end(&self, geo: &Geometry) -> FileBlock {
        1u64.checked_shl(geo.fan_log2 * self.height)
            .map_or(FileBlock::END, FileBlock)
    }

    /// Returns the place of the pointer of a level that covers a file block.
    #[inline]
    pub fn at(&self, geo: &Geometry, level: u32, block: FileBlock) -> PtrAt {
        PtrAt {
            fs_seed: geo.seed,
            ino: self.ino,
            level,
            index: geo.index_at(level, block),
        }
    }

    /// Returns the place of the root pointer.
    #[inline]
    pub fn root_at(&self, geo: &Geometry) -> PtrAt {
        PtrAt {
            fs_seed: geo.seed,
            ino: self.ino,
            level: self.height,
            index: 0,
        }
    }

    /// Checks a pointer that is not a hole and returns its block. All blocks that
    /// the pointer covers lie in the region and outside the superblock pages and
    /// the journal. A loss mark is an error here. A caller that reads files then
    /// calls [`Ptr::is_lost`], so files without loss marks pay nothing.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    #[inline(always)]
    pub fn open(&self, geo: &Geometry, ptr: Ptr, at: PtrAt) -> Result<Bno> {
        if !ptr.fits(at) {
            return Err(self.damaged(at, "the check of the pointer does not fit"));
        }
        let span = if ptr.is_leaf() {
            if at.level != 1 || !geo.allows_huge_leaves() {
                return Err(self.damaged(at, "a 2 MiB leaf where none is allowed"));
            }
            geo.fan()
        } else {
            1
        };
        let b = ptr.block();
        if b.0 + span > geo.blocks() || !b.0.is_multiple_of(span) {
            return Err(self.damaged(at, "the pointer leads outside the region"));
        }
        if geo.is_fixed(b.0, span) {
            return Err(self.damaged(at, TO_FIXED));
        }
        Ok(b)
    }

    #[cold]
    fn damaged(&self, at: PtrAt, what: &str) -> Error {
        self.damage(Damage::MapPointer, at, what)
    }

    #[cold]
    fn damage(&self, kind: Damage, at: PtrAt, what: &str) -> Error {
        Error::corrupt(
            kind,
            (
                self.ino,
                format!("{}, pointer {} of level {}", self.ino, at.index, at.level),
            ),
            what,
        )
    }

    /// Returns the leaf that covers file block `index` in a map that cannot have
    /// loss marks.
    ///
    /// # Errors
    /// [`Error::Corrupt`], also for a loss mark.
    pub fn find<'r>(
        &self,
        region: impl Into<RegionView<'r>>,
        geo: &Geometry,
        index: FileBlock,
    ) -> Result<Leaf> {
        let region = region.into().region();
        let leaf = self.look(Medium { region, geo }, index)?;
        if leaf.lost {
            return Err(self.damaged(self.at(geo, 0, index), NOT_LOST));
        }
        Ok(leaf)
    }

    /// Returns the leaf that covers file block `index` of a regular file.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn look(&self, medium: Medium<'_>, index: FileBlock) -> Result<Leaf> {
        let geo = medium.geo;
        let mut level = self.height;
        let end = self.end(geo);
        if index >= end {
            return Ok(Leaf {
                first: end,
                count: FileBlock::END - end,
                block: None,
                unwritten: false,
                lost: false,
            });
        }
        let (mut ptr, mut home) = (self.root, None);
        loop {
            let at = self.at(geo, level, index);
            let (first, count) = (geo.first_under(level, index), geo.span(level));
            if ptr.is_hole() {
                if let Some(table) = home {
                    self.has_pointers(medium, table, at)?;
                }
                return Ok(Leaf {
                    first,
                    count,
                    block: None,
                    unwritten: false,
                    lost: false,
                });
            }
            let block = match self.open(geo, ptr, at) {
                Err(_) if ptr.is_lost(at) => {
                    return Ok(Leaf {
                        first,
                        count,
                        block: None,
                        unwritten: false,
                        lost: true,
                    });
                }
                opened => opened?,
            };
            if level == 0 || ptr.is_leaf() {
                return Ok(Leaf {
                    first,
                    count,
                    block: Some(block),
                    unwritten: ptr.is_unwritten(),
                    lost: false,
                });
            }
            level -= 1;
            let slot = geo.slot_at(level, index);
            ptr = Ptr(medium.load_u64(geo.offset(block).word(slot))?);
            home = Some(block);
        }
    }

    /// Checks that a pointer block has a pointer. A pointer block is freed with its
    /// last pointer, so an empty one was lost and its zeros are not holes. `hole` is
    /// the place of one of these zeros.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for an empty block.
    #[cold]
    pub fn has_pointers(&self, medium: Medium<'_>, table: Bno, hole: PtrAt) -> Result<()> {
        let geo = medium.geo;
        let (base, last) = (geo.offset(table), geo.fan() - 1);
        let slot = hole.index & last;
        // Most holes follow a pointer, at the end of a file that has grown.
        for near in [slot.saturating_sub(1), (slot + 1).min(last)] {
            if medium.load_u64(base.word(near))? != 0 {
                return Ok(());
            }
        }
        let mut words = [0u64; 512];
        let words = &mut words[..=last as usize];
        medium.read(base, words.as_mut_bytes())?;
        if words.iter().all(|w| *w == 0) {
            return Err(self.damage(Damage::MapEmpty, hole, EMPTY_TABLE));
        }
        Ok(())
    }
}
