//! What the holder of an append window has appended: merging it into the inode, and closing the
//! window.
//!
//! Invariant (rule 7 of `docs/consistency.md`): while a window is open, the size of the inode
//! changes by merging only. Every other change closes the window first. The order is in
//! [`ops::window`](crate::fs::ops::window), which opens windows; the words that the holder sees
//! are in [`inode::leases`](crate::fs::inode::leases).

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Engine;
use crate::fs::inode::Inode;
use crate::fs::inode::disk::touch_mtime;
use crate::fs::inode::leases::HeldLease;
use crate::fs::inode::state::InodeState;
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::media::lease::{AppendWindow, NO_WINDOW, WINDOW_OFFSET};
use pramfs_medium::media::record::EntryKind;
use pramfs_medium::pmem::RegionAccess as _;
use pramfs_medium::types::RegionOffset;

/// Looks at the holder before the first wait.
const SPINS: u32 = 1000;
/// Bytes that the slowest medium takes in a microsecond.
const SLOWEST: u64 = 20;
/// How much longer a holder that is storing bytes is waited for.
const STOPPED: Duration = Duration::from_millis(100);

impl Engine {
    /// Closes the append window of a locked inode, if it has one. The size then counts what
    /// the holder has appended.
    #[inline]
    pub(crate) fn close_window(&self, inode: &Inode, state: &mut InodeState) -> Result<()> {
        match state.leases.window() {
            None => Ok(()),
            Some((at, window)) => self.close_open_window(inode, state, at, window),
        }
    }

    #[cold]
    fn close_open_window(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        at: RegionOffset,
        window: AppendWindow,
    ) -> Result<()> {
        state.leases.stop_appends(&self.vol)?;
        self.wait_for_append(state, at)?;
        let word = state.leases.appended(&self.vol)?;
        let size = self.appended_size(inode, state, window, word);
        if state.leases.has_damaged_end() {
            // The repair may find out the end, as long as it finds the window.
            return Err(Error::Busy(
                "the end of what a process has appended is damaged; unmount and run fsck.pramfs"
                    .into(),
            ));
        }
        self.change(inode, state, |tx, new| {
            tx.allow_reserve();
            tx.put(EntryKind::Slot, at + WINDOW_OFFSET, &NO_WINDOW)?;
            if size != new.size {
                new.size = size;
                touch_mtime(new, self.now());
            }
            new.merges = true;
            Ok(())
        })?;
        state.leases.window_closed(&self.vol, size)?;
        inode.grows.store(false, Ordering::Release);
        Ok(())
    }

    /// Waits until the holder of the window, which cannot begin another append, is not storing
    /// bytes. It would store them later, over those of whoever appends next.
    ///
    /// # Errors
    /// [`Error::Busy`] if that takes long. The window stays, and takes no further append.
    fn wait_for_append(&self, state: &mut InodeState, at: RegionOffset) -> Result<()> {
        let begun = Instant::now();
        for looks in 0u32.. {
            let Some((announcement, bytes)) = state.leases.append_under_way(&self.vol)? else {
                break;
            };
            if looks < SPINS {
                std::hint::spin_loop();
                continue;
            }
            self.vol.region.close_for_wait();
            let lease = self
                .leases
                .lock()
                .values()
                .find(|lease| lease.at == at)
                .copied();
            // The holder was killed: nobody stores any more.
            let Some(lease) = lease.filter(|lease| self.may_store(lease)) else {
                break;
            };
            let most = STOPPED + Duration::from_micros(bytes / SLOWEST);
            // Who comes later does not wait again.
            if begun.elapsed() > most || state.leases.is_stopped(announcement) {
                state.leases.note_stopped(announcement);
                return Err(Error::Busy(format!(
                    "process {} is in the middle of an append to the file, by direct access, and \
                     has not ended it; let the process go on, or end it",
                    lease.pid
                )));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    /// Whether a process still maps, or can map, the blocks of a slot. If that cannot be
    /// found out, the answer is yes.
    pub(crate) fn is_slot_locked(&self, slot: u32) -> bool {
        match self.vol.region.is_lease_held(slot) {
            Ok(held) => held,
            Err(e) => {
                tracing::warn!(slot, error = %e, "could not test the lock of a lease");
                true
            }
        }
    }

    /// Whether a process may go on with an append that it has announced. A child of it may keep
    /// the lock, but cannot append.
    fn may_store(&self, lease: &HeldLease) -> bool {
        // The number of the process is that of the server that has granted the lease, which may
        // have been in another namespace.
        let is_gone = !lease.is_adopted && is_gone(lease.pid);
        self.is_slot_locked(lease.slot) && !is_gone
    }

    /// Gives the inode the size that the holder of its window has appended up to. True if the
    /// size has changed.
    pub(crate) fn merge_locked(&self, inode: &Inode, state: &mut InodeState) -> Result<bool> {
        let Some((_, window)) = state.leases.window() else {
            return Ok(false);
        };
        let word = state.leases.appended(&self.vol)?;
        let size = self.appended_size(inode, state, window, word);
        if size == state.disk.size {
            return Ok(false);
        }
        self.change(inode, state, |tx, new| {
            tx.allow_reserve();
            new.size = size;
            new.merges = true;
            touch_mtime(new, self.now());
            Ok(())
        })?;
        Ok(true)
    }

    /// As [`merge_locked`](Self::merge_locked), before an operation that does not lock the
    /// inode exclusively. Does nothing on a read-only mount.
    #[cold]
    #[inline(never)]
    pub(crate) fn merge_appended(&self, inode: &Inode) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        self.merge_locked(inode, &mut inode.state.write()).map(drop)
    }

    /// Returns the size that a word in the place of `end` says, at least that of the inode.
    pub(crate) fn appended_size(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        window: AppendWindow,
        word: Option<u64>,
    ) -> u64 {
        let size = state.disk.size;
        if !self.vol.journal.rules.merged_sizes {
            return size;
        }
        match window.end_of(word.unwrap_or(0)) {
            // Merged before, and then lost by a crash.
            Some(end) => end.max(size),
            // Once: each operation looks.
            None if !state.leases.note_damaged_end() => size,
            None => {
                self.note_damage(&Error::corrupt(
                    Damage::LeaseSlotWrong,
                    inode.ino,
                    "the end of what a process has appended is damaged; bytes that it has \
                     appended last are not in the file",
                ));
                size
            }
        }
    }
}

/// Whether a process of this namespace has ended.
fn is_gone(pid: u32) -> bool {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    // A process of another namespace has the number 0.
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
}
