//! What is mounted where: `/proc/self/mountinfo`.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Type of our mounts, as the kernel shows it.
pub const FS_TYPE: &str = "fuse.pramfs";

/// One line of mountinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Device number of the mounted file system.
    pub device: (u32, u32),
    /// What of the file system is mounted: `/` is all of it.
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

/// All mounts, in the order in which they were made.
///
/// # Errors
/// Where `/proc` cannot be read.
pub fn read() -> io::Result<Vec<Mount>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// The mount that is on top at `target`, a canonical path.
pub fn at(target: &Path) -> Option<Mount> {
    read()
        .ok()?
        .into_iter()
        .rev()
        .find(|mount| mount.target == target)
}

/// The first of our mounts whose source is `source`.
pub fn of_source(source: &Path) -> Option<Mount> {
    read()
        .ok()?
        .into_iter()
        .find(|mount| mount.fs_type == FS_TYPE && is_source(mount, source))
}

/// Whether a mount of ours is of this region, a canonical path.
pub fn is_source(mount: &Mount, region: &Path) -> bool {
    let named = Path::new(&mount.source);
    mount.source == *source_name(region)
        || named.is_absolute() && named.canonicalize().is_ok_and(|path| path == region)
}

fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|byte| *byte == b'\n')
        .filter_map(parse_line)
        .collect()
}

/// `ID PARENT MAJOR:MINOR ROOT TARGET OPTIONS [TAG...] - TYPE SOURCE SUPER`.
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = text(fields.nth(2)?);
    let root = text(fields.next()?);
    let target = unescape(fields.next()?);
    let options = text(fields.next()?);
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let (major, minor) = device.split_once(':')?;
    Some(Mount {
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

/// `\040` and the like: three octal digits after a backslash.
fn unescape(field: &[u8]) -> OsString {
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

/// A source for people: whoever mounts chooses it, escapes of a terminal too.
pub fn shown(source: &OsStr) -> String {
    let text = source.to_string_lossy();
    let safe = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(safe).collect()
}

/// A region's path as a mount source: commas would end the option that it
/// travels in.
pub fn source_name(region: &Path) -> String {
    String::from_utf8_lossy(region.as_os_str().as_bytes()).replace([',', '\\', '\n'], "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_ours() {
        let line = b"36 25 0:31 / /mnt/a\\040b rw,nosuid,relatime shared:5 master:1 - fuse.pramfs /dev/shm/r\\134x rw,user_id=0\n";
        let mounts = parse(line);
        assert_eq!(mounts.len(), 1);
        assert_eq!(mounts[0].device, (0, 31));
        assert_eq!(mounts[0].root, "/");
        assert_eq!(mounts[0].target, Path::new("/mnt/a b"));
        assert_eq!(mounts[0].options, "rw,nosuid,relatime");
        assert_eq!(mounts[0].fs_type, FS_TYPE);
        assert_eq!(mounts[0].source, "/dev/shm/r\\x");
        assert_eq!(mounts[0].super_options, "rw,user_id=0");
    }

    #[test]
    fn lines_that_cannot_be_read_are_left_out() {
        assert_eq!(
            parse(b"\n36 25 0:31 / /mnt rw\nnonsense - - -\n"),
            Vec::new()
        );
        assert_eq!(unescape(b"a\\04"), "a\\04");
        assert_eq!(unescape(b"a\\777"), "a\\777");
    }

    #[test]
    fn sources_have_no_commas() {
        assert_eq!(source_name(Path::new("/a,b\\c")), "/a_b_c");
    }
}
