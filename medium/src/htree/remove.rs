//! Removal, replacing of values, and taking a whole tree down in steps.
//!
//! Removal never takes a block, so it works in a full region.

use std::ops::Range;

use smallvec::{SmallVec, smallvec};
use zerocopy::IntoBytes;

use super::edit::LeafEdit;
use super::leaf::depth_of;
use super::walk::{OccupiedEntry, check_run, descend, find_in, read_index, read_slots, slot_of};
use super::{CALLER_ROOM, HASH_BITS, MAX_LEVELS, TreeKind, TreeRef, first_bits, prefix_of};
use crate::alloc::Run;
use crate::error::{Error, Result};
use crate::media::htree::{ItemHeader, LeafHeader, SLOT, TAG_FREE};
use crate::media::pointer::Ptr;
use crate::types::Bno;
use crate::volume::Tx;

/// Bytes of a record that the pointers of an unfinished step take: an entry of
/// zeros for each level.
const STEP_ROOM: usize = (MAX_LEVELS + 1) * 16;
/// Bytes of a record that the bit of a freed block takes at most.
const BITS_ROOM: usize = 48;

/// Removes an item; false when there is none. The last item of a leaf takes the
/// leaf with it, and index blocks that become empty; only a directory that has
/// come down to one leaf keeps that.
/// After an error the transaction must be dropped.
///
/// # Errors
/// [`Error::Corrupt`].
pub fn remove(tx: &mut Tx<'_>, tree: &mut TreeRef, name: &[u8]) -> Result<bool> {
    match find_in(tx, tree, name)? {
        Some(found) => remove_found(tx, tree, &found).map(|()| true),
        None => Ok(false),
    }
}

/// As [`remove`], of an item that was found and has not changed since.
///
/// # Errors
/// As for [`remove`].
pub fn remove_found(tx: &mut Tx<'_>, tree: &mut TreeRef, found: &OccupiedEntry) -> Result<()> {
    let OccupiedEntry { level, block, hit } = found;
    let mut edit = LeafEdit::begin(tx, tree, *block)?;
    // A directory that is emptied is often filled again: it keeps its only leaf
    // until it is removed itself.
    let keep = tree.kind == TreeKind::Directory && *level == 0;
    if edit.items <= 1 && !keep {
        return free_leaf(tx, tree, *block, hit.head.hash());
    }
    edit.items = edit.items.saturating_sub(1);
    edit.used_slots = edit.used_slots.saturating_sub(hit.slots() as u16);
    edit.set_tags(hit.slot, hit.slots(), TAG_FREE, TAG_FREE)?;
    edit.finish()
}

/// Frees the leaf that a hash leads to.
fn free_leaf(tx: &mut Tx<'_>, tree: &mut TreeRef, block: Bno, hash: u64) -> Result<()> {
    let geo = &tx.volume().geo;
    let spot = descend(tx, tree, hash)?;
    let header: LeafHeader = tx.read_pod(geo.offset(block))?;
    let depth =
        depth_of(&header, geo, spot.level, hash).map_err(|what| tree.bad_leaf(block, what))?;
    free_block(tx, tree, block)?;
    let mut run = 1usize << (spot.level * geo.fan_log2 - depth);
    let mut hash = prefix_of(hash, depth);
    let mut level = spot.level;
    let mut leaf = Some(block);
    while level > 0 {
        let index = spot.index_block(level);
        let first = first_bits(hash, level * geo.fan_log2);
        let from = slot_of(geo, first);
        if let Some(leaf) = leaf.take() {
            let mut own: SmallVec<[u64; 64]> = smallvec![0; run];
            read_slots(tx, index, from, &mut own)?;
            check_run(tree, geo, level, first, &own, run, leaf)?;
        }
        if others(tx, index, from..from + run as u64)? {
            return tx.put_zeros(geo.offset(index) + from * 8, run as u64);
        }
        free_block(tx, tree, index)?;
        level -= 1;
        run = 1;
        hash = prefix_of(hash, level * geo.fan_log2);
    }
    tree.root = Ptr::HOLE;
    Ok(())
}

