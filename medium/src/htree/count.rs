//! Counts the blocks and items of a tree, for comparison with its inode.

use super::leaf::depth_of;
use super::walk::{check_run, read_index};
use super::{HASH_BITS, TreeRef};
use crate::error::Result;
use crate::media::htree::LeafHeader;
use crate::media::pointer::Ptr;
use crate::volume::Volume;

/// The blocks and items of a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Blocks: leaves and index blocks.
    pub blocks: u64,
    /// Items according to the leaf headers; `None` if one of the headers is damaged.
    pub items: Option<u64>,
}

/// Counts the blocks and items of a tree. Stops soon after the number of blocks
/// exceeds `most` or the number of blocks in the region.
///
/// Of a leaf it reads only the header. A leaf with a damaged header is counted once,
/// for the consecutive slots that name it: the pointers alone identify the block.
///
/// # Errors
/// [`crate::Error::Corrupt`] if a pointer is damaged, an index block has no
/// pointers, or a slot of a leaf does not name the leaf; errors of the region.
pub fn count(vol: &Volume, tree: &TreeRef, most: u64) -> Result<Count> {
    let mut c = Counter {
        vol,
        tree,
        most: most.min(vol.geo.blocks()),
        count: Count {
            blocks: 0,
            items: Some(0),
        },
    };
    c.entry(tree.root, 0, 0, &[tree.root.0])?;
    Ok(c.count)
}

struct Counter<'a> {
    vol: &'a Volume,
    tree: &'a TreeRef,
    most: u64,
    count: Count,
}

impl Counter<'_> {
    /// Counts the subtree of slot `index` of a level, the first of `slots`. Returns
    /// the number of slots that it fills.
    fn entry(&mut self, ptr: Ptr, level: u32, index: u64, slots: &[u64]) -> Result<usize> {
        let (tree, geo) = (self.tree, &self.vol.geo);
        if ptr.is_hole() || self.count.blocks > self.most {
            return Ok(1);
        }
        let block = tree.open(geo, ptr, level, index)?;
        self.count.blocks += 1;
        let bits = level * geo.fan_log2;
        if ptr.is_leaf() {
            let head: LeafHeader = self.vol.medium().read_pod(geo.offset(block))?;
            let Ok(depth) = depth_of(&head, geo, level, index << (HASH_BITS - bits)) else {
                self.count.items = None;
                let same = |w: &&u64| Ptr(**w).is_leaf() && Ptr(**w).block() == block;
                return Ok(slots.iter().take_while(same).count().max(1));
            };
            let run = 1usize << (bits - depth);
            check_run(tree, geo, level, index, slots, run, block)?;
            self.count.items = self.count.items.map(|n| n + u64::from(head.items));
            return Ok(run);
        }
        if bits + geo.fan_log2 > HASH_BITS {
            return Err(tree.bad_pointer(level, index, "an index block past the last level"));
        }
        let below = read_index(self.vol, block)?;
        if below.iter().all(|w| *w == 0) {
            return Err(tree.empty_table(level + 1, index << geo.fan_log2));
        }
        let mut slot = 0;
        while slot < below.len() {
            let first = index << geo.fan_log2 | slot as u64;
            slot += self.entry(Ptr(below[slot]), level + 1, first, &below[slot..])?;
        }
        Ok(1)
    }
}
