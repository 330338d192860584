//! A region as seen by a check or a repair: the bytes of the medium, overlaid
//! with the changes that a repair has not stored yet.
//!
//! Invariant: nothing here stores to the medium. An abandoned repair leaves no
//! trace. A view takes memory only for the pages that a repair changes.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use pramfs_medium::error::Result;
use pramfs_medium::journal::records::{Homes, ReadMedium};
use pramfs_medium::pmem::{PmemError, RegionView};
use pramfs_medium::types::RegionOffset;

/// Size of a page of changes in bytes.
pub(super) const PAGE: u64 = 4096;
/// Size of the unit in which bytes of the medium fail, in bytes.
pub(super) const SECTOR: u64 = 512;
/// What failed bytes read as. No structure is valid with such bytes; zeros would often be.
const FAILED: u8 = 0xff;

#[cfg(test)]
thread_local! {
    /// Number of reads that this thread has made through a view.
    pub(crate) static READS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts a read, in tests of how the work of a repair grows.
#[inline]
fn count_read() {
    #[cfg(test)]
    READS.set(READS.get() + 1);
}

/// See the module.
#[derive(Debug)]
pub(super) struct View<'r> {
    region: RegionView<'r>,
    pages: HashMap<u64, Box<[u8]>>,
    /// Sectors that have failed.
    failed: RefCell<BTreeSet<u64>>,
    /// Bytes were given up that could be read.
    given_up: Cell<bool>,
}

impl<'r> View<'r> {
    /// Creates a view without changes.
    pub(super) fn new(region: impl Into<RegionView<'r>>) -> View<'r> {
        View {
            region: region.into(),
            pages: HashMap::new(),
            failed: RefCell::default(),
            given_up: Cell::new(false),
        }
    }

    /// Returns the region without the changes.
    pub(super) fn region(&self) -> RegionView<'r> {
        self.region
    }

    /// Reads bytes.
    pub(super) fn read(
        &self,
        at: RegionOffset,
        into: &mut [u8],
    ) -> std::result::Result<(), PmemError> {
        count_read();
        if self.pages.is_empty() {
            return self.read_medium(at.0, into);
        }
        self.check(at.0, into.len() as u64)?;
        let (mut at, mut rest) = (at.0, into);
        while !rest.is_empty() {
            let within = (at % PAGE) as usize;
            let n = rest.len().min(PAGE as usize - within);
            let (part, tail) = rest.split_at_mut(n);
            match self.pages.get(&(at / PAGE)) {
                Some(page) => part.copy_from_slice(&page[within..within + n]),
                None => self.read_medium(at, part)?,
            }
            (at, rest) = (at + n as u64, tail);
        }
        Ok(())
    }

    /// Checks that a range lies in the region. Its pages may have failed.
    fn check(&self, at: u64, len: u64) -> std::result::Result<(), PmemError> {
        match self.region.check(at, len) {
            Err(PmemError::Faulted { .. }) => Ok(()),
            checked => checked,
        }
    }

    /// Reads bytes of the medium. Those that have failed read as [`FAILED`].
    fn read_medium(&self, at: u64, into: &mut [u8]) -> std::result::Result<(), PmemError> {
        match self.region.read(at, into) {
            Err(PmemError::Faulted { .. }) => {}
            read => return read,
        }
        let (mut at, mut rest) = (at, into);
        while !rest.is_empty() {
            let n = rest.len().min((SECTOR - at % SECTOR) as usize);
            let (part, tail) = rest.split_at_mut(n);
            match self.region.read(at, part) {
                Err(PmemError::Faulted { .. }) => {
                    part.fill(FAILED);
                    self.failed.borrow_mut().insert(at / SECTOR * SECTOR);
                }
                read => read?,
            }
            (at, rest) = (at + n as u64, tail);
        }
        Ok(())
    }

    /// Whether bytes of the medium in a range have failed.
    pub(super) fn has_failed(&self, at: RegionOffset, len: u64) -> bool {
        let mut bytes = vec![0; len as usize];
        let fails = |read| matches!(read, Err(PmemError::Faulted { .. }));
        // The second read notes which sectors they are.
        fails(self.region.read(at.0, &mut bytes)) && self.read_medium(at.0, &mut bytes).is_ok()
    }

    /// Gives up bytes of the medium: they count as failed from now on.
    pub(super) fn lose(&self, range: Range<u64>) {
        self.given_up.set(true);
        self.region.mark_bad(range);
    }

    /// Whether [`lose`](Self::lose) was called.
    pub(super) fn has_given_up(&self) -> bool {
        self.given_up.get()
    }

    /// Returns the sectors that have failed so far, by their offsets.
    pub(super) fn failed(&self) -> Vec<u64> {
        self.failed.borrow().iter().copied().collect()
    }

    /// Reads a structure.
    pub(super) fn read_pod<T: FromBytes + IntoBytes + Immutable>(
        &self,
        at: RegionOffset,
    ) -> std::result::Result<T, PmemError> {
        if self.pages.is_empty() {
            count_read();
            match self.region.read_pod(at.0) {
                Err(PmemError::Faulted { .. }) => {}
                read => return read,
            }
        }
        let mut value = T::new_zeroed();
        self.read(at, value.as_mut_bytes())?;
        Ok(value)
    }

