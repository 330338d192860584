//! The mount table: `/proc/self/mountinfo`.
//!
//! Any user may make a FUSE mount and chooses its type, source and path. Only the
//! kernel assigns the mount number, the device number and `user_id`. Decisions use
//! these three. A name counts only for a mount made by root or the caller
//! ([`Mount::is_trusted`]).

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pramfs_contents::printable;
use pramfs_control::Identity;
use pramfs_medium::pmem::mount_table::unescape;
use rustix::fs::{AtFlags, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

/// Type of our mounts, as the kernel shows it.
pub const FS_TYPE: &str = "fuse.pramfs";

/// One line of mountinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Number of the mount. The kernel reuses it after the unmount.
    pub id: u64,
    /// Device number of the mounted file system.
    pub device: (u32, u32),
    /// The mounted part of the file system: `/` is all of it.
    pub root: String,
    /// Where it is mounted.
    pub target: PathBuf,
    /// Options of this mount: `rw,nosuid,relatime`.
    pub options: String,
    /// File-system type.
    pub fs_type: String,
    /// Source, for our mounts the region's path.
    pub source: OsString,
    /// Options of the file system as a whole.
    pub super_options: String,
}

impl Mount {
    /// Returns the user that mounted it, if it is a FUSE mount.
    pub fn user_id(&self) -> Option<u32> {
        let mut words = self.super_options.split(',');
        words.find_map(|word| word.strip_prefix("user_id=")?.parse().ok())
    }

    /// Tells whether root or the user of this process made it. Only root can mount file
    /// systems other than FUSE.
    pub fn is_trusted(&self) -> bool {
        let own = rustix::process::geteuid().as_raw();
        match self.user_id() {
            Some(id) => id == 0 || id == own,
            None => !self.fs_type.starts_with("fuse"),
        }
    }

    /// Tells whether the user of this process made it.
    pub fn is_own(&self) -> bool {
        self.user_id() == Some(rustix::process::geteuid().as_raw())
    }

    /// Tells whether the mount or the file system has this option.
    pub fn has(&self, option: &str) -> bool {
        let mut words = self.options.split(',').chain(self.super_options.split(','));
        words.any(|word| word == option)
    }
}

/// The mount of a descriptor, or of a name below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// Number of the mount.
    pub mount: u64,
    /// Device number of its file system.
    pub device: (u32, u32),
    /// It is the root of the mount.
    pub is_top: bool,
}

/// Locates `name` in `directory`, or the directory itself if the name is empty. Does
/// not follow symbolic links and sends no request to a FUSE server.
///
/// # Errors
/// Errors of statx(2); ENOSYS before Linux 5.8.
pub fn locate(directory: impl AsFd, name: &OsStr) -> rustix::io::Result<Location> {
    let flags = AtFlags::EMPTY_PATH
        | AtFlags::SYMLINK_NOFOLLOW
        | AtFlags::NO_AUTOMOUNT
        | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(directory, name, flags, StatxFlags::empty())?;
    if !StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::MNT_ID) {
        return Err(Errno::NOSYS);
    }
    Ok(Location {
        mount: stat.stx_mnt_id,
        device: (stat.stx_dev_major, stat.stx_dev_minor),
        is_top: stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
    })
}

/// Returns the mount whose root the descriptor refers to.
pub fn of_top(directory: impl AsFd) -> Option<Mount> {
    let location = locate(directory, OsStr::new("")).ok()?;
    let mount = with_id(location.mount)?;
    (location.is_top && mount.device == location.device).then_some(mount)
}

/// Returns the mount with this number.
pub fn with_id(id: u64) -> Option<Mount> {
    read().ok()?.into_iter().find(|mount| mount.id == id)
}

/// A mount on a name in an open directory: the path to the directory can no longer
/// be replaced.
#[derive(Debug)]
pub struct AnchoredMount {
    directory: OwnedFd,
    name: OsString,
    /// The mount that was found there.
    pub mount: Mount,
}

impl AnchoredMount {
    /// Finds the mount on `path`. Only the last name may be a dead mount.
    ///
    /// # Errors
    /// Errors of the system calls; EINVAL if nothing is mounted there.
    pub fn of_path(path: &Path) -> io::Result<AnchoredMount> {
        let (above, name) = match (path.parent(), path.file_name()) {
            (Some(above), Some(name)) if !above.as_os_str().is_empty() => (above, name),
            (Some(_), Some(name)) => (Path::new("."), name),
            _ => (path, OsStr::new(".")),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(above, flags, Mode::empty())?;
        let location = locate(&directory, name)?;
        let mount = with_id(location.mount).filter(|mount| mount.device == location.device);
        match mount {
            Some(mount) if location.is_top => Ok(AnchoredMount {
                directory,
                name: name.to_owned(),
                mount,
            }),
            _ => Err(Errno::INVAL.into()),
        }
    }

    /// Returns a path to it in which only the last name can be replaced.
    fn path(&self) -> PathBuf {
        Path::new(&descriptor_path(&self.directory)).join(&self.name)
    }

    /// Unmounts it, if it is still the mount that was found.
    ///
    /// # Errors
    /// EBUSY while it is in use; ESTALE if another mount or none is there.
    pub fn unmount(&self, flags: UnmountFlags) -> rustix::io::Result<()> {
        if locate(&self.directory, &self.name)?.mount != self.mount.id {
            return Err(Errno::STALE);
        }
        rustix::mount::unmount(self.path(), flags | UnmountFlags::NOFOLLOW)
    }

    /// Opens the root of the mount, if it is still the mount that was found.
    ///
    /// # Errors
    /// ESTALE if another mount or none is there.
    pub fn open(&self) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let top = rustix::fs::openat(&self.directory, &self.name, flags, Mode::empty())?;
        match locate(&top, OsStr::new(""))?.mount == self.mount.id {
            true => Ok(top),
            false => Err(Errno::STALE),
        }
    }
}

