//! The backend on the system's libpmem2.
//!
//! The library is loaded when the first region is opened (`libpmem2_sys::Libpmem2::get`), before
//! a server gives up its privileges. Without it, `auto` chooses `native`.
//!
//! Mapping, by source:
//! * A file (DAX or not) or a devdax device opened for writing: `pmem2_map_new` maps it and
//!   finds its granularity. Then it is mapped here, so that the mapping can grow in place.
//! * Memory (tmpfs, hugetlbfs, memfd): the library would treat it as page-granular, since
//!   it refuses `MAP_SYNC`. Tests on memory should run the same code as persistent memory.
//!   It is therefore mapped here and passed as cache-line granular to
//!   `pmem2_map_from_existing`, which exists for this purpose. The environment variable
//!   `PMEM2_FORCE_GRANULARITY` would affect the whole process, with a race.
//! * A private mapping: also made here, and passed as byte-granular, because nothing needs
//!   flushing. So is the mapping for loads of a [protected](super::protect) region, and the
//!   one for its stores. The library's functions take any address.
//!
//! Stores to page-granular media bypass the library, whose copy functions call `msync` each
//! time; see `pages`.
//!
//! The library decides which steps a mapping needs. On x86-64 media of cache-line
//! granularity, `cpu` provides the instructions. The library (1.12) uses clwb only on Intel
//! processors; on AMD it evicts each line with clflushopt, which costs 25 ns instead of 12
//! for a line that is used again (Zen 5). Below 256 bytes it stores and flushes, and so
//! reads each line first; our word-by-word streaming does not.
//!
//! `native` handles block devices, which the library refuses, and devdax opened read-only,
//! which cannot be mapped privately.

use std::ffi::{CStr, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use libpmem2_sys::{self as sys, Libpmem2};

use super::backend::{Durability, Granularity, Persistence, PmemBackend};
use super::cpu::Cpu;
use super::error::PmemError;
use super::live;
use super::mapped_source::{How, MappedSource, Mode, map_source};
use super::mapping::Mapping;
use super::protect::{Chosen, Protect, Protection};
use super::room::{HostSpace, KnownRoom};
use super::source::{Source, SourceKind};

type Flush = unsafe extern "C" fn(*const c_void, usize);
type Drain = unsafe extern "C" fn();
type Memcpy = unsafe extern "C" fn(*mut c_void, *const c_void, usize, u32) -> *mut c_void;
type Memset = unsafe extern "C" fn(*mut c_void, c_int, usize, u32) -> *mut c_void;

/// A mapped source served by libpmem2.
#[derive(Debug)]
pub struct Libpmem2Backend {
    // Before the mapping: its fault guard ends first.
    mapped: MappedSource,
    map: Map,
    flush: Flush,
    drain: Drain,
    memcpy: Memcpy,
    memset: Memset,
    cpu: Cpu,
}

/// Whether libpmem2 is installed and can serve a source.
pub(super) fn serves(source: &Source) -> bool {
    refusal(source).is_none() && Libpmem2::get().is_ok()
}

/// Why libpmem2 cannot be used on this machine.
pub(super) fn missing() -> Option<String> {
    Libpmem2::get().err().map(ToString::to_string)
}

fn refusal(source: &Source) -> Option<&'static str> {
    match source.kind() {
        SourceKind::BlockDevice => Some("libpmem2 maps no block devices; use the native backend"),
        SourceKind::Physical => {
            Some("libpmem2 maps no range of physical memory; use the native backend")
        }
        SourceKind::DevDax if source.read_only() => Some(
            "libpmem2 maps no devdax device privately; use the native backend to open it read-only",
        ),
        _ => None,
    }
}

impl Libpmem2Backend {
    /// Maps a source.
    pub(super) fn new(
        mut source: Source,
        durability: Durability,
        protect: Protect,
    ) -> Result<Libpmem2Backend, PmemError> {
        if let Some(why) = refusal(&source) {
            return Err(source.unusable(libc::EOPNOTSUPP, why.into()));
        }
        let library = match Libpmem2::get() {
            Ok(library) => library,
            Err(error) => {
                let why =
                    format!("the libpmem2 backend cannot be used: {error}, or use the native one");
                return Err(source.unusable(libc::EOPNOTSUPP, why));
            }
        };
        let chosen = Chosen::of(protect, &source)?;
        let by_library = !source.read_only() && !source.kind().is_memory();
        let (map, how) = if by_library {
            Map::by_library(library, &mut source, chosen)?
        } else {
            Map::by_us(library, &mut source, chosen)?
        };
        // SAFETY: `map` is a live map object; the functions belong to its granularity and
        // are valid as long as the library is loaded: until the process ends.
        let (flush, drain, memcpy, memset) = unsafe {
            (
                library.pmem2_get_flush_fn(map.object),
                library.pmem2_get_drain_fn(map.object),
                library.pmem2_get_memcpy_fn(map.object),
                library.pmem2_get_memset_fn(map.object),
            )
        };
        let (Some(flush), Some(drain), Some(memcpy), Some(memset)) = (flush, drain, memcpy, memset)
        else {
            return Err(source.unusable(
                libc::EOPNOTSUPP,
                "libpmem2 has no functions for this mapping".into(),
            ));
        };
        let mapped = MappedSource::new(source, &map.own, how, durability);
        Ok(Libpmem2Backend {
            mapped,
            map,
            flush,
            drain,
            memcpy,
            memset,
            cpu: Cpu::get(),
        })
    }
}

