//! Room on the host: which pages of a sparse source have memory or storage behind them, and
//! how more is allocated.
//!
//! If the host has no room for a page of a sparse file, a store to the page raises SIGBUS,
//! too late for an error. Room is therefore allocated before a block is. A bitmap records
//! the known state ([`KnownRoom`]): one bit for each page, in memory that is allocated when
//! touched.
//!
//! Invariants:
//! * A set bit means that the page exists and stays. Only [`HostRoom::discard`] removes
//!   pages, and it excludes queries of the host meanwhile.
//! * Unknown state is queried once for each chunk, when it is first needed. A mount queries
//!   nothing.
//!
//! Not handled here: when room is taken, and that no lock is held then (`fs::room`); which
//! blocks are allocated (`alloc`).

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;

use super::error::PmemError;
pub use super::known_room::{CHUNK, KnownRoom};
use super::known_room::{PAGE, PAGE_LOG2};
use super::mapping;
use super::protect::{Opened, Protection};
use super::region::Region;
use super::source::{Source, SourceKind};
use crate::grows::Grows;
use crate::sync::{RwLock, rank};

/// Sizes to try if the host has no room for a whole chunk.
const SMALLER_CHUNKS: [u64; 3] = [256 << 10, 32 << 10, PAGE];

/// The space of the host, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostSpace {
    /// Allocated to the region already.
    pub taken: u64,
    /// Bytes that the host can still provide; `None` if it names no limit.
    pub free: Option<u64>,
    /// Size of the region.
    pub len: u64,
}

impl HostSpace {
    /// Returns the bytes that the region lacks and the host cannot provide.
    pub fn missing(&self) -> u64 {
        let wanted = self.len.saturating_sub(self.taken);
        self.free.map_or(0, |free| wanted.saturating_sub(free))
    }
}

/// Where a mapping is populated for stores.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stores<'a> {
    pub base: *mut u8,
    /// Opens that mapping.
    pub protection: Option<&'a Protection>,
}

impl<'a> Stores<'a> {
    /// Opens the mapping to this thread.
    fn open(self) -> Result<Option<Opened<'a>>, Errno> {
        match self.protection.map(Protection::open) {
            Some(opened) if opened.is_refused() => Err(Errno::IO),
            opened => Ok(opened),
        }
    }
}

/// The room of a source that is mapped at an address.
#[derive(Debug)]
pub(super) struct HostRoom {
    known: Arc<KnownRoom>,
    /// Locked shared by queries, exclusively by a discard.
    changing: RwLock<(), rank::HostRoom>,
    /// Touching memory pages allocates them, and sets up their mapping in the same step.
    touch: AtomicBool,
    len: Grows,
    /// Length up to which pages can be noted.
    most: u64,
}

impl HostRoom {
    /// Returns `None` if the source needs no room: a device, huge pages (reserved when
    /// mapped), or a source opened read-only.
    /// `reserved` is the length up to which the mapping can grow.
    pub(super) fn new(source: &Source, reserved: usize) -> Option<HostRoom> {
        let memory = match source.kind() {
            _ if source.read_only() => return None,
            SourceKind::DevDax
            | SourceKind::BlockDevice
            | SourceKind::Hugetlbfs
            | SourceKind::Physical => return None,
            SourceKind::Tmpfs | SourceKind::Memfd => true,
            SourceKind::File | SourceKind::FsDax => false,
        };
        // Other file systems count more than the pages of the file. A huge page past the
        // end may make up for a hole before it.
        let whole = source.len().is_multiple_of(CHUNK);
        let all = memory && whole && taken(source.fd()).is_ok_and(|bytes| bytes >= source.len());
        // The tables take memory when touched. If the system refuses so much, the region
        // cannot grow in place.
        let most = reserved as u64;
        let (known, most) = match KnownRoom::new(most, all) {
            Some(known) => (known, most),
            None => (KnownRoom::new(source.len(), all)?, source.len()),
        };
        Some(HostRoom {
            known: Arc::new(known),
            changing: RwLock::new(()),
            touch: AtomicBool::new(memory),
            len: Grows::new(source.len()),
            most,
        })
    }

    /// Returns the length up to which the room can be known.
    pub(super) fn most(&self) -> u64 {
        self.most
    }

