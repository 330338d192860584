//! Appends without a call: the append window of a lease, and what is done without one.
//!
//! The server allocates blocks past the end of the file ahead. An append stores to them and
//! tells its end in the slot (`handover`). Where the server refuses a window, because the file
//! has another lease, the append goes through the mount.
//!
//! One thread of the process appends at a time. Readers need no lock: the end of what was
//! appended is published by two words.

use std::fs::File;
use std::io::{ErrorKind, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use parking_lot::{Mutex, MutexGuard};
use pramfs_control::{Blocks, ControlError, Window};
use pramfs_medium::media::lease::{
    ALL_CLOSED, APPENDING_OFFSET, AppendWindow, CLOSED_WORD, END_OFFSET, MAX_WINDOW, OPEN_WORD,
    STORED_OFFSET,
};
use pramfs_medium::pmem::{Fenced, RegionAccess as _, Unfenced};

use crate::blocks::KnownBlocks;
use crate::descriptors::{Kept, keep};
use crate::error::{Error, Result};
use crate::handover::{self, Stored, Words};
use crate::leased::{Leased, Now};
use crate::through::through_mount;

/// The longest append that a window takes, and the most that a server is asked for.
const LONGEST: u64 = 16 << 20;
/// Bytes of a page of memory, at least.
const PAGE: usize = 4096;
static ZEROS: [u8; PAGE] = [0; PAGE];
/// Windows that one append may try.
const ATTEMPTS: usize = 8;
/// Appends through the mount before a window is asked for again.
const SKIPPED: u32 = 64;
/// A window that others close before this many appends cost more than it gave.
const FEW: u32 = 16;

/// The appends of a lease.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    state: Mutex<State>,
    /// The number of the last window; 0: there was none.
    number: AtomicU64,
    /// What the server showed as the window that was closed last when it opened that one. Once
    /// it shows another, the window is closed: that one, or a later one whose answer was lost.
    before: AtomicU64,
    /// Where the last append in it has ended; 0: there was none.
    end: AtomicU64,
    /// A mapping of this process may pass the end of the file.
    is_mapped_ahead: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    window: Option<Open>,
    /// Appends that go through the mount before a window is asked for.
    skip: u32,
    /// The file, opened to append through the mount.
    through: Option<(Kept, File)>,
}

/// A window, as far as this process knows.
#[derive(Debug)]
struct Open {
    window: AppendWindow,
    /// Where the next append begins.
    end: u64,
    appends: u32,
    /// The blocks of the window in the region: offset and length, from its start.
    pieces: Vec<(u64, u64)>,
    /// The end in the pieces, so that an append needs no search.
    at: Cursor,
}

#[derive(Debug, Clone, Copy, Default)]
struct Cursor {
    piece: usize,
    within: u64,
}

impl Open {
    fn room(&self) -> u64 {
        self.window.limit - self.end
    }

    /// Returns the place of the next bytes, at most `len`, and moves the cursor over them.
    #[inline]
    fn next(&self, cursor: &mut Cursor, len: u64) -> Option<(u64, u64)> {
        let (place, size) = *self.pieces.get(cursor.piece)?;
        let now = len.min(size - cursor.within);
        let at = place + cursor.within;
        cursor.within += now;
        if cursor.within == size {
            *cursor = Cursor {
                piece: cursor.piece + 1,
                within: 0,
            };
        }
        Some((at, now))
    }

    /// Checks the answer of a server, and takes the blocks of the window. `None` if it has a
    /// part without a block.
    fn new(given: &Window, blocks: &KnownBlocks) -> Option<Open> {
        let window = AppendWindow {
            number: given.number,
            start: given.start,
            limit: given.limit,
            key: given.key,
        };
        let len = window.limit.checked_sub(window.start)?;
        if matches!(window.number, 0 | ALL_CLOSED) || len > MAX_WINDOW || blocks.end < window.limit
        {
            return None;
        }
        let pieces = blocks.pieces(window.start, window.limit);
        Some(Open {
            window,
            end: window.start,
            appends: 0,
            pieces: pieces
                .map(|(place, len)| place.map(|place| (place, len)))
                .collect::<Option<_>>()?,
            at: Cursor::default(),
        })
    }
}

