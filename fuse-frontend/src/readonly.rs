//! Remounts the file system read-only after damage.
//!
//! After damage the engine refuses changes. The kernel does not know that, and
//! `/proc/mounts` says `rw`, until the superblock is remounted. A separate thread
//! remounts: the kernel first writes dirty pages back, and the serving threads must be
//! free to answer. While files are open for writing, the remount fails with EBUSY and
//! the thread retries. It also retries after other temporary errors (a covered mount,
//! out of memory). It gives up only if this process may not or cannot remount.
//!
//! Invariant: only our own file system is remounted. The device number in the mount
//! table may have been reused. Order: the mount is opened, which pins its number; then
//! the connection is checked to be alive.
//!
//! The remount changes the superblock and so affects all its mounts; the flags of each
//! mount stay unchanged.

use std::path::PathBuf;
use std::time::Duration;

use pramfs::inode::Fs;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fsconfig_set_flag, fspick};

use crate::kernel::OwnMount;
use crate::mountinfo;

/// Delay between retries while files are open for writing.
const PAUSE: Duration = Duration::from_millis(250);
/// Delay between retries after any other error.
const LONG_PAUSE: Duration = Duration::from_secs(2);

/// Starts the thread, which ends with the mount. The thread keeps neither the engine
/// nor the mount alive.
pub fn watch(own_mount: &OwnMount, fs: &Fs) {
    let (own_mount, writability) = (own_mount.clone(), fs.writability());
    let region = fs.region().info().name;
    let started = std::thread::Builder::new()
        .name("read-only".into())
        .spawn(move || {
            if writability.wait_for_damage() {
                let path = own_mount.path.display().to_string();
                follow(
                    &region,
                    &path,
                    || remount(&own_mount),
                    |pause| !own_mount.is_live() || writability.wait_for_end(pause),
                );
            }
        });
    if let Err(error) = started {
        tracing::warn!(
            "cannot start the thread that remounts read-only; after damage the mount stays shown as rw: {error}"
        );
    }
}

/// Tells whether a retry may succeed.
fn may_pass(error: Errno) -> bool {
    !matches!(
        error,
        Errno::PERM | Errno::ACCESS | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL
    )
}

/// Retries until the remount succeeds or fails permanently, or until `ended` returns
/// true after a pause.
fn follow(
    region: &str,
    path: &str,
    mut remount: impl FnMut() -> rustix::io::Result<()>,
    ended: impl Fn(Duration) -> bool,
) {
    let mut told = None;
    loop {
        let error = match remount() {
            Ok(()) => {
                tracing::warn!("{region}: {path} is now mounted read-only");
                return;
            }
            // The mount has ended.
            Err(_) if ended(Duration::ZERO) => return,
            Err(error) => error,
        };
        if !may_pass(error) {
            tracing::warn!(
                "{region}: changes are refused (EROFS), but {path} stays shown as rw, because this process cannot remount it: {error}"
            );
            return;
        }
        if told.replace(error) != Some(error) {
            match error {
                Errno::BUSY => tracing::warn!(
                    "{region}: changes are refused (EROFS); {path} is shown as rw until all files open for writing are closed"
                ),
                error => tracing::warn!(
                    "{region}: changes are refused (EROFS); {path} is shown as rw until it can be remounted: {error}"
                ),
            }
        }
        let pause = match error {
            Errno::BUSY => PAUSE,
            _ => LONG_PAUSE,
        };
        if ended(pause) {
            return;
        }
    }
}

/// Makes the file system of a mount read-only in the kernel.
///
/// The only requests that this sends to the server, which is this process, are
/// write-backs of dirty pages.
pub(crate) fn remount(own_mount: &OwnMount) -> rustix::io::Result<()> {
    let device = own_mount.device.ok_or(Errno::NODEV)?;
    let mounts =
        mountinfo::read().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let ours = mounts
        .iter()
        .rev()
        .filter(|mount| own_mount.resembles(mount));
    let targets: Vec<PathBuf> = ours.map(|mount| mount.target.clone()).collect();
    for target in targets {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(at) = rustix::fs::open(&target, flags, Mode::empty()) else {
            continue;
        };
        // Another mount may cover it. DONT_SYNC: no request to the server.
        let cached = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let Ok(stat) = rustix::fs::statx(&at, c"", cached, StatxFlags::empty()) else {
            continue;
        };
        if (stat.stx_dev_major, stat.stx_dev_minor) != device {
            continue;
        }
        if !own_mount.is_live() {
            return Err(Errno::NOTCONN);
        }
        let empty = FsPickFlags::FSPICK_EMPTY_PATH | FsPickFlags::FSPICK_CLOEXEC;
        let superblock = fspick(&at, c"", empty)?;
        fsconfig_set_flag(&superblock, c"ro")?;
        return fsconfig_reconfigure(&superblock);
    }
    Err(Errno::NOENT)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Counts the attempts if these errors come before the success.
    fn tries(errors: &[Errno], ends_after: usize) -> usize {
        let tries = Cell::new(0);
        let remount = || {
            tries.set(tries.get() + 1);
            errors
                .get(tries.get() - 1)
                .map_or(Ok(()), |error| Err(*error))
        };
        follow("", "/mnt", remount, |_| tries.get() > ends_after);
        tries.get()
    }

    #[test]
    fn remount_retries_temporary_errors() {
        let passing = [
            Errno::BUSY,
            Errno::NOENT,
            Errno::NOMEM,
            Errno::IO,
            Errno::NFILE,
            Errno::BUSY,
        ];
        assert_eq!(tries(&passing, usize::MAX), passing.len() + 1);
        assert_eq!(tries(&passing, 2), 3);
    }

    #[test]
    fn remount_gives_up_on_permanent_errors() {
        for error in [
            Errno::PERM,
            Errno::ACCESS,
            Errno::NOSYS,
            Errno::OPNOTSUPP,
            Errno::INVAL,
        ] {
            assert_eq!(tries(&[Errno::BUSY, error], usize::MAX), 2, "{error}");
        }
    }
}
