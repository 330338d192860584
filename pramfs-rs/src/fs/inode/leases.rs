//! The leases of an inode, and the words that their holders watch.
//!
//! Invariant: the list changes only under the exclusive lock of the inode, together with
//! the slots on the medium. While it is not empty, no block leaves the map of the inode
//! (rule 6 of `docs/consistency.md`). While it has an append window, no other change of the
//! size is made (rule 7), and there is one slot.
//!
//! The order of opening and closing a window is in [`ops::window`](crate::fs::ops::window).

use pramfs_medium::error::Result;
use pramfs_medium::media::lease::{
    ALL_CLOSED, APPENDING_OFFSET, AppendWindow, CLOSED_WORD, END_OFFSET, Lease, OPEN_WORD,
    STORED_OFFSET, VIEW_OFFSET,
};
use pramfs_medium::pmem::RegionAccess as _;
use pramfs_medium::sync::atomic::{Ordering, fence};
use pramfs_medium::sync::order::{release, seq_cst};
use pramfs_medium::types::{Ino, LeaseMode, RegionOffset};
use pramfs_medium::volume::Volume;

/// The slots of an inode. Boxed as a whole: few inodes have any.
#[derive(Debug, Default)]
pub(crate) struct Leases(Option<Box<List>>);

#[derive(Debug, Default)]
struct List {
    slots: Vec<Slot>,
    /// The append window, and the place of its slot, which is the only one.
    window: Option<(RegionOffset, AppendWindow)>,
    /// Length for the next window, bytes.
    next_window: u64,
    /// The end of what was appended in the window is damaged.
    damaged_end: bool,
    /// The announcement of an append that was waited for in vain; 0: none.
    stopped: u64,
    /// A holder may have mapped the file past its end.
    is_mapped_ahead: bool,
    /// Blocks past the end and below this offset hold nothing of other files.
    zeroed_ahead: u64,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    number: u32,
    at: RegionOffset,
    mode: LeaseMode,
}

impl Leases {
    /// Whether there is none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether a holder may store to the file.
    pub(crate) fn may_store(&self) -> bool {
        let stores = |slot: &Slot| slot.mode == LeaseMode::Write;
        self.0
            .as_ref()
            .is_some_and(|list| list.slots.iter().any(stores))
    }

    /// Adds a slot, whose line 0 is durable at `at`.
    pub(crate) fn add(&mut self, number: u32, at: RegionOffset, mode: LeaseMode) {
        let list = self.0.get_or_insert_default();
        list.slots.push(Slot { number, at, mode });
    }

    /// Removes a slot.
    pub(crate) fn remove(&mut self, number: u32) {
        if let Some(list) = &mut self.0 {
            list.slots.retain(|slot| slot.number != number);
        }
        self.0.take_if(|list| list.slots.is_empty());
    }

    /// Whether a slot is the only one.
    pub(crate) fn is_only(&self, number: u32) -> bool {
        let only = |list: &List| matches!(&list.slots[..], [slot] if slot.number == number);
        self.0.as_ref().is_some_and(|list| only(list))
    }

    /// Returns the append window that is open, and the place of its slot.
    #[inline]
    pub(crate) fn window(&self) -> Option<(RegionOffset, AppendWindow)> {
        self.0.as_ref()?.window
    }

    /// Whether a holder may have mapped the file past its end. Then the rest of the block that
    /// holds the end must read as zeros.
    #[inline]
    pub(crate) fn are_mapped_ahead(&self) -> bool {
        self.0.as_ref().is_some_and(|list| list.is_mapped_ahead)
    }

    /// Notes that a holder may map the file past its end.
    pub(crate) fn note_mapped_ahead(&mut self) {
        if let Some(list) = &mut self.0 {
            list.is_mapped_ahead = true;
        }
    }

    /// Returns the offset below which blocks past the end hold nothing of other files. A file that
    /// shrinks leaves bytes of its own there.
    pub(crate) fn zeroed_ahead(&self) -> u64 {
        self.0.as_ref().map_or(0, |list| list.zeroed_ahead)
    }

    /// Notes that the blocks past the end are zeroed up to an offset. The stores come first.
    pub(crate) fn note_zeroed_ahead(&mut self, end: u64) {
        if let Some(list) = &mut self.0 {
            list.zeroed_ahead = list.zeroed_ahead.max(end);
        }
    }

    /// Notes that new blocks past the end, from an offset on, may hold what they held before.
    pub(crate) fn note_undefined_ahead(&mut self, from: u64) {
        if let Some(list) = &mut self.0 {
            list.zeroed_ahead = list.zeroed_ahead.min(from);
        }
    }

