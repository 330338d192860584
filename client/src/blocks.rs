//! What a reader knows of the blocks of a file.

use std::os::fd::BorrowedFd;

use pramfs_control::{Blocks, Extent};
use rustix::process::{Resource, getrlimit};

/// The blocks of a file in one layout, from its start.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownBlocks {
    /// The layout counter that they belong to.
    pub layout: u64,
    /// Offset in the file up to which they are known.
    pub end: u64,
    /// In ascending order, without overlap.
    extents: Vec<Extent>,
}

impl KnownBlocks {
    /// Takes the first blocks of a layout.
    pub(crate) fn new(first: &Blocks) -> KnownBlocks {
        let mut known = KnownBlocks {
            layout: first.layout,
            ..KnownBlocks::default()
        };
        known.add(first);
        known
    }

    /// Adds further blocks. False if they belong to another layout, or do not continue the
    /// known ones.
    #[must_use]
    pub(crate) fn extend(&mut self, more: &Blocks) -> bool {
        let fits = more.layout == self.layout && more.start <= self.end;
        if fits {
            self.add(more);
        }
        fits
    }

    fn add(&mut self, blocks: &Blocks) {
        for extent in &blocks.extents {
            // A server may repeat what is known.
            let known = self.end.saturating_sub(extent.file_offset);
            let Some(len) = extent.len.checked_sub(known).filter(|len| *len > 0) else {
                continue;
            };
            let new = Extent {
                file_offset: extent.file_offset + known,
                region_offset: extent.region_offset + known,
                len,
            };
            match self.extents.last_mut() {
                Some(last)
                    if last.file_offset + last.len == new.file_offset
                        && last.region_offset + last.len == new.region_offset =>
                {
                    last.len += new.len;
                }
                _ => self.extents.push(new),
            }
        }
        self.end = self.end.max(blocks.end);
    }

    /// Returns the extent that has the byte at an offset.
    pub(crate) fn extent_at(&self, offset: u64) -> Option<Extent> {
        let at = self
            .extents
            .partition_point(|extent| extent.file_offset + extent.len <= offset);
        let found = self.extents.get(at).copied();
        found.filter(|extent| extent.file_offset <= offset)
    }

    /// Returns the pieces of a range, in order: a place in the region, or `None` for zeros,
    /// and a length. The caller limits the range to [`end`](Self::end).
    pub(crate) fn pieces(
        &self,
        mut offset: u64,
        end: u64,
    ) -> impl Iterator<Item = (Option<u64>, u64)> {
        let mut at = self
            .extents
            .partition_point(|extent| extent.file_offset + extent.len <= offset);
        std::iter::from_fn(move || {
            if offset >= end {
                return None;
            }
            let piece = match self.extents.get(at) {
                Some(extent) if extent.file_offset <= offset => {
                    let within = offset - extent.file_offset;
                    at += 1;
                    (
                        Some(extent.region_offset + within),
                        (extent.len - within).min(end - offset),
                    )
                }
                Some(extent) => (None, extent.file_offset.min(end) - offset),
                None => (None, end - offset),
            };
            offset += piece.1;
            Some(piece)
        })
    }
}

/// Checks the answer of a server to a request for the blocks from `offset` on: a faulty one
/// must not make a reader overflow, loop, or take a part that is not in it for zeros.
pub(crate) fn is_sound(blocks: &Blocks, offset: u64) -> bool {
    let mut end = 0;
    let ascending = blocks.extents.iter().all(|extent| {
        let starts = extent.file_offset >= end;
        let stop = extent.file_offset.checked_add(extent.len);
        end = stop.unwrap_or(u64::MAX);
        let place = extent.region_offset.checked_add(extent.len);
        starts && extent.len > 0 && stop.is_some() && place.is_some()
    });
    ascending && blocks.start <= offset.min(blocks.end) && end <= blocks.end
}

/// Addresses reserved past the end of a region that grows while a lease lasts. A process may
/// hold many leases, and each has a mapping.
const ROOM_TO_GROW: u64 = 64 << 30;

