//! Room of the host: which pages of a sparse source have memory or storage
//! behind them, and how more is had.
//!
//! A store to a page of a sparse file that the host has no room for raises
//! SIGBUS, and comes too late to be refused. So room is taken before a block is
//! given out, and what is known about it stands in a bitmap: a bit for each page,
//! in memory that is had as it is touched.
//!
//! Invariants:
//! * A set bit means that the page is there and stays there: only
//!   [`HostRoom::discard`] takes pages away, and it keeps out those who learn.
//! * What is not known is asked for once for each chunk, where it is first
//!   needed: a mount asks nothing.
//!
//! Left to others: when room is taken, and that no lock is held then
//! (`fs::room`); which blocks are given out (`alloc`).

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;

use super::atomic_table::AtomicTable;
use super::error::PmemError;
use super::mapping;
use super::region::Region;
use super::source::{Source, SourceKind};
use crate::sync::RwLock;

const PAGE_LOG2: u32 = 12;
const PAGE: u64 = 1 << PAGE_LOG2;
/// Room is taken and asked for by so many bytes.
pub const CHUNK: u64 = 2 << 20;
/// What is tried where there is no room for a whole chunk.
const SMALLER_CHUNKS: [u64; 3] = [256 << 10, 32 << 10, PAGE];

/// What the host has, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostSpace {
    /// Had by the region already.
    pub taken: u64,
    /// What it can still give; `None`: it names no limit.
    pub free: Option<u64>,
    /// Size of the region.
    pub len: u64,
}

impl HostSpace {
    /// Bytes that the region has not got and the host cannot give.
    pub fn missing(&self) -> u64 {
        let wanted = self.len.saturating_sub(self.taken);
        self.free.map_or(0, |free| wanted.saturating_sub(free))
    }
}

/// The pages that are known to be there.
#[derive(Debug)]
pub struct KnownRoom {
    /// All of them.
    all: AtomicBool,
    pages: AtomicTable,
    /// Chunks whose pages have been asked for.
    asked: AtomicTable,
    /// The host has refused: only what is known to be there is given out.
    dry: AtomicBool,
}

impl KnownRoom {
    fn new(len: u64, all: bool) -> Option<KnownRoom> {
        let words =
            |bits: u64| AtomicTable::new(bits.div_ceil(64) as usize, "the room of the host");
        let known = KnownRoom {
            all: AtomicBool::new(all),
            pages: words(len.div_ceil(PAGE)),
            asked: words(len.div_ceil(CHUNK)),
            dry: AtomicBool::new(false),
        };
        (!known.pages.is_empty() && !known.asked.is_empty()).then_some(known)
    }

    /// Whether all of a range is known to be there.
    #[inline]
    pub fn has(&self, offset: u64, len: u64) -> bool {
        if self.all.load(Ordering::Relaxed) {
            return true;
        }
        let first = offset >> PAGE_LOG2;
        let last = offset.saturating_add(len.saturating_sub(1)) >> PAGE_LOG2;
        if first >> 6 != last >> 6 {
            return self.has_many(first, last);
        }
        let mask = u64::MAX >> (63 - (last - first)) << (first & 63);
        (self.pages.get((first >> 6) as usize))
            .is_some_and(|w| w.load(Ordering::Relaxed) & mask == mask)
    }

    fn has_many(&self, first: u64, last: u64) -> bool {
        self.missing(first, last + 1).is_none()
    }

    /// The first page of a range that is not known to be there.
    fn missing(&self, first: u64, end: u64) -> Option<u64> {
        self.next(first, end, |word| !word)
    }

    /// Bytes of the pages of a range that are not known to be there.
    fn count_missing(&self, from: u64, end: u64) -> u64 {
        let (mut page, end) = (from >> PAGE_LOG2, end.div_ceil(PAGE));
        let mut missing = 0;
        while let Some(first) = self.missing(page, end) {
            page = self.next(first, end, |word| word).unwrap_or(end);
            missing += page - first;
        }
        missing << PAGE_LOG2
    }

