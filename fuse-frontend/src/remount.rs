//! `-o remount`: the flags of a live mount.
//!
//! The kernel keeps these flags, so no word with the serving process is
//! needed, but for `rw`: whether it can write, only that process knows. Options that are ours (cache=, threads=, ...) are settled at mount
//! time and ignored here, as mount(8) repeats them from fstab.

use std::path::Path;

use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::exit::Failure;
use crate::mountinfo::{self, FS_TYPE};
use crate::options::MountSettings;

const FLAGS: [(&str, MountFlags); 9] = [
    ("ro", MountFlags::RDONLY),
    ("nodev", MountFlags::NODEV),
    ("nosuid", MountFlags::NOSUID),
    ("noexec", MountFlags::NOEXEC),
    ("sync", MountFlags::SYNCHRONOUS),
    ("dirsync", MountFlags::DIRSYNC),
    ("noatime", MountFlags::NOATIME),
    ("nodiratime", MountFlags::NODIRATIME),
    ("relatime", MountFlags::RELATIME),
];

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
        .filter(|mount| mount.fs_type == FS_TYPE)
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
    if to_write && !flags.contains(MountFlags::RDONLY) && refuses_changes(&path) {
        change(flags | MountFlags::RDONLY).map_err(|error| {
            Failure::mount(format!("cannot make {shown} read-only again: {error}"))
        })?;
        return Err(Failure::mount(format!(
            "{shown} stays read-only: the process that serves it has the region for reading only, or has met damage, as its log says; unmount it and mount it again to write"
        )));
    }
    Ok(())
}

/// Whether the serving process takes no changes whatever the kernel's flags
/// say: it has the region open for reading only, or has met damage. Asked by a
/// change that would change nothing.
fn refuses_changes(path: &Path) -> bool {
    rustix::fs::removexattr(path, "trusted.pramfs.is-writable") == Err(Errno::ROFS)
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
