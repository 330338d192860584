//! Owned address ranges, and mappings into them.
//!
//! Invariant: until it is dropped, a [`Mapping`] is one readable mapping that does not
//! move. Its address is aligned so that the kernel can use its largest pages. After the
//! drop nothing is mapped there.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::fork::NotInherited;

/// Huge pages of the page-table levels above 4 KiB on x86_64 and aarch64.
pub(super) const HUGE_2M: usize = 2 << 20;
pub(super) const HUGE_1G: usize = 1 << 30;

/// An owned range of addresses with nothing behind it (`PROT_NONE`).
#[derive(Debug)]
pub(super) struct Reservation {
    base: *mut u8,
    len: usize,
    /// Dropped before the range is released.
    not_inherited: Option<NotInherited>,
}

// SAFETY: the range is owned by this value; it holds no thread-bound state.
unsafe impl Send for Reservation {}
// SAFETY: a shared reference exposes only its address and length.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves `len` bytes at an address that equals `congruent` modulo
    /// 1 GiB if the range is that long, else modulo 2 MiB.
    pub(super) fn new(len: usize, congruent: u64) -> Result<Reservation, Errno> {
        let page = rustix::param::page_size();
        let len = len.checked_next_multiple_of(page).ok_or(Errno::NOMEM)?;
        let align = if len >= HUGE_1G { HUGE_1G } else { HUGE_2M };
        let want = (congruent as usize % align) / page * page;
        let total = len.checked_add(align).ok_or(Errno::NOMEM)?;
        // SAFETY: a new anonymous mapping at an address that the kernel chooses; it
        // replaces nothing.
        let raw = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                total,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?
        .cast::<u8>();
        let skip = (want + align - (raw as usize % align)) % align;
        let base = raw.wrapping_add(skip);
        let tail = total - skip - len;
        for (start, bytes) in [(raw, skip), (base.wrapping_add(len), tail)] {
            if bytes > 0 {
                // SAFETY: the piece lies in the mapping just made, whose address no other code
                // has, and outside base..base+len.
                unsafe { rustix::mm::munmap(start.cast(), bytes) }?;
            }
        }
        // SAFETY: the range is ours until `drop`, which takes this first.
        let not_inherited = Some(unsafe { NotInherited::new(base, len) });
        Ok(Reservation {
            base,
            len,
            not_inherited,
        })
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Removes the mappings in a piece of the range.
    ///
    /// # Safety
    /// No code uses an address of `at..at+len`.
    pub(super) unsafe fn clear(&self, at: usize, len: usize) -> Result<(), Errno> {
        let dst = self.piece(at, len).ok_or(Errno::INVAL)?;
        // SAFETY: MAP_FIXED replaces only pages of the reservation, which is not in use,
        // by contract.
        unsafe {
            rustix::mm::mmap_anonymous(
                dst.cast(),
                len,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
            )
        }
        .map(drop)
    }

    /// Returns the address of a piece, if the piece lies inside.
    pub(super) fn piece(&self, at: usize, len: usize) -> Option<*mut u8> {
        (at.checked_add(len)? <= self.len).then(|| self.base.wrapping_add(at))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.not_inherited = None;
        // SAFETY: the range belongs to this value alone, and holders of its address used it
        // only while this value lived. Unmapping our own aligned range fails only for lack
        // of kernel memory; the range then stays mapped, harmlessly.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.len) };
    }
}

/// How a descriptor is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    /// Stores reach the object.
    Shared,
    /// As `Shared`, and the file's own metadata is durable before a page becomes writable,
    /// so that flushing lines suffices. Only DAX accepts it.
    SharedSync,
    /// Loads only.
    SharedReadOnly,
    /// Stores stay in this process, copy on write.
    Private,
}

impl Share {
    fn flags(self) -> MapFlags {
        match self {
            Share::Shared | Share::SharedReadOnly => MapFlags::SHARED,
            Share::SharedSync => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
            // Reserves no memory for copies that will not be made.
            Share::Private => MapFlags::PRIVATE | MapFlags::NORESERVE,
        }
    }
    fn prot(self) -> ProtFlags {
        match self {
            Share::SharedReadOnly => ProtFlags::READ,
            _ => ProtFlags::READ | ProtFlags::WRITE,
        }
    }
}

/// Maps a piece of a descriptor over a part of a reservation.
///
/// # Safety
/// No code accesses `at..at+len` of the reservation through an address taken before, unless
/// it allows for changing contents.
pub(super) unsafe fn map_over(
    reservation: &Reservation,
    at: usize,
    len: usize,
    fd: BorrowedFd<'_>,
    fd_offset: u64,
    share: Share,
) -> Result<*mut u8, Errno> {
    let dst = reservation.piece(at, len).ok_or(Errno::INVAL)?;
    // SAFETY: MAP_FIXED replaces only pages of the reservation, which is ours; the caller
    // is responsible for its users.
    unsafe {
        rustix::mm::mmap(
            dst.cast(),
            len,
            share.prot(),
            share.flags() | MapFlags::FIXED,
            fd,
            fd_offset,
        )
    }?;
    Ok(dst)
}

/// A descriptor mapped from its first byte.
#[derive(Debug)]
pub(super) struct Mapping {
    range: Reservation,
    len: usize,
}

impl Mapping {
    /// Maps the first `len` bytes of `fd`.
    pub(super) fn new(fd: BorrowedFd<'_>, len: usize, share: Share) -> Result<Mapping, Errno> {
        let range = Reservation::new(len, 0)?;
        // SAFETY: the reservation was made here and has no user yet.
        unsafe { map_over(&range, 0, len, fd, 0, share) }?;
        Ok(Mapping { range, len })
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.range.base()
    }
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

/// Advises the kernel about the use of a mapped range.
pub(super) fn advise(ptr: *mut u8, len: usize, advice: Advice) -> Result<(), Errno> {
    // SAFETY: the callers pass only advice that changes no contents; an address that is
    // not mapped is an error and no access.
    unsafe { rustix::mm::madvise(ptr.cast(), len, advice) }
}

/// Sets up the pages of a mapped range, for stores too if `write`.
pub(super) fn populate(ptr: *mut u8, len: usize, write: bool) -> Result<(), Errno> {
    let advice = if write {
        Advice::LinuxPopulateWrite
    } else {
        Advice::LinuxPopulateRead
    };
    // SAFETY: populating changes no contents; an unmapped address yields an error and no
    // access.
    unsafe { rustix::mm::madvise(ptr.cast(), len, advice) }
}
