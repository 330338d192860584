//! Append windows: where the only holder of a lease appends to a file without a call.
//!
//! Crash safety needs this order:
//!
//! - *Opening*: the blocks of the window are in the map, *written* and with room, under a slot
//!   of the orphan table (a chain of records); the word `end` is cleared (store, flush, fence);
//!   the window is in the slot (record); the holder learns of it.
//! - *Appending*, by the holder: it announces the append, looks whether the window is open, and
//!   makes data (stores, fence) and `end` (store, flush, fence) durable.
//! - *Merging*: the size is that of `end` (record). The bytes before are durable: the holder
//!   fenced them before it stored `end`.
//! - *Closing*: the holder is told to begin no further append; after a full fence, an append
//!   that was announced is waited for; `end` is loaded; the size is that of `end`, and the window
//!   leaves the slot (one record).
//!
//! Invariant (rule 7 of `docs/consistency.md`): while a window is open, the size of the inode
//! changes by merging only. Every other change closes the window first
//! ([`Engine::settle_size`]). A mount closes all windows before it frees anything.
//!
//! Blocks past the end of the file are undefined, so those of a window are not zeroed.
//! `docs/leases.md` has the protocol. Merging and closing are in `engine::appended`, the words
//! that the holder sees in `inode::leases`.

use std::sync::atomic::Ordering;

use crate::fs::inode::Inode;
use crate::fs::inode::leases::HeldLease;
use crate::fs::inode::state::{InodeState, check_file};
use crate::fs::ops::fallocate;
use crate::fs::policy::chattr;
use crate::fs::{Engine, Need, engine::room};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::map;
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::lease::{AppendWindow, END_OFFSET, LeaseSlot, WINDOW_OFFSET};
use pramfs_medium::media::record::EntryKind;
use pramfs_medium::pmem::RegionAccess as _;
use pramfs_medium::types::{Ino, LeaseMode, RegionOffset};

/// Length of the first window of a lease, bytes. Each further one is twice as long.
const FIRST: u64 = 256 << 10;
/// Maximum length of a window, bytes, if no append needs more.
const MOST: u64 = 16 << 20;

impl Engine {
    /// Opens an append window of a lease to write, from the size of the file on, with room for
    /// at least `bytes` bytes. Closes the window that the lease has had.
    ///
    /// # Errors
    /// [`Error::Busy`] if the file has another lease; [`Error::Stale`] if the lease has ended;
    /// [`Error::NotPermitted`] if it is for reading, or the file is immutable or append-only;
    /// [`Error::TooLarge`]; [`Error::NoSpace`]; those of [`read`](Self::read).
    pub fn open_window(&self, slot: u32, id: u64, bytes: u64) -> Result<AppendWindow> {
        self.op(Need::Write, || {
            let ended = || Error::Stale(Ino(0));
            let lease = self.find_lease(slot, id).ok_or_else(ended)?;
            if lease.mode != LeaseMode::Write {
                return Err(Error::NotPermitted("the lease is for reading"));
            }
            if bytes > MOST {
                return Err(Error::TooLarge(bytes));
            }
            let inode = self.iget(lease.ino)?;
            self.set_append_windows(true)?;
            let state = &mut *inode.state.write();
            self.find_lease(slot, id).ok_or_else(ended)?;
            check_file(inode.ino, state)?;
            if !state.leases.is_only(slot) {
                return Err(Error::Busy(
                    "another process has a lease of the file".into(),
                ));
            }
            self.close_window(&inode, state)?;
            chattr::check_write(&state.disk)?;
            let limit = self.allocate_window(&inode, state, bytes.max(1))?;
            let window = self.put_window(&inode, state, lease.at, (slot, id), limit)?;
            state.leases.open_window(&self.vol, lease.at, window)?;
            inode.grows.store(true, Ordering::Release);
            Ok(window)
        })
    }

    /// Allocates the blocks of a window. Returns their end.
    fn allocate_window(&self, inode: &Inode, state: &mut InodeState, bytes: u64) -> Result<u64> {
        let (geo, size) = (&self.vol.geo, state.disk.size);
        let least = size.saturating_add(bytes);
        let most = geo.max_file_size();
        if least > most {
            return Err(Error::TooLarge(least));
        }
        // The bytes before the end of the file, in the block that holds it, stay as they are.
        let whole = geo.file_offset(geo.file_block_from(size)).min(most);
        if whole > size {
            self.allocate(
                inode,
                state,
                size,
                whole,
                fallocate::State::ZeroedAhead,
                false,
            )?;
        }
        if let Some(end) = self.preallocated(state, whole)?
            && end >= least
        {
            let end = end.min(size.saturating_add(MOST).max(whole));
            if end > whole {
                self.allocate(inode, state, whole, end, fallocate::State::Ahead, false)?;
            }
            return Ok(end);
        }
        let longer = state.leases.next_window().clamp(FIRST, MOST);
        let mut len = match self.vol.journal.rules.long_windows {
            true => longer.max(bytes),
            false => bytes,
        };
        loop {
            let end = geo.file_offset(geo.file_block_from(size.saturating_add(len).min(most)));
            let end = end.min(most);
            if end <= whole {
                return Ok(whole);
            }
            match self.allocate(inode, state, whole, end, fallocate::State::Ahead, false) {
                Ok(()) => return Ok(end),
                // It has freed the blocks that it has allocated.
                Err(e) if len > bytes && room::is_out_of_space(&e) => len = (len / 2).max(bytes),
                Err(e) => return Err(e),
            }
        }
    }

