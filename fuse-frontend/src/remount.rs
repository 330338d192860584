//! `-o remount`: the flags of a live mount.
//!
//! The kernel keeps these flags, so a remount does not involve the server, with two
//! exceptions: with `rw` the server must begin to write, and may be unable to; and it is
//! the server that sets access times. Options of pramfs itself (cache=, threads=, ...) are
//! fixed at mount time. A remount ignores them, because mount(8) repeats them from fstab.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::exit::Failure;
use crate::mountinfo;
use crate::mountpoint;
use crate::options::{Flag, MountSettings};

/// Removing this attribute, which no file has, makes the server writable.
pub(crate) const BEGIN_TO_WRITE: &str = "trusted.pramfs.is-writable";

/// A mount that serves guests has this attribute at its root. It is in no list.
pub(crate) const SERVES_GUESTS: &str = "trusted.pramfs.serves-guests";

/// Removing one of these sets the corresponding atime policy.
pub(crate) const SET_ATIMES: [(&str, MountFlags); 3] = [
    ("trusted.pramfs.atime-is-never", MountFlags::NOATIME),
    ("trusted.pramfs.atime-is-relative", MountFlags::RELATIME),
    ("trusted.pramfs.atime-is-strict", MountFlags::STRICTATIME),
];

/// The same for directories: no access times, and the policy of files.
pub(crate) const SET_DIR_ATIMES: [&str; 2] = [
    "trusted.pramfs.atime-of-directories-is-never",
    "trusted.pramfs.atime-of-directories-is-the-same",
];

/// Changes the flags that `settings` names, on the mount at `mountpoint`. Leaves the
/// other flags unchanged.
///
/// # Errors
/// It is not a mount of pramfs, or the caller lacks the right.
pub fn remount(mountpoint: &Path, settings: &MountSettings) -> Result<(), Failure> {
    let shown = mountpoint.display();
    // Held open, so that the remount changes the mount that was checked.
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
            "{shown} was mounted by another user, and the flags would apply to that user's files; that user can remount it, or unmount it and mount the region"
        )));
    }
    let path = PathBuf::from(mountinfo::descriptor_path(&top));
    let current = [&*mount.options, &*mount.super_options];
    let before = new_flags(&current, &[]);
    let flags = new_flags(&current, &settings.flags_given);
    check_beside_guests(&path, before, flags)
        .map_err(|why| Failure::mount(format!("cannot remount {shown}: {why}")))?;
    let change = |flags| rustix::mount::mount_remount(&path, flags, c"");
    // The server cannot be notified while the mount is read-only.
    let was_writable = !before.contains(MountFlags::RDONLY);
    if was_writable && (before ^ flags).intersects(atimes()) {
        tell_atimes(&path, flags)
            .map_err(|error| Failure::mount(format!("cannot remount {shown}: {error}")))?;
    }
    change(flags).map_err(|error| {
        if was_writable && let Err(error) = tell_atimes(&path, before) {
            tracing::warn!(
                "access times of {shown} follow the new flags, although the remount failed: {error}"
            );
        }
        let hint = if error == rustix::io::Errno::BUSY {
            "; files are open for writing"
        } else {
            ""
        };
        Failure::mount(format!("cannot remount {shown}: {error}{hint}"))
    })?;
    let to_write = settings.flags_given.contains(&(Flag::ReadOnly, false));
    if to_write
        && !flags.contains(MountFlags::RDONLY)
        && let Some(error) = begin_to_write(&path)
    {
        change(flags | MountFlags::RDONLY).map_err(|error| {
            Failure::mount(format!("cannot make {shown} read-only again: {error}"))
        })?;
        let why = match error {
            Errno::ROFS => {
                "the server has the region open read-only, or has met damage (see its log); unmount it, and mount it again to write".to_owned()
            }
            Errno::BUSY => {
                "other processes have the region open for reading; end them first (fuser(1) lists them)".to_owned()
            }
            error => format!("the server cannot write: {error}"),
        };
        return Err(Failure::mount(format!("{shown} stays read-only: {why}")));
    }
    if !was_writable && !flags.contains(MountFlags::RDONLY) {
        tell_atimes(&path, flags).map_err(|error| {
            Failure::mount(format!(
                "cannot change the atime policy of {shown}: {error}"
            ))
        })?;
    }
    Ok(())
}

/// Refuses to take `nosuid` or `nodev` away from a mount that serves guests.
///
/// # Errors
/// The reason.
fn check_beside_guests(path: &Path, before: MountFlags, flags: MountFlags) -> Result<(), String> {
    for (flag, option) in [(MountFlags::NOSUID, "suid"), (MountFlags::NODEV, "dev")] {
        let is_taken = before.contains(flag) && !flags.contains(flag);
        let mut value = [0; 1];
        if !is_taken {
            continue;
        }
        match rustix::fs::getxattr(path, SERVES_GUESTS, &mut value) {
            // None, or a server of an older version.
            Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Ok(_) => {
                return Err(format!(
                    "--virtiofs cannot be combined with {option}: root of a guest could become root of this machine"
                ));
            }
            Err(error) => {
                return Err(format!(
                    "cannot ask whether the mount serves guests: {error}"
                ));
            }
        }
    }
    Ok(())
}

/// Returns the mask of the atime flags.
fn atimes() -> MountFlags {
    SET_ATIMES
        .iter()
        .fold(MountFlags::NODIRATIME, |all, (_, flag)| all | *flag)
}

/// Makes the server set access times according to the flags.
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

/// Makes the server accept changes. Returns the reason if it does not: it has the
/// region open read-only, or has met damage. The request is a change without effect that
/// only the administrator may make.
fn begin_to_write(path: &Path) -> Option<Errno> {
    match rustix::fs::removexattr(path, BEGIN_TO_WRITE) {
        Ok(()) | Err(Errno::NODATA) => None,
        Err(error) => Some(error),
    }
}

/// The flags that a mount has and `given` does not name, and those of `given`.
pub(crate) fn new_flags(current: &[&str], given: &[(Flag, bool)]) -> MountFlags {
    let mut flags = MountFlags::empty();
    for name in current.iter().flat_map(|list| list.split(',')) {
        for flag in Flag::all().filter(|flag| flag.name() == name) {
            flags |= flag.on_remount();
        }
    }
    for (flag, on) in given {
        flags.set(flag.on_remount(), *on);
    }
    // Without any of these flags, the kernel means strictatime.
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
        let given = [(Flag::ReadOnly, true), (Flag::NoSuid, false)];
        let flags = new_flags(&["rw,nosuid,nodev,relatime", "rw,user_id=0"], &given);
        assert_eq!(
            flags,
            MountFlags::RDONLY | MountFlags::NODEV | MountFlags::RELATIME
        );
        assert_eq!(
            new_flags(&["ro,noexec"], &[(Flag::ReadOnly, false)]),
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
