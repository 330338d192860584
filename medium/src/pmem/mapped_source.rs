//! Behaviour common to all mapped sources, whichever backend serves them: fences,
//! write-back, discarding memory, faults.

use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{OFlags, RawDir};
use rustix::io::Errno;

use super::backend::{Durability, Granularity};
use super::cow::Cow;
use super::error::PmemError;
use super::fault::Guard;
use super::hugepage::{self, HugePolicy};
use super::mapping::{self, HUGE_2M, Mapping, Share};
use super::pages::PageSync;
use super::protect::{Chosen, Protection};
use super::room::{HostRoom, HostSpace, Stores};
use super::source::{Source, SourceKind, map_refusal};
use crate::sync::{Mutex, rank};

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

/// A source and the behaviour of its mapping. Lives no longer than the mapping for loads, and owns
/// the one for stores, if that is another one.
#[derive(Debug)]
pub(super) struct MappedSource {
    pub source: Source,
    pub mode: Mode,
    pub granularity: Granularity,
    pub durability: Durability,
    pub map_sync: bool,
    guard: Guard,
    base: *mut u8,
    /// One grows at a time.
    growing: Mutex<(), rank::RegionSize>,
    /// The mapping for stores, if it is another one.
    pub protection: Option<Arc<Protection>>,
    /// Why the region is not protected, though it should be if possible.
    pub protect_notice: Option<String>,
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
    /// Describes the mapping of `source` for loads, which `mapped` tells more about.
    pub(super) fn new(
        source: Source,
        mapping: &Mapping,
        mapped: How,
        durability: Durability,
    ) -> MappedSource {
        let How {
            granularity,
            map_sync,
            protection,
            protect_notice,
        } = mapped;
        let (base, reserved) = (mapping.base(), mapping.reserved());
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
            let stores = protection.as_ref().map(|protection| protection.base());
            for at in std::iter::once(base).chain(stores) {
                // Best effort: `probe` reports whether huge pages are available.
                let _ = mapping::advise(at, len, rustix::mm::Advice::LinuxHugepage);
            }
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
            SourceKind::Hugetlbfs | SourceKind::DevDax | SourceKind::Physical => None,
        };
        MappedSource {
            guard: Guard::new(base, reserved, unit),
            room: HostRoom::new(&source, reserved),
            source,
            mode,
            granularity,
            durability,
            map_sync,
            base,
            growing: Mutex::new(()),
            protection,
            protect_notice,
            discard_unit,
            by_page: AtomicBool::new(false),
        }
    }

    fn len(&self) -> usize {
        self.source.len() as usize
    }

    /// See [`PmemBackend::grow`]. The order: the file, whose length is made durable, the
    /// mapping, then what is known about it, and the length last.
    ///
    /// # Errors
    /// As there.
    ///
    /// [`PmemBackend::grow`]: super::backend::PmemBackend::grow
    pub(super) fn grow(&self, mapping: &Mapping, size: Option<u64>) -> Result<u64, PmemError> {
        let _one = self.growing.lock();
        let (from, reserved) = (self.len(), mapping.reserved());
        let reserved = match &self.room {
            Some(room) => reserved.min(room.most() as usize),
            None => reserved,
        };
        let reserved = match &self.protection {
            Some(protection) => reserved.min(protection.reserved()),
            None => reserved,
        };
        let len = self.source.len_to_be(size, reserved)?;
        if len as usize <= from {
            // Somebody else may have made the file longer, just before it was opened.
            self.source.make_len_durable()?;
            return Ok(from as u64);
        }
        if self.source.read_only() && size.is_some() || matches!(self.mode, Mode::Cow(_)) {
            let why = "is open for reading only; open it for writing";
            return Err(self.source.unusable(libc::EROFS, why.into()));
        }
        let before = self.source.make_longer(len)?;
        // A size is published in the region only if the file has it for good.
        let mapped = self.source.make_len_durable().and_then(|()| {
            let fd = self.source.fd();
            // Before the mapping for loads, whose length others see.
            let stores = self.protection.as_ref();
            let stores = stores.map_or(Ok(()), |protection| protection.grow(fd, len as usize));
            stores
                .and_then(|()| mapping.grow(fd, len as usize))
                .map_err(|e| map_error(&self.source, len, e))
        });
        if let Err(e) = mapped {
            if let Some(before) = before {
                self.source.make_short_again(before, len);
            }
            return Err(e);
        }
        let more = len as usize - from;
        let stores = self.protection.as_ref().map(|protection| protection.base());
        // Best effort, as for the first part.
        for base in std::iter::once(self.base).chain(stores) {
            let at = base.wrapping_add(from);
            if !self.source.read_only() && huge_pages(&self.source) {
                let _ = super::mapping::advise(at, more, rustix::mm::Advice::LinuxHugepage);
            }
            if self.by_page.load(Ordering::Relaxed) {
                let _ = super::mapping::advise(at, more, rustix::mm::Advice::Random);
            }
        }
        if let Some(room) = &self.room {
            room.grow(len);
        }
        self.source.has_grown(len);
        Ok(len)
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
            && mapping::advise(self.base, self.len(), advice).is_ok()
            && mapping::advise(self.stores(), self.len(), advice).is_ok();
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

    /// Returns the address of the first byte for stores.
    fn stores(&self) -> *mut u8 {
        (self.protection.as_ref()).map_or(self.base, |protection| protection.base())
    }

    fn to_stores(&self) -> Stores<'_> {
        Stores {
            base: self.stores(),
            protection: self.protection.as_deref(),
        }
    }

    /// Returns the address of a byte for loads: pages are written back by these alone.
    pub(super) fn home(&self, ptr: *const u8) -> *const u8 {
        match self.protection.as_ref().and_then(|p| p.offset_of(ptr)) {
            Some(offset) => self.base.wrapping_add(offset),
            None => ptr,
        }
    }

    /// Punches the whole units inside a range out of the source.
    ///
    /// # Errors
    /// Errors of the host.
    ///
    /// # Safety
    /// The range lies in the mapping for stores, which is open, and its bytes are no longer
    /// needed.
    pub(super) unsafe fn discard(&self, ptr: *mut u8, len: usize) -> std::io::Result<()> {
        let Some(unit) = self.discard_unit else {
            return Err(std::io::ErrorKind::Unsupported.into());
        };
        let base = self.stores();
        let from = (ptr as usize - base as usize).next_multiple_of(unit);
        let to = (ptr as usize - base as usize + len) / unit * unit;
        if from >= to {
            return Ok(());
        }
        debug_assert!(to <= self.len());
        let advice = rustix::mm::Advice::LinuxRemove;
        let punch = || {
            // SAFETY: whole pages inside the range, which the caller gives up.
            unsafe { rustix::mm::madvise(base.add(from).cast(), to - from, advice) }
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
            Some(room) => room.take(&self.source, self.to_stores(), offset, len, around),
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
            Some(room) => room.take_all(&self.source, self.to_stores()),
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
        let stores = (self.protection.as_ref()).map_or(0, |protection| protection.faults());
        self.guard.faults() + stores + more
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
        let Some(protection) = &self.protection else {
            return self.guard.is_faulted(ptr, len);
        };
        // A page that one mapping has lost is lost: what is stored through the other one could
        // not be read, or the other way about.
        let home = self.home(ptr);
        self.guard.is_faulted(home, len)
            || protection.is_faulted(home.addr() - self.base.addr(), len)
    }
}

