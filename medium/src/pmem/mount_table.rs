//! The mount table: `/proc/self/mountinfo`, in bytes.
//!
//! The kernel escapes blanks, newlines, backslashes and `#`, and writes all other bytes as they
//! are. A mount point need not be UTF-8, and any user can make one that is not. So the table is
//! never read as text: one such line would hide all others.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Number of the mount. The kernel reuses it after the unmount.
    pub id: u64,
    /// Device number of the mounted file system.
    pub device: (u32, u32),
    /// Where it is mounted.
    pub target: PathBuf,
    /// Options of this mount: `rw,nosuid,relatime`.
    pub options: String,
    /// Type of the file system.
    pub fs_type: String,
    /// The device or name that it was mounted from. Whoever mounts chooses it.
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
}

/// Returns all mounts that this process sees, in the order of the table.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn read() -> io::Result<Vec<Mount>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// Parses a table. A malformed line is no mount.
pub fn parse(table: &[u8]) -> Vec<Mount> {
    table
        .split(|byte| *byte == b'\n')
        .filter_map(parse_line)
        .collect()
}

/// `ID PARENT MAJOR:MINOR ROOT TARGET OPTIONS [TAG...] - TYPE SOURCE SUPER`.
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = text(fields.next()?).parse().ok()?;
    let device = text(fields.nth(1)?);
    let target = unescape(fields.nth(1)?);
    let options = text(fields.next()?);
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let (major, minor) = device.split_once(':')?;
    Some(Mount {
        id,
        device: (major.parse().ok()?, minor.parse().ok()?),
        target: target.into(),
        options,
        fs_type: text(rest.next()?),
        source: unescape(rest.next()?),
        super_options: rest.next().map(text).unwrap_or_default(),
    })
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field).into_owned()
}

/// Decodes what the kernel escapes in this and other tables: a backslash and three octal digits.
pub fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        let digits = tail.first_chunk::<3>().filter(|_| byte == b'\\');
        let value = digits.and_then(|digits| {
            digits.iter().try_fold(0u32, |value, digit| {
                Some(value * 8 + char::from(*digit).to_digit(8)?)
            })
        });
        match value.and_then(|value| u8::try_from(value).ok()) {
            Some(value) => {
                out.push(value);
                rest = &tail[3..];
            }
            None => out.push(byte),
        }
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use super::*;

    #[test]
    fn line_is_split_into_fields() {
        let line = b"36 35 0:31 / /mnt/a\\040b\\134 rw,noatime shared:1 master:2 - fuse.pramfs /reg\\011ion rw,user_id=7,x\n";
        let [mount] = &parse(line)[..] else {
            panic!("{:?}", parse(line));
        };
        assert_eq!((mount.id, mount.device), (36, (0, 31)));
        assert_eq!(mount.target, Path::new("/mnt/a b\\"));
        assert_eq!(mount.options, "rw,noatime");
        assert_eq!(mount.fs_type, "fuse.pramfs");
        assert_eq!(mount.source, "/reg\tion");
        assert_eq!(mount.super_options, "rw,user_id=7,x");
        assert_eq!(mount.user_id(), Some(7));
    }

    #[test]
    fn name_that_is_not_utf8_keeps_its_bytes_and_hides_no_other_line() {
        let table = b"1 0 0:5 / /a\xff rw - tmpfs /s\xfe rw\n2 0 0:6 / /b rw - ext4 /dev/x rw\n";
        let mounts = parse(table);
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].target.as_os_str().as_bytes(), b"/a\xff");
        assert_eq!(mounts[0].source.as_bytes(), b"/s\xfe");
        assert_eq!(mounts[1].target, Path::new("/b"));
    }

    #[test]
    fn malformed_lines_are_skipped() {
        let table = b"\n36 25 0:31 / /mnt rw\n36 25 x / /mnt rw - t s rw\nnonsense - - -\n";
        assert_eq!(parse(table), Vec::new());
        for plain in ["a\\9z", "a\\04", "a\\777", "a\\"] {
            assert_eq!(unescape(plain.as_bytes()), plain);
        }
    }
}