/// A map object of the library and the mapping that it describes.
#[derive(Debug)]
struct Map {
    library: &'static Libpmem2,
    object: *mut sys::pmem2_map,
    own: Mapping,
}

// SAFETY: after construction the object is used only to be deleted, once; the library's
// functions on maps are safe from any thread.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

/// Lets the library map the source, and returns the granularity that it finds. Its mapping
/// ends here.
fn granularity_by_library(
    library: &'static Libpmem2,
    source: &Source,
) -> Result<sys::pmem2_granularity, PmemError> {
    let mut object = std::ptr::null_mut();
    let src = LibSource::new(library, source)?;
    let cfg = LibConfig::new(library, source)?;
    let check = |code| check(library, source, code);
    // SAFETY: both objects live until the end of the function; the descriptor in `src` is
    // open. The map object was made here, nobody has its address, and it is deleted once.
    unsafe {
        let any = sys::PMEM2_GRANULARITY_PAGE;
        check(library.pmem2_config_set_required_store_granularity(cfg.object, any))?;
        check(library.pmem2_config_set_length(cfg.object, source.len() as usize))?;
        check(library.pmem2_map_new(&mut object, cfg.object, src.object))?;
        let found = library.pmem2_map_get_store_granularity(object);
        check(library.pmem2_map_delete(&mut object))?;
        Ok(found)
    }
}

impl Map {
    /// Maps the source here, with the granularity that the library finds: a mapping of the
    /// library can neither grow without moving nor be one of two.
    fn by_library(
        library: &'static Libpmem2,
        source: &mut Source,
        chosen: Chosen,
    ) -> Result<(Map, How), PmemError> {
        let found = granularity_by_library(library, source)?;
        let (own, how) = map_source(source, true, chosen)?;
        // PMEM2_FORCE_GRANULARITY can make the library report a false granularity. A file
        // that accepts a MAP_SYNC mapping has the reported one.
        let granularity = match source.kind() == SourceKind::DevDax || how.map_sync {
            true => granularity_of(found),
            false => Granularity::Page,
        };
        let how = How {
            granularity,
            map_sync: how.map_sync && granularity != Granularity::Page,
            ..how
        };
        Ok((Map::describe(library, source, own, how.granularity)?, how))
    }

    /// Maps the source here.
    fn by_us(
        library: &'static Libpmem2,
        source: &mut Source,
        chosen: Chosen,
    ) -> Result<(Map, How), PmemError> {
        let (own, how) = map_source(source, true, chosen)?;
        Ok((Map::describe(library, source, own, how.granularity)?, how))
    }

    /// Describes a mapping to the library.
    fn describe(
        library: &'static Libpmem2,
        source: &Source,
        own: Mapping,
        granularity: Granularity,
    ) -> Result<Map, PmemError> {
        let handed_over = match granularity {
            _ if source.read_only() => sys::PMEM2_GRANULARITY_BYTE,
            Granularity::Byte => sys::PMEM2_GRANULARITY_BYTE,
            Granularity::CacheLine => sys::PMEM2_GRANULARITY_CACHE_LINE,
            Granularity::Page => sys::PMEM2_GRANULARITY_PAGE,
        };
        let src = LibSource::new(library, source)?;
        let mut object = std::ptr::null_mut();
        // SAFETY: the mapping outlives the object (see `Drop`); the library does not unmap
        // mappings that it did not make. What the mapping grows by needs no description: the
        // library's functions take any address.
        check(library, source, unsafe {
            library.pmem2_map_from_existing(
                &mut object,
                src.object,
                own.base().cast(),
                own.len(),
                handed_over,
            )
        })?;
        Ok(Map {
            library,
            object,
            own,
        })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the object was made once and is deleted once, before the mapping is dropped.
        unsafe { self.library.pmem2_map_delete(&mut self.object) };
    }
}

struct LibSource {
    library: &'static Libpmem2,
    object: *mut sys::pmem2_source,
}

