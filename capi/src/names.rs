//! Operations on names: directories, links, renames, attributes of a path.

use std::ffi::{c_char, c_int, c_uint};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use libc::ssize_t;
use pramfs::inode::Fs;
use pramfs::{Error, RenameFlags};

use crate::args;
use crate::error::{About as _, Failure};
use crate::fs::{Shared, pramfs_fs};
use crate::guard;
use crate::stat;

/// Does something with one path.
///
/// # Safety
/// The contract, 1 and 2.
unsafe fn with_path(
    fs: *mut pramfs_fs,
    path: *const c_char,
    what: &str,
    work: impl FnOnce(&Shared, &Path) -> pramfs::Result<()>,
) -> c_int {
    guard::done(|| {
        // SAFETY: as required of the caller.
        let (fs, path) = unsafe { (args::handle(fs, "fs")?, args::path(path, "path")?) };
        work(&fs.shared, path).about(|| format!("cannot {what} {}", path.display()))
    })
}

/// Does something with two paths.
///
/// # Safety
/// The contract, 1 and 2.
unsafe fn with_paths(
    fs: *mut pramfs_fs,
    (old, old_name): (*const c_char, &str),
    (new, new_name): (*const c_char, &str),
    what: &str,
    work: impl FnOnce(&Shared, &Path, &Path) -> pramfs::Result<()>,
) -> c_int {
    guard::done(|| {
        // SAFETY: as required of the caller.
        let (fs, old, new) = unsafe {
            (
                args::handle(fs, "fs")?,
                args::path(old, old_name)?,
                args::path(new, new_name)?,
            )
        };
        work(&fs.shared, old, new)
            .about(|| format!("cannot {what} {} to {}", old.display(), new.display()))
    })
}

/// Makes a directory with these permission bits, less the umask of the options.
///
/// Errors: -EINVAL for NULL, -EEXIST, -ENOENT, -ENOTDIR, -ENOSPC, -EROFS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_mkdir(fs: *mut pramfs_fs, path: *const c_char, mode: u32) -> c_int {
    // SAFETY: a handle and a string (contract, 1 and 2).
    unsafe {
        with_path(fs, path, "make the directory", |shared, path| {
            make_directory(shared, path, mode & 0o7777)
        })
    }
}

/// [`pramfs::FileSystem::create_dir`] takes no mode, and a directory that gets its mode
/// afterwards could be left with another one by a crash.
fn make_directory(shared: &Shared, path: &Path, mode: u32) -> pramfs::Result<()> {
    let inodes: &Fs = shared.fs.inodes();
    let path = path.as_os_str().as_bytes();
    loop {
        let (parent, name) = inodes.resolve_parent(path)?;
        if matches!(&name[..], b"." | b"..") {
            return Err(Error::Exists);
        }
        // From here on, the number stays with its directory. It may have gone to another
        // one just before.
        let held = inodes.hold(parent);
        if inodes.resolve_parent(path)?.0 == held.ino() {
            let made = inodes.mkdir(&shared.creator, held.ino(), &name, mode);
            return made.map(drop);
        }
    }
}

/// Makes a directory and its missing parents, of mode 0777 less the umask. The directory
/// may exist.
///
/// Errors: as of `pramfs_mkdir`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_mkdir_all(fs: *mut pramfs_fs, path: *const c_char) -> c_int {
    // SAFETY: a handle and a string (contract, 1 and 2).
    unsafe {
        with_path(fs, path, "make the directory", |shared, path| {
            shared.fs.create_dir_all(path)
        })
    }
}

/// Removes the name of a file, symbolic link, device, pipe or socket. An open file stays
/// usable until it is closed.
///
/// Errors: -EINVAL for NULL, -ENOENT, -EISDIR, -EPERM, -EROFS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_unlink(fs: *mut pramfs_fs, path: *const c_char) -> c_int {
    // SAFETY: a handle and a string (contract, 1 and 2).
    unsafe {
        with_path(fs, path, "remove", |shared, path| {
            shared.fs.remove_file(path)
        })
    }
}

/// Removes an empty directory.
///
/// Errors: -EINVAL for NULL, -ENOENT, -ENOTDIR, -ENOTEMPTY, -EBUSY for the root, -EROFS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_rmdir(fs: *mut pramfs_fs, path: *const c_char) -> c_int {
    // SAFETY: a handle and a string (contract, 1 and 2).
    unsafe {
        with_path(fs, path, "remove the directory", |shared, path| {
            shared.fs.remove_dir(path)
        })
    }
}