    /// Notes that the region has become longer. Nothing is known about the new part.
    pub(super) fn grow(&self, len: u64) {
        let _alone = self.changing.write();
        // Only that not all is known: the new part has no bits yet.
        self.known.forget(len, len);
        self.known.set_dry(false);
        self.len.raise(len);
    }

    pub(super) fn known(&self) -> Arc<KnownRoom> {
        self.known.clone()
    }

    /// Queries the host for the existing pages of a range, unless done before.
    pub(super) fn query(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) {
        for chunk in offset / CHUNK
            ..offset
                .saturating_add(len)
                .min(self.len.get())
                .div_ceil(CHUNK)
        {
            if !self.known.was_asked(chunk) {
                self.ask(fd, chunk);
            }
        }
    }

    fn ask(&self, fd: BorrowedFd<'_>, chunk: u64) {
        let _still = self.changing.read();
        let (mut at, end) = (chunk * CHUNK, ((chunk + 1) * CHUNK).min(self.len.get()));
        while at < end {
            let data = match rustix::fs::seek(fd, SeekFrom::Data(at)) {
                Ok(data) if data < end => data,
                Ok(_) | Err(Errno::NXIO) => break,
                Err(e) => {
                    // Nothing can be known then, and room is taken at each place.
                    tracing::debug!("the host does not report which pages exist: {e}");
                    break;
                }
            };
            let hole = rustix::fs::seek(fd, SeekFrom::Hole(data))
                .unwrap_or(data)
                .min(end);
            self.known.note(data, hole);
            at = hole.max(data + 1);
        }
        self.known.note_asked(chunk);
    }

