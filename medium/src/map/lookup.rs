//! Which blocks hold which part of a file.

use super::{MapRef, fan, slot};
use crate::error::Result;
use crate::media::pointer::Ptr;
use crate::media::walk::Leaf;
use crate::types::Bno;
use crate::volume::Volume;

/// A run of file blocks that lie one after the other in the region, or a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First file block.
    pub index: u64,
    /// File blocks.
    pub count: u64,
    /// Where the first is; `None` for a hole, and for what was lost.
    pub block: Option<Bno>,
    /// Allocated, reads as zeros.
    pub unwritten: bool,
    /// What was there could not be brought back: no hole.
    pub lost: bool,
    /// The pointer block of the lowest level that covers its first block, if
    /// there is one.
    pub table: Option<Bno>,
    /// Of a hole: the first file block under the pointer that says so, or
    /// [`BEYOND`]. What lies under it would be lost with that pointer.
    pub under: u64,
}

/// No pointer says it: the hole lies past what a tree of this height can hold.
pub(super) const BEYOND: u64 = u64::MAX;

impl Extent {
    /// Whether nothing was ever there, by the file map.
    #[inline]
    pub fn is_hole(&self) -> bool {
        self.block.is_none() && !self.lost
    }
}

/// The leaf, hole or mark of loss that covers `index` of a regular file.
///
/// # Errors
/// [`crate::Error::Corrupt`].
#[inline]
pub fn look(vol: &Volume, map: &MapRef, index: u64) -> Result<Leaf> {
    map.checked(&vol.geo)?.look(vol.medium(), index)
}

/// The leaf or hole that covers `index`, where nothing can be marked as lost.
///
/// # Errors
/// [`crate::Error::Corrupt`].
#[inline]
pub fn find(vol: &Volume, map: &MapRef, index: u64) -> Result<Leaf> {
    map.checked(&vol.geo)?.find(&vol.region, &vol.geo, index)
}

/// The extent that begins at `index`, of at most `max` blocks (at least one).
/// Neighbours in one pointer block are merged, and holes whatever their size;
/// what follows may still continue the extent. Only maps of regular
/// files may have lost extents: a caller refuses them in any other.
///
/// # Errors
/// [`crate::Error::Corrupt`].
#[inline]
pub fn run(vol: &Volume, map: &MapRef, index: u64, max: u64) -> Result<Extent> {
    let geo = &vol.geo;
    let root = map.checked(geo)?;
    let max = max.max(1).min(u64::MAX - index);
    if index >= root.capacity(geo) {
        return Ok(Extent {
            index,
            count: max,
            block: None,
            unwritten: false,
            lost: false,
            table: None,
            under: if map.root.is_hole() { 0 } else { BEYOND },
        });
    }
    // Down to the pointer block of the lowest level.
    let (mut level, mut ptr) = (map.height, map.root);
    let mut home = None;
    let block = loop {
        if ptr.is_hole() {
            return hole(vol, map, index, (level, home), max);
        }
        let at = map.at(geo, level, index);
        let block = match root.open(geo, ptr, at) {
            Err(_) if ptr.is_lost(at) => return lost(vol, map, index, (level, home), max),
            opened => opened?,
        };
        if level == 0 || ptr.is_leaf() {
            break block;
        }
        level -= 1;
        home = Some(block);
        ptr = Ptr(vol
            .region
            .load_u64(geo.offset(block) + slot(geo, level, index) * 8)?);
    };
    let unwritten = ptr.is_unwritten();
    if ptr.is_leaf() {
        let within = index & (fan(geo) - 1);
        let count = max.min(fan(geo) - within);
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
        let first = slot(geo, 0, index);
        let most = max.min(fan(geo) - first);
        while count < most {
            let next = Ptr(vol
                .region
                .load_u64(geo.offset(table) + (first + count) * 8)?);
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

/// What was lost at `index`, as the pointer of level `level` says, which stands
/// in `home` or is the root; with what its neighbours behind it say.
#[cold]
fn lost(
    vol: &Volume,
    map: &MapRef,
    index: u64,
    (level, home): (u32, Option<Bno>),
    max: u64,
) -> Result<Extent> {
    let geo = &vol.geo;
    let shift = geo.fan_log2 * level;
    let mut end = ((index >> shift) + 1) << shift;
    if let Some(table) = home {
        let mut next = slot(geo, level, index) + 1;
        while next < fan(geo) && end - index < max {
            let ptr = Ptr(vol.region.load_u64(geo.offset(table) + next * 8)?);
            if !ptr.is_lost(map.at(geo, level, end)) {
                break;
            }
            (next, end) = (next + 1, end + (1 << shift));
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

/// The hole at `index`, whose pointer of level `level` is zero, and stands in
/// `home` or is the root.
#[cold]
fn hole(
    vol: &Volume,
    map: &MapRef,
    index: u64,
    (level, home): (u32, Option<Bno>),
    max: u64,
) -> Result<Extent> {
    let geo = &vol.geo;
    let shift = geo.fan_log2 * level;
    let mut end = ((index >> shift) + 1) << shift;
    if let Some(table) = home {
        map.root()
            .has_pointers(vol.medium(), table, map.at(geo, level, index))?;
        // The slots behind it are at hand.
        let mut next = slot(geo, level, index) + 1;
        while next < fan(geo)
            && end - index < max
            && vol.region.load_u64(geo.offset(table) + next * 8)? == 0
        {
            (next, end) = (next + 1, end + (1 << shift));
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
        under: index >> shift << shift,
    })
}

/// Where a part of a file lies: the blocks that one pointer of level 1 covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// In one piece, all of it written.
    Leaf(Bno),
    /// Where the pointers of this block say.
    Table(Bno),
}

/// The part that holds file block `index`; `None` where it is a hole, is not
/// written, was lost, or the tree is too low to have parts.
///
/// # Errors
/// [`crate::Error::Corrupt`].
pub fn part(vol: &Volume, map: &MapRef, index: u64) -> Result<Option<Part>> {
    let geo = &vol.geo;
    let root = map.checked(geo)?;
    if map.height == 0 || index >= root.capacity(geo) {
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
            .region
            .load_u64(geo.offset(block) + slot(geo, level, index) * 8)?);
    }
    Ok(None)
}

/// The block of file block `index` by the pointer block of its part; `None`
/// for a hole, where it is not written, and for what was lost, which has the
/// same flag.
///
/// # Errors
/// [`crate::Error::Corrupt`].
#[inline]
pub fn in_table(vol: &Volume, map: &MapRef, table: Bno, index: u64) -> Result<Option<Bno>> {
    let geo = &vol.geo;
    let at = geo.offset(table) + slot(geo, 0, index) * 8;
    let ptr = Ptr(vol.region.load_u64(at)?);
    if ptr.is_hole() || ptr.is_unwritten() {
        return Ok(None);
    }
    map.root().open(geo, ptr, map.at(geo, 0, index)).map(Some)
}
