//! The write side of the file map: a radix tree of block pointers whose leaves
//! are single blocks or 2 MiB.
//!
//! Invariants:
//!
//! - Every pointer is checked before it is followed.
//! - A pointer block becomes reachable only when complete, and is never without a
//!   pointer.
//! - Pointers in use change only through the record of a [`Record`].
//! - After an error the caller drops the transaction and the [`MapRef`], and nothing
//!   has changed.
//!
//! The caller locks the inode, puts it with the new root into the same record, and
//! writes the data blocks.

mod count;
mod insert;
mod lookup;
mod lost;
mod remove;
mod replace;
mod scrub;
#[cfg(test)]
mod tests;
#[cfg(any(test, feature = "testing"))]
mod visit;

pub use count::count;
pub use insert::{insert, insert_huge, insert_into, plan, plan_huge, set_written};
pub use lookup::{Extent, Part, find, in_table, leaf_after, look, part, run};
pub use lost::{is_any_lost, lose, lost_blocks};
pub use remove::remove;
pub use replace::{Table, move_table, replace, tables_above};
pub use scrub::{MapStep, Tables, step};
#[cfg(any(test, feature = "testing"))]
pub use visit::{Node, visit};

use crate::error::{Damage, Error, Result};
use crate::media::pointer::{Ptr, PtrAt};
use crate::media::record::EntryKind;
use crate::media::walk::{EMPTY_TABLE, MapRoot};
use crate::media::{DiskInode, Geometry};
use crate::types::{Bno, FileBlock, Ino};
use crate::volume::{Record, Volume};

/// Bytes of a record that operations on the map reserve for their caller: the
/// inode, in up to two homes, and a slot of the orphan table.
pub const RESERVED_BYTES: usize = 560;
/// Bytes that one changed word of a bitmap takes in a record.
const BIT_WORD: usize = 24;
/// Bytes that one pointer or one range of zeros takes in a record.
const ONE_WORD: usize = 16;
/// Largest shift of a file block number. A map with more levels is damaged.
const MAX_SHIFT: u32 = 57;

/// The file map of an inode with the changes of a transaction. It does not outlive
/// that transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapRef {
    /// Owner.
    pub ino: Ino,
    /// Root pointer.
    pub root: Ptr,
    /// Levels of pointer blocks below it.
    pub height: u32,
    /// Change in the number of owned blocks, including pointer blocks.
    pub blocks: i64,
    /// Loss marks were removed.
    pub healed: bool,
}

/// The position of a walk down the tree.
#[derive(Debug, Clone, Copy)]
struct Step {
    /// Level of `ptr`.
    level: u32,
    /// The current pointer, not opened yet.
    ptr: Ptr,
    /// The pointer block that holds `ptr`; `None` for the root.
    home: Option<Bno>,
    /// `ptr` is a loss mark.
    lost: bool,
}

impl Step {
    /// Tells whether nothing is mapped there.
    fn is_free(&self) -> bool {
        self.ptr.is_hole() || self.lost
    }
}

impl From<MapRoot> for MapRef {
    /// Begins the changes of a map.
    #[inline]
    fn from(map: MapRoot) -> MapRef {
        MapRef {
            ino: map.ino,
            root: map.root,
            height: map.height,
            blocks: 0,
            healed: false,
        }
    }
}

impl MapRef {
    /// Returns the file map of an inode.
    #[inline]
    pub fn of(d: &DiskInode) -> MapRef {
        MapRoot::of(d).into()
    }

    /// Stores a changed file map in its inode, and adds the blocks that it gained to the
    /// inode's count: both stay equal in every record. Once for each change.
    #[inline]
    pub fn store(&self, d: &mut DiskInode) {
        d.root = self.root.0;
        d.height = self.height as u8;
        d.blocks = d.blocks.saturating_add_signed(self.blocks);
    }

    /// Returns the map for reading.
    #[inline]
    pub fn root(&self) -> MapRoot {
        MapRoot {
            ino: self.ino,
            root: self.root,
            height: self.height,
        }
    }

