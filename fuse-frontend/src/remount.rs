//! `-o remount`: the flags of a live mount.
//!
//! The kernel keeps these flags, so no word with the serving process is
//! needed, but for two: with `rw` that process has to begin to write, and may
//! not be able to; and it is that process which sets access times. Options that
//! are ours (cache=, threads=, ...) are settled at mount time and ignored here,
//! as mount(8) repeats them from fstab.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::exit::Failure;
use crate::mountinfo;
use crate::mountpoint;
use crate::options::MountSettings;

const FLAGS: [(&str, MountFlags); 11] = [
    ("ro", MountFlags::RDONLY),
    ("nodev", MountFlags::NODEV),
    ("nosuid", MountFlags::NOSUID),
    ("noexec", MountFlags::NOEXEC),
    ("nosymfollow", MountFlags::NOSYMFOLLOW),
    ("sync", MountFlags::SYNCHRONOUS),
    ("dirsync", MountFlags::DIRSYNC),
    ("noatime", MountFlags::NOATIME),
    ("nodiratime", MountFlags::NODIRATIME),
    ("relatime", MountFlags::RELATIME),
    ("strictatime", MountFlags::STRICTATIME),
];

/// Removing this attribute, which no file has, makes the mount writable.
pub(crate) const BEGIN_TO_WRITE: &str = "trusted.pramfs.is-writable";

/// Removing one of these makes the mount set access times so.
pub(crate) const SET_ATIMES: [(&str, MountFlags); 3] = [
    ("trusted.pramfs.atime-is-never", MountFlags::NOATIME),
    ("trusted.pramfs.atime-is-relative", MountFlags::RELATIME),
    ("trusted.pramfs.atime-is-strict", MountFlags::STRICTATIME),
];

/// The same for directories: not at all, and as for files.
pub(crate) const SET_DIR_ATIMES: [&str; 2] = [
    "trusted.pramfs.atime-of-directories-is-never",
    "trusted.pramfs.atime-of-directories-is-the-same",
];

/// Gives the mount on `mountpoint` the flags that `settings` names; the others
/// stay as they are.
///
/// # Errors
/// Where there is no mount of ours, or no right.
pub fn remount(mountpoint: &Path, settings: &MountSettings) -> Result<(), Failure> {
    let shown = mountpoint.display();
    // Held, so that what is changed is what was looked at.
    let top = mountpoint::open(mountpoint)?.0;
    let mount = mountinfo::of_top(&top)
        .filter(|mount| settings.is_type(&mount.fs_type))
        .ok_or_else(|| {
            Failure::mount(format!(
                "{shown} is not a mount of a pramfs region: there is nothing to remount"
            ))
        })?;
    if !mount.is_own() {
        return Err(Failure::mount(format!(
            "{shown} was mounted by another user, whose files would get these flags; that user can remount it, or unmount it and mount the region"
        )));
    }
    let path = PathBuf::from(mountinfo::way(&top));
    let current = [&*mount.options, &*mount.super_options];
    let before = new_flags(&current, &[]);
    let flags = new_flags(&current, &settings.flags_given);
    let change = |flags| rustix::mount::mount_remount(&path, flags, c"");
    // The process cannot be told while nothing may be written.
    let was_writable = !before.contains(MountFlags::RDONLY);
    if was_writable && (before ^ flags).intersects(atimes()) {
        tell_atimes(&path, flags)
            .map_err(|error| Failure::mount(format!("cannot remount {shown}: {error}")))?;
    }
    change(flags).map_err(|error| {
        if was_writable && let Err(error) = tell_atimes(&path, before) {
            tracing::warn!("access times of {shown} are set as if it were remounted: {error}");
        }
        let hint = if error == rustix::io::Errno::BUSY {
            "; files are open for writing"
        } else {
            ""
        };
        Failure::mount(format!("cannot remount {shown}: {error}{hint}"))
    })?;
    let to_write = settings.flags_given.contains(&("ro".to_owned(), false));
    if to_write
        && !flags.contains(MountFlags::RDONLY)
        && let Some(error) = begin_to_write(&path)
    {
        change(flags | MountFlags::RDONLY).map_err(|error| {
            Failure::mount(format!("cannot make {shown} read-only again: {error}"))
        })?;
        let why = match error {
            Errno::ROFS => {
                "the process that serves it has the region for reading only, or has met damage, as its log says; unmount it and mount it again to write".to_owned()
            }
            Errno::BUSY => {
                "others have the region open for reading; end them first, fuser(1) names them".to_owned()
            }
            error => format!("the process that serves it cannot write: {error}"),
        };
        return Err(Failure::mount(format!("{shown} stays read-only: {why}")));
    }
    if !was_writable && !flags.contains(MountFlags::RDONLY) {
        tell_atimes(&path, flags).map_err(|error| {
            Failure::mount(format!(
                "cannot set the access times of {shown} so: {error}"
            ))
        })?;
    }
    Ok(())
}

