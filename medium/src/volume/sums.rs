//! Sums of file data in a record (feature `data_checksums`).
//!
//! Invariant: a record that changes bytes of a file below its end, or the end within a block,
//! holds the sums of the blocks concerned. So after a replay each block fits its sum.

use zerocopy::IntoBytes;

use super::record::Record;
use crate::error::Result;
use crate::media::Medium;
use crate::media::record::{DataCopy, EntryKind};
use crate::types::{Bno, RegionOffset};

/// Sums in one entry.
const IN_ENTRY: usize = 512;

/// File data as they will be after a record.
#[derive(Debug)]
pub struct DataAfter {
    /// What the record copies so far, by place.
    copies: Vec<DataCopy>,
}

impl DataAfter {
    /// Copies bytes out. New data are on the medium already, and what the record copies is not.
    ///
    /// # Errors
    /// Errors of the region.
    pub fn read(&self, medium: Medium<'_>, at: RegionOffset, into: &mut [u8]) -> Result<()> {
        medium.read(at, into)?;
        let end = at + into.len() as u64;
        let first = self.copies.partition_point(|copy| copy.to + copy.len <= at);
        for copy in self.copies[first..].iter().take_while(|copy| copy.to < end) {
            let (from, to) = (copy.to.max(at), (copy.to + copy.len).min(end));
            let part = &mut into[(from - at) as usize..(to - at) as usize];
            match copy.from {
                Some(source) => medium.read(source + (from - copy.to), part)?,
                None => part.fill(0),
            }
        }
        Ok(())
    }
}

impl Record<'_> {
    /// Returns a view of file data with what this record copies so far.
    pub fn data_after(&self) -> DataAfter {
        let copies = (self.rec.entries())
            .filter(|e| e.kind == EntryKind::Copy)
            .filter_map(|e| DataCopy::read(e.offset, e.payload));
        let mut copies: Vec<_> = copies.collect();
        copies.sort_unstable_by_key(|copy| copy.to);
        DataAfter { copies }
    }

    /// Sets the words of consecutive blocks of one block group.
    ///
    /// # Errors
    /// As for [`put`](Self::put); damage of the group.
    pub fn put_sums(&mut self, block: Bno, words: &[u64]) -> Result<()> {
        let vol = self.volume();
        let mut at = vol.blocks.sum_at(vol.medium(), block)?;
        for part in words.chunks(IN_ENTRY) {
            // A failed page is met before the commit, as by `put_copy`.
            vol.region.touch(at.0, size_of_val(part) as u64)?;
            self.put(EntryKind::Sum, at, part.as_bytes())?;
            self.sums += 1;
            at = at.word(part.len() as u64);
        }
        Ok(())
    }
}