/// Removes a directory and everything below it, or a symbolic link. Does not follow
/// symbolic links. Not atomic: after an error, a part is gone.
///
/// Errors: as of `pramfs_unlink` and `pramfs_rmdir`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_remove_all(fs: *mut pramfs_fs, path: *const c_char) -> c_int {
    // SAFETY: a handle and a string (contract, 1 and 2).
    unsafe {
        with_path(fs, path, "remove the directory", |shared, path| {
            shared.fs.remove_dir_all(path)
        })
    }
}

/// For `pramfs_rename`: -EEXIST if the new name exists. As RENAME_NOREPLACE of renameat2(2).
pub const PRAMFS_RENAME_NOREPLACE: c_uint = 1;
/// For `pramfs_rename`: exchanges the two files. As RENAME_EXCHANGE of renameat2(2).
pub const PRAMFS_RENAME_EXCHANGE: c_uint = 2;
/// For `pramfs_rename`: leaves a whiteout under the old name. As RENAME_WHITEOUT of
/// renameat2(2).
pub const PRAMFS_RENAME_WHITEOUT: c_uint = 4;

/// Renames atomically. With no flags, replaces an existing file at the new name. `flags` is
/// 0 or `PRAMFS_RENAME_` values.
///
/// Errors: those of renameat2(2): -EINVAL (NULL, unknown flags, a directory into itself),
/// -ENOENT, -EEXIST, -ENOTEMPTY, -ENOTDIR, -EISDIR, -EBUSY for the root, -EROFS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_rename(
    fs: *mut pramfs_fs,
    old_path: *const c_char,
    new_path: *const c_char,
    flags: c_uint,
) -> c_int {
    let work = |shared: &Shared, old: &Path, new: &Path| {
        let known = PRAMFS_RENAME_NOREPLACE | PRAMFS_RENAME_EXCHANGE | PRAMFS_RENAME_WHITEOUT;
        if flags & !known != 0 {
            return Err(Error::Invalid("an unknown flag of rename"));
        }
        let flags = RenameFlags {
            noreplace: flags & PRAMFS_RENAME_NOREPLACE != 0,
            exchange: flags & PRAMFS_RENAME_EXCHANGE != 0,
            whiteout: flags & PRAMFS_RENAME_WHITEOUT != 0,
        };
        shared.fs.rename_with(old, new, flags)
    };
    let (old, new) = ((old_path, "old_path"), (new_path, "new_path"));
    // SAFETY: a handle and strings (contract, 1 and 2).
    unsafe { with_paths(fs, old, new, "rename", work) }
}

/// Gives a file another name.
///
/// Errors: -EINVAL for NULL, -ENOENT, -EEXIST, -EPERM for a directory, -EMLINK, -EROFS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_link(
    fs: *mut pramfs_fs,
    old_path: *const c_char,
    new_path: *const c_char,
) -> c_int {
    let (old, new) = ((old_path, "old_path"), (new_path, "new_path"));
    let work = |shared: &Shared, old: &Path, new: &Path| shared.fs.hard_link(old, new);
    // SAFETY: a handle and strings (contract, 1 and 2).
    unsafe { with_paths(fs, old, new, "link", work) }
}

/// Makes a symbolic link at `path`. `target` is stored as it is, and not looked up.
///
/// Errors: -EINVAL for NULL, -EEXIST, -ENOENT, -ENAMETOOLONG, -ENOSPC, -EROFS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_symlink(
    fs: *mut pramfs_fs,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    guard::done(|| {
        // SAFETY: a handle and strings (contract, 1 and 2).
        let (fs, target, path) = unsafe {
            (
                args::handle(fs, "fs")?,
                args::path(target, "target")?,
                args::path(path, "path")?,
            )
        };
        (fs.shared.fs.symlink(target, path))
            .about(|| format!("cannot make the symbolic link {}", path.display()))
    })
}

/// Copies the target of a symbolic link to `buf`, with a NUL at its end. Returns its length
/// without the NUL. A target has at most 4095 bytes.
///
/// Errors: -EINVAL (NULL; not a symbolic link), -ERANGE if it does not fit into `size`
/// bytes, -ENOENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_readlink(
    fs: *mut pramfs_fs,
    path: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> ssize_t {
    guard::bytes(|| {
        // SAFETY: a handle, a string and a buffer (contract, 1, 2 and 3).
        let (fs, path, buf) = unsafe {
            (
                args::handle(fs, "fs")?,
                args::path(path, "path")?,
                args::bytes_mut(buf.cast(), size, "buf")?,
            )
        };
        let cannot = || format!("cannot read the symbolic link {}", path.display());
        let target = fs.shared.fs.read_link(path).about(cannot)?;
        let target = target.as_os_str().as_bytes();
        let Some((text, [end, ..])) = buf.split_at_mut_checked(target.len()) else {
            return Err(Failure::new(
                libc::ERANGE,
                format!(
                    "{}: its target has {} bytes, and does not fit into {size} with a NUL",
                    cannot(),
                    target.len()
                ),
            ));
        };
        text.copy_from_slice(target);
        *end = 0;
        Ok(target.len())
    })
}

