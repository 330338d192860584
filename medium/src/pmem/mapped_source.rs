//! Behaviour common to all mapped sources, whichever backend serves them: fences,
//! write-back, discarding memory, faults.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use super::backend::{Durability, Granularity};
use super::cow::Cow;
use super::error::PmemError;
use super::fault::Guard;
use super::hugepage::{self, HugePolicy};
use super::mapping::{HUGE_2M, Mapping, Share};
use super::pages::PageSync;
use super::room::{HostRoom, HostSpace};
use super::source::{Source, SourceKind};

/// How stores to a mapping become as durable as promised.
#[derive(Debug)]
pub(super) enum Mode {
    /// Line write-back and a fence.
    Lines,
    /// A fence: persistent caches, a private mapping, or `durability=process`.
    Order,
    /// An msync at each fence.
    Pages(PageSync),
    /// Nothing reaches the medium; the first store into a unit copies the unit.
    Cow(Cow),
}

/// A source and the behaviour of its mapping. Lives no longer than the mapping.
#[derive(Debug)]
pub(super) struct MappedSource {
    pub source: Source,
    pub mode: Mode,
    pub granularity: Granularity,
    pub durability: Durability,
    pub map_sync: bool,
    guard: Guard,
    base: *mut u8,
    len: usize,
    discard_unit: Option<usize>,
    /// Present if pages of the source may be missing.
    pub room: Option<HostRoom>,
    /// Nothing is read ahead unless [`MappedSource::advise_willneed`] requests it.
    by_page: AtomicBool,
}

// SAFETY: `base` is an address and is passed only to madvise, on ranges that the callers of
// `discard` are responsible for.
unsafe impl Send for MappedSource {}
// SAFETY: as above; all other fields are Sync.
unsafe impl Sync for MappedSource {}

impl MappedSource {
    /// Describes the mapping of `source` at `base`.
    pub(super) fn new(
        source: Source,
        base: *mut u8,
        granularity: Granularity,
        durability: Durability,
        map_sync: bool,
    ) -> MappedSource {
        let (len, unit) = (source.len() as usize, source.alignment() as usize);
        let mode = match granularity {
            _ if source.read_only() && source.kind() == SourceKind::DevDax => {
                Mode::Cow(Cow::new(base, len, unit))
            }
            _ if source.read_only() => Mode::Order,
            Granularity::Byte => Mode::Order,
            Granularity::CacheLine => Mode::Lines,
            Granularity::Page if durability == Durability::Process => Mode::Order,
            Granularity::Page => Mode::Pages(PageSync::default()),
        };
        let durability = if granularity == Granularity::Page {
            durability
        } else {
            Durability::Power
        };
        // Asking costs several system calls.
        let huge = !source.read_only() && huge_pages(&source);
        if huge {
            // SAFETY: advice about the whole mapping that changes no contents. Best effort:
            // `probe` reports whether huge pages are available.
            let _ =
                unsafe { rustix::mm::madvise(base.cast(), len, rustix::mm::Advice::LinuxHugepage) };
        }
        let discard_unit = match source.kind() {
            _ if source.read_only() => None,
            // A hole in a huge page would split it.
            SourceKind::Tmpfs | SourceKind::Memfd if huge => Some(HUGE_2M),
            SourceKind::Tmpfs | SourceKind::Memfd | SourceKind::File | SourceKind::FsDax => {
                Some(rustix::param::page_size())
            }
            // The kernel refuses if a device would have to be zeroed. It keeps read-ahead in
            // pieces of up to 2 MiB, and Linux 6.18 loses stores through a mapping to such a
            // piece if part of it is discarded.
            SourceKind::BlockDevice => Some(HUGE_2M),
            // Not discarded by page.
            SourceKind::Hugetlbfs | SourceKind::DevDax => None,
        };
        MappedSource {
            guard: Guard::new(base, len, unit),
            room: HostRoom::new(&source),
            source,
            mode,
            granularity,
            durability,
            map_sync,
            base,
            len,
            discard_unit,
            by_page: AtomicBool::new(false),
        }
    }

    /// Writes back a page-granular medium. The caller has fenced.
    pub(super) fn sync_all(&self) -> std::io::Result<()> {
        if self.granularity != Granularity::Page || self.source.read_only() {
            return Ok(());
        }
        // Also covers stores through mappings.
        rustix::fs::fdatasync(self.source.fd()).map_err(Into::into)
    }

