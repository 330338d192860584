//! Metadata in the structures of the system: `struct stat`, `struct statvfs`, `struct
//! timespec`. They are those of the system calls, so they cannot grow.

use std::ffi::{c_char, c_int};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pramfs::inode::{Attr, Time};
use pramfs::{FileTimes, Metadata, StatFs};

use crate::args;
use crate::error::{About as _, Failure};
use crate::fs::{Shared, pramfs_fs};
use crate::guard;

/// Fills a `struct stat`. The device is 0: there is no mount.
pub(crate) fn filled(metadata: &Metadata) -> libc::stat {
    // SAFETY: integers, for which zeros are valid.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    let attr: &Attr = metadata.attr();
    stat.st_ino = attr.ino.0;
    stat.st_mode = metadata.mode();
    // Other architectures have other types.
    stat.st_nlink = attr.nlink as _;
    stat.st_uid = attr.uid;
    stat.st_gid = attr.gid;
    stat.st_rdev = attr.rdev;
    stat.st_size = attr.size.try_into().unwrap_or(i64::MAX);
    stat.st_blksize = attr.blksize as _;
    stat.st_blocks = attr.blocks.try_into().unwrap_or(i64::MAX);
    let time = |t: Time| (t.sec, i64::from(t.nsec));
    (stat.st_atime, stat.st_atime_nsec) = time(attr.atime);
    (stat.st_mtime, stat.st_mtime_nsec) = time(attr.mtime);
    (stat.st_ctime, stat.st_ctime_nsec) = time(attr.ctime);
    stat
}

/// Fills a `struct statvfs`.
pub(crate) fn space(found: &StatFs, read_only: bool) -> libc::statvfs {
    // SAFETY: integers, for which zeros are valid.
    let mut space: libc::statvfs = unsafe { std::mem::zeroed() };
    space.f_bsize = found.block_size.into();
    space.f_frsize = found.block_size.into();
    space.f_blocks = found.blocks;
    space.f_bfree = found.free;
    space.f_bavail = found.available_to_data();
    space.f_files = found.inodes;
    space.f_ffree = found.free_inodes;
    space.f_favail = found.free_inodes;
    space.f_fsid = found.fsid;
    space.f_flag = if read_only { libc::ST_RDONLY } else { 0 };
    space.f_namemax = found.name_max.into();
    space
}

/// What utimensat(2) means by two times.
///
/// # Errors
/// EINVAL for nanoseconds out of range.
pub(crate) fn times(times: Option<&[libc::timespec; 2]>) -> Result<FileTimes, Failure> {
    let now = SystemTime::now();
    let Some([accessed, modified]) = times else {
        return Ok(FileTimes::new().set_accessed(now).set_modified(now));
    };
    let mut set = FileTimes::new();
    if let Some(time) = time(accessed, now)? {
        set = set.set_accessed(time);
    }
    if let Some(time) = time(modified, now)? {
        set = set.set_modified(time);
    }
    Ok(set)
}

fn time(t: &libc::timespec, now: SystemTime) -> Result<Option<SystemTime>, Failure> {
    let part = match t.tv_nsec {
        libc::UTIME_OMIT => return Ok(None),
        libc::UTIME_NOW => return Ok(Some(now)),
        part @ 0..1_000_000_000 => Duration::from_nanos(part.unsigned_abs()),
        other => {
            return Err(Failure::invalid(format!(
                "{other} nanoseconds are not a part of a second"
            )));
        }
    };
    let seconds = Duration::from_secs(t.tv_sec.unsigned_abs());
    let whole = match t.tv_sec {
        0.. => UNIX_EPOCH.checked_add(seconds),
        _ => UNIX_EPOCH.checked_sub(seconds),
    };
    let time = whole.and_then(|whole| whole.checked_add(part));
    time.map(Some).ok_or_else(|| {
        Failure::new(
            libc::EOVERFLOW,
            format!("{} seconds cannot be represented", t.tv_sec),
        )
    })
}

/// Looks at the metadata of a path.
///
/// # Safety
/// The contract, 1, 2 and 4.
unsafe fn look(
    fs: *mut pramfs_fs,
    path: *const c_char,
    buf: *mut libc::stat,
    look: impl FnOnce(&Shared, &std::path::Path) -> pramfs::Result<Metadata>,
) -> c_int {
    guard::done(|| {
        // SAFETY: as required of the caller.
        let (fs, path, place) = unsafe {
            (
                args::handle(fs, "fs")?,
                args::path(path, "path")?,
                args::place(buf, "buf")?,
            )
        };
        let found = look(&fs.shared, path).about(|| format!("cannot stat {}", path.display()))?;
        place.set(filled(&found));
        Ok(())
    })
}

/// Returns the metadata of a file, as stat(2) does; `st_dev` is 0. Follows symbolic links.
///
/// Errors: -EINVAL for NULL, -ENOENT, -ENOTDIR, -ELOOP.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_stat(
    fs: *mut pramfs_fs,
    path: *const c_char,
    buf: *mut libc::stat,
) -> c_int {
    // SAFETY: a handle, a string and a place for a result (contract, 1, 2 and 4).
    unsafe { look(fs, path, buf, |shared, path| shared.fs.metadata(path)) }
}

/// As `pramfs_stat`, but of a symbolic link itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_lstat(
    fs: *mut pramfs_fs,
    path: *const c_char,
    buf: *mut libc::stat,
) -> c_int {
    // SAFETY: a handle, a string and a place for a result (contract, 1, 2 and 4).
    unsafe {
        look(fs, path, buf, |shared, path| {
            shared.fs.symlink_metadata(path)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_epoch_round_down() {
        let at = |tv_sec, tv_nsec| libc::timespec { tv_sec, tv_nsec };
        let now = SystemTime::now();
        let before = time(&at(-1, 250_000_000), now).unwrap().unwrap();
        assert_eq!(
            UNIX_EPOCH.duration_since(before).unwrap(),
            Duration::from_millis(750)
        );
        assert_eq!(time(&at(5, libc::UTIME_OMIT), now).unwrap(), None);
        assert_eq!(time(&at(5, libc::UTIME_NOW), now).unwrap(), Some(now));
        for bad in [-1, 1_000_000_000] {
            assert!(time(&at(0, bad), now).is_err());
        }
    }
}
