//! Identifies an open descriptor by what the kernel reports.
//!
//! Uses the file type, the magic of its file system, the DAX attribute of statx, and for
//! devices sysfs. Never guesses from a name.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxAttributes, StatxFlags};

use super::{REGION_UNIT, SourceKind, persistence};
use crate::pmem::backend::Persistence;
use crate::pmem::error::PmemError;
use crate::pmem::mount_table;
use crate::pmem::probe::mount_of;

pub(super) const TMPFS_MAGIC: u64 = 0x0102_1994;
pub(super) const RAMFS_MAGIC: u64 = 0x8584_58f6;
pub(super) const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// Result of identifying a descriptor.
#[derive(Debug)]
pub(in crate::pmem) struct DetectedSource {
    pub kind: SourceKind,
    pub alignment: u64,
    pub persistence: Persistence,
}

/// Refuses file types that can never hold a region, with the reason.
pub(super) fn refuse_type(file_type: FileType, path: &Path) -> Result<(), PmemError> {
    let (why, errno) = match file_type {
        FileType::RegularFile | FileType::BlockDevice | FileType::CharacterDevice => return Ok(()),
        FileType::Directory => (
            "is a directory; a region is a file or a device: name a file in it",
            libc::EISDIR,
        ),
        FileType::Fifo => (
            "is a fifo and cannot be mapped; name a file or a device",
            libc::ENODEV,
        ),
        FileType::Socket => (
            "is a socket and cannot be mapped; name a file or a device",
            libc::ENODEV,
        ),
        _ => (
            "is of a type that cannot be mapped; name a file or a device",
            libc::ENODEV,
        ),
    };
    Err(PmemError::Unusable {
        path: path.display().to_string(),
        why: why.into(),
        errno,
    })
}

/// Returns why a missing file must not be created: its name would be that of a device.
/// Entries of such a directory come and go with drivers, and a file there would hide that
/// the device is missing.
pub(in crate::pmem) fn missing_device(path: &Path) -> Option<&'static str> {
    if path.symlink_metadata().is_ok() {
        return None;
    }
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new(".")).canonicalize().ok()?;
    let among_devices = || {
        let dir = rustix::fs::open(&parent, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        Some(mount_of(dir.as_fd())?.fs_type == "devtmpfs")
    };
    let memory = parent.starts_with("/dev/shm");
    (!memory && (parent == Path::new("/dev") || among_devices() == Some(true))).then_some(
        "there is no such device: is its driver loaded, and does it have a namespace (ndctl list -N)? Files are not created among the devices",
    )
}

/// Identifies an open descriptor.
pub(in crate::pmem) fn identify(
    fd: BorrowedFd<'_>,
    path: &Path,
) -> Result<DetectedSource, PmemError> {
    let os = |what: &'static str, e: rustix::io::Errno| PmemError::Os {
        what,
        path: path.display().to_string(),
        source: e.into(),
    };
    let st = rustix::fs::fstat(fd).map_err(|e| os("cannot stat", e))?;
    let file_type = FileType::from_raw_mode(st.st_mode);
    refuse_type(file_type, path)?;
    match file_type {
        FileType::CharacterDevice => {
            let device = SysDevice::character(st.st_rdev);
            if !device.is_devdax() {
                return Err(PmemError::Unusable {
                    path: path.display().to_string(),
                    why: "is a character device but not a devdax one, and cannot hold a region; name a /dev/daxX.Y, a block device or a file".into(),
                    errno: libc::ENODEV,
                });
            }
            Ok(DetectedSource {
                kind: SourceKind::DevDax,
                alignment: device.dax_alignment(),
                persistence: persistence::of_device(&device),
            })
        }
        FileType::BlockDevice => Ok(DetectedSource {
            kind: SourceKind::BlockDevice,
            alignment: REGION_UNIT,
            persistence: persistence::of_device(&SysDevice::block(st.st_rdev)),
        }),
        _ => identify_by_filesystem(fd, path),
    }
}

/// Identifies a regular file on the file system of `fd`. For a directory, identifies a file
/// created in it, except for DAX.
pub(in crate::pmem) fn identify_by_filesystem(
    fd: BorrowedFd<'_>,
    path: &Path,
) -> Result<DetectedSource, PmemError> {
    let fs = rustix::fs::fstatfs(fd).map_err(|e| PmemError::Os {
        what: "cannot identify the file system of",
        path: path.display().to_string(),
        source: e.into(),
    })?;
    let found = |kind, persistence| DetectedSource {
        kind,
        alignment: REGION_UNIT,
        persistence,
    };
    Ok(match fs.f_type as u64 & 0xffff_ffff {
        HUGETLBFS_MAGIC => DetectedSource {
            alignment: (fs.f_bsize as u64).max(REGION_UNIT),
            ..found(
                SourceKind::Hugetlbfs,
                if is_memfd(fd) {
                    Persistence::Process
                } else {
                    Persistence::Machine
                },
            )
        },
        TMPFS_MAGIC | RAMFS_MAGIC if is_memfd(fd) => found(SourceKind::Memfd, Persistence::Process),
        TMPFS_MAGIC | RAMFS_MAGIC => found(SourceKind::Tmpfs, Persistence::Machine),
        _ => {
            let dev = rustix::fs::fstat(fd).map_or(0, |stat| stat.st_dev);
            let kind = match has_dax_attribute(fd) {
                true => SourceKind::FsDax,
                false => SourceKind::File,
            };
            found(kind, persistence::of_file_system(dev))
        }
    })
}

