//! [`pramfs_file`]: an open file of a file system that this process has open.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use libc::ssize_t;
use pramfs::{Fallocate, File, OpenOptions};

use crate::args::{self, Handle};
use crate::error::{About as _, Failure};
use crate::fs::{Shared, pramfs_fs, release};
use crate::guard;
use crate::stat;

/// An open file.
#[derive(Debug)]
pub struct pramfs_file {
    pub(crate) file: File,
    pub(crate) path: String,
    pub(crate) shared: Arc<Shared>,
}

impl Handle for pramfs_file {
    fn shared(&self) -> Option<&Shared> {
        Some(&self.shared)
    }
}

/// Opens or makes a regular file. Follows symbolic links.
///
/// `flags` are those of open(2): one of O_RDONLY, O_WRONLY and O_RDWR, with O_CREAT, O_EXCL,
/// O_TRUNC (without O_APPEND) and O_APPEND; O_CLOEXEC is allowed and does nothing. `mode` has the permission
/// bits of a new file, before the umask of the options. A file that is opened with O_APPEND
/// takes `pramfs_file_append`, and refuses `pramfs_file_write`.
///
/// With O_TMPFILE, `path` names a directory, and the new file has no name: it exists until it
/// is closed, and a crash leaves nothing of it. `pramfs_file_link` gives it a name. O_EXCL,
/// which would forbid that, is refused.
///
/// `pramfs_file_close` closes `*file`, which is set only if the call succeeds.
///
/// Errors: -EINVAL (NULL; unknown flags, or flags that contradict each other), -ENOENT,
/// -EEXIST, -EISDIR, -ENOTDIR, -ELOOP, -EOPNOTSUPP (a device, pipe or socket), -ENOSPC,
/// -EROFS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_file_open(
    file: *mut *mut pramfs_file,
    fs: *mut pramfs_fs,
    path: *const c_char,
    flags: c_int,
    mode: u32,
) -> c_int {
    guard::done(|| {
        // SAFETY: a place for a result, a handle and a string (contract, 4, 1 and 2).
        let (place, fs, path) = unsafe {
            (
                args::place(file, "file")?,
                args::handle(fs, "fs")?,
                args::path(path, "path")?,
            )
        };
        // O_TMPFILE contains O_DIRECTORY, which alone is refused.
        let opened = match flags & libc::O_TMPFILE == libc::O_TMPFILE {
            true if flags & libc::O_EXCL != 0 => {
                let why = "O_EXCL with O_TMPFILE is not supported: any such file can be linked";
                return Err(Failure::invalid(why));
            }
            true => how(flags & !libc::O_TMPFILE, mode)?.open_unnamed(&fs.shared.fs, path),
            false => how(flags, mode)?.open(&fs.shared.fs, path),
        };
        let opened = opened.about(|| format!("cannot open {}", path.display()))?;
        place.give(pramfs_file {
            file: opened,
            path: path.display().to_string(),
            shared: Arc::clone(&fs.shared),
        });
        Ok(())
    })
}

/// What flags of open(2) mean.
fn how(flags: c_int, mode: u32) -> Result<OpenOptions, Failure> {
    const KNOWN: c_int = libc::O_ACCMODE
        | libc::O_CREAT
        | libc::O_EXCL
        | libc::O_TRUNC
        | libc::O_APPEND
        | libc::O_CLOEXEC
        | libc::O_LARGEFILE;
    if flags & !KNOWN != 0 {
        return Err(Failure::invalid(format!(
            "the flags {:#o} mean nothing here",
            flags & !KNOWN
        )));
    }
    let has = |flag: c_int| flags & flag == flag;
    let (read, write) = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => (true, false),
        libc::O_WRONLY => (false, true),
        libc::O_RDWR => (true, true),
        _ => {
            return Err(Failure::invalid(
                "O_WRONLY and O_RDWR contradict each other",
            ));
        }
    };
    let append = has(libc::O_APPEND);
    if append && !write {
        return Err(Failure::invalid("O_APPEND needs O_WRONLY or O_RDWR"));
    }
    let mut options = OpenOptions::new();
    options
        .read(read)
        .write(write && !append)
        .append(append)
        .truncate(has(libc::O_TRUNC))
        .create(has(libc::O_CREAT))
        .create_new(has(libc::O_CREAT | libc::O_EXCL))
        .mode(mode & 0o7777);
    Ok(options)
}

/// Gives an open file another name, or its first if it was opened with O_TMPFILE.
///
/// Errors: -EINVAL (NULL; a file of another file system), -EEXIST, -ENOENT (no such directory;
/// the file has lost its last name), -ENOTDIR, -EMLINK, -ENOSPC, -EROFS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_file_link(
    file: *mut pramfs_file,
    fs: *mut pramfs_fs,
    path: *const c_char,
) -> c_int {
    guard::done(|| {
        // SAFETY: two handles and a string (contract, 1 and 2).
        let (file, fs, path) = unsafe {
            (
                args::handle(file, "file")?,
                args::handle(fs, "fs")?,
                args::path(path, "path")?,
            )
        };
        let linked = fs.shared.fs.hard_link_file(&file.file, path);
        linked.about(|| format!("cannot link {} to {}", file.path, path.display()))
    })
}

