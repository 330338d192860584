//! Removes items, replaces values, and frees a whole tree in steps.
//!
//! Removal never takes a block, so it works in a full region.

use std::ops::Range;

use smallvec::{SmallVec, smallvec};
use zerocopy::IntoBytes;

use super::edit::LeafEdit;
use super::leaf::depth_of;
use super::walk::{OccupiedEntry, check_run, descend, find_in, read_index, read_slots, slot_of};
use super::{CALLER_ROOM, HASH_BITS, MAX_LEVELS, TreeKind, TreeRef, first_bits, prefix_of};
use crate::error::{Error, Result};
use crate::media::htree::{ItemHeader, LeafHeader, SLOT, TAG_FREE};
use crate::media::pointer::Ptr;
use crate::types::{BlockRun, Bno};
use crate::volume::Record;

/// Bytes of a record for the pointers of an unfinished step: one entry of zeros for
/// each level.
const STEP_ROOM: usize = (MAX_LEVELS + 1) * 16;
/// Maximum number of bytes of a record for the bit of a freed block.
const BITS_ROOM: usize = 48;

/// Removes an item. Returns false if it does not exist. Removing the last item of a
/// leaf also frees the leaf and the index blocks that become empty. As an exception,
/// a directory keeps a leaf that is its root.
///
/// After an error the caller must drop the transaction.
///
/// # Errors
/// [`Error::Corrupt`].
pub fn remove(tx: &mut Record<'_>, tree: &mut TreeRef, name: &[u8]) -> Result<bool> {
    match find_in(tx, tree, name)? {
        Some(found) => remove_found(tx, tree, &found).map(|()| true),
        None => Ok(false),
    }
}

/// As [`remove`], for an item that was found and has not changed since.
///
/// # Errors
/// As for [`remove`].
pub fn remove_found(tx: &mut Record<'_>, tree: &mut TreeRef, found: &OccupiedEntry) -> Result<()> {
    let OccupiedEntry { level, block, hit } = found;
    let mut edit = LeafEdit::begin(tx, tree, *block)?;
    // An emptied directory is often refilled, so it keeps its only leaf until it is
    // removed.
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
fn free_leaf(tx: &mut Record<'_>, tree: &mut TreeRef, block: Bno, hash: u64) -> Result<()> {
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
            return tx.put_zeros(geo.offset(index).word(from), run as u64);
        }
        free_block(tx, tree, index)?;
        level -= 1;
        run = 1;
        hash = prefix_of(hash, level * geo.fan_log2);
    }
    tree.root = Ptr::HOLE;
    Ok(())
}

/// Tells whether an index block has a pointer outside the range `slots`.
fn others(tx: &Record<'_>, index: Bno, slots: Range<u64>) -> Result<bool> {
    let geo = &tx.volume().geo;
    for slot in (slots.end..1 << geo.fan_log2).chain(0..slots.start) {
        if tx.load_u64(geo.offset(index).word(slot))? != 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

fn free_block(tx: &mut Record<'_>, tree: &mut TreeRef, block: Bno) -> Result<()> {
    tx.free_blocks(BlockRun::one(block))?;
    tree.blocks -= 1;
    Ok(())
}

/// Replaces kind and value of an item in place. The new value has the same length.
/// Returns false if the name does not exist. The cookie stays the same.
///
/// # Errors
/// [`Error::Invalid`] if the lengths differ; [`Error::Corrupt`].
pub fn set_value(
    tx: &mut Record<'_>,
    tree: &TreeRef,
    name: &[u8],
    kind: u8,
    value: &[u8],
) -> Result<bool> {
    let Some(OccupiedEntry { block, hit, .. }) = find_in(tx, tree, name)? else {
        return Ok(false);
    };
    if usize::from(hit.head.value_len) != value.len() {
        return Err(Error::Invalid("a value of a different length"));
    }
    let at = tx.volume().geo.leaf.slots_at + hit.slot * SLOT;
    let head = ItemHeader { kind, ..hit.head };
    let mut edit = LeafEdit::begin(tx, tree, block)?;
    edit.write(at, head.as_bytes())?;
    edit.write(at + ItemHeader::SIZE, value)?;
    edit.finish()?;
    Ok(true)
}

/// Frees as much of a tree as fits the record and leaves a valid smaller tree.
/// Returns true if nothing is left. Reads neither values nor leaves, so it frees a
/// damaged leaf like any other.
///
/// # Errors
/// [`Error::Corrupt`] if a pointer is damaged.
pub fn free_step(tx: &mut Record<'_>, tree: &mut TreeRef) -> Result<bool> {
    let gone = take_down(tx, tree, tree.root, 0, 0)?;
    if gone {
        tree.root = Ptr::HOLE;
    }
    Ok(gone)
}

/// Frees the subtree of slot `index` of a level. Returns false if the record has no
/// more room; the pointers to the blocks freed so far are then cleared.
fn take_down(
    tx: &mut Record<'_>,
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
            return Err(tree.bad_pointer(level, index, "an index block past the last level"));
        }
        // Everywhere else an index block without pointers is damage. Here an older
        // version may have left it between two steps, and nothing lies below it.
        let slots = read_index(tx, block)?;
        let mut last = None;
        for (slot, &w) in slots.iter().enumerate() {
            let (ptr, index) = (Ptr(w), index << geo.fan_log2 | slot as u64);
            // Several slots can name one leaf, which is freed once.
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
    // If this is the last pointer, the same record must also free the index blocks
    // above: no record leaves an index block without pointers.
    let above = level as usize * BITS_ROOM;
    if tx.room() < CALLER_ROOM + STEP_ROOM + above {
        clear(tx, block, cleared)?;
        return Ok(false);
    }
    free_block(tx, tree, block)?;
    Ok(true)
}

/// Clears the first slots of an index block.
fn clear(tx: &mut Record<'_>, index: Bno, slots: usize) -> Result<()> {
    if slots == 0 {
        return Ok(());
    }
    let at = tx.volume().geo.offset(index);
    tx.put_zeros(at, slots as u64)
}
