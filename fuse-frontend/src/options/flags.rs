//! The flags of a mount: one row for each. The kernel keeps them, and a remount changes them
//! and nothing else.

use pramfs::AtimePolicy;
use rustix::mount::{MountAttrFlags, MountFlags};

use super::MountSettings;

/// A flag of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flag {
    /// Nothing may be changed.
    ReadOnly,
    /// Device files do not work.
    NoDev,
    /// Set-user-id bits have no effect.
    NoSuid,
    /// Programs cannot be run.
    NoExec,
    /// Symbolic links are not followed.
    NoSymfollow,
    /// Every write is durable when it returns.
    Sync,
    /// Every change of a directory is durable when it returns.
    DirSync,
    /// Reads set no access times.
    NoAtime,
    /// Reads set old access times.
    Relatime,
    /// Reads set access times.
    StrictAtime,
    /// Access times of directories are not set.
    NoDirAtime,
}

struct Row {
    flag: Flag,
    /// The name in mount tables, for the superblock, and for fusermount3.
    name: &'static str,
    /// The attribute of fsmount(2), if there is one.
    mount: MountAttrFlags,
    /// Whether the superblock has it too, or alone.
    superblock: bool,
    /// The flag of mount(2), for a remount.
    remount: MountFlags,
    set: fn(&mut MountSettings, bool),
    is_set: fn(&MountSettings) -> bool,
}

/// In the order of [`Flag`].
const FLAGS: [Row; 11] = [
    Row {
        flag: Flag::ReadOnly,
        name: "ro",
        mount: MountAttrFlags::MOUNT_ATTR_RDONLY,
        superblock: true,
        remount: MountFlags::RDONLY,
        set: |s, on| s.read_only = on,
        is_set: |s| s.read_only,
    },
    Row {
        flag: Flag::NoDev,
        name: "nodev",
        mount: MountAttrFlags::MOUNT_ATTR_NODEV,
        superblock: false,
        remount: MountFlags::NODEV,
        set: |s, on| s.dev = !on,
        is_set: |s| !s.dev,
    },
    Row {
        flag: Flag::NoSuid,
        name: "nosuid",
        mount: MountAttrFlags::MOUNT_ATTR_NOSUID,
        superblock: false,
        remount: MountFlags::NOSUID,
        set: |s, on| s.suid = !on,
        is_set: |s| !s.suid,
    },
    Row {
        flag: Flag::NoExec,
        name: "noexec",
        mount: MountAttrFlags::MOUNT_ATTR_NOEXEC,
        superblock: false,
        remount: MountFlags::NOEXEC,
        set: |s, on| s.exec = !on,
        is_set: |s| !s.exec,
    },
    Row {
        flag: Flag::NoSymfollow,
        name: "nosymfollow",
        mount: MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW,
        superblock: false,
        remount: MountFlags::NOSYMFOLLOW,
        set: |s, on| s.symlinks = !on,
        is_set: |s| !s.symlinks,
    },
    Row {
        flag: Flag::Sync,
        name: "sync",
        mount: MountAttrFlags::empty(),
        superblock: true,
        remount: MountFlags::SYNCHRONOUS,
        set: |s, on| s.sync = on,
        is_set: |s| s.sync,
    },
    Row {
        flag: Flag::DirSync,
        name: "dirsync",
        mount: MountAttrFlags::empty(),
        superblock: true,
        remount: MountFlags::DIRSYNC,
        set: |s, on| s.dirsync = on,
        is_set: |s| s.dirsync,
    },
    Row {
        flag: Flag::NoAtime,
        name: "noatime",
        mount: MountAttrFlags::MOUNT_ATTR_NOATIME,
        superblock: false,
        remount: MountFlags::NOATIME,
        set: |s, on| set_atime(s, on, AtimePolicy::NoAtime),
        is_set: |s| s.atime == AtimePolicy::NoAtime,
    },
    Row {
        flag: Flag::Relatime,
        name: "relatime",
        mount: MountAttrFlags::MOUNT_ATTR_RELATIME,
        superblock: false,
        remount: MountFlags::RELATIME,
        set: |s, on| set_atime(s, on, AtimePolicy::Relatime),
        is_set: |s| s.atime == AtimePolicy::Relatime,
    },
    Row {
        flag: Flag::StrictAtime,
        name: "strictatime",
        mount: MountAttrFlags::MOUNT_ATTR_STRICTATIME,
        superblock: false,
        remount: MountFlags::STRICTATIME,
        set: |s, on| set_atime(s, on, AtimePolicy::StrictAtime),
        is_set: |s| s.atime == AtimePolicy::StrictAtime,
    },
    Row {
        flag: Flag::NoDirAtime,
        name: "nodiratime",
        mount: MountAttrFlags::MOUNT_ATTR_NODIRATIME,
        superblock: false,
        remount: MountFlags::NODIRATIME,
        set: |s, on| s.dir_atime = !on,
        is_set: |s| !s.dir_atime,
    },
];

