//! A lease, and the memory that it gives access to.

use std::ops::Range;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{RwLock, RwLockReadGuard};
use pramfs_control::{Blocks, Coherence, ControlError, LeaseKey, Refusal, TicketReply, Window};
use pramfs_medium::media::lease::{APPENDING_OFFSET, END_OFFSET, VIEW_OFFSET};
use pramfs_medium::pmem::{
    Protect, Region, RegionAccess as _, RegionOptions, Unfenced, lease_ticket,
};
use pramfs_medium::types::LeaseMode;

use crate::blocks::{KnownBlocks, end_in_region, is_sound, room_to_grow};
use crate::descriptors::{Kept, keep, keep_region};
use crate::error::{Error, Result};
use crate::growth::{Growth, beside_stored};
use crate::link::{Link, asked_again};
use crate::places::Places;
use crate::snapshot::{Shown, copy_of_one_layout, is_still};

/// Attempts to read while the file changes.
const ATTEMPTS: usize = 20;
/// Longest wait for the readers that use what is known.
const LEARNING: Duration = Duration::from_secs(1);
/// Requests of one attempt.
const REQUESTS: usize = 256;

/// How far a copy has come without a request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Now {
    /// This many bytes were copied.
    Done(usize),
    /// The blocks of this layout are needed, up to this offset.
    Unknown { layout: u64, end: u64 },
    /// The file changes, or the lock was refused.
    Changed,
    /// A part has no block.
    Mount,
}

impl Now {
    pub(crate) fn done(self) -> Option<usize> {
        match self {
            Now::Done(n) => Some(n),
            _ => None,
        }
    }
}

/// A file with a lease.
#[derive(Debug)]
pub(crate) struct Leased {
    /// Directly before the descriptor of the region is closed.
    _kept_region: Kept,
    /// Mapped through the descriptor of the lease, which it keeps. Before the release: the
    /// server tests the lock at the request.
    region: Region,
    release: Release,
    /// Directly before the file is closed.
    _kept_file: Kept,
    /// The open file of the mount. While it is open, the tools can name it.
    pub file: std::fs::File,
    /// Place of the layout counter and the size in the region.
    view: u64,
    /// Place of the word in which stores are noted. `None`: the lease is for reading.
    stored: Option<u64>,
    /// The file system, the number of the inode, and its generation.
    pub identity: ((u64, u64), u64, u64),
    blocks: RwLock<KnownBlocks>,
    /// What of them a read can use without the lock.
    places: Places,
    /// Bytes of a block.
    block_size: u64,
    /// What this process appends.
    pub growth: Growth,
}

impl Leased {
    /// Asks for a lease on an open file.
    pub(crate) fn new(
        file: std::fs::File,
        mode: LeaseMode,
        coherence: Coherence,
        protect: Protect,
        directory: Option<&PathBuf>,
    ) -> Result<Leased> {
        let ask = || {
            let ticket = lease_ticket(file.as_fd(), mode).map_err(Error::NoTicket)?;
            let ticket = TicketReply::decode(&ticket)?;
            let link = Link::to(directory, &ticket)?;
            let granted = link.ask(|server| server.coherent_lease(ticket.ticket, coherence))?;
            Ok((link, granted))
        };
        let asked = match ask() {
            // The server has closed a connection that was silent for long; the next one is
            // new.
            Err(Error::ServerGone) => ask(),
            asked => asked,
        };
        let (link, (granted, descriptor)) = asked?;
        let release = Release {
            link,
            lease: granted.lease,
        };
        // A server that would not tell of stores through mappings.
        if granted.coherence != coherence && mode == LeaseMode::Read {
            return Err(Error::Refused {
                reason: Refusal::Unsupported,
                message: "the server is older than this program: it would not tell it of stores \
                          through mappings"
                    .into(),
            });
        }
        let os = |error| {
            Error::Control(ControlError::Os {
                what: "cannot keep a descriptor",
                source: error,
            })
        };
        let (kept_region, descriptor) = keep_region(descriptor).map_err(os)?;
        let (kept_file, file) = keep(file.into()).map_err(os)?;
        let region = RegionOptions::new()
            .read_only(mode == LeaseMode::Read)
            .protect(protect)
            .lock(false)
            .room_to_grow(room_to_grow(descriptor.as_fd()))
            .from_fd(descriptor, "the region of the mount")?;
        let stored = (mode == LeaseMode::Write).then_some(granted.stored);
        if !is_sound(&granted.blocks, 0) || stored == Some(0) {
            return Err(malformed());
        }
        // The words lie in the region, and are aligned.
        let last = granted.view.saturating_add(APPENDING_OFFSET - VIEW_OFFSET);
        for word in [granted.view, last] {
            region.load_u64(word)?;
        }
        if let Some(word) = stored {
            let last = word.saturating_add(beside_stored(END_OFFSET));
            for word in [word, last] {
                region.load_u64(word)?;
            }
        }
        Ok(Leased {
            region,
            release,
            _kept_region: kept_region,
            _kept_file: kept_file,
            file: file.into(),
            view: granted.view,
            stored,
            identity: (granted.filesystem, granted.inode, granted.generation),
            blocks: RwLock::new(KnownBlocks::new(&granted.blocks)),
            places: Places::default(),
            block_size: granted.block_size,
            growth: Growth::default(),
        })
    }

