//! Writing and appending.
//!
//! Bytes in written blocks are overwritten in place, with one fence and no record.
//! Atomic writes are in [`atomic`](super::atomic). Every other write is a chain of records. Each record makes the bytes up to some
//! point of the range durable and visible, together with the size: a crash leaves
//! a prefix.
//!
//! Bytes past the end of a file in its written blocks are undefined. An operation
//! that extends the file zeroes them first, by [`Engine::zero_written`].

use crate::credentials::Credentials;
use crate::fs::Engine;
use crate::fs::cache::extent_cache::ExtentCache;
use crate::fs::engine::change::Edit;
use crate::fs::engine::room;
use crate::fs::inode::Inode;
use crate::fs::inode::disk::touch_mtime;
use crate::fs::inode::lock::InodeGuard;
use crate::fs::inode::state::{InodeState, check_file};
use crate::fs::ops::write_source::WriteSource;
use crate::fs::ops::writer::Writer;
use crate::fs::policy::chattr;
use crate::fs::policy::suid::sgid;
use crate::fs::steps::attributes::lock_and_check_group;
use crate::fs::steps::copies::{ATOMIC_BYTES, part_of};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::map;
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::inode::{FL_APPEND, FL_SYNC};
use pramfs_medium::pmem::PmemError;
use pramfs_medium::pmem::RegionAccess as _;
use pramfs_medium::types::{Ino, RegionOffset};

/// Bytes that a crash leaves old or new as a whole.
pub(crate) const WORD: u64 = 8;

/// Shortens a range to end with an aligned word, if any byte is left then: a crash between this
/// part of a write and the next one must not tear a word.
pub(crate) fn whole_words(offset: u64, len: u64) -> u64 {
    let rest = (offset + len) % WORD;
    if len > rest { len - rest } else { len }
}

impl Engine {
    /// Writes to a file. The bytes are durable when it returns. The write is short if
    ///
    /// - the region is full,
    /// - the maximum offset is reached, or
    /// - the next block was lost and would be written only in part.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooLarge`] and [`Error::Lost`] if no byte was
    /// written;
    /// [`Error::IsDirectory`], [`Error::Invalid`], [`Error::Corrupt`];
    /// [`Error::NotPermitted`] if the file is immutable or append-only.
    pub fn write(
        &self,
        caller: &Credentials<'_>,
        ino: Ino,
        offset: u64,
        from: &[u8],
    ) -> Result<usize> {
        let write = || {
            let inode = self.iget_user(ino)?;
            let mut state = self.lock_for_write(&inode, caller, chattr::check_write)?;
            let n = self.write_locked(&inode, &mut state, offset, from)?;
            self.sync_if_flagged(&state)?;
            Ok(n)
        };
        self.op_past_bad_blocks(ino, offset, from.len(), write)
    }