    /// Returns a length for the next window: twice that of the last one if that was used, or 0.
    pub(crate) fn next_window(&self) -> u64 {
        self.0.as_ref().map_or(0, |list| list.next_window)
    }

    /// Opens the window that the slot has on the medium. Its holder sees it.
    #[cold]
    pub(crate) fn open_window(
        &mut self,
        vol: &Volume,
        at: RegionOffset,
        window: AppendWindow,
    ) -> Result<()> {
        let Some(list) = &mut self.0 else {
            return Ok(());
        };
        list.window = Some((at, window));
        (list.damaged_end, list.stopped) = (false, 0);
        set_view(vol, at, OPEN_WORD, window.number)
    }

    /// Notes the window that the slot at `at` has on the medium, and that its holder has
    /// seen. False if there is another one.
    pub(crate) fn adopt_window(&mut self, at: RegionOffset, window: AppendWindow) -> bool {
        match &mut self.0 {
            Some(list) if list.window.is_none() => list.window = Some((at, window)),
            _ => return false,
        }
        true
    }

    /// Returns the word in which the holder tells the end. `None`: there is no window.
    #[cold]
    pub(crate) fn appended(&self, vol: &Volume) -> Result<Option<u64>> {
        match self.window() {
            Some((at, _)) => Ok(Some(vol.medium().load_u64(at + END_OFFSET)?)),
            None => Ok(None),
        }
    }

    /// Refuses later appends to the window. The window stays until
    /// [`window_closed`](Self::window_closed).
    #[cold]
    pub(crate) fn stop_appends(&self, vol: &Volume) -> Result<()> {
        let Some((at, _)) = self.window() else {
            return Ok(());
        };
        set_view(vol, at, OPEN_WORD, 0)?;
        // The holder announces an append, and then loads the word that was cleared here. So
        // either it sees that the window is being closed, or a load from here on sees the
        // announcement.
        fence(seq_cst("window-stopped"));
        Ok(())
    }

    /// Returns the announcement of an append that the holder has not ended, and the bytes of
    /// that append.
    #[cold]
    pub(crate) fn append_under_way(&self, vol: &Volume) -> Result<Option<(u64, u64)>> {
        let Some((at, window)) = self.window() else {
            return Ok(None);
        };
        let word = vol.medium().load_u64(at + APPENDING_OFFSET)?;
        // Other words are left from other windows, or are damage.
        let Some(end) = window.end_of(word).filter(|_| word != 0) else {
            return Ok(None);
        };
        let before = vol.medium().load_u64(at + END_OFFSET)?;
        let before = window.end_of(before).unwrap_or(window.start);
        Ok(Some((word, end.saturating_sub(before))))
    }

    /// Notes an announcement that was waited for in vain.
    #[cold]
    pub(crate) fn note_stopped(&mut self, announcement: u64) {
        if let Some(list) = &mut self.0 {
            list.stopped = announcement;
        }
    }

    /// Whether an announcement has been waited for in vain before.
    pub(crate) fn is_stopped(&self, announcement: u64) -> bool {
        let stopped = self.0.as_ref().map_or(0, |list| list.stopped);
        stopped != 0 && stopped == announcement
    }

    /// Whether the end of what was appended is known to be damaged.
    pub(crate) fn has_damaged_end(&self) -> bool {
        self.0.as_ref().is_some_and(|list| list.damaged_end)
    }

    /// Notes that the end of what was appended is damaged. True for the first time in a
    /// window.
    #[cold]
    pub(crate) fn note_damaged_end(&mut self) -> bool {
        let noted = self.0.as_mut().map(|list| &mut list.damaged_end);
        noted.is_some_and(|noted| !std::mem::replace(noted, true))
    }

    /// Forgets the window, whose slot is without it on the medium. Its holder has been shown
    /// the size, with all its bytes.
    #[cold]
    pub(crate) fn window_closed(&mut self, vol: &Volume, size: u64) -> Result<()> {
        let Some((at, window)) = self.window() else {
            return Ok(());
        };
        if let Some(list) = &mut self.0 {
            list.window = None;
            // Its blocks stay allocated as long as the lease, used or not.
            let len = window.limit.saturating_sub(window.start);
            let used = size.saturating_sub(window.start);
            list.next_window = if used >= len / 2 { len * 2 } else { len };
        }
        // The size has been shown before: the holder then looks at that one alone.
        set_view(vol, at, CLOSED_WORD, window.number)
    }

    /// Tells the holders of a file without a window that theirs is closed: an
    /// earlier mount may have ended between the record and [`window_closed`](Self::window_closed).
    #[cold]
    pub(crate) fn no_windows(&self, vol: &Volume) -> Result<()> {
        self.slots().iter().try_for_each(|slot| {
            set_view(vol, slot.at, OPEN_WORD, 0)?;
            set_view(vol, slot.at, CLOSED_WORD, ALL_CLOSED)
        })
    }

