//! The descriptors that this library keeps open, for a program that does not know of them
//! (the preload library): where they are, and which numbers they have.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Numbers that can be told apart from those of the program. A higher one is never kept.
const MOST: usize = 1 << 16;

static KEPT: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];

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

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(at) = self.0 {
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
    }
}