/// Returns a path that refers to the open descriptor, for system calls that only take
/// paths.
pub fn descriptor_path(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// Returns all mounts, in the order of the table.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn read() -> io::Result<Vec<Mount>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// Returns the topmost mount at `target`, a canonical path.
pub fn at(target: &Path) -> Option<Mount> {
    read()
        .ok()?
        .into_iter()
        .rev()
        .find(|mount| mount.target == target)
}

/// Returns the first mount by root or the caller whose source names the region. For
/// messages only: not a basis for decisions.
pub fn of_source(region: &Path) -> Option<Mount> {
    let wanted = Identity::of_path(region).ok()?;
    let is_source = |mount: &Mount| {
        let named = Path::new(&mount.source);
        mount.source == *source_name(region)
            || named.is_absolute() && Identity::of_path(named).is_ok_and(|found| found == wanted)
    };
    read()
        .ok()?
        .into_iter()
        .find(|mount| mount.fs_type == FS_TYPE && mount.is_trusted() && is_source(mount))
}

fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|byte| *byte == b'\n')
        .filter_map(parse_line)
        .collect()
}

/// `ID PARENT MAJOR:MINOR ROOT TARGET OPTIONS [TAG...] - TYPE SOURCE SUPER`.
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = text(fields.next()?).parse().ok()?;
    let device = text(fields.nth(1)?);
    let root = text(fields.next()?);
    let target = unescape(fields.next()?);
    let options = text(fields.next()?);
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let (major, minor) = device.split_once(':')?;
    Some(Mount {
        id,
        device: (major.parse().ok()?, minor.parse().ok()?),
        root,
        target: PathBuf::from(target),
        options,
        fs_type: text(rest.next()?),
        source: unescape(rest.next()?),
        super_options: rest.next().map(text).unwrap_or_default(),
    })
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field).into_owned()
}

/// Returns a source for display, with control characters escaped, and those that reorder text: any
/// user can put terminal sequences into a source.
pub fn shown(source: &OsStr) -> String {
    printable(&source.to_string_lossy())
}

/// Returns a region's path as a mount source. Commas are replaced: they would end the
/// mount option that carries it.
pub fn source_name(region: &Path) -> String {
    String::from_utf8_lossy(region.as_os_str().as_bytes()).replace([',', '\\', '\n'], "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_line_is_parsed() {
        let line = b"36 25 0:31 / /mnt/a\\040b rw,nosuid,relatime shared:5 master:1 - fuse.pramfs /dev/shm/r\\134x rw,user_id=0\n";
        let mounts = parse(line);
        assert_eq!(mounts.len(), 1);
        assert_eq!(mounts[0].id, 36);
        assert_eq!(mounts[0].device, (0, 31));
        assert_eq!(mounts[0].root, "/");
        assert_eq!(mounts[0].target, Path::new("/mnt/a b"));
        assert_eq!(mounts[0].options, "rw,nosuid,relatime");
        assert_eq!(mounts[0].fs_type, FS_TYPE);
        assert_eq!(mounts[0].source, "/dev/shm/r\\x");
        assert_eq!(mounts[0].super_options, "rw,user_id=0");
        assert_eq!(mounts[0].user_id(), Some(0));
        assert!(mounts[0].is_trusted() && mounts[0].has("nosuid") && !mounts[0].has("nodev"));
    }

    #[test]
    fn mounts_of_other_users_are_not_trusted() {
        let line = |kind: &str, options: &str| {
            let line = format!("36 25 0:31 / /mnt rw - {kind} /region {options}\n");
            parse(line.as_bytes()).remove(0)
        };
        assert!(!line("fuse.pramfs", "rw,user_id=4242,group_id=0").is_trusted());
        assert!(!line("fuse.pramfs", "rw").is_trusted());
        assert!(line("fuse.pramfs", "rw,user_id=0").is_trusted());
        assert!(line("ext4", "rw").is_trusted());
    }

    #[test]
    fn anchored_mount_finds_mount_by_id() {
        let anchored = AnchoredMount::of_path(Path::new("/proc")).unwrap();
        assert_eq!(anchored.mount.fs_type, "proc");
        assert_eq!(anchored.mount, of_top(anchored.open().unwrap()).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let refused = AnchoredMount::of_path(dir.path()).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn malformed_mountinfo_lines_are_skipped() {
        assert_eq!(
            parse(b"\n36 25 0:31 / /mnt rw\nnonsense - - -\n"),
            Vec::new()
        );
        assert_eq!(unescape(b"a\\04"), "a\\04");
        assert_eq!(unescape(b"a\\777"), "a\\777");
    }

    #[test]
    fn source_name_replaces_separators() {
        assert_eq!(source_name(Path::new("/a,b\\c")), "/a_b_c");
    }
}
