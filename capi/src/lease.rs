//! [`pramfs_lease`] and [`pramfs_view`]: a file of a mounted file system, read directly.
//!
//! As the crate `pramfs-client`: the file is opened through the mount, and its server grants
//! a lease on its blocks. `docs/leases.md` describes it.

use std::ffi::{c_char, c_int, c_void};
use std::fs::File as SystemFile;
use std::os::fd::BorrowedFd;
use std::path::Path;

use libc::ssize_t;
use pramfs_client::{Access, File, MappedFile, OpenOptions};

use crate::args::{self, Handle};
use crate::error::{About as _, Failure};
use crate::fs::Shared;
use crate::guard;

/// A file of a mount, read directly from the medium.
#[derive(Debug)]
pub struct pramfs_lease {
    file: File,
    path: String,
}

/// Its library keeps no state that a panic could leave half changed.
impl Handle for pramfs_lease {
    fn shared(&self) -> Option<&Shared> {
        None
    }
}

/// A range of such a file, mapped as memory for reading.
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

/// Where the servers of mounts have their control sockets, unless a program says otherwise.
///
/// # Safety
/// The contract, 2.
unsafe fn options(control_directory: *const c_char) -> Result<OpenOptions, Failure> {
    let options = OpenOptions::new();
    if control_directory.is_null() {
        return Ok(options);
    }
    // SAFETY: as required of the caller.
    let path: &Path = unsafe { args::path(control_directory, "control_directory") }?;
    Ok(options.control_directory(path))
}

/// Opens a file of a mounted file system for reading, and asks its server for a lease: a
/// promise that the blocks of the file stay its blocks. `path` is a path of the system, and
/// the kernel checks the permissions. The region must be mounted with the option
/// direct=owner, and the caller must be root.
///
/// `control_directory` is where the control sockets of servers are; NULL stands for
/// /run/pramfs.
///
/// `pramfs_lease_close` closes `*lease`, which is set only if the call succeeds. While it is
/// open, the mount is busy.
///
/// Errors: -EINVAL for NULL, -ENOTTY (not on a pramfs mount), -EOPNOTSUPP (the mount grants
/// no leases), -EACCES (not to this user), -ENOSPC (too many leases), -ENOTCONN (no server),
/// -ETIMEDOUT, -ENOENT and others of open(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_lease_open(
    lease: *mut *mut pramfs_lease,
    path: *const c_char,
    control_directory: *const c_char,
) -> c_int {
    guard::done(|| {
        // SAFETY: a place for a result and strings (contract, 4 and 2).
        let (place, path, options) = unsafe {
            (
                args::place(lease, "lease")?,
                args::path(path, "path")?,
                options(control_directory)?,
            )
        };
        let cannot = || format!("cannot open {} for direct access", path.display());
        place.give(pramfs_lease {
            file: options.open(path).about(cannot)?,
            path: path.display().to_string(),
        });
        Ok(())
    })
}

/// As `pramfs_lease_open`, for a file that is open for reading. The descriptor is duplicated
/// and stays the caller's. After the death of the server, such a lease cannot be renewed.
///
/// Errors: -EBADF; as of `pramfs_lease_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_lease_open_fd(
    lease: *mut *mut pramfs_lease,
    fd: c_int,
    control_directory: *const c_char,
) -> c_int {
    guard::done(|| {
        // SAFETY: a place for a result and a string (contract, 4 and 2).
        let (place, options) =
            unsafe { (args::place(lease, "lease")?, options(control_directory)?) };
        if fd < 0 {
            return Err(Failure::new(
                libc::EBADF,
                format!("{fd} is no open descriptor"),
            ));
        }
        // SAFETY: it is not -1. The caller keeps it open during the call; if it is not open,
        // the system call says so.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        let own = borrowed.try_clone_to_owned().map_err(|e| {
            Failure::new(
                e.raw_os_error().unwrap_or(libc::EBADF),
                format!("cannot duplicate the descriptor {fd}: {e}"),
            )
        })?;
        let cannot = || format!("cannot open the descriptor {fd} for direct access");
        place.give(pramfs_lease {
            file: options.from_file(SystemFile::from(own)).about(cannot)?,
            path: format!("the descriptor {fd}"),
        });
        Ok(())
    })
}