    /// The first page of a range whose bit is set in what `of` makes of its word.
    fn next(&self, mut page: u64, end: u64, of: impl Fn(u64) -> u64) -> Option<u64> {
        while page < end {
            let word = self
                .pages
                .get((page >> 6) as usize)?
                .load(Ordering::Relaxed);
            let found = of(word) >> (page & 63);
            if found != 0 {
                page += u64::from(found.trailing_zeros());
                return (page < end).then_some(page);
            }
            page = ((page >> 6) + 1) << 6;
        }
        None
    }

    /// The first part of a range that is known to be there, as start and end.
    pub fn part(&self, offset: u64, len: u64) -> Option<(u64, u64)> {
        let end = offset.saturating_add(len);
        if self.all.load(Ordering::Relaxed) {
            return Some((offset, end));
        }
        let (page, stop) = (offset >> PAGE_LOG2, end.div_ceil(PAGE));
        let first = self.next(page, stop, |word| word)?;
        let last = self.missing(first, stop).unwrap_or(stop);
        Some((
            (first << PAGE_LOG2).max(offset),
            (last << PAGE_LOG2).min(end),
        ))
    }

    /// Whether the host has refused, so that only what is there can be used.
    #[inline]
    pub fn is_dry(&self) -> bool {
        self.dry.load(Ordering::Relaxed)
    }

    fn change(words: &[AtomicU64], mut from: u64, end: u64, set: bool) {
        while from < end {
            let n = (64 - (from & 63)).min(end - from);
            let mask = u64::MAX >> (64 - n) << (from & 63);
            if let Some(word) = words.get((from >> 6) as usize) {
                match set {
                    true => word.fetch_or(mask, Ordering::Relaxed),
                    false => word.fetch_and(!mask, Ordering::Relaxed),
                };
            }
            from += n;
        }
    }

    /// Whole pages inside the range are there.
    fn note(&self, from: u64, end: u64) {
        Self::change(&self.pages, from.div_ceil(PAGE), end >> PAGE_LOG2, true);
    }

    fn forget(&self, from: u64, end: u64) {
        // First: who finds it cleared asks for each chunk again.
        self.all.store(false, Ordering::Relaxed);
        Self::change(&self.pages, from >> PAGE_LOG2, end.div_ceil(PAGE), false);
    }

    fn was_asked(&self, chunk: u64) -> bool {
        let word = self.asked.get((chunk >> 6) as usize);
        word.is_none_or(|w| w.load(Ordering::Acquire) >> (chunk & 63) & 1 != 0)
    }
}

/// The room of a source that is mapped at an address.
#[derive(Debug)]
pub(super) struct HostRoom {
    known: Arc<KnownRoom>,
    /// Shared by those who learn what is there, exclusive to who takes it away.
    changing: RwLock<()>,
    /// Pages of memory are had by touching them: all that is to be done to them
    /// is then done at once.
    touch: AtomicBool,
    len: u64,
}

impl HostRoom {
    /// `None` where a source needs no room: a device, huge pages, which were
    /// reserved when they were mapped, or what is not written.
    pub(super) fn new(source: &Source) -> Option<HostRoom> {
        let memory = match source.kind() {
            _ if source.read_only() => return None,
            SourceKind::DevDax | SourceKind::BlockDevice | SourceKind::Hugetlbfs => return None,
            SourceKind::Tmpfs | SourceKind::Memfd => true,
            SourceKind::File | SourceKind::FsDax => false,
        };
        // Other file systems count more than the pages of the file.
        // A huge page behind the end may make up for a hole before it.
        let whole = source.len().is_multiple_of(CHUNK);
        let all = memory && whole && taken(source.fd()).is_ok_and(|bytes| bytes >= source.len());
        Some(HostRoom {
            known: Arc::new(KnownRoom::new(source.len(), all)?),
            changing: RwLock::new(()),
            touch: AtomicBool::new(memory),
            len: source.len(),
        })
    }

    pub(super) fn known(&self) -> Arc<KnownRoom> {
        self.known.clone()
    }

