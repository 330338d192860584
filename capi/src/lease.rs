//! [`pramfs_lease`]: a file of a mounted file system, read and written directly.
//!
//! As the crate `pramfs-client`: the file is opened through the mount, and its server grants
//! a lease on its blocks. `docs/leases.md` describes it. `view.rs` has its maps.

use std::ffi::{c_char, c_int, c_void};
use std::fs::File as SystemFile;
use std::os::fd::BorrowedFd;
use std::path::Path;

use libc::ssize_t;
use pramfs_client::{File, OpenOptions, Protect};

use crate::args::{self, Handle};
use crate::error::{About as _, Failure};
use crate::fs::Shared;
use crate::guard;

/// Flag of `pramfs_lease_open`: as `PRAMFS_LEASE_PROTECT_PKEY` where the processor has keys and one
/// is free, else nothing.
pub const PRAMFS_LEASE_PROTECT_AUTO: c_int = 0x1000_0000;
/// Flag of `pramfs_lease_open`, for writing: only calls for this file, and stores to its views, can
/// store to the region, by a protection key of the processor. Each open file takes one of the 15
/// keys of the process.
pub const PRAMFS_LEASE_PROTECT_PKEY: c_int = 0x2000_0000;

/// A file of a mount, read and written directly on the medium.
#[derive(Debug)]
pub struct pramfs_lease {
    pub(crate) file: File,
    pub(crate) path: String,
}

/// Its library keeps no state that a panic could leave half changed.
impl Handle for pramfs_lease {
    fn shared(&self) -> Option<&Shared> {
        None
    }
}

/// How to open a file: for what, and where the servers of mounts have their control sockets.
///
/// # Safety
/// The contract, 2.
unsafe fn options(flags: c_int, control_directory: *const c_char) -> Result<OpenOptions, Failure> {
    let protections = PRAMFS_LEASE_PROTECT_AUTO | PRAMFS_LEASE_PROTECT_PKEY;
    let write = match flags & !protections {
        libc::O_RDONLY => false,
        libc::O_RDWR => true,
        _ => {
            return Err(Failure::invalid(format!(
                "the flags {flags:#o} are neither O_RDONLY nor O_RDWR"
            )));
        }
    };
    let protect = match flags & protections {
        0 => Protect::Off,
        PRAMFS_LEASE_PROTECT_AUTO => Protect::Auto,
        // Both: the stricter one.
        _ => Protect::Pkey,
    };
    let options = OpenOptions::new().write(write).protect(protect);
    if control_directory.is_null() {
        return Ok(options);
    }
    // SAFETY: as required of the caller.
    let path: &Path = unsafe { args::path(control_directory, "control_directory") }?;
    Ok(options.control_directory(path))
}

