//! The backend in pure Rust: its own mapping and the processor's instructions.
//!
//! Invariant: see [`PmemBackend`]. When the source is mapped, `medium::Mode` fixes which of
//! write-back, fence and `msync` a store needs.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::backend::{Durability, Granularity, Persistence, PmemBackend};
use super::cpu::Cpu;
use super::error::PmemError;
use super::live;
use super::mapping::Mapping;
use super::medium::{Medium, Mode, map_source};
use super::room::{HostSpace, KnownRoom};
use super::source::{Source, SourceKind};

/// A mapped source served directly by the processor's instructions.
#[derive(Debug)]
pub struct NativeBackend {
    // Before the mapping: its fault guard ends first.
    medium: Medium,
    mapping: Mapping,
    cpu: Cpu,
}

impl NativeBackend {
    /// Maps a source.
    pub(super) fn new(
        mut source: Source,
        durability: Durability,
    ) -> Result<NativeBackend, PmemError> {
        let (mapping, granularity, map_sync) = map_source(&mut source, Cpu::WRITES_BACK)?;
        let medium = Medium::new(source, mapping.base(), granularity, durability, map_sync);
        let cpu = Cpu::get();
        tracing::debug!(
            "{} mapped by the native backend: {:?} granularity, {}, {} streams",
            medium.source.path().display(),
            granularity,
            cpu.flush_name(),
            cpu.stream_name(),
        );
        Ok(NativeBackend {
            medium,
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
        self.medium.granularity
    }
    fn persistence(&self) -> Persistence {
        self.medium.source.persistence()
    }

    #[inline]
    unsafe fn store(&self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: passed on from the caller; a unit that is still the medium's read-only
        // page is not stored to.
        unsafe {
            if let Mode::Cow(cow) = &self.medium.mode
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
            if let Mode::Cow(cow) = &self.medium.mode
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
            match &self.medium.mode {
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
            match &self.medium.mode {
                Mode::Lines => self.cpu.nt_copy(dst, src, len),
                Mode::Order => live::copy(dst, src, len),
                Mode::Pages(pages) => {
                    live::copy(dst, src, len);
                    pages.flush(dst, len);
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
            match &self.medium.mode {
                Mode::Lines => self.cpu.nt_zero(dst, len),
                Mode::Order => live::fill(dst, 0, len),
                Mode::Pages(pages) => {
                    live::fill(dst, 0, len);
                    pages.flush(dst, len);
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
        match &self.medium.mode {
            // SAFETY: passed on from the caller.
            Mode::Lines => unsafe { self.cpu.flush(ptr, len) },
            Mode::Pages(pages) => pages.flush(ptr, len),
            Mode::Order | Mode::Cow(_) => {}
        }
    }
    #[inline]
    fn fence(&self) {
        match &self.medium.mode {
            Mode::Pages(pages) => pages.fence(),
            _ => self.cpu.fence(),
        }
    }

    fn processor(&self) -> Option<Cpu> {
        matches!(self.medium.mode, Mode::Lines).then_some(self.cpu)
    }
    fn sync_all(&self) -> std::io::Result<()> {
        self.fence();
        self.medium.sync_all()
    }
    fn lock(&self, exclusive: bool) -> Result<(), PmemError> {
        self.medium.source.lock(exclusive)
    }
    fn advise_random(&self) {
        self.medium.advise_random();
    }
    fn advise_willneed(&self, ptr: *const u8, len: usize) {
        self.medium.advise_willneed(ptr, len)
    }
    fn can_discard(&self) -> bool {
        self.medium.can_discard()
    }

    unsafe fn discard(&self, ptr: *mut u8, len: usize) -> std::io::Result<()> {
        // SAFETY: passed on from the caller.
        unsafe { self.medium.discard(ptr, len) }
    }
    fn known_room(&self) -> Option<Arc<KnownRoom>> {
        self.medium.room.as_ref().map(|room| room.known())
    }
    fn learn_room(&self, offset: u64, len: u64) {
        self.medium.learn_room(offset, len);
    }
    fn take_room(&self, offset: u64, len: u64, around: bool) -> std::io::Result<()> {
        self.medium.take_room(offset, len, around)
    }
    fn take_all_room(&self) -> std::io::Result<()> {
        self.medium.take_all_room()
    }
    fn host_space(&self) -> Option<HostSpace> {
        self.medium.host_space()
    }
    fn faults(&self) -> u64 {
        self.medium.faults()
    }
    fn failed_fences(&self) -> u64 {
        self.medium.failed_fences()
    }
    fn is_faulted(&self, ptr: *const u8, len: usize) -> bool {
        self.medium.is_faulted(ptr, len)
    }
    fn durability(&self) -> Durability {
        self.medium.durability
    }
    fn source_kind(&self) -> Option<SourceKind> {
        Some(self.medium.source.kind())
    }
    fn map_sync(&self) -> bool {
        self.medium.map_sync
    }
    fn map_unit(&self) -> u64 {
        self.medium.source.alignment()
    }
    unsafe fn flush_alias(&self, alias: *const u8, home: *const u8, len: usize) {
        // SAFETY: passed on from the caller. Flushes lines by the address that is more
        // likely in the TLB.
        unsafe {
            match &self.medium.mode {
                Mode::Lines => self.cpu.flush(alias, len),
                _ => self.flush(home, len),
            }
        }
    }
    fn source_fd(&self) -> Option<(BorrowedFd<'_>, u64)> {
        Some((self.medium.source.fd(), 0))
    }
}
