//! Arguments of C: pointers that are checked for NULL, and vouched for by the caller; and
//! numbers that stand for something else.
//!
//! The contract of the header, which every `SAFETY` comment of this crate refers to:
//!
//! 1. A handle is NULL, or was given out by the function that makes it, and was not closed
//!    since. No other thread closes it during the call.
//! 2. A string is NULL, or ends with a NUL, and nobody changes it during the call.
//! 3. A buffer is NULL, or has at least the given number of bytes, and nobody else stores to
//!    it during the call; nobody reads one that the call fills. It may be uninitialised
//!    where the call fills it: the library only stores there.
//! 4. A place for a result is NULL, or can hold the result, and is used by no other thread
//!    during the call.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::ops::{Deref, Range};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use pramfs::Access;

use crate::error::Failure;
use crate::fs::{Call, Shared};

fn null(name: &str) -> Failure {
    Failure::invalid(format!("the argument {name} is NULL"))
}

/// What a handle points to.
pub(crate) trait Handle {
    /// The file system that it belongs to.
    fn shared(&self) -> Option<&Shared>;
}

/// The object behind a handle, in use by a call.
#[derive(Debug)]
pub(crate) struct Used<'a, T> {
    object: &'a T,
    _call: Option<Call<'a>>,
}

impl<T> Deref for Used<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.object
    }
}

/// The object behind a handle, if calls of its file system are not refused.
///
/// # Safety
/// The contract, 1.
pub(crate) unsafe fn handle<'a, T: Handle>(
    handle: *const T,
    name: &str,
) -> Result<Used<'a, T>, Failure> {
    // SAFETY: as required of the caller.
    let object = unsafe { optional(handle) }.ok_or_else(|| null(name))?;
    Ok(Used {
        object,
        _call: object.shared().map(Shared::enter).transpose()?,
    })
}

/// An object that the caller can leave out.
///
/// # Safety
/// The contract, 1.
pub(crate) unsafe fn optional<'a, T>(object: *const T) -> Option<&'a T> {
    // SAFETY: NULL, or a box that lives during the call; only `close` and the functions of
    // `exclusive` have it for themselves, and no other call runs beside them.
    unsafe { object.as_ref() }
}

/// The object behind a handle that no other thread uses during the call.
///
/// # Safety
/// The contract, 1, and no other call has the handle.
pub(crate) unsafe fn exclusive<'a, T>(handle: *mut T, name: &str) -> Result<&'a mut T, Failure> {
    // SAFETY: NULL, or a box that lives during the call and is used by this call alone.
    unsafe { handle.as_mut() }.ok_or_else(|| null(name))
}

/// Takes back the object of a handle that is being closed; `None` for NULL.
///
/// # Safety
/// The contract, 1, and the handle is never used again.
pub(crate) unsafe fn closed<T>(handle: *mut T) -> Option<Box<T>> {
    // SAFETY: `give` made the pointer from a box, and nobody uses it any more.
    (!handle.is_null()).then(|| unsafe { Box::from_raw(handle) })
}

/// A string of C.
///
/// # Safety
/// The contract, 2.
pub(crate) unsafe fn string<'a>(text: *const c_char, name: &str) -> Result<&'a [u8], Failure> {
    if text.is_null() {
        return Err(null(name));
    }
    // SAFETY: not NULL, so it ends with a NUL and does not change during the call.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// A path: any bytes.
///
/// # Safety
/// The contract, 2.
pub(crate) unsafe fn path<'a>(path: *const c_char, name: &str) -> Result<&'a Path, Failure> {
    // SAFETY: as required of the caller.
    let bytes = unsafe { string(path, name) }?;
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

/// The largest number of bytes of one object.
fn fits(len: usize) -> Result<(), Failure> {
    match isize::try_from(len) {
        Ok(_) => Ok(()),
        Err(_) => Err(Failure::invalid(format!(
            "{len} bytes are more than a buffer can have"
        ))),
    }
}

/// An array to read from. NULL is allowed for an empty one.
///
/// # Safety
/// The contract, 3: `count` valid objects.
pub(crate) unsafe fn array<'a, T>(
    array: *const T,
    count: usize,
    name: &str,
) -> Result<&'a [T], Failure> {
    fits(count.saturating_mul(size_of::<T>()))?;
    match (array.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null(name)),
        // SAFETY: `count` objects that nobody stores to during the call. A C program aligns
        // an array by its type.
        _ => Ok(unsafe { std::slice::from_raw_parts(array, count) }),
    }
}