    /// Asks the host for what of a range is there, where that was not done.
    pub(super) fn learn(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) {
        for chunk in offset / CHUNK..offset.saturating_add(len).min(self.len).div_ceil(CHUNK) {
            if !self.known.was_asked(chunk) {
                self.ask(fd, chunk);
            }
        }
    }

    fn ask(&self, fd: BorrowedFd<'_>, chunk: u64) {
        let _still = self.changing.read();
        let (mut at, end) = (chunk * CHUNK, ((chunk + 1) * CHUNK).min(self.len));
        while at < end {
            let data = match rustix::fs::seek(fd, SeekFrom::Data(at)) {
                Ok(data) if data < end => data,
                Ok(_) | Err(Errno::NXIO) => break,
                Err(e) => {
                    // Then nothing can be known, and room is taken at each place.
                    tracing::debug!("the host does not say which pages it has: {e}");
                    break;
                }
            };
            let hole = rustix::fs::seek(fd, SeekFrom::Hole(data))
                .unwrap_or(data)
                .min(end);
            self.known.note(data, hole);
            at = hole.max(data + 1);
        }
        KnownRoom::change(&self.known.asked, chunk, chunk + 1, true);
    }

    /// Takes room for a range: `around` it whole chunks if the host has them, and
    /// less if not.
    ///
    /// # Errors
    /// Those of the host, where it has nothing for the first page of the range
    /// that was not there.
    pub(super) fn take(
        &self,
        source: &Source,
        base: *mut u8,
        offset: u64,
        len: u64,
        around: bool,
    ) -> io::Result<()> {
        let end = offset.saturating_add(len).min(self.len);
        self.learn(source.fd(), offset, end.saturating_sub(offset));
        let Some(first) = self.known.missing(offset >> PAGE_LOG2, end.div_ceil(PAGE)) else {
            return Ok(());
        };
        let first = first << PAGE_LOG2;
        // What cannot be had whole is not begun: it would be nobody's, and missing
        // to all who use the host. Less than this is found out soon enough.
        if around
            && end - first > CHUNK
            && let Some(free) = free_on(source.fd())
            && self.known.count_missing(first, end) > free
        {
            self.known.dry.store(true, Ordering::Relaxed);
            return Err(Errno::NOSPC.into());
        }
        if !around {
            let end = end.next_multiple_of(PAGE).min(self.len);
            return Ok(self.claim(source, base, first, end - first)?);
        }
        for chunk in first / CHUNK..end.div_ceil(CHUNK) {
            let (at, stop) = (chunk * CHUNK, ((chunk + 1) * CHUNK).min(self.len));
            // Of this chunk it is what was asked for that counts.
            let part = first.max(at)..end.min(stop);
            if self.known.has(part.start, part.end - part.start) {
                continue;
            }
            let refused = match self.claim(source, base, at, stop - at) {
                Ok(()) => {
                    self.known.dry.store(false, Ordering::Relaxed);
                    continue;
                }
                Err(e) => e,
            };
            if !is_full(refused) {
                return Err(refused.into());
            }
            self.known.dry.store(true, Ordering::Relaxed);
            // Some of it may have been had.
            self.ask(source.fd(), chunk);
            if at > first {
                return Ok(());
            }
            for step in SMALLER_CHUNKS {
                let at = first / step * step;
                if self.known.has(first, 1)
                    || self
                        .claim(source, base, at, step.min(self.len - at))
                        .is_ok()
                {
                    return Ok(());
                }
                self.ask(source.fd(), chunk);
            }
            return match self.known.has(first, 1) {
                true => Ok(()),
                false => Err(refused.into()),
            };
        }
        Ok(())
    }

    /// Takes all of it, or says why not.
    pub(super) fn take_all(&self, source: &Source, base: *mut u8) -> io::Result<()> {
        let mut at = 0;
        while at < self.len {
            let len = (64 * CHUNK).min(self.len - at);
            if !self.known.has(at, len) {
                self.claim(source, base, at, len)?;
            }
            at += len;
        }
        Ok(())
    }

    fn claim(&self, source: &Source, base: *mut u8, at: u64, len: u64) -> Result<(), Errno> {
        let _still = self.changing.read();
        self.have(source, base, at, len)?;
        self.known.note(at, at + len);
        Ok(())
    }