/// Closes a file. Does nothing for NULL. The handle is invalid afterwards, whatever the
/// result. Maps of the file stay valid.
///
/// Errors: those of `pramfs_close`, if this is the last handle of its file system. All that
/// was written is durable before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_file_close(file: *mut pramfs_file) -> c_int {
    guard::done(|| {
        // SAFETY: a handle that is never used again (contract, 1).
        let Some(file) = (unsafe { args::closed(file) }) else {
            return Ok(());
        };
        let pramfs_file { file, shared, .. } = *file;
        drop(file);
        release(shared)
    })
}

/// Reads up to `count` bytes from `offset` on into `buf`. Returns their number: fewer before
/// the end of the file or a lost range, 0 at the end. The rest of `buf` may have changed.
///
/// `buf` may be uninitialised. It must not be memory of a map of the same region.
///
/// Errors: -EINVAL (NULL; too many bytes), -EBADF (not open for reading), -EUCLEAN, -EIO
/// (the medium failed; the first byte is lost; a forked child).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_file_read(
    file: *mut pramfs_file,
    buf: *mut c_void,
    count: usize,
    offset: u64,
) -> ssize_t {
    guard::bytes(|| {
        // SAFETY: a handle, and a buffer that this call fills (contract, 1 and 3).
        let (file, buf) = unsafe {
            (
                args::handle(file, "file")?,
                args::bytes_mut(buf, count, "buf")?,
            )
        };
        file.file
            .read_at(buf, offset)
            .about(|| format!("cannot read {} at byte {offset}", file.path))
    })
}

/// Writes bytes at `offset`; they are durable when it returns. Returns their number: fewer
/// than `count` if the region or its host is full. An overwrite is in place, and atomic in
/// units of 8 aligned bytes.
///
/// `buf` must not be memory of a map of the same region.
///
/// Errors: -EINVAL (NULL; too many bytes), -EBADF (not open for writing, or with O_APPEND),
/// -ENOSPC, -EFBIG, -EROFS, -EIO.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_file_write(
    file: *mut pramfs_file,
    buf: *const c_void,
    count: usize,
    offset: u64,
) -> ssize_t {
    guard::bytes(|| {
        // SAFETY: a handle and a buffer (contract, 1 and 3).
        let (file, buf) = unsafe { (args::handle(file, "file")?, args::bytes(buf, count, "buf")?) };
        file.file
            .write_at(buf, offset)
            .about(|| format!("cannot write {} at byte {offset}", file.path))
    })
}

/// Writes all bytes at `offset`, or none: after a crash at any moment, they are there as a
/// whole, or not at all. They are durable when it returns. `count` is limited by the free
/// blocks of the region, which hold a second copy of what is overwritten. Needs no option of
/// the file system.
///
/// `buf` must not be memory of a map of the same region.
///
/// Errors: as of `pramfs_file_write`. No byte has changed then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_file_write_atomic(
    file: *mut pramfs_file,
    buf: *const c_void,
    count: usize,
    offset: u64,
) -> c_int {
    guard::done(|| {
        // SAFETY: a handle and a buffer (contract, 1 and 3).
        let (file, buf) = unsafe { (args::handle(file, "file")?, args::bytes(buf, count, "buf")?) };
        file.file
            .write_atomic(buf, offset)
            .about(|| format!("cannot write {} at byte {offset}", file.path))
    })
}

/// Writes all bytes at the end of the file; they are durable when it returns. Stores the
/// offset of the first in `*offset`, which can be NULL. Appends of several threads do not
/// mix. After a crash, an append that fits into one journal record is complete or absent.
///
/// Errors: as of `pramfs_file_write`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_file_append(
    file: *mut pramfs_file,
    buf: *const c_void,
    count: usize,
    offset: *mut u64,
) -> c_int {
    guard::done(|| {
        // SAFETY: a handle and a buffer (contract, 1 and 3).
        let (file, buf) = unsafe { (args::handle(file, "file")?, args::bytes(buf, count, "buf")?) };
        let at = file
            .file
            .append(buf)
            .about(|| format!("cannot append to {}", file.path))?;
        if !offset.is_null() {
            // SAFETY: a place for a result (contract, 4).
            unsafe { args::place(offset, "offset") }?.set(at);
        }
        Ok(())
    })
}

/// Makes the contents and all metadata durable. Writes, appends and sizes are durable when
/// their calls return; this is for times. Stores through a map need `pramfs_map_persist`.
///
/// Errors: -EINVAL for NULL, -EIO.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_file_sync(file: *mut pramfs_file) -> c_int {
    guard::done(|| {
        // SAFETY: a handle (contract, 1).
        let file = unsafe { args::handle(file, "file") }?;
        file.file
            .sync_all()
            .about(|| format!("cannot sync {}", file.path))
    })
}

/// As `pramfs_file_sync`, without times.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_file_datasync(file: *mut pramfs_file) -> c_int {
    guard::done(|| {
        // SAFETY: a handle (contract, 1).
        let file = unsafe { args::handle(file, "file") }?;
        file.file
            .sync_data()
            .about(|| format!("cannot sync {}", file.path))
    })
}

