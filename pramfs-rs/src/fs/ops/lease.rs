//! Leases: promises to other processes that the blocks of a file stay its blocks.
//!
//! A lease lasts as long as any process keeps the descriptor of the grant, or a mapping of
//! it, even if this process ends meanwhile. The next mount adopts it.
//!
//! The slots on the medium are in [`lease_table`](crate::fs::steps), rule 6 in `resize` and
//! `fallocate`.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use crate::fs::inode::Inode;
use crate::fs::inode::leases::{HeldLease, LeaseEvent, LeaseWatch};
use crate::fs::inode::refs::By;
use crate::fs::inode::state::{InodeState, check_file};
use crate::fs::policy::chattr;
use crate::fs::steps::lease_table::{LeaseSlots, UsedSlot};
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::map;
use pramfs_medium::media::lease::{
    CLOSED_WORD, Lease, LeaseSlot, OPEN_WORD, RECORDED, STORED_OFFSET, SlotContents, VIEW_OFFSET,
};
use pramfs_medium::media::record::EntryKind;
use pramfs_medium::pmem::RegionAccess as _;
use pramfs_medium::types::{FileExtent, Ino, LeaseMode, RegionOffset};

/// A lease that is being granted. While it exists, the lease does not end, even if nobody
/// holds its lock yet.
#[derive(Debug)]
pub struct LeaseGrant<'e> {
    engine: &'e Engine,
    lease: HeldLease,
}

impl LeaseGrant<'_> {
    /// Returns the lease.
    pub fn lease(&self) -> &HeldLease {
        &self.lease
    }

    /// Opens the descriptor of the lease: the whole region, for reading, and for writing if
    /// the lease is. The lease lasts until it, its copies and its mappings are gone.
    ///
    /// # Errors
    /// `Unsupported` if this kind of region cannot be leased; errors of the system.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        let HeldLease { slot, mode, .. } = self.lease;
        self.engine.vol.region.lease_descriptor(slot, mode)
    }
}

impl Drop for LeaseGrant<'_> {
    fn drop(&mut self) {
        if let Some(lease) = self.engine.leases.lock().get_mut(&self.lease.slot)
            && lease.id == self.lease.id
        {
            lease.is_new = false;
        }
    }
}

/// The blocks of a leased file at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedExtents {
    /// The counter of the view line that belongs to them.
    pub layout: u64,
    /// Size of the file, bytes.
    pub size: u64,
    /// Where the view line is in the region.
    pub view: u64,
    /// Where the holder notes its stores in the region.
    pub stored: u64,
    /// Whole blocks, in ascending order, without holes; the last one may reach past the
    /// size.
    pub extents: Vec<FileExtent>,
    /// Offset in the file from which they are complete.
    pub start: u64,
    /// Offset in the file up to which they are complete.
    pub end: u64,
}

impl Engine {
    /// Checks with the region itself that a mapping keeps a lease after its descriptor is
    /// closed. A mount that is to grant leases calls this once.
    ///
    /// # Errors
    /// `Unsupported` if it does not, or the kind of region cannot be leased; errors of the
    /// system.
    pub fn try_lease_lock(&self) -> io::Result<()> {
        self.vol.region.try_lease_lock()
    }