/// Closes a file, and gives up its lease when the last view of it is closed. Does nothing
/// for NULL. Its views stay valid.
///
/// Errors: none so far.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_lease_close(lease: *mut pramfs_lease) -> c_int {
    guard::done(|| {
        // SAFETY: a handle that is never used again (contract, 1).
        drop(unsafe { args::closed(lease) });
        Ok(())
    })
}

/// Reads up to `count` bytes from `offset` on into `buf`, without a system call. Returns
/// their number: fewer only at the end of the file. A write through the mount is seen at
/// once; one that runs at the same time may be seen in part, by aligned words of 8 bytes.
///
/// Errors: -EINVAL (NULL; too many bytes), -ENOTCONN (the server has died, and the blocks
/// are not known), -ESTALE (another file has the name since then), -EIO (the medium failed;
/// a forked child).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_lease_read(
    lease: *mut pramfs_lease,
    buf: *mut c_void,
    count: usize,
    offset: u64,
) -> ssize_t {
    guard::bytes(|| {
        // SAFETY: a handle, and a buffer that this call fills (contract, 1 and 3).
        let (lease, buf) = unsafe {
            (
                args::handle(lease, "lease")?,
                args::bytes_mut(buf, count, "buf")?,
            )
        };
        lease
            .file
            .read_at(buf, offset)
            .about(|| format!("cannot read {} at byte {offset}", lease.path))
    })
}

/// Stores the size of the file in bytes in `*size`, without a system call.
///
/// Errors: -EINVAL for NULL, -EIO.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_lease_size(lease: *mut pramfs_lease, size: *mut u64) -> c_int {
    guard::done(|| {
        // SAFETY: a handle and a place for a result (contract, 1 and 4).
        let (lease, place) = unsafe { (args::handle(lease, "lease")?, args::place(size, "size")?) };
        let found = lease
            .file
            .len()
            .about(|| format!("cannot read the size of {}", lease.path))?;
        place.set(found);
        Ok(())
    })
}

/// Maps `len` bytes of the file from `offset` on, for reading: the medium itself. Holes read
/// as zeros. `pramfs_view_close` closes `*view`, which is set only if the call succeeds.
///
/// The blocks belong to no other file while the view is open, whatever happens to the file,
/// to the mount and to its server.
///
/// Errors: -EINVAL (NULL; an empty range, or one past the end), -EAGAIN (the file changes
/// too fast), -EOPNOTSUPP (small blocks), -ENOMEM; as of `pramfs_lease_read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_view_open(
    view: *mut *mut pramfs_view,
    lease: *mut pramfs_lease,
    offset: u64,
    len: u64,
) -> c_int {
    guard::done(|| {
        // SAFETY: a place for a result, and a handle (contract, 4 and 1).
        let (place, lease) = unsafe { (args::place(view, "view")?, args::handle(lease, "lease")?) };
        let cannot = || format!("cannot map {}, {len} bytes at byte {offset}", lease.path);
        let end = offset
            .checked_add(len)
            .ok_or(pramfs_client::Error::Range)
            .about(cannot)?;
        place.give(pramfs_view {
            view: lease.file.map(offset..end, Access::Read).about(cannot)?,
            path: lease.path.clone(),
        });
        Ok(())
    })
}

/// Ends a view. Does nothing for NULL. Its addresses are invalid afterwards.
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
/// there can be read until the view is closed. Others may store to them at any time: use
/// atomic or volatile loads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_view_address(view: *const pramfs_view) -> *const c_void {
    guard::value(std::ptr::null(), || {
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
