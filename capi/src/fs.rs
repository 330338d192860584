//! [`pramfs_fs`]: an open file system, and the handles that share it.
//!
//! Invariant: the file system lives until the last handle of it is closed: the
//! [`pramfs_fs`], its files, maps and directories. The call that closes the last one
//! unmounts, and returns the error of that.
//!
//! Invariant: after a panic in a call, no later call works on the file system. What the
//! engine has in memory is not known any more, and could reach the medium.

use std::ffi::{c_char, c_int};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pramfs::inode::Credentials;
use pramfs::{FileSystem, MountOptions};

use crate::args::{self, Handle};
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
    /// A call has panicked.
    failed: AtomicBool,
}

/// A call in progress. If it panics, it is the last one.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    failed: &'a AtomicBool,
    /// The caller itself was unwinding at the beginning.
    unwinding: bool,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.unwinding {
            self.failed.store(true, Ordering::Relaxed);
        }
    }
}

impl Shared {
    fn new(fs: FileSystem, creator: Credentials<'static>, region: String) -> Shared {
        Shared {
            fs: fs.with_creator(creator),
            creator,
            process: std::process::id(),
            region,
            failed: AtomicBool::new(false),
        }
    }

    /// Begins a call.
    ///
    /// # Errors
    /// EIO after a call has panicked.
    pub(crate) fn enter(&self) -> Result<Call<'_>, Failure> {
        if self.failed.load(Ordering::Relaxed) {
            return Err(Failure::new(
                libc::EIO,
                format!(
                    "a bug of pramfs has ended the use of {}: close it, run `fsck.pramfs {}`, \
                     and open it again",
                    self.region, self.region
                ),
            ));
        }
        Ok(Call {
            failed: &self.failed,
            unwinding: std::thread::panicking(),
        })
    }

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

impl Handle for pramfs_fs {
    fn shared(&self) -> Option<&Shared> {
        Some(&self.shared)
    }
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
        // SAFETY: options that live (contract, 1).
        let options = unsafe { args::optional(options) }.unwrap_or(&standard);
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
            shared: Arc::new(Shared::new(fs, creator, path.display().to_string())),
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
        let fs = unsafe { args::handle(fs, "fs") }?;
        let shared = &fs.shared;
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
        let (fs, place) = unsafe { (args::handle(fs, "fs")?, args::place(buf, "buf")?) };
        let shared = &fs.shared;
        let found = shared
            .fs
            .statfs()
            .about(|| format!("cannot ask for the space in {}", shared.region))?;
        place.set(stat::space(&found, shared.fs.inodes().is_read_only()));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use pramfs::format::{FormatOptions, format};
    use pramfs::pmem::{HeapBackend, Region};

    use super::*;
    use crate::error::pramfs_errormsg;

    #[test]
    fn panic_of_a_call_refuses_all_later_ones() {
        let region = Region::new("memory", HeapBackend::boxed(4 << 20));
        format(&region, &FormatOptions::default()).unwrap();
        let fs = FileSystem::mount(region, MountOptions::default()).unwrap();
        let shared = Shared::new(fs, Credentials::ROOT, "memory".to_owned());
        let fs = Box::into_raw(Box::new(pramfs_fs {
            shared: Arc::new(shared),
        }));
        // SAFETY: a handle that is open until the last line.
        unsafe {
            assert_eq!(pramfs_sync(fs), 0);
            let panics = || {
                let _fs = args::handle(fs, "fs")?;
                panic!("on purpose");
            };
            assert_eq!(guard::done(panics), -libc::EIO);
            assert_eq!(pramfs_sync(fs), -libc::EIO);
            let said = CStr::from_ptr(pramfs_errormsg()).to_str().unwrap();
            assert!(said.contains("fsck.pramfs memory"), "{said}");
            assert_eq!(pramfs_close(fs), 0);
        }
    }
}