/// The flags that say how access times are set.
fn atimes() -> MountFlags {
    SET_ATIMES
        .iter()
        .fold(MountFlags::NODIRATIME, |all, (_, flag)| all | *flag)
}

/// Has the serving process set access times as the flags say.
fn tell_atimes(path: &Path, flags: MountFlags) -> rustix::io::Result<()> {
    let policy = SET_ATIMES.iter().find(|(_, flag)| flags.contains(*flag));
    let of_dirs = SET_DIR_ATIMES[usize::from(!flags.contains(MountFlags::NODIRATIME))];
    for name in policy.map(|(name, _)| *name).into_iter().chain([of_dirs]) {
        match rustix::fs::removexattr(path, name) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Has the serving process take changes, and gives the reason if it does not:
/// it has the region open for reading only, or has met damage. Asked by a
/// change that would change nothing, which only the administrator may make.
fn begin_to_write(path: &Path) -> Option<Errno> {
    match rustix::fs::removexattr(path, BEGIN_TO_WRITE) {
        Ok(()) | Err(Errno::NODATA) => None,
        Err(error) => Some(error),
    }
}

pub(crate) fn new_flags(current: &[&str], given: &[(String, bool)]) -> MountFlags {
    let mut flags = MountFlags::empty();
    for name in current.iter().flat_map(|list| list.split(',')) {
        for (_, flag) in FLAGS.iter().filter(|(known, _)| *known == name) {
            flags |= *flag;
        }
    }
    for (name, on) in given {
        for (_, flag) in FLAGS.iter().filter(|(known, _)| known == name) {
            flags.set(*flag, *on);
        }
    }
    // What no list of flags names is what the kernel would not take for it.
    if !flags.intersects(MountFlags::NOATIME | MountFlags::RELATIME) {
        flags |= MountFlags::STRICTATIME;
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remount_keeps_unnamed_flags() {
        let given = [("ro".to_owned(), true), ("nosuid".to_owned(), false)];
        let flags = new_flags(&["rw,nosuid,nodev,relatime", "rw,user_id=0"], &given);
        assert_eq!(
            flags,
            MountFlags::RDONLY | MountFlags::NODEV | MountFlags::RELATIME
        );
        assert_eq!(
            new_flags(&["ro,noexec"], &[("ro".to_owned(), false)]),
            MountFlags::NOEXEC | MountFlags::STRICTATIME
        );
    }

    #[test]
    fn atime_flags_are_exclusive() {
        for (now, flag) in [
            ("rw,noatime", MountFlags::NOATIME),
            ("rw,relatime", MountFlags::RELATIME),
            ("rw", MountFlags::STRICTATIME),
        ] {
            assert_eq!(new_flags(&[now], &[]), flag);
            for (option, flag) in [
                ("noatime", MountFlags::NOATIME),
                ("relatime", MountFlags::RELATIME),
                ("strictatime", MountFlags::STRICTATIME),
                ("nodiratime", flag | MountFlags::NODIRATIME),
                ("nodiratime,diratime", flag),
                (
                    "noatime,nodiratime,strictatime",
                    MountFlags::NODIRATIME | MountFlags::STRICTATIME,
                ),
            ] {
                let mut settings = MountSettings::default();
                crate::options::parse(option, &mut settings).unwrap();
                assert_eq!(
                    new_flags(&[now], &settings.flags_given),
                    flag,
                    "{now}, {option}"
                );
            }
        }
    }
}