/// Opens a file of a mounted file system, and asks its server for a lease: a promise that the
/// blocks of the file stay its blocks. `path` is a path of the system, and the kernel checks
/// the permissions. `flags` is O_RDONLY, or O_RDWR for writing too. The region must be mounted
/// with the option direct=owner, and the caller must be root or the owner of the region.
///
/// For writing, no program may have the file open or mapped through the page cache of the
/// kernel, which would not see direct stores. While the lease lives, programs that open the
/// file through the mount use no page cache, and cannot map it with MAP_SHARED. A lease for
/// writing lets the process store to all of the region: `PRAMFS_LEASE_PROTECT_AUTO` and
/// `PRAMFS_LEASE_PROTECT_PKEY`, added to O_RDWR, keep stray stores out.
///
/// `control_directory` is where the control sockets of servers are; NULL stands for
/// /run/pramfs.
///
/// `pramfs_lease_close` closes `*lease`, which is set only if the call succeeds. While it is
/// open, the mount is busy.
///
/// Errors: -EINVAL (NULL; other flags), -ENOTTY (not on a pramfs mount), -EOPNOTSUPP (the
/// mount grants no leases; no protection keys), -ENOSPC (no key is free), -EACCES (not to this user), -EBUSY (for writing: the file is open
/// through the page cache; the call waits a quarter of a second for late closes), -EPERM (for
/// writing: it is immutable or append-only), -ENOSPC (too many leases), -ENOTCONN (no server),
/// -ETIMEDOUT, -ENOENT, -EROFS and others of open(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_lease_open(
    lease: *mut *mut pramfs_lease,
    path: *const c_char,
    flags: c_int,
    control_directory: *const c_char,
) -> c_int {
    guard::done(|| {
        // SAFETY: a place for a result and strings (contract, 4 and 2).
        let (place, path, options) = unsafe {
            (
                args::place(lease, "lease")?,
                args::path(path, "path")?,
                options(flags, control_directory)?,
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

/// As `pramfs_lease_open`, for a file that is open: for reading, and if `flags` is O_RDWR,
/// with O_RDWR | O_DIRECT. The descriptor is duplicated and stays the caller's. After the
/// death of the server, such a lease cannot be renewed.
///
/// Errors: -EBADF (not open, or not so); -EBUSY, without a wait, also if this descriptor itself
/// is open through the page cache; as of `pramfs_lease_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_lease_open_fd(
    lease: *mut *mut pramfs_lease,
    fd: c_int,
    flags: c_int,
    control_directory: *const c_char,
) -> c_int {
    guard::done(|| {
        // SAFETY: a place for a result and a string (contract, 4 and 2).
        let (place, options) = unsafe {
            (
                args::place(lease, "lease")?,
                options(flags, control_directory)?,
            )
        };
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

/// Writes `count` bytes of `buf` to the file from `offset` on. They are durable when it
/// returns. Returns the number of bytes written: fewer if the region is full.
///
/// An overwrite is in place, without a system call, and atomic by aligned words of 8 bytes;
/// two writers of the same bytes can mix them. A range that begins at the end of the file or
/// before, and reaches past it, is appended as by `pramfs_lease_append`. What touches a hole, or
/// begins past the end, is written through the mount.
///
/// Errors: -EBADF (the file was opened for reading), -EINVAL (NULL; too many bytes), -ENOSPC,
/// and others of pwrite(2); as of `pramfs_lease_read`. After -EIO, some of the bytes may have
/// been written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_lease_write(
    lease: *mut pramfs_lease,
    buf: *const c_void,
    count: usize,
    offset: u64,
) -> ssize_t {
    guard::bytes(|| {
        // SAFETY: a handle and a buffer (contract, 1 and 3).
        let (lease, buf) = unsafe {
            (
                args::handle(lease, "lease")?,
                args::bytes(buf, count, "buf")?,
            )
        };
        lease
            .file
            .write_at(buf, offset)
            .about(|| format!("cannot write {} at byte {offset}", lease.path))
    })
}

/// Writes all bytes at the end of the file; they are durable when it returns. Stores the offset
/// of the first in `*offset`, which can be NULL. Appends of all threads and processes never
/// overlap and leave no gap.
///
/// Up to 16 MiB, and while no other lease of the file lives, this makes no system call, and is
/// all or nothing, after a crash too. Otherwise it goes through the mount, and a part may be
/// left after an error.
///
/// Errors: as of `pramfs_lease_write`; -EIO also if the server ended meanwhile: then the bytes
/// are in the file or not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_lease_append(
    lease: *mut pramfs_lease,
    buf: *const c_void,
    count: usize,
    offset: *mut u64,
) -> c_int {
    guard::done(|| {
        // SAFETY: a handle and a buffer (contract, 1 and 3).
        let (lease, buf) = unsafe {
            (
                args::handle(lease, "lease")?,
                args::bytes(buf, count, "buf")?,
            )
        };
        let at = lease
            .file
            .append(buf)
            .about(|| format!("cannot append to {}", lease.path))?;
        if !offset.is_null() {
            // SAFETY: a place for a result (contract, 4).
            unsafe { args::place(offset, "offset") }?.set(at);
        }
        Ok(())
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
