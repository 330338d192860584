//! Finds the server of a live mount, for the subcommands that ask it.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use pramfs_control::{Connection, ControlError, DIRECTORY, Directory, Identity};

use crate::Failure;
use crate::failure::shown;

/// Connects to the server of a mount point, or of a region that is mounted. Also returns the
/// device number of its mount.
///
/// # Errors
/// No server of root answers for it; the system failed.
pub(super) fn live_mount(place: &Path) -> Result<(Connection, u64), Failure> {
    let meta = std::fs::metadata(place).map_err(|e| Failure::os("cannot find", shown(place), e))?;
    let about = |e: ControlError| Failure::new("os", format!("{}: {e}", shown(place)));
    let none = || {
        Failure::new(
            "not-mounted",
            format!(
                "{}: no server of root answers for it; name a mount point or a region, mounted by root",
                shown(place)
            ),
        )
    };
    let directory = Directory::open(DIRECTORY)
        .map_err(about)?
        .ok_or_else(none)?;
    let is_region = meta.is_file() || meta.file_type().is_block_device();
    let named = Identity::of_path(place).map_err(about)?.socket_name();
    for name in directory.sockets().map_err(about)? {
        if is_region && name != named {
            continue;
        }
        // Servers of other mounts may be ending.
        let Ok(Some(server)) = Connection::open(&directory, &name) else {
            continue;
        };
        let Ok(served) = server.served() else {
            continue;
        };
        let device = rustix::fs::makedev(served.device.0, served.device.1);
        if is_region || device == meta.dev() {
            return Ok((server, device));
        }
    }
    Err(none())
}
