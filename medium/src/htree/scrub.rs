//! Walks a tree leaf by leaf, for a check during a mount that holds no lock for long.

use super::walk::{check_run, find_leaf, read_slots, slot_of};
use super::{HASH_BITS, Image, LeafAt, MAX_LEVELS, TreeRef, first_bits, item_parts, width};
use crate::error::Result;
use crate::types::Bno;
use crate::volume::Volume;

/// The index blocks on the path of the last step, to count each of them once.
#[derive(Debug, Clone, Copy)]
pub struct Path([Bno; MAX_LEVELS]);

impl Default for Path {
    fn default() -> Path {
        Path([Bno(0); MAX_LEVELS])
    }
}

/// What covers a hash of a tree.
#[derive(Debug)]
pub struct TreeStep {
    /// First hash behind it, also if it is damaged; `None` at the end of the tree.
    pub next: Option<u64>,
    /// Index blocks on the path that the last step did not pass.
    pub tables: u64,
    /// The number of items of the leaf, `None` for a hole; or what is wrong.
    pub items: Result<Option<u64>>,
}

/// Follows a hash to its leaf and checks all of both, whatever was checked before. Calls `large`
/// with the name and the stored value of each item whose value is in blocks. The caller holds
/// the lock of the owner.
pub fn step(
    vol: &Volume,
    tree: &TreeRef,
    hash: u64,
    path: &mut Path,
    large: &mut dyn FnMut(&[u8], &[u8]),
) -> TreeStep {
    let mut step = TreeStep {
        next: None,
        tables: 0,
        items: Ok(None),
    };
    if tree.root.is_hole() {
        return step;
    }
    let (mut last, mut index_blocks) = (0, [Bno(0); MAX_LEVELS]);
    let found = find_leaf(vol, tree, hash, |level, block| {
        if let (Some(known), Some(here)) = (
            path.0.get_mut(level as usize),
            index_blocks.get_mut(level as usize),
        ) {
            step.tables += u64::from(*known != block);
            (*known, *here) = (block, block);
        }
        last = level + 1;
    });
    let mut bits = (last * vol.geo.fan_log2).min(HASH_BITS);
    step.items = found.and_then(|(level, leaf)| {
        let Some(block) = leaf else {
            return Ok(None);
        };
        let at = LeafAt { block, level, hash };
        let (depth, items) = check_leaf(vol, tree, at, &index_blocks, large)?;
        bits = depth;
        Ok(Some(items))
    });
    step.next = (hash | width(bits))
        .checked_add(1)
        .filter(|next| next >> HASH_BITS == 0);
    step
}

/// Checks a leaf and all slots that name it. Returns its depth and the number of its items.
fn check_leaf(
    vol: &Volume,
    tree: &TreeRef,
    at: LeafAt,
    index_blocks: &[Bno; MAX_LEVELS],
    large: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<(u32, u64)> {
    let (geo, block) = (&vol.geo, at.block);
    let bad = |what| tree.bad_leaf(block, what);
    let image = Image::read(vol, block)?;
    image.check(tree, geo, at, true).map_err(bad)?;
    let depth = image.depth(geo, at.level, at.hash).map_err(bad)?;
    if let Some(above) = at.level.checked_sub(1)
        && let Some(table) = index_blocks.get(above as usize)
    {
        let bits = at.level * geo.fan_log2;
        let run = 1usize << (bits - depth);
        let first = first_bits(at.hash, bits) & !(run as u64 - 1);
        let mut slots = vec![0; run];
        read_slots(vol, *table, slot_of(geo, first), &mut slots)?;
        check_run(tree, geo, at.level, first, &slots, run, block)?;
    }
    for item in image.items(tree, &geo.leaf).map_err(bad)? {
        let (head, value, name) =
            item_parts(&image.bytes, item.at).ok_or_else(|| bad("an item leaves the block"))?;
        if head.is_large() {
            large(name, value);
        }
    }
    Ok((depth, image.header().items.into()))
}
