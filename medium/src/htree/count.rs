//! Counting what a tree owns and holds, as its inode does.

use super::leaf::depth_of;
use super::walk::{check_run, read_index};
use super::{HASH_BITS, TreeRef};
use crate::error::Result;
use crate::media::htree::LeafHeader;
use crate::media::pointer::Ptr;
use crate::media::walk::EMPTY_TABLE;
use crate::volume::Volume;

/// What a tree owns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Blocks: leaves and index blocks.
    pub blocks: u64,
    /// Items, by the heads of the leaves; `None` where one of them is damaged.
    pub items: Option<u64>,
}

/// Counts the blocks and items of a tree, up to some more blocks than `most`, or
/// than there are at all.
/// Leaves are not read but for their heads. A leaf whose head is damaged counts
/// for the slots that it stands in: what leads to it says so by itself.
///
/// # Errors
/// [`crate::Error::Corrupt`] where a pointer is damaged, an index block has no
/// pointers, or a leaf does not stand in all of its slots; those of the region.
pub fn count(vol: &Volume, tree: &TreeRef, most: u64) -> Result<Count> {
    let mut c = Counter {
        vol,
        tree,
        most: most.min(vol.geo.blocks),
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
    /// Counts what slot `index` of a level points to; `slots` begin with it.
    /// Gives the number of slots that it fills.
    fn entry(&mut self, ptr: Ptr, level: u32, index: u64, slots: &[u64]) -> Result<usize> {
        let (tree, geo) = (self.tree, &self.vol.geo);
        if ptr.is_hole() || self.count.blocks > self.most {
            return Ok(1);
        }
        let block = tree.open(geo, ptr, level, index)?;
        self.count.blocks += 1;
        let bits = level * geo.fan_log2;
        if ptr.is_leaf() {
            let head: LeafHeader = self.vol.region.read_pod(geo.offset(block))?;
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
            return Err(tree.bad_pointer(level, index, "an index block where there can be none"));
        }
        let below = read_index(self.vol, block)?;
        if below.iter().all(|w| *w == 0) {
            return Err(tree.bad_pointer(level + 1, index << geo.fan_log2, EMPTY_TABLE));
        }
        let mut slot = 0;
        while slot < below.len() {
            let first = index << geo.fan_log2 | slot as u64;
            slot += self.entry(Ptr(below[slot]), level + 1, first, &below[slot..])?;
        }
        Ok(1)
    }
}
