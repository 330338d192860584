//! The thing that is to become a file system: opened and locked before it is
//! judged, judged before it is changed.
//!
//! Invariant: until [`Target::prepare`] nothing is created, resized or written.
//! From [`Target::open`] on, what exists is locked against other users, and what
//! is judged and used is the open descriptor, not the name: a name in a directory
//! like /dev/shm may mean something else at any moment. It is what the way to that
//! name, whose links were looked at, has led to. What does not exist is made new,
//! at the end of that way, or not at all.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use pramfs_medium::media::superblock::MIN_REGION;
use pramfs_medium::pmem::{
    Ownership, REGION_UNIT, Region, RegionOptions, open_when_unlocked, probe,
};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::contents::{self, Foreign, Found};
use super::path_walk::{NameAt, PathWalk};
use crate::failure::shown;
use crate::size::human;
use crate::{Failure, busy};

/// Bytes that are cleared at both ends where a foreign signature was found:
/// more than any signature's distance from the ends that is in use.
const WIPED: u64 = 1 << 20;

/// See the module.
pub struct Target {
    path: PathBuf,
    len: u64,
    state: State,
    found: Vec<Found>,
    /// What makes the name doubtful.
    doubts: Vec<Objection>,
}

enum State {
    /// There is no file.
    Missing(NameAt),
    /// A region, locked.
    Region(Region),
    /// A file of another length (an empty one, too), locked.
    Resize { file: File, from: u64 },
}

/// A reason not to go on without `-f`.
pub struct Objection {
    /// A sentence without a full stop.
    pub sentence: String,
    /// Word for `--json`.
    pub reason: &'static str,
}

impl Target {
    /// Opens and locks what `path` names, for `size` bytes or its own length.
    ///
    /// # Errors
    /// In use, not the kind of thing that can hold a file system, of a size
    /// that none can have, or not to be opened.
    pub fn open(path: &Path, size: Option<u64>, dry_run: bool) -> Result<Target, Failure> {
        if let Some(len) = size {
            check_size(path, len)?;
        }
        // Whose it is stands among the objections, which `-f` overrides.
        let options = RegionOptions::new().read_only(dry_run).whoever_owns(true);
        let way = match PathWalk::to(path) {
            Ok(way) => Some(way),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(e) => return Err(Failure::os("cannot look at", path, e)),
        };
        let (meta, mut doubts) = match way {
            Some(PathWalk {
                found: Some(meta),
                doubts,
                ..
            }) => (meta, doubts),
            missing => return Target::missing(path, size, missing),
        };
        let mut target = |len, state, ownership: Option<Ownership>| {
            let ownership = ownership.filter(|o| o.object() == (meta.dev(), meta.ino()));
            let Some(ownership) = ownership else {
                return Err(Failure::new(
                    "replaced",
                    format!(
                        "{}: was replaced by something else while it was being opened; look at who can do that",
                        shown(path)
                    ),
                ));
            };
            doubts.extend(others(path, &ownership));
            Ok(Target {
                path: path.to_owned(),
                len,
                state,
                found: Vec::new(),
                doubts: std::mem::take(&mut doubts),
            })
        };
        if meta.is_file() {
            busy::check_file(path)?;
            match size {
                None if meta.len() == 0 => return Err(no_size(path, "is empty")),
                Some(len) if len != meta.len() => {
                    check_size(path, len)?;
                    let file = lock_file(path, dry_run)?;
                    let look = |e| Failure::os("cannot look at", path, e);
                    let ownership = Ownership::of(&file).map_err(look)?;
                    let from = file.metadata().map_err(look)?.len();
                    return target(len, State::Resize { file, from }, Some(ownership));
                }
                _ => check_size(path, meta.len())?,
            }
        }
        let device = meta.file_type().is_block_device() || meta.file_type().is_char_device();
        let region = match size {
            Some(len) if device && !dry_run => options.create(path, len),
            _ => options.open(path),
        }
        .map_err(|e| busy::with_mount_point(path, e.into()))?;
        let len = size.unwrap_or(region.len());
        check_size(path, len)?;
        if len > region.len() {
            return Err(Failure::new(
                "size",
                format!(
                    "{}: the device has {}, less than the {} asked for",
                    shown(path),
                    human(region.len()),
                    human(len)
                ),
            ));
        }
        let ownership = region.ownership();
        target(len, State::Region(region), ownership)
    }

    /// Without a way, a directory on it is missing as well.
    fn missing(path: &Path, size: Option<u64>, way: Option<PathWalk>) -> Result<Target, Failure> {
        // A name among the devices, say.
        if let Ok(Some(why)) = probe(path).map(|report| report.problem) {
            return Err(Failure::new("not-found", format!("{}: {why}", shown(path))));
        }
        if path.is_symlink() {
            return Err(Failure::new(
                "not-found",
                format!(
                    "{}: is a symbolic link that leads nowhere; name the file itself",
                    shown(path)
                ),
            ));
        }
        let Some(len) = size else {
            return Err(no_size(path, "does not exist"));
        };
        let Some(way) = way else {
            let parent = path
                .parent()
                .filter(|p| !p.as_os_str().is_empty())
                .unwrap_or(Path::new("."));
            return Err(Failure::new(
                "not-found",
                format!(
                    "{}: there is no directory {} to make it in",
                    shown(path),
                    shown(parent)
                ),
            ));
        };
        Ok(Target {
            path: path.to_owned(),
            len,
            state: State::Missing(way.place),
            found: Vec::new(),
            doubts: way.doubts,
        })
    }

    /// Bytes that the file system will have.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether a file is made.
    pub fn creates(&self) -> bool {
        matches!(self.state, State::Missing(_))
    }

