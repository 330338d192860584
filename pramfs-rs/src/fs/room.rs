//! Room of the host for what an operation stores.
//!
//! An operation that meets a page without room on the host has changed nothing
//! since its last record: it gives up with [`PmemError::NoRoom`], lets go of its
//! locks, and is run again when there is room. So nobody who reads waits for the
//! host, and no store meets a page that is missing.
//!
//! Every turn takes at least a page, or learns that the host is full; then only
//! blocks that have room are given out (`Volume::reserve_bits`), and if there are
//! none the operation ends with ENOSPC.
//!
//! Left to others: what is known of the host (`pmem::room`).

use super::Shared;
use crate::error::{Error, Result};
use crate::media::Geometry;
use crate::pmem::{PmemError, Region};
use crate::types::Bno;

/// Turns of one operation. Each takes room, so this is never reached but by who
/// loses it to others again and again.
const TURNS: usize = 4096;

impl Shared {
    /// Takes room, and runs what was without it again.
    #[cold]
    #[inline(never)]
    pub(super) fn with_room<T>(
        &self,
        mut offset: u64,
        mut len: u64,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let region = &self.vol.region;
        // Whether what is there already has been looked for in vain.
        let mut was_full = false;
        for _ in 0..TURNS {
            match region.take_some_room(offset, within(region, offset, len)) {
                Ok(()) => {}
                Err(PmemError::NoRoom { .. }) if !was_full => {}
                Err(PmemError::NoRoom { .. }) => break,
                Err(e) => return Err(e.into()),
            }
            was_full = region.host_is_full();
            match attempt() {
                Err(Error::Pmem(PmemError::NoRoom { offset: o, len: l })) => (offset, len) = (o, l),
                result => return result,
            }
        }
        Err(host_is_full())
    }

    /// At a mount: blocks are put aside, with room, for what frees others. Where
    /// there is none any more that is said, and the mount goes on: most removals
    /// need no block.
    ///
    /// # Errors
    /// Those of the region.
    pub(super) fn take_room_for_removals(&self) -> Result<()> {
        let kept = match self.vol.keep_reserve() {
            Err(Error::Pmem(PmemError::NoRoom { offset, len })) => {
                self.with_room(offset, len, || self.vol.keep_reserve())
            }
            kept => kept,
        };
        match kept {
            Err(Error::NoSpace(why)) => {
                tracing::warn!("no blocks could be put aside for removals: {why}");
                Ok(())
            }
            kept => kept,
        }
    }
}

/// Takes room for what is stored to without ever being allocated: both
/// superblock pages and the journal. Before the first store of a mount.
///
/// # Errors
/// [`Error::NoSpace`] where a page of it is missing, and the host has none: a
/// copy of a region may lack what was zeros.
pub(super) fn take_fixed_room(region: &Region, geo: &Geometry) -> Result<()> {
    for run in geo.fixed_blocks() {
        let (at, len) = (geo.offset(Bno(run.start)), run.end - run.start);
        match region.take_room(at, len << geo.block_log2) {
            Err(PmemError::NoRoom { .. }) => return Err(host_is_full()),
            taken => taken?,
        }
    }
    Ok(())
}

/// Says so where the host cannot give the region all that it may come to need.
pub(super) fn warn_of_little_room(region: &Region) {
    let Some(space) = region.host_space().filter(|space| space.missing() > 0) else {
        return;
    };
    tracing::warn!(
        "the file system that holds {} has {} MiB less than the region may come to need: writes get ENOSPC when it is full",
        region.info().name,
        space.missing().div_ceil(1 << 20),
    );
}

fn host_is_full() -> Error {
    Error::NoSpace("the file system that holds the region is full")
}

/// How much of a wish lies in the region.
fn within(region: &Region, offset: u64, len: u64) -> u64 {
    len.min(region.len().saturating_sub(offset))
}

/// Asks for room for all that is still to be allocated, where it is asked for.
pub(super) fn for_all_of(bytes: u64) -> impl Fn(Error) -> Error {
    move |e| match e {
        Error::Pmem(PmemError::NoRoom { offset, len }) => PmemError::NoRoom {
            offset,
            len: len.max(bytes),
        }
        .into(),
        e => e,
    }
}
