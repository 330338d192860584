//! Checksums of file data (feature `data_checksums`): setting them and comparing with them.
//!
//! Invariant: the word of a written block holds the sum of its bytes up to the end of the file,
//! unless the block is marked ([`marks`](crate::fs::steps::marks)). The record
//! that changes these bytes, or the end within the block, sets the word too. Bytes past the end
//! are in no sum: they change without a record.
//!
//! The words are in `pramfs_medium::media::sums`.

use std::ops::Range;

use crate::fs::Engine;
use crate::fs::engine::change::Edit;
use crate::fs::inode::marks::bytes_of;
use crate::fs::inode::state::InodeState;
use pramfs_medium::error::{Error, Result};
use pramfs_medium::map::{self, MapRef};
use pramfs_medium::media::inode::{ALL_BLOCKS, FL_UNSUMMED, NO_BLOCKS};
use pramfs_medium::media::sums::{SumState, check_word, data_crc, sum_word};
use pramfs_medium::pmem::PmemError;
use pramfs_medium::types::{Bno, FileBlock, Ino};
use pramfs_medium::volume::{Plan, Record};

/// The largest block.
const BLOCK_MAX: usize = 4096;

/// Sums that are put at once.
const AT_ONCE: usize = 512;

/// Whether a page of a range has failed.
pub(crate) fn has_failed(e: &Error) -> bool {
    matches!(e, Error::Pmem(PmemError::Faulted { .. }))
}

impl Engine {
    /// Puts the sums of the written blocks that hold a byte range, as they will be after the
    /// record. It already has all that changes there. `size` is the size of the file then, and
    /// `before` the locked file.
    #[inline]
    pub(crate) fn put_sums(
        &self,
        tx: &mut Record<'_>,
        before: &InodeState,
        map: &MapRef,
        size: u64,
        range: Range<u64>,
    ) -> Result<()> {
        match self.vol.geo.data_sums {
            true => self.put_all_sums(tx, before, map, size, &[range]),
            false => Ok(()),
        }
    }

    /// As [`put_sums`](Self::put_sums), for several ranges, in ascending order.
    #[inline(never)]
    pub(crate) fn put_all_sums(
        &self,
        tx: &mut Record<'_>,
        before: &InodeState,
        map: &MapRef,
        size: u64,
        ranges: &[Range<u64>],
    ) -> Result<()> {
        // Marked blocks will be summed later.
        let marked = before.disk.unsummed();
        if !self.vol.geo.data_sums || marked == ALL_BLOCKS {
            return Ok(());
        }
        self.use_copies()?;
        self.put_sums_beside(tx, &marked, map, size, ranges, |_| false)
    }

    /// As [`put_sums`](Self::put_sums), for blocks that the record takes out of the mark.
    pub(crate) fn put_marked_sums(
        &self,
        tx: &mut Record<'_>,
        map: &MapRef,
        size: u64,
        range: Range<u64>,
    ) -> Result<()> {
        self.put_sums_beside(tx, &NO_BLOCKS, map, size, &[range], has_failed)
    }

    /// Puts the sums of all blocks but the marked ones, and those that cannot be read by an error
    /// that is to `skip`.
    fn put_sums_beside(
        &self,
        tx: &mut Record<'_>,
        marked: &Range<FileBlock>,
        map: &MapRef,
        size: u64,
        ranges: &[Range<u64>],
        skip: impl Fn(&Error) -> bool,
    ) -> Result<()> {
        let geo = &self.vol.geo;
        let after = tx.data_after();
        let mut bytes = vec![0; geo.block_size as usize];
        let (mut first, mut words) = (Bno(0), Vec::new());
        let mut next = FileBlock(0);
        for range in ranges {
            let end = range.end.min(size);
            if range.start >= end {
                continue;
            }
            // Two ranges may share a block.
            let mut index = geo.file_block(range.start).max(next);
            next = geo.file_block(end - 1) + 1;
            while index < next {
                if marked.contains(&index) {
                    index = marked.end.min(next);
                    continue;
                }
                let leaf = map::leaf_after(tx, map, index)?;
                let mut stop = leaf.first.saturating_add(leaf.count).min(next);
                if index < marked.start {
                    stop = stop.min(marked.start);
                }
                let Some(block) = leaf.block.filter(|_| !leaf.unwritten) else {
                    index = stop;
                    continue;
                };
                while index < stop {
                    let block = block.after(index - leaf.first);
                    let follows = block == first.after(words.len() as u64)
                        && block != self.vol.blocks.group_end(first)
                        && words.len() < AT_ONCE;
                    if !follows {
                        self.put_words(tx, first, &mut words)?;
                        first = block;
                    }
                    let len = (size - geo.file_offset(index)).min(geo.block_size) as usize;
                    let bytes = &mut bytes[..len];
                    index += 1;
                    match after.read(self.vol.medium(), geo.offset(block), bytes) {
                        Err(e) if skip(&e) => continue,
                        read => read?,
                    }
                    words.push(sum_word(geo.seed, block, data_crc(bytes)));
                }
            }
        }
        self.put_words(tx, first, &mut words)
    }

