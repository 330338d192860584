//! Where regions are looked for: links of udev, memory devices, and a list of files.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use pramfs_medium::media::label::encoded;
use pramfs_medium::media::{SuperblockInfo, identify};
use pramfs_medium::pmem::Ownership;
use rustix::fs::{Mode, OFlags};

use super::Tag;

/// Files that may be regions, one absolute path a line; a directory stands for the files in it.
const LIST: &str = "/etc/pramfs/regions";
/// Longest list that is read, bytes.
const MAX_LIST: u64 = 1 << 20;
/// Most files that are looked at in a directory of the list.
const MAX_FILES: usize = 1024;
/// Most names that are read of a directory.
const MAX_NAMES: usize = 1 << 16;

/// Directories and files in which regions are looked for.
#[derive(Debug, Clone)]
pub(super) struct Places {
    /// With `by-uuid` and `by-label` in it.
    links: PathBuf,
    /// Block devices by name; those of persistent memory are looked at.
    block: PathBuf,
    /// Devices of device-DAX by name.
    dax: PathBuf,
    /// Where their nodes are.
    nodes: PathBuf,
    /// The list of files.
    list: PathBuf,
}

/// What may be the region.
#[derive(Debug)]
pub(super) struct Candidate {
    /// Its path, without links.
    pub(super) path: PathBuf,
    /// Identifies a device, or a file.
    pub(super) object: (u64, u64),
    /// Why its superblock is not to be believed.
    objection: Option<String>,
}

/// What there is to look at.
#[derive(Debug, Default)]
pub(super) struct Searched {
    /// May be the region.
    pub(super) candidates: Vec<Candidate>,
    /// Places that could not be searched, and why.
    pub(super) notes: Vec<String>,
}

impl Candidate {
    fn new(path: &Path) -> std::io::Result<Candidate> {
        let path = path.canonicalize()?;
        // Not opened for reading: that has effects on devices that are no memory.
        let handle = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let objection = match objection(&handle)? {
            None => objection_above(&path)?,
            why => why,
        };
        let meta = File::from(handle).metadata()?;
        let kind = meta.file_type();
        let is_device = kind.is_block_device() || kind.is_char_device();
        let object = match is_device {
            true => (kind.is_block_device().into(), meta.rdev()),
            false => (meta.dev().saturating_add(2), meta.ino()),
        };
        Ok(Candidate {
            path,
            object,
            objection,
        })
    }

    pub(super) fn superblock(&self) -> Result<Option<SuperblockInfo>, String> {
        identify(&self.path).map_err(|error| error.to_string())
    }

    pub(super) fn objection(&self) -> Option<String> {
        let why = self.objection.as_ref()?;
        let shown = shown(&self.path);
        Some(format!(
            "{shown} matches, but {why}: if you trust it, name it by its path"
        ))
    }
}

fn objection(handle: impl std::os::fd::AsFd) -> std::io::Result<Option<String>> {
    let user = rustix::process::geteuid().as_raw();
    Ok(Ownership::of(handle)?.objection(user))
}

/// Why somebody else could put another file in the place of this one: a directory above it.
fn objection_above(path: &Path) -> std::io::Result<Option<String>> {
    let user = rustix::process::geteuid().as_raw();
    for directory in path.ancestors().skip(1) {
        let meta = directory.metadata()?;
        let is_owned = meta.uid() == 0 || meta.uid() == user;
        // In a sticky directory, others can neither rename nor remove it.
        let is_shared = meta.mode() & 0o022 != 0 && meta.mode() & 0o1000 == 0;
        if !is_owned || is_shared {
            return Ok(Some(format!(
                "other users can change names in {}",
                shown(directory)
            )));
        }
    }
    Ok(None)
}

/// A path for a message: others may have chosen a part of it.
pub(super) fn shown(path: &Path) -> String {
    path.to_string_lossy().escape_debug().to_string()
}

impl Searched {
    fn look_at(&mut self, path: &Path) {
        match Candidate::new(path) {
            Ok(candidate) => self.candidates.push(candidate),
            // A link or a device that has just gone, or a region that is not there yet.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => self.notes.push(format!("{}: {error}", shown(path))),
        }
    }
}