    fn have(&self, source: &Source, base: *mut u8, at: u64, len: u64) -> Result<(), Errno> {
        let touch = || {
            let start = base.wrapping_add(at as usize);
            match mapping::populate(start, len as usize, true) {
                // The same answer for a page that the file has not got any more,
                // and for one that there is no room for.
                Err(Errno::FAULT) if is_cut(source.fd(), at + len) => Err(Errno::IO),
                had => had,
            }
        };
        loop {
            let had = if self.touch.load(Ordering::Relaxed) {
                touch()
            } else {
                rustix::fs::fallocate(source.fd(), FallocateFlags::KEEP_SIZE, at, len)
            };
            match had {
                Err(Errno::INTR | Errno::AGAIN) => {}
                // A kernel without the advice; a file system that cannot do it.
                Err(Errno::INVAL) if self.touch.swap(false, Ordering::Relaxed) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => return touch(),
                had => return had,
            }
        }
    }

    /// Gives a range back, as `punch` does it.
    ///
    /// # Errors
    /// Those of `punch`.
    pub(super) fn discard(
        &self,
        from: u64,
        end: u64,
        punch: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let _alone = self.changing.write();
        self.known.forget(from, end);
        punch()?;
        self.known.dry.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// What the host has.
    pub(super) fn space(&self, source: &Source) -> Option<HostSpace> {
        Some(HostSpace {
            taken: taken(source.fd()).ok()?,
            free: free_on(source.fd()),
            len: self.len,
        })
    }
}

/// What the host can still give; `None` where it names no limit, as a tmpfs without
/// a size.
fn free_on(fd: BorrowedFd<'_>) -> Option<u64> {
    let host = rustix::fs::fstatvfs(fd).ok()?;
    (host.f_blocks != 0).then(|| host.f_bavail.saturating_mul(host.f_frsize))
}

fn taken(fd: BorrowedFd<'_>) -> rustix::io::Result<u64> {
    Ok(u64::try_from(rustix::fs::fstat(fd)?.st_blocks)
        .unwrap_or(0)
        .saturating_mul(512))
}

/// Whether a file is shorter than it was.
fn is_cut(fd: BorrowedFd<'_>, end: u64) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|stat| u64::try_from(stat.st_size).unwrap_or(0) < end)
}

/// Whether the host has said that it has no room.
fn is_full(e: Errno) -> bool {
    matches!(
        e,
        Errno::NOSPC | Errno::DQUOT | Errno::NOMEM | Errno::FAULT | Errno::FBIG
    )
}

/// As [`is_full`], of an error that was passed on.
pub(super) fn says_full(e: &io::Error) -> bool {
    e.raw_os_error()
        .is_some_and(|e| is_full(Errno::from_raw_os_error(e)))
}

/// Room of a region. One whose medium needs none has all of it.
impl Region {
    /// Whether all of a range has room on the host, so that it can be stored to.
    /// Never waits for the host to find some; but it may be asked, once for each
    /// 2 MiB, what it has, which waits for who is giving pages back to it.
    #[inline]
    pub fn has_room(&self, offset: u64, len: u64) -> bool {
        match &self.room {
            None => true,
            Some(known) => known.has(offset, len) || self.learn_room(known, offset, len),
        }
    }

    #[cold]
    fn learn_room(&self, known: &KnownRoom, offset: u64, len: u64) -> bool {
        self.backend.learn_room(offset, len);
        known.has(offset, len)
    }

    /// As [`has_room`](Self::has_room), as far as is known without asking.
    pub fn is_known_to_have_room(&self, offset: u64, len: u64) -> bool {
        self.room.as_ref().is_none_or(|room| room.has(offset, len))
    }

    /// As [`has_room`](Self::has_room), as an error.
    ///
    /// # Errors
    /// [`PmemError::NoRoom`]: [`take_room`](Self::take_room), and come again.
    #[inline]
    pub fn need_room(&self, offset: u64, len: u64) -> Result<(), PmemError> {
        match self.has_room(offset, len) {
            true => Ok(()),
            false => Err(PmemError::NoRoom { offset, len }),
        }
    }