    /// What was found, after [`objections`](Self::objections).
    pub fn found(&self) -> &[Found] {
        &self.found
    }

    /// Everything that speaks against going on without `-f`.
    ///
    /// # Errors
    /// blkid(8) failed.
    pub fn objections(&mut self) -> Result<Vec<Objection>, Failure> {
        let mut all = std::mem::take(&mut self.doubts);
        let name = shown(&self.path);
        let mapped = match &self.state {
            State::Missing(_) => return Ok(all),
            // No byte to lose.
            State::Resize { from: 0, .. } => return Ok(all),
            State::Resize { file, from } => {
                let effect = if self.len < *from {
                    "cutting off what lies behind"
                } else {
                    "adding a hole"
                };
                all.push(Objection {
                    sentence: format!(
                        "{name} exists and has {from} bytes, not {}; it would be resized, {effect}",
                        self.len
                    ),
                    reason: "other-size",
                });
                self.found.extend(contents::ours_by_magic(file));
                None
            }
            State::Region(region) => {
                self.found.extend(contents::ours(region));
                Some(region)
            }
        };
        let devdax = std::fs::metadata(&self.path).is_ok_and(|m| m.file_type().is_char_device());
        let asked = if devdax {
            Foreign::NoBlkid
        } else {
            contents::foreign(&self.path)?
        };
        match asked {
            Foreign::Nothing => {}
            // What is left of a signature under a file system of ours is ours to ignore.
            Foreign::Known(found) => self.found.push(found),
            Foreign::NoBlkid
                if self.found.is_empty() && mapped.is_none_or(has_data_at_its_start) =>
            {
                let why = if devdax {
                    "blkid cannot read a devdax device"
                } else {
                    "blkid (package util-linux) is not installed"
                };
                self.found.push(Found {
                    usage: "unknown".into(),
                    kind: "data of unknown kind".into(),
                    note: Some(why.into()),
                    ..Found::default()
                });
            }
            Foreign::NoBlkid => {}
        }
        all.extend(self.found.iter().map(|f| Objection {
            sentence: format!("{name} contains {}", f.sentence()),
            reason: "exists",
        }));
        Ok(all)
    }

    /// Makes the file if there is none, gives it its length, clears foreign
    /// signatures, and hands the region over.
    ///
    /// # Errors
    /// Those of the system.
    pub fn prepare(self, discard: bool) -> Result<Region, Failure> {
        let wipe = self.found.iter().any(Found::is_foreign);
        let region = match self.state {
            // Only a file that is new: one that has come meanwhile is somebody's.
            State::Missing(place) => place.make(&self.path, self.len)?,
            State::Region(region) => region,
            State::Resize { file, .. } => {
                file.set_len(self.len)
                    .map_err(|e| Failure::os("cannot resize", &self.path, e))?;
                RegionOptions::new().from_fd(OwnedFd::from(file), &self.path.to_string_lossy())?
            }
        };
        let w = region.window();
        if discard {
            w.discard(0, self.len)
                .map_err(|e| Failure::os("cannot give back the memory of", &self.path, e))?;
        }
        if wipe {
            let ends = WIPED.min(self.len);
            let pending = w.nt_zero(0, ends)?.join(w.nt_zero(self.len - ends, ends)?);
            let _ = w.fence(pending);
        }
        Ok(region)
    }
}

/// What speaks against a file or device that is not in the caller's hands alone.
fn others(path: &Path, ownership: &Ownership) -> Option<Objection> {
    let why = ownership.objection(rustix::process::geteuid().as_raw())?;
    Some(Objection {
        sentence: format!(
            "{} {why}: whoever may write a region may write all files in it",
            shown(path)
        ),
        reason: "others-may-write",
    })
}

fn no_size(path: &Path, what: &str) -> Failure {
    Failure::new(
        "not-found",
        format!(
            "{0}: {what}; give a size to make a region of it, as in: mkfs.pramfs {0} 1G",
            shown(path)
        ),
    )
}

fn check_size(path: &Path, len: u64) -> Result<(), Failure> {
    let no = |why: String| Err(Failure::new("size", format!("{}: {why}", shown(path))));
    if len < MIN_REGION {
        return no(format!(
            "{len} bytes are too few: the smallest file system has {MIN_REGION} bytes (256K)"
        ));
    }
    if !len.is_multiple_of(REGION_UNIT) {
        return no(format!(
            "{len} bytes are no multiple of {REGION_UNIT}, as the size of a region must be; the next smaller is {}",
            len / REGION_UNIT * REGION_UNIT
        ));
    }
    Ok(())
}

/// With no blkid to ask, zeros count as nothing and everything else as data.
fn has_data_at_its_start(region: &Region) -> bool {
    let mut bytes = vec![0; MIN_REGION.min(region.len()) as usize];
    region.read(0, &mut bytes).is_err() || bytes.iter().any(|&b| b != 0)
}

fn lock_file(path: &Path, read_only: bool) -> Result<File, Failure> {
    let file = File::options()
        .read(true)
        .write(!read_only)
        .open(path)
        .map_err(|e| Failure::os("cannot open", path, e))?;
    let lock = || rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
    match open_when_unlocked(path, lock, |error| *error == Errno::WOULDBLOCK) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => {
            // Opened the ordinary way it is refused with the holder's name.
            let named = RegionOptions::new()
                .read_only(true)
                .open(path)
                .err()
                .map(Failure::from);
            let plain = || {
                Failure::new(
                    "in-use",
                    format!("{}: the region is in use by another process", shown(path)),
                )
            };
            Err(busy::with_mount_point(
                path,
                named.filter(|f| f.reason == "in-use").unwrap_or_else(plain),
            ))
        }
        Err(e) => Err(Failure::os("cannot lock", path, e)),
    }
}