    /// Puts the sums of a step of an allocation into its record, which may become large by them:
    /// those of blocks that it has made written, and of what a new size makes visible.
    pub(crate) fn sum_filled(
        &self,
        tx: &mut Plan<'_>,
        new: &Edit<'_>,
        map: &MapRef,
        written: Range<FileBlock>,
    ) -> Result<()> {
        let (geo, grown) = (&self.vol.geo, new.before().disk.size..new.size);
        let written = geo.file_offset(written.start)..geo.file_offset(written.end);
        if !geo.data_sums || grown.is_empty() && written.is_empty() {
            return Ok(());
        }
        let changed = match (grown.is_empty(), written.is_empty()) {
            (true, _) => written,
            (_, true) => grown,
            _ => written.start.min(grown.start)..written.end.max(grown.end),
        };
        tx.allow_large();
        self.put_sums(tx, new.before(), map, new.size, changed)?;
        tx.end_staging()
    }

    fn put_words(&self, tx: &mut Record<'_>, first: Bno, words: &mut Vec<u64>) -> Result<()> {
        if !words.is_empty() {
            tx.put_sums(first, words)?;
            words.clear();
        }
        Ok(())
    }

    /// Comes before a change of a part of a block, which keeps the rest: refuses it if the block
    /// is not what was written. A new sum would hide that.
    #[inline]
    pub(crate) fn check_edges(&self, state: &InodeState, range: Range<u64>) -> Result<()> {
        match self.vol.geo.data_sums {
            true => self.check_both_edges(state, range),
            false => Ok(()),
        }
    }

    #[inline(never)]
    fn check_both_edges(&self, state: &InodeState, range: Range<u64>) -> Result<()> {
        let (geo, size) = (&self.vol.geo, state.disk.size);
        let start = range.start.min(size);
        let mut checked = None;
        if geo.within_block(start) != 0 {
            checked = Some(geo.file_block(start));
            self.check_block(state, geo.file_block(start))?;
        }
        if geo.within_block(range.end) != 0 && range.end < size {
            let last = geo.file_block(range.end);
            if checked != Some(last) {
                self.check_block(state, last)?;
            }
        }
        Ok(())
    }

    /// Compares a block of a locked file with its sum, unless it is marked.
    pub(crate) fn check_block(&self, state: &InodeState, index: FileBlock) -> Result<()> {
        let (geo, size) = (&self.vol.geo, state.disk.size);
        if state.disk.unsummed().contains(&index) {
            return Ok(());
        }
        let offset = geo.file_offset(index);
        let extent = map::run(&self.vol, &state.map(), index, 1)?;
        let Some(block) = extent.block.filter(|_| !extent.unwritten && offset < size) else {
            return Ok(());
        };
        let mut bytes = [0; BLOCK_MAX];
        let len = (size - offset).min(geo.block_size) as usize;
        let bytes = &mut bytes[..len];
        self.vol.medium().read(geo.offset(block), bytes)?;
        self.compare_run(Ino(state.disk.ino), size, block, offset, bytes)
            .map(drop)
    }

