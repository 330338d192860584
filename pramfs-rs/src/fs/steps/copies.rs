//! Changes of file data that are atomic: by a record that copies bytes to their places.
//!
//! Invariant (rule 8): while such a record can be replayed, its places change by records alone.
//! [`Engine::settle_copies`] comes before every store to them without a record.
//!
//! The bytes wait in staging blocks (`pramfs_medium::volume`). Writes are in `ops::atomic`.

use std::ops::Range;

use crate::fs::Engine;
use crate::fs::engine::change::Edit;
use crate::fs::inode::Inode;
use crate::fs::inode::disk::touch_mtime;
use crate::fs::inode::state::InodeState;
use crate::fs::options::DataMode;
use pramfs_medium::error::Result;
use pramfs_medium::journal::RecordId;
use pramfs_medium::map::{self, MapRef};
use pramfs_medium::media::inode::FL_ATOMIC;
use pramfs_medium::media::record::DataCopy;
use pramfs_medium::volume::{Plan, Record};

/// Length of the longest change that is always atomic, bytes.
pub(crate) const ATOMIC_BYTES: u64 = 1 << 20;

/// Returns the length of the next atomic part of a change of `len` bytes at `at`. A short change
/// is one part. The parts of a long one end at multiples of [`ATOMIC_BYTES`] in the file.
pub(crate) fn part_of(at: u64, len: u64) -> u64 {
    match len <= ATOMIC_BYTES {
        true => len,
        false => ATOMIC_BYTES - at % ATOMIC_BYTES,
    }
}

/// How a change of data reaches its places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// By stores, before the record.
    Stores,
    /// By the record, which fits a slot.
    Record,
    /// By the record, however large it is.
    LargeRecord,
}

/// Adds to the record of a part what belongs to it.
pub(crate) type Fill<'f> = &'f dyn Fn(&mut Plan<'_>, &mut Edit<'_>, Range<u64>) -> Result<()>;

impl Engine {
    /// Whether changes of the data of a file are atomic.
    #[inline]
    pub(crate) fn is_atomic(&self, state: &InodeState) -> bool {
        state.disk.flags & FL_ATOMIC != 0
            || self.options.data == DataMode::Atomic
            || self.vol.geo.data_sums
    }

    /// Rule 8: comes before data of a locked file change without a record.
    #[inline]
    pub(crate) fn settle_copies(&self, state: &InodeState) -> Result<()> {
        match state.copied {
            None => Ok(()),
            Some(last) => self.vol.retire_copies(last),
        }
    }

    /// Notes a record that has copied data of a locked file.
    #[inline]
    pub(crate) fn note_copies(&self, state: &mut InodeState, record: RecordId) -> Result<()> {
        state.copied = Some(record);
        // Others may store to the blocks without the engine, as soon as they see the new bytes.
        if !self.vol.pins.is_empty() || !state.leases.is_empty() {
            self.settle_copies(state)?;
        }
        Ok(())
    }

    /// As [`change`](Self::change), for a change of data.
    pub(crate) fn change_data<'v, T>(
        &'v self,
        inode: &'v Inode,
        state: &'v mut InodeState,
        by: By,
        edit: impl FnOnce(&mut Plan<'v>, &mut Edit<'v>) -> Result<T>,
    ) -> Result<T> {
        match by {
            By::Stores => self.settle_copies(state)?,
            By::Record | By::LargeRecord => self.use_copies()?,
        }
        let mut new = Edit::new(inode, state);
        let mut tx = self.begin(inode);
        if by == By::LargeRecord {
            tx.allow_large();
        }
        let done = edit(&mut tx, &mut new)?;
        let staged = new.stage(&mut tx)?;
        tx.end_staging_if_large()?;
        let copies = tx.has_copies();
        let record = self.commit(tx, [staged])?;
        if copies {
            self.note_copies(new.before_mut(), record)?;
        }
        Ok(done)
    }

    /// Makes the written blocks of a byte range read as zeros, does `also`, and sets the times:
    /// each part of the range whole or not at all. Unless `keep_size`, the file then reaches as
    /// far as the range.
    pub(crate) fn clear_in_parts(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        range: Range<u64>,
        keep_size: bool,
        also: Fill<'_>,
    ) -> Result<()> {
        let Range { mut start, end } = range;
        self.check_edges(state, start..end)?;
        loop {
            let stop = start + part_of(start, end.saturating_sub(start));
            let begins_past_end = !keep_size && start > state.disk.size;
            if begins_past_end {
                // Nobody sees the bytes between them: they are zeroed in place.
                self.settle_copies(state)?;
                self.mark_long_growth(inode, state, state.disk.size..start)?;
            }
            self.change_data(inode, state, By::LargeRecord, |tx, new| {
                let (map, size) = (new.before().map(), new.size);
                let mut to = stop;
                if begins_past_end {
                    self.zero_written(tx, &map, size, start)?;
                }
                if stop > size && !keep_size {
                    to = self.end_of_zeros(new.before(), stop);
                    new.size = stop;
                }
                self.clear_written(tx, By::LargeRecord, &map, start, to)?;
                also(tx, new, start..stop)?;
                let (map, changed) = (MapRef::of(new), start.min(size)..stop);
                let new_size = new.size;
                self.put_sums(tx, new.before(), &map, new_size, changed)?;
                touch_mtime(new, self.now());
                Ok(())
            })?;
            start = stop;
            if start >= end {
                return Ok(());
            }
        }
    }

    /// Makes the written blocks of a byte range read as zeros.
    pub(crate) fn clear_written(
        &self,
        tx: &mut Record<'_>,
        by: By,
        map: &MapRef,
        from: u64,
        to: u64,
    ) -> Result<()> {
        if by == By::Stores {
            return self.zero_written(tx, map, from, to);
        }
        let geo = &self.vol.geo;
        let mut at = from;
        while at < to {
            let index = geo.file_block(at);
            let extent = map::run(&self.vol, map, index, geo.blocks_of(at, to))?;
            let end = to.min(geo.file_offset(index + extent.count));
            if let Some(block) = extent.block.filter(|_| !extent.unwritten) {
                tx.put_copy(DataCopy {
                    to: geo.offset(block) + (at - geo.file_offset(index)),
                    from: None,
                    len: end - at,
                })?;
            }
            at = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_long_change_end_at_multiples() {
        assert_eq!(part_of(5, ATOMIC_BYTES), ATOMIC_BYTES);
        assert_eq!(part_of(5, ATOMIC_BYTES + 1), ATOMIC_BYTES - 5);
        assert_eq!(part_of(ATOMIC_BYTES, 3 * ATOMIC_BYTES), ATOMIC_BYTES);
    }
}
