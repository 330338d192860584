//! Errors: a negative errno for the caller, and a sentence about the last one.
//!
//! The sentence says what failed, on what, and why. It is kept for each thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::fmt::Display;

use pramfs::pmem::PmemError;
use pramfs::{Error, UnmountError};

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    errno: c_int,
    message: String,
}

impl Failure {
    pub(crate) fn new(errno: c_int, message: impl Into<String>) -> Failure {
        Failure {
            errno,
            message: message.into(),
        }
    }

    /// EINVAL, with this sentence.
    pub(crate) fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(libc::EINVAL, message)
    }

    /// Keeps the sentence for this thread, and returns the negative errno.
    pub(crate) fn report(self) -> c_int {
        // A sentence can quote a name of the caller, but no C string has a NUL.
        let text = CString::new(self.message.replace('\0', "?")).unwrap_or_default();
        // A destructor of another thread-local value may call when this one is gone.
        let _gone = LAST.try_with(|last| *last.borrow_mut() = text);
        match self.errno {
            errno if errno > 0 => -errno,
            // Never a success.
            _ => -libc::EIO,
        }
    }
}

/// An error of the Rust libraries.
pub(crate) trait Errno: Display {
    fn errno(&self) -> c_int;
}

impl Errno for Error {
    fn errno(&self) -> c_int {
        Error::errno(self)
    }
}

impl Errno for PmemError {
    fn errno(&self) -> c_int {
        PmemError::errno(self)
    }
}

impl Errno for UnmountError {
    fn errno(&self) -> c_int {
        UnmountError::errno(self)
    }
}

impl Errno for pramfs_client::Error {
    fn errno(&self) -> c_int {
        pramfs_client::Error::errno(self)
    }
}

/// Adds to an error what was done, and to what.
pub(crate) trait About<T> {
    /// `what` is the beginning of the sentence: "cannot read /log".
    fn about<S: Display>(self, what: impl FnOnce() -> S) -> Result<T, Failure>;
}

impl<T, E: Errno> About<T> for Result<T, E> {
    fn about<S: Display>(self, what: impl FnOnce() -> S) -> Result<T, Failure> {
        self.map_err(|e| Failure::new(e.errno(), format!("{}: {e}", what())))
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Returns a sentence about the last error that a function of this library returned in the
/// calling thread: what failed, on what, and why.
///
/// Never NULL; an empty string if nothing has failed. A call that succeeds leaves it as it
/// is. The text is for people, and may differ in later versions. It is valid until the next
/// call that fails in this thread, or the end of the thread.
#[unsafe(no_mangle)]
pub extern "C" fn pramfs_errormsg() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn last() -> String {
        // SAFETY: the string lives until the next failure of this thread.
        let text = unsafe { CStr::from_ptr(pramfs_errormsg()) };
        text.to_str().unwrap().to_owned()
    }

    #[test]
    fn report_keeps_sentence_for_thread() {
        assert_eq!(last(), "");
        assert_eq!(Failure::new(libc::ENOENT, "a\0b").report(), -libc::ENOENT);
        assert_eq!(last(), "a?b");
        std::thread::spawn(|| assert_eq!(last(), ""))
            .join()
            .unwrap();
    }

    #[test]
    fn failure_is_never_reported_as_success() {
        for errno in [0, -1, c_int::MIN] {
            assert_eq!(Failure::new(errno, "").report(), -libc::EIO);
        }
    }
}