    /// The first part of a range that has room, as start and end.
    pub fn roomy_part(&self, offset: u64, len: u64) -> Option<(u64, u64)> {
        match &self.room {
            None => Some((offset, offset.saturating_add(len))),
            Some(known) => {
                self.backend.learn_room(offset, len);
                known.part(offset, len)
            }
        }
    }

    /// Whether the host has refused room, and nobody has found any since.
    #[inline]
    pub fn host_is_full(&self) -> bool {
        self.room.as_ref().is_some_and(|known| known.is_dry())
    }

    /// Whether pages of the region may be missing on the host.
    pub fn needs_room(&self) -> bool {
        self.room.is_some()
    }

    /// Takes room of the host for all of a range. May wait for the host: no lock is
    /// held that an operation waits for.
    ///
    /// ```
    /// use pramfs_medium::pmem::RegionOptions;
    /// let region = RegionOptions::new().memfd("example", 8 << 20)?;
    /// region.take_room(0, 4096)?;
    /// assert!(region.host_space().is_some_and(|s| s.taken >= 4096));
    /// # Ok::<(), pramfs_medium::pmem::PmemError>(())
    /// ```
    ///
    /// # Errors
    /// [`PmemError::NoRoom`] where the host is full, or a quota on it;
    /// [`PmemError::OutOfBounds`], [`PmemError::Os`].
    pub fn take_room(&self, offset: u64, len: u64) -> Result<(), PmemError> {
        self.check_owner()?;
        self.bounded(offset, len)?;
        while !self.has_room(offset, len) {
            let taken = self.backend.take_room(offset, len, false);
            taken.map_err(|e| self.no_room(e, offset, len))?;
        }
        Ok(())
    }

    /// As [`take_room`](Self::take_room), by 2 MiB around the range where the host
    /// has so much; where it is full it may give the first page alone.
    ///
    /// # Errors
    /// As for [`take_room`](Self::take_room).
    pub fn take_some_room(&self, offset: u64, len: u64) -> Result<(), PmemError> {
        let taken = self.backend.take_room(offset, len, true);
        taken.map_err(|e| self.no_room(e, offset, len))
    }

    /// Takes room of the host for all of the region.
    ///
    /// # Errors
    /// As for [`take_room`](Self::take_room).
    pub fn take_all_room(&self) -> Result<(), PmemError> {
        self.check_owner()?;
        let taken = self.backend.take_all_room();
        taken.map_err(|e| self.no_room(e, 0, self.len()))
    }

    fn no_room(&self, e: io::Error, offset: u64, len: u64) -> PmemError {
        if says_full(&e) {
            return PmemError::NoRoom { offset, len };
        }
        PmemError::Os {
            what: "cannot take room of the host for",
            path: self.info().name,
            source: e,
        }
    }

