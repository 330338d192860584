//! A region named by what its superblock says: `UUID=...` or `LABEL=...`.
//!
//! mount(8) translates such a source itself, with libblkid, which does not know pramfs. It finds
//! what udev has made a link of, if that is a block device. Everything else reaches this program
//! as `pramfs:UUID=...`, which mount(8) passes on.
//!
//! Invariants:
//! * a name that leads to a region is a hint only: its superblock decides;
//! * a region that others may write or replace is not taken, because its superblock may lie;
//! * two regions that match are refused, never chosen from.

mod places;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pramfs_medium::media::SuperblockInfo;
use uuid::Uuid;

use crate::exit::Failure;
use places::{Candidate, Places};

/// Stands before a tag that mount(8) and systemd are to pass on as it is.
const PREFIX: &[u8] = b"pramfs:";

/// What a region is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tag {
    /// This uuid.
    Uuid(Uuid),
    /// This label.
    Label(String),
}

impl Tag {
    /// Reads a source of a mount. Returns `None` if it is a path.
    ///
    /// # Errors
    /// It is a tag, but of no region.
    pub fn parse(source: &Path) -> Result<Option<Tag>, Failure> {
        let bytes = source.as_os_str().as_bytes();
        let bytes = bytes.strip_prefix(PREFIX).unwrap_or(bytes);
        let wrong = |why: &str| {
            let shown = source.display();
            Failure::usage(format!(
                "{shown}: {why}; for a file of that name, type ./{shown}"
            ))
        };
        let value = |name: &[u8]| {
            let value = OsStr::from_bytes(bytes.strip_prefix(name)?);
            Some(value.to_str().map(without_quotes))
        };
        if let Some(uuid) = value(b"UUID=") {
            let uuid = uuid.and_then(|text| Uuid::try_parse(text).ok());
            let why = "is not a uuid, such as UUID=0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";
            return uuid
                .map(|uuid| Some(Tag::Uuid(uuid)))
                .ok_or_else(|| wrong(why));
        }
        if let Some(label) = value(b"LABEL=") {
            let label = label.filter(|label| (1..64).contains(&label.len()));
            let why = "is not a label: that has 1 to 63 bytes of UTF-8";
            return label
                .map(|label| Some(Tag::Label(label.to_owned())))
                .ok_or_else(|| wrong(why));
        }
        for name in ["PARTUUID=", "PARTLABEL=", "ID="] {
            if bytes.starts_with(name.as_bytes()) {
                return Err(wrong(
                    "names a partition or device; mount.pramfs knows UUID=, LABEL= and paths",
                ));
            }
        }
        Ok(None)
    }

    fn is_of(&self, info: &SuperblockInfo) -> bool {
        match self {
            Tag::Uuid(uuid) => info.uuid() == *uuid,
            Tag::Label(label) => info.label() == *label,
        }
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tag::Uuid(uuid) => write!(f, "UUID={uuid}"),
            Tag::Label(label) => write!(f, "LABEL={}", label.escape_debug()),
        }
    }
}

fn without_quotes(text: &str) -> &str {
    let inner = |quote| text.strip_prefix(quote)?.strip_suffix(quote);
    inner('"').or_else(|| inner('\'')).unwrap_or(text)
}

/// Finds the region that a source names by a tag. Returns `None` if the source is a path.
///
/// # Errors
/// No region matches, and where it was looked for; or more than one does, and their names.
pub fn resolve(source: &Path) -> Result<Option<PathBuf>, Failure> {
    match Tag::parse(source)? {
        Some(tag) => find(&tag, &Places::of_system()).map(Some),
        None => Ok(None),
    }
}

/// Replaces the source in the arguments of this program by the region that it names, so that
/// processes started with these arguments do not look for it again.
pub fn replace(args: &mut [OsString], source: &Path, region: &Path) {
    if let Some(arg) = args.iter_mut().skip(1).find(|arg| **arg == *source) {
        *arg = region.as_os_str().to_owned();
    }
}