    /// As [`write`](Self::write), for dirty pages of the kernel's cache, of a mapping or of
    /// writes that it has held back. Parts of a file may come in any order.
    ///
    /// - A file that has become immutable is written: the mapping was permitted when
    ///   it was created.
    /// - An append-only file must not be mapped for writing. The kernel does not know
    ///   the flag, so a write-back that changes bytes below the end is refused here. One
    ///   that appends holds the whole page of the old end: those bytes are not written.
    ///
    /// Either all bytes are written, or the call returns the error of the first part
    /// that failed. Earlier parts stay written. If space is missing or a block was
    /// lost, later parts that need no space are still written. So an atomic part that is
    /// refused as a whole is written block by block.
    ///
    /// # Errors
    /// As for [`write`](Self::write), if any byte was not written.
    pub fn write_back(&self, ino: Ino, offset: u64, from: &[u8]) -> Result<()> {
        let write = || {
            let inode = self.iget_user(ino)?;
            let mut state = inode.state.write();
            check_file(inode.ino, &state)?;
            let block = self.vol.geo.block_size;
            let (mut done, mut all) = (0, Ok(()));
            // The end of an atomic part that was refused as a whole.
            let mut by_block = 0;
            if state.disk.flags & FL_APPEND != 0 {
                done = self.check_only_appends(&inode, &state, offset, from)?;
            }
            while done < from.len() {
                let at = offset + done as u64;
                let in_block = (block - at % block) as usize;
                let end = match done < by_block {
                    true => from.len().min(done + in_block),
                    false => from.len(),
                };
                // A short write does not tell the reason; writing the rest does.
                let refused = match self.write_locked(&inode, &mut state, at, &from[done..end]) {
                    Ok(n) if n > 0 => {
                        done += n;
                        continue;
                    }
                    Ok(_) => Error::NoSpace("no byte of a page could be written"),
                    Err(refused) => refused,
                };
                let no_room = matches!(refused, Error::Pmem(PmemError::NoRoom { .. }));
                let goes_on = no_room
                    || matches!(
                        refused,
                        Error::NoSpace(_) | Error::Lost { .. } | Error::WrongSum { .. }
                    );
                if goes_on && done >= by_block && self.is_atomic(&state) {
                    // Only the bytes of blocks that refuse them are lost.
                    by_block = done + part_of(at, (from.len() - done) as u64) as usize;
                    continue;
                }
                // Keep the error that makes the operation run again with more room.
                all = match all {
                    Err(Error::NoSpace(_)) if no_room => Err(refused),
                    all => all.and(Err(refused)),
                };
                if !goes_on {
                    break;
                }
                // Allocated blocks need no space, and the next block may not be lost.
                done += in_block;
            }
            all
        };
        self.op_past_bad_blocks(ino, offset, from.len(), write)
    }

    /// Checks that bytes for an append-only file change none that it has. Returns how many
    /// of them it has.
    #[cold]
    fn check_only_appends(
        &self,
        inode: &Inode,
        state: &InodeState,
        offset: u64,
        from: &[u8],
    ) -> Result<usize> {
        let below = state.disk.size.saturating_sub(offset);
        let below = usize::try_from(below).map_or(from.len(), |below| below.min(from.len()));
        let mut old = [0; 4096];
        let hole = || self.check_hole_of(inode, state);
        let mut at = offset;
        for new in from[..below].chunks(old.len()) {
            let old = &mut old[..new.len()];
            if self.read_map(&state.map(), at, old, hole)? != new.len() || old != new {
                chattr::check_write(&state.disk)?;
            }
            at += new.len() as u64;
        }
        Ok(below)
    }

    /// As [`write`](Self::write), for a caller that holds the inode.
    #[inline]
    pub(crate) fn write_to_file(
        &self,
        inode: &Inode,
        extents: &ExtentCache,
        offset: u64,
        from: &[u8],
    ) -> Result<usize> {
        let write = || {
            let mut state = inode.state.write();
            check_file(inode.ino, &state)?;
            chattr::check_write(&state.disk)?;
            let (len, records) = (from.len(), state.records);
            let end = offset.checked_add(len as u64);
            let place = match end {
                Some(end) if end <= state.disk.size => {
                    self.lookup_extent(extents, records, offset, len)
                }
                _ => None,
            };
            let n = match place {
                Some(at) if !self.is_atomic(&state) => {
                    self.overwrite_at(inode, &mut state, at, from)?
                }
                Some(at) if len as u64 <= ATOMIC_BYTES => {
                    self.overwrite_whole(inode, &mut state, offset, at, from)?;
                    len
                }
                _ => {
                    let n = self.write_locked(inode, &mut state, offset, from)?;
                    // A write that commits records would invalidate the cached extent.
                    if state.records == records {
                        self.fill_extent(extents, records, &state.map(), offset, len, || true);
                    }
                    n
                }
            };
            self.sync_if_flagged(&state)?;
            Ok(n)
        };
        self.op_past_bad_blocks(inode.ino, offset, from.len(), write)
    }