/// Returns 1 if the path exists, and 0 if it does not. Follows symbolic links: a dangling
/// one does not exist.
///
/// Errors: -EINVAL for NULL; those of `pramfs_stat` except -ENOENT and -ENOTDIR.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_exists(fs: *mut pramfs_fs, path: *const c_char) -> c_int {
    guard::int(|| {
        // SAFETY: a handle and a string (contract, 1 and 2).
        let (fs, path) = unsafe { (args::handle(fs, "fs")?, args::path(path, "path")?) };
        let exists = fs.shared.fs.exists(path);
        Ok(exists
            .about(|| format!("cannot look up {}", path.display()))?
            .into())
    })
}

/// Sets the permission bits, with suid, sgid and sticky. Follows symbolic links.
///
/// Errors: -EINVAL for NULL, -ENOENT, -EPERM for an immutable file, -EROFS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_chmod(fs: *mut pramfs_fs, path: *const c_char, mode: u32) -> c_int {
    let permissions = std::fs::Permissions::from_mode(mode & 0o7777);
    // SAFETY: a handle and a string (contract, 1 and 2).
    unsafe {
        with_path(fs, path, "change the mode of", |shared, path| {
            shared.fs.set_permissions(path, permissions)
        })
    }
}

/// An id to set; all bits set leave it as it is.
fn id(id: u32) -> Option<u32> {
    (id != u32::MAX).then_some(id)
}

/// Sets owner and group; UINT32_MAX leaves one as it is. Follows symbolic links.
///
/// Errors: as of `pramfs_chmod`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_chown(
    fs: *mut pramfs_fs,
    path: *const c_char,
    uid: u32,
    gid: u32,
) -> c_int {
    // SAFETY: a handle and a string (contract, 1 and 2).
    unsafe {
        with_path(fs, path, "change the owner of", |shared, path| {
            shared.fs.chown(path, id(uid), id(gid))
        })
    }
}

/// As `pramfs_chown`, but of a symbolic link itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_lchown(
    fs: *mut pramfs_fs,
    path: *const c_char,
    uid: u32,
    gid: u32,
) -> c_int {
    // SAFETY: a handle and a string (contract, 1 and 2).
    unsafe {
        with_path(fs, path, "change the owner of", |shared, path| {
            shared.fs.lchown(path, id(uid), id(gid))
        })
    }
}

/// Sets the times of the last access and the last change of contents: `times[0]` and
/// `times[1]`, as of utimensat(2), with UTIME_NOW and UTIME_OMIT. NULL stands for now.
/// Follows symbolic links.
///
/// Errors: as of `pramfs_chmod`, and -EOVERFLOW for a time that cannot be represented.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_utimens(
    fs: *mut pramfs_fs,
    path: *const c_char,
    times: *const libc::timespec,
) -> c_int {
    guard::done(|| {
        // SAFETY: a handle, a string, and NULL or two times (contract, 1, 2 and 3).
        let (fs, path, times) = unsafe {
            (
                args::handle(fs, "fs")?,
                args::path(path, "path")?,
                times.cast::<[libc::timespec; 2]>().as_ref(),
            )
        };
        let times = stat::times(times)?;
        (fs.shared.fs.set_times(path, times))
            .about(|| format!("cannot set the times of {}", path.display()))
    })
}

/// Copies contents and permission bits to another file, which is made or replaced. The bytes
/// are copied on the medium. Not atomic.
///
/// Errors: those of `pramfs_file_open`, `pramfs_file_read` and `pramfs_file_write`; -EINVAL
/// for NULL, and if both names are of one file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_copy(
    fs: *mut pramfs_fs,
    old_path: *const c_char,
    new_path: *const c_char,
) -> c_int {
    let (old, new) = ((old_path, "old_path"), (new_path, "new_path"));
    let work = |shared: &Shared, old: &Path, new: &Path| shared.fs.copy(old, new).map(drop);
    // SAFETY: a handle and strings (contract, 1 and 2).
    unsafe { with_paths(fs, old, new, "copy", work) }
}