fn find(tag: &Tag, places: &Places) -> Result<PathBuf, Failure> {
    let searched = places.candidates(tag);
    let mut notes = searched.notes;
    let mut found: Vec<Candidate> = Vec::new();
    for candidate in searched.candidates {
        if found.iter().any(|other| other.object == candidate.object) {
            continue;
        }
        match candidate.superblock() {
            // Whoever uses a device anew leaves the backup, and a mount would write over him.
            Ok(Some(info)) if tag.is_of(&info) && info.from_copy => notes.push(format!(
                "{} matches, but only by its backup superblock: if it is the region, name it by its path",
                places::shown(&candidate.path)
            )),
            Ok(Some(info)) if tag.is_of(&info) => match candidate.objection() {
                Some(why) => notes.push(why),
                None => found.push(candidate),
            },
            Ok(_) => {}
            Err(why) => notes.push(why),
        }
    }
    let mut found = found.into_iter().map(|candidate| candidate.path);
    match (found.next(), found.next()) {
        (Some(region), None) => Ok(region),
        (Some(region), Some(other)) => {
            let more: Vec<_> = [region, other].into_iter().chain(found).collect();
            let names: Vec<_> = more.iter().map(|path| places::shown(path)).collect();
            Err(Failure::mount(format!(
                "{tag} is ambiguous: {} match; name the region by its path, or give one of them another label (pramfs tune -L)",
                names.join(" and ")
            )))
        }
        (None, _) => {
            let notes: String = notes.iter().map(|note| format!("; {note}")).collect();
            Err(Failure::mount(format!(
                "{tag}: no such region in {}{notes}",
                places.names(tag).join(", ")
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Status;

    fn parsed(source: &str) -> Option<Tag> {
        Tag::parse(Path::new(source)).unwrap()
    }

    #[test]
    fn tag_is_parsed_with_and_without_prefix_and_quotes() {
        let uuid = Uuid::from_u128(0x0f1e_2d3c_4b5a_6978_8796_a5b4_c3d2_e1f0);
        for source in [
            "UUID=0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0",
            "UUID=0F1E2D3C-4B5A-6978-8796-A5B4C3D2E1F0",
            "pramfs:UUID=\"0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0\"",
        ] {
            assert_eq!(parsed(source), Some(Tag::Uuid(uuid)), "{source}");
        }
        for (source, label) in [
            ("LABEL=data", "data"),
            ("LABEL='my disk'", "my disk"),
            ("pramfs:LABEL=a=b", "a=b"),
        ] {
            assert_eq!(parsed(source), Some(Tag::Label(label.into())), "{source}");
        }
        for path in ["/dev/dax0.0", "./UUID=x", "physaddr:1G+16M", "dir/LABEL=x"] {
            assert_eq!(parsed(path), None, "{path}");
        }
    }

    #[test]
    fn wrong_tag_is_refused_with_remedy() {
        let long = format!("LABEL={}", "x".repeat(64));
        for source in [
            "UUID=",
            "UUID=12",
            "LABEL=",
            &long,
            "PARTUUID=1",
            "pramfs:ID=x",
        ] {
            let failure = Tag::parse(Path::new(source)).unwrap_err();
            assert_eq!(failure.status, Status::Usage, "{source}");
            assert!(failure.message.contains(source), "{}", failure.message);
            assert!(failure.message.contains("./"), "{}", failure.message);
        }
    }

    #[test]
    fn source_in_arguments_is_replaced() {
        let mut args: Vec<_> = ["mount.pramfs", "-o", "ro", "LABEL=x", "/m"]
            .map(OsString::from)
            .into();
        replace(&mut args, Path::new("LABEL=x"), Path::new("/dev/dax0.0"));
        assert_eq!(args, ["mount.pramfs", "-o", "ro", "/dev/dax0.0", "/m"]);
    }
}