/// Flags that an option sets, and those that it clears.
pub(crate) type Flags = &'static [(Flag, bool)];

/// One of the three is set at any time.
pub(crate) const NOATIME: Flags = &[
    (Flag::NoAtime, true),
    (Flag::Relatime, false),
    (Flag::StrictAtime, false),
];
/// See [`NOATIME`].
pub(crate) const RELATIME: Flags = &[
    (Flag::NoAtime, false),
    (Flag::Relatime, true),
    (Flag::StrictAtime, false),
];
/// See [`NOATIME`].
pub(crate) const STRICTATIME: Flags = &[
    (Flag::NoAtime, false),
    (Flag::Relatime, false),
    (Flag::StrictAtime, true),
];

fn set_atime(settings: &mut MountSettings, on: bool, policy: AtimePolicy) {
    if on {
        settings.atime = policy;
    }
}

impl Flag {
    /// All flags.
    pub(crate) fn all() -> impl Iterator<Item = Flag> {
        FLAGS.iter().map(|row| row.flag)
    }

    fn row(self) -> &'static Row {
        &FLAGS[self as usize]
    }

    /// The name in mount tables, for the superblock, and for fusermount3.
    pub(crate) fn name(self) -> &'static str {
        self.row().name
    }

    /// The attribute of fsmount(2); empty if the superblock alone has the flag.
    pub(crate) fn on_mount(self) -> MountAttrFlags {
        self.row().mount
    }

    /// Whether the superblock has the flag.
    pub(crate) fn is_of_superblock(self) -> bool {
        self.row().superblock
    }

    /// The flag of mount(2), for a remount.
    pub(crate) fn on_remount(self) -> MountFlags {
        self.row().remount
    }

    /// Whether the settings have it.
    pub(crate) fn is_set(self, settings: &MountSettings) -> bool {
        (self.row().is_set)(settings)
    }
}

impl MountSettings {
    /// Sets and clears flags, and notes them for a remount.
    pub(crate) fn set(&mut self, flags: &[(Flag, bool)]) {
        for (flag, on) in flags {
            (flag.row().set)(self, *on);
        }
        self.flags_given.extend(flags);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_of_flag_sets_its_row_alone() {
        for flag in Flag::all() {
            assert_eq!(flag.row().flag, flag);
            let mut settings = MountSettings::default();
            settings.set(&[(flag, true)]);
            assert!(flag.is_set(&settings), "{flag:?}");
            for other in Flag::all().filter(|other| *other != flag) {
                let default = other.is_set(&MountSettings::default());
                // One policy of access times replaces another.
                let is_replaced =
                    other == Flag::Relatime && settings.atime != AtimePolicy::Relatime;
                assert_eq!(other.is_set(&settings), default && !is_replaced, "{flag:?}");
            }
        }
    }
}
