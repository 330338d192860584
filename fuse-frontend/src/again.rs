//! A region that is mounted already, mounted once more.
//!
//! A kernel file system is mounted in as many places as one likes, each with
//! flags and a propagation of its own. The kernel mounts a FUSE file system
//! once more for whoever shows it the connection, so the connection is
//! borrowed from the process that serves the first mount. Where that is
//! forbidden, the second place is a bind mount of the first.
//!
//! Left to others: a region that is in use by anything but a live mount of
//! ours is refused when it is opened.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use pramfs::AtimePolicy;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};

use crate::exit::Failure;
use crate::kernel;
use crate::mountinfo::{self, Mount};
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
    let Some((first, region)) = first_place(region, settings) else {
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
    let settings = &alike(&first, settings);
    let point = mountpoint::prepare(mountpoint, settings.nonempty)?;
    let mounted = match connection_of(&region) {
        Some(connection) => in_earnest(&connection, &first, &point.path, settings),
        None => false,
    };
    if !mounted {
        bind(&first, &point.path, settings).map_err(|error| {
            Failure::mount(format!(
                "{shown} is mounted on {there}, and cannot be mounted on {} as well: {error}",
                point.path.display()
            ))
        })?;
    }
    Ok(Some(point.notices))
}

/// Tells whether it worked: what is there then is the same file system.
fn in_earnest(connection: &OwnedFd, first: &Mount, path: &Path, settings: &MountSettings) -> bool {
    let source = first.source.to_string_lossy();
    if let Err(error) = kernel::mount_connection(connection, path, &source, settings) {
        tracing::debug!("no second mount of the connection: {error}");
        return false;
    }
    if mountinfo::at(path).is_some_and(|mount| mount.device == first.device) {
        return true;
    }
    if let Err(error) = kernel::unmount(path, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH) {
        tracing::warn!("cannot unmount {}: {error}", path.display());
    }
    false
}

fn bind(first: &Mount, path: &Path, settings: &MountSettings) -> rustix::io::Result<()> {
    rustix::mount::mount_bind(&first.target, path)?;
    let flags = remount::new_flags(&[&first.options], &settings.flags_given) | MountFlags::BIND;
    rustix::mount::mount_remount(path, flags, c"")
}

/// The settings with the access times of the first mount: the process that serves
/// both knows one way to set them.
fn alike(first: &Mount, settings: &MountSettings) -> MountSettings {
    let has = |name| first.options.split(',').any(|word| word == name);
    let mut settings = settings.clone();
    settings.set_atime(match (has("noatime"), has("relatime")) {
        (true, _) => AtimePolicy::NoAtime,
        (_, true) => AtimePolicy::Relatime,
        _ => AtimePolicy::StrictAtime,
    });
    settings.set_dir_atime(!has("nodiratime"));
    settings
}

/// The connection of the process that serves `region`: the one that has both
/// open. Only root may look, and only with the right to trace processes.
fn connection_of(region: &Path) -> Option<OwnedFd> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    processes
        .filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
        .find_map(|pid| {
            let descriptors = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).ok()?;
            let open: Vec<(PathBuf, i32)> = descriptors
                .flatten()
                .filter_map(|entry| {
                    let number = entry.file_name().to_str()?.parse().ok()?;
                    Some((fs::read_link(entry.path()).ok()?, number))
                })
                .collect();
            let number = |path: &Path| open.iter().find(|(name, _)| name == path).map(|o| o.1);
            number(region)?;
            let connection = number(Path::new(kernel::DEVICE))?;
            let process = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
            rustix::process::pidfd_getfd(process, connection, PidfdGetfdFlags::empty()).ok()
        })
}

/// A place where the whole of the region can be seen, and the region's path.
fn first_place(region: &Path, settings: &MountSettings) -> Option<(Mount, PathBuf)> {
    let region = region.canonicalize().ok()?;
    let mounts = mountinfo::read().ok()?;
    let first = mounts.into_iter().find(|mount| {
        settings.is_type(&mount.fs_type)
            && mount.root == "/"
            && mountinfo::is_source(mount, &region)
            && mountinfo::at(&mount.target).is_some_and(|top| top.device == mount.device)
    })?;
    // One whose process has died is no mount that could be shared.
    unmount::is_held(&region).then_some((first, region))
}
