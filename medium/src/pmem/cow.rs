//! Copy on write for a mapping that the kernel will not make private.
//!
//! devdax refuses `MAP_PRIVATE`. A read-only region on devdax is mapped for loads only.
//! Before the first store into a unit, a private copy replaces the unit.
//!
//! Invariant: a unit belongs to the medium until its bit is set. From then on it is a
//! private copy that started with the medium's bytes.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, MremapFlags, ProtFlags};

use super::once_bits::OnceBits;

#[derive(Debug)]
pub(super) struct Cow {
    base: usize,
    unit: usize,
    copied: OnceBits,
    failures: AtomicU64,
}

impl Cow {
    /// Handles a mapping of `len` bytes at `base`, both multiples of `unit`.
    pub(super) fn new(base: *mut u8, len: usize, unit: usize) -> Cow {
        Cow {
            base: base as usize,
            unit,
            copied: OnceBits::new(len.div_ceil(unit)),
            failures: AtomicU64::new(0),
        }
    }

    /// Makes a range writable. If it returns false, the range must not be stored to.
    ///
    /// # Safety
    /// The range lies in the mapping that this value was made for.
    pub(super) unsafe fn privatise(&self, ptr: *mut u8, len: usize) -> bool {
        if len == 0 {
            return true;
        }
        let first = (ptr as usize - self.base) / self.unit;
        let last = (ptr as usize + len - 1 - self.base) / self.unit;
        (first..=last).all(|i| {
            self.copied.once(i, || {
                // SAFETY: the unit lies in the mapping, by the caller's contract.
                let copied =
                    unsafe { copy_unit((self.base + i * self.unit) as *mut u8, self.unit) };
                if let Err(e) = copied {
                    self.failures.fetch_add(1, Ordering::Release);
                    super::fault::note_fault();
                    tracing::error!(
                        "cannot copy {} bytes of a read-only region privately: {e}",
                        self.unit
                    );
                }
                copied.is_ok()
            })
        })
    }

    /// Returns the number of stores dropped for lack of memory.
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }
}

/// Replaces one unit by a copy in one step. A concurrent reader sees the same bytes before,
/// during and after.
///
/// # Safety
/// The unit is readable, and belongs to the caller's mapping.
unsafe fn copy_unit(at: *mut u8, unit: usize) -> rustix::io::Result<()> {
    // SAFETY: the new mapping replaces nothing. The copy stays within it and the unit. The
    // move puts exactly `unit` bytes over the unit, which belongs to the caller.
    unsafe {
        let copy = rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            unit,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )?;
        super::live::load(copy.cast(), at, unit);
        let moved = rustix::mm::mremap_fixed(copy, unit, unit, MremapFlags::MAYMOVE, at.cast());
        if moved.is_err() {
            let _ = rustix::mm::munmap(copy, unit);
        }
        moved.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmem::mapping::{Mapping, Share};

    #[test]
    fn store_copies_only_touched_units() {
        let unit = 64 << 10;
        let fd = rustix::fs::memfd_create("cow", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, 4 * unit as u64).unwrap();
        rustix::io::pwrite(&fd, &[7; 16], unit as u64).unwrap();
        use std::os::fd::AsFd;
        let map = Mapping::new(fd.as_fd(), 4 * unit, Share::SharedReadOnly).unwrap();
        let cow = Cow::new(map.base(), map.len(), unit);
        let at = map.base().wrapping_add(2 * unit - 4);
        // SAFETY: inside the mapping; privatise has made it writable.
        unsafe {
            assert!(cow.privatise(at, 8));
            at.write_bytes(9, 8);
            assert_eq!(map.base().add(unit).read(), 7);
            assert_eq!(map.base().read(), 0);
        }
        let mut on_medium = [1u8; 8];
        rustix::io::pread(&fd, &mut on_medium, 2 * unit as u64 - 4).unwrap();
        assert_eq!(on_medium, [0; 8]);
        // A unit without stores still shows the medium.
        rustix::io::pwrite(&fd, &[3], 0).unwrap();
        // SAFETY: inside the mapping.
        assert_eq!(unsafe { map.base().read_volatile() }, 3);
        assert_eq!(cow.failures(), 0);
    }
}
