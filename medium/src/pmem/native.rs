//! The backend in pure Rust: its own mapping and the processor's instructions.
//!
//! Invariant: see [`PmemBackend`]. When the source is mapped, `mapped_source::Mode` fixes which of
//! write-back, fence and `msync` a store needs.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::backend::{Durability, Granularity, Persistence, PmemBackend};
use super::cpu::Cpu;
use super::error::PmemError;
use super::live;
use super::mapped_source::{MappedSource, Mode, map_source};
use super::mapping::Mapping;
use super::protect::{Chosen, Protect, Protection};
use super::room::{HostSpace, KnownRoom};
use super::source::{Source, SourceKind};

/// A mapped source served directly by the processor's instructions.
#[derive(Debug)]
pub struct NativeBackend {
    // Before the mapping: its fault guard ends first.
    mapped: MappedSource,
    mapping: Mapping,
    cpu: Cpu,
}

impl NativeBackend {
    /// Maps a source.
    pub(super) fn new(
        mut source: Source,
        durability: Durability,
        protect: Protect,
    ) -> Result<NativeBackend, PmemError> {
        let chosen = Chosen::of(protect, &source)?;
        let (mapping, how) = map_source(&mut source, Cpu::WRITES_BACK, chosen)?;
        let granularity = how.granularity;
        let mapped = MappedSource::new(source, &mapping, how, durability);
        let cpu = Cpu::get();
        tracing::debug!(
            "{} mapped by the native backend: {:?} granularity, {}, {} streams",
            mapped.source.path().display(),
            granularity,
            cpu.flush_name(),
            cpu.stream_name(),
        );
        Ok(NativeBackend {
            mapped,
            mapping,
            cpu,
        })
    }
}

// SAFETY: base and len describe the mapping owned by self.
unsafe impl PmemBackend for NativeBackend {
    fn name(&self) -> &'static str {
        "native"
    }
    fn base(&self) -> *mut u8 {
        self.mapping.base()
    }
    fn len(&self) -> usize {
        self.mapping.len()
    }
    fn granularity(&self) -> Granularity {
        self.mapped.granularity
    }
    fn persistence(&self) -> Persistence {
        self.mapped.source.persistence()
    }

    #[inline]
    unsafe fn store(&self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: passed on from the caller; a unit that is still the medium's read-only
        // page is not stored to.
        unsafe {
            if let Mode::Cow(cow) = &self.mapped.mode
                && !cow.privatise(dst, len)
            {
                return;
            }
            live::store(dst, src, len);
        }
    }
    #[inline]
    unsafe fn store_u64(&self, dst: *mut u64, value: u64) {
        // SAFETY: aligned and in the mapping, by contract; Cow as in `store`.
        unsafe {
            if let Mode::Cow(cow) = &self.mapped.mode
                && !cow.privatise(dst.cast(), 8)
            {
                return;
            }
            AtomicU64::from_ptr(dst).store(value, Ordering::Release);
        }
    }
    #[inline]
    unsafe fn nt_store_u64(&self, dst: *mut u64, value: u64) {
        // SAFETY: passed on from the caller.
        unsafe {
            match &self.mapped.mode {
                Mode::Lines => self.cpu.nt_store_u64(dst, value),
                _ => {
                    self.store_u64(dst, value);
                    self.flush(dst.cast(), 8);
                }
            }
        }
    }
    #[inline]
    unsafe fn nt_copy(&self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: passed on from the caller.
        unsafe {
            match &self.mapped.mode {
                Mode::Lines => self.cpu.nt_copy(dst, src, len),
                Mode::Order => live::copy(dst, src, len),
                Mode::Pages(pages) => {
                    live::copy(dst, src, len);
                    pages.flush(self.mapped.home(dst), len);
                }
                Mode::Cow(cow) => {
                    if cow.privatise(dst, len) {
                        live::copy(dst, src, len);
                    }
                }
            }
        }
    }
    #[inline]
    unsafe fn nt_zero(&self, dst: *mut u8, len: usize) {
        // SAFETY: passed on from the caller.
        unsafe {
            match &self.mapped.mode {
                Mode::Lines => self.cpu.nt_zero(dst, len),
                Mode::Order => live::fill(dst, 0, len),
                Mode::Pages(pages) => {
                    live::fill(dst, 0, len);
                    pages.flush(self.mapped.home(dst), len);
                }
                Mode::Cow(cow) => {
                    if cow.privatise(dst, len) {
                        live::fill(dst, 0, len);
                    }
                }
            }
        }
    }
    #[inline]
    unsafe fn flush(&self, ptr: *const u8, len: usize) {
        match &self.mapped.mode {
            // SAFETY: passed on from the caller.
            Mode::Lines => unsafe { self.cpu.flush(ptr, len) },
            Mode::Pages(pages) => pages.flush(self.mapped.home(ptr), len),
            Mode::Order | Mode::Cow(_) => {}
        }
    }
    #[inline]
    fn fence(&self) {
        match &self.mapped.mode {
            Mode::Pages(pages) => pages.fence(),
            _ => self.cpu.fence(),
        }
    }

    fn grow(&self, size: Option<u64>) -> Result<u64, PmemError> {
        self.mapped.grow(&self.mapping, size)
    }
    fn processor(&self) -> Option<Cpu> {
        matches!(self.mapped.mode, Mode::Lines).then_some(self.cpu)
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
                Mode::Lines => self.cpu.flush(alias, len),
                _ => self.flush(home, len),
            }
        }
    }
    fn source_fd(&self) -> Option<(BorrowedFd<'_>, u64)> {
        Some((self.mapped.source.fd(), self.mapped.source.first()))
    }
}