    /// Takes room for a range. With `around`, takes whole chunks if the host has them, and
    /// less if not.
    ///
    /// # Errors
    /// Errors of the host, if it has no room for the first missing page of the range.
    pub(super) fn take(
        &self,
        source: &Source,
        stores: Stores<'_>,
        offset: u64,
        len: u64,
        around: bool,
    ) -> io::Result<()> {
        let end = offset.saturating_add(len).min(self.len.get());
        self.query(source.fd(), offset, end.saturating_sub(offset));
        let Some(first) = self.known.missing(offset >> PAGE_LOG2, end.div_ceil(PAGE)) else {
            return Ok(());
        };
        let first = first << PAGE_LOG2;
        // Once for all chunks.
        let _opened = stores.open()?;
        // If the host lacks space for the whole range, do not begin: a partial allocation
        // would help no operation, and all users of the host would lack the space. For
        // ranges of up to a chunk, a lack of space shows soon enough.
        if around
            && end - first > CHUNK
            && let Some(free) = free_on(source.fd())
            && self.known.count_missing(first, end) > free
        {
            self.known.set_dry(true);
            return Err(Errno::NOSPC.into());
        }
        if !around {
            let end = end.next_multiple_of(PAGE).min(self.len.get());
            return Ok(self.claim(source, stores, first, end - first)?);
        }
        for chunk in first / CHUNK..end.div_ceil(CHUNK) {
            let (at, stop) = (chunk * CHUNK, ((chunk + 1) * CHUNK).min(self.len.get()));
            // Only the requested part of this chunk counts.
            let part = first.max(at)..end.min(stop);
            if self.known.has(part.start, part.end - part.start) {
                continue;
            }
            let refused = match self.claim(source, stores, at, stop - at) {
                Ok(()) => {
                    self.known.set_dry(false);
                    continue;
                }
                Err(e) => e,
            };
            if !is_full(refused) {
                return Err(refused.into());
            }
            self.known.set_dry(true);
            // Some pages may have been allocated.
            self.ask(source.fd(), chunk);
            if at > first {
                return Ok(());
            }
            for step in SMALLER_CHUNKS {
                let at = first / step * step;
                if self.known.has(first, 1)
                    || self
                        .claim(source, stores, at, step.min(self.len.get() - at))
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

    /// Takes room for the whole region, or returns the error.
    pub(super) fn take_all(&self, source: &Source, stores: Stores<'_>) -> io::Result<()> {
        let mut at = 0;
        while at < self.len.get() {
            let len = (64 * CHUNK).min(self.len.get() - at);
            if !self.known.has(at, len) {
                let _opened = stores.open()?;
                self.claim(source, stores, at, len)?;
            }
            at += len;
        }
        Ok(())
    }

    fn claim(&self, source: &Source, stores: Stores<'_>, at: u64, len: u64) -> Result<(), Errno> {
        let _still = self.changing.read();
        self.have(source, stores, at, len)?;
        self.known.note(at, at + len);
        Ok(())
    }

    fn have(&self, source: &Source, stores: Stores<'_>, at: u64, len: u64) -> Result<(), Errno> {
        let touch = || {
            let start = stores.base.wrapping_add(at as usize);
            match mapping::populate(start, len as usize, true) {
                // The error is the same for a page past the truncated end of the file and for a
                // page without room.
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
                // The kernel lacks the advice, or the file system does not support it.
                Err(Errno::INVAL) if self.touch.swap(false, Ordering::Relaxed) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => return touch(),
                had => return had,
            }
        }
    }

    /// Returns a range to the host by calling `punch`.
    ///
    /// # Errors
    /// Errors of `punch`.
    pub(super) fn discard(
        &self,
        from: u64,
        end: u64,
        punch: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let _alone = self.changing.write();
        self.known.forget(from, end);
        punch()?;
        self.known.set_dry(false);
        Ok(())
    }

    /// Returns the space of the host.
    pub(super) fn space(&self, source: &Source) -> Option<HostSpace> {
        Some(HostSpace {
            taken: taken(source.fd()).ok()?,
            free: free_on(source.fd()),
            len: self.len.get(),
        })
    }
}

/// Returns the bytes that the host can still provide; `None` if it names no limit, as a
/// tmpfs without a size.
fn free_on(fd: BorrowedFd<'_>) -> Option<u64> {
    let host = rustix::fs::fstatvfs(fd).ok()?;
    (host.f_blocks != 0).then(|| host.f_bavail.saturating_mul(host.f_frsize))
}

fn taken(fd: BorrowedFd<'_>) -> rustix::io::Result<u64> {
    Ok(u64::try_from(rustix::fs::fstat(fd)?.st_blocks)
        .unwrap_or(0)
        .saturating_mul(512))
}

/// Whether a file has become shorter.
fn is_cut(fd: BorrowedFd<'_>, end: u64) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|stat| u64::try_from(stat.st_size).unwrap_or(0) < end)
}

/// Whether the error says that the host has no room.
fn is_full(e: Errno) -> bool {
    matches!(
        e,
        Errno::NOSPC | Errno::DQUOT | Errno::NOMEM | Errno::FAULT | Errno::FBIG
    )
}

/// As [`is_full`], for an error that was passed on.
pub(super) fn says_full(e: &io::Error) -> bool {
    e.raw_os_error()
        .is_some_and(|e| is_full(Errno::from_raw_os_error(e)))
}

/// Room of a region. A region whose medium needs none has room everywhere.
impl Region {
    /// Whether all of a range has room on the host, so that it can be stored to. Never
    /// waits for the host to allocate. It may query the host once for each 2 MiB, and then
    /// waits for a running discard.
    #[inline]
    pub(crate) fn has_room(&self, offset: u64, len: u64) -> bool {
        match &self.room {
            None => true,
            Some(known) => known.has(offset, len) || self.query_room(known, offset, len),
        }
    }

    #[cold]
    fn query_room(&self, known: &KnownRoom, offset: u64, len: u64) -> bool {
        self.backend.query_room(offset, len);
        known.has(offset, len)
    }

    /// As [`has_room`](Self::has_room), but without querying the host.
    pub(crate) fn is_known_to_have_room(&self, offset: u64, len: u64) -> bool {
        self.room.as_ref().is_none_or(|room| room.has(offset, len))
    }

    /// As [`has_room`](Self::has_room), but returns an error.
    ///
    /// # Errors
    /// [`PmemError::NoRoom`]: call [`take_room`](Self::take_room), then retry.
    #[inline]
    pub(crate) fn need_room(&self, offset: u64, len: u64) -> Result<(), PmemError> {
        match self.has_room(offset, len) {
            true => Ok(()),
            false => Err(PmemError::NoRoom { offset, len }),
        }
    }

    /// Returns the first part of a range that has room, as start and end.
    pub(crate) fn roomy_part(&self, offset: u64, len: u64) -> Option<(u64, u64)> {
        match &self.room {
            None => Some((offset, offset.saturating_add(len))),
            Some(known) => {
                self.backend.query_room(offset, len);
                known.part(offset, len)
            }
        }
    }

    /// Whether the host has refused room, and no room has been found since.
    #[inline]
    pub(crate) fn host_is_full(&self) -> bool {
        self.room.as_ref().is_some_and(|known| known.is_dry())
    }

    /// Whether pages of the region may be missing on the host.
    pub(crate) fn needs_room(&self) -> bool {
        self.room.is_some()
    }

    /// Takes room on the host for all of a range. May wait for the host, so the caller
    /// holds no lock that an operation waits for.
    ///
    /// ```
    /// use pramfs_medium::pmem::{RegionAccess, RegionOptions};
    /// let region = RegionOptions::new().memfd("example", 8 << 20)?;
    /// region.take_room(0, 4096)?;
    /// assert!(region.host_space().is_some_and(|s| s.taken >= 4096));
    /// # Ok::<(), pramfs_medium::pmem::PmemError>(())
    /// ```
    ///
    /// # Errors
    /// [`PmemError::NoRoom`] if the host or a quota on it is full;
    /// [`PmemError::OutOfBounds`], [`PmemError::Os`].
    pub(crate) fn take_room(&self, offset: u64, len: u64) -> Result<(), PmemError> {
        self.check_owner()?;
        self.bounded(offset, len)?;
        while !self.has_room(offset, len) {
            let taken = self.backend.take_room(offset, len, false);
            taken.map_err(|e| self.no_room(e, offset, len))?;
        }
        Ok(())
    }

    /// As [`take_room`](Self::take_room), but takes 2 MiB around the range if the host has
    /// as much. A host that is full may provide the first page only.
    ///
    /// # Errors
    /// As for [`take_room`](Self::take_room).
    pub(crate) fn take_some_room(&self, offset: u64, len: u64) -> Result<(), PmemError> {
        let taken = self.backend.take_room(offset, len, true);
        taken.map_err(|e| self.no_room(e, offset, len))
    }

    /// Takes room on the host for the whole region.
    ///
    /// # Errors
    /// As for [`take_room`](Self::take_room).
    pub(crate) fn take_all_room(&self) -> Result<(), PmemError> {
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

    /// Returns the space of the region's host; `None` if the region needs none.
    pub(crate) fn host_space(&self) -> Option<HostSpace> {
        self.backend.host_space()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmem::tests::{disk, shm, when_free};
    use crate::pmem::{BackendKind, RegionOptions};

    fn region(len: u64) -> Region {
        let options = RegionOptions::new().backend(BackendKind::Native);
        options.memfd("room", len).unwrap()
    }

    fn taken(region: &Region) -> u64 {
        region.host_space().unwrap().taken
    }

    #[test]
    fn taken_room_is_known_by_page_or_chunk() {
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
    fn missing_pages_of_range_are_counted() {
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
    fn discarded_pages_have_no_known_room() {
        let region = region(4 * CHUNK);
        region.take_all_room().unwrap();
        region.window().discard(CHUNK, CHUNK).unwrap();
        assert!(region.has_room(0, CHUNK) && region.has_room(2 * CHUNK, 2 * CHUNK));
        assert!(!region.has_room(CHUNK, PAGE) && !region.has_room(2 * CHUNK - 1, 1));
        assert_eq!(taken(&region), 3 * CHUNK);
        region.take_room(CHUNK, CHUNK).unwrap();
        assert!(region.has_room(0, 4 * CHUNK));
    }

    /// Pages that others have allocated are found, on memory and on a disk, also if a
    /// region is known to be complete when it is opened.
    #[test]
    fn existing_pages_are_found_at_first_need() {
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
            let region = when_free(|| RegionOptions::new().open(&path));
            assert!(region.has_room(0, 2 * CHUNK));
            region.window().discard(0, PAGE).unwrap();
            assert!(!region.has_room(0, 1) && region.has_room(CHUNK, CHUNK));
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn truncated_file_is_not_reported_as_full_host() {
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
    fn every_errno_of_full_host_maps_to_no_room() {
        let region = region(CHUNK);
        for e in [libc::ENOSPC, libc::EDQUOT, libc::ENOMEM, libc::EFAULT] {
            let e = region.no_room(io::Error::from_raw_os_error(e), 0, 1);
            assert_eq!(e.errno(), libc::ENOSPC);
        }
        let e = region.no_room(io::Error::from_raw_os_error(libc::EIO), 0, 1);
        assert_eq!(e.errno(), libc::EIO);
    }
}
