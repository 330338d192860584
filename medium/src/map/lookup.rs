//! Finds the blocks that hold a part of a file.

use super::MapRef;
use crate::error::Result;
use crate::media::pointer::Ptr;
use crate::media::walk::Leaf;
use crate::types::{Bno, FileBlock};
use crate::volume::{Record, Volume};

/// A run of file blocks that are consecutive in the region, a hole, or a lost range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First file block.
    pub index: FileBlock,
    /// Number of file blocks.
    pub count: u64,
    /// Block of the first file block; `None` for a hole or a lost range.
    pub block: Option<Bno>,
    /// Allocated, reads as zeros.
    pub unwritten: bool,
    /// The range is lost: a repair could not recover it. It is not a hole.
    pub lost: bool,
    /// The pointer block of the lowest level that covers the first file block, if
    /// there is one.
    pub table: Option<Bno>,
    /// For a hole: the first file block that its zero pointer covers, or
    /// [`FileBlock::END`] if it lies past the end of a tree of this height. Damage to that
    /// pointer would lose all file blocks that it covers.
    pub under: FileBlock,
}

impl Extent {
    /// Tells whether the extent is a hole rather than a lost range.
    #[inline]
    pub fn is_hole(&self) -> bool {
        self.block.is_none() && !self.lost
    }
}

/// Returns the leaf, hole or loss mark that covers `index` of a regular file.
///
/// # Errors
/// [`crate::Error::Corrupt`].
#[inline]
pub fn look(vol: &Volume, map: &MapRef, index: FileBlock) -> Result<Leaf> {
    map.checked(&vol.geo)?.look(vol.medium(), index)
}

/// Returns the leaf or hole that covers `index` in a map that cannot have loss marks.
///
/// # Errors
/// [`crate::Error::Corrupt`].
#[inline]
pub fn find(vol: &Volume, map: &MapRef, index: FileBlock) -> Result<Leaf> {
    map.checked(&vol.geo)?.find(&vol.region, &vol.geo, index)
}