    /// Returns the size of the file.
    pub(crate) fn size_now(&self) -> Result<u64> {
        self.size()
    }

    /// Returns the size that the server shows.
    #[inline]
    pub(crate) fn shown_size(&self) -> Result<u64> {
        self.view_word(1)
    }

    /// Loads a word of the view line.
    #[inline]
    pub(crate) fn view_word(&self, word: u64) -> Result<u64> {
        Ok(self.region().load_u64(self.view + 8 * word)?)
    }

    /// Returns where a word of the view line is, given by its offset in the slot.
    #[inline]
    pub(crate) fn view_place(&self, offset: u64) -> u64 {
        self.view + (offset - VIEW_OFFSET)
    }

    /// Returns where a word of the holder is, given by its offset in the slot.
    #[inline]
    pub(crate) fn holder_word(&self, offset: u64) -> Result<u64> {
        let stored = self.stored.ok_or(Error::NotWritable)?;
        Ok(stored + beside_stored(offset))
    }

    /// Returns the bytes of a block.
    pub(crate) fn block_size(&self) -> u64 {
        self.block_size
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Whether blocks below the size of the file are where they were in a layout.
    pub(crate) fn is_current(&self, layout: u64) -> Result<bool> {
        self.region().check_owner()?;
        is_still(self, layout)
    }

    /// Copies a range within the file out whose place is known. Takes no lock. `None`, with
    /// `buf` undefined, where [`read_at`](Self::read_at) must be called.
    #[inline]
    pub(crate) fn read_known(&self, buf: &mut [u8], offset: u64) -> Option<usize> {
        let region = self.region();
        region.check_owner().ok()?;
        let len = buf.len() as u64;
        let end = offset.checked_add(len)?;
        let copied = copy_of_one_layout(self, |layout, size| {
            let place = match end <= size {
                true => self.places.get(layout, offset, len),
                false => None,
            };
            Ok(place.filter(|at| region.read_wide(*at, buf)))
        });
        copied.ok()?.map(|_| len as usize)
    }

    /// Copies bytes out, up to the end of the file.
    pub(crate) fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        // For later reads of the same window, without a lock.
        let seen = |layout, known: &KnownBlocks| {
            if let Some(extent) = known.extent_at(offset) {
                let place = (extent.file_offset, extent.region_offset, extent.len);
                self.places.put(layout, offset, place);
            }
        };
        for _ in 0..ATTEMPTS {
            let (layout, end) =
                match self.copy_known(buf, offset, |lock| Some(lock.read()), seen)? {
                    Now::Done(n) => return Ok(n),
                    Now::Unknown { layout, end } => (layout, end),
                    Now::Changed | Now::Mount => continue,
                };
            match self.learn(layout, end) {
                // A part of the file that this range need not touch.
                Err(
                    Error::Unstable
                    | Error::Refused {
                        reason: Refusal::Damaged,
                        ..
                    },
                ) => break,
                learned => learned?,
            }
        }
        // The file changes faster than its blocks can be asked for, or has too many.
        self.read_through_mount(buf, offset)
    }