    /// Grants a lease of a file. It is durable when this returns.
    ///
    /// The caller of a grant to write sees to it that nobody has a copy of the file's pages.
    ///
    /// # Errors
    /// [`Error::Stale`] if the inode is gone, or has another generation; those of
    /// [`read`](Self::read); [`Error::NoSpace`] if the lease table is full or cannot grow;
    /// [`Error::NotPermitted`] to write to an immutable or append-only file; EBUSY to write with
    /// sums of data, during a [`snapshot`](crate::inode::Fs::snapshot);
    /// [`Error::ReadOnly`].
    pub fn grant_lease(
        &self,
        ino: Ino,
        generation: u64,
        mode: LeaseMode,
        pid: u32,
        uid: u32,
    ) -> Result<LeaseGrant<'_>> {
        self.op(Need::Write, || {
            let inode = self.iget_user(ino)?;
            self.set_lease_table(true)?;
            let mut state = inode.state.write();
            check_file(inode.ino, &state)?;
            if state.disk.generation != generation {
                return Err(Error::Stale(ino));
            }
            if mode == LeaseMode::Write {
                chattr::check_write(&state.disk)?;
                if self.vol.geo.data_sums && self.vol.region.copies_aside() {
                    return Err(Error::Busy(
                        "the file system is being saved, and the save would have the old checksums of what the holder stores; ask again after the save".into(),
                    ));
                }
            }
            let lease = Lease {
                ino,
                generation,
                id: Lease::new_id(),
                mode,
                pid,
                uid,
                granted_sec: self.now().sec,
            };
            // The holder stores without a record.
            self.settle_copies(&state)?;
            // Its holder would append behind the back of the new one.
            self.close_window(&inode, &mut state)?;
            if mode == LeaseMode::Write {
                self.mark_all(&inode, &mut state)?;
            }
            let mut tx = self.begin(&inode);
            tx.touch(&inode.last_record);
            let (slot, at) = self.take_lease_slot(&mut tx)?;
            let home = LeaseSlot::new(self.vol.geo.seed, slot, &lease);
            tx.put(EntryKind::Slot, at, home.recorded())?;
            self.clear_window(&mut tx, at)?;
            self.clear_words(at)?;
            self.commit(tx, [])?;
            state.leases.add(slot, at, mode);
            let held = HeldLease::new(slot, at, &lease, false);
            self.leases.lock().insert(slot, held);
            self.refs.add(ino, 1, By::Guard);
            if mode == LeaseMode::Write {
                self.mapped.note(ino);
            }
            // After an error the lease ends like one whose holder has ended.
            let grant = LeaseGrant {
                engine: self,
                lease: held,
            };
            state.leases.show_new(&self.vol, state.disk.size)?;
            Ok(grant)
        })
    }

    /// Clears what an earlier holder of a slot has left there, and what it was shown. The
    /// counter of the view goes on.
    fn clear_words(&self, at: RegionOffset) -> Result<()> {
        let view = at + VIEW_OFFSET;
        let shown = [OPEN_WORD, CLOSED_WORD].map(|word| view.word(word));
        for place in [at + STORED_OFFSET].into_iter().chain(shown) {
            if self.vol.medium().load_u64(place)? != 0 {
                self.vol.region.window().store_u64_unflushed(place.0, 0)?;
            }
        }
        Ok(())
    }

    /// Returns the leases that this mount keeps, by slot.
    pub fn leases(&self) -> Vec<HeldLease> {
        self.leases.lock().values().copied().collect()
    }

    /// Returns the lease of a slot, if it is still this one.
    pub(super) fn find_lease(&self, slot: u32, id: u64) -> Option<HeldLease> {
        let leases = self.leases.lock();
        leases.get(&slot).copied().filter(|lease| lease.id == id)
    }

    /// Sets the size of a file if the holder of a lease has appended to it, and its times if
    /// one has stored to it since the last call. True if so.
    ///
    /// # Errors
    /// [`Error::Stale`]; those of the medium.
    pub fn note_stores(&self, ino: Ino) -> Result<bool> {
        self.op(Need::Write, || {
            let inode = self.iget(ino)?;
            let mut state = inode.state.write();
            self.note_stores_locked(&inode, &mut state)
        })
    }

    pub(super) fn note_stores_locked(&self, inode: &Inode, state: &mut InodeState) -> Result<bool> {
        let merged = self.merge_locked(inode, state)?;
        let stored = state.leases.take_stored(&self.vol)?;
        if stored {
            self.touch_lazily(inode, state);
        }
        Ok(stored | merged)
    }

    /// Returns blocks of a leased file from `offset`, as many as fit `max` extents.
    ///
    /// # Errors
    /// [`Error::Stale`] if the lease has ended; [`Error::Lost`] if the first byte was lost;
    /// [`Error::Corrupt`].
    pub fn leased_extents(
        &self,
        slot: u32,
        id: u64,
        offset: u64,
        max: usize,
    ) -> Result<LeasedExtents> {
        self.op(Need::Read, || {
            let ended = || Error::Stale(Ino(0));
            let lease = self.find_lease(slot, id).ok_or_else(ended)?;
            let inode = self.iget(lease.ino)?;
            // Shared: writers of the view words hold it exclusively.
            let state = inode.state.read();
            self.find_lease(slot, id).ok_or_else(ended)?;
            let geo = &self.vol.geo;
            let view = lease.at + VIEW_OFFSET;
            let stored = lease.at + STORED_OFFSET;
            let size = state.disk.size;
            let start = geo.file_offset(geo.file_block(offset.min(geo.max_file_size())));
            let stop = geo.file_offset(geo.file_block_from(size)).max(start);
            let complete = stop;
            let stop = stop.min(start.saturating_add(SCAN));
            let (mut extents, mut end) = (Vec::new(), start);
            // In pieces, so that a file of many extents is not walked for each message.
            while end < stop && extents.len() < max {
                let next = stop.min(end.saturating_add(PIECE));
                for extent in self.extents_between(&state, end, next)? {
                    if extent.lost && extents.is_empty() && extent.file_offset <= offset {
                        let offset = offset.max(extent.file_offset);
                        return Err(self.lost(lease.ino, offset));
                    }
                    if extent.lost || extents.len() == max {
                        let layout = self.vol.medium().load_u64(view)?;
                        return Ok(LeasedExtents {
                            layout,
                            size,
                            view: view.0,
                            stored: stored.0,
                            extents,
                            start,
                            end,
                        });
                    }
                    end = extent.file_offset + extent.len;
                    if extent.region_offset.is_some() && !extent.unwritten {
                        add(&mut extents, extent);
                    }
                }
            }
            // The holders of an append window, and of a mapping past the end, also need the
            // blocks there. They are told up to the first hole: nobody is told when one there is
            // filled.
            let past = state.leases.window().is_some() || state.leases.are_mapped_ahead();
            while past && end >= complete && end < complete.saturating_add(SCAN) {
                let (index, last) = (geo.file_block(end), geo.file_block(geo.max_file_size()));
                if index >= last {
                    break;
                }
                let run = map::run(&self.vol, &state.map(), index, last - index)?;
                let Some(block) = run.block.filter(|_| !run.unwritten && extents.len() < max)
                else {
                    break;
                };
                let extent = FileExtent {
                    file_offset: end,
                    region_offset: Some(geo.offset(block).0),
                    len: geo.bytes(run.count),
                    unwritten: false,
                    lost: false,
                };
                end += extent.len;
                add(&mut extents, extent);
            }
            Ok(LeasedExtents {
                layout: self.vol.medium().load_u64(view)?,
                size,
                view: view.0,
                stored: stored.0,
                extents,
                start,
                end,
            })
        })
    }

    /// Ends a lease that nobody holds any more: clears its slot, and frees what only the
    /// lease kept. False if it has ended already.
    ///
    /// # Errors
    /// Those of the medium; [`Error::ReadOnly`].
    fn end_lease(&self, lease: &HeldLease) -> Result<bool> {
        // Kept even if the operation fails afterwards.
        let mut ended = false;
        let done = self.op(Need::Write, || {
            let inode = self.iget(lease.ino)?;
            let mut state = inode.state.write();
            if self.find_lease(lease.slot, lease.id).is_none() {
                return Ok(());
            }
            self.note_stores_locked(&inode, &mut state)?;
            if state.leases.has_damaged_end() {
                // Told once. The lease keeps the bytes for the repair.
                return Ok(());
            }
            self.close_window(&inode, &mut state)?;
            let mut tx = self.begin(&inode);
            tx.allow_reserve();
            tx.touch(&inode.last_record);
            tx.put(EntryKind::Slot, lease.at, &[0; RECORDED])?;
            self.clear_window(&mut tx, lease.at)?;
            tx.free_lease_slot(lease.slot);
            self.commit(tx, [])?;
            ended = true;
            self.leases.lock().remove(&lease.slot);
            state.leases.remove(lease.slot);
            // Blocks past the end that the lease kept. The lease has ended even if this
            // fails; the orphan table still names the file.
            if let Err(e) = self.finish_truncate(&inode, &mut state) {
                tracing::warn!(ino = %lease.ino, error = %e, "could not free the blocks that a lease had kept");
            }
            Ok(())
        });
        if ended {
            self.tell_watch(lease, LeaseEvent::Ended);
            self.release_ref(lease.ino, 1, By::Guard);
        }
        done.map(|()| ended)
    }

    /// Has a function called for each [`LeaseEvent`], on the thread that notices it, without
    /// locks. The first function stays.
    pub fn watch_leases(&self, watch: impl Fn(&HeldLease, LeaseEvent) + Send + Sync + 'static) {
        let _stays = self.lease_watch.set(LeaseWatch(Box::new(watch)));
    }

    fn tell_watch(&self, lease: &HeldLease, event: LeaseEvent) {
        if let Some(LeaseWatch(watch)) = self.lease_watch.get() {
            watch(lease, event);
        }
    }

    /// Whether a process holds a lease, and nobody knows of which file: its slot is damaged.
    /// The mount is read-only then.
    pub fn has_unknown_lease(&self) -> bool {
        self.has_unknown_lease.load(Ordering::Relaxed)
    }

    /// Sets the times of the files that holders of leases have stored to since the last call.
    ///
    /// # Errors
    /// As for [`note_stores`](Self::note_stores).
    pub(crate) fn note_all_stores(&self) -> Result<()> {
        let mut noted = Ok(());
        for lease in self.leases() {
            if lease.mode != LeaseMode::Write {
                continue;
            }
            match self.note_stores(lease.ino) {
                Ok(stored) => self.tell_watch(&lease, LeaseEvent::Checked { stored }),
                // The lease has just ended.
                Err(Error::Stale(_)) => {}
                Err(e) => noted = noted.and(Err(e)),
            }
        }
        noted
    }

    /// Ends the leases that no process holds any more. Returns how many.
    ///
    /// # Errors
    /// Those of the medium; [`Error::ReadOnly`].
    pub fn end_released_leases(&self) -> Result<usize> {
        let (mut ended, mut failed) = (0, Ok(()));
        for lease in self.leases() {
            // A grant that is being dropped may be tested once more.
            if lease.is_new || self.is_slot_locked(lease.slot) {
                continue;
            }
            match self.end_lease(&lease) {
                Ok(true) => ended += 1,
                Ok(false) => {}
                // Another thread has ended it, and freed the file.
                Err(Error::Stale(_)) if self.find_lease(lease.slot, lease.id).is_none() => {}
                // The others must not wait for it.
                Err(e) => failed = failed.and(Err(e)),
            }
        }
        failed.map(|()| ended)
    }

    /// Ends the leases of the last mount that no process holds any more.
    pub(crate) fn end_leases_of_last_mount(&self) {
        if let Err(e) = self.end_released_leases() {
            tracing::warn!(error = %e, "could not end the leases of an earlier mount; the timer tries again");
        }
    }

    /// Makes the holders of all leases of a file look again, which ask for its blocks then. Whoever
    /// answers them can send them to the mount.
    ///
    /// ```
    /// # use pramfs::inode::{Fs, Ino};
    /// # fn before_open_for_stores(fs: &Fs, ino: Ino) -> pramfs::Result<()> {
    /// fs.recall_leases(ino)?;
    /// // No read by a lease that begins now is served from what its holder knows.
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Stale`] if the inode is gone; [`Error::ReadOnly`]; those of the medium.
    pub fn recall_leases(&self, ino: Ino) -> Result<()> {
        self.op(Need::Write, || {
            let inode = self.iget(ino)?;
            let state = inode.state.write();
            state.leases.show(&self.vol, true, state.disk.size)
        })
    }

    /// Shows the holders of all leases the current sizes, and that they must look again.
    pub(crate) fn show_leases(&self) -> Result<()> {
        for lease in self.leases() {
            let inode = self.iget(lease.ino)?;
            let state = inode.state.write();
            state.leases.show(&self.vol, true, state.disk.size)?;
        }
        Ok(())
    }

    /// Adopts the leases in the lease table, before anything is freed and before any
    /// operation runs. True if the mount must stay read-only: a process maps blocks, and
    /// the slot that says which is damaged.
    pub(crate) fn adopt_leases(&self) -> Result<bool> {
        // Also without the feature: the table keeps its free slots.
        let LeaseSlots { used, free } = match self.read_lease_table() {
            Err(e @ Error::Corrupt { .. }) => {
                self.note_damage(&e);
                let held = self.vol.region.is_any_lease_held();
                return Ok(held.unwrap_or(true));
            }
            read => read?,
        };
        self.vol.free(free.into_iter().rev());
        let mut blind = false;
        for UsedSlot { number, at, home } in used {
            let slot = number;
            let wrong = match home.contents(self.vol.geo.seed, slot) {
                SlotContents::Free => continue,
                SlotContents::Used(lease) => match self.adopt_lease(slot, at, &lease, &home) {
                    Ok(()) => continue,
                    Err(e) => e,
                },
                SlotContents::Damaged => Error::corrupt(
                    Damage::LeaseSlotDamaged,
                    "the lease table",
                    format!("slot {slot} is damaged"),
                ),
            };
            blind |= self.is_slot_locked(slot);
            match wrong {
                Error::Corrupt { .. } => self.note_damage(&wrong),
                other => return Err(other),
            }
        }
        Ok(blind)
    }

    fn adopt_lease(
        &self,
        slot: u32,
        at: RegionOffset,
        lease: &Lease,
        home: &LeaseSlot,
    ) -> Result<()> {
        let wrong = |what: &str| {
            Error::corrupt(
                Damage::LeaseSlotWrong,
                "the lease table",
                format!("slot {slot} names inode {}, {what}", lease.ino),
            )
        };
        let inode = match self.iget(lease.ino) {
            Err(Error::Stale(_)) => return Err(wrong("which does not exist")),
            found => found?,
        };
        let mut state = inode.state.write();
        if lease.ino < Ino::FIRST_FREE || check_file(lease.ino, &state).is_err() {
            return Err(wrong("which is not a regular file"));
        }
        if state.disk.generation != lease.generation {
            return Err(wrong("which has another generation"));
        }
        state.leases.add(slot, at, lease.mode);
        // Nobody knows what its holder has mapped.
        state.leases.note_mapped_ahead();
        self.leases
            .lock()
            .insert(slot, HeldLease::new(slot, at, lease, true));
        self.refs.add(lease.ino, 1, By::Guard);
        if !self.is_read_only() {
            state.leases.show_new(&self.vol, state.disk.size)?;
        }
        // The lease is kept even so.
        let damaged = match home.append_window(self.vol.geo.seed, slot) {
            Ok(None) => return Ok(()),
            Ok(Some(window)) if window.limit > self.vol.geo.max_file_size() => {
                "its append window is too long"
            }
            Ok(Some(window)) if !(window.start..=window.limit).contains(&state.disk.size) => {
                "the file does not end in its append window"
            }
            Ok(Some(window)) => match state.leases.adopt_window(at, window) {
                true => return Ok(()),
                false => "another slot of the same file has an append window",
            },
            Err(damaged) => damaged,
        };
        let what = format!(
            "slot {slot} of inode {}: {damaged}; bytes that a process has appended last are \
             not in the file",
            lease.ino
        );
        self.note_damage(&Error::corrupt(
            Damage::LeaseSlotDamaged,
            "the lease table",
            what,
        ));
        Ok(())
    }
}

/// Adds an extent, to the one before it if they are adjacent in file and region.
fn add(extents: &mut Vec<FileExtent>, next: FileExtent) {
    match extents.last_mut() {
        Some(last)
            if last.file_offset + last.len == next.file_offset
                && last.region_offset.map(|at| at + last.len) == next.region_offset =>
        {
            last.len += next.len;
        }
        _ => extents.push(next),
    }
}

/// Bytes of a file whose extents are looked up together.
const PIECE: u64 = 16 << 20;
/// Bytes of a file that one call looks at, so that it does not hold the lock for long.
const SCAN: u64 = 16 << 30;