impl State {
    /// The server has closed the window.
    fn closed(&mut self) {
        let closed = self.window.take();
        if closed.is_some_and(|open| open.appends < FEW) {
            self.skip = SKIPPED;
        }
    }
}

impl Growth {
    /// Notes that a mapping of this process may pass the end of the file: its bytes past the
    /// end, up to the next page, are zeros.
    pub(crate) fn note_mapped_ahead(&self) {
        self.is_mapped_ahead.store(true, Ordering::Release);
    }

    /// Publishes a window for the readers of this process.
    fn show_window(&self, number: u64, before: u64) {
        // A reader that finds one of these finds the window before closed.
        self.end.store(0, Ordering::Release);
        self.before.store(before, Ordering::Release);
        self.number.store(number, Ordering::Release);
    }
}

impl Leased {
    /// Returns the size of the file: what the server shows, or the end of what this process has
    /// appended since.
    #[inline]
    pub(crate) fn grown_size(&self) -> Result<u64> {
        loop {
            let number = self.growth.number.load(Ordering::Acquire);
            if number == 0 {
                return self.shown_size();
            }
            let end = self.growth.end.load(Ordering::Acquire);
            let before = self.growth.before.load(Ordering::Acquire);
            // Before the size: the server shows the size that a window has led to, and then
            // that it is closed. So this size has what was appended.
            let closed = self.view_word(CLOSED_WORD)?;
            let shown = self.shown_size()?;
            // Of one window, not a mixture.
            fence(Ordering::Acquire);
            if self.growth.number.load(Ordering::Relaxed) == number {
                return Ok(match closed == number || closed != before {
                    // The file may be shorter since.
                    true => shown,
                    false => shown.max(end),
                });
            }
        }
    }

    /// Appends bytes, and makes them durable. Returns the offset at which they begin.
    pub(crate) fn append(&self, buf: &[u8]) -> Result<u64> {
        // First: a forked child may have inherited a lock that nobody releases.
        self.region().check_owner()?;
        let mut state = self.growth.state.lock();
        if buf.is_empty() {
            return self.grown_size();
        }
        for _ in 0..ATTEMPTS {
            if !self.get_ready(&mut state, buf.len() as u64, 1) {
                break;
            }
            if let Some(at) = self.append_in_window(&mut state, buf)? {
                return Ok(at);
            }
        }
        self.append_through_mount(&mut state, buf)
    }

    /// Appends as [`append`](Self::append), if that needs no request and no lock that is held,
    /// and the bytes begin at `at`, if that is given.
    pub(crate) fn append_known(&self, buf: &[u8], at: Option<u64>) -> Result<Option<u64>> {
        self.region().check_owner()?;
        let len = buf.len() as u64;
        let Some(mut state) = self.growth.state.try_lock() else {
            return Ok(None);
        };
        match &state.window {
            Some(open) if open.room() >= len && at.is_none_or(|at| at == open.end) => {}
            _ => return Ok(None),
        }
        self.append_in_window(&mut state, buf)
    }

    /// Sees to it that a window has room for a number of bytes. False if the mount must do it.
    /// `opens` says how often this process has the file open.
    pub(crate) fn prepare_append(&self, bytes: u64, opens: u32) -> Result<bool> {
        self.region().check_owner()?;
        let state = self.growth.state.try_lock();
        Ok(state.is_some_and(|mut state| self.get_ready(&mut state, bytes, opens)))
    }

