//! The border: no panic crosses it.
//!
//! Unwinding through a frame of C is undefined. A panic in the library is a bug; the caller
//! gets EIO and a message that says so. The panic hook of the process is left alone, so the
//! place of the bug is printed as well.

use std::any::Any;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::ssize_t;

use crate::error::Failure;

/// Runs a function whose result is 0 or a small number.
pub(crate) fn int(call: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    caught(call).unwrap_or_else(Failure::report)
}

/// Runs a function whose result is 0.
pub(crate) fn done(call: impl FnOnce() -> Result<(), Failure>) -> c_int {
    int(|| call().map(|()| 0))
}

/// Runs a function whose result is a number of bytes.
pub(crate) fn bytes(call: impl FnOnce() -> Result<usize, Failure>) -> ssize_t {
    // No buffer is larger than the largest ssize_t.
    let bytes = |n: usize| ssize_t::try_from(n).unwrap_or(ssize_t::MAX);
    match caught(call) {
        Ok(n) => bytes(n),
        Err(failure) => failure.report() as ssize_t,
    }
}

/// Runs a function whose result is a value of its own, or `otherwise` after an error.
pub(crate) fn value<T>(otherwise: T, call: impl FnOnce() -> Result<T, Failure>) -> T {
    caught(call).unwrap_or_else(|failure| {
        failure.report();
        otherwise
    })
}

/// A panic leaves no lock locked. What it has left half changed is not used again: see
/// [`Shared::enter`](crate::fs::Shared::enter).
fn caught<T>(call: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result,
        Err(payload) => {
            let what = said(&*payload);
            let failure = Failure::new(
                libc::EIO,
                format!("a bug of pramfs, please report it: {what}"),
            );
            // Its destructor could panic as well.
            std::mem::forget(payload);
            Err(failure)
        }
    }
}

fn said(payload: &(dyn Any + Send)) -> &str {
    match payload.downcast_ref::<String>() {
        Some(text) => text,
        None => payload
            .downcast_ref::<&str>()
            .copied()
            .unwrap_or("no message"),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;
    use crate::error::pramfs_errormsg;

    struct PanicsAgain;

    impl Drop for PanicsAgain {
        fn drop(&mut self) {
            panic!("in the destructor of a panic");
        }
    }

    fn last() -> &'static str {
        // SAFETY: the string lives until the next failure; each test looks at it at once.
        unsafe { CStr::from_ptr(pramfs_errormsg()) }
            .to_str()
            .unwrap()
    }

    #[test]
    fn panic_becomes_eio_with_message() {
        assert_eq!(done(|| panic!("on purpose")), -libc::EIO);
        assert!(last().contains("a bug of pramfs") && last().ends_with("on purpose"));
        let number = 7;
        assert_eq!(int(|| panic!("number {number}")), -libc::EIO);
        assert!(last().ends_with("number 7"), "{}", last());
        assert_eq!(bytes(|| panic!("again")), -(libc::EIO as ssize_t));
        assert_eq!(value(-1, || panic!("and again")), -1);
        let odd = || std::panic::panic_any(PanicsAgain);
        assert_eq!(done(odd), -libc::EIO);
        assert!(last().ends_with("no message"));
    }

    #[test]
    fn results_pass_unchanged() {
        assert_eq!(done(|| Ok(())), 0);
        assert_eq!(int(|| Ok(1)), 1);
        assert_eq!(bytes(|| Ok(4096)), 4096);
        let full = || Err(Failure::new(libc::ENOSPC, "full"));
        assert_eq!(bytes(full), -(libc::ENOSPC as ssize_t));
        assert_eq!(last(), "full");
    }
}