impl Places {
    /// Those of this machine.
    pub(super) fn of_system() -> Places {
        Places {
            links: "/dev/disk".into(),
            block: "/sys/class/block".into(),
            dax: "/sys/bus/dax/devices".into(),
            nodes: "/dev".into(),
            list: LIST.into(),
        }
    }

    /// What to tell somebody whose region is in none of them.
    pub(super) fn names(&self, tag: &Tag) -> Vec<String> {
        vec![
            self.link_directory(tag).display().to_string(),
            format!("{0}/pmem*, {0}/dax*", self.nodes.display()),
            format!("the files that {} lists", self.list.display()),
        ]
    }

    fn link_directory(&self, tag: &Tag) -> PathBuf {
        self.links.join(match tag {
            Tag::Uuid(_) => "by-uuid",
            Tag::Label(_) => "by-label",
        })
    }

    /// Everything that may be the region, the likeliest first.
    pub(super) fn candidates(&self, tag: &Tag) -> Searched {
        let mut searched = Searched::default();
        // No other device: one that hangs must not keep this one from its mount.
        let link = match tag {
            Tag::Uuid(uuid) => uuid.to_string(),
            Tag::Label(label) => encoded(label.as_bytes()),
        };
        searched.look_at(&self.link_directory(tag).join(link));
        for name in names_in(&self.block) {
            let is_pmem = name.as_encoded_bytes().starts_with(b"pmem");
            // The device mapper shows the contents of its devices by names of its own.
            let is_held = || !names_in(&self.block.join(&name).join("holders")).is_empty();
            if is_pmem && !is_held() {
                searched.look_at(&self.nodes.join(&name));
            }
        }
        for name in names_in(&self.dax) {
            searched.look_at(&self.nodes.join(&name));
        }
        self.add_listed(&mut searched);
        searched
    }

    fn add_listed(&self, searched: &mut Searched) {
        let text = match self.read_list() {
            Ok(text) => text,
            Err(why) => return searched.notes.extend(why),
        };
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let path = Path::new(line);
            if !path.is_absolute() {
                let (list, number) = (self.list.display(), number + 1);
                let note = format!("{list}, line {number}: {line:?} is no absolute path");
                searched.notes.push(note);
            } else if path.is_dir() {
                let files: Vec<_> = (names_in(path).iter())
                    .map(|name| path.join(name))
                    .filter(|file| is_listed(file))
                    .take(MAX_FILES + 1)
                    .collect();
                if files.len() > MAX_FILES {
                    let note = format!("{line}: has more than {MAX_FILES} files: list the regions");
                    searched.notes.push(note);
                }
                for file in files.iter().take(MAX_FILES) {
                    searched.look_at(file);
                }
            } else {
                searched.look_at(path);
            }
        }
    }

    /// Returns the list, or why it is not used, if there is one.
    fn read_list(&self) -> Result<String, Option<String>> {
        let shown = self.list.display();
        let failed = |error: std::io::Error| match error.kind() {
            ErrorKind::NotFound => None,
            _ => Some(format!("cannot read {shown}: {error}")),
        };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = rustix::fs::open(&self.list, flags, Mode::empty());
        let file = File::from(file.map_err(|error| failed(error.into()))?);
        let is_file = file.metadata().map_err(failed)?.is_file();
        if !is_file {
            return Err(Some(format!("{shown} is no file, and is not used")));
        }
        // Root may have written it for all users.
        let owner = file.metadata().map_err(failed)?.uid();
        let by_root = owner == 0 && Ownership::of(&file).map_err(failed)?.objection(0).is_none();
        if !by_root && let Some(why) = objection(&file).map_err(failed)? {
            return Err(Some(format!("{shown} {why}, and is not used")));
        }
        let mut text = String::new();
        file.take(MAX_LIST)
            .read_to_string(&mut text)
            .map_err(failed)?;
        Ok(text)
    }
}

