//! A mount that has met damage is shown as read-only.
//!
//! The engine refuses changes from the damage on. The kernel knows nothing of
//! that, and `/proc/mounts` says `rw`, until the superblock is remounted. That
//! is done by a thread of its own: the kernel writes dirty pages back first, and
//! whoever serves requests must be free to answer. It is refused (EBUSY) for as
//! long as files are open for writing, and tried again until none is.
//!
//! The superblock is what is changed, and so every mount of it: the flags of
//! each mount stay as they are.

use std::path::PathBuf;
use std::time::Duration;

use pramfs::Fs;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fsconfig_set_flag, fspick};

use crate::kernel::Place;
use crate::mountinfo;

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(250);

/// Starts the thread, which ends with the file system. It holds neither engine
/// nor mount.
pub fn watch(place: &Place, fs: &Fs) {
    let (place, writability) = (place.clone(), fs.writability());
    let region = fs.region().info().name;
    let started = std::thread::Builder::new()
        .name("read-only".into())
        .spawn(move || {
            if writability.wait_for_damage() {
                follow(&place, &region, || writability.wait_for_end(PAUSE));
            }
        });
    if let Err(error) = started {
        tracing::warn!("after damage the mount will still be shown as rw: {error}");
    }
}

/// Remounts until that has been done, cannot be done, or `ended`.
fn follow(place: &Place, region: &str, ended: impl Fn() -> bool) {
    let path = place.path.display();
    let mut waits = false;
    loop {
        match remount(place) {
            Ok(()) => {
                tracing::warn!("{region}: {path} is mounted read-only from here on");
                return;
            }
            Err(Errno::BUSY) if waits => {}
            Err(Errno::BUSY) => {
                waits = true;
                tracing::warn!(
                    "{region}: changes are refused (EROFS); {path} is shown as rw until the files that are open for writing are closed"
                );
            }
            Err(error) => {
                tracing::warn!(
                    "{region}: changes are refused (EROFS), but {path} stays shown as rw: this process cannot remount it: {error}"
                );
                return;
            }
        }
        if ended() {
            return;
        }
    }
}

/// Makes the file system of a mount read-only in the kernel.
///
/// Asks nothing of the process that serves it, which is this one, but that it
/// takes pages that are written back.
fn remount(place: &Place) -> rustix::io::Result<()> {
    let device = place.device.ok_or(Errno::NODEV)?;
    let mounts =
        mountinfo::read().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let ours = mounts.iter().rev().filter(|mount| mount.device == device);
    let targets: Vec<PathBuf> = ours.map(|mount| mount.target.clone()).collect();
    for target in targets {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(at) = rustix::fs::open(&target, flags, Mode::empty()) else {
            continue;
        };
        // Another may be on top of it. Not to be asked of the server.
        let cached = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = rustix::fs::statx(&at, c"", cached, StatxFlags::empty())?;
        if (stat.stx_dev_major, stat.stx_dev_minor) != device {
            continue;
        }
        let empty = FsPickFlags::FSPICK_EMPTY_PATH | FsPickFlags::FSPICK_CLOEXEC;
        let superblock = fspick(&at, c"", empty)?;
        fsconfig_set_flag(&superblock, c"ro")?;
        return fsconfig_reconfigure(&superblock);
    }
    Err(Errno::NOENT)
}