    /// Copies bytes out, if their blocks are known. `lock` may refuse. `seen` gets the blocks
    /// of the current layout.
    pub(crate) fn copy_known(
        &self,
        buf: &mut [u8],
        offset: u64,
        lock: impl for<'l> Fn(&'l RwLock<KnownBlocks>) -> Option<RwLockReadGuard<'l, KnownBlocks>>,
        seen: impl Fn(u64, &KnownBlocks),
    ) -> Result<Now> {
        let region = self.region();
        region.check_owner()?;
        let mut unknown = Now::Changed;
        let copied = copy_of_one_layout(self, |layout, size| {
            let most = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
            let n = buf.len().min(most);
            if n == 0 {
                return Ok(Some(0));
            }
            let end = offset + n as u64;
            let Some(known) = lock(&self.blocks) else {
                return Ok(None);
            };
            if known.layout != layout || known.end < end {
                unknown = Now::Unknown { layout, end };
                return Ok(None);
            }
            seen(layout, &known);
            let mut into = &mut buf[..n];
            for (place, len) in known.pieces(offset, end) {
                let (now, rest) = into.split_at_mut(len as usize);
                match place {
                    Some(at) => region.read(at, now)?,
                    None => now.fill(0),
                }
                into = rest;
            }
            Ok(Some(n))
        })?;
        Ok(copied.map_or(unknown, Now::Done))
    }

    /// Copies bytes in, and makes them durable.
    pub(crate) fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        if let Some(n) = self.write_past_end(buf, offset)? {
            return Ok(n);
        }
        for _ in 0..ATTEMPTS {
            let (layout, end) = match self.store_known(buf, offset, |lock| Some(lock.read()))? {
                Now::Done(n) => return Ok(n),
                Now::Unknown { layout, end } => (layout, end),
                Now::Changed => continue,
                Now::Mount => break,
            };
            match self.learn(layout, end) {
                Err(
                    Error::Unstable
                    | Error::Refused {
                        reason: Refusal::Damaged,
                        ..
                    },
                ) => break,
                learned => learned?,
            }
        }
        self.write_through_mount(buf, offset)
    }

    /// Copies bytes in and makes them durable, if all have blocks that are known. `lock` may
    /// refuse.
    pub(crate) fn store_known(
        &self,
        buf: &[u8],
        offset: u64,
        lock: impl for<'l> Fn(&'l RwLock<KnownBlocks>) -> Option<RwLockReadGuard<'l, KnownBlocks>>,
    ) -> Result<Now> {
        self.region().check_owner()?;
        let (layout, size) = (self.layout()?, self.size()?);
        let end = match offset.checked_add(buf.len() as u64) {
            // `growth`, or the mount.
            Some(end) if end <= size => end,
            _ => return Ok(Now::Mount),
        };
        let Some(known) = lock(&self.blocks) else {
            return Ok(Now::Changed);
        };
        if known.layout != layout || known.end < end {
            return Ok(Now::Unknown { layout, end });
        }
        // All of it, or nothing: a short write would say that the region is full.
        if known.pieces(offset, end).any(|(place, _)| place.is_none()) {
            return Ok(Now::Mount);
        }
        // No block leaves the file while the lease lives. So these are stores to the
        // file, even if its layout changes meanwhile.
        let (region, mut from) = (self.region(), buf);
        let _scope = region.write_scope();
        let (window, faults) = (region.window(), region.faults_seen());
        let (mut pending, mut lost) = (Unfenced::none(), false);
        for (place, len) in known.pieces(offset, end) {
            let (now, rest) = from.split_at(len as usize);
            if let Some(at) = place {
                pending = pending.join(window.nt_store(at, now)?);
                // A page that has failed before counts no new fault.
                lost |= region.is_faulted(at, len);
            }
            from = rest;
        }
        window.fence(pending);
        drop(window);
        self.note_store()?;
        if lost || region.faults_seen() != faults {
            return Err(Error::Faulted);
        }
        Ok(Now::Done(buf.len()))
    }

    /// Notes for the server that the file has been stored to.
    pub(crate) fn note_store(&self) -> Result<()> {
        let region = self.region();
        region.check_owner()?;
        // The server clears the word, and takes the time after that. Without a load before: it
        // could come before the stores that the fence has made durable, and find the word set
        // that the server is about to clear.
        match self.stored {
            Some(word) => Ok(region.window().store_u64_unflushed(word, 1)?),
            None => Ok(()),
        }
    }

    /// Has the holes of a range filled, and returns the blocks.
    pub(crate) fn written(&self, range: Range<u64>) -> Result<KnownBlocks> {
        let mut filled = range.start;
        for _ in 0..ATTEMPTS {
            let known = self.known(range.end)?;
            let hole = known
                .pieces(range.start, range.end)
                .any(|(place, _)| place.is_none());
            if !hole {
                return Ok(known);
            }
            while filled < range.end {
                let Release { link, lease } = &self.release;
                let ask = || link.ask(|server| server.fill(*lease, filled..range.end, false));
                // The kernel tells the server of removed files a little late.
                let is_full = |error: &Error| matches!(error, Error::Refused { reason, .. } if *reason == Refusal::Full);
                let end = asked_again(ask, is_full)?;
                if end <= filled {
                    // The file is shorter now.
                    return Err(Error::Range);
                }
                filled = end;
            }
            // Another process may have made the file shorter and longer meanwhile.
            filled = range.start;
        }
        Err(Error::Unstable)
    }

    /// Returns the blocks of a range that may pass the end of the file. If the lease is to
    /// write, they are allocated; otherwise the holder of such a lease must have done so.
    pub(crate) fn written_ahead(&self, range: Range<u64>) -> Result<KnownBlocks> {
        // The server zeroes the rest of a block, not that of a page.
        if self.block_size < rustix::param::page_size() as u64 {
            return Err(Error::Range);
        }
        if self.stored.is_some() {
            let size = self.size()?;
            if range.start < size {
                self.written(range.start..range.end.min(size))?;
            }
            // From now on appends keep the rest of the last page zero.
            self.growth.note_mapped_ahead();
            let Release { link, lease } = &self.release;
            // From the end on: the server leaves no gap before the range.
            let mut filled = size;
            while filled < range.end {
                let end = link.ask(|server| server.fill(*lease, filled..range.end, true))?;
                if end <= filled {
                    // A server that does not know of blocks ahead.
                    return Err(Error::Range);
                }
                filled = end;
            }
        }
        for _ in 0..ATTEMPTS {
            let layout = self.layout()?;
            self.learn(layout, range.end)?;
            let known = self.blocks.read();
            if known.layout == layout {
                return match known.end >= range.end {
                    true => Ok(known.clone()),
                    false => Err(Error::Range),
                };
            }
        }
        Err(Error::Unstable)
    }

    /// Asks the server for the blocks of a layout, up to an offset in the file.
    pub(crate) fn learn(&self, layout: u64, end: u64) -> Result<()> {
        // A reader holds it for the time of a copy, unless a signal handler of its thread waits
        // here.
        let known = self.blocks.try_write_for(LEARNING);
        let mut known = known.ok_or(Error::Unstable)?;
        // Another thread may have asked meanwhile. A layout that is no longer current is
        // asked for as well: the answer is the current one.
        if known.layout != layout || known.end == 0 {
            *known = KnownBlocks::new(&self.ask(0)?);
        }
        for _ in 0..REQUESTS {
            if known.end >= end {
                break;
            }
            let from = known.end;
            let more = self.ask(from)?;
            if !known.extend(&more) || known.end == from {
                // The layout has changed, or the file is shorter now: the reader looks again,
                // a limited number of times.
                break;
            }
        }
        Ok(())
    }

    /// Tells the server what is to become of the lease, which is one to read.
    pub(crate) fn cohere(&self, coherence: Coherence) -> Result<()> {
        let Release { link, lease } = &self.release;
        link.ask(|server| server.cohere(*lease, coherence))
    }

    /// Asks the server for an append window.
    pub(crate) fn request_window(&self, bytes: u64, opens: u32) -> Result<Window> {
        let Release { link, lease } = &self.release;
        link.ask(|server| server.window(*lease, bytes, opens))
    }

    /// Adds blocks that continue what is known. The server has told them for something else.
    pub(crate) fn learn_more(&self, more: &Blocks) {
        // A reader that waits for a signal handler may hold the lock.
        if let Some(mut known) = self.blocks.try_write_for(LEARNING) {
            let _continues = known.extend(more);
        }
    }

    pub(crate) fn ask(&self, offset: u64) -> Result<Blocks> {
        let Release { link, lease } = &self.release;
        let blocks = link.ask(|server| server.blocks(*lease, offset))?;
        if !is_sound(&blocks, offset) {
            return Err(malformed());
        }
        // The region has grown since this lease was granted. Views keep their addresses.
        if end_in_region(&blocks) > self.region().len() {
            self.region().grow(None)?;
        }
        Ok(blocks)
    }

    /// Returns the blocks of the current layout, known up to `end` or the end of the file.
    pub(crate) fn known(&self, end: u64) -> Result<KnownBlocks> {
        self.region().check_owner()?;
        for _ in 0..ATTEMPTS {
            let layout = self.layout()?;
            let size = self.size()?;
            if end > size {
                return Err(Error::Range);
            }
            {
                let known = self.blocks.read();
                if known.layout == layout && known.end >= end {
                    return Ok(known.clone());
                }
            }
            self.learn(layout, end)?;
        }
        Err(Error::Unstable)
    }
}

fn malformed() -> Error {
    Error::Control(ControlError::Malformed(
        "the blocks of a file are out of order".into(),
    ))
}

impl Shown for Leased {
    type Error = Error;

    fn layout(&self) -> Result<u64> {
        self.view_word(0)
    }

    fn size(&self) -> Result<u64> {
        self.grown_size()
    }
}

/// Tells the server, when it is dropped, that a lease has been given up.
#[derive(Debug)]
struct Release {
    link: Arc<Link>,
    lease: LeaseKey,
}

impl Drop for Release {
    fn drop(&mut self) {
        // Otherwise the server notices by itself, a little later.
        let _noticed = self.link.ask(|server| server.release(self.lease));
    }
}
