//! Finds other users of a file that is to become a region.
//!
//! On opening, the library takes the region lock and, for a block device, the
//! kernel's exclusive claim. A loop device, swap, or another FUSE server may use
//! the file without that lock.
//!
//! Invariant: a mount of another user never refuses anything. Any user can mount
//! a FUSE file system under any name. So only mounts of root and of the caller
//! count, and their source is compared by device and inode.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pramfs::inode::Ino;
use pramfs_control::Identity;
use pramfs_medium::pmem::mount_table::{self, Mount};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};

use crate::Failure;
use crate::failure::{printable, shown};

/// The root of a FUSE mount, before its server has said which inode it is. No other inode has this
/// number.
const FUSE_ROOT: u64 = 1;
const SWAPS: &str = "/proc/swaps";

/// Refuses a regular file that the kernel or another file system uses, or of which that cannot be
/// found out.
pub(crate) fn check_file(path: &Path) -> Result<(), Failure> {
    let busy = |by: String| Err(Failure::new("in-use", format!("{}: {by}", shown(path))));
    if let Some(device) = loop_device(path) {
        return busy(format!(
            "is in use by the loop device {device}; detach it first: losetup -d {device}"
        ));
    }
    if is_swap(path)? {
        return busy("is in use as swap; switch it off first: swapoff".into());
    }
    let mounts = mounts_of(path)?;
    match mounts.iter().find(|m| m.fs_type != "fuse.pramfs") {
        Some(m) => busy(format!(
            "is mounted on {} (type {}); umount it first",
            shown(&m.target),
            printable(&m.fs_type)
        )),
        None => Ok(()),
    }
}

/// Adds the mount point to the library's message that a region is in use.
pub(crate) fn with_mount_point(path: &Path, mut failure: Failure) -> Failure {
    if failure.reason != "in-use" {
        return failure;
    }
    match mounts_of(path) {
        Ok(mounts) => {
            if let Some(mount) = mounts.first() {
                failure.message += &format!(" (mounted on {})", shown(&mount.target));
            }
        }
        Err(why) => failure.message += &format!(" ({})", why.message),
    }
    failure
}

/// The root directory of a mount.
pub(crate) struct Root {
    pub(crate) at: PathBuf,
    pub(crate) directory: OwnedFd,
}

/// Opens the root of the file system of a region where it is mounted, by root or the caller. A
/// mount that another one hides is not it, nor is a mount of a directory in it.
///
/// # Errors
/// The mount table cannot be read; no mount can be opened.
pub(crate) fn open_mount(path: &Path, flags: OFlags) -> Result<Option<Root>, Failure> {
    open_mount_where(path, flags, is_root)
}

fn open_mount_where(
    path: &Path,
    flags: OFlags,
    is_wanted: impl Fn(&OwnedFd) -> bool,
) -> Result<Option<Root>, Failure> {
    let mut refused = None;
    for mount in mounts_of(path)? {
        if mount.fs_type != "fuse.pramfs" {
            continue;
        }
        let flags = flags | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(&mount.target, flags, Mode::empty()) {
            Ok(directory) if mount_of(&directory) == Some(mount.id) && is_wanted(&directory) => {
                let at = mount.target;
                return Ok(Some(Root { at, directory }));
            }
            Ok(_) => {}
            Err(e) => refused = Some(Failure::os("cannot open the mount", &mount.target, e)),
        }
    }
    refused.map_or(Ok(None), Err)
}

/// As [`open_mount`], to ask its server, which any directory of it reaches; a directory is of a mount
/// itself.
pub(crate) fn open_place(place: &Path, is_directory: bool) -> Result<Option<Root>, Failure> {
    if !is_directory {
        return open_mount_where(place, OFlags::RDONLY, |_| true);
    }
    open_directory(place).map(Some)
}

/// As [`open_place`], to find its files by their names.
pub(crate) fn open_root(place: &Path, is_directory: bool) -> Result<Option<Root>, Failure> {
    if !is_directory {
        return open_mount(place, OFlags::RDONLY);
    }
    open_directory(place).map(Some)
}

fn open_directory(place: &Path) -> Result<Root, Failure> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(place, flags, Mode::empty())
        .map_err(|e| Failure::os("cannot open", place, e))?;
    let at = place.to_owned();
    Ok(Root { at, directory })
}

