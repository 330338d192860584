//! Loss marks in a file map: ranges that a repair could not recover.
//!
//! A loss mark replaces a pointer, owns no blocks, and covers the range that the
//! pointer covered ([`Ptr::is_lost`]).

use std::ops::ControlFlow;

use zerocopy::IntoBytes;

use super::MapRef;
use crate::error::Result;
use crate::media::Geometry;
use crate::media::pointer::Ptr;
use crate::types::{FileBlock, RegionOffset};
use crate::volume::{Record, Volume};

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
        left: geo.blocks,
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