/// Whether an index block has a pointer outside of some slots.
fn others(tx: &Tx<'_>, index: Bno, slots: Range<u64>) -> Result<bool> {
    let geo = &tx.volume().geo;
    for slot in (slots.end..1 << geo.fan_log2).chain(0..slots.start) {
        if tx.load_u64(geo.offset(index) + slot * 8)? != 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

fn free_block(tx: &mut Tx<'_>, tree: &mut TreeRef, block: Bno) -> Result<()> {
    tx.free_blocks(Run {
        start: block.0,
        len: 1,
    })?;
    tree.blocks -= 1;
    Ok(())
}

/// Replaces kind and value of an item by others of the same length, in place;
/// false when there is no such name. The cookie stays.
///
/// # Errors
/// [`Error::Invalid`] where the lengths differ, [`Error::Corrupt`].
pub fn set_value(
    tx: &mut Tx<'_>,
    tree: &TreeRef,
    name: &[u8],
    kind: u8,
    value: &[u8],
) -> Result<bool> {
    let Some(OccupiedEntry { block, hit, .. }) = find_in(tx, tree, name)? else {
        return Ok(false);
    };
    if usize::from(hit.head.value_len) != value.len() {
        return Err(Error::Invalid("a value of another length"));
    }
    let at = tx.volume().geo.leaf.slots_at + hit.slot * SLOT;
    let head = ItemHeader { kind, ..hit.head };
    let mut edit = LeafEdit::begin(tx, tree, block)?;
    edit.write(at, head.as_bytes())?;
    edit.write(at + ItemHeader::SIZE, value)?;
    edit.finish()?;
    Ok(true)
}

/// Takes down as much of a tree as fits the record, and leaves a smaller tree;
/// true when nothing is left. Values are not looked at, and neither are the
/// leaves themselves: a damaged leaf goes like any other.
///
/// # Errors
/// [`Error::Corrupt`] where a pointer is damaged.
pub fn free_step(tx: &mut Tx<'_>, tree: &mut TreeRef) -> Result<bool> {
    let gone = take_down(tx, tree, tree.root, 0, 0)?;
    if gone {
        tree.root = Ptr::HOLE;
    }
    Ok(gone)
}

/// Frees what slot `index` of a level points to; false where the record has no
/// more room, with what has been freed below taken out.
fn take_down(
    tx: &mut Tx<'_>,
    tree: &mut TreeRef,
    ptr: Ptr,
    level: u32,
    index: u64,
) -> Result<bool> {
    if ptr.is_hole() {
        return Ok(true);
    }
    let geo = &tx.volume().geo;
    let block = tree.open(geo, ptr, level, index)?;
    let mut cleared = 0;
    if !ptr.is_leaf() {
        if (level + 1) * geo.fan_log2 > HASH_BITS {
            return Err(tree.bad_pointer(level, index, "an index block where there can be none"));
        }
        // One without pointers is damage everywhere else. Here it may be what an
        // older version has left between two steps, and there is nothing below.
        let slots = read_index(tx, block)?;
        let mut last = None;
        for (slot, &w) in slots.iter().enumerate() {
            let (ptr, index) = (Ptr(w), index << geo.fan_log2 | slot as u64);
            // A leaf stands in several slots and is freed once.
            let again = ptr.is_leaf()
                && last == Some(ptr.block())
                && tree.open(geo, ptr, level + 1, index).is_ok();
            if !again && !take_down(tx, tree, ptr, level + 1, index)? {
                break;
            }
            last = Some(ptr.block()).filter(|_| ptr.is_leaf());
            cleared = slot + 1;
        }
        if cleared < slots.len() {
            clear(tx, block, cleared)?;
            return Ok(false);
        }
    }
    // The index blocks above it go in the same record if this was the last: no
    // record leaves one without pointers.
    let above = level as usize * BITS_ROOM;
    if tx.room() < CALLER_ROOM + STEP_ROOM + above {
        clear(tx, block, cleared)?;
        return Ok(false);
    }
    free_block(tx, tree, block)?;
    Ok(true)
}

/// Clears the first slots of an index block.
fn clear(tx: &mut Tx<'_>, index: Bno, slots: usize) -> Result<()> {
    if slots == 0 {
        return Ok(());
    }
    let at = tx.volume().geo.offset(index);
    tx.put_zeros(at, slots as u64)
}
