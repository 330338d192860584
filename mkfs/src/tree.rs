//! Paths, names and attributes of an open, unmounted file system.

use std::fmt;
use std::ops::ControlFlow;

use pramfs::Damage;
use pramfs::{
    Error, FileType,
    inode::{Attr, Fs, Ino, Time},
};
use serde::{Serialize, Serializer};

use crate::Failure;
use crate::failure::printable;

/// Bytes copied at a time.
pub(crate) const CHUNK: usize = 1 << 20;

/// Whether to follow a symbolic link at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Follow {
    /// Use the link itself.
    No,
    /// Use its target.
    Yes,
}

/// A directory entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Name.
    pub name: Vec<u8>,
    /// Inode.
    pub ino: Ino,
    /// Type.
    pub kind: FileType,
}

/// Looks up a path in the file system; `/` is the root.
///
/// # Errors
/// The path, and what is wrong with it.
pub(crate) fn find(fs: &Fs, path: &[u8], follow: Follow) -> Result<Attr, Failure> {
    let attr = match follow {
        Follow::Yes => fs.resolve(path),
        Follow::No => match fs.resolve_parent(path) {
            // The root has no name.
            Err(Error::Exists) => fs.resolve(path),
            found => found.and_then(|(parent, name)| fs.lookup(parent, &name)),
        },
    };
    attr.map_err(|e| about(path, e))
}

/// Reads a directory, sorted by name, without `.` and `..`. An impossible name is
/// damage.
///
/// # Errors
/// `path` is not a directory, or is damaged.
pub(crate) fn entries(fs: &Fs, path: &[u8], dir: Ino) -> Result<Vec<Entry>, Failure> {
    let mut list = Vec::new();
    fs.readdir(dir, 0, &mut |e| {
        if e.name != b"." && e.name != b".." {
            list.push(Entry {
                name: e.name.to_vec(),
                ino: e.ino,
                kind: e.kind,
            });
        }
        ControlFlow::Continue(())
    })
    .map_err(|e| about(path, e))?;
    if let Some(bad) = list
        .iter()
        .find(|e| e.name.is_empty() || e.name.iter().any(|b| matches!(b, b'/' | 0)))
    {
        let what = format!("the name \"{}\" is invalid", name(&bad.name));
        return Err(about(
            path,
            Error::corrupt(Damage::TreeLeaf, "the directory", what),
        ));
    }
    list.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(list)
}

/// Builds an error about a path in the file system.
pub(crate) fn about(path: &[u8], e: Error) -> Failure {
    Failure::about(name(path), e)
}

/// Returns `directory/name`.
pub(crate) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = directory.to_vec();
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// Returns the last name of a path.
pub(crate) fn base(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&b| b != b'/').map_or(0, |i| i + 1);
    let start = path[..end]
        .iter()
        .rposition(|&b| b == b'/')
        .map_or(0, |i| i + 1);
    &path[start..end]
}

/// Returns a name or path, escaped for people.
pub(crate) fn name(bytes: &[u8]) -> String {
    printable(&String::from_utf8_lossy(bytes))
}

/// A name or path of a report: escaped for people, and without loss in JSON. There, a backslash and each
/// byte that is not UTF-8 are `\xNN`, and all else is as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name(pub Vec<u8>);

impl From<&[u8]> for Name {
    fn from(bytes: &[u8]) -> Name {
        Name(bytes.to_vec())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&name(&self.0))
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(self.0.len());
        for chunk in self.0.utf8_chunks() {
            text += &chunk.valid().replace('\\', "\\x5c");
            for byte in chunk.invalid() {
                text += &format!("\\x{byte:02x}");
            }
        }
        serializer.serialize_str(&text)
    }
}

/// Returns the type letter of `ls -l`.
pub(crate) fn letter(kind: FileType) -> char {
    match kind {
        FileType::Regular => '-',
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::CharDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
    }
}