    /// Writes a range that begins at or before the end of the file and passes it. `None` if
    /// that is not so, or the mount must do it.
    pub(crate) fn write_past_end(&self, buf: &[u8], offset: u64) -> Result<Option<usize>> {
        self.region().check_owner()?;
        let end = offset.saturating_add(buf.len() as u64);
        let passes = |size| (offset <= size && size < end).then(|| end - size);
        if passes(self.grown_size()?).is_none() {
            return Ok(None);
        }
        let mut state = self.growth.state.lock();
        for _ in 0..ATTEMPTS {
            let Some(more) = passes(self.grown_size()?) else {
                return Ok(None);
            };
            if !self.get_ready(&mut state, more, 1) {
                return Ok(None);
            }
            let Some(open) = &state.window else {
                return Ok(None);
            };
            let old = match passes(open.end) {
                Some(_) => (open.end - offset) as usize,
                // Others have changed the size, which has closed the window.
                None if self.open()? != open.window.number => {
                    state.closed();
                    continue;
                }
                None => return Ok(None),
            };
            let (below, past) = buf.split_at(old);
            if !below.is_empty() {
                match self.store_known(below, offset, |lock| Some(lock.read()))? {
                    Now::Done(_) => {}
                    Now::Unknown { layout, end } if self.learn(layout, end).is_ok() => continue,
                    _ => return Ok(None),
                }
            }
            if self.append_in_window(&mut state, past)?.is_some() {
                return Ok(Some(buf.len()));
            }
        }
        Ok(None)
    }

    /// Asks for a window if there is none with this much room. False if the append goes through
    /// the mount.
    fn get_ready(&self, state: &mut MutexGuard<'_, State>, bytes: u64, opens: u32) -> bool {
        if bytes > LONGEST {
            return false;
        }
        if state
            .window
            .as_ref()
            .is_some_and(|open| open.room() >= bytes)
        {
            return true;
        }
        if state.skip > 0 {
            state.skip -= 1;
            return false;
        }
        let opens = opens + u32::from(state.through.is_some());
        match self.ask_for_window(bytes, opens) {
            Ok(Some((open, before))) => {
                self.growth.show_window(open.window.number, before);
                state.window = Some(open);
                true
            }
            // Another lease or open of the file, a full region, a server without windows, none at
            // all, or an answer that makes no sense. What the mount says of the append counts.
            _ => {
                state.skip = SKIPPED;
                false
            }
        }
    }

    #[cold]
    fn ask_for_window(&self, bytes: u64, opens: u32) -> Result<Option<(Open, u64)>> {
        let given = self.request_window(bytes, opens)?;
        // Before it is asked for the blocks of a window that does not make sense.
        let len = given.limit.checked_sub(given.start);
        if len.is_none_or(|len| len > MAX_WINDOW) {
            return Ok(None);
        }
        // The server has closed the window before. If this one is closed by now, it is found so
        // by its number.
        let before = self.view_word(CLOSED_WORD)?;
        let first = self.ask(given.start)?;
        let mut found = KnownBlocks::new(&first);
        self.learn_more(&first);
        while found.end < given.limit {
            let (more, known) = (self.ask(found.end)?, found.end);
            self.learn_more(&more);
            // Nobody takes blocks away, so it does not matter if the layout has changed.
            let layout = first.layout;
            if !found.extend(&Blocks { layout, ..more }) || found.end == known {
                return Ok(None);
            }
        }
        let open = Open::new(&given, &found);
        let open = open.filter(|open| open.room() >= bytes);
        Ok(open.map(|open| (open, before)))
    }