    /// See [`PmemBackend::advise_random`].
    ///
    /// [`PmemBackend::advise_random`]: super::backend::PmemBackend::advise_random
    pub(super) fn advise_random(&self) {
        // The kernel keeps what it reads ahead into a mapping in large pieces, up to
        // megabytes. It writes back a whole piece for one changed word.
        let advice = rustix::mm::Advice::Random;
        let pages = matches!(self.mode, Mode::Pages(_))
            // SAFETY: advice about the whole mapping that changes no contents.
            && unsafe { rustix::mm::madvise(self.base.cast(), self.len, advice) }.is_ok();
        self.by_page.store(pages, Ordering::Relaxed);
    }

    /// Requests read-ahead of a long range from the medium, in large pieces.
    pub(super) fn advise_willneed(&self, ptr: *const u8, len: usize) {
        if !self.by_page.load(Ordering::Relaxed) {
            return;
        }
        let page = rustix::param::page_size();
        let start = ptr as usize & !(page - 1);
        let len = ptr as usize + len - start;
        // SAFETY: advice about a range of the mapping, which changes nothing. Without it
        // each page is read when first touched.
        let _ = unsafe { rustix::mm::madvise(start as *mut _, len, rustix::mm::Advice::WillNeed) };
    }

    /// Whether the source supports discarding.
    pub(super) fn can_discard(&self) -> bool {
        self.discard_unit.is_some()
    }

    /// Punches the whole units inside a range out of the source.
    ///
    /// # Errors
    /// Errors of the host.
    ///
    /// # Safety
    /// The range lies in the mapping, and its bytes are no longer needed.
    pub(super) unsafe fn discard(&self, ptr: *mut u8, len: usize) -> std::io::Result<()> {
        let Some(unit) = self.discard_unit else {
            return Err(std::io::ErrorKind::Unsupported.into());
        };
        let from = (ptr as usize - self.base as usize).next_multiple_of(unit);
        let to = (ptr as usize - self.base as usize + len) / unit * unit;
        if from >= to {
            return Ok(());
        }
        debug_assert!(to <= self.len);
        let advice = rustix::mm::Advice::LinuxRemove;
        let punch = || {
            // SAFETY: whole pages inside the range, which the caller gives up.
            unsafe { rustix::mm::madvise(self.base.add(from).cast(), to - from, advice) }
                .map_err(Into::into)
        };
        match &self.room {
            Some(room) => room.discard(from as u64, to as u64, punch),
            None => punch(),
        }
    }

    /// See [`PmemBackend::query_room`].
    ///
    /// [`PmemBackend::query_room`]: super::backend::PmemBackend::query_room
    pub(super) fn query_room(&self, offset: u64, len: u64) {
        if let Some(room) = &self.room {
            room.query(self.source.fd(), offset, len);
        }
    }

    /// See [`PmemBackend::take_room`].
    ///
    /// # Errors
    /// Errors of the host.
    ///
    /// [`PmemBackend::take_room`]: super::backend::PmemBackend::take_room
    pub(super) fn take_room(&self, offset: u64, len: u64, around: bool) -> std::io::Result<()> {
        match &self.room {
            Some(room) => room.take(&self.source, self.base, offset, len, around),
            None => Ok(()),
        }
    }

    /// See [`PmemBackend::take_all_room`].
    ///
    /// # Errors
    /// Errors of the host.
    ///
    /// [`PmemBackend::take_all_room`]: super::backend::PmemBackend::take_all_room
    pub(super) fn take_all_room(&self) -> std::io::Result<()> {
        match &self.room {
            Some(room) => room.take_all(&self.source, self.base),
            None => Ok(()),
        }
    }

    /// Returns the space of the host.
    pub(super) fn host_space(&self) -> Option<HostSpace> {
        self.room.as_ref()?.space(&self.source)
    }

    #[inline]
    pub(super) fn faults(&self) -> u64 {
        let more = match &self.mode {
            Mode::Lines | Mode::Order => 0,
            Mode::Pages(pages) => pages.failures(),
            Mode::Cow(cow) => cow.failures(),
        };
        self.guard.faults() + more
    }

