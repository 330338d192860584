//! Places of live records whose pages have failed.
//!
//! A failed page of file data costs the bytes on it, and nothing else: a replay leaves out what a
//! record would store there, and stores all the rest. Loads from the page are errors as long as it
//! fails; if it is sound again later, and the range was not written since, it shows what it held
//! before the record. A failed page of metadata is another matter: without its part of the record
//! the file system would be inconsistent.
//!
//! Nothing here stores to the medium.

use std::ops::Range;

use super::buffer::{Entry, parse};
use super::records::home_len;
use crate::error::{Error, Result};
use crate::media::record::{DataCopy, ENTRIES_AT, EntryKind};
use crate::pmem::{PmemError, Region};
use crate::types::{Ino, RegionOffset};

/// Unit in which bytes of the medium fail at least, in bytes.
const SECTOR: u64 = 512;
/// Bytes that are looked at in one step.
const PAGE: u64 = 4096;

/// Bytes of a file that a live record holds, and that cannot be stored to their place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostData {
    /// The record.
    pub lsn: u64,
    /// The file, if the record tells it.
    pub ino: Option<Ino>,
    /// The place in the region.
    pub range: Range<u64>,
}

/// The parts of places of file data that have failed.
#[derive(Debug, Default)]
pub(super) struct Failed {
    /// By records and places.
    lost: Vec<LostData>,
    /// Sorted, disjoint.
    ranges: Vec<Range<u64>>,
}

impl Failed {
    /// Looks at all places of records, each with its number. Nothing has been stored yet.
    ///
    /// A page may fail together with others that were found sound before it, where the medium is
    /// mapped in larger units. So it looks until nothing new fails.
    pub(super) fn of<'r>(
        region: &Region,
        records: impl Iterator<Item = (u64, &'r [u8])> + Clone,
    ) -> Result<Failed> {
        loop {
            let faults = region.faults_seen();
            let failed = Failed::found(region, records.clone())?;
            if region.faults_seen() == faults {
                return Ok(failed);
            }
        }
    }

    fn found<'r>(
        region: &Region,
        records: impl Iterator<Item = (u64, &'r [u8])>,
    ) -> Result<Failed> {
        let mut failed = Failed::default();
        for (lsn, bytes) in records {
            failed.add(region, lsn, bytes.get(ENTRIES_AT..).unwrap_or(&[]))?;
        }
        failed.ranges.sort_unstable_by_key(|range| range.start);
        failed.ranges.dedup_by(|next, last| {
            let joins = next.start <= last.end;
            if joins {
                last.end = last.end.max(next.end);
            }
            joins
        });
        Ok(failed)
    }

    fn add(&mut self, region: &Region, lsn: u64, body: &[u8]) -> Result<()> {
        let refused = |what: &str, at: u64| {
            Error::io(format!(
                "journal record {lsn} {what} offset {at:#x} of {}, where the medium has failed; run `fsck.pramfs` on the region",
                region.info().name
            ))
        };
        let mut places = Vec::new();
        for e in parse(body) {
            match e.kind {
                EntryKind::Copy => {
                    let Some(copy) = DataCopy::read(e.offset, e.payload) else {
                        continue;
                    };
                    let failed = failed_parts(region, copy.to, copy.len)?;
                    for copy in without(&copy, &failed) {
                        let from = copy.from.map(|from| failed_parts(region, from, copy.len));
                        if let Some(lost) = from.transpose()?.and_then(|from| from.first().cloned())
                        {
                            return Err(refused("has bytes of a file at", lost.start));
                        }
                    }
                    places.extend(failed);
                }
                // A block whose sum cannot be read is an error, as if it had failed itself.
                EntryKind::Sum => {
                    let failed = failed_parts(region, e.offset, e.payload.len() as u64)?;
                    self.ranges.extend(failed);
                }
                _ => {
                    let failed = failed_parts(region, e.offset, home_len(&e))?;
                    if let Some(home) = failed.first() {
                        return Err(refused("changes metadata at", home.start));
                    }
                }
            }
        }
        if places.is_empty() {
            return Ok(());
        }
        if region.is_cut() {
            // What is past the end of a host file fails, and may come back.
            return Err(refused("has a place at", places[0].start));
        }
        let ino = owner(region, body);
        self.ranges.extend(places.iter().cloned());
        let lost = |range| LostData { lsn, ino, range };
        self.lost.extend(places.into_iter().map(lost));
        Ok(())
    }

    /// Returns the parts of a copy whose places can be stored to.
    pub(super) fn storable(&self, copy: &DataCopy) -> Vec<DataCopy> {
        without(copy, &self.ranges)
    }

