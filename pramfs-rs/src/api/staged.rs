//! [`StagedView`]: a private copy of a view, whose changes are published all or nothing.
//!
//! Invariant: nobody sees the copy before [`StagedView::commit`], and a crash leaves all of the
//! committed ranges or none. The record that copies them is in `fs::ops::atomic`.

use std::ops::{Deref, DerefMut, Range};

use super::mapped::MappedFile;
use pramfs_medium::error::{Error, Result};

/// The bytes of a [`MappedFile`], copied to ordinary memory, to be changed there.
///
/// It derefs to a slice, so any code can change it. [`commit`](Self::commit) then stores the
/// changed ranges to the file: after a crash all of them are there, or none (a failure-atomic
/// msync). Other threads and processes see nothing before.
///
/// ```
/// use pramfs::format::{FormatOptions, format};
/// use pramfs::pmem::RegionOptions;
/// use pramfs::{Access, FileSystem, MountOptions};
///
/// let region = RegionOptions::new().memfd("example", 4 << 20)?;
/// format(&region, &FormatOptions::default())?;
/// let fs = FileSystem::mount(region, MountOptions::default())?;
/// let file = fs.create("/accounts")?;
/// file.set_len(8192)?;
/// let view = file.map(0..8192, Access::Write)?;
/// let mut staged = view.stage()?;
/// staged[8..16].copy_from_slice(&100u64.to_le_bytes());
/// staged[4096..4104].copy_from_slice(&200u64.to_le_bytes());
/// assert_eq!(view.load::<u64>(8)?, 0);
/// staged.commit(&[8..16, 4096..4104])?;
/// assert_eq!(view.load::<u64>(4096)?, 200);
/// # Ok::<(), pramfs::Error>(())
/// ```
#[derive(Debug)]
pub struct StagedView<'m> {
    view: &'m MappedFile,
    bytes: Vec<u8>,
}

impl MappedFile {
    /// Copies the view, so that changes can be made in private and be published at once. The
    /// copy takes as much memory as the view is long.
    ///
    /// # Errors
    /// [`Error::BadHandle`] for a view for reading; [`Error::OutOfMemory`]; those of
    /// [`read`](Self::read).
    pub fn stage(&self) -> Result<StagedView<'_>> {
        if !self.is_for_writing() {
            return Err(Error::BadHandle("the view is for reading"));
        }
        let len = usize::try_from(self.len()).map_err(|_| Error::OutOfMemory(self.len()))?;
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(len)
            .map_err(|_| Error::OutOfMemory(self.len()))?;
        bytes.resize(len, 0);
        self.read(0, &mut bytes)?;
        Ok(StagedView { view: self, bytes })
    }

    /// Overwrites ranges of the view, each an offset in it and its new bytes: all of them or
    /// none, however long they are together. They are durable when it returns. The same as
    /// [`stage`](Self::stage), for a program that keeps its own copy.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range past the end of the view or of the file, and for ranges
    /// that overlap; [`Error::BadHandle`] for a view for reading; those of
    /// [`StagedView::commit`]. Nothing has changed then.
    pub fn write_atomic(&self, changes: &[(u64, &[u8])]) -> Result<()> {
        if !self.is_for_writing() {
            return Err(Error::BadHandle("the view is for reading"));
        }
        let mut pieces = Vec::with_capacity(changes.len());
        for (offset, bytes) in changes.iter().filter(|(_, bytes)| !bytes.is_empty()) {
            let end = offset.checked_add(bytes.len() as u64);
            if end.is_none_or(|end| end > self.len()) {
                return Err(Error::Invalid("the range is outside the view"));
            }
            pieces.push((self.file_offset() + offset, *bytes));
        }
        pieces.sort_unstable_by_key(|(offset, _)| *offset);
        let overlap = pieces
            .windows(2)
            .any(|pair| pair[0].0 + pair[0].1.len() as u64 > pair[1].0);
        if overlap {
            return Err(Error::Invalid("the ranges overlap"));
        }
        self.overwrite_file(&pieces)
    }
}

impl StagedView<'_> {
    /// Stores the bytes of these ranges of the copy to the file: all of them or none, however
    /// long they are together. They are durable when it returns. Other changes of the copy stay
    /// private.
    ///
    /// The file needs as many free blocks as the ranges have bytes, until the next changes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range past the end of the view or of the file;
    /// [`Error::NoSpace`]; [`Error::NotPermitted`] if the file has become immutable or
    /// append-only. Nothing has changed then.
    pub fn commit(&self, ranges: &[Range<u64>]) -> Result<()> {
        let start = self.view.file_offset();
        let outside = || Error::Invalid("the range is outside the view");
        for range in ranges {
            if range.start > range.end || range.end > self.view.len() {
                return Err(outside());
            }
        }
        let mut pieces = Vec::with_capacity(ranges.len());
        for range in disjoint(ranges) {
            let within = range.start as usize..range.end as usize;
            pieces.push((
                start + range.start,
                self.bytes.get(within).ok_or_else(outside)?,
            ));
        }
        self.view.overwrite_file(&pieces)
    }

    /// Copies the current bytes of the view again, over all changes that were not committed.
    ///
    /// # Errors
    /// Those of [`MappedFile::read`].
    pub fn reset(&mut self) -> Result<()> {
        self.view.read(0, &mut self.bytes)
    }
}

/// Returns the same bytes as ranges that do not overlap, in their order, without empty ones. A
/// record copies to each byte once.
fn disjoint(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut sorted: Vec<_> = ranges.iter().filter(|r| !r.is_empty()).cloned().collect();
    sorted.sort_unstable_by_key(|range| range.start);
    sorted.dedup_by(|next, last| {
        let overlaps = next.start < last.end;
        if overlaps {
            last.end = last.end.max(next.end);
        }
        overlaps
    });
    sorted
}

impl Deref for StagedView<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for StagedView<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}
