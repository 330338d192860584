//! A mount that has met damage is shown as read-only.
//!
//! The engine refuses changes from the damage on. The kernel knows nothing of
//! that, and `/proc/mounts` says `rw`, until the superblock is remounted. That
//! is done by a thread of its own: the kernel writes dirty pages back first, and
//! whoever serves requests must be free to answer. It is refused (EBUSY) for as
//! long as files are open for writing, and tried again until none is. What else
//! stands in the way (a mount that is covered, want of memory) may pass as well:
//! only where this process may not or cannot remount, it gives up.
//!
//! Invariant: it is our own file system that is remounted. The number in the mount
//! table may be another's by now; so the mount is held, which keeps its number its
//! own, and only then the connection is found alive.
//!
//! The superblock is what is changed, and so every mount of it: the flags of
//! each mount stay as they are.

use std::path::PathBuf;
use std::time::Duration;

use pramfs::inode::Fs;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fsconfig_set_flag, fspick};

use crate::kernel::Place;
use crate::mountinfo;

/// Between two tries, while files are open for writing.
const PAUSE: Duration = Duration::from_millis(250);
/// Between two tries, with anything else in the way.
const LONG_PAUSE: Duration = Duration::from_secs(2);

/// Starts the thread, which ends with the mount. It holds neither engine nor
/// mount.
pub fn watch(place: &Place, fs: &Fs) {
    let (place, writability) = (place.clone(), fs.writability());
    let region = fs.region().info().name;
    let started = std::thread::Builder::new()
        .name("read-only".into())
        .spawn(move || {
            if writability.wait_for_damage() {
                let path = place.path.display().to_string();
                follow(
                    &region,
                    &path,
                    || remount(&place),
                    |pause| !place.is_live() || writability.wait_for_end(pause),
                );
            }
        });
    if let Err(error) = started {
        tracing::warn!("after damage the mount will still be shown as rw: {error}");
    }
}

/// Whether another try may have another end.
fn may_pass(error: Errno) -> bool {
    !matches!(
        error,
        Errno::PERM | Errno::ACCESS | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL
    )
}

/// Tries until it is remounted, cannot be, or `ended` after a pause.
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
                tracing::warn!("{region}: {path} is mounted read-only from here on");
                return;
            }
            // There is nothing to be shown any more.
            Err(_) if ended(Duration::ZERO) => return,
            Err(error) => error,
        };
        if !may_pass(error) {
            tracing::warn!(
                "{region}: changes are refused (EROFS), but {path} stays shown as rw: this process cannot remount it: {error}"
            );
            return;
        }
        if told.replace(error) != Some(error) {
            match error {
                Errno::BUSY => tracing::warn!(
                    "{region}: changes are refused (EROFS); {path} is shown as rw until the files that are open for writing are closed"
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
/// Asks nothing of the process that serves it, which is this one, but that it
/// takes pages that are written back.
pub(crate) fn remount(place: &Place) -> rustix::io::Result<()> {
    let device = place.device.ok_or(Errno::NODEV)?;
    let mounts =
        mountinfo::read().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let ours = mounts.iter().rev().filter(|mount| place.resembles(mount));
    let targets: Vec<PathBuf> = ours.map(|mount| mount.target.clone()).collect();
    for target in targets {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(at) = rustix::fs::open(&target, flags, Mode::empty()) else {
            continue;
        };
        // Another may be on top of it. Not to be asked of the server.
        let cached = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let Ok(stat) = rustix::fs::statx(&at, c"", cached, StatxFlags::empty()) else {
            continue;
        };
        if (stat.stx_dev_major, stat.stx_dev_minor) != device {
            continue;
        }
        if !place.is_live() {
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

    /// How often it is tried, with these errors before it works.
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
    fn what_may_pass_is_tried_again() {
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
    fn what_never_passes_is_not_tried_again() {
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
