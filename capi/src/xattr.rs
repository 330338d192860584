//! Extended attributes of a path, with the conventions of getxattr(2).

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;

use libc::ssize_t;
use pramfs::XattrMode;

use crate::args;
use crate::error::{About as _, Failure};
use crate::fs::pramfs_fs;
use crate::guard;

fn about<'a>(what: &'a str, name: &'a [u8], path: &'a Path) -> impl Fn() -> String + Copy + 'a {
    move || {
        let name = String::from_utf8_lossy(name);
        format!("cannot {what} the attribute {name} of {}", path.display())
    }
}

/// Copies a result out, if there is a buffer for it.
fn copied(found: &[u8], buf: &mut [u8], cannot: impl Fn() -> String) -> Result<usize, Failure> {
    match buf {
        [] => {}
        buf if buf.len() < found.len() => {
            return Err(Failure::new(
                libc::ERANGE,
                format!(
                    "{}: it has {} bytes, and does not fit into {}",
                    cannot(),
                    found.len(),
                    buf.len()
                ),
            ));
        }
        buf => buf[..found.len()].copy_from_slice(found),
    }
    Ok(found.len())
}

/// Copies the value of an extended attribute to `value`, and returns its length. With a
/// `size` of 0, returns the length only. Follows symbolic links.
///
/// Errors: -EINVAL for NULL, -ERANGE if it does not fit into `size` bytes, -ENODATA (no such
/// attribute), -ENOENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_getxattr(
    fs: *mut pramfs_fs,
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    size: usize,
) -> ssize_t {
    guard::bytes(|| {
        // SAFETY: a handle, strings and a buffer (contract, 1, 2 and 3).
        let (fs, path, name, buf) = unsafe {
            (
                args::handle(fs, "fs")?,
                args::path(path, "path")?,
                args::string(name, "name")?,
                args::bytes_mut(value, size, "value")?,
            )
        };
        let cannot = about("read", name, path);
        let found = fs.shared.fs.xattr(path, name).about(cannot)?;
        copied(&found, buf, cannot)
    })
}

/// For `pramfs_setxattr`: -EEXIST if the attribute exists. As XATTR_CREATE.
pub const PRAMFS_XATTR_CREATE: c_int = 1;
/// For `pramfs_setxattr`: -ENODATA if it does not exist. As XATTR_REPLACE.
pub const PRAMFS_XATTR_REPLACE: c_int = 2;

/// Sets an extended attribute, atomically. `flags` is 0 or a `PRAMFS_XATTR_` value.
///
/// Errors: -EINVAL (NULL, unknown flags), -EEXIST, -ENODATA, -E2BIG, -ENOSPC, -EOPNOTSUPP (a
/// name of an unknown namespace), -ENOENT, -EROFS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_setxattr(
    fs: *mut pramfs_fs,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    size: usize,
    flags: c_int,
) -> c_int {
    guard::done(|| {
        // SAFETY: a handle, strings and a buffer (contract, 1, 2 and 3).
        let (fs, path, name, value) = unsafe {
            (
                args::handle(fs, "fs")?,
                args::path(path, "path")?,
                args::string(name, "name")?,
                args::bytes(value, size, "value")?,
            )
        };
        let mode = match flags {
            0 => XattrMode::Set,
            PRAMFS_XATTR_CREATE => XattrMode::Create,
            PRAMFS_XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Failure::invalid("unknown flags of setxattr")),
        };
        (fs.shared.fs.set_xattr(path, name, value, mode)).about(about("set", name, path))
    })
}

/// Copies the names of all extended attributes to `list`, each with a NUL at its end, and
/// returns their length. With a `size` of 0, returns the length only. Follows symbolic
/// links.
///
/// Errors: -EINVAL for NULL, -ERANGE if they do not fit into `size` bytes, -ENOENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_listxattr(
    fs: *mut pramfs_fs,
    path: *const c_char,
    list: *mut c_char,
    size: usize,
) -> ssize_t {
    guard::bytes(|| {
        // SAFETY: a handle, a string and a buffer (contract, 1, 2 and 3).
        let (fs, path, buf) = unsafe {
            (
                args::handle(fs, "fs")?,
                args::path(path, "path")?,
                args::bytes_mut(list.cast(), size, "list")?,
            )
        };
        let cannot = || format!("cannot list the attributes of {}", path.display());
        let names = fs.shared.fs.list_xattrs(path).about(cannot)?;
        let with_end = names.into_iter().flat_map(|mut name| {
            name.push(0);
            name
        });
        copied(&with_end.collect::<Vec<u8>>(), buf, cannot)
    })
}

/// Removes an extended attribute.
///
/// Errors: -EINVAL for NULL, -ENODATA, -ENOENT, -EROFS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_removexattr(
    fs: *mut pramfs_fs,
    path: *const c_char,
    name: *const c_char,
) -> c_int {
    guard::done(|| {
        // SAFETY: a handle and strings (contract, 1 and 2).
        let (fs, path, name) = unsafe {
            (
                args::handle(fs, "fs")?,
                args::path(path, "path")?,
                args::string(name, "name")?,
            )
        };
        (fs.shared.fs.remove_xattr(path, name)).about(about("remove", name, path))
    })
}