    /// Reads an aligned word.
    pub(super) fn load_u64(&self, at: RegionOffset) -> std::result::Result<u64, PmemError> {
        if self.pages.is_empty() {
            count_read();
            match self.region.load_u64(at.0) {
                Err(PmemError::Faulted { .. }) => {}
                read => return read,
            }
        }
        self.read_pod(at)
    }

    /// Changes bytes in the view.
    pub(super) fn store(
        &mut self,
        at: RegionOffset,
        bytes: &[u8],
    ) -> std::result::Result<(), PmemError> {
        self.check(at.0, bytes.len() as u64)?;
        let (mut at, mut rest) = (at.0, bytes);
        while !rest.is_empty() {
            let (number, within) = (at / PAGE, (at % PAGE) as usize);
            let n = rest.len().min(PAGE as usize - within);
            if !self.pages.contains_key(&number) {
                let len = PAGE.min(self.region.len() - number * PAGE);
                let mut page = vec![0; len as usize];
                self.read_medium(number * PAGE, &mut page)?;
                self.pages.insert(number, page.into());
            }
            if let Some(page) = self.pages.get_mut(&number) {
                page[within..within + n].copy_from_slice(&rest[..n]);
            }
            (at, rest) = (at + n as u64, &rest[n..]);
        }
        Ok(())
    }

    /// Changes a word in the view.
    pub(super) fn store_u64(
        &mut self,
        at: RegionOffset,
        word: u64,
    ) -> std::result::Result<(), PmemError> {
        self.store(at, &word.to_le_bytes())
    }

    /// Returns the number of pages that are kept in memory.
    #[cfg(test)]
    pub(super) fn changed_pages(&self) -> usize {
        self.pages.len()
    }

    /// Returns the 8-byte words that differ from the medium, in order, merged
    /// into runs.
    pub(super) fn changes(&self) -> std::result::Result<Vec<Change>, PmemError> {
        let mut numbers: Vec<_> = self.pages.keys().copied().collect();
        numbers.sort_unstable();
        let mut out: Vec<Change> = Vec::new();
        let mut old = vec![0; PAGE as usize];
        for number in numbers {
            let page = &self.pages[&number];
            let old = &mut old[..page.len()];
            self.read_medium(number * PAGE, old)?;
            for (i, (new, old)) in page.chunks(8).zip(old.chunks(8)).enumerate() {
                if new == old {
                    continue;
                }
                let at = number * PAGE + i as u64 * 8;
                match out.last_mut() {
                    Some(run) if run.at + run.bytes.len() as u64 == at => {
                        run.bytes.extend_from_slice(new)
                    }
                    _ => out.push(Change {
                        at,
                        bytes: new.to_vec(),
                    }),
                }
            }
        }
        Ok(out)
    }
}

impl ReadMedium for View<'_> {
    fn len(&self) -> u64 {
        self.region.len()
    }

    fn load_u64(&self, at: RegionOffset) -> Result<u64> {
        Ok(View::load_u64(self, at)?)
    }

    fn read(&self, at: RegionOffset, into: &mut [u8]) -> Result<()> {
        Ok(View::read(self, at, into)?)
    }
}

impl Homes for View<'_> {
    fn store(&mut self, at: RegionOffset, bytes: &[u8]) -> Result<()> {
        Ok(View::store(self, at, bytes)?)
    }

    fn store_u64(&mut self, at: RegionOffset, word: u64) -> Result<()> {
        Ok(View::store_u64(self, at, word)?)
    }

    fn zero(&mut self, at: RegionOffset, words: u64) -> Result<()> {
        Ok(View::store(self, at, &vec![0; words as usize * 8])?)
    }
}

/// New bytes for the medium.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    /// Offset, a multiple of 8.
    pub at: u64,
    /// The bytes; their number is a multiple of 8.
    pub bytes: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use pramfs_medium::pmem::{HeapBackend, Region, RegionAccess};

    #[test]
    fn changes_show_only_in_view() {
        let region = Region::new("test", HeapBackend::boxed(3 * 4096 + 512));
        region.window().store_unflushed(4090, &[1; 12]).unwrap();
        let mut v = View::new(&region);
        v.store(RegionOffset(4094), &[2; 4]).unwrap();
        v.store(RegionOffset(3 * 4096 + 504), &[3; 8]).unwrap();
        assert!(v.store(RegionOffset(3 * 4096 + 505), &[3; 8]).is_err());
        let mut seen = [0; 12];
        v.read(RegionOffset(4090), &mut seen).unwrap();
        assert_eq!(seen, [1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 1, 1]);
        RegionView::from(&region).read(4090, &mut seen).unwrap();
        assert_eq!(seen, [1; 12]);
        let changes = v.changes().unwrap();
        assert_eq!(changes.len(), 2);
        assert_eq!((changes[0].at, changes[0].bytes.len()), (4088, 16));
        assert_eq!(
            (changes[1].at, &changes[1].bytes[..]),
            (3 * 4096 + 504, &[3; 8][..])
        );
        // The old bytes stored back: no change.
        v.store(RegionOffset(4094), &[1; 4]).unwrap();
        assert_eq!(v.changes().unwrap().len(), 1);
    }
}
