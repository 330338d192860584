//! Finds other users of a file that is to become a region.
//!
//! On opening, the library takes the region lock and, for a block device, the
//! kernel's exclusive claim. A loop device, swap, or another FUSE server may use
//! the file without that lock.
//!
//! Invariant: a mount of another user never refuses anything. Any user can mount
//! a FUSE file system under any name. So only mounts of root and of the caller
//! count, and their source is compared by device and inode.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pramfs_control::Identity;

use crate::Failure;
use crate::failure::shown;

/// Refuses a regular file that the kernel or another file system uses.
pub(crate) fn check_file(path: &Path) -> Result<(), Failure> {
    let busy = |by: String| Err(Failure::new("in-use", format!("{}: {by}", shown(path))));
    if let Some(device) = loop_device(path) {
        return busy(format!(
            "is in use by the loop device {device}; detach it first: losetup -d {device}"
        ));
    }
    if is_swap(path) {
        return busy("is in use as swap; switch it off first: swapoff".into());
    }
    match mounts_of(path).iter().find(|m| m.fstype != "fuse.pramfs") {
        Some(m) => busy(format!(
            "is mounted on {} (type {}); umount it first",
            shown(&m.on),
            m.fstype
        )),
        None => Ok(()),
    }
}

/// Adds the mount point to the library's message that a region is in use.
pub(crate) fn with_mount_point(path: &Path, mut failure: Failure) -> Failure {
    if failure.reason == "in-use"
        && let Some(m) = mounts_of(path).first()
    {
        failure.message += &format!(" (mounted on {})", shown(&m.on));
    }
    failure
}

/// Returns where the file system of a region is mounted, by root or the caller.
pub(crate) fn mount_point(path: &Path) -> Option<PathBuf> {
    let mounts = mounts_of(path).into_iter();
    let mut ours = mounts.filter(|m| m.fstype == "fuse.pramfs");
    ours.next().map(|m| m.on)
}

struct Mount {
    on: PathBuf,
    fstype: String,
}

/// Returns the mounts of this object by root or the caller.
fn mounts_of(path: &Path) -> Vec<Mount> {
    let Ok(wanted) = Identity::of_path(path) else {
        return Vec::new();
    };
    let own = rustix::process::geteuid().as_raw();
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounts = table.lines().filter_map(|line| mount_of(line, own));
    mounts
        .filter(|(source, _)| {
            source.is_absolute() && Identity::of_path(source).is_ok_and(|found| found == wanted)
        })
        .map(|(_, mount)| mount)
        .collect()
}

/// Parses source and mount point of a mount, if root or `own` made it. All file
/// systems but FUSE take root to mount.
fn mount_of(line: &str, own: u32) -> Option<(PathBuf, Mount)> {
    let (place, what) = line.split_once(" - ")?;
    let mut what = what.split(' ');
    let (fstype, source) = (what.next()?, what.next()?);
    let mut options = what.next().unwrap_or_default().split(',');
    let is_trusted = match options.find_map(|word| word.strip_prefix("user_id=")) {
        Some(user) => user
            .parse::<u32>()
            .is_ok_and(|user| user == 0 || user == own),
        None => !fstype.starts_with("fuse"),
    };
    let mount = Mount {
        on: unescape(place.split(' ').nth(4)?).into(),
        fstype: fstype.to_owned(),
    };
    is_trusted.then(|| (unescape(source).into(), mount))
}

/// Decodes the octal escapes that the kernel writes for blanks and backslashes.
fn unescape(field: &str) -> String {
    let mut out = Vec::new();
    let mut rest = field.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .filter(|d| byte == b'\\' && d.iter().all(|c| (b'0'..=b'7').contains(c)));
        if let Some(digits) = octal {
            let value = digits.iter().fold(0u32, |v, d| v * 8 + u32::from(d - b'0'));
            out.push(value as u8);
            rest = &tail[3..];
        } else {
            out.push(byte);
            rest = tail;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
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
            let file = std::fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
            let file = Path::new(file.trim_end_matches('\n'));
            // The kernel reports the name of the file at the time the device was set
            // up. Another user may have put a link there since.
            if std::fs::canonicalize(file).ok()? != file {
                return None;
            }
            let other = std::fs::metadata(file).ok()?;
            (other.dev() == mine.dev() && other.ino() == mine.ino()).then(|| format!("/dev/{name}"))
        })
}

fn is_swap(path: &Path) -> bool {
    let Ok(path) = std::fs::canonicalize(path) else {
        return false;
    };
    let table = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    table
        .lines()
        .skip(1)
        .filter_map(|l| l.split_whitespace().next())
        .any(|name| Path::new(&unescape(name)) == path)
}

#[cfg(test)]
mod tests {
    use super::{mount_of, unescape};

    #[test]
    fn mounts_of_other_users_do_not_count() {
        let line = |kind: &str, options: &str| {
            format!("36 25 0:31 / /mnt/a\\040b rw shared:5 - {kind} /region {options}")
        };
        let (source, mount) = mount_of(&line("fuse.x", "rw,user_id=0"), 7).unwrap();
        assert_eq!(source.to_str(), Some("/region"));
        assert_eq!(mount.on.to_str(), Some("/mnt/a b"));
        assert_eq!(mount.fstype, "fuse.x");
        assert!(mount_of(&line("fuse.x", "rw,user_id=7"), 7).is_some());
        assert!(mount_of(&line("ext4", "rw"), 7).is_some());
        for options in ["rw,user_id=4242,group_id=0", "rw", "rw,user_id=x"] {
            assert!(mount_of(&line("fuse.x", options), 7).is_none(), "{options}");
        }
    }

    #[test]
    fn kernel_escapes_are_decoded() {
        assert_eq!(unescape(r"/mnt/a\040b\134c"), r"/mnt/a b\c");
        assert_eq!(unescape(r"\04"), r"\04");
        assert_eq!(unescape(r"\999"), r"\999");
    }
}
