//! Walks a whole file map, for checks that count every block.

use zerocopy::IntoBytes;

use super::MapRef;
use crate::error::{Error, Result};
use crate::media::pointer::Ptr;
use crate::types::{Bno, FileBlock, RegionOffset};
use crate::volume::Volume;

/// An object in a walk over a file map.
#[derive(Debug)]
pub enum Node {
    /// A pointer block. It comes before the blocks that it points to.
    Table {
        /// Level of its pointers.
        level: u32,
        /// First file block that it covers.
        first: FileBlock,
        /// The block.
        block: Bno,
    },
    /// A leaf of one block or 2 MiB.
    Leaf {
        /// First file block.
        first: FileBlock,
        /// Number of file blocks.
        count: u64,
        /// First block.
        block: Bno,
        /// Allocated, reads as zeros.
        unwritten: bool,
    },
    /// A damaged pointer. The walk skips the range that it covers.
    Damaged {
        /// Offset of the pointer in the region; `None` for the root in the inode.
        place: Option<RegionOffset>,
        /// The fault.
        error: Error,
    },
}

/// Calls `f` with every pointer block and leaf, in the order of the file. Checks each
/// pointer first.
///
/// # Errors
/// Errors of `f`; errors of the region; [`Error::Corrupt`] for an impossible height,
/// an empty pointer block, or more pointer blocks than the region has blocks.
pub fn visit(vol: &Volume, map: &MapRef, f: &mut dyn FnMut(Node) -> Result<()>) -> Result<()> {
    map.checked(&vol.geo)?;
    let mut walk = Walk {
        vol,
        map,
        f,
        tables: 0,
    };
    walk.entry(map.root, map.height, FileBlock(0), None)
}

struct Walk<'a> {
    vol: &'a Volume,
    map: &'a MapRef,
    f: &'a mut dyn FnMut(Node) -> Result<()>,
    tables: u64,
}

impl Walk<'_> {
    fn entry(
        &mut self,
        ptr: Ptr,
        level: u32,
        first: FileBlock,
        place: Option<RegionOffset>,
    ) -> Result<()> {
        let geo = &self.vol.geo;
        if ptr.is_hole() {
            return Ok(());
        }
        let block = match self
            .map
            .root()
            .open(geo, ptr, self.map.at(geo, level, first))
        {
            Ok(block) => block,
            Err(error) => {
                return (self.f)(Node::Damaged { place, error });
            }
        };
        if level == 0 || ptr.is_leaf() {
            let count = geo.span(level);
            return (self.f)(Node::Leaf {
                first,
                count,
                block,
                unwritten: ptr.is_unwritten(),
            });
        }
        self.tables += 1;
        if self.tables > geo.blocks() {
            return Err(self.map.damaged(
                first,
                "the file map has more pointer blocks than the region has blocks",
            ));
        }
        (self.f)(Node::Table {
            level: level - 1,
            first,
            block,
        })?;
        let mut words = vec![0u64; geo.fan() as usize];
        self.vol
            .medium()
            .read(geo.offset(block), words.as_mut_bytes())?;
        if words.iter().all(|w| *w == 0) {
            return Err(self.map.empty_table(first));
        }
        for (i, w) in words.into_iter().enumerate() {
            let first = first + i as u64 * geo.span(level - 1);
            self.entry(
                Ptr(w),
                level - 1,
                first,
                Some(geo.offset(block).word(i as u64)),
            )?;
        }
        Ok(())
    }
}
