//! [`pramfs_dir`]: the entries of a directory.

use std::ffi::{c_char, c_int};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Arc, Mutex, PoisonError};

use pramfs::ReadDir;

use crate::args::{self, Handle};
use crate::error::About as _;
use crate::fs::{Shared, pramfs_fs, release};
use crate::guard;

/// An open directory.
#[derive(Debug)]
pub struct pramfs_dir {
    entries: Mutex<ReadDir>,
    path: String,
    shared: Arc<Shared>,
}

impl Handle for pramfs_dir {
    fn shared(&self) -> Option<&Shared> {
        Some(&self.shared)
    }
}

/// An entry of a directory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct pramfs_dirent {
    /// Inode number.
    pub ino: u64,
    /// Type of the file: one of the S_IF values of stat(2).
    pub file_type: u32,
    /// Bytes of the name, 1 to 255.
    pub name_len: u32,
    /// The name, with a NUL at its end.
    pub name: [c_char; 256],
}

/// Opens a directory, to read its entries. `pramfs_dir_close` closes `*dir`, which is set
/// only if the call succeeds.
///
/// Errors: -EINVAL for NULL, -ENOENT, -ENOTDIR.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_dir_open(
    dir: *mut *mut pramfs_dir,
    fs: *mut pramfs_fs,
    path: *const c_char,
) -> c_int {
    guard::done(|| {
        // SAFETY: a place for a result, a handle and a string (contract, 4, 1 and 2).
        let (place, fs, path) = unsafe {
            (
                args::place(dir, "dir")?,
                args::handle(fs, "fs")?,
                args::path(path, "path")?,
            )
        };
        let entries = (fs.shared.fs.read_dir(path))
            .about(|| format!("cannot open the directory {}", path.display()))?;
        place.give(pramfs_dir {
            entries: Mutex::new(entries),
            path: path.display().to_string(),
            shared: Arc::clone(&fs.shared),
        });
        Ok(())
    })
}

/// Reads the next entry. Returns 1 if there is one, and 0 at the end. The entries `.` and
/// `..` are left out. An entry that exists all the time is given exactly once. If several threads read
/// one `dir`, each entry goes to one of them.
///
/// Errors: -EINVAL for NULL, -EUCLEAN, -EIO. After an error there are no more entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_dir_read(dir: *mut pramfs_dir, entry: *mut pramfs_dirent) -> c_int {
    guard::int(|| {
        // SAFETY: a handle and a place for a result (contract, 1 and 4).
        let (dir, place) = unsafe { (args::handle(dir, "dir")?, args::place(entry, "entry")?) };
        // Before the lock: another thread of the parent may hold it for ever in a child.
        dir.shared.check_process()?;
        let next = dir
            .entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .next();
        let cannot = || format!("cannot read the directory {}", dir.path);
        let Some(found) = next.transpose().about(cannot)? else {
            return Ok(0);
        };
        let kind = found.file_type().about(cannot)?;
        let bytes = found.name().as_bytes();
        let mut name = [0; 256];
        // A name has at most 255 bytes; the last one stays 0.
        let len = bytes.len().min(name.len() - 1);
        for (to, from) in name.iter_mut().zip(&bytes[..len]) {
            *to = *from as c_char;
        }
        place.set(pramfs_dirent {
            ino: found.ino().0,
            file_type: kind.mode_bits(),
            name_len: len as u32,
            name,
        });
        Ok(1)
    })
}

/// Closes a directory. Does nothing for NULL. The handle is invalid afterwards, whatever
/// the result.
///
/// Errors: those of `pramfs_close`, if this is the last handle of its file system.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_dir_close(dir: *mut pramfs_dir) -> c_int {
    guard::done(|| {
        // SAFETY: a handle that is never used again (contract, 1).
        let Some(dir) = (unsafe { args::closed(dir) }) else {
            return Ok(());
        };
        let pramfs_dir {
            entries, shared, ..
        } = *dir;
        drop(entries);
        release(shared)
    })
}
