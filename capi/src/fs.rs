//! [`pramfs_fs`]: an open file system, and the handles that share it.
//!
//! Invariant: the file system lives until the last handle of it is closed: the
//! [`pramfs_fs`], its files, maps and directories. The call that closes the last one
//! unmounts, and returns the error of that.

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use pramfs::inode::Credentials;
use pramfs::{FileSystem, MountOptions};

use crate::args;
use crate::error::{About as _, Failure};
use crate::guard;
use crate::options::pramfs_options;
use crate::stat;

/// What the handles of one file system share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) fs: FileSystem,
    pub(crate) creator: Credentials<'static>,
    /// The process that opened it. A forked child has no use for it, and may not even wait
    /// for a lock of ours.
    process: u32,
    region: String,
}

impl Shared {
    /// # Errors
    /// EIO in a forked child.
    pub(crate) fn check_process(&self) -> Result<(), Failure> {
        match std::process::id() == self.process {
            true => Ok(()),
            false => Err(Failure::new(
                libc::EIO,
                format!(
                    "{} was opened by the process {}, of which this one is a fork",
                    self.region, self.process
                ),
            )),
        }
    }
}

/// Gives up a handle's share. Whoever has the last one unmounts.
///
/// # Errors
/// Those of the unmount.
pub(crate) fn release(shared: Arc<Shared>) -> Result<(), Failure> {
    match Arc::into_inner(shared) {
        None => Ok(()),
        Some(shared) => unmount(shared),
    }
}

fn unmount(shared: Shared) -> Result<(), Failure> {
    let Shared { fs, region, .. } = shared;
    fs.unmount()
        .about(|| format!("cannot unmount the file system in {region}"))
}

/// An open file system.
#[derive(Debug)]
pub struct pramfs_fs {
    pub(crate) shared: Arc<Shared>,
}

/// Opens the file system of a region in this process. If the last process that used it did
/// not end cleanly, the journal is replayed first.
///
/// `region` is a file, a block device or a devdax device. `options` can be NULL. The region
/// is locked until the file system is unmounted: no server and no other process can open it
/// meanwhile. Openings for reading share the lock with each other.
///
/// `pramfs_close` closes `*fs`, which is set only if the call succeeds.
///
/// Errors: -EBUSY (in use; the message names the process), -ENOENT, -EACCES and others of
/// open(2), -EINVAL (NULL; no usable file system or region), -EUCLEAN (damaged),
/// -EOPNOTSUPP (an option that the medium does not allow).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_open(
    fs: *mut *mut pramfs_fs,
    region: *const c_char,
    options: *const pramfs_options,
) -> c_int {
    guard::done(|| {
        // SAFETY: a place for a result and a string (contract, 4 and 2).
        let (place, path) = unsafe { (args::place(fs, "fs")?, args::path(region, "region")?) };
        let standard = pramfs_options::default();
        let options = match options.is_null() {
            true => &standard,
            // SAFETY: options that live (contract, 1).
            false => unsafe { args::handle(options, "options") }?,
        };
        let cannot = || format!("cannot open {}", path.display());
        let region = options.region.open(path).about(cannot)?;
        let mount: MountOptions = options.mount.clone();
        let fs = FileSystem::mount(region, mount).about(cannot)?;
        let creator = options.creator.unwrap_or_else(|| {
            // SAFETY: both only return a number.
            let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
            Credentials::new(uid, gid).with_umask(0o022)
        });
        place.give(pramfs_fs {
            shared: Arc::new(Shared {
                fs: fs.with_creator(creator),
                creator,
                process: std::process::id(),
                region: path.display().to_string(),
            }),
        });
        Ok(())
    })
}

/// Closes a file system. Does nothing for NULL. The handle is invalid afterwards, whatever
/// the result.
///
/// Its files, maps and directories stay usable. The file system is unmounted, and the
/// region unlocked, by the call that closes the last of them.
///
/// Errors: if this call unmounts, -EIO if the medium failed (the next open recovers), or in
/// a forked child.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_close(fs: *mut pramfs_fs) -> c_int {
    guard::done(|| {
        // SAFETY: a handle that is never used again (contract, 1).
        match unsafe { args::closed(fs) } {
            None => Ok(()),
            Some(fs) => release(fs.shared),
        }
    })
}

/// Unmounts a file system, or refuses while files, maps or directories of it are open. For
/// programs that must know that the region is unlocked.
///
/// Errors: -EBUSY while one is open: then the handle stays valid, and nothing has changed.
/// After any other result it is invalid. -EINVAL for NULL; else as of `pramfs_close`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_unmount(fs: *mut pramfs_fs) -> c_int {
    guard::done(|| {
        // SAFETY: a handle that no other thread uses (contract, 1).
        let shared = &unsafe { args::exclusive(fs, "fs") }?.shared;
        // Nobody else has this handle, so no other can come from it meanwhile.
        let others = Arc::strong_count(shared) - 1;
        if others > 0 {
            return Err(Failure::new(
                libc::EBUSY,
                format!(
                    "the file system in {} is in use: {others} files, maps or directories are \
                     open",
                    shared.region
                ),
            ));
        }
        // SAFETY: the handle is given up (contract, 1).
        match unsafe { args::closed(fs) } {
            None => Ok(()),
            Some(fs) => release(fs.shared),
        }
    })
}

/// Makes everything durable, including the times of reads and overwrites. All other changes
/// are durable when their calls return, except stores through maps.
///
/// Errors: -EINVAL for NULL, -EIO.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_sync(fs: *mut pramfs_fs) -> c_int {
    guard::done(|| {
        // SAFETY: a handle (contract, 1).
        let shared = &unsafe { args::handle(fs, "fs") }?.shared;
        shared
            .fs
            .sync()
            .about(|| format!("cannot sync the file system in {}", shared.region))
    })
}

/// Returns the used and free space and inodes, as statvfs(3) does.
///
/// Errors: -EINVAL for NULL, -EIO.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_statvfs(fs: *mut pramfs_fs, buf: *mut libc::statvfs) -> c_int {
    guard::done(|| {
        // SAFETY: a handle, and a place for a result (contract, 1 and 4).
        let (shared, place) =
            unsafe { (&args::handle(fs, "fs")?.shared, args::place(buf, "buf")?) };
        let found = shared
            .fs
            .statfs()
            .about(|| format!("cannot ask for the space in {}", shared.region))?;
        place.set(stat::space(&found, shared.fs.inodes().is_read_only()));
        Ok(())
    })
}
