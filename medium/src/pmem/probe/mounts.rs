//! The file system of a descriptor, from `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use rustix::fs::{AtFlags, StatxFlags};

use super::FileSystem;

/// Returns the mount that contains a descriptor, if this process sees it.
pub(in crate::pmem) fn of(fd: BorrowedFd<'_>) -> Option<FileSystem> {
    let stx = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
    if stx.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
        return None;
    }
    let text = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let id = stx.stx_mnt_id.to_string();
    text.lines()
        .find(|line| line.split(' ').next() == Some(id.as_str()))
        .and_then(parse)
}

/// Returns the mount of the file system with this device number, if this process sees one.
pub(in crate::pmem) fn of_device(dev: u64) -> Option<FileSystem> {
    let device = format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
    let text = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    text.lines()
        .find(|line| line.split(' ').nth(2) == Some(device.as_str()))
        .and_then(parse)
}

/// Parses a line: `36 35 98:0 /root /mount options optional... - type device super`.
fn parse(line: &str) -> Option<FileSystem> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(4);
    let (point, options) = (left.next()?, left.next()?);
    let mut right = right.split(' ');
    let (fs_type, device, super_options) =
        (right.next()?, right.next()?, right.next().unwrap_or(""));
    Some(FileSystem {
        fs_type: fs_type.to_owned(),
        mount_point: PathBuf::from(OsString::from_vec(unescape(point))),
        device: String::from_utf8_lossy(&unescape(device)).into_owned(),
        options: format!("{options},{super_options}"),
    })
}

/// Decodes blanks and similar characters, written as a backslash and three octal digits.
fn unescape(field: &str) -> Vec<u8> {
    let bytes = field.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let octal = bytes
            .get(i + 1..i + 4)
            .filter(|d| bytes[i] == b'\\' && d.iter().all(|b| (b'0'..=b'7').contains(b)))
            .map(|d| d.iter().fold(0u32, |n, b| n * 8 + u32::from(b - b'0')));
        match octal {
            Some(n) if n < 256 => {
                out.push(n as u8);
                i += 4;
            }
            _ => {
                out.push(bytes[i]);
                i += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_line_is_split_into_fields() {
        let fs = parse("36 35 0:5 / /mnt/a\\040b\\134 rw,noatime shared:1 master:2 - ext4 /dev/pmem0 rw,dax=always").unwrap();
        assert_eq!(fs.mount_point, PathBuf::from("/mnt/a b\\"));
        assert_eq!(
            (fs.fs_type.as_str(), fs.device.as_str()),
            ("ext4", "/dev/pmem0")
        );
        assert_eq!(fs.options, "rw,noatime,rw,dax=always");
        assert_eq!(parse("36 35 0:5 / /mnt rw"), None);
        assert_eq!(unescape("a\\9z\\1\\777"), b"a\\9z\\1\\777");
    }
}