/// Returns the leaf, hole or loss mark that covers `index` of a regular file as it will be after
/// a record.
///
/// # Errors
/// [`crate::Error::Corrupt`].
pub fn leaf_after(tx: &Record<'_>, map: &MapRef, index: FileBlock) -> Result<Leaf> {
    let geo = &tx.volume().geo;
    let root = map.checked(geo)?;
    let end = root.end(geo);
    let none = |first: FileBlock, count, lost| Leaf {
        first,
        count,
        block: None,
        unwritten: false,
        lost,
    };
    if index >= end {
        return Ok(none(end, FileBlock::END - end, false));
    }
    let (mut level, mut ptr) = (map.height, map.root);
    loop {
        let (first, count) = (geo.first_under(level, index), geo.span(level));
        if ptr.is_hole() {
            return Ok(none(first, count, false));
        }
        let at = map.at(geo, level, index);
        let block = match root.open(geo, ptr, at) {
            Err(_) if ptr.is_lost(at) => return Ok(none(first, count, true)),
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
        ptr = Ptr(tx.load_u64(geo.offset(block).word(slot))?);
    }
}

/// Returns the extent that begins at `index`, of at most `max` blocks (at least
/// one). Merges neighbours in one pointer block, and holes of any size. The next
/// extent may still continue this one. Only maps of regular files may have lost
/// extents: the caller refuses them in any other map.
///
/// # Errors
/// [`crate::Error::Corrupt`].
#[inline]
pub fn run(vol: &Volume, map: &MapRef, index: FileBlock, max: u64) -> Result<Extent> {
    let geo = &vol.geo;
    let root = map.checked(geo)?;
    let max = max.max(1).min(FileBlock::END - index);
    if index >= root.end(geo) {
        return Ok(Extent {
            index,
            count: max,
            block: None,
            unwritten: false,
            lost: false,
            table: None,
            under: if map.root.is_hole() {
                FileBlock(0)
            } else {
                FileBlock::END
            },
        });
    }
    // Walk down to the pointer block of the lowest level.
    let (mut level, mut ptr) = (map.height, map.root);
    let mut home = None;
    let block = loop {
        if ptr.is_hole() {
            return hole(vol, map, index, level, home, max);
        }
        let at = map.at(geo, level, index);
        let block = match root.open(geo, ptr, at) {
            Err(_) if ptr.is_lost(at) => return lost(vol, map, index, level, home, max),
            opened => opened?,
        };
        if level == 0 || ptr.is_leaf() {
            break block;
        }
        level -= 1;
        home = Some(block);
        ptr = Ptr(vol
            .medium()
            .load_u64(geo.offset(block).word(geo.slot_at(level, index)))?);
    };
    let unwritten = ptr.is_unwritten();
    if ptr.is_leaf() {
        let within = geo.slot_of(index);
        let count = max.min(geo.fan() - within);
        return Ok(Extent {
            index,
            count,
            block: Some(Bno(block.0 + within)),
            unwritten,
            lost: false,
            table: None,
            under: index,
        });
    }
    let mut count = 1;
    if let Some(table) = home {
        let first = geo.slot_of(index);
        let most = max.min(geo.fan() - first);
        while count < most {
            let next = Ptr(vol
                .medium()
                .load_u64(geo.offset(table).word(first + count))?);
            if next.block().0 != block.0 + count
                || next.flags() != ptr.flags()
                || root.open(geo, next, map.at(geo, 0, index + count)).is_err()
            {
                break;
            }
            count += 1;
        }
    }
    Ok(Extent {
        index,
        count,
        block: Some(block),
        unwritten,
        lost: false,
        table: home,
        under: index,
    })
}

/// Returns the lost extent at `index`. Its loss mark, of level `level`, is in `home`
/// or is the root. Includes the loss marks that follow in `home`.
#[cold]
fn lost(
    vol: &Volume,
    map: &MapRef,
    index: FileBlock,
    level: u32,
    home: Option<Bno>,
    max: u64,
) -> Result<Extent> {
    let geo = &vol.geo;
    let mut end = geo.end_under(level, index);
    if let Some(table) = home {
        let mut next = geo.slot_at(level, index) + 1;
        while next < geo.fan() && end - index < max {
            let ptr = Ptr(vol.medium().load_u64(geo.offset(table).word(next))?);
            if !ptr.is_lost(map.at(geo, level, end)) {
                break;
            }
            (next, end) = (next + 1, end + geo.span(level));
        }
    }
    Ok(Extent {
        index,
        count: max.min(end - index),
        block: None,
        unwritten: false,
        lost: true,
        table: home.filter(|_| level == 0),
        under: index,
    })
}

/// Returns the hole at `index`. Its zero pointer, of level `level`, is in `home` or is
/// the root.
#[cold]
fn hole(
    vol: &Volume,
    map: &MapRef,
    index: FileBlock,
    level: u32,
    home: Option<Bno>,
    max: u64,
) -> Result<Extent> {
    let geo = &vol.geo;
    let mut end = geo.end_under(level, index);
    if let Some(table) = home {
        map.root()
            .has_pointers(vol.medium(), table, map.at(geo, level, index))?;
        // Read the following slots directly from the same pointer block.
        let mut next = geo.slot_at(level, index) + 1;
        while next < geo.fan()
            && end - index < max
            && vol.medium().load_u64(geo.offset(table).word(next))? == 0
        {
            (next, end) = (next + 1, end + geo.span(level));
        }
    }
    while end - index < max {
        let leaf = look(vol, map, end)?;
        if leaf.block.is_some() || leaf.lost {
            break;
        }
        end = leaf.first.saturating_add(leaf.count);
    }
    Ok(Extent {
        index,
        count: max.min(end - index),
        block: None,
        unwritten: false,
        lost: false,
        table: home.filter(|_| level == 0),
        under: geo.first_under(level, index),
    })
}

/// The location of a part: the file blocks that one pointer of level 1 covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// One contiguous, written leaf.
    Leaf(Bno),
    /// A pointer block that names the data blocks.
    Table(Bno),
}

/// Returns the part that holds file block `index`, or `None` if the part is a hole,
/// unwritten or lost, or the tree is too low to have parts.
///
/// # Errors
/// [`crate::Error::Corrupt`].
pub fn part(vol: &Volume, map: &MapRef, index: FileBlock) -> Result<Option<Part>> {
    let geo = &vol.geo;
    let root = map.checked(geo)?;
    if map.height == 0 || index >= root.end(geo) {
        return Ok(None);
    }
    let (mut level, mut ptr) = (map.height, map.root);
    while !ptr.is_hole() {
        let at = map.at(geo, level, index);
        let block = match root.open(geo, ptr, at) {
            Err(_) if ptr.is_lost(at) => return Ok(None),
            opened => opened?,
        };
        if ptr.is_leaf() {
            return Ok((level == 1 && !ptr.is_unwritten()).then_some(Part::Leaf(block)));
        }
        if level == 1 {
            return Ok(Some(Part::Table(block)));
        }
        level -= 1;
        ptr = Ptr(vol
            .medium()
            .load_u64(geo.offset(block).word(geo.slot_at(level, index)))?);
    }
    Ok(None)
}

/// Returns the block of file block `index` according to the pointer block of its
/// part. Returns `None` for a hole, an unwritten block and a lost block, which has the
/// same flag.
///
/// # Errors
/// [`crate::Error::Corrupt`].
#[inline]
pub fn in_table(vol: &Volume, map: &MapRef, table: Bno, index: FileBlock) -> Result<Option<Bno>> {
    let geo = &vol.geo;
    let at = geo.offset(table).word(geo.slot_of(index));
    let ptr = Ptr(vol.medium().load_u64(at)?);
    if ptr.is_hole() || ptr.is_unwritten() {
        return Ok(None);
    }
    map.root().open(geo, ptr, map.at(geo, 0, index)).map(Some)
}
