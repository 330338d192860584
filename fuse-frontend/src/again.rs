//! A region that is mounted already, mounted once more.
//!
//! A kernel file system is mounted in as many places as one likes, all of them
//! the same. Here one process serves the region, so the second place is a bind
//! mount of the first, with the flags of its own that a mount can have.
//!
//! Left to others: a region that is in use by anything but a live mount of
//! ours is refused when it is opened.

use std::path::Path;

use rustix::mount::MountFlags;

use crate::exit::Failure;
use crate::mountinfo::{self, FS_TYPE, Mount};
use crate::mountpoint;
use crate::options::MountSettings;
use crate::{remount, unmount};

/// Mounts `region` on `mountpoint` if it is mounted elsewhere; `None` where it
/// is not, and has to be mounted in earnest. Gives what the user should know.
///
/// # Errors
/// It is mounted on that very directory, or otherwise than asked for.
pub fn mount(
    region: &Path,
    mountpoint: &Path,
    settings: &MountSettings,
) -> Result<Option<Vec<String>>, Failure> {
    let Some((first, region)) = first_place(region) else {
        return Ok(None);
    };
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let (shown, there) = (region.display(), first.target.display());
    if mountpoint
        .canonicalize()
        .is_ok_and(|path| mountinfo::at(&path).is_some_and(|mount| mount.device == first.device))
    {
        return Err(Failure::mount(format!(
            "{shown} is already mounted on {}",
            mountpoint.display()
        )));
    }
    let is_read_only = first.super_options.split(',').any(|word| word == "ro");
    if settings.read_only != is_read_only {
        let how = if is_read_only {
            "read-only"
        } else {
            "read-write"
        };
        return Err(Failure::mount(format!(
            "{shown} is mounted on {there} {how}; a second mount of it can only be {how}, too"
        )));
    }
    let point = mountpoint::prepare(mountpoint, settings.nonempty)?;
    let failed = |error: rustix::io::Errno| {
        Failure::mount(format!(
            "{shown} is mounted on {there}, and cannot be mounted on {} as well: {error}",
            point.path.display()
        ))
    };
    rustix::mount::mount_bind(&first.target, &point.path).map_err(failed)?;
    let flags = remount::new_flags(&[&first.options], &settings.flags_given) | MountFlags::BIND;
    rustix::mount::mount_remount(&point.path, flags, c"").map_err(failed)?;
    Ok(Some(point.notices))
}

/// A place where the whole of the region can be seen, and the region's path.
fn first_place(region: &Path) -> Option<(Mount, std::path::PathBuf)> {
    let region = region.canonicalize().ok()?;
    let mounts = mountinfo::read().ok()?;
    let first = mounts.into_iter().find(|mount| {
        mount.fs_type == FS_TYPE
            && mount.root == "/"
            && mountinfo::is_source(mount, &region)
            && mountinfo::at(&mount.target).is_some_and(|top| top.device == mount.device)
    })?;
    // One whose process has died is no mount that could be shared.
    unmount::is_held(&region).then_some((first, region))
}