impl LibSource {
    fn new(library: &'static Libpmem2, source: &Source) -> Result<LibSource, PmemError> {
        let mut object = std::ptr::null_mut();
        // SAFETY: a valid place for the object; the descriptor is open.
        check(library, source, unsafe {
            library.pmem2_source_from_fd(&mut object, source.fd().as_raw_fd())
        })?;
        Ok(LibSource { library, object })
    }
}

impl Drop for LibSource {
    fn drop(&mut self) {
        // SAFETY: made once, deleted once; it does not own the descriptor.
        unsafe { self.library.pmem2_source_delete(&mut self.object) };
    }
}

struct LibConfig {
    library: &'static Libpmem2,
    object: *mut sys::pmem2_config,
}

impl LibConfig {
    fn new(library: &'static Libpmem2, source: &Source) -> Result<LibConfig, PmemError> {
        let mut object = std::ptr::null_mut();
        // SAFETY: a valid place for the object.
        check(library, source, unsafe {
            library.pmem2_config_new(&mut object)
        })?;
        Ok(LibConfig { library, object })
    }
}

impl Drop for LibConfig {
    fn drop(&mut self) {
        // SAFETY: made once, deleted once.
        unsafe { self.library.pmem2_config_delete(&mut self.object) };
    }
}

fn granularity_of(found: sys::pmem2_granularity) -> Granularity {
    match found {
        sys::PMEM2_GRANULARITY_BYTE => Granularity::Byte,
        sys::PMEM2_GRANULARITY_CACHE_LINE => Granularity::CacheLine,
        _ => Granularity::Page,
    }
}

/// Turns a return code of the library into an error with its message.
fn check(library: &Libpmem2, source: &Source, code: c_int) -> Result<(), PmemError> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: the library returns a string of this thread that lives until its next call.
    let message = unsafe { CStr::from_ptr(library.pmem2_errormsg()) }
        .to_string_lossy()
        .into_owned();
    let errno = match code {
        sys::PMEM2_E_MAPPING_EXISTS => libc::EEXIST,
        sys::PMEM2_E_NOSUPP
        | sys::PMEM2_E_GRANULARITY_NOT_SUPPORTED
        | sys::PMEM2_E_INVALID_FILE_TYPE => libc::EOPNOTSUPP,
        code if code > sys::PMEM2_E_UNKNOWN => -code,
        _ => libc::EINVAL,
    };
    Err(source.unusable(
        errno,
        format!("libpmem2 cannot map it: {message} (the native backend may)"),
    ))
}