/// Whether a file of a listed directory is looked at: in such a directory others may make files,
/// and links to regions that nobody has listed.
fn is_listed(file: &Path) -> bool {
    let user = rustix::process::geteuid().as_raw();
    file.symlink_metadata()
        .is_ok_and(|meta| meta.is_file() && (meta.uid() == 0 || meta.uid() == user))
}

/// Names in a directory, in order; none if it cannot be read.
fn names_in(directory: &Path) -> Vec<std::ffi::OsString> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let mut names: Vec<_> = entries
        .flatten()
        .map(|entry| entry.file_name())
        .take(MAX_NAMES)
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use pramfs_medium::format::{FormatOptions, format};
    use pramfs_medium::pmem::RegionOptions;
    use uuid::Uuid;

    use super::super::find;
    use super::*;

    const ONE: Uuid = Uuid::from_u128(1);

    struct Machine {
        dir: tempfile::TempDir,
        places: Places,
    }

    impl Machine {
        fn new() -> Machine {
            let dir = tempfile::tempdir().unwrap();
            let at = |name: &str| dir.path().join(name);
            let places = Places {
                links: at("disk"),
                block: at("block"),
                dax: at("bus"),
                nodes: at("dev"),
                list: at("regions"),
            };
            for name in [
                "disk/by-uuid",
                "disk/by-label",
                "block",
                "bus",
                "dev",
                "files",
            ] {
                std::fs::create_dir_all(at(name)).unwrap();
            }
            Machine { dir, places }
        }

        fn at(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn region(&self, name: &str, uuid: Uuid, label: &str) -> PathBuf {
            let path = self.at(name);
            let file = File::create(&path).unwrap();
            file.set_len(1 << 20).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
            let region = RegionOptions::new().open(&path).unwrap();
            let options = FormatOptions {
                label: label.into(),
                uuid: Some(*uuid.as_bytes()),
                ..FormatOptions::default()
            };
            format(&region, &options).unwrap();
            path
        }

        fn list(&self, text: &str) {
            std::fs::write(&self.places.list, text).unwrap();
            let mode = PermissionsExt::from_mode(0o644);
            std::fs::set_permissions(&self.places.list, mode).unwrap();
        }

        fn find(&self, tag: &Tag) -> Result<PathBuf, String> {
            find(tag, &self.places).map_err(|failure| failure.message)
        }

        fn refuses(&self, tag: &Tag, words: &[&str]) {
            let message = self.find(tag).unwrap_err();
            for word in words {
                assert!(message.contains(word), "{word}: {message}");
            }
        }
    }

    fn label(text: &str) -> Tag {
        Tag::Label(text.into())
    }

    #[test]
    fn region_is_found_by_link_device_or_list() {
        let machine = Machine::new();
        let linked = machine.region("linked", ONE, "one");
        symlink(&linked, machine.at("disk/by-uuid").join(ONE.to_string())).unwrap();
        symlink(&linked, machine.at("disk/by-label/one")).unwrap();
        let pmem = machine.region("dev/pmem0", Uuid::from_u128(2), "two");
        std::fs::create_dir(machine.at("block/pmem0")).unwrap();
        let dax = machine.region("dev/dax0.0", Uuid::from_u128(3), "three words");
        std::fs::create_dir(machine.at("bus/dax0.0")).unwrap();
        let listed = machine.region("listed", Uuid::from_u128(4), "four");
        let inside = machine.region("files/region", Uuid::from_u128(5), "five");
        machine.list(&format!(
            "# regions on tmpfs\n\n{}\n  {}  \n",
            listed.display(),
            machine.at("files").display()
        ));
        for (number, name, path) in [
            (1, "one", linked),
            (2, "two", pmem),
            (3, "three words", dax),
            (4, "four", listed),
            (5, "five", inside),
        ] {
            let path = path.canonicalize().unwrap();
            let uuid = Tag::Uuid(Uuid::from_u128(number));
            assert_eq!(machine.find(&uuid).as_ref(), Ok(&path), "{name}");
            assert_eq!(machine.find(&label(name)).as_ref(), Ok(&path), "{name}");
        }
    }

    #[test]
    fn link_to_other_region_is_not_believed() {
        let machine = Machine::new();
        let other = machine.region("other", Uuid::from_u128(9), "other");
        symlink(&other, machine.at("disk/by-uuid").join(ONE.to_string())).unwrap();
        symlink(&other, machine.at("disk/by-label/one")).unwrap();
        machine.refuses(&Tag::Uuid(ONE), &[&ONE.to_string(), "by-uuid"]);
        machine.refuses(&label("one"), &["LABEL=one", "by-label"]);
    }

    #[test]
    fn two_regions_that_match_are_refused_by_name() {
        let machine = Machine::new();
        let first = machine.region("files/first", ONE, "same");
        let second = machine.region("files/second", ONE, "same");
        // By two names, one region is one.
        symlink(&first, machine.at("disk/by-label/same")).unwrap();
        machine.list(&format!("{}\n", first.display()));
        assert!(machine.find(&label("same")).is_ok());
        machine.list(&format!("{}\n", machine.at("files").display()));
        for tag in [label("same"), Tag::Uuid(ONE)] {
            let names = [first.to_str().unwrap(), second.to_str().unwrap()];
            machine.refuses(&tag, &["ambiguous", names[0], names[1]]);
        }
    }

    #[test]
    fn missing_region_says_where_it_was_looked_for() {
        let machine = Machine::new();
        let list = machine.places.list.to_str().unwrap();
        machine.refuses(
            &label("x"),
            &["LABEL=x", "by-label", "/pmem*", "/dax*", list],
        );
        machine.list("relative/path\n/nowhere/at/all\n/dev/null\n");
        machine.refuses(&label("x"), &["line 1", "relative/path", "/dev/null"]);
        std::fs::write(&machine.places.list, [0xff, 0xfe]).unwrap();
        machine.refuses(&label("x"), &["cannot read", list]);
        std::fs::remove_file(list).unwrap();
        std::fs::create_dir(list).unwrap();
        machine.refuses(&label("x"), &["is no file"]);
    }

    #[test]
    fn link_in_listed_directory_is_not_followed() {
        let machine = Machine::new();
        let elsewhere = machine.region("elsewhere", ONE, "one");
        symlink(&elsewhere, machine.at("files/link")).unwrap();
        machine.list(&format!("{}\n", machine.at("files").display()));
        machine.refuses(&label("one"), &["no such region"]);
        machine.list(&format!("{}\n", elsewhere.display()));
        assert!(machine.find(&label("one")).is_ok());
    }

    #[test]
    fn region_below_directory_that_others_may_change_is_not_taken() {
        let machine = Machine::new();
        let path = machine.region("files/region", ONE, "one");
        machine.list(&format!("{}\n", path.display()));
        let files = machine.at("files");
        std::fs::set_permissions(&files, PermissionsExt::from_mode(0o777)).unwrap();
        machine.refuses(&label("one"), &["other users can change names in"]);
        std::fs::set_permissions(&files, PermissionsExt::from_mode(0o1777)).unwrap();
        assert!(machine.find(&label("one")).is_ok());
    }

    #[test]
    fn region_with_backup_superblock_alone_is_not_taken() {
        use std::os::unix::fs::FileExt;
        let machine = Machine::new();
        let path = machine.region("files/region", ONE, "one");
        machine.list(&format!("{}\n", path.display()));
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(&[0; 4096], 0).unwrap();
        machine.refuses(&label("one"), &["backup superblock", "by its path"]);
    }

    #[test]
    fn region_or_list_that_others_may_write_is_not_taken() {
        let machine = Machine::new();
        let path = machine.region("files/open", ONE, "open");
        machine.list(&format!("{}\n", path.display()));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
        let shown = path.to_str().unwrap();
        machine.refuses(
            &label("open"),
            &[shown, "not safe from others", "by its path"],
        );
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        assert!(machine.find(&label("open")).is_ok());
        let mode = PermissionsExt::from_mode(0o666);
        std::fs::set_permissions(&machine.places.list, mode).unwrap();
        machine.refuses(&label("open"), &["not safe from others", "is not used"]);
    }
}