/// Returns the type as `stat` prints it.
pub(crate) fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::Regular => "regular file",
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::CharDevice => "character device",
        FileType::BlockDevice => "block device",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
    }
}

/// Formats the mode like `ls -l`: `drwxr-xr-t`.
pub(crate) fn mode_string(attr: &Attr) -> String {
    let bit = |mask: u32, c: char| if attr.perm & mask != 0 { c } else { '-' };
    let exec = |x: u32, special: u32, c: char| match (attr.perm & x != 0, attr.perm & special != 0)
    {
        (true, true) => c,
        (false, true) => c.to_ascii_uppercase(),
        (true, false) => 'x',
        (false, false) => '-',
    };
    [
        letter(attr.kind),
        bit(0o400, 'r'),
        bit(0o200, 'w'),
        exec(0o100, 0o4000, 's'),
        bit(0o040, 'r'),
        bit(0o020, 'w'),
        exec(0o010, 0o2000, 's'),
        bit(0o004, 'r'),
        bit(0o002, 'w'),
        exec(0o001, 0o1000, 't'),
    ]
    .iter()
    .collect()
}

/// A time, as it is printed: for people `2026-01-31 12:00:00.000000000 UTC`, in JSON
/// RFC 3339, `2026-01-31T12:00:00.000000000Z`. (RFC 3339 has no years of more than four
/// digits; they are printed as they are.)
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timestamp(pub Time);

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} UTC", date_and_time(self.0, ' '))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}Z", date_and_time(self.0, 'T')))
    }
}

fn date_and_time(t: Time, between: char) -> String {
    let (days, seconds) = (t.sec.div_euclid(86_400), t.sec.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    format!(
        "{year:04}-{month:02}-{day:02}{between}{:02}:{:02}:{:02}.{:09}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        t.nsec
    )
}

/// Converts days since 1970-01-01 to a Gregorian date. Years start in March, so that
/// the leap day is the last of a year.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month, day_of_year - (153 * march_month + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_match_calendar() {
        for (days, date) in [
            (0, (1970, 1, 1)),
            (-1, (1969, 12, 31)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (19_782, (2024, 2, 29)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
            (-25_567, (1900, 1, 1)),
        ] {
            assert_eq!(civil(days), date, "{days}");
        }
    }

    #[test]
    fn timestamp_in_json_is_rfc_3339() {
        let time = Timestamp(Time { sec: -1, nsec: 5 });
        assert_eq!(time.to_string(), "1969-12-31 23:59:59.000000005 UTC");
        assert_eq!(
            serde_json::to_string(&time).unwrap(),
            r#""1969-12-31T23:59:59.000000005Z""#
        );
    }

    #[test]
    fn names_in_json_lose_nothing() {
        let json = |name: &[u8]| serde_json::to_value(Name::from(name)).unwrap();
        let long = "x".repeat(300);
        for (name, text) in [
            (&b"a\xff"[..], r"a\xff"),
            (b"a\xfe", r"a\xfe"),
            (br"a\xff", r"a\x5cxff"),
            (b"a\nb", "a\nb"),
            (br"a\nb", r"a\x5cnb"),
            (
                "a\u{fffd}\u{1b}\u{e4}\"".as_bytes(),
                "a\u{fffd}\u{1b}\u{e4}\"",
            ),
            (b"\xf0\x9f\x98", r"\xf0\x9f\x98"),
            (long.as_bytes(), &long),
        ] {
            assert_eq!(json(name), text, "{name:?}");
        }
        assert_eq!(Name::from(&b"a\x1b"[..]).to_string(), r"a\u{1b}");
    }

    #[test]
    fn paths_are_split_into_components() {
        assert_eq!(base(b"/a/b//"), b"b");
        assert_eq!(base(b"a"), b"a");
        assert_eq!(base(b"/"), b"");
        assert_eq!(join(b"/", b"a"), b"/a");
        assert_eq!(join(b"/a", b"b"), b"/a/b");
    }
}