/// Whether an open directory is the root of its file system. Its server is not asked.
fn is_root(directory: &OwnedFd) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(directory, "", flags, StatxFlags::INO)
        .is_ok_and(|stat| [FUSE_ROOT, Ino::ROOT.0].contains(&stat.stx_ino))
}

/// The number of the mount that an open file is on. Its server is not asked: it may have died.
fn mount_of(file: &OwnedFd) -> Option<u64> {
    let about = format!("/proc/self/fdinfo/{}", file.as_raw_fd());
    let about = std::fs::read_to_string(about).ok()?;
    let id = about
        .lines()
        .find_map(|line| line.strip_prefix("mnt_id:"))?;
    id.trim().parse().ok()
}

/// Returns the mounts of this object by root or the caller.
fn mounts_of(path: &Path) -> Result<Vec<Mount>, Failure> {
    let Ok(wanted) = Identity::of_path(path) else {
        return Ok(Vec::new());
    };
    let own = rustix::process::geteuid().as_raw();
    let mut mounts = mount_table::read()
        .map_err(|e| Failure::os("cannot read", "the mount table /proc/self/mountinfo", e))?;
    mounts.retain(|mount| {
        let source = Path::new(&mount.source);
        is_trusted(mount, own)
            && source.is_absolute()
            && Identity::of_path(source).is_ok_and(|found| found == wanted)
    });
    Ok(mounts)
}

/// Whether root or `own` made a mount. All file systems but FUSE take root to mount.
fn is_trusted(mount: &Mount, own: u32) -> bool {
    match mount.user_id() {
        Some(user) => user == 0 || user == own,
        None => !mount.fs_type.starts_with("fuse"),
    }
}

fn loop_device(path: &Path) -> Option<String> {
    let mine = std::fs::metadata(path).ok()?;
    std::fs::read_dir("/sys/block")
        .ok()?
        .flatten()
        .find_map(|device| {
            let name = device
                .file_name()
                .into_string()
                .ok()
                .filter(|n| n.starts_with("loop"))?;
            let mut file = std::fs::read(device.path().join("loop/backing_file")).ok()?;
            file.pop_if(|last| *last == b'\n');
            let file = PathBuf::from(OsString::from_vec(file));
            // The kernel reports the name of the file at the time the device was set
            // up. Another user may have put a link there since.
            if std::fs::canonicalize(&file).ok()? != file {
                return None;
            }
            let other = std::fs::metadata(file).ok()?;
            (other.dev() == mine.dev() && other.ino() == mine.ino()).then(|| format!("/dev/{name}"))
        })
}

/// Whether the kernel swaps to a file. Its table escapes names as the mount table does.
fn is_swap(path: &Path) -> Result<bool, Failure> {
    let Ok(path) = std::fs::canonicalize(path) else {
        return Ok(false);
    };
    match std::fs::read(SWAPS) {
        Ok(table) => Ok(swaps(&table).any(|name| Path::new(&name) == path)),
        // The kernel was built without swap.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Failure::os("cannot read", SWAPS, e)),
    }
}

/// The names of a table of swap, whose first line is a heading.
fn swaps(table: &[u8]) -> impl Iterator<Item = OsString> {
    let lines = table.split(|byte| *byte == b'\n').skip(1);
    let names = lines.filter_map(|line| line.split(u8::is_ascii_whitespace).next());
    names
        .filter(|name| !name.is_empty())
        .map(mount_table::unescape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_other_users_do_not_count() {
        let is_trusted = |kind: &str, options: &str| {
            let line = format!("36 25 0:31 / /mnt rw shared:5 - {kind} /region {options}");
            is_trusted(&mount_table::parse(line.as_bytes())[0], 7)
        };
        assert!(is_trusted("fuse.x", "rw,user_id=0"));
        assert!(is_trusted("fuse.x", "rw,user_id=7"));
        assert!(is_trusted("ext4", "rw"));
        for options in ["rw,user_id=4242,group_id=0", "rw", "rw,user_id=x"] {
            assert!(!is_trusted("fuse.x", options), "{options}");
        }
    }

    #[test]
    fn swap_files_are_found_with_any_bytes_in_their_names() {
        let table = b"Filename\tType\n/a\\040b\xff  file 4 0 -2\n/dev/sda2 partition 4 0 -3\n";
        let found: Vec<_> = swaps(table).collect();
        let odd = OsString::from_vec(b"/a b\xff".to_vec());
        assert_eq!(found, [odd, OsString::from("/dev/sda2")]);
    }
}