    /// Shows the holder of a new slot, which is the last one, the size.
    #[cold]
    pub(crate) fn show_new(&self, vol: &Volume, size: u64) -> Result<()> {
        match self.slots().last() {
            Some(slot) => slot.show(vol, true, size),
            None => Ok(()),
        }
    }

    fn slots(&self) -> &[Slot] {
        self.0.as_ref().map_or(&[], |list| &list.slots)
    }

    /// Whether a holder has stored to the file since the last call.
    #[cold]
    pub(crate) fn take_stored(&self, vol: &Volume) -> Result<bool> {
        let mut slots = self.slots().iter();
        slots.try_fold(false, |any, slot| Ok(slot.take_stored(vol)? | any))
    }

    /// Shows the holders a new size, and, if `layout`, that blocks below the old size have
    /// changed. The homes of the change are stored.
    #[cold]
    pub(crate) fn show(&self, vol: &Volume, layout: bool, size: u64) -> Result<()> {
        // The holders of the others must not miss it because of one slot that fails.
        let mut done = Ok(());
        for slot in self.slots() {
            done = done.and(slot.show(vol, layout, size));
        }
        done
    }
}

/// Stores a word of the view line of the slot at `at`.
fn set_view(vol: &Volume, at: RegionOffset, word: u64, value: u64) -> Result<()> {
    let place = (at + VIEW_OFFSET).word(word);
    let stored = vol.region.window().store_u64_unflushed(place.0, value);
    stored?;
    Ok(())
}

impl Slot {
    /// The counter never starts again: the holder of an earlier lease may watch it.
    fn show(&self, vol: &Volume, layout: bool, size: u64) -> Result<()> {
        let (w, view) = (vol.region.window(), self.at + VIEW_OFFSET);
        // A reader loads the counter before the size, and again after its copy. So a new
        // layout never has the larger size of the old one, and a larger size never belongs to
        // the old layout.
        if size < vol.medium().load_u64(view.word(1))? {
            w.store_u64_unflushed(view.word(1).0, size)?;
        }
        if layout {
            let now = vol.medium().load_u64(view)?;
            w.store_u64_unflushed(view.0, now.wrapping_add(1))?;
        }
        w.store_u64_unflushed(view.word(1).0, size)?;
        // The stores of the next change come after the counter. So a reader that copies one
        // of them sees the counter too.
        fence(release("lease-shown"));
        Ok(())
    }

    /// A note between the load and the store is lost, but not its effect: the caller takes
    /// the time afterwards.
    fn take_stored(&self, vol: &Volume) -> Result<bool> {
        let stored = self.at + STORED_OFFSET;
        let noted = vol.medium().load_u64(stored)? != 0;
        if noted {
            vol.region.window().store_u64_unflushed(stored.0, 0)?;
            // The clock is not read before the word is cleared.
            fence(Ordering::SeqCst);
        }
        Ok(noted)
    }
}

/// A lease that this mount keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldLease {
    /// Slot of the lease table.
    pub slot: u32,
    /// Identifies the lease among all that the slot has held.
    pub id: u64,
    /// The leased file.
    pub ino: Ino,
    /// What its holder may do.
    pub mode: LeaseMode,
    /// Process that asked for it.
    pub pid: u32,
    /// User of that process.
    pub uid: u32,
    /// Time of the grant, seconds.
    pub granted_sec: i64,
    /// An earlier mount granted it.
    pub is_adopted: bool,
    /// It is being granted: its lock may not exist yet.
    pub(crate) is_new: bool,
    /// Place of its slot.
    pub(crate) at: RegionOffset,
}

impl HeldLease {
    pub(crate) fn new(slot: u32, at: RegionOffset, lease: &Lease, is_adopted: bool) -> HeldLease {
        HeldLease {
            slot,
            id: lease.id,
            ino: lease.ino,
            mode: lease.mode,
            pid: lease.pid,
            uid: lease.uid,
            granted_sec: lease.granted_sec,
            is_adopted,
            is_new: !is_adopted,
            at,
        }
    }
}

/// What has happened to a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseEvent {
    /// The timer has looked at a lease to write. `stored`: its holder has noted stores since
    /// the last look.
    Checked {
        /// Whether the holder has stored.
        stored: bool,
    },
    /// It has ended.
    Ended,
}

type Watch = dyn Fn(&HeldLease, LeaseEvent) + Send + Sync;

/// A function that watches the leases.
pub(crate) struct LeaseWatch(pub Box<Watch>);

impl std::fmt::Debug for LeaseWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LeaseWatch(..)")
    }
}
