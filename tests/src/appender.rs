//! The holder of a lease that appends to its file without a call, as the client library
//! does, but in the process of the engine.

use pramfs::inode::{Fs, HeldLease, Ino, LeaseMode};
use pramfs_medium::media::lease::{AppendWindow, LeaseSlot, OPEN_WORD, VIEW_OFFSET};
use pramfs_medium::pmem::{RegionAccess, Unfenced};

/// The end of an attempt to append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// The bytes are in the file.
    Yes,
    /// The window has no room for them.
    NoRoom,
    /// There is no window, or it has been closed, and the bytes are not in the file.
    Closed,
}

/// A lease to write and its append window.
#[derive(Debug, Clone, Copy)]
pub struct Appender {
    /// The file.
    pub ino: Ino,
    /// The slot of the lease, and its id.
    pub lease: (u32, u64),
    /// Place of the slot in the region.
    pub at: u64,
}

impl Appender {
    /// Of the first lease to write of a file.
    ///
    /// # Errors
    /// There is none; those of the engine.
    pub fn of(fs: &Fs, ino: Ino) -> Result<Appender, String> {
        let leases = fs.leases();
        let is_it = |lease: &&HeldLease| lease.ino == ino && lease.mode == LeaseMode::Write;
        let lease = leases.iter().find(is_it);
        let HeldLease { slot, id, .. } = lease.ok_or("nobody has leased the file to write")?;
        let found = fs
            .leased_extents(*slot, *id, 0, 1)
            .map_err(|e| e.to_string())?;
        Ok(Appender {
            ino,
            lease: (*slot, *id),
            at: found.view - VIEW_OFFSET,
        })
    }

    /// Opens a window with room for some bytes.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn open(&self, fs: &Fs, bytes: u64) -> pramfs::Result<AppendWindow> {
        fs.open_window(self.lease.0, self.lease.1, bytes)
    }

    /// A word of the view line.
    fn view(&self, fs: &Fs, word: u64) -> u64 {
        let region = fs.region_to_damage();
        region
            .load_u64(self.at + VIEW_OFFSET + word * 8)
            .unwrap_or(0)
    }

    /// The window on the medium that is open, and where the holder's bytes end.
    ///
    /// # Errors
    /// The slot is damaged.
    pub fn window(&self, fs: &Fs) -> Result<Option<(AppendWindow, u64)>, String> {
        let region = fs.region_to_damage();
        let slot: LeaseSlot = region.read_pod(self.at).map_err(|e| e.to_string())?;
        let seed = fs.superblock().geometry().seed;
        let Some(window) = slot.append_window(seed, self.lease.0)? else {
            return Ok(None);
        };
        let end = window.end_of(slot.end).ok_or("the end is damaged")?;
        Ok((self.view(fs, OPEN_WORD) == window.number).then_some((window, end)))
    }

    /// Stores bytes after the end in the window that is open, and does what makes them part of
    /// the file.
    ///
    /// # Errors
    /// A byte has no block; the slot is damaged; those of the medium.
    pub fn append(&self, fs: &Fs, bytes: &[u8]) -> Result<Appended, String> {
        let words = |e: pramfs::Error| e.to_string();
        let Some((window, from)) = self.window(fs)? else {
            return Ok(Appended::Closed);
        };
        let to = from + bytes.len() as u64;
        if to > window.limit {
            return Ok(Appended::NoRoom);
        }
        let (slot, id) = self.lease;
        let found = fs
            .leased_extents(slot, id, from, usize::MAX)
            .map_err(words)?;
        let w = fs.region_to_damage().window();
        // Without the announcement: in one process, nobody closes the window meanwhile, and it
        // means nothing after a power failure, which no holder survives.
        let (mut pending, mut done) = (Unfenced::none(), 0);
        for extent in &found.extents {
            let start = from.max(extent.file_offset);
            let end = to.min(extent.file_offset + extent.len);
            if start < end {
                let at = extent.region_offset.unwrap_or(0) + (start - extent.file_offset);
                let part = &bytes[(start - from) as usize..(end - from) as usize];
                let stored = w.nt_store(at, part).map_err(|e| e.to_string())?;
                (pending, done) = (pending.join(stored), done + part.len());
            }
        }
        let _ = w.fence(pending);
        if done < bytes.len() {
            return Err(format!(
                "{done} of {} bytes of the window have blocks",
                bytes.len()
            ));
        }
        let told = self.at + pramfs_medium::media::lease::END_OFFSET;
        let store = || {
            w.store_u64_unflushed(told, window.word_of(to))
                .and_then(|()| w.flush(told, 8))
        };
        let _ = w.fence(store().map_err(|e| e.to_string())?);
        Ok(Appended::Yes)
    }
}
