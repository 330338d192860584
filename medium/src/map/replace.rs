//! Gives blocks of a file other places.
//!
//! The bytes of the new blocks are new data of the same transaction. The pointers change in place,
//! so the rest of the map stays as it is, and so does the number of blocks.

use zerocopy::IntoBytes;

use super::{MapRef, descend, put_pointer, put_slots};
use crate::error::Result;
use crate::media::pointer::Ptr;
use crate::types::{BlockRun, Bno, FileBlock};
use crate::volume::{Plan, Volume};

/// A pointer block of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// The block.
    pub block: Bno,
    /// The level of the pointer to it: its own pointers have one level less.
    pub level: u32,
    /// First file block that it covers.
    pub first: FileBlock,
}

/// Returns the pointer blocks above a file block, from the root down.
///
/// # Errors
/// [`crate::Error::Corrupt`].
pub fn tables_above(vol: &Volume, map: &MapRef, index: FileBlock) -> Result<Vec<Table>> {
    let geo = &vol.geo;
    let root = map.checked(geo)?;
    let mut tables = Vec::new();
    if index >= root.end(geo) {
        return Ok(tables);
    }
    let (mut level, mut ptr) = (map.height, map.root);
    while level > 0 && !ptr.is_hole() {
        let at = map.at(geo, level, index);
        let block = match root.open(geo, ptr, at) {
            Err(_) if ptr.is_lost(at) => break,
            opened => opened?,
        };
        if ptr.is_leaf() {
            break;
        }
        let first = geo.first_under(level, index);
        tables.push(Table {
            block,
            level,
            first,
        });
        level -= 1;
        let slot = geo.slot_at(level, index);
        ptr = Ptr(vol.medium().load_u64(geo.offset(block).word(slot))?);
    }
    Ok(tables)
}

/// Replaces the blocks of `old`, which follow each other from `index` on under pointers of their
/// own, by as many of `new`, and frees them. Flags of the pointers stay.
///
/// # Errors
/// [`crate::Error::Corrupt`] if other blocks are there; a full record.
pub fn replace(
    tx: &mut Plan<'_>,
    map: &mut MapRef,
    index: FileBlock,
    old: BlockRun,
    new: Bno,
) -> Result<()> {
    let geo = &tx.volume().geo;
    let root = map.checked(geo)?;
    let mut done = 0;
    while done < old.len {
        let at = index + done;
        let step = descend(tx, map, at, 0)?;
        if step.is_free() || step.level > 0 {
            return Err(map.damaged(at, "it should have a block of its own and has none"));
        }
        let n = match step.home {
            Some(_) => (old.len - done).min(geo.fan() - geo.slot_of(at)),
            None => 1,
        };
        let mut words = vec![step.ptr.0; n as usize];
        if let Some(table) = step.home {
            let place = geo.offset(table).word(geo.slot_of(at));
            tx.read(place, words.as_mut_bytes())?;
        }
        for (i, word) in (0..n).zip(&mut words) {
            let (ptr, place) = (Ptr(*word), map.at(geo, 0, at + i));
            if root.open(geo, ptr, place)? != old.start.after(done + i) {
                return Err(map.damaged(at + i, "it has another block than expected"));
            }
            *word = Ptr::new(new.after(done + i), ptr.flags(), place).0;
        }
        match step.home {
            Some(table) => put_slots(tx, table, geo.slot_of(at), &words)?,
            None => map.root = Ptr(words[0]),
        }
        done += n;
    }
    tx.free_blocks(old)
}

/// Moves a pointer block to `new`, a block of this transaction, and frees the old one. Of several
/// pointer blocks, the upper ones come first: no other change of `table` is in the record yet.
///
/// # Errors
/// [`crate::Error::Corrupt`] if another block is there; a full record.
pub fn move_table(tx: &mut Plan<'_>, map: &mut MapRef, table: Table, new: Bno) -> Result<()> {
    let geo = &tx.volume().geo;
    let step = descend(tx, map, table.first, table.level)?;
    let at = map.at(geo, table.level, table.first);
    let is_there = step.level == table.level
        && !step.is_free()
        && !step.ptr.is_leaf()
        && map.root().open(geo, step.ptr, at)? == table.block;
    if !is_there {
        return Err(map.damaged(table.first, "its pointer block is not where it was"));
    }
    let mut words = vec![0u64; geo.fan() as usize];
    tx.read(geo.offset(table.block), words.as_mut_bytes())?;
    tx.write_new(geo.offset(new), words.as_bytes())?;
    let ptr = Ptr::new(new, step.ptr.flags(), at);
    put_pointer(tx, map, &step, table.first, ptr)?;
    tx.free_blocks(BlockRun::one(table.block))
}
