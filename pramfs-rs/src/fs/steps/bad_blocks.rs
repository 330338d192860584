//! Taking blocks of failed pages out of use.
//!
//! Purpose: what the kernel's list names at mount, and what fails later under a file, is put on
//! the list of bad blocks, durably, and is never allocated again.
//!
//! Crash order:
//! * The first block of the list is stored and fenced before the superblock names it, copy
//!   first. Its bit is set by the record after that; a mount sets it if a crash came between.
//! * One record lists blocks and sets the bits of those that were free.
//! * One record takes a block of a file out of use: it lists the block, puts a loss mark in its
//!   place, and changes the inode. Before it, the file has the failed block; after it, the bytes
//!   are lost.
//!
//! Everything may be repeated: a block that is listed already is not listed again. Blocks of the
//! format itself (superblock pages, journal) cannot be taken out of use.
//!
//! A block of a file that other processes map stays in its file (rule 6). So do blocks of
//! metadata; fsck replaces those.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::fs::engine::change::Edit;
use crate::fs::inode::Inode;
use crate::fs::inode::state::{InodeState, check_file};
use crate::fs::policy::chattr;
use crate::fs::{Engine, Need};
use pramfs_medium::error::Result;
use pramfs_medium::map;
use pramfs_medium::media::bad_blocks::is_possible;
use pramfs_medium::media::features::BAD_BLOCKS;
use pramfs_medium::media::inode::{FL_APPEND, FL_LOST};
use pramfs_medium::pmem::{KernelBad, Region, RegionAccess as _};
use pramfs_medium::types::{BlockRun, Bno, FileBlock, Ino, RegionOffset};
use pramfs_medium::volume::LockedList;

/// Asks the kernel which ranges of a region past `from` are bad, and never touches these from here
/// on. A server that may not read the kernel's list by now says so, and finds what fails when it is
/// accessed.
pub(crate) fn avoid_bad_ranges(region: &Region, from: u64) -> Vec<Range<u64>> {
    let found = region.kernel_bad().unwrap_or_else(|e| {
        tracing::warn!(error = %e, "the kernel's list of bad blocks cannot be read");
        KernelBad::default()
    });
    if let Some(notice) = &found.notice {
        tracing::warn!("bad blocks: {notice}");
    }
    let past = found.ranges.into_iter().filter(|range| range.end > from);
    let bad: Vec<_> = past.map(|range| range.start.max(from)..range.end).collect();
    for range in &bad {
        tracing::warn!(
            "{}: the kernel names {} bytes at offset {:#x} as bad; they are not read",
            region.info().name,
            range.end - range.start,
            range.start
        );
        region.mark_bad(range.clone());
    }
    bad
}

impl Engine {
    /// Reads the list of bad blocks. If the mount may store, also lists what the kernel names.
    /// An error leaves the mount as it is: what could not be listed is still not read.
    pub(crate) fn take_out_known(&self, ranges: &[Range<u64>], writable: bool) {
        let root = self.super_state.fixed.lock().badblock_root;
        if let Err(e) = self.vol.load_bad_blocks(root, writable) {
            self.note_damage(&e);
            return;
        }
        if !writable {
            return;
        }
        for range in ranges {
            if let Err(e) = self.list_range(range) {
                tracing::warn!(
                    error = %e,
                    "could not take {} bytes at offset {:#x} out of use",
                    range.end - range.start,
                    range.start
                );
            }
        }
    }

    /// Lists the blocks that a range of the region touches.
    fn list_range(&self, range: &Range<u64>) -> Result<()> {
        let geo = &self.vol.geo;
        let first = geo.block_at(RegionOffset(range.start));
        let end = Bno(geo.blocks_for(range.end).min(geo.blocks()));
        if first >= end {
            return Ok(());
        }
        let run = BlockRun {
            start: first,
            len: end.0 - first.0,
        };
        let is_new =
            |block| is_possible(geo, &BlockRun::one(block)) && !self.vol.bad.contains(block);
        if !run.blocks().any(is_new) {
            return Ok(());
        }
        let mut list = self.open_bad_list()?;
        let added = self.vol.list_bad_blocks(&mut list, run)?;
        if added > 0 {
            tracing::warn!(
                "{added} blocks from block {} on are taken out of use: the medium has failed there",
                first.0
            );
        }
        Ok(())
    }

