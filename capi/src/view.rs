//! [`pramfs_view`]: a range of a file of a mount as memory, on the medium itself.
//!
//! As [`pramfs_map`](crate::map::pramfs_map), for a file of `lease.rs`. In contrast to a map,
//! a view cannot grow, and its file can change so that it shows the file no longer.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use pramfs_client::MappedFile;

use crate::args::{self, Handle};
use crate::error::About as _;
use crate::fs::Shared;
use crate::guard;
use crate::lease::pramfs_lease;

/// A range of a file of a mount, mapped as memory.
#[derive(Debug)]
pub struct pramfs_view {
    view: MappedFile,
    path: String,
}

/// Its library keeps no state that a panic could leave half changed.
impl Handle for pramfs_view {
    fn shared(&self) -> Option<&Shared> {
        None
    }
}

/// Maps `len` bytes of the file from `offset` on: the medium itself. The range must lie within
/// the file. `prot` is PROT_READ, or PROT_READ | PROT_WRITE, of mmap(2). Holes read as zeros;
/// a view for writing first fills them with zeroed blocks.
///
/// The blocks belong to no other file while the view is open, whatever happens to the file,
/// to the mount and to its server. `pramfs_view_close` closes `*view`, which is set only if
/// the call succeeds.
///
/// Errors: -EINVAL (NULL; an empty range, one past the end of the file, another `prot`),
/// -EBADF (the file was opened for reading), -ENOSPC (no blocks for holes), -EAGAIN (the file
/// changes too fast), -EOPNOTSUPP (small blocks), -ENOMEM; as of `pramfs_lease_read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_view_open(
    view: *mut *mut pramfs_view,
    lease: *mut pramfs_lease,
    offset: u64,
    len: u64,
    prot: c_int,
) -> c_int {
    guard::done(|| {
        // SAFETY: a place for a result, and a handle (contract, 4 and 1).
        let (place, lease) = unsafe { (args::place(view, "view")?, args::handle(lease, "lease")?) };
        let (access, range) = (args::access(prot)?, args::range(offset, len)?);
        let cannot = || format!("cannot map {}, {len} bytes at byte {offset}", lease.path);
        place.give(pramfs_view {
            view: lease.file.map(range, access).about(cannot)?,
            path: lease.path.clone(),
        });
        Ok(())
    })
}

/// Ends a view. Does nothing for NULL. Its addresses are invalid afterwards. Stores that were
/// not persisted are visible in the file, and are lost by a power failure.
///
/// Errors: none so far.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_view_close(view: *mut pramfs_view) -> c_int {
    guard::done(|| {
        // SAFETY: a handle that is never used again (contract, 1).
        drop(unsafe { args::closed(view) });
        Ok(())
    })
}

/// Returns the address of the first byte, or NULL for NULL. `pramfs_view_len` bytes from
/// there are the medium itself, readable and, in a view for writing, writable, until the view
/// is closed. Others may store to them at any time: use atomic or volatile accesses for what
/// others change.
///
/// After a fork, a child finds zeros there, and its stores change nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_view_address(view: *const pramfs_view) -> *mut c_void {
    guard::value(std::ptr::null_mut(), || {
        // SAFETY: a handle (contract, 1).
        Ok(unsafe { args::handle(view, "view") }?.view.as_ptr().cast())
    })
}

/// Returns the length in bytes, or 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_view_len(view: *const pramfs_view) -> u64 {
    guard::value(0, || {
        // SAFETY: a handle (contract, 1).
        Ok(unsafe { args::handle(view, "view") }?.view.len())
    })
}

/// Runs a method of the view on a range of it.
///
/// # Safety
/// The contract, 1.
unsafe fn on_range(
    view: *mut pramfs_view,
    offset: u64,
    len: u64,
    what: &str,
    work: impl FnOnce(&MappedFile, Range<u64>) -> pramfs_client::Result<()>,
) -> c_int {
    guard::done(|| {
        // SAFETY: as required of the caller.
        let view = unsafe { args::handle(view, "view") }?;
        work(&view.view, args::range(offset, len)?).about(|| {
            format!(
                "cannot {what} the view of {}, {len} bytes at byte {offset}",
                view.path
            )
        })
    })
}