/// Bytes to read from. NULL is allowed for none.
///
/// # Safety
/// The contract, 3.
pub(crate) unsafe fn bytes<'a>(
    buf: *const c_void,
    len: usize,
    name: &str,
) -> Result<&'a [u8], Failure> {
    fits(len)?;
    match (buf.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null(name)),
        // SAFETY: `len` bytes that nobody stores to during the call.
        _ => Ok(unsafe { std::slice::from_raw_parts(buf.cast(), len) }),
    }
}

/// Bytes to be filled. NULL is allowed for none.
///
/// # Safety
/// The contract, 3.
pub(crate) unsafe fn bytes_mut<'a>(
    buf: *mut c_void,
    len: usize,
    name: &str,
) -> Result<&'a mut [u8], Failure> {
    fits(len)?;
    match (buf.is_null(), len) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(null(name)),
        // SAFETY: `len` bytes that this call alone uses. They were allocated, and perhaps
        // initialised, by code that the compiler of this crate does not see; the callees
        // only store to them.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(buf.cast(), len) }),
    }
}

/// A place for a result.
#[derive(Debug)]
pub(crate) struct Place<T>(*mut T);

/// Checks a place for a result, before anything is done.
///
/// # Safety
/// The contract, 4.
pub(crate) unsafe fn place<T>(place: *mut T, name: &str) -> Result<Place<T>, Failure> {
    match place.is_null() {
        true => Err(null(name)),
        false => Ok(Place(place)),
    }
}

impl<T> Place<T> {
    pub(crate) fn set(self, value: T) {
        // SAFETY: `place` has checked it for NULL, and its caller vouches for the rest. What
        // was there is overwritten, not dropped: it may be uninitialised.
        unsafe { self.0.write(value) }
    }
}

impl<T> Place<*mut T> {
    /// Gives an object to the caller, who returns it by closing the handle.
    pub(crate) fn give(self, object: T) {
        self.set(Box::into_raw(Box::new(object)));
    }
}

/// A truth value of C.
pub(crate) fn truth(value: c_int) -> bool {
    value != 0
}

/// `len` bytes of a file from `offset` on.
pub(crate) fn range(offset: u64, len: u64) -> Result<Range<u64>, Failure> {
    let end = offset.checked_add(len).ok_or_else(|| {
        Failure::invalid(format!("{len} bytes at byte {offset} are past any file"))
    })?;
    Ok(offset..end)
}

/// What memory is mapped for, as mmap(2) is told.
pub(crate) fn access(prot: c_int) -> Result<Access, Failure> {
    const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;
    match prot {
        libc::PROT_READ => Ok(Access::Read),
        READ_WRITE => Ok(Access::Write),
        _ => Err(Failure::invalid(
            "prot is PROT_READ, or PROT_READ | PROT_WRITE",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::pramfs_fs;

    #[test]
    fn null_is_error_that_names_argument() {
        // SAFETY: NULL is allowed everywhere.
        unsafe {
            let told = |failure: Failure| format!("{failure:?}");
            let missing = handle::<pramfs_fs>(std::ptr::null(), "fs").unwrap_err();
            assert!(told(missing).contains("fs is NULL"));
            assert!(string(std::ptr::null(), "path").is_err());
            assert!(bytes(std::ptr::null(), 1, "buf").is_err());
            assert!(bytes_mut(std::ptr::null_mut(), 1, "buf").is_err());
            assert!(place::<u8>(std::ptr::null_mut(), "size").is_err());
            assert!(closed::<u8>(std::ptr::null_mut()).is_none());
        }
    }

    #[test]
    fn empty_buffer_may_be_null_and_huge_one_is_refused() {
        // SAFETY: NULL is allowed, and no buffer has so many bytes.
        unsafe {
            assert!(bytes(std::ptr::null(), 0, "buf").unwrap().is_empty());
            assert!(
                bytes_mut(std::ptr::null_mut(), 0, "buf")
                    .unwrap()
                    .is_empty()
            );
            let one = 0u8;
            assert!(bytes((&raw const one).cast(), usize::MAX, "buf").is_err());
        }
    }
}