fn huge_pages(source: &Source) -> bool {
    source.len() >= HUGE_2M as u64
        && hugepage::policy(source.fd(), source.kind()).is_some_and(|p| p != HugePolicy::Never)
}

/// How a source was mapped.
#[derive(Debug)]
pub(super) struct How {
    /// The mode of its stores.
    pub granularity: Granularity,
    /// Whether the mapping for stores was made with `MAP_SYNC`.
    pub map_sync: bool,
    /// The mapping for stores, if it is another one.
    pub protection: Option<Arc<Protection>>,
    /// Why it is not protected, though it should be if possible.
    pub protect_notice: Option<String>,
}

impl How {
    /// Without protection.
    pub(super) fn open(granularity: Granularity, map_sync: bool) -> How {
        How {
            granularity,
            map_sync,
            protection: None,
            protect_notice: None,
        }
    }
}

/// Maps a source natively, in the best way it offers, and once more for loads alone if it is
/// to be protected. Returns the mapping for loads. `lines` tells whether the processor's line
/// write-back may be relied on.
pub(super) fn map_source(
    source: &mut Source,
    lines: bool,
    chosen: Chosen,
) -> Result<(Mapping, How), PmemError> {
    let (mapping, granularity, map_sync) = map_for_stores(source, lines)?;
    let how = How::open(granularity, map_sync);
    let way = match chosen {
        Chosen::On(way) => way,
        Chosen::Off(why) => {
            let protect_notice = why.map(|why| why.to_string());
            return Ok((
                mapping,
                How {
                    protect_notice,
                    ..how
                },
            ));
        }
    };
    let (first, len, room) = (source.first(), mapping.len(), mapping.reserved());
    let loads = Mapping::with_room(source.fd(), first, len, room, Share::SharedReadOnly)
        .map_err(|e| map_error(source, len as u64, e))?;
    let protection = Some(Arc::new(Protection::new(way, mapping, source)?));
    Ok((loads, How { protection, ..how }))
}

