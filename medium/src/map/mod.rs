//! The write side of the file map: a radix tree of block pointers whose leaves
//! are single blocks or 2 MiB.
//!
//! Invariants: every pointer is checked before it is followed; a pointer block
//! is reachable only when whole, and never without a pointer; pointers in use change through the record of a
//! [`Tx`] and nothing else. After an error the transaction and the [`MapRef`]
//! are dropped, and nothing has happened.
//!
//! Left to others: the inode that holds the root (the caller puts it into the
//! same record), its lock, and the contents of data blocks.

mod count;
mod insert;
mod lookup;
mod lost;
mod remove;
#[cfg(test)]
mod tests;
#[cfg(any(test, feature = "testing"))]
mod visit;

pub use count::count;
pub use insert::{insert, insert_huge, insert_into, plan, plan_huge, set_written};
pub use lookup::{Extent, Part, find, in_table, look, part, run};
pub use lost::{is_any_lost, lost_blocks};
pub use remove::remove;
#[cfg(any(test, feature = "testing"))]
pub use visit::{Node, visit};

use crate::error::{Damage, Error, Result};
use crate::media::Geometry;
use crate::media::pointer::{Ptr, PtrAt};
use crate::media::record::EntryKind;
use crate::media::walk::MapRoot;
use crate::types::{Bno, Ino};
use crate::volume::{Tx, Volume};

/// Bytes of a record that operations on the map leave free for what their
/// caller adds: the inode, in up to two homes, and a slot of the orphan table.
pub const RESERVED_BYTES: usize = 560;
/// Bytes that one changed word of a bitmap takes in a record.
const BIT_WORD: usize = 24;
/// Bytes that one pointer, or one range of zeros, takes in a record.
const ONE_WORD: usize = 16;
/// Largest shift of a file block's number: more levels than that are damage.
const MAX_SHIFT: u32 = 57;

/// The file map of an inode, with the changes that a transaction makes. It
/// lives no longer than that transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapRef {
    /// Owner.
    pub ino: Ino,
    /// Root pointer.
    pub root: Ptr,
    /// Levels of pointer blocks below it.
    pub height: u32,
    /// Change of the number of blocks owned, pointer blocks included.
    pub blocks: i64,
    /// Marks of loss were taken away.
    pub healed: bool,
}

/// Where a walk down the tree has come to.
#[derive(Debug, Clone, Copy)]
struct Step {
    /// Level of `ptr`.
    level: u32,
    /// Not opened yet.
    ptr: Ptr,
    /// The pointer block that holds `ptr`; `None`: it is the root.
    home: Option<Bno>,
    /// `ptr` is a mark of loss.
    lost: bool,
}

impl Step {
    /// Nothing is mapped there.
    fn is_free(&self) -> bool {
        self.ptr.is_hole() || self.lost
    }
}

impl MapRef {
    /// For reading.
    #[inline]
    pub fn root(&self) -> MapRoot {
        MapRoot {
            ino: self.ino,
            root: self.root,
            height: self.height,
        }
    }

    /// The root, with a height that can be right.
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
            self.ino.to_string(),
            format!("a file map of {} levels", self.height),
        )
    }

    #[inline]
    fn at(&self, geo: &Geometry, level: u32, index: u64) -> PtrAt {
        PtrAt {
            fs_seed: geo.seed,
            ino: self.ino,
            level,
            index: index >> (geo.fan_log2 * level),
        }
    }

    #[cold]
    fn damaged(&self, index: u64, what: &str) -> Error {
        Error::corrupt(
            Damage::MapPointer,
            format!("{}, block {index}", self.ino),
            what,
        )
    }
}

/// Slot of the entry of level `level` that covers `index`, in its pointer block.
#[inline]
fn slot(geo: &Geometry, level: u32, index: u64) -> u64 {
    index >> (geo.fan_log2 * level) & (fan(geo) - 1)
}

/// Pointers of a block.
#[inline]
fn fan(geo: &Geometry) -> u64 {
    1 << geo.fan_log2
}

/// A file may have a block `last`.
#[inline]
fn check_last(geo: &Geometry, last: u64) -> Result<()> {
    if last > geo.max_file_size() >> geo.block_log2 {
        return Err(Error::TooLarge(last.saturating_mul(geo.block_size)));
    }
    Ok(())
}

/// Levels that a map needs to have a block `last`.
fn height_for(vol: &Volume, last: u64) -> Result<u32> {
    let geo = &vol.geo;
    check_last(geo, last)?;
    let mut height = 0;
    while last >> (geo.fan_log2 * height) != 0 {
        height += 1;
    }
    Ok(height)
}

/// Walks down to the pointer of level `to` that covers `index`, or to the hole,
/// leaf or mark of loss above it. `index` is within the capacity of the tree.
fn descend(tx: &Tx<'_>, map: &MapRef, index: u64, to: u32) -> Result<Step> {
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
        let place = geo.offset(block) + slot(geo, step.level, index) * 8;
        step = Step {
            ptr: Ptr(tx.load_u64(place)?),
            home: Some(block),
            ..step
        }
    }
    step.lost = step.ptr.is_lost(map.at(geo, step.level, index));
    Ok(step)
}

/// Stores words to consecutive slots of a pointer block.
fn put_slots(tx: &mut Tx<'_>, block: Bno, first: u64, words: &[u64]) -> Result<()> {
    use zerocopy::IntoBytes;
    let place = tx.volume().geo.offset(block) + first * 8;
    if tx.is_new(block) {
        tx.write_new(place, words.as_bytes())
    } else {
        tx.put(EntryKind::Pointer, place, words.as_bytes())
    }
}

/// Stores the pointer of level `level` that covers `index`, where a walk found
/// its place.
fn put_pointer(tx: &mut Tx<'_>, map: &mut MapRef, step: &Step, index: u64, ptr: Ptr) -> Result<()> {
    match step.home {
        None => map.root = ptr,
        Some(block) => {
            let slot = slot(&tx.volume().geo, step.level, index);
            put_slots(tx, block, slot, &[ptr.0])?;
        }
    }
    Ok(())
}