// SAFETY: base and len describe the mapping owned by self.
unsafe impl PmemBackend for Libpmem2Backend {
    fn name(&self) -> &'static str {
        "libpmem2"
    }
    fn base(&self) -> *mut u8 {
        self.map.own.base()
    }
    fn len(&self) -> usize {
        self.map.own.len()
    }
    fn granularity(&self) -> Granularity {
        self.mapped.granularity
    }
    fn persistence(&self) -> Persistence {
        self.mapped.source.persistence()
    }
    #[inline]
    unsafe fn store(&self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: passed on from the caller.
        unsafe { live::store(dst, src, len) }
    }
    #[inline]
    unsafe fn store_u64(&self, dst: *mut u64, value: u64) {
        // SAFETY: aligned and in the mapping, by contract.
        unsafe { AtomicU64::from_ptr(dst) }.store(value, Ordering::Release);
    }
    #[inline]
    unsafe fn nt_store_u64(&self, dst: *mut u64, value: u64) {
        // SAFETY: passed on from the caller.
        unsafe {
            match &self.mapped.mode {
                Mode::Lines if Cpu::WRITES_BACK => self.cpu.nt_store_u64(dst, value),
                _ => {
                    self.store_u64(dst, value);
                    self.flush(dst.cast(), 8);
                }
            }
        }
    }
    unsafe fn nt_copy(&self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: passed on from the caller. Whether it streams, or stores and flushes, the
        // copy is complete at the next drain of this thread.
        unsafe {
            match &self.mapped.mode {
                Mode::Lines if Cpu::WRITES_BACK => self.cpu.nt_copy(dst, src, len),
                Mode::Lines => {
                    (self.memcpy)(dst.cast(), src.cast(), len, sys::PMEM2_F_MEM_NODRAIN);
                }
                mode => {
                    live::copy(dst, src, len);
                    if let Mode::Pages(pages) = mode {
                        pages.flush(self.mapped.home(dst), len);
                    }
                }
            }
        }
    }
    unsafe fn nt_zero(&self, dst: *mut u8, len: usize) {
        // SAFETY: as in `nt_copy`.
        unsafe {
            match &self.mapped.mode {
                Mode::Lines if Cpu::WRITES_BACK => self.cpu.nt_zero(dst, len),
                Mode::Lines => {
                    (self.memset)(dst.cast(), 0, len, sys::PMEM2_F_MEM_NODRAIN);
                }
                mode => {
                    live::fill(dst, 0, len);
                    if let Mode::Pages(pages) = mode {
                        pages.flush(self.mapped.home(dst), len);
                    }
                }
            }
        }
    }
    #[inline]
    unsafe fn flush(&self, ptr: *const u8, len: usize) {
        match &self.mapped.mode {
            // SAFETY: passed on from the caller.
            Mode::Lines if Cpu::WRITES_BACK => unsafe { self.cpu.flush(ptr, len) },
            // SAFETY: passed on from the caller.
            Mode::Lines => unsafe { (self.flush)(ptr.cast(), len) },
            Mode::Pages(pages) => pages.flush(self.mapped.home(ptr), len),
            Mode::Order | Mode::Cow(_) => {}
        }
    }
    #[inline]
    fn fence(&self) {
        match &self.mapped.mode {
            Mode::Pages(pages) => pages.fence(),
            Mode::Lines if Cpu::WRITES_BACK => self.cpu.fence(),
            // SAFETY: a drain of a live mapping.
            Mode::Lines => unsafe { (self.drain)() },
            Mode::Order | Mode::Cow(_) => std::sync::atomic::fence(Ordering::SeqCst),
        }
    }
    fn grow(&self, size: Option<u64>) -> Result<u64, PmemError> {
        self.mapped.grow(&self.map.own, size)
    }
    fn processor(&self) -> Option<Cpu> {
        (Cpu::WRITES_BACK && matches!(self.mapped.mode, Mode::Lines)).then_some(self.cpu)
    }
    fn sync_all(&self) -> std::io::Result<()> {
        self.fence();
        self.mapped.sync_all()
    }
    fn protection(&self) -> Option<Arc<Protection>> {
        self.mapped.protection.clone()
    }
    fn protect_notice(&self) -> Option<&str> {
        self.mapped.protect_notice.as_deref()
    }
    fn lock(&self, exclusive: bool) -> Result<(), PmemError> {
        self.mapped.source.lock(exclusive)
    }
    fn lock_notice(&self) -> Option<&str> {
        self.mapped.source.lock_notice()
    }
    fn retake_lock(&self) -> bool {
        self.mapped.source.retake_lock()
    }
    fn advise_random(&self) {
        self.mapped.advise_random();
    }
    fn advise_willneed(&self, ptr: *const u8, len: usize) {
        self.mapped.advise_willneed(ptr, len)
    }
    fn can_discard(&self) -> bool {
        self.mapped.can_discard()
    }

    unsafe fn discard(&self, ptr: *mut u8, len: usize) -> std::io::Result<()> {
        // SAFETY: passed on from the caller.
        unsafe { self.mapped.discard(ptr, len) }
    }
    fn known_room(&self) -> Option<Arc<KnownRoom>> {
        self.mapped.room.as_ref().map(|room| room.known())
    }
    fn query_room(&self, offset: u64, len: u64) {
        self.mapped.query_room(offset, len);
    }
    fn take_room(&self, offset: u64, len: u64, around: bool) -> std::io::Result<()> {
        self.mapped.take_room(offset, len, around)
    }
    fn take_all_room(&self) -> std::io::Result<()> {
        self.mapped.take_all_room()
    }
    fn host_space(&self) -> Option<HostSpace> {
        self.mapped.host_space()
    }
    fn faults(&self) -> u64 {
        self.mapped.faults()
    }
    fn failed_fences(&self) -> u64 {
        self.mapped.failed_fences()
    }
    fn is_faulted(&self, ptr: *const u8, len: usize) -> bool {
        self.mapped.is_faulted(ptr, len)
    }
    fn durability(&self) -> Durability {
        self.mapped.durability
    }
    fn source_kind(&self) -> Option<SourceKind> {
        Some(self.mapped.source.kind())
    }
    fn map_sync(&self) -> bool {
        self.mapped.map_sync
    }
    fn map_unit(&self) -> u64 {
        self.mapped.source.alignment()
    }
    unsafe fn flush_alias(&self, alias: *const u8, home: *const u8, len: usize) {
        // SAFETY: passed on from the caller. Flushes lines by the address that is more
        // likely in the TLB.
        unsafe {
            match &self.mapped.mode {
                Mode::Lines => (self.flush)(alias.cast(), len),
                _ => self.flush(home, len),
            }
        }
    }
    fn source_fd(&self) -> Option<(BorrowedFd<'_>, u64)> {
        Some((self.mapped.source.fd(), 0))
    }
}