    /// Returns the root after a check that its height is possible.
    #[inline]
    fn checked(&self, geo: &Geometry) -> Result<MapRoot> {
        if geo.fan_log2 * self.height > MAX_SHIFT {
            return Err(self.too_high());
        }
        Ok(self.root())
    }

    #[cold]
    fn too_high(&self) -> Error {
        Error::corrupt(
            Damage::InodeField,
            self.ino,
            format!("a file map of {} levels", self.height),
        )
    }

    #[inline]
    fn at(&self, geo: &Geometry, level: u32, index: FileBlock) -> PtrAt {
        self.root().at(geo, level, index)
    }

    /// A pointer block without pointers: it was lost.
    #[cold]
    fn empty_table(&self, index: FileBlock) -> Error {
        Error::corrupt(
            Damage::MapEmpty,
            (self.ino, format!("{}, block {}", self.ino, index.0)),
            EMPTY_TABLE,
        )
    }

    #[cold]
    fn damaged(&self, index: FileBlock, what: &str) -> Error {
        Error::corrupt(
            Damage::MapPointer,
            (self.ino, format!("{}, block {}", self.ino, index.0)),
            what,
        )
    }
}

/// Checks that a file may have a block `last`.
#[inline]
fn check_last(geo: &Geometry, last: FileBlock) -> Result<()> {
    if last > geo.file_block(geo.max_file_size()) {
        return Err(Error::TooLarge(last.0.saturating_mul(geo.block_size)));
    }
    Ok(())
}

/// Returns the number of levels that a map with a block `last` needs.
fn height_for(vol: &Volume, last: FileBlock) -> Result<u32> {
    let geo = &vol.geo;
    check_last(geo, last)?;
    let mut height = 0;
    while geo.index_at(height, last) != 0 {
        height += 1;
    }
    Ok(height)
}

/// Walks down to the pointer of level `to` that covers `index`, or to the hole,
/// leaf or loss mark above it. `index` is within the capacity of the tree.
fn descend(tx: &Record<'_>, map: &MapRef, index: FileBlock, to: u32) -> Result<Step> {
    let geo = &tx.volume().geo;
    let root = map.checked(geo)?;
    let mut step = Step {
        level: map.height,
        ptr: map.root,
        home: None,
        lost: false,
    };
    while step.level > to && !step.ptr.is_hole() {
        let at = map.at(geo, step.level, index);
        let block = match root.open(geo, step.ptr, at) {
            Err(_) if step.ptr.is_lost(at) => break,
            opened => opened?,
        };
        if step.ptr.is_leaf() {
            break;
        }
        step.level -= 1;
        let place = geo.offset(block).word(geo.slot_at(step.level, index));
        step = Step {
            ptr: Ptr(tx.load_u64(place)?),
            home: Some(block),
            ..step
        }
    }
    step.lost = step.ptr.is_lost(map.at(geo, step.level, index));
    Ok(step)
}

/// Stores words in consecutive slots of a pointer block.
fn put_slots(tx: &mut Record<'_>, block: Bno, first: u64, words: &[u64]) -> Result<()> {
    use zerocopy::IntoBytes;
    let place = tx.volume().geo.offset(block).word(first);
    if tx.is_new(block) {
        tx.write_new(place, words.as_bytes())
    } else {
        tx.put(EntryKind::Pointer, place, words.as_bytes())
    }
}

/// Stores the pointer that covers `index` at the position of a walk.
fn put_pointer(
    tx: &mut Record<'_>,
    map: &mut MapRef,
    step: &Step,
    index: FileBlock,
    ptr: Ptr,
) -> Result<()> {
    match step.home {
        None => map.root = ptr,
        Some(block) => {
            let slot = tx.volume().geo.slot_at(step.level, index);
            put_slots(tx, block, slot, &[ptr.0])?;
        }
    }
    Ok(())
}