    /// Appends in the window, which has room. `None` if it was closed, and the bytes are not in
    /// the file.
    fn append_in_window(
        &self,
        state: &mut MutexGuard<'_, State>,
        buf: &[u8],
    ) -> Result<Option<u64>> {
        let Some(open) = &mut state.window else {
            return Ok(None);
        };
        let (region, number, start) = (self.region(), open.window.number, open.end);
        let (end, faults) = (start + buf.len() as u64, region.faults_seen());
        let (mut cursor, limit) = (open.at, open.window.limit);
        let _scope = region.write_scope();
        let copy = || {
            let (window, mut from) = (region.window(), buf);
            let (mut pending, mut lost) = (Unfenced::none(), false);
            while !from.is_empty() {
                let place = open.next(&mut cursor, from.len() as u64);
                let (at, len) = place.ok_or(Error::Range)?;
                let (now, rest) = from.split_at(len as usize);
                pending = pending.join(window.nt_store(at, now)?);
                // A page that has failed before counts no new fault.
                lost |= region.is_faulted(at, len);
                from = rest;
            }
            let mut after = cursor;
            let mut rest = match self.growth.is_mapped_ahead.load(Ordering::Acquire) {
                true => (end.next_multiple_of(self.block_size()) - end).min(limit - end),
                false => 0,
            };
            while rest > 0 {
                let now = rest.min(PAGE as u64);
                let (at, len) = open.next(&mut after, now).ok_or(Error::Range)?;
                pending = pending.join(window.nt_store(at, &ZEROS[..len as usize])?);
                rest -= len;
            }
            let durable = window.fence(pending);
            match lost || region.faults_seen() != faults {
                true => Err(Error::Faulted),
                false => Ok(durable),
            }
        };
        // A fault in the buffer of the program comes before the server has to wait.
        for page in buf.chunks(PAGE) {
            std::hint::black_box(page[0] | page[page.len() - 1]);
        }
        let word = open.window.word_of(end);
        match handover::append(self, number, word, copy)? {
            Stored::Nothing => {
                state.closed();
                return Ok(None);
            }
            Stored::Appended => {
                (open.end, open.at) = (end, cursor);
                open.appends = open.appends.saturating_add(1);
                self.growth.end.store(end, Ordering::Release);
            }
        }
        // A fault since then is not one of these bytes.
        Ok(Some(start))
    }

    /// Appends by write(2). The server closes the window first.
    fn append_through_mount(&self, state: &mut MutexGuard<'_, State>, buf: &[u8]) -> Result<u64> {
        let (_, file) = match &mut state.through {
            Some(through) => through,
            none => none.insert(self.open_to_append()?),
        };
        // The kernel notes the position by its own idea of the size, which has nothing of the
        // appends of a window. This asks the server, under the lock that writes take: no other
        // write makes the kernel drop the answer. Until the end of this call nobody appends
        // without the kernel: no other process has a window of this file.
        file.seek(SeekFrom::End(0)).map_err(through_mount)?;
        let (mut done, mut first) = (0, 0);
        while done < buf.len() {
            match file.write(&buf[done..]) {
                Ok(n) if n > 0 => {
                    if done == 0 {
                        let position = file.stream_position().map_err(through_mount)?;
                        first = position.saturating_sub(n as u64);
                    }
                    done += n;
                }
                Ok(_) => return Err(Error::Mount(ErrorKind::WriteZero.into())),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The request was sent, and its answer was lost.
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::ECONNABORTED | libc::ECANCELED)
                    ) =>
                {
                    return Err(Error::AppendUnknown);
                }
                // Not "gone": another attempt would append the first part again.
                Err(error) if done > 0 => return Err(Error::Mount(error)),
                Err(error) => return Err(through_mount(error)),
            }
        }
        Ok(first)
    }

    /// Opens the file again, to append. A write at the size would not do: others append between
    /// a look at the size and the write. `RWF_APPEND` would not either: the request of the
    /// kernel does not show it, so the server would believe the offset.
    ///
    /// The kernel checks the permissions once more: they may have changed since the file was
    /// opened.
    fn open_to_append(&self) -> Result<(Kept, File)> {
        let file = File::options()
            .append(true)
            .custom_flags(libc::O_DIRECT | libc::O_NONBLOCK)
            .open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
            .map_err(through_mount)?;
        let (kept, file) = keep(file.into()).map_err(|source| {
            Error::Control(ControlError::Os {
                what: "cannot keep a descriptor",
                source,
            })
        })?;
        Ok((kept, file.into()))
    }
}

