//! Words in memory that outlives the process: a sealed memfd, mapped.
//!
//! Another process that gets the descriptor maps the same words. The file cannot shrink, so an
//! access never misses its page.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Seals that every such file has.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Mapped words. Pages take memory when they are first stored to.
///
/// ```
/// use std::sync::atomic::Ordering;
/// use pramfs_kernel_sys::shared_words::SharedWords;
///
/// let words = SharedWords::create(c"example", 1 << 20)?;
/// words[7].store(1, Ordering::Release);
/// let again = SharedWords::map(words.descriptor().try_clone_to_owned()?)?;
/// assert_eq!(again[7].load(Ordering::Acquire), 1);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct SharedWords {
    first: NonNull<AtomicU64>,
    len: usize,
    file: File,
}

// SAFETY: the mapping is valid until the drop, wherever the value is, and is accessed by atomics.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Makes `len` words that are zero. `name` is shown in `/proc`.
    ///
    /// # Errors
    /// Of memfd_create(2) and mmap(2); EINVAL for no words, or too many for a file.
    pub fn create(name: &std::ffi::CStr, len: usize) -> io::Result<SharedWords> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name ends with NUL, and lives for the call.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nobody else has it.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        let bytes = len.checked_mul(8).ok_or(io::ErrorKind::InvalidInput)?;
        file.set_len(bytes as u64)?;
        // SAFETY: a seal takes a number, and no memory.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) } != 0 {
            return Err(io::Error::last_os_error());
        }
        SharedWords::of(file)
    }

    /// Maps the words of a process that may be gone.
    ///
    /// # Errors
    /// Of mmap(2); EINVAL for a descriptor that [`create`](Self::create) has not made.
    pub fn map(descriptor: OwnedFd) -> io::Result<SharedWords> {
        // SAFETY: asks for a number.
        let seals = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & SEALS != SEALS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        SharedWords::of(File::from(descriptor))
    }

    fn of(file: File) -> io::Result<SharedWords> {
        let bytes = usize::try_from(file.metadata()?.len())
            .ok()
            .filter(|bytes| *bytes != 0 && bytes.is_multiple_of(8))
            .ok_or(io::ErrorKind::InvalidInput)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let first = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                access,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if first == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let first = NonNull::new(first.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let len = bytes / 8;
        Ok(SharedWords { first, len, file })
    }

    /// The descriptor to pass on.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Deref for SharedWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: so many words are mapped, at the start of a page, until the drop. The file
        // cannot shrink. Any bytes are a valid word, and other processes store by atomics, too.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: unmaps what was mapped; no borrow of it is left.
        unsafe { libc::munmap(self.first.as_ptr().cast(), self.len * 8) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn words_outlive_their_first_mapping() {
        let words = SharedWords::create(c"test", 4096).unwrap();
        assert_eq!(words.len(), 4096);
        words[4095].store(u64::MAX, Ordering::Release);
        let descriptor = words.descriptor().try_clone_to_owned().unwrap();
        drop(words);
        let words = SharedWords::map(descriptor).unwrap();
        assert_eq!(words[4095].load(Ordering::Acquire), u64::MAX);
        assert_eq!(words[0].load(Ordering::Acquire), 0);
    }

    #[test]
    fn map_of_file_that_may_shrink_is_refused() {
        let words = SharedWords::create(c"test", 1).unwrap();
        assert!(
            File::from(words.descriptor().try_clone_to_owned().unwrap())
                .set_len(0)
                .is_err()
        );
        // SAFETY: the name ends with NUL.
        let fd = unsafe { libc::memfd_create(c"other".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: the descriptor is new.
        let other = unsafe { OwnedFd::from_raw_fd(fd) };
        assert!(SharedWords::map(other).is_err());
        assert!(SharedWords::map(File::open("/dev/null").unwrap().into()).is_err());
        assert!(SharedWords::create(c"none", 0).is_err());
    }
}