    /// As [`compare`](Self::compare), for bytes of a locked file. Those of marked blocks are
    /// right.
    #[inline]
    pub(crate) fn compare_locked(
        &self,
        state: &InodeState,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<usize> {
        match state.disk.flags & FL_UNSUMMED != 0 {
            true => self.compare_beside_marked(state, offset, bytes),
            false => self.compare(&state.map(), state.disk.size, offset, bytes),
        }
    }

    #[inline(never)]
    fn compare_beside_marked(
        &self,
        state: &InodeState,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<usize> {
        let (map, size, all) = (state.map(), state.disk.size, bytes.len());
        let marked = bytes_of(&self.vol.geo, &state.disk.unsummed());
        let within =
            |at: u64| usize::try_from(at.saturating_sub(offset)).map_or(all, |n| n.min(all));
        let (start, end) = (within(marked.start), within(marked.end));
        let right = self.compare(&map, size, offset, &mut bytes[..start])?;
        if right < start {
            return Ok(right);
        }
        match self.compare(&map, size, offset + end as u64, &mut bytes[end..]) {
            Ok(right) => Ok(end + right),
            Err(Error::WrongSum { .. }) if end > 0 => Ok(end),
            Err(e) => Err(e),
        }
    }

    /// Compares bytes that were read from an offset of a file with the sums of its blocks.
    /// Returns the number of bytes before the first block with a wrong sum. The bytes of a
    /// block that was read in part are read again, with the rest of the block.
    ///
    /// # Errors
    /// [`Error::WrongSum`] if that is the first block.
    pub(crate) fn compare(
        &self,
        map: &MapRef,
        size: u64,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<usize> {
        let geo = &self.vol.geo;
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let (index, within) = (geo.file_block(at), geo.within_block(at));
            let left = (bytes.len() - done) as u64;
            let extent = map::run(&self.vol, map, index, geo.blocks_for(within + left))?;
            let n = left.min(geo.bytes(extent.count) - within) as usize;
            if let Some(block) = extent.block.filter(|_| !extent.unwritten) {
                let part = &mut bytes[done..done + n];
                match self.compare_run(map.ino, size, block, at, part) {
                    Ok(right) if right == n => {}
                    Ok(right) => return Ok(done + right),
                    Err(Error::WrongSum { .. }) if done > 0 => return Ok(done),
                    Err(e) => return Err(e),
                }
            }
            done += n;
        }
        Ok(done)
    }

    /// As [`compare`](Self::compare), for bytes in consecutive blocks, the first of which is
    /// `block`.
    #[inline]
    pub(crate) fn compare_run(
        &self,
        ino: Ino,
        size: u64,
        block: Bno,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<usize> {
        let (geo, medium) = (&self.vol.geo, self.vol.medium());
        let (mut block, mut done) = (block, 0);
        let mut place = self.vol.blocks.sum_at(medium, block)?;
        let mut group_end = self.vol.blocks.group_end(block);
        while done < bytes.len() {
            let at = offset + done as u64;
            let within = geo.within_block(at) as usize;
            let first = at - within as u64;
            let len = size.saturating_sub(first).min(geo.block_size) as usize;
            let n = len.saturating_sub(within).min(bytes.len() - done);
            if n == 0 {
                break;
            }
            if block == group_end {
                place = self.vol.blocks.sum_at(medium, block)?;
                group_end = self.vol.blocks.group_end(block);
            }
            let part = &mut bytes[done..done + n];
            let sum = match n == len {
                true => data_crc(part),
                false => self.sum_of_all(block, len, within, part)?,
            };
            let word = medium.load_u64(place)?;
            if check_word(geo.seed, block, word, sum) != SumState::Right {
                return match done {
                    0 => Err(Error::WrongSum {
                        ino,
                        offset: first,
                        block: block.0,
                    }),
                    _ => Ok(done),
                };
            }
            done += n;
            block = block.after(1);
            place = place.word(1);
        }
        Ok(done)
    }

    /// Returns the sum of the first `len` bytes of a block, and the part of them that was asked
    /// for.
    #[inline(never)]
    fn sum_of_all(&self, block: Bno, len: usize, within: usize, part: &mut [u8]) -> Result<u32> {
        let geo = &self.vol.geo;
        let mut bytes = [0; BLOCK_MAX];
        let bytes = &mut bytes[..len];
        self.vol.medium().read(geo.offset(block), bytes)?;
        part.copy_from_slice(&bytes[within..within + part.len()]);
        Ok(data_crc(bytes))
    }
}