    /// What the host of the region has; `None` where the region needs nothing
    /// of it.
    pub fn host_space(&self) -> Option<HostSpace> {
        self.backend.host_space()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmem::tests::{disk, shm};
    use crate::pmem::{BackendKind, RegionOptions};

    fn region(len: u64) -> Region {
        let options = RegionOptions::new().backend(BackendKind::Native);
        options.memfd("room", len).unwrap()
    }

    fn taken(region: &Region) -> u64 {
        region.host_space().unwrap().taken
    }

    #[test]
    fn room_is_taken_by_the_page_or_by_the_chunk_and_known_from_then_on() {
        let region = region(4 * CHUNK);
        assert!(!region.has_room(0, 1) && taken(&region) == 0);
        region.take_room(CHUNK + 5, 2 * PAGE).unwrap();
        assert_eq!(taken(&region), 3 * PAGE);
        assert!(region.has_room(CHUNK, 3 * PAGE) && !region.has_room(CHUNK, 3 * PAGE + 1));
        assert!(region.need_room(CHUNK - 1, 2).is_err());
        region.take_some_room(CHUNK - 1, 2).unwrap();
        assert_eq!(taken(&region), CHUNK + 3 * PAGE);
        assert!(region.has_room(0, CHUNK + PAGE));
        assert_eq!(region.roomy_part(0, 4 * CHUNK), Some((0, CHUNK + 3 * PAGE)));
        assert_eq!(region.roomy_part(2 * CHUNK, CHUNK), None);
        region.take_all_room().unwrap();
        assert!(region.has_room(0, 4 * CHUNK) && taken(&region) == 4 * CHUNK);
    }

    #[test]
    fn what_is_missing_of_a_range_is_counted() {
        let known = KnownRoom::new(1 << 30, false).unwrap();
        let missing = |from: u64, end: u64| known.count_missing(from * PAGE, end * PAGE);
        assert_eq!(missing(0, 1000), 1000 * PAGE);
        known.note(10 * PAGE, 200 * PAGE);
        known.note(500 * PAGE, 501 * PAGE);
        assert_eq!(missing(0, 1000), (1000 - 191) * PAGE);
        assert_eq!(missing(20, 100), 0);
        assert_eq!(missing(150, 210), 10 * PAGE);
        assert_eq!(missing(500, 501), 0);
        assert_eq!(missing(499, 502), 2 * PAGE);
        assert_eq!(known.count_missing(PAGE + 1, 2 * PAGE + 1), 2 * PAGE);
    }

    #[test]
    fn what_is_given_back_is_not_known_to_be_there() {
        let region = region(4 * CHUNK);
        region.take_all_room().unwrap();
        region.window().discard(CHUNK, CHUNK).unwrap();
        assert!(region.has_room(0, CHUNK) && region.has_room(2 * CHUNK, 2 * CHUNK));
        assert!(!region.has_room(CHUNK, PAGE) && !region.has_room(2 * CHUNK - 1, 1));
        assert_eq!(taken(&region), 3 * CHUNK);
        region.take_room(CHUNK, CHUNK).unwrap();
        assert!(region.has_room(0, 4 * CHUNK));
    }

    /// What others have allocated is found, on memory and on a disk, also where a
    /// region is known to be whole when it is opened.
    #[test]
    fn what_is_there_is_found_where_it_is_first_needed() {
        for dir in [shm(), disk()] {
            let path = dir.path().join(format!("room-{}", std::process::id()));
            let file = std::fs::File::create(&path).unwrap();
            file.set_len(2 * CHUNK).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &[1; 8192], PAGE).unwrap();
            let region = RegionOptions::new().open(&path).unwrap();
            assert!(region.has_room(PAGE, 2 * PAGE) && !region.has_room(0, 1));
            drop(region);
            let all = vec![1; 2 * CHUNK as usize];
            std::os::unix::fs::FileExt::write_all_at(&file, &all, 0).unwrap();
            let region = RegionOptions::new().open(&path).unwrap();
            assert!(region.has_room(0, 2 * CHUNK));
            region.window().discard(0, PAGE).unwrap();
            assert!(!region.has_room(0, 1) && region.has_room(CHUNK, CHUNK));
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn a_file_that_was_cut_is_no_host_that_is_full() {
        let dir = shm();
        let path = dir.path().join(format!("cut-{}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(4 * CHUNK).unwrap();
        let region = RegionOptions::new().open(&path).unwrap();
        file.set_len(CHUNK).unwrap();
        for taken in [
            region.take_room(2 * CHUNK, 1),
            region.take_some_room(2 * CHUNK, 1),
            region.take_all_room(),
        ] {
            assert_eq!(taken.unwrap_err().errno(), libc::EIO);
        }
        region.take_room(0, CHUNK).unwrap();
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn each_answer_of_a_host_that_is_full_is_one_error() {
        let region = region(CHUNK);
        for e in [libc::ENOSPC, libc::EDQUOT, libc::ENOMEM, libc::EFAULT] {
            let e = region.no_room(io::Error::from_raw_os_error(e), 0, 1);
            assert_eq!(e.errno(), libc::ENOSPC);
        }
        let e = region.no_room(io::Error::from_raw_os_error(libc::EIO), 0, 1);
        assert_eq!(e.errno(), libc::EIO);
    }
}
