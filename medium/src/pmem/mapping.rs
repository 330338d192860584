//! Owned address ranges, and mappings into them.
//!
//! Invariant: until it is dropped, a [`Mapping`] is one readable mapping that does not
//! move and does not shrink. It grows into the addresses reserved behind it, and nowhere
//! else ([`Mapping::grow`]). Its address is aligned so that the kernel can use its largest
//! pages. After the drop nothing is mapped there.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::fork::NotInherited;
use crate::grows::Grows;

/// Huge pages of the page-table levels above 4 KiB on x86_64 and aarch64.
pub(super) const HUGE_2M: usize = 2 << 20;
pub(super) const HUGE_1G: usize = 1 << 30;

/// An owned range of addresses with nothing behind it (`PROT_NONE`).
#[derive(Debug)]
pub(super) struct Reservation {
    base: *mut u8,
    /// Becomes smaller only in [`retake`](Self::retake).
    len: AtomicUsize,
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
            len: AtomicUsize::new(len),
            not_inherited,
        })
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Bytes.
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
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

    /// Reserves the range from `at` on again, after a mapping there failed. The kernel may have
    /// removed what was there, and another thread may have got the addresses: nothing is
    /// replaced. If they are in use, by that thread or still by this value, the range ends at
    /// `at` from now on, and cannot be lengthened.
    fn retake(&self, at: usize) {
        let len = self.len().saturating_sub(at);
        // SAFETY: the flag makes the kernel refuse if anything is mapped there.
        let taken = unsafe {
            rustix::mm::mmap_anonymous(
                self.base.wrapping_add(at).cast(),
                len,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE,
            )
        };
        if taken.is_err() {
            self.len.store(at, Ordering::Relaxed);
        }
    }

    /// Returns the address of a piece, if the piece lies inside.
    pub(super) fn piece(&self, at: usize, len: usize) -> Option<*mut u8> {
        (at.checked_add(len)? <= self.len()).then(|| self.base.wrapping_add(at))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.not_inherited = None;
        // SAFETY: the range belongs to this value alone, and holders of its address used it
        // only while this value lived. Unmapping our own aligned range fails only for lack
        // of kernel memory; the range then stays mapped, harmlessly.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.len()) };
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
    // SAFETY: required of the caller.
    unsafe { map_piece(reservation, at, len, (fd, fd_offset), share, share.prot()) }
}

/// As [`map_over`], with other rights than those of `share`.
///
/// # Safety
/// That of [`map_over`].
unsafe fn map_piece(
    reservation: &Reservation,
    at: usize,
    len: usize,
    (fd, fd_offset): (BorrowedFd<'_>, u64),
    share: Share,
    prot: ProtFlags,
) -> Result<*mut u8, Errno> {
    let dst = reservation.piece(at, len).ok_or(Errno::INVAL)?;
    // SAFETY: MAP_FIXED replaces only pages of the reservation, which is ours; the caller
    // is responsible for its users.
    unsafe {
        rustix::mm::mmap(
            dst.cast(),
            len,
            prot,
            share.flags() | MapFlags::FIXED,
            fd,
            fd_offset,
        )
    }?;
    Ok(dst)
}

/// A range of a descriptor, mapped.
#[derive(Debug)]
pub(super) struct Mapping {
    range: Reservation,
    /// Offset in the descriptor of the first byte.
    first: u64,
    len: Grows,
    share: Share,
}

impl Mapping {
    /// Maps the first `len` bytes of `fd`.
    pub(super) fn new(fd: BorrowedFd<'_>, len: usize, share: Share) -> Result<Mapping, Errno> {
        Mapping::with_room(fd, 0, len, len, share)
    }

    /// Maps `len` bytes of `fd` from `first`, and reserves addresses for `room` bytes in all, if
    /// there are so many.
    pub(super) fn with_room(
        fd: BorrowedFd<'_>,
        first: u64,
        len: usize,
        room: usize,
        share: Share,
    ) -> Result<Mapping, Errno> {
        let mut room = room.max(len);
        let range = loop {
            match Reservation::new(room, first) {
                // The kernel has fewer addresses, or a limit counts them (RLIMIT_AS, and
                // RLIMIT_MEMLOCK after mlockall). With `len` it cannot grow in place.
                Err(_) if room > len => room = (room / 2).max(len),
                range => break range?,
            }
        };
        // SAFETY: the reservation was made here and has no user yet.
        unsafe { map_over(&range, 0, len, fd, first, share) }?;
        Ok(Mapping {
            range,
            first,
            len: Grows::new(len as u64),
            share,
        })
    }

    /// Maps the bytes of `fd` from the present end up to `len`. The caller excludes other
    /// callers. The length is published last, so a reader that sees it can access all of it.
    pub(super) fn grow(&self, fd: BorrowedFd<'_>, len: usize) -> Result<(), Errno> {
        self.grow_as(fd, len, self.share.prot(), |_, _| Ok(()))
    }

    /// As [`grow`](Self::grow), for a mapping that is closed for stores: so is the new part.
    /// `open` gets its address and length, and sets its rights before anybody knows it.
    pub(super) fn grow_closed(
        &self,
        fd: BorrowedFd<'_>,
        len: usize,
        open: impl FnOnce(*mut u8, usize) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.grow_as(fd, len, ProtFlags::READ, open)
    }

    fn grow_as(
        &self,
        fd: BorrowedFd<'_>,
        len: usize,
        prot: ProtFlags,
        ready: impl FnOnce(*mut u8, usize) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let from = self.len();
        let Some(more) = len.checked_sub(from).filter(|more| *more > 0) else {
            return Ok(());
        };
        let at = self.first + from as u64;
        // An older kernel removes what is mapped at a fixed address before it finds that it
        // lacks huge pages, say. A mapping elsewhere shows that first.
        // SAFETY: a new mapping at an address that the kernel chooses, which is not accessed.
        unsafe {
            let tried = rustix::mm::mmap(
                std::ptr::null_mut(),
                more,
                self.share.prot(),
                self.share.flags(),
                fd,
                at,
            )?;
            rustix::mm::munmap(tried, more)?;
        }
        // SAFETY: the part past the end has no user: every address that was given out lies
        // before `len`.
        let mapped = unsafe { map_piece(&self.range, from, more, (fd, at), self.share, prot) };
        if let Err(e) = mapped {
            self.range.retake(from);
            return Err(e);
        }
        if let Err(e) = ready(self.range.base().wrapping_add(from), more) {
            // SAFETY: as above.
            let _ = unsafe { self.range.clear(from, more) };
            return Err(e);
        }
        self.len.raise(len as u64);
        Ok(())
    }

    /// Returns the bytes of address space that are reserved.
    pub(super) fn reserved(&self) -> usize {
        self.range.len()
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.range.base()
    }
    pub(super) fn len(&self) -> usize {
        self.len.get() as usize
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
