//! Who uses a file that is to be a region, as far as the kernel tells.
//!
//! The region lock and, for block devices, the kernel's exclusive claim are
//! taken by the library on opening. A file can also be used through a loop
//! device, as swap, or by another FUSE server, none of which takes that lock.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::Failure;
use crate::failure::shown;

/// Refuses a regular file that the kernel or another file system uses.
pub fn check_file(path: &Path) -> Result<(), Failure> {
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

/// Adds the mount point to the library's message about a region in use.
pub fn with_mount_point(path: &Path, mut failure: Failure) -> Failure {
    if failure.reason == "in-use"
        && let Some(m) = mounts_of(path).first()
    {
        failure.message += &format!(" (mounted on {})", shown(&m.on));
    }
    failure
}

struct Mount {
    on: PathBuf,
    fstype: String,
}

/// Mounts whose source is this very path.
fn mounts_of(path: &Path) -> Vec<Mount> {
    let Ok(path) = std::fs::canonicalize(path) else {
        return Vec::new();
    };
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table
        .lines()
        .filter_map(|line| {
            let (place, what) = line.split_once(" - ")?;
            let mut what = what.split(' ');
            let (fstype, source) = (what.next()?, what.next()?);
            (Path::new(&unescape(source)) == path).then(|| {
                Some(Mount {
                    on: unescape(place.split(' ').nth(4)?).into(),
                    fstype: fstype.to_owned(),
                })
            })?
        })
        .collect()
}

/// The kernel writes blanks and backslashes in its tables as octal escapes.
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
            let other = std::fs::metadata(file.trim_end_matches('\n')).ok()?;
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
    use super::unescape;

    #[test]
    fn kernel_escapes_are_undone() {
        assert_eq!(unescape(r"/mnt/a\040b\134c"), r"/mnt/a b\c");
        assert_eq!(unescape(r"\04"), r"\04");
        assert_eq!(unescape(r"\999"), r"\999");
    }
}
