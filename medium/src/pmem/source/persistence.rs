//! The persistence of stacked storage.
//!
//! * A file survives the same failures as the device of its file system.
//! * A loop device follows its file, a partition its disk, and a mapped device the weakest
//!   of its parts.
//! * A file of a file system in user space follows the source of the mount if that is a
//!   path (as with pramfs itself).
//!
//! Reads names and numbers only. Unknown storage counts as a disk.

use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::detect::{HUGETLBFS_MAGIC, RAMFS_MAGIC, SysDevice, TMPFS_MAGIC};
use crate::pmem::backend::Persistence;
use crate::pmem::mount_table;

/// Maximum number of levels. A deeper stack is a cycle, not a configuration.
const DEPTH: u32 = 8;

/// Persistence of an ordinary file of the file system with this device number.
pub(super) fn of_file_system(dev: u64) -> Persistence {
    below_file_system(dev, DEPTH)
}

/// Persistence of a device.
pub(super) fn of_device(device: &SysDevice) -> Persistence {
    below_device(device, DEPTH)
}

fn below_file_system(dev: u64, depth: u32) -> Persistence {
    let Some(depth) = depth.checked_sub(1) else {
        return Persistence::Power;
    };
    if rustix::fs::major(dev) != 0 {
        return below_device(&SysDevice::block(dev), depth);
    }
    // A file system without a device: its source may be a path.
    match source_of(dev) {
        Some(source) if source.is_absolute() => below_path(&source, depth),
        _ => Persistence::Power,
    }
}

/// The source of the first mount of the file system with this device number, if this process
/// sees one.
fn source_of(dev: u64) -> Option<PathBuf> {
    let device = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let mut mounts = mount_table::read().ok()?.into_iter();
    let found = mounts.find(|mount| mount.device == device);
    found.map(|mount| mount.source.into())
}

fn below_path(path: &Path, depth: u32) -> Persistence {
    let (Ok(stat), Ok(fs)) = (rustix::fs::stat(path), rustix::fs::statfs(path)) else {
        return Persistence::Power;
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => below_device(&SysDevice::block(stat.st_rdev), depth),
        FileType::CharacterDevice => below_device(&SysDevice::character(stat.st_rdev), depth),
        _ => match fs.f_type as u64 & 0xffff_ffff {
            TMPFS_MAGIC | RAMFS_MAGIC | HUGETLBFS_MAGIC => Persistence::Machine,
            _ => below_file_system(stat.st_dev, depth),
        },
    }
}

/// Whether the kernel's command line declares RAM to be persistent. Without that, the firmware
/// has declared the range, and it is an NVDIMM of the first kind.
fn is_set_aside() -> bool {
    std::fs::read_to_string("/proc/cmdline").is_ok_and(|line| declares_pmem(&line))
}

/// Finds `memmap=SIZE!ADDRESS`, also in a list.
fn declares_pmem(command_line: &str) -> bool {
    command_line
        .split_ascii_whitespace()
        .filter_map(|word| word.strip_prefix("memmap="))
        .any(|ranges| ranges.contains('!'))
}

/// devdax also serves memory that is not persistent (HBM, volatile CXL). RAM disks are
/// memory.
fn below_device(device: &SysDevice, depth: u32) -> Persistence {
    let Some(depth) = depth.checked_sub(1) else {
        return Persistence::Power;
    };
    let name = device.dir.file_name().unwrap_or_default();
    let name = name.as_encoded_bytes();
    if device.is_legacy_pmem() && is_set_aside() {
        return Persistence::Reboot;
    }
    if device.is_devdax() {
        return match device.is_nvdimm() {
            true => Persistence::Power,
            false => Persistence::Machine,
        };
    }
    if name.starts_with(b"ram") || name.starts_with(b"zram") {
        return Persistence::Machine;
    }
    if let Some(file) = device.path("loop/backing_file") {
        return below_path(&file, depth);
    }
    if let (Some(_), Some(disk)) = (device.text("partition"), device.dir.parent()) {
        let disk = SysDevice { dir: disk.into() };
        return below_device(&disk, depth);
    }
    let parts = std::fs::read_dir(device.dir.join("slaves"));
    let parts = parts.into_iter().flatten().flatten();
    parts
        .filter_map(|part| std::fs::canonicalize(part.path()).ok())
        .map(|dir| below_device(&SysDevice { dir }, depth))
        .min()
        .unwrap_or(Persistence::Power)
}

#[cfg(test)]
mod tests {
    use super::declares_pmem;

    #[test]
    fn range_of_command_line_is_found() {
        assert!(declares_pmem("quiet memmap=512M!1G root=/dev/vda"));
        assert!(declares_pmem("memmap=1M$2G,512M!1G"));
        for other in [
            "",
            "memmap=512M$1G",
            "xmemmap=512M!1G",
            "a!b memmap=exactmap",
        ] {
            assert!(!declares_pmem(other), "{other}");
        }
    }
}
