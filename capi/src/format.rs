//! Making a file system in a region.

use std::ffi::{c_char, c_int};
use std::path::Path;

use pramfs::format::{FormatOptions, format};
use pramfs::pmem::{Region, RegionOptions};

use crate::args;
use crate::error::{About as _, Failure};
use crate::guard;

/// Options of `pramfs_format`.
#[derive(Debug)]
pub struct pramfs_format_options {
    format: FormatOptions,
    force: bool,
}

impl Default for pramfs_format_options {
    fn default() -> pramfs_format_options {
        // SAFETY: both only return a number.
        let (root_uid, root_gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        pramfs_format_options {
            format: FormatOptions {
                root_uid,
                root_gid,
                ..FormatOptions::default()
            },
            force: false,
        }
    }
}

/// Makes options with the default values. `pramfs_format_options_delete` frees them.
///
/// Errors: -EINVAL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_format_options_new(
    options: *mut *mut pramfs_format_options,
) -> c_int {
    guard::done(|| {
        // SAFETY: a place for a result (contract, 4).
        let place = unsafe { args::place(options, "options") }?;
        place.give(pramfs_format_options::default());
        Ok(())
    })
}

/// Frees options. Does nothing for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_format_options_delete(options: *mut pramfs_format_options) {
    guard::value((), || {
        // SAFETY: options that are never used again (contract, 1).
        drop(unsafe { args::closed(options) });
        Ok(())
    });
}

/// Runs a setter.
///
/// # Safety
/// The contract, 1: no other thread uses the options.
unsafe fn set(
    options: *mut pramfs_format_options,
    setter: impl FnOnce(&mut pramfs_format_options),
) -> c_int {
    guard::done(|| {
        // SAFETY: as required of the caller.
        setter(unsafe { args::exclusive(options, "options") }?);
        Ok(())
    })
}

/// Formats an existing file or device, and destroys its contents. Default: 0, which makes a
/// new file. Nothing makes the library format a region that is in use.
///
/// Errors of this function and of the other setters: -EINVAL for NULL. `pramfs_format`
/// checks the values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_format_options_set_force(
    options: *mut pramfs_format_options,
    yes: c_int,
) -> c_int {
    // SAFETY: options that no other thread uses (contract, 1).
    unsafe { set(options, |o| o.force = args::truth(yes)) }
}

/// Sets the label, up to 63 bytes of UTF-8. Default: empty.
///
/// Errors: -EINVAL for NULL and for bytes that are not UTF-8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_format_options_set_label(
    options: *mut pramfs_format_options,
    label: *const c_char,
) -> c_int {
    guard::done(|| {
        // SAFETY: options that no other thread uses, and a string (contract, 1 and 2).
        let (options, label) = unsafe {
            (
                args::exclusive(options, "options")?,
                args::string(label, "label")?,
            )
        };
        let label =
            std::str::from_utf8(label).map_err(|_| Failure::invalid("the label is not UTF-8"))?;
        options.format.label = label.to_owned();
        Ok(())
    })
}

/// Sets the uuid: 16 bytes. Default: a random one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_format_options_set_uuid(
    options: *mut pramfs_format_options,
    uuid: *const u8,
) -> c_int {
    guard::done(|| {
        // SAFETY: options that no other thread uses, and a buffer of 16 bytes (contract, 1
        // and 3).
        let (options, uuid) = unsafe {
            (
                args::exclusive(options, "options")?,
                args::bytes(uuid.cast(), 16, "uuid")?,
            )
        };
        options.format.uuid = uuid.try_into().ok();
        Ok(())
    })
}

/// Sets the size of a block in bytes: 512, 1024, 2048 or 4096. Default: 4096, which files
/// need to be mapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_format_options_set_block_size(
    options: *mut pramfs_format_options,
    bytes: u32,
) -> c_int {
    // SAFETY: options that no other thread uses (contract, 1).
    unsafe { set(options, |o| o.format.block_size = bytes) }
}

/// Sets the largest number of inodes. Default: by `pramfs_format_options_set_bytes_per_inode`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_format_options_set_max_inodes(
    options: *mut pramfs_format_options,
    inodes: u64,
) -> c_int {
    // SAFETY: options that no other thread uses (contract, 1).
    unsafe { set(options, |o| o.format.max_inodes = Some(inodes)) }
}

/// Sets how many bytes of the region there are for each inode. Default: 2048.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_format_options_set_bytes_per_inode(
    options: *mut pramfs_format_options,
    bytes: u64,
) -> c_int {
    // SAFETY: options that no other thread uses (contract, 1).
    unsafe { set(options, |o| o.format.bytes_per_inode = Some(bytes)) }
}

/// Sets the number of journal lanes, 1 to 64: about one for each thread that writes.
/// Default: by the size of the region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_format_options_set_lanes(
    options: *mut pramfs_format_options,
    lanes: u32,
) -> c_int {
    // SAFETY: options that no other thread uses (contract, 1).
    unsafe { set(options, |o| o.format.lanes = Some(lanes)) }
}

/// Sets owner, group and permission bits of the root directory. Default: the effective user
/// and group of the process, and 0755.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_format_options_set_root(
    options: *mut pramfs_format_options,
    uid: u32,
    gid: u32,
    mode: u32,
) -> c_int {
    let setter = |o: &mut pramfs_format_options| {
        (o.format.root_uid, o.format.root_gid) = (uid, gid);
        o.format.root_mode = mode & 0o7777;
    };
    // SAFETY: options that no other thread uses (contract, 1).
    unsafe { set(options, setter) }
}

/// Makes an empty file system.
///
/// Without the option force, makes a new file of `size` bytes at `path`, sparse and of mode
/// 0600. With it, formats what is there, or makes a new file; `size` must be that of an
/// existing file, and can be less than that of a device. 0 stands for all of what is there.
/// `size` is a multiple of 4096, and at least 262144. `options` can be NULL.
///
/// The library does not look for other file systems. To be warned of them, use
/// mkfs.pramfs(8).
///
/// Errors: -EEXIST (without force, something is there; with it, a file of another size),
/// -EBUSY (in use), -EPERM (with force, others own the file or may write it), -EINVAL
/// (NULL; a size or a value that is not possible), -ENOSPC, -ENOENT and others of open(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_format(
    path: *const c_char,
    size: u64,
    options: *const pramfs_format_options,
) -> c_int {
    guard::done(|| {
        // SAFETY: a string (contract, 2).
        let path = unsafe { args::path(path, "path") }?;
        let standard = pramfs_format_options::default();
        // SAFETY: options that live (contract, 1).
        let options = unsafe { args::optional(options) }.unwrap_or(&standard);
        let cannot = || format!("cannot make a file system in {}", path.display());
        // Values that are not possible are found before the file is made.
        if size > 0 {
            options.format.superblock(size).about(cannot)?;
        }
        let region = region(path, size, options.force)?;
        format(&region, &options.format).about(cannot)?;
        Ok(())
    })
}

fn region(path: &Path, size: u64, force: bool) -> Result<Region, Failure> {
    let how = RegionOptions::new();
    let region = match (size, force) {
        (0, false) => return Err(Failure::invalid("a new file needs a size")),
        (0, true) => how.open(path),
        (size, false) => how.create_new(path, size),
        (size, true) => how.create(path, size),
    };
    region.about(|| format!("cannot open {}", path.display()))
}