    /// Writes all bytes, or none: a crash leaves the file as it was before or as it is after.
    /// For a caller that holds the inode.
    pub(crate) fn write_atomic_to_file(
        &self,
        inode: &Inode,
        extents: &ExtentCache,
        offset: u64,
        from: &[u8],
    ) -> Result<()> {
        let write = || {
            let mut state = inode.state.write();
            check_file(inode.ino, &state)?;
            chattr::check_write(&state.disk)?;
            let end = offset.saturating_add(from.len() as u64);
            if end > self.vol.geo.max_file_size() {
                return Err(Error::TooLarge(end));
            }
            if from.is_empty() {
                return Ok(());
            }
            let (len, records) = (from.len(), state.records);
            let place = match end <= state.disk.size {
                true => self.lookup_extent(extents, records, offset, len),
                false => None,
            };
            match place {
                Some(at) => self.overwrite_whole(inode, &mut state, offset, at, from)?,
                None => {
                    self.write_whole(inode, &mut state, offset, from)?;
                    if state.records == records {
                        self.fill_extent(extents, records, &state.map(), offset, len, || true);
                    }
                }
            }
            self.sync_if_flagged(&state)
        };
        self.op_past_bad_blocks(inode.ino, offset, from.len(), write)
    }

    /// Locks a file for a write by `caller`. Clears sgid if the caller may not keep it.
    /// `check` is the rule of the chattr flags.
    pub(crate) fn lock_for_write<'a>(
        &self,
        inode: &'a Inode,
        caller: &Credentials<'_>,
        check: fn(&DiskInode) -> Result<()>,
    ) -> Result<InodeGuard<'a>> {
        let (mut state, keeps_sgid) =
            lock_and_check_group(caller, || inode.state.write(), |state| sgid(&state.disk));
        check_file(inode.ino, &state)?;
        check(&state.disk)?;
        if !keeps_sgid {
            self.drop_sgid(inode, &mut state)?;
        }
        Ok(state)
    }

    /// Syncs the medium after a write to a file with `chattr +S`, for media where a
    /// fence only orders stores.
    #[inline]
    pub(crate) fn sync_if_flagged(&self, state: &InodeState) -> Result<()> {
        if state.disk.flags & FL_SYNC != 0 {
            self.sync_medium()?;
        }
        Ok(())
    }

    pub(crate) fn write_locked<S: WriteSource>(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        offset: u64,
        from: S,
    ) -> Result<usize> {
        if from.len() == 0 {
            return Ok(0);
        }
        let max = self.vol.geo.max_file_size();
        if offset >= max {
            return Err(Error::TooLarge(offset));
        }
        let from =
            from.part(0..usize::try_from(max - offset).map_or(from.len(), |n| n.min(from.len())));
        if self.is_atomic(state) {
            return self.write_in_parts(inode, state, offset, from);
        }
        if offset + from.len() as u64 <= state.disk.size
            && self.overwrite(inode, state, offset, from)?
        {
            return Ok(from.len());
        }
        self.settle_size(inode, state)?;
        let mut done = 0;
        while done < from.len() {
            match self.write_some(
                inode,
                state,
                offset + done as u64,
                from.part(done..from.len()),
            ) {
                Ok(n) => done += n,
                Err(e) if done > 0 && room::ends_short(&e) => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// The fast path: the range lies in one run of written blocks. False if it does
    /// not.
    #[inline]
    fn overwrite<S: WriteSource>(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        offset: u64,
        from: S,
    ) -> Result<bool> {
        let geo = &self.vol.geo;
        let within = geo.within_block(offset);
        let blocks = geo.blocks_for(within + from.len() as u64);
        let extent = map::run(&self.vol, &state.map(), geo.file_block(offset), blocks)?;
        let Some(block) = extent
            .block
            .filter(|_| !extent.unwritten && extent.count == blocks)
        else {
            return Ok(false);
        };
        self.overwrite_at(inode, state, geo.offset(block) + within, from)?;
        Ok(true)
    }

    /// Overwrites written bytes of a file in place.
    #[inline(always)]
    fn overwrite_at<S: WriteSource>(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        at: RegionOffset,
        from: S,
    ) -> Result<usize> {
        self.settle_copies(state)?;
        let pending = from.store(&self.vol.region, at)?;
        // Before the fence: overlaps this work in memory with the write-back.
        self.overwritten(inode, state);
        let _ = self.vol.region.write_back().fence(pending);
        Ok(from.len())
    }

    /// Sets the times of a write without a record. The timer writes them to the
    /// medium within a second.
    #[inline]
    pub(crate) fn overwritten(&self, inode: &Inode, state: &mut InodeState) {
        self.touch_lazily(inode, state);
    }

    /// Writes as many bytes as fit one record, at least one.
    fn write_some<S: WriteSource>(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        offset: u64,
        from: S,
    ) -> Result<usize> {
        let mut len = from.len();
        loop {
            match self.try_write_some(inode, state, offset, from.part(0..len))? {
                Attempt::Written(n) => return Ok(n),
                Attempt::WrittenInPlace(n) => {
                    self.overwritten(inode, state);
                    return Ok(n);
                }
                Attempt::TooMuch { less } => len = less,
            }
        }
    }

    fn try_write_some<S: WriteSource>(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        offset: u64,
        from: S,
    ) -> Result<Attempt> {
        self.settle_copies(state)?;
        let mut new = Edit::new(inode, state);
        let mut tx = self.begin(inode);
        let mut w = Writer::new(self, new.before(), offset, from);
        if offset > w.size {
            self.zero_written(&mut tx, &w.map, w.size, offset)?;
        }
        let filled = w.fill(&mut tx);
        let (done, tried) = (w.pos - offset, w.tried);
        let filled = filled.and_then(|last| match last {
            None => Ok(tx.end()),
            Some(last) => {
                // The lane stays locked while the bytes are stored, so only for few.
                let mut record = tx.lock_lane(&[&inode.last_record]);
                w.store_last(&mut record, &last)?;
                Ok(record)
            }
        });
        let mut record = match filled {
            Ok(record) => record,
            // No space for a pointer block. The record is dropped. The next attempt ends
            // at the failed block, or has half of the blocks.
            Err(e) if (done > 0 || tried > 1) && room::is_out_of_space(&e) => {
                let half = self.vol.geo.bytes(tried / 2);
                let less = if done > 0 {
                    done
                } else {
                    half.min(from.len() as u64 / 2)
                };
                let less = whole_words(offset, less.max(1));
                // The first word, if it does not end in the range: all of it, in one block.
                let rest = (offset + less) % WORD;
                let less = match rest > 0 && less + WORD - rest < from.len() as u64 {
                    true => less + WORD - rest,
                    false => less,
                };
                return Ok(Attempt::TooMuch {
                    less: less as usize,
                });
            }
            Err(e) => return Err(e),
        };
        let Writer {
            pos,
            map,
            size,
            first,
            ..
        } = w;
        if pos <= size && map == new.before().map() && record.has_no_record() {
            record.settle();
            return Ok(Attempt::WrittenInPlace((pos - offset) as usize));
        }
        new.store_map(&record, &map, first);
        new.size = new.size.max(pos);
        touch_mtime(&mut new, self.now());
        let new = new.stage(&mut record)?;
        self.commit(record, [new])?;
        Ok(Attempt::Written((pos - offset) as usize))
    }
}

/// The outcome of an attempt to write with one record.
enum Attempt {
    /// So many bytes are written.
    Written(usize),
    /// So many bytes are written, all in written blocks: no record was needed.
    WrittenInPlace(usize),
    /// Nothing is written. So many bytes may fit.
    TooMuch { less: usize },
}