/// Stores the size of the file in bytes in `*size`.
///
/// Errors: -EINVAL for NULL, -EIO.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_file_size(file: *mut pramfs_file, size: *mut u64) -> c_int {
    guard::done(|| {
        // SAFETY: a handle and a place for a result (contract, 1 and 4).
        let (file, place) = unsafe { (args::handle(file, "file")?, args::place(size, "size")?) };
        let found = file
            .file
            .metadata()
            .about(|| format!("cannot stat {}", file.path))?;
        place.set(found.len());
        Ok(())
    })
}

/// Returns the metadata, as fstat(2) does; `st_dev` is 0.
///
/// Errors: -EINVAL for NULL, -EIO.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_file_stat(file: *mut pramfs_file, buf: *mut libc::stat) -> c_int {
    guard::done(|| {
        // SAFETY: a handle and a place for a result (contract, 1 and 4).
        let (file, place) = unsafe { (args::handle(file, "file")?, args::place(buf, "buf")?) };
        let found = file
            .file
            .metadata()
            .about(|| format!("cannot stat {}", file.path))?;
        place.set(stat::filled(&found));
        Ok(())
    })
}

/// Sets the size in bytes. Added bytes read as zeros.
///
/// Errors: -EINVAL for NULL, -EBADF (not open for writing, or with O_APPEND), -EFBIG,
/// -ENOSPC, -EROFS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_file_truncate(file: *mut pramfs_file, size: u64) -> c_int {
    guard::done(|| {
        // SAFETY: a handle (contract, 1).
        let file = unsafe { args::handle(file, "file") }?;
        file.file
            .set_len(size)
            .about(|| format!("cannot set the size of {} to {size} bytes", file.path))
    })
}

/// For `pramfs_file_fallocate`: does not change the size. As FALLOC_FL_KEEP_SIZE.
pub const PRAMFS_FALLOC_KEEP_SIZE: c_int = 1;
/// For `pramfs_file_fallocate`, with PRAMFS_FALLOC_KEEP_SIZE: frees whole blocks and zeroes
/// the edges. As FALLOC_FL_PUNCH_HOLE.
pub const PRAMFS_FALLOC_PUNCH_HOLE: c_int = 2;
/// For `pramfs_file_fallocate`: makes the range read as zeros, and keeps it allocated. As
/// FALLOC_FL_ZERO_RANGE.
pub const PRAMFS_FALLOC_ZERO_RANGE: c_int = 16;

/// Allocates a range of bytes, punches or zeroes it. `mode` is 0 or `PRAMFS_FALLOC_` values,
/// which are those of fallocate(2).
///
/// Errors: -EINVAL (NULL; an empty range), -EOPNOTSUPP (another mode), -EBADF (not open for
/// writing, or with O_APPEND), -EFBIG, -ENOSPC, -EROFS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_file_fallocate(
    file: *mut pramfs_file,
    mode: c_int,
    offset: u64,
    len: u64,
) -> c_int {
    guard::done(|| {
        // SAFETY: a handle (contract, 1).
        let file = unsafe { args::handle(file, "file") }?;
        let keep_size = mode & PRAMFS_FALLOC_KEEP_SIZE != 0;
        let what = match mode & !PRAMFS_FALLOC_KEEP_SIZE {
            0 => Fallocate::Allocate { keep_size },
            PRAMFS_FALLOC_PUNCH_HOLE if keep_size => Fallocate::PunchHole,
            PRAMFS_FALLOC_ZERO_RANGE => Fallocate::ZeroRange { keep_size },
            _ => {
                return Err(Failure::new(
                    libc::EOPNOTSUPP,
                    format!(
                        "fallocate of {}: the mode {mode:#x} is not supported",
                        file.path
                    ),
                ));
            }
        };
        file.file.fallocate(what, offset, len).about(|| {
            format!(
                "fallocate of {}, {len} bytes at byte {offset}, failed",
                file.path
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_mean_nothing_are_refused() {
        for flags in [
            libc::O_DIRECT,
            libc::O_DIRECTORY,
            libc::O_WRONLY | libc::O_RDWR,
            libc::O_RDONLY | libc::O_APPEND,
            -1,
        ] {
            assert!(how(flags, 0o644).is_err(), "{flags:#o}");
        }
        for flags in [
            libc::O_RDONLY,
            libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC,
            libc::O_WRONLY | libc::O_APPEND,
        ] {
            assert!(how(flags, 0o644).is_ok(), "{flags:#o}");
        }
    }

    #[test]
    fn fallocate_modes_are_those_of_system() {
        assert_eq!(PRAMFS_FALLOC_KEEP_SIZE, libc::FALLOC_FL_KEEP_SIZE);
        assert_eq!(PRAMFS_FALLOC_PUNCH_HOLE, libc::FALLOC_FL_PUNCH_HOLE);
        assert_eq!(PRAMFS_FALLOC_ZERO_RANGE, libc::FALLOC_FL_ZERO_RANGE);
    }
}
