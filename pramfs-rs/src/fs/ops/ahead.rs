//! Blocks ahead: past the end of a file, for holders that map more than the file has.
//!
//! A mapping of the region cannot grow with the file. So the holder of a lease to write has
//! blocks allocated up to the end of its mapping. While there is a lease, no block leaves the
//! map (rule 6 of `docs/consistency.md`), also none past the end: when the file grows, by
//! whatever means, it grows into these blocks, and the mapping shows it.
//!
//! Crash safety: the blocks are in the map, *written*, under a slot of the orphan table (a
//! chain of records), as those of an append window are. They are freed when the last lease has
//! ended, or by a mount that finds no lease.
//!
//! Blocks past the end are undefined, so they are zeroed only for a holder that may not see what
//! free blocks hold ([`Engine::fill_ahead_zeroed`]): new blocks, and once those that the file has
//! had before, such as the tail of a leaf of 2 MiB. Each is zeroed before the holder learns of it.
//! Growth zeroes what it passes over, and the rest of the block that holds the new end
//! (`Leases::are_mapped_ahead`).

use crate::fs::inode::state::{InodeState, check_file};
use crate::fs::ops::fallocate::State;
use crate::fs::policy::chattr;
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::map;
use pramfs_medium::types::{Ino, LeaseMode};
use std::ops::Range;

/// Most bytes that one call allocates, so that it does not hold the lock for long.
const AT_ONCE: u64 = 64 << 20;
/// A call takes no more than one in so many of the free blocks.
const SHARE: u64 = 4;

impl Engine {
    /// Allocates the blocks past the end of a file that are missing in a byte range, for the
    /// holder of a lease to write. They stay until the last lease of the file has ended. The
    /// size does not change, and neither do the times. Returns the offset up to which this
    /// is done; the caller asks again for the rest.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if more than a quarter of the free blocks are missing;
    /// [`Error::Stale`] if the lease has ended; [`Error::NotPermitted`] if it is for reading,
    /// or the file is immutable or append-only; [`Error::TooLarge`]; [`Error::Busy`] if
    /// another process is in the middle of an append; those of [`read`](Self::read).
    pub fn fill_ahead(&self, slot: u32, id: u64, range: Range<u64>) -> Result<u64> {
        self.fill_past_end(slot, id, range, State::Ahead)
    }

    /// As [`fill_ahead`](Self::fill_ahead), with all blocks past the end zeroed that are new, or
    /// that no call has zeroed since the first lease: the holder sees nothing of what they held
    /// before.
    ///
    /// # Errors
    /// Those of [`fill_ahead`](Self::fill_ahead).
    pub fn fill_ahead_zeroed(&self, slot: u32, id: u64, range: Range<u64>) -> Result<u64> {
        self.fill_past_end(slot, id, range, State::AheadCleared)
    }

    fn fill_past_end(&self, slot: u32, id: u64, range: Range<u64>, wanted: State) -> Result<u64> {
        self.op(Need::Write, || {
            let ended = || Error::Stale(Ino(0));
            let lease = self.find_lease(slot, id).ok_or_else(ended)?;
            if lease.mode != LeaseMode::Write {
                return Err(Error::NotPermitted("the lease is for reading"));
            }
            let geo = &self.vol.geo;
            if range.end > geo.max_file_size() {
                return Err(Error::TooLarge(range.end));
            }
            let inode = self.iget(lease.ino)?;
            let state = &mut *inode.state.write();
            self.find_lease(slot, id).ok_or_else(ended)?;
            check_file(inode.ino, state)?;
            chattr::check_write(&state.disk)?;
            // The holder of a window stores there, and zeroes nothing.
            self.close_window(&inode, state)?;
            let size = state.disk.size;
            let whole = geo.file_offset(geo.file_block_from(size));
            self.zero_rest_of_block(&inode, state)?;
            // Before the holder learns of any block past the end. It gets further ones by further
            // calls.
            let mut seen_to = range.end;
            if wanted == State::AheadCleared {
                let from = state.leases.zeroed_ahead().max(whole);
                seen_to = range.end.min(from.saturating_add(AT_ONCE));
                if from < seen_to {
                    self.zero_past_end(&inode, state, from..seen_to)?;
                    state.leases.note_zeroed_ahead(seen_to);
                }
            }
            state.leases.note_mapped_ahead();
            if whole >= range.end {
                // A mapping ends in the page that holds the end of the file.
                return Ok(range.end);
            }
            // From the end of the file on, without a gap, also for a mapping that begins later:
            // holders learn the blocks up to the first hole, and are not told when it is filled.
            let Some(start) = self.first_missing(state, whole..range.end)? else {
                return Ok(seen_to);
            };
            let end = seen_to.min(start.saturating_add(AT_ONCE));
            if start >= end {
                return Ok(end);
            }
            self.allocate(&inode, state, start, end, wanted, false)?;
            Ok(end)
        })
    }

    /// Returns where the first block of a range is missing, or unwritten. Refuses holes that
    /// take more than a share of what is free.
    fn first_missing(&self, state: &InodeState, range: Range<u64>) -> Result<Option<u64>> {
        let geo = &self.vol.geo;
        let most = self.vol.free_blocks().1 / SHARE;
        let (mut at, end) = (geo.file_block(range.start), geo.file_block_from(range.end));
        let (mut missing, mut first) = (0, None);
        while at < end {
            let extent = map::run(&self.vol, &state.map(), at, end - at)?;
            if extent.block.is_none() || extent.unwritten {
                first = first.or(Some(geo.file_offset(at)));
            }
            missing += extent.block.map_or(extent.count, |_| 0);
            if missing > most {
                return Err(Error::NoSpace("blocks ahead of the end of a file"));
            }
            at += extent.count;
        }
        Ok(first)
    }
}