/// Returns the addresses to reserve for a region. There are none to spare if the process has a
/// limit. A device has no length here, and gets the least.
pub(crate) fn room_to_grow(region: BorrowedFd<'_>) -> u64 {
    if getrlimit(Resource::As).current.is_some() {
        return 0;
    }
    let len = rustix::fs::fstat(region).map_or(0, |found| found.st_size);
    (len as u64).saturating_add(ROOM_TO_GROW)
}

/// Returns the end in the region of blocks that are sound.
pub(crate) fn end_in_region(blocks: &Blocks) -> u64 {
    let ends = blocks.extents.iter().map(|e| e.region_offset + e.len);
    ends.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(file_offset: u64, region_offset: u64, len: u64) -> Extent {
        Extent {
            file_offset,
            region_offset,
            len,
        }
    }

    fn blocks(start: u64, end: u64, extents: Vec<Extent>) -> Blocks {
        Blocks {
            layout: 3,
            size: end,
            start,
            end,
            extents,
        }
    }

    fn pieces(known: &KnownBlocks, from: u64, to: u64) -> Vec<(Option<u64>, u64)> {
        known.pieces(from, to).collect()
    }

    #[test]
    fn pieces_cover_range_with_holes() {
        let first = blocks(0, 60, vec![extent(10, 1000, 10), extent(30, 2000, 10)]);
        let known = KnownBlocks::new(&first);
        let all = [
            (None, 10),
            (Some(1000), 10),
            (None, 10),
            (Some(2000), 10),
            (None, 20),
        ];
        assert_eq!(pieces(&known, 0, 60), all);
        assert_eq!(
            pieces(&known, 15, 35),
            [(Some(1005), 5), (None, 10), (Some(2000), 5)]
        );
        assert_eq!(pieces(&known, 12, 14), [(Some(1002), 2)]);
        assert_eq!(pieces(&known, 45, 50), [(None, 5)]);
        assert_eq!(pieces(&known, 5, 5), []);
    }

    #[test]
    fn further_blocks_join_known_ones() {
        let mut known = KnownBlocks::new(&blocks(0, 20, vec![extent(10, 1000, 10)]));
        assert!(known.extend(&blocks(
            20,
            50,
            vec![extent(20, 1010, 10), extent(40, 5, 10)]
        )));
        assert_eq!(
            pieces(&known, 10, 50),
            [(Some(1000), 20), (None, 10), (Some(5), 10)]
        );
        // A gap, and another layout.
        assert!(!known.extend(&blocks(60, 70, vec![])));
        let other = Blocks {
            layout: 4,
            ..blocks(50, 60, vec![])
        };
        assert!(!known.extend(&other));
        assert_eq!(known.end, 50);
    }

    #[test]
    fn repeated_blocks_add_what_is_new() {
        let mut known = KnownBlocks::new(&blocks(0, 20, vec![extent(10, 1000, 10)]));
        let more = vec![extent(0, 7, 5), extent(15, 2000, 10)];
        assert!(known.extend(&blocks(0, 40, more)));
        let all = [(None, 10), (Some(1000), 10), (Some(2005), 5), (None, 15)];
        assert_eq!(pieces(&known, 0, 40), all);
    }

    #[test]
    fn unsound_answers_are_detected() {
        let good = blocks(0, 20, vec![extent(0, 0, 10), extent(10, 0, 10)]);
        assert!(is_sound(&good, 0) && is_sound(&blocks(5, 20, vec![]), 7));
        for bad in [
            blocks(30, 20, vec![]),
            blocks(5, 20, vec![]),
            blocks(0, 20, vec![extent(0, 0, 0)]),
            blocks(0, 20, vec![extent(0, 0, 30)]),
            blocks(0, 20, vec![extent(5, 0, 10), extent(10, 0, 5)]),
            blocks(0, 20, vec![extent(u64::MAX, 0, 2)]),
            blocks(0, 20, vec![extent(0, u64::MAX, 2)]),
        ] {
            assert!(!is_sound(&bad, 0), "{bad:?}");
        }
    }
}