    /// Locks the list, and makes its first block if there is none.
    fn open_bad_list(&self) -> Result<LockedList<'_>> {
        let mut list = self.vol.lock_bad_blocks();
        self.vol.make_bad_list(&mut list, |root| {
            self.super_state.change_fixed(self.vol.medium(), |fixed| {
                fixed.badblock_root = root;
                fixed.ro_compat |= BAD_BLOCKS;
            })
        })?;
        Ok(list)
    }

    /// Runs a change of a range of a file as an [operation](Self::op), which may be repeated. If
    /// it fails because pages have failed, takes the blocks under the file that have out of the
    /// file and of use, and runs the change again. Free blocks that it met are skipped then.
    #[inline(always)]
    pub(crate) fn op_past_bad_blocks<T>(
        &self,
        ino: Ino,
        offset: u64,
        len: usize,
        change: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        self.op_past_bad_blocks_of(ino, || [(offset, len as u64)], change)
    }

    /// As [`op_past_bad_blocks`](Self::op_past_bad_blocks). `targets` returns the ranges, each an
    /// offset and a length, that the attempt that has failed was to replace.
    #[inline(always)]
    pub(crate) fn op_past_bad_blocks_of<T, R: IntoIterator<Item = (u64, u64)>>(
        &self,
        ino: Ino,
        targets: impl Fn() -> R,
        change: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let faults = Cell::new(self.vol.region.faults_seen());
        self.op_or_mend(Need::Write, change, |e| {
            Region::any_faults()
                && e.errno() == libc::EIO
                && self.can_go_on_elsewhere(ino, &mut targets().into_iter(), &faults)
        })
    }

    /// Takes the failed blocks of ranges of a file out of use, for a change that has failed;
    /// true if there are any, or if pages have failed since there were `faults`.
    #[cold]
    fn can_go_on_elsewhere(
        &self,
        ino: Ino,
        targets: &mut dyn Iterator<Item = (u64, u64)>,
        faults: &Cell<u64>,
    ) -> bool {
        let mut taken_out = false;
        for (offset, len) in targets {
            taken_out |= self.take_out_of_file(ino, offset, len).unwrap_or_else(|e| {
                tracing::warn!(%ino, error = %e, "could not take failed blocks out of a file");
                false
            });
        }
        let now = self.vol.region.faults_seen();
        taken_out || faults.replace(now) != now
    }

    /// Takes the blocks of a range of a file whose pages have failed out of use; true if there
    /// are any.
    #[cold]
    fn take_out_of_file(&self, ino: Ino, offset: u64, len: u64) -> Result<bool> {
        if len == 0 || !self.is_up() || self.read_only.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let geo = &self.vol.geo;
        let first = geo.file_block(offset);
        let last = geo.file_block(offset.saturating_add(len - 1).min(geo.max_file_size()));
        self.op(Need::Write, || {
            let inode = self.iget_user(ino)?;
            let mut state = inode.state.write();
            check_file(inode.ino, &state)?;
            if self.keeps_blocks(&state) {
                return Ok(false);
            }
            chattr::check_append(&state.disk)?;
            if self.vol.region.is_cut() {
                // Pages past the end of a host file fail, and are not bad.
                return Ok(false);
            }
            self.settle_copies(&state)?;
            let (end, size) = (offset.saturating_add(len), state.disk.size);
            // What is not written anew may still be readable in part, and is not given up. A file
            // that can only grow keeps all bytes that it has.
            let from = match state.disk.flags & FL_APPEND {
                0 => offset,
                _ => offset.max(size),
            };
            let is_replaced = |index: FileBlock| {
                let at = geo.file_offset(index);
                at >= from && (at.saturating_add(geo.block_size) <= end || end >= size)
            };
            let mut any = false;
            let mut at = first;
            while at <= last {
                let extent = map::run(&self.vol, &state.map(), at, last - at + 1)?;
                if let Some(block) = extent.block {
                    let replaced = (0..extent.count).filter(|i| is_replaced(at + *i));
                    for i in replaced.filter(|i| self.vol.has_failed_page(block.after(*i))) {
                        any |= self.take_out_one(&inode, &mut state, at + i)?;
                    }
                }
                at += extent.count.max(1);
            }
            Ok(any)
        })
    }

    /// Takes one block out of a locked file and of use, in one record.
    fn take_out_one(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        index: FileBlock,
    ) -> Result<bool> {
        let mut list = self.open_bad_list()?;
        let mut new = Edit::new(inode, state);
        let mut tx = self.begin(inode);
        let mut map = new.before().map();
        let Some((block, is_lost)) = map::lose(&mut tx, &mut map, index)? else {
            return Ok(false);
        };
        let run = BlockRun::one(block);
        let changed = match self.vol.bad.contains(block) {
            true => Vec::new(),
            false => tx.list_bad(&list, run)?,
        };
        new.store_map(&tx, &map, index);
        if is_lost {
            new.flags |= FL_LOST;
        }
        let new = new.stage(&mut tx)?;
        self.commit(tx, [new])?;
        self.vol.publish_bad(&mut list, changed, run);
        let offset = self.vol.geo.file_offset(index);
        tracing::warn!(
            "{}: block {} at offset {offset} has failed and is taken out of use",
            inode.ino,
            block.0
        );
        Ok(true)
    }

    /// Returns how much of a read can be answered: up to the first block whose page has failed.
    /// `None` if that is the first byte, or nothing has failed.
    #[cold]
    pub(crate) fn readable_part(
        &self,
        state: &InodeState,
        offset: u64,
        len: usize,
    ) -> Result<Option<usize>> {
        let geo = &self.vol.geo;
        if len == 0 {
            return Ok(None);
        }
        let (first, last) = (
            geo.file_block(offset),
            geo.file_block(offset.saturating_add(len as u64 - 1)),
        );
        let mut at = first;
        while at <= last {
            let extent = map::run(&self.vol, &state.map(), at, last - at + 1)?;
            if let Some(block) = extent.block.filter(|_| !extent.unwritten)
                && let Some(i) =
                    (0..extent.count).find(|i| self.vol.has_failed_page(block.after(*i)))
            {
                let until = geo.file_offset(at + i).saturating_sub(offset);
                return Ok((until > 0).then_some(until as usize));
            }
            at += extent.count.max(1);
        }
        Ok(None)
    }
}
