//! Loss marks in a file map: ranges that a repair could not recover.
//!
//! A loss mark replaces a pointer, owns no blocks, and covers the range that the
//! pointer covered ([`Ptr::is_lost`]).

use std::ops::ControlFlow;

use zerocopy::IntoBytes;

use super::insert::cut;
use super::{MapRef, descend, put_pointer, put_slots};
use crate::error::Result;
use crate::media::Geometry;
use crate::media::pointer::{Ptr, UNWRITTEN};
use crate::types::{Bno, FileBlock, RegionOffset};
use crate::volume::{Plan, Record, Volume};

/// Reads bytes of the region.
type Read<'r> = &'r mut dyn FnMut(RegionOffset, &mut [u8]) -> Result<()>;

/// Calls `f` with the first file block and the number of blocks of each loss mark, in
/// the order of the file, until `f` breaks. Reads only pointer blocks. Skips damaged
/// pointers: a read of their range reports them.
///
/// # Errors
/// [`crate::Error::Corrupt`] for an impossible height; errors of the region.
pub fn lost_blocks(
    vol: &Volume,
    map: &MapRef,
    f: &mut dyn FnMut(FileBlock, u64) -> ControlFlow<()>,
) -> Result<()> {
    let read: Read<'_> = &mut |at, into| Ok(vol.medium().read(at, into)?);
    walk(&vol.geo, map, read, f)
}

/// Tells whether a map has a loss mark after the changes of a transaction.
///
/// # Errors
/// As for [`lost_blocks`].
pub fn is_any_lost(tx: &Record<'_>, map: &MapRef) -> Result<bool> {
    let mut any = false;
    let read: Read<'_> = &mut |at, into| tx.read(at, into);
    walk(&tx.volume().geo, map, read, &mut |_, _| {
        any = true;
        ControlFlow::Break(())
    })?;
    Ok(any)
}

fn walk(
    geo: &Geometry,
    map: &MapRef,
    read: Read<'_>,
    f: &mut dyn FnMut(FileBlock, u64) -> ControlFlow<()>,
) -> Result<()> {
    map.checked(geo)?;
    let mut walk = Walk {
        geo,
        map,
        read,
        f,
        left: geo.blocks(),
    };
    walk.entry(map.root, map.height, FileBlock(0)).map(drop)
}

struct Walk<'a> {
    geo: &'a Geometry,
    map: &'a MapRef,
    read: Read<'a>,
    f: &'a mut dyn FnMut(FileBlock, u64) -> ControlFlow<()>,
    /// Number of pointer blocks that may still be read. It bounds the walk over a
    /// hostile tree, which may have no end.
    left: u64,
}

impl Walk<'_> {
    fn entry(&mut self, ptr: Ptr, level: u32, first: FileBlock) -> Result<ControlFlow<()>> {
        let geo = self.geo;
        let at = self.map.at(geo, level, first);
        if ptr.is_lost(at) {
            return Ok((self.f)(first, geo.span(level)));
        }
        if ptr.is_hole() || level == 0 || ptr.is_leaf() || self.left == 0 {
            return Ok(ControlFlow::Continue(()));
        }
        let Ok(block) = self.map.root().open(geo, ptr, at) else {
            return Ok(ControlFlow::Continue(()));
        };
        self.left -= 1;
        let mut words = [0u64; 512];
        let words = &mut words[..geo.fan() as usize];
        (self.read)(geo.offset(block), words.as_mut_bytes())?;
        for (i, word) in (0..).zip(&*words) {
            let first = first + i * geo.span(level - 1);
            let flow = self.entry(Ptr(*word), level - 1, first)?;
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Takes a block whose page has failed out of a map. Its pointer becomes a loss mark, or, if
/// the block was not written, a pointer to another block that is not written. Other blocks of a
/// 2 MiB leaf stay where they are. The block's bit stays set: the same record lists the block
/// as bad. Returns the block, and whether bytes are lost; `None` if nothing is mapped there.
///
/// # Errors
/// [`crate::Error::Corrupt`]; [`crate::Error::NoSpace`] if a leaf must be split, or a block not
/// written be replaced, and no block is free.
pub fn lose(tx: &mut Plan<'_>, map: &mut MapRef, index: FileBlock) -> Result<Option<(Bno, bool)>> {
    let geo = &tx.volume().geo;
    let root = map.checked(geo)?;
    if index >= root.end(geo) {
        return Ok(None);
    }
    let step = descend(tx, map, index, 0)?;
    if step.is_free() {
        return Ok(None);
    }
    let at = map.at(geo, 0, index);
    let first = root.open(geo, step.ptr, map.at(geo, step.level, index))?;
    let slot = geo.slot_of(index);
    let block = match step.level {
        0 => first,
        _ => first.after(slot),
    };
    let new = match step.ptr.is_unwritten() {
        true => {
            tx.allow_reserve();
            Ptr::new(tx.alloc_blocks(None, 1, true)?.start, UNWRITTEN, at)
        }
        false => {
            map.blocks -= 1;
            Ptr::lost(at)
        }
    };
    match step.level {
        0 => put_pointer(tx, map, &step, index, new)?,
        _ => {
            let table = cut(tx, map, index, step.ptr, |i| i != slot)?;
            put_slots(tx, table.block(), slot, &[new.0])?;
            put_pointer(tx, map, &step, index, table)?;
        }
    }
    Ok(Some((block, !step.ptr.is_unwritten())))
}