    /// Returns the end of the blocks that somebody has allocated past the end of the file, to
    /// be kept. `None`: there are none, or they are being freed.
    fn preallocated(&self, state: &InodeState, from: u64) -> Result<Option<u64>> {
        if state.past_end {
            return Ok(None);
        }
        let geo = &self.vol.geo;
        let (mut at, stop) = (
            geo.file_block(from),
            geo.file_block(from.saturating_add(MOST)),
        );
        let first = at;
        while at < stop {
            let extent = map::run(&self.vol, &state.map(), at, stop - at)?;
            if extent.block.is_none() {
                break;
            }
            at += extent.count;
        }
        Ok((at > first).then(|| geo.file_offset(at)))
    }

    /// Puts a window into a slot.
    fn put_window(
        &self,
        inode: &Inode,
        state: &InodeState,
        at: RegionOffset,
        (slot, id): (u32, u64),
        limit: u64,
    ) -> Result<AppendWindow> {
        let region = &self.vol.region;
        let (w, end) = (region.window(), at + END_OFFSET);
        // What an earlier window has left there. Durable before the record, so that an end of
        // the new window is found, or none.
        w.store_u64_unflushed(end.0, 0)?;
        let cleared = w.flush(end.0, 8)?;
        let _ = w.fence(cleared);
        let line = LeaseSlot::new_window(self.vol.geo.seed, slot, id, state.disk.size, limit);
        let mut tx = self.begin(inode);
        tx.touch(&inode.last_record);
        tx.put(EntryKind::Slot, at + WINDOW_OFFSET, line.recorded_window())?;
        self.commit(tx, [])?;
        Ok(line.as_window())
    }

    /// Closes the windows of all files.
    ///
    /// # Errors
    /// Those of the medium; the other windows are closed.
    pub(crate) fn close_windows(&self) -> Result<()> {
        let mut closed = Ok(());
        for lease in self.leases() {
            let done = self.op(Need::Write, || {
                let inode = self.iget(lease.ino)?;
                self.close_window(&inode, &mut inode.state.write())
            });
            match done {
                // The lease has just ended.
                Err(Error::Stale(_)) => {}
                done => closed = closed.and(done),
            }
        }
        closed
    }

    /// Closes the window of a lease, so that its holder appends through the mount.
    ///
    /// # Errors
    /// [`Error::Busy`] if the holder is in the middle of an append; those of the medium.
    pub fn close_lease_window(&self, slot: u32, id: u64) -> Result<()> {
        self.op(Need::Write, || {
            let Some(lease) = self.find_lease(slot, id) else {
                return Ok(());
            };
            let inode = self.iget(lease.ino)?;
            let state = &mut *inode.state.write();
            match state.leases.window() {
                Some((at, _)) if at == lease.at => self.close_window(&inode, state),
                _ => Ok(()),
            }
        })
    }

    /// Closes the window of a file. True if it had one.
    ///
    /// # Errors
    /// As for [`close_lease_window`](Self::close_lease_window).
    pub fn close_file_window(&self, ino: Ino) -> Result<bool> {
        self.op(Need::Write, || {
            let inode = self.iget(ino)?;
            let state = &mut *inode.state.write();
            let had_one = state.leases.window().is_some();
            self.close_window(&inode, state)?;
            Ok(had_one)
        })
    }

    /// Settles the windows that an earlier mount has left, before any operation runs and
    /// before anything is freed. A read-only mount shows what has been appended until now,
    /// and leaves the windows as they are; so does a mount that the damage of one makes
    /// read-only.
    pub(crate) fn settle_windows(&self, read_only: bool) -> Result<()> {
        let mut settled = Ok(());
        for lease in self.leases() {
            // The others must not wait for it.
            let done = self.settle_window(&lease, read_only);
            settled = settled.and(done);
        }
        settled
    }

    fn settle_window(&self, lease: &HeldLease, read_only: bool) -> Result<()> {
        let inode = self.iget(lease.ino)?;
        let state = &mut *inode.state.write();
        let Some((_, window)) = state.leases.window() else {
            return match read_only {
                true => Ok(()),
                false => state.leases.no_windows(&self.vol),
            };
        };
        // A read-only mount may have put a later size here. The record must have it.
        let home: DiskInode = self.vol.medium().read_pod(inode.home)?;
        state.disk.size = home.size;
        let word = state.leases.appended(&self.vol)?;
        let size = self.appended_size(&inode, state, window, word);
        if read_only || self.damaged.load(Ordering::Relaxed) {
            state.disk.size = size;
            return Ok(());
        }
        // If it stays, what its holder has appended is merged when it is needed.
        inode.grows.store(true, Ordering::Release);
        match self.close_window(&inode, state) {
            Err(Error::Busy(why)) => {
                tracing::warn!(ino = %lease.ino, "{why}");
                Ok(())
            }
            closed => closed,
        }
    }
}
