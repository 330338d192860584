//! [`Cells`]: what memory holds of each group of a bitmap. A grow adds groups while others use
//! those that are there.
//!
//! Invariant: a cell never moves. The cells that a bitmap begins with are one array; each
//! further array doubles their number. So a bitmap that has not grown finds a cell by one
//! comparison, and one that has grown by a division more.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use crate::alloc::group::Group;
use crate::error::{Error, Result};
use crate::grows::Grows;
use crate::sync::{Mutex, rank};

/// Aligned, so that lanes in different groups share no cache line (nor a pair of lines, which
/// processors fetch together).
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Cell {
    pub(super) state: Mutex<Option<Box<Group>>, rank::Group>,
    /// Free bits at the last look; `u32::MAX` if unknown.
    pub(super) free: AtomicU32,
    pub(super) damaged: AtomicBool,
    /// Offset of its bitmap block, which never moves; 0 if it has none or it is unknown.
    pub(super) bitmap_offset: AtomicU64,
}

fn make(groups: std::ops::Range<u64>) -> impl Iterator<Item = Cell> {
    groups.map(|group| Cell {
        state: Mutex::numbered(group, None),
        free: AtomicU32::new(u32::MAX),
        damaged: AtomicBool::new(false),
        bitmap_offset: AtomicU64::new(0),
    })
}

/// Shows that there are cells for so many groups. Only [`Cells::prepare`] makes one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prepared(u64);

/// The cells of a bitmap, see the module.
#[derive(Debug)]
pub(super) struct Cells {
    first: Box<[Cell]>,
    /// Array `k` has the groups from `first.len() << k` to twice that, as far as there are.
    more: [OnceLock<Box<[Cell]>>; 40],
    len: Grows,
}

impl Cells {
    pub(super) fn new(groups: u64) -> Cells {
        Cells {
            first: make(0..groups).collect(),
            more: [const { OnceLock::new() }; 40],
            len: Grows::new(groups),
        }
    }

    /// Number of groups.
    #[inline]
    pub(super) fn len(&self) -> u64 {
        self.len.get()
    }

    /// Returns the cell of a group.
    #[inline]
    pub(super) fn get(&self, group: u64) -> Option<&Cell> {
        match self.first.get(group as usize) {
            Some(cell) => Some(cell),
            None => self.get_more(group),
        }
    }

    #[cold]
    fn get_more(&self, group: u64) -> Option<&Cell> {
        if group >= self.len() {
            return None;
        }
        let first = self.first.len() as u64;
        let k = group.checked_div(first)?.checked_ilog2()?;
        let cells = self.more.get(k as usize)?.get()?;
        cells.get((group - (first << k)) as usize)
    }

    /// Makes the cells up to a number of groups, which nobody uses yet.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(super) fn prepare(&self, groups: u64) -> Result<Prepared> {
        let first = self.first.len() as u64;
        // The largest first: memory that does not suffice is found before any is filled.
        for (k, cells) in self.more.iter().enumerate().rev() {
            let from = first.saturating_mul(1 << k);
            if from == 0 || from >= groups {
                continue;
            }
            if cells.get().is_some() {
                continue;
            }
            // Whole, although not all are used yet: an array cannot be made longer.
            let lack = Error::OutOfMemory(from.saturating_mul(size_of::<Cell>() as u64));
            let mut made = Vec::new();
            if made.try_reserve_exact(from as usize).is_err() {
                return Err(lack);
            }
            made.extend(make(from..from * 2));
            // Another thread may have been faster.
            let _ = cells.set(made.into_boxed_slice());
        }
        Ok(Prepared(groups))
    }

    /// Publishes the cells of this bitmap that are prepared.
    pub(super) fn grow(&self, prepared: Prepared) {
        self.len.raise(prepared.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stay_where_they_are_when_their_number_grows() {
        let cells = Cells::new(3);
        let at = |group| std::ptr::from_ref(cells.get(group).unwrap());
        let first: Vec<_> = (0..3).map(at).collect();
        assert!(cells.get(3).is_none());
        let four = cells.prepare(4).unwrap();
        assert_eq!(cells.len(), 3, "not published");
        cells.grow(four);
        assert_eq!(cells.len(), 4);
        assert!(cells.get(4).is_none());
        let fourth = at(3);
        cells.grow(cells.prepare(1000).unwrap());
        let all: Vec<_> = (0..1000).map(at).collect();
        assert_eq!((&all[..3], all[3]), (&first[..], fourth));
        let mut sorted = all.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), 1000, "no two groups share a cell");
        assert!(cells.get(1000).is_none());
        let lack = cells.prepare(1 << 43).unwrap_err();
        assert_eq!(
            lack.errno(),
            libc::ENOMEM,
            "an error, and no end of the process"
        );
        assert_eq!(cells.len(), 1000);
    }
}
