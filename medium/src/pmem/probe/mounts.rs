//! The file system of a descriptor, from the mount table.

use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, StatxFlags};

use super::FileSystem;
use crate::pmem::mount_table::{self, Mount};

/// Returns the mount that contains a descriptor, if this process sees it.
pub(in crate::pmem) fn of(fd: BorrowedFd<'_>) -> Option<FileSystem> {
    let stx = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
    if stx.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
        return None;
    }
    let mounts = mount_table::read().ok()?;
    let found = mounts.into_iter().find(|mount| mount.id == stx.stx_mnt_id);
    found.map(file_system)
}

fn file_system(mount: Mount) -> FileSystem {
    FileSystem {
        fs_type: mount.fs_type,
        mount_point: mount.target,
        device: mount.source.to_string_lossy().into_owned(),
        options: format!("{},{}", mount.options, mount.super_options),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn file_system_has_the_options_of_mount_and_device() {
        let line = b"36 35 0:5 / /mnt rw,noatime - ext4 /dev/pmem0 rw,dax=always";
        let fs = file_system(mount_table::parse(line).remove(0));
        assert_eq!(fs.mount_point, Path::new("/mnt"));
        assert_eq!((&*fs.fs_type, &*fs.device), ("ext4", "/dev/pmem0"));
        assert_eq!(fs.options, "rw,noatime,rw,dax=always");
    }
}
