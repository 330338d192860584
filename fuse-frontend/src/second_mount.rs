//! Mounts a region that root has already mounted on a further directory.
//!
//! A kernel file system can be mounted on any number of directories, each with its
//! own flags and propagation. For FUSE, the kernel makes another mount for a process
//! that presents the connection. The server of the first mount lends it over the
//! control socket of the region, after proving that it runs as root and has this
//! region open.
//!
//! Invariants:
//! * no name is trusted: neither the source and type of a mount nor the name of a
//!   process;
//! * before the new mount becomes visible, the device number of its file system is
//!   compared with the mount of root; a mismatch is refused;
//! * the new mount is never less restricted than the first one.
//!
//! Not here: a region that another program uses. Opening it fails.

use std::path::Path;

use pramfs_control::{Client, ControlError, DIRECTORY, Directory, Identity, Request, Served};

use crate::exit::Failure;
use crate::kernel::Detached;
use crate::mountinfo::{self, Mount};
use crate::mountpoint;
use crate::options::{self, Flag, MountSettings};

/// Mounts `region` on `mountpoint` if root's server has it mounted in this namespace.
/// Returns messages for the user, or `None` if no server does and the region needs a
/// first mount.
///
/// # Errors
/// The region is already mounted on that directory, or with options that differ from
/// the requested ones; the server fails to prove its identity, or does not answer.
pub fn mount(
    region: &Path,
    mountpoint: &Path,
    settings: &MountSettings,
) -> Result<Option<Vec<String>>, Failure> {
    let Some(server) = server_of(region)? else {
        return Ok(None);
    };
    let shown = region.display();
    let pid = server.pid();
    let untrusted = |error: ControlError| {
        Failure::mount(format!(
            "{shown} is served by process {pid}, and cannot be mounted a second time: {error}"
        ))
    };
    let proved = match server.ask(Request::Connection) {
        // The server is just ending.
        Err(ControlError::Gone) => return Ok(None),
        asked => asked.map_err(untrusted)?,
    };
    let Some(first) = first_mount(&proved.served) else {
        // Either it is being unmounted: opening the region waits for that. Or it is
        // mounted only in another mount namespace: opening the region fails.
        return Ok(None);
    };
    let there = first.target.display();
    let directory = mountpoint::open(mountpoint)?.0;
    if mountinfo::of_top(&directory).is_some_and(|mount| mount.device == first.device) {
        return Err(Failure::mount(format!(
            "{shown} is already mounted on {}",
            mountpoint.display()
        )));
    }
    drop(directory);
    let is_read_only = first.super_options.split(',').any(|word| word == "ro");
    if settings.read_only != is_read_only {
        let how = if is_read_only {
            "read-only"
        } else {
            "read-write"
        };
        return Err(Failure::mount(format!(
            "{shown} is mounted on {there} {how}; a second mount must be {how} as well"
        )));
    }
    let others = first.has("allow_other");
    if settings.allow_other.is_some_and(|asked| asked != others) {
        let how = if others {
            "allow_other"
        } else {
            "noallow_other"
        };
        return Err(Failure::mount(format!(
            "{shown} is mounted on {there} with {how}, which applies to all its mounts; use the same option"
        )));
    }
    // These belong to the superblock; a second mount cannot set them.
    let wanted = [("sync", settings.sync), ("dirsync", settings.dirsync)];
    for (option, _) in wanted.iter().filter(|(_, asked)| *asked) {
        if !first.super_options.split(',').any(|word| word == *option) {
            return Err(Failure::mount(format!(
                "{shown} is mounted on {there} without {option}, which applies to all its mounts; leave out {option}, or type: mount -o remount,{option} {there}"
            )));
        }
    }
    let mut settings = alike(&first, settings);
    let kept = keep_restrictions(&first, &proved.served, &mut settings);
    let mut point = mountpoint::prepare(mountpoint, settings.nonempty)?;
    let refused = |why: String| {
        Failure::mount(format!(
            "{shown} is mounted on {there}, and cannot be mounted on {} as well: {why}",
            point.path.display()
        ))
    };
    let connection = proved
        .connection
        .ok_or_else(|| refused("its server did not send the connection".into()))?;
    let source = first.source.to_string_lossy();
    let mount = Detached::new(&connection, &source, &settings)
        .map_err(|error| refused(error.to_string()))?;
    if mount.device != first.device {
        return Err(refused(format!(
            "process {pid} sent the connection of another file system"
        )));
    }
    mount
        .attach(&point)
        .map_err(|error| refused(error.to_string()))?;
    if !kept.is_empty() {
        point.notices.push(format!(
            "mounted {}, as the first mount on {there} is",
            kept.join(",")
        ));
    }
    Ok(Some(point.notices))
}

/// Tells whether root's server answers for this region.
pub(crate) fn is_served(region: &Path) -> bool {
    matches!(server_of(region), Ok(Some(_)))
}

/// Connects to the server of a region, if this process is root. Returns `None` if no
/// server listens.
fn server_of(region: &Path) -> Result<Option<Client>, Failure> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let Ok(identity) = Identity::of_path(region) else {
        // Opening the region reports the cause.
        return Ok(None);
    };
    let directory = match Directory::open(DIRECTORY) {
        Ok(Some(directory)) => directory,
        // An unsafe directory is not searched. If the mount succeeds, it warns.
        Ok(None) | Err(ControlError::Directory { .. }) => return Ok(None),
        Err(error) => return Err(Failure::system(error.to_string())),
    };
    Client::connect(&directory, identity).map_err(|error| {
        Failure::mount(format!(
            "cannot tell whether {} is mounted: {error}",
            region.display()
        ))
    })
}

/// Returns the caller's first mount of the served file system's root.
fn first_mount(served: &Served) -> Option<Mount> {
    let own = rustix::process::geteuid().as_raw();
    let mut mounts = mountinfo::read().ok()?.into_iter();
    mounts.find(|mount| {
        mount.device == served.device
            && mount.root == "/"
            && mount.is_own()
            && served.user_id == own
    })
}

/// Returns the settings with the atime policy of the first mount: one server has one
/// policy for all its mounts.
fn alike(first: &Mount, settings: &MountSettings) -> MountSettings {
    let has = |name| first.options.split(',').any(|word| word == name);
    let mut settings = settings.clone();
    settings.set(match (has("noatime"), has("relatime")) {
        (true, _) => options::NOATIME,
        (_, true) => options::RELATIME,
        _ => options::STRICTATIME,
    });
    settings.set(&[(Flag::NoDirAtime, has("nodiratime"))]);
    settings
}

/// Copies the restrictions of the first mount, from its original options or from a
/// remount. Returns those that the caller did not request.
fn keep_restrictions(
    first: &Mount,
    served: &Served,
    settings: &mut MountSettings,
) -> Vec<&'static str> {
    let mut kept = Vec::new();
    for (name, was_given, allowed) in [
        ("nosuid", served.nosuid, &mut settings.suid),
        ("nodev", served.nodev, &mut settings.dev),
        ("noexec", served.noexec, &mut settings.exec),
        ("nosymfollow", served.nosymfollow, &mut settings.symlinks),
    ] {
        if *allowed && (was_given || first.has(name)) {
            *allowed = false;
            kept.push(name);
        }
    }
    kept
}