/// Maps a source for stores. Returns the mapping, the mode of its stores, and whether it was
/// made with `MAP_SYNC`.
fn map_for_stores(
    source: &mut Source,
    lines: bool,
) -> Result<(Mapping, Granularity, bool), PmemError> {
    let (len, room) = (source.len() as usize, source.room());
    let fd = source.fd();
    let line_or_byte = if caches_are_persistent() {
        Granularity::Byte
    } else {
        Granularity::CacheLine
    };
    let (share, granularity) = match (source.kind(), source.read_only()) {
        (kind @ (SourceKind::DevDax | SourceKind::Physical), _) if !lines => {
            return Err(source.unusable(
                libc::EOPNOTSUPP,
                format!("{} needs a line write-back that this library does not have on this processor; use fsdax", kind.name()),
            ));
        }
        // A reset loses what the caches hold, whatever they do when the power fails.
        (SourceKind::Physical, true) => (Share::Private, Granularity::CacheLine),
        (SourceKind::Physical, false) => (Share::Shared, Granularity::CacheLine),
        (SourceKind::DevDax, true) => (Share::SharedReadOnly, line_or_byte),
        (SourceKind::DevDax, false) => (Share::Shared, line_or_byte),
        (SourceKind::FsDax, true) => (Share::Private, line_or_byte),
        (kind, true) if kind.is_memory() => (Share::Private, Granularity::CacheLine),
        (kind, false) if kind.is_memory() => (Share::Shared, Granularity::CacheLine),
        (_, true) => (Share::Private, Granularity::Page),
        (SourceKind::FsDax | SourceKind::File, false) if lines => {
            // Only a file on persistent memory accepts this flag. Old kernels have no attribute
            // that would tell beforehand.
            match Mapping::with_room(fd, source.first(), len, room, Share::SharedSync) {
                Ok(mapping) => {
                    source.set_fsdax();
                    return Ok((mapping, line_or_byte, true));
                }
                Err(Errno::OPNOTSUPP | Errno::INVAL) => (Share::Shared, Granularity::Page),
                Err(e) => return Err(map_error(source, len as u64, e)),
            }
        }
        (_, false) => (Share::Shared, Granularity::Page),
    };
    let first = source.first();
    let mapping = Mapping::with_room(fd, first, len, room, share)
        .map_err(|e| map_error(source, len as u64, e))?;
    Ok((mapping, granularity, false))
}

/// Explains why `len` bytes of a source could not be mapped.
pub(super) fn map_error(source: &Source, len: u64, e: Errno) -> PmemError {
    if source.kind() == SourceKind::Physical
        && let Some(why) = map_refusal(e)
    {
        return source.unusable(e.raw_os_error(), why.into());
    }
    match e {
        Errno::NOMEM if source.kind() == SourceKind::Hugetlbfs => {
            let pages = len / source.alignment();
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
                "{len} bytes cannot be mapped: out of address space or of mappings; see `ulimit -v` and vm.max_map_count"
            ),
        ),
        Errno::NODEV => source.unusable(libc::ENODEV, "its file system cannot map files into memory; use another".into()),
        e => source.os("cannot map", e),
    }
}

/// Whether the platform flushes its caches on power failure (eADR). Every persistent-memory
/// region must report this.
///
/// Asks for no memory of the C library: in the preload library, a signal handler may have interrupted
/// malloc. So not by `read_dir`.
pub(super) fn caches_are_persistent() -> bool {
    const DEVICES: &str = "/sys/bus/nd/devices";
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(devices) = rustix::fs::open(DEVICES, flags, rustix::fs::Mode::empty()) else {
        return false;
    };
    let mut buffer = [const { MaybeUninit::uninit() }; 2048];
    let mut entries = RawDir::new(devices, &mut buffer);
    let mut is_any = false;
    while let Some(entry) = entries.next() {
        let Ok(entry) = entry else {
            return false;
        };
        let name = entry.file_name().to_bytes();
        if !name.starts_with(b"region") {
            continue;
        }
        let domain = Path::new(DEVICES)
            .join(OsStr::from_bytes(name))
            .join("persistence_domain");
        is_any = true;
        if std::fs::read_to_string(domain).unwrap_or_default().trim() != "cpu_cache" {
            return false;
        }
    }
    is_any
}