/// Makes the stores to a range of the view durable; `offset` counts from its first byte. They
/// survive a power failure when it returns. Notes the change for the file's mtime.
///
/// Errors: -EINVAL (NULL; past the end of the view), -EIO (the medium failed; a forked
/// child).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_view_persist(
    view: *mut pramfs_view,
    offset: u64,
    len: u64,
) -> c_int {
    // SAFETY: a handle (contract, 1).
    unsafe { on_range(view, offset, len, "persist", MappedFile::persist) }
}

/// Starts to make the stores to a range durable, without waiting. They are durable after
/// `pramfs_view_drain` in the same thread. For several ranges, this is faster than
/// `pramfs_view_persist` for each.
///
/// Errors: as of `pramfs_view_persist`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_view_flush(view: *mut pramfs_view, offset: u64, len: u64) -> c_int {
    // SAFETY: a handle (contract, 1).
    unsafe { on_range(view, offset, len, "flush", MappedFile::flush) }
}

/// Waits until the ranges that this thread has flushed are durable, and notes the change for
/// the file's mtime.
///
/// Errors: -EINVAL for NULL, -EIO (a forked child; once, if a page of the region has failed
/// since the view was made).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_view_drain(view: *mut pramfs_view) -> c_int {
    guard::done(|| {
        // SAFETY: a handle (contract, 1).
        let view = unsafe { args::handle(view, "view") }?;
        view.view
            .drain()
            .about(|| format!("cannot drain the view of {}", view.path))
    })
}

/// Copies bytes of the view to `buf`. In contrast to a load, it gives an error if the medium
/// has failed there. The copy is atomic by aligned words of 8 bytes.
///
/// Errors: -EINVAL (NULL; past the end of the view), -EIO.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_view_read(
    view: *mut pramfs_view,
    offset: u64,
    buf: *mut c_void,
    count: usize,
) -> c_int {
    guard::done(|| {
        // SAFETY: a handle, and a buffer that this call fills (contract, 1 and 3).
        let (view, buf) = unsafe {
            (
                args::handle(view, "view")?,
                args::bytes_mut(buf, count, "buf")?,
            )
        };
        view.view
            .read(offset, buf)
            .about(|| format!("cannot read the view of {} at byte {offset}", view.path))
    })
}

/// Copies bytes from `buf` into the view. They are durable after `pramfs_view_persist`. The
/// copy is atomic by aligned words of 8 bytes.
///
/// Errors: -EINVAL (NULL; past the end of the view), -EACCES (a view for reading), -EIO.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_view_write(
    view: *mut pramfs_view,
    offset: u64,
    buf: *const c_void,
    count: usize,
) -> c_int {
    guard::done(|| {
        // SAFETY: a handle and a buffer (contract, 1 and 3).
        let (view, buf) = unsafe { (args::handle(view, "view")?, args::bytes(buf, count, "buf")?) };
        view.view
            .write(offset, buf)
            .about(|| format!("cannot write the view of {} at byte {offset}", view.path))
    })
}

/// Sets up all pages of the view now, instead of at their first use.
///
/// Errors: -EINVAL for NULL, -ENOMEM, -EIO (a forked child).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_view_populate(view: *mut pramfs_view) -> c_int {
    guard::done(|| {
        // SAFETY: a handle (contract, 1).
        let view = unsafe { args::handle(view, "view") }?;
        view.view
            .populate()
            .about(|| format!("cannot populate the view of {}", view.path))
    })
}

/// Returns 1 if the view still shows the file: since it was made, the file has not become
/// shorter, and no hole of it was filled; 0 if it does not. 1 holds for all loads before
/// this call.
///
/// Errors: -EINVAL for NULL, -EIO.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_view_is_current(view: *mut pramfs_view) -> c_int {
    guard::int(|| {
        // SAFETY: a handle (contract, 1).
        let view = unsafe { args::handle(view, "view") }?;
        let current = view
            .view
            .is_current()
            .about(|| format!("cannot check the view of {}", view.path))?;
        Ok(current.into())
    })
}