/// A memfd has no name in any directory; the kernel shows it this way.
fn is_memfd(fd: BorrowedFd<'_>) -> bool {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
        .is_ok_and(|p| p.as_os_str().as_encoded_bytes().starts_with(b"/memfd:"))
}

fn has_dax_attribute(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE).is_ok_and(|stx| {
        stx.stx_attributes_mask.contains(StatxAttributes::DAX)
            && stx.stx_attributes.contains(StatxAttributes::DAX)
    })
}

/// Returns the size of a devdax device, which no system call on the descriptor reports.
pub(super) fn devdax_len(fd: BorrowedFd<'_>, path: &Path) -> Result<u64, PmemError> {
    let os = |e: std::io::Error| PmemError::Os {
        what: "cannot find the size of",
        path: path.display().to_string(),
        source: e,
    };
    let st = rustix::fs::fstat(fd).map_err(|e| os(e.into()))?;
    SysDevice::character(st.st_rdev)
        .number("size")
        .ok_or_else(|| os(std::io::ErrorKind::NotFound.into()))
}

pub(super) fn block_is_read_only(rdev: u64) -> bool {
    SysDevice::block(rdev).text("ro").is_some_and(|s| s == "1")
}

/// Names the exclusive holder of a block device, if sysfs and the mount table show it.
pub(in crate::pmem) fn is_block_exclusive_holder(rdev: u64) -> Option<String> {
    let wanted = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let mounts = mount_table::read().unwrap_or_default();
    if let Some(mount) = mounts.iter().find(|mount| mount.device == wanted) {
        let at = mount.target.display();
        return Some(format!("is mounted on {at}; umount it first"));
    }
    let device = SysDevice::block(rdev);
    if let Ok(mut holders) = std::fs::read_dir(device.dir.join("holders"))
        && let Some(Ok(holder)) = holders.next()
    {
        return Some(format!(
            "is part of the device {}",
            holder.file_name().display()
        ));
    }
    None
}

/// A device's directory in sysfs.
#[derive(Debug)]
pub(in crate::pmem) struct SysDevice {
    /// All links resolved, so that the parents show the devices and buses above.
    pub dir: PathBuf,
}

impl SysDevice {
    pub(crate) fn character(rdev: u64) -> SysDevice {
        SysDevice::at("char", rdev)
    }
    pub(crate) fn block(rdev: u64) -> SysDevice {
        SysDevice::at("block", rdev)
    }
    fn at(class: &str, rdev: u64) -> SysDevice {
        let link = format!(
            "/sys/dev/{class}/{}:{}",
            rustix::fs::major(rdev),
            rustix::fs::minor(rdev)
        );
        SysDevice {
            dir: std::fs::canonicalize(&link).unwrap_or_else(|_| PathBuf::from(link)),
        }
    }

    /// Reads an attribute, trimmed.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.dir.join(name))
            .ok()
            .map(|s| s.trim().to_owned())
    }

    /// Reads an attribute that is a path. It need not be UTF-8.
    pub(crate) fn path(&self, name: &str) -> Option<PathBuf> {
        let mut bytes = std::fs::read(self.dir.join(name)).ok()?;
        bytes.pop_if(|last| *last == b'\n');
        Some(OsString::from_vec(bytes).into())
    }

    /// Reads a numeric attribute, decimal or hexadecimal with 0x.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        let text = self.text(name)?;
        match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        }
    }

    /// The `dax` subsystem is a class on old kernels and a bus on newer ones.
    pub(crate) fn is_devdax(&self) -> bool {
        std::fs::canonicalize(self.dir.join("subsystem"))
            .is_ok_and(|p| p.file_name().is_some_and(|n| n == "dax"))
    }

    /// Returns the alignment that devdax requires of a mapping.
    pub(crate) fn dax_alignment(&self) -> u64 {
        self.number("align")
            .or_else(|| self.number("device/align"))
            .or_else(|| self.number("device/dax_region/align"))
            .filter(|a| a.is_power_of_two() && *a >= REGION_UNIT)
            .unwrap_or(2 << 20)
    }

    /// Whether the device is a range that the firmware or the kernel's command line, and no
    /// table of NVDIMMs, names persistent.
    pub(crate) fn is_legacy_pmem(&self) -> bool {
        self.dir.components().any(|c| c.as_os_str() == "e820_pmem")
    }

    /// Whether the device is on the bus of non-volatile devices.
    pub(crate) fn is_nvdimm(&self) -> bool {
        self.dir
            .components()
            .any(|c| c.as_os_str().as_encoded_bytes().starts_with(b"ndbus"))
    }
}
