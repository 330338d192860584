//! `-o remount`: the flags of a live mount.
//!
//! The kernel keeps these flags, so no word with the serving process is
//! needed, but for `rw`: that process has to begin to write, and may not be
//! able to. Options that are ours (cache=, threads=, ...) are settled at mount
//! time and ignored here, as mount(8) repeats them from fstab.

use std::path::Path;

use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::exit::Failure;
use crate::mountinfo;
use crate::options::MountSettings;

const FLAGS: [(&str, MountFlags); 10] = [
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
];

/// Removing this attribute, which no file has, makes the mount writable.
pub(crate) const BEGIN_TO_WRITE: &str = "trusted.pramfs.is-writable";

/// Gives the mount on `mountpoint` the flags that `settings` names; the others
/// stay as they are.
///
/// # Errors
/// Where there is no mount of ours, or no right.
pub fn remount(mountpoint: &Path, settings: &MountSettings) -> Result<(), Failure> {
    let shown = mountpoint.display();
    let path = mountpoint
        .canonicalize()
        .map_err(|error| Failure::mount(format!("mount point {shown}: {error}")))?;
    let mount = mountinfo::at(&path)
        .filter(|mount| settings.is_type(&mount.fs_type))
        .ok_or_else(|| {
            Failure::mount(format!(
                "{shown} is not a mount of a pramfs region: there is nothing to remount"
            ))
        })?;
    let flags = new_flags(
        &[&mount.options, &mount.super_options],
        &settings.flags_given,
    );
    let change = |flags| rustix::mount::mount_remount(&path, flags, c"");
    change(flags).map_err(|error| {
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
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_are_not_named_stay() {
        let given = [("ro".to_owned(), true), ("nosuid".to_owned(), false)];
        let flags = new_flags(&["rw,nosuid,nodev,relatime", "rw,user_id=0"], &given);
        assert_eq!(
            flags,
            MountFlags::RDONLY | MountFlags::NODEV | MountFlags::RELATIME
        );
        assert_eq!(
            new_flags(&["ro,noexec"], &[("ro".to_owned(), false)]),
            MountFlags::NOEXEC
        );
    }
}