    #[inline]
    pub(super) fn failed_fences(&self) -> u64 {
        match &self.mode {
            Mode::Pages(pages) => pages.failures(),
            Mode::Lines | Mode::Order | Mode::Cow(_) => 0,
        }
    }

    #[inline]
    pub(super) fn is_faulted(&self, ptr: *const u8, len: usize) -> bool {
        self.guard.is_faulted(ptr, len)
    }
}

fn huge_pages(source: &Source) -> bool {
    source.len() >= HUGE_2M as u64
        && hugepage::policy(source.fd(), source.kind()).is_some_and(|p| p != HugePolicy::Never)
}

/// Maps a source natively, in the best way it offers. Returns the mapping, the mode of
/// its stores, and whether it was made with `MAP_SYNC`. `lines` tells whether the
/// processor's line write-back may be relied on.
pub(super) fn map_source(
    source: &mut Source,
    lines: bool,
) -> Result<(Mapping, Granularity, bool), PmemError> {
    let len = source.len() as usize;
    let fd = source.fd();
    let line_or_byte = if caches_are_persistent() {
        Granularity::Byte
    } else {
        Granularity::CacheLine
    };
    let (share, granularity) = match (source.kind(), source.read_only()) {
        (SourceKind::DevDax, _) if !lines => {
            return Err(source.unusable(
                libc::EOPNOTSUPP,
                "devdax needs a line write-back that this library does not have on this processor; use fsdax".into(),
            ));
        }
        (SourceKind::DevDax, true) => (Share::SharedReadOnly, line_or_byte),
        (SourceKind::DevDax, false) => (Share::Shared, line_or_byte),
        (SourceKind::FsDax, true) => (Share::Private, line_or_byte),
        (kind, true) if kind.is_memory() => (Share::Private, Granularity::CacheLine),
        (kind, false) if kind.is_memory() => (Share::Shared, Granularity::CacheLine),
        (_, true) => (Share::Private, Granularity::Page),
        (SourceKind::FsDax | SourceKind::File, false) if lines => {
            // Only a file on persistent memory accepts this flag. Old kernels have no attribute
            // that would tell beforehand.
            match Mapping::new(fd, len, Share::SharedSync) {
                Ok(mapping) => {
                    source.set_fsdax();
                    return Ok((mapping, line_or_byte, true));
                }
                Err(Errno::OPNOTSUPP | Errno::INVAL) => (Share::Shared, Granularity::Page),
                Err(e) => return Err(map_error(source, e)),
            }
        }
        (_, false) => (Share::Shared, Granularity::Page),
    };
    let mapping = Mapping::new(fd, len, share).map_err(|e| map_error(source, e))?;
    Ok((mapping, granularity, false))
}

/// Explains why a source could not be mapped.
pub(super) fn map_error(source: &Source, e: Errno) -> PmemError {
    match e {
        Errno::NOMEM if source.kind() == SourceKind::Hugetlbfs => {
            let pages = source.len() / source.alignment();
            let size = source.alignment() >> 10;
            source.unusable(
                libc::ENOMEM,
                format!(
                    "fewer than {pages} huge pages of {size} KiB are free; reserve them: echo {pages} > /sys/kernel/mm/hugepages/hugepages-{size}kB/nr_hugepages"
                ),
            )
        }
        Errno::NOMEM => source.unusable(
            libc::ENOMEM,
            format!(
                "{} bytes cannot be mapped: out of address space or of mappings; see `ulimit -v` and vm.max_map_count",
                source.len()
            ),
        ),
        Errno::NODEV => source.unusable(libc::ENODEV, "its file system cannot map files into memory; use another".into()),
        e => source.os("cannot map", e),
    }
}

/// Whether the platform flushes its caches on power failure (eADR). Every persistent-memory
/// region must report this.
pub(super) fn caches_are_persistent() -> bool {
    let Ok(devices) = std::fs::read_dir("/sys/bus/nd/devices") else {
        return false;
    };
    let mut domains = devices
        .flatten()
        .filter(|d| d.file_name().as_encoded_bytes().starts_with(b"region"))
        .map(|d| std::fs::read_to_string(d.path().join("persistence_domain")).unwrap_or_default())
        .peekable();
    domains.peek().is_some() && domains.all(|d| d.trim() == "cpu_cache")
}
