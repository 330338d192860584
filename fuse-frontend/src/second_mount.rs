//! A region that root has mounted already, mounted once more.
//!
//! A kernel file system is mounted in as many places as one likes, each with
//! flags and a propagation of its own. The kernel mounts a FUSE file system
//! once more for whoever shows it the connection, so the connection is
//! borrowed from the process that serves the first mount: over the control
//! socket of the region, where that process has shown that it is root's and has
//! this very region open.
//!
//! Invariant: no name decides anything, neither a mount's source and type nor a
//! process's. The file system that the connection leads to is compared, by its
//! device number, with what root has mounted, before anybody can see it; it is
//! never less restricted than the first mount. What does not fit is refused.
//!
//! Left to others: a region that is in use by anything else is refused when it
//! is opened.

use std::path::Path;

use pramfs::AtimePolicy;
use pramfs_control::{Client, ControlError, DIRECTORY, Directory, Identity, Request, Served};

use crate::exit::Failure;
use crate::kernel::Detached;
use crate::mountinfo::{self, Mount};
use crate::mountpoint;
use crate::options::MountSettings;

/// Mounts `region` on `mountpoint` if root's server has it mounted where we see
/// it; `None` where none has, and it has to be mounted in earnest. Gives what the
/// user should know.
///
/// # Errors
/// It is mounted on that very directory, or otherwise than asked for; the server
/// does not prove what it is, or does not answer.
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
        // It ends just now.
        Err(ControlError::Gone) => return Ok(None),
        asked => asked.map_err(untrusted)?,
    };
    let Some(first) = first_mount(&proved.served) else {
        // It is unmounted, or mounted in another mount namespace only. Opening the
        // region waits for the one and refuses the other.
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
            "{shown} is mounted on {there} {how}; a second mount of it can only be {how}, too"
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
            "{shown} is mounted on {there} with {how}, which holds for all its mounts; ask for nothing else"
        )));
    }
    // These are of the file system as a whole, and a second mount does not set them.
    let wanted = [("sync", settings.sync), ("dirsync", settings.dirsync)];
    for (option, _) in wanted.iter().filter(|(_, asked)| *asked) {
        if !first.super_options.split(',').any(|word| word == *option) {
            return Err(Failure::mount(format!(
                "{shown} is mounted on {there} without {option}, which holds for all its mounts; leave out {option}, or type: mount -o remount,{option} {there}"
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
        .ok_or_else(|| refused("the process that serves it keeps the connection".into()))?;
    let source = first.source.to_string_lossy();
    let mount = Detached::new(&connection, &source, &settings)
        .map_err(|error| refused(error.to_string()))?;
    if mount.device != first.device {
        return Err(refused(format!(
            "process {pid} gave a connection that leads to another file system"
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

/// Whether root's server has this region mounted and says so.
pub(crate) fn is_served(region: &Path) -> bool {
    matches!(server_of(region), Ok(Some(_)))
}

/// The server of a region, for root. `None` where nobody listens for it.
fn server_of(region: &Path) -> Result<Option<Client>, Failure> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let Ok(identity) = Identity::of_path(region) else {
        // Opening it says what is wrong.
        return Ok(None);
    };
    let directory = match Directory::open(DIRECTORY) {
        Ok(Some(directory)) => directory,
        // A directory that is not safe is not looked into. The mount, if it can be
        // made, says so.
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

/// The first mount of the whole of what is served that the caller has made.
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

/// What the first mount forbids, by its options when it was made or by a remount,
/// the second forbids too. Gives what was not asked for.
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