impl Words for Leased {
    type Error = Error;
    type Durable = Fenced;

    #[inline]
    fn set_appending(&self, word: u64) -> Result<()> {
        let at = self.view_place(APPENDING_OFFSET);
        Ok(self.region().window().store_u64_unflushed(at, word)?)
    }

    #[inline]
    fn set_end(&self, word: u64, after: Fenced) -> Result<()> {
        let at = self.holder_word(END_OFFSET)?;
        let window = self.region().window();
        window.fence(window.publish_u64(at, word, after)?);
        Ok(())
    }

    #[inline]
    fn open(&self) -> Result<u64> {
        self.view_word(OPEN_WORD)
    }
}

/// Distance of a word of the holder from the word in which it notes its stores.
pub(crate) const fn beside_stored(offset: u64) -> u64 {
    offset - STORED_OFFSET
}

#[cfg(test)]
mod tests {
    use pramfs_control::Extent;

    use super::*;

    const KIB: u64 = 1024;

    fn window(start: u64, limit: u64) -> Window {
        Window {
            number: 3,
            start,
            limit,
            key: 5,
        }
    }

    fn known(extents: &[(u64, u64, u64)]) -> KnownBlocks {
        let extents = extents
            .iter()
            .map(|(file_offset, region_offset, len)| Extent {
                file_offset: *file_offset,
                region_offset: *region_offset,
                len: *len,
            });
        let extents: Vec<_> = extents.collect();
        let (first, last) = (extents[0], extents[extents.len() - 1]);
        KnownBlocks::new(&Blocks {
            layout: 1,
            size: first.file_offset,
            start: first.file_offset,
            end: last.file_offset + last.len,
            extents,
        })
    }

    /// Two extents, the first of which holds the end of the file.
    fn two() -> KnownBlocks {
        known(&[(4 * KIB, 100 * KIB, 8 * KIB), (12 * KIB, 60 * KIB, 4 * KIB)])
    }

    #[test]
    fn pieces_of_window_follow_each_other_without_gap() {
        let open = Open::new(&window(5000, 16 * KIB), &two()).unwrap();
        assert_eq!(open.room(), 16 * KIB - 5000);
        let (mut cursor, mut places) = (open.at, Vec::new());
        let mut left = open.room();
        while left > 0 {
            let (at, len) = open.next(&mut cursor, left.min(3000)).unwrap();
            places.extend((at..at + len).collect::<Vec<_>>());
            left -= len;
        }
        let first = 100 * KIB + 5000 - 4 * KIB;
        let expect: Vec<_> = (first..108 * KIB).chain(60 * KIB..64 * KIB).collect();
        assert!(places == expect);
        assert_eq!(open.next(&mut cursor, 1), None);
    }

    #[test]
    fn unsound_window_is_refused() {
        let good = window(5000, 16 * KIB);
        assert!(Open::new(&good, &two()).is_some());
        // Its number, reversed, longer than a length fits, past the known blocks.
        for bad in [
            Window { number: 0, ..good },
            Window {
                number: ALL_CLOSED,
                ..good
            },
            window(16 * KIB, 5000),
            window(5000, u64::MAX),
            window(5000, 20 * KIB),
        ] {
            assert!(Open::new(&bad, &two()).is_none(), "{bad:?}");
        }
        // A part without a block.
        let hole = known(&[(4 * KIB, 100 * KIB, 4 * KIB), (12 * KIB, 60 * KIB, 4 * KIB)]);
        assert!(Open::new(&good, &hole).is_none());
    }

    #[test]
    fn window_that_others_close_often_is_not_asked_for() {
        let mut state = State::default();
        for (appends, skip) in [(FEW, 0), (FEW - 1, SKIPPED)] {
            let open = Open::new(&window(5000, 16 * KIB), &two()).unwrap();
            state.window = Some(Open { appends, ..open });
            state.closed();
            assert!(state.window.is_none() && state.skip == skip, "{appends}");
        }
    }
}
