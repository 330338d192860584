//! The descriptors that this library keeps open, for a program that does not know of them
//! (the preload library): where they are, and which numbers they have.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

/// Numbers that can be told apart from those of the program. A higher one is never kept.
const MOST: usize = 1 << 16;

static KEPT: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];

/// Those of them that a forked child has replaced itself: of regions.
static REGIONS: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];

/// This is a forked child, which has given the others up.
static ARE_GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// The lowest number that is used, or 0: any number, and none is noted.
static LOWEST: AtomicI32 = AtomicI32::new(0);

/// Keeps all further descriptors at this number or above, and notes their numbers. For a
/// library inside a program that does not know of them.
pub fn keep_descriptors_above(lowest: RawFd) {
    LOWEST.store(lowest, Ordering::Relaxed);
}

/// Whether this library keeps a descriptor of this number. Waits for nothing.
pub fn is_kept_descriptor(fd: RawFd) -> bool {
    let Ok(at) = usize::try_from(fd) else {
        return false;
    };
    let word = KEPT.get(at / 64);
    word.is_some_and(|word| word.load(Ordering::Acquire) & bit(at) != 0)
}

/// In a forked child: gives up the descriptors that it has from its parent, and has `close` close
/// them. Those of regions have been replaced. Async-signal-safe, if `close` is. Files and connections
/// of the parent must not be used, or dropped, from then on.
pub fn give_up_inherited_descriptors(mut close: impl FnMut(RawFd)) {
    ARE_GIVEN_UP.store(true, Ordering::Relaxed);
    for (at, (kept, regions)) in KEPT.iter().zip(&REGIONS).enumerate() {
        let regions = regions.load(Ordering::Relaxed);
        let mut others = kept.fetch_and(regions, Ordering::Relaxed) & !regions;
        while others != 0 {
            close((at * 64) as RawFd + others.trailing_zeros() as RawFd);
            others &= others - 1;
        }
    }
}

/// Whether the descriptors that a parent has kept are closed in this process.
pub(crate) fn are_given_up() -> bool {
    ARE_GIVEN_UP.load(Ordering::Relaxed)
}

fn bit(at: usize) -> u64 {
    1 << (at % 64)
}

/// The note that a descriptor is kept. Dropped before the descriptor is closed.
#[derive(Debug)]
pub(crate) struct Kept(Option<usize>);

/// Moves a descriptor to the numbers that are kept, and notes it.
pub(crate) fn keep(fd: OwnedFd) -> std::io::Result<(Kept, OwnedFd)> {
    let lowest = LOWEST.load(Ordering::Relaxed);
    if lowest == 0 {
        return Ok((Kept(None), fd));
    }
    let moved = match fd.as_raw_fd() >= lowest {
        true => fd,
        false => rustix::io::fcntl_dupfd_cloexec(&fd, lowest)?,
    };
    let at = moved.as_raw_fd() as usize;
    let Some(word) = KEPT.get(at / 64) else {
        return Err(rustix::io::Errno::MFILE.into());
    };
    word.fetch_or(bit(at), Ordering::AcqRel);
    Ok((Kept(Some(at)), moved))
}

/// As [`keep`], for the descriptor of a region.
pub(crate) fn keep_region(fd: OwnedFd) -> std::io::Result<(Kept, OwnedFd)> {
    let kept = keep(fd)?;
    if let Kept(Some(at)) = kept.0 {
        REGIONS[at / 64].fetch_or(bit(at), Ordering::AcqRel);
    }
    Ok(kept)
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(at) = self.0 {
            REGIONS[at / 64].fetch_and(!bit(at), Ordering::AcqRel);
            KEPT[at / 64].fetch_and(!bit(at), Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_descriptor_is_noted_until_it_is_dropped() {
        let open = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let (plain, fd) = keep(open()).unwrap();
        assert!(!is_kept_descriptor(fd.as_raw_fd()));
        drop((plain, fd));
        keep_descriptors_above(700);
        let (kept, fd) = keep(open()).unwrap();
        keep_descriptors_above(0);
        let number = fd.as_raw_fd();
        assert!(number >= 700 && is_kept_descriptor(number));
        assert!(!is_kept_descriptor(-1) && !is_kept_descriptor(i32::MAX));
        drop(kept);
        assert!(!is_kept_descriptor(number));
        // As in a forked child.
        keep_descriptors_above(700);
        let (file, region) = (keep(open()).unwrap(), keep_region(open()).unwrap());
        keep_descriptors_above(0);
        let mut closed = Vec::new();
        give_up_inherited_descriptors(|fd| closed.push(fd));
        assert_eq!(closed, [file.1.as_raw_fd()]);
        assert!(!is_kept_descriptor(closed[0]) && is_kept_descriptor(region.1.as_raw_fd()));
        ARE_GIVEN_UP.store(false, Ordering::Relaxed);
    }
}