    /// Returns the parts of an entry that can be stored to, as entries of their own: `None` for
    /// all of it.
    pub(super) fn storable_sums<'e>(&self, e: &Entry<'e>) -> Option<Vec<Entry<'e>>> {
        if e.kind != EntryKind::Sum || self.ranges.is_empty() {
            return None;
        }
        let whole = DataCopy {
            to: e.offset,
            from: None,
            len: e.payload.len() as u64,
        };
        let part = |part: DataCopy| Entry {
            kind: e.kind,
            offset: part.to,
            payload: &e.payload[(part.to - e.offset) as usize..][..part.len as usize],
        };
        Some(self.storable(&whole).into_iter().map(part).collect())
    }

    /// Returns what is lost.
    pub(super) fn into_lost(self) -> Vec<LostData> {
        self.lost
    }
}

/// Returns the parts of a range that have failed. Loads from each page of it.
fn failed_parts(region: &Region, at: RegionOffset, len: u64) -> Result<Vec<Range<u64>>> {
    let mut failed: Vec<Range<u64>> = Vec::new();
    // A page that the host has no room for would seem to have failed.
    if let Err(e @ PmemError::NoRoom { .. }) = region.take_room(at.0, len) {
        return Err(e.into());
    }
    for_each_part(at.0..at.0 + len, PAGE, &mut |page| {
        if has_failed(region, &page)? {
            for_each_part(page, SECTOR, &mut |sector| {
                if has_failed(region, &sector)? {
                    match failed.last_mut().filter(|last| last.end == sector.start) {
                        Some(last) => last.end = sector.end,
                        None => failed.push(sector),
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    })?;
    Ok(failed)
}

/// Divides a range at multiples of `unit`.
fn for_each_part(
    range: Range<u64>,
    unit: u64,
    then: &mut dyn FnMut(Range<u64>) -> Result<()>,
) -> Result<()> {
    let Range { mut start, end } = range;
    while start < end {
        let stop = end.min((start / unit + 1) * unit);
        then(start..stop)?;
        start = stop;
    }
    Ok(())
}

fn has_failed(region: &Region, range: &Range<u64>) -> Result<bool> {
    match region.touch(range.start, range.end - range.start) {
        Ok(()) => Ok(false),
        Err(PmemError::Faulted { .. }) => Ok(true),
        Err(e) => Err(e.into()),
    }
}

/// Returns the parts of a copy whose places lie outside of ranges, which are sorted and disjoint.
fn without(copy: &DataCopy, ranges: &[Range<u64>]) -> Vec<DataCopy> {
    let end = copy.to.0 + copy.len;
    let first = ranges.partition_point(|range| range.end <= copy.to.0);
    let inside = ranges[first..].iter().take_while(|range| range.start < end);
    let mut out = Vec::new();
    let mut at = copy.to.0;
    for range in inside.cloned().chain(std::iter::once(end..end)) {
        if range.start > at {
            out.push(DataCopy {
                to: RegionOffset(at),
                from: copy.from.map(|from| from + (at - copy.to.0)),
                len: range.start - at,
            });
        }
        at = at.max(range.end);
    }
    out
}

/// The inode that a record changes.
fn owner(region: &Region, body: &[u8]) -> Option<Ino> {
    const INO_AT: usize = std::mem::offset_of!(crate::media::DiskInode, ino);
    let inode = parse(body).find(|e| e.kind == EntryKind::Inode)?;
    let word = inode.payload.get(INO_AT..INO_AT + 8);
    let ino = match word.and_then(|word| word.first_chunk()) {
        Some(word) => u64::from_le_bytes(*word),
        None => region.load_u64(inode.offset.0 + INO_AT as u64).ok()?,
    };
    (ino != 0).then_some(Ino(ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmem::SimBackend;

    fn copy(to: u64, from: Option<u64>, len: u64) -> DataCopy {
        DataCopy {
            to: RegionOffset(to),
            from: from.map(RegionOffset),
            len,
        }
    }

    #[test]
    fn copy_without_failed_ranges_has_the_rest() {
        let ranges = [0..100, 512..1024, 1536..2048];
        let parts = |copy: DataCopy| without(&copy, &ranges);
        assert_eq!(parts(copy(100, None, 412)), [copy(100, None, 412)]);
        assert_eq!(parts(copy(600, Some(8), 100)), []);
        assert_eq!(
            parts(copy(90, Some(10_090), 2000)),
            [
                copy(100, Some(10_100), 412),
                copy(1024, Some(11_024), 512),
                copy(2048, Some(12_048), 42),
            ]
        );
    }

    #[test]
    fn sectors_named_by_kernel_fail_alone() {
        let region = Region::new("sim", Box::new(SimBackend::new(1 << 16).unwrap()));
        region.mark_bad(4096 + 512..4096 + 1024);
        let found = failed_parts(&region, RegionOffset(4000), 5000).unwrap();
        assert_eq!(found, Vec::from_iter(std::iter::once(4608..5120)));
        assert_eq!(
            failed_parts(&region, RegionOffset(5120), 4000).unwrap(),
            Vec::<Range<u64>>::new()
        );
    }
}
