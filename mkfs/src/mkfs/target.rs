//! The target of mkfs: opened and locked before it is examined, examined before
//! it is changed.
//!
//! Invariant: before [`Target::prepare`], nothing is created, resized or written.
//! From [`Target::open`] on, an existing target is locked against other users, and
//! mkfs examines and uses the open descriptor, not the name: in a directory like
//! /dev/shm, a name may refer to another object at any moment. The descriptor is the
//! one that the path walk reached through checked links. A missing target is created
//! exclusively at the end of that walk.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use pramfs_medium::media::lease::refuse_if_leased;
use pramfs_medium::media::superblock::MIN_REGION;
use pramfs_medium::pmem::{
    Ownership, REGION_UNIT, Region, RegionAccess, RegionOptions, is_physical, open_when_unlocked,
    probe, served_without_lock,
};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::path_walk::{NameAt, PathWalk};
use crate::failure::shown;
use crate::{Failure, busy};
use pramfs_contents::{self as contents, Contents, Foreign};
use pramfs_medium::size::human;

/// Bytes that are cleared at both ends if a foreign signature was found: more than
/// the distance from the ends of any known signature.
const WIPE_BYTES: u64 = 1 << 20;

/// A file or device that is to become a file system.
pub(crate) struct Target {
    path: PathBuf,
    len: u64,
    state: State,
    found: Vec<Contents>,
    /// Objections to the path and to its owner.
    doubts: Vec<Objection>,
}

enum State {
    /// The file does not exist.
    Missing(NameAt),
    /// A locked region.
    Region(Region),
    /// A locked file whose length changes; it may be empty.
    Resize { file: File, from: u64 },
}

/// A reason to refuse without `-f`.
pub(crate) struct Objection {
    /// A sentence, without a full stop.
    pub sentence: String,
    /// Word for `--json`.
    pub reason: &'static str,
}

impl Target {
    /// Opens and locks `path`, for `size` bytes or its own length.
    ///
    /// # Errors
    /// It is in use, cannot hold a file system, has an impossible size, or cannot be
    /// opened.
    pub(crate) fn open(path: &Path, size: Option<u64>, dry_run: bool) -> Result<Target, Failure> {
        if let Some(len) = size {
            check_size(path, len)?;
        }
        // The owner is one of the objections, which `-f` overrides.
        let options = RegionOptions::new().read_only(dry_run).whoever_owns(true);
        if is_physical(path) {
            return Target::physical(path, size, dry_run, &options);
        }
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
                        "{}: was replaced while it was being opened; check who can write its directory",
                        shown(path)
                    ),
                ));
            };
            doubts.extend(ownership_objection(path, &ownership));
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

    /// A range of physical memory: no name that others could replace.
    fn physical(
        path: &Path,
        size: Option<u64>,
        dry_run: bool,
        options: &RegionOptions,
    ) -> Result<Target, Failure> {
        let region = match size {
            Some(len) if !dry_run => options.create(path, len),
            _ => options.open(path),
        }?;
        let len = size.unwrap_or(region.len());
        check_size(path, len)?;
        if len > region.len() {
            return Err(Failure::new(
                "size",
                format!("{}: is smaller than {}", shown(path), human(len)),
            ));
        }
        let doubts = region
            .ownership()
            .and_then(|ownership| ownership_objection(path, &ownership));
        Ok(Target {
            path: path.to_owned(),
            len,
            state: State::Region(region),
            found: Vec::new(),
            doubts: doubts.into_iter().collect(),
        })
    }

    /// Handles a path that does not exist. Without `way`, one of its directories is
    /// missing too.
    fn missing(path: &Path, size: Option<u64>, way: Option<PathWalk>) -> Result<Target, Failure> {
        // The name of a device, for example.
        if let Ok(Some(why)) = probe(path).map(|report| report.problem) {
            return Err(Failure::new("not-found", format!("{}: {why}", shown(path))));
        }
        if path.is_symlink() {
            return Err(Failure::new(
                "not-found",
                format!(
                    "{}: is a dangling symbolic link; name the file itself",
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
                    "{}: its directory {} does not exist",
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

    /// Size of the future file system in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Whether the file is created.
    pub(crate) fn creates(&self) -> bool {
        matches!(self.state, State::Missing(_))
    }

    /// The contents found by [`objections`](Self::objections).
    pub(crate) fn found(&self) -> &[Contents] {
        &self.found
    }

    /// Collects all objections that take `-f`.
    ///
    /// # Errors
    /// blkid(8) failed.
    pub(crate) fn objections(&mut self) -> Result<Vec<Objection>, Failure> {
        let mut all = std::mem::take(&mut self.doubts);
        let name = shown(&self.path);
        let mapped = match &self.state {
            State::Missing(_) => return Ok(all),
            // An empty file has no contents to lose.
            State::Resize { from: 0, .. } => return Ok(all),
            State::Resize { file, from } => {
                let effect = if self.len < *from {
                    "cutting off the rest"
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
        let devdax = is_physical(&self.path)
            || std::fs::metadata(&self.path).is_ok_and(|m| m.file_type().is_char_device());
        let asked = if devdax {
            Foreign::NoBlkid
        } else {
            contents::foreign(&self.path)?
        };
        match asked {
            Foreign::Nothing => {}
            // Ignore a leftover signature under a pramfs file system.
            Foreign::Known(found) => self.found.push(found),
            Foreign::NoBlkid
                if self.found.is_empty() && mapped.is_none_or(has_data_at_its_start) =>
            {
                let why = if devdax {
                    "blkid cannot read memory"
                } else {
                    "blkid (package util-linux) is not installed"
                };
                self.found.push(Contents {
                    usage: "unknown".into(),
                    kind: "data of unknown kind".into(),
                    note: Some(why.into()),
                    ..Contents::default()
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

    /// Creates the file if it is missing, sets its length, clears foreign signatures,
    /// and returns the region.
    ///
    /// # Errors
    /// System errors.
    pub(crate) fn prepare(self, discard: bool) -> Result<Region, Failure> {
        let wipe = self.found.iter().any(Contents::is_foreign);
        let region = match self.state {
            // Only a new file: another process owns one that appeared meanwhile.
            State::Missing(place) => place.make(&self.path, self.len)?,
            State::Region(region) => {
                // Before anything is discarded or wiped.
                refuse_if_leased(&region).map_err(|e| Failure::about(shown(&self.path), e))?;
                region
            }
            State::Resize { file, .. } => {
                if let Ok(copy) = file.try_clone()
                    && let Ok(region) = (RegionOptions::new().read_only(true).lock(false))
                        .from_fd(OwnedFd::from(copy), &self.path.to_string_lossy())
                {
                    refuse_if_leased(&region).map_err(|e| Failure::about(shown(&self.path), e))?;
                }
                file.set_len(self.len)
                    .map_err(|e| Failure::os("cannot resize", &self.path, e))?;
                RegionOptions::new().from_fd(OwnedFd::from(file), &self.path.to_string_lossy())?
            }
        };
        let w = region.window();
        if discard {
            w.discard(0, self.len)
                .map_err(|e| Failure::os("cannot return the memory of", &self.path, e))?;
        }
        if wipe {
            let ends = WIPE_BYTES.min(self.len);
            let pending = w.nt_zero(0, ends)?.join(w.nt_zero(self.len - ends, ends)?);
            let _ = w.fence(pending);
        }
        drop(w);
        Ok(region)
    }
}

/// Objects to a file or device that other users may write.
fn ownership_objection(path: &Path, ownership: &Ownership) -> Option<Objection> {
    let why = ownership.objection(rustix::process::geteuid().as_raw())?;
    Some(Objection {
        sentence: format!(
            "{} {why}: a user with write access to a region can change all files in it",
            shown(path)
        ),
        reason: "others-may-write",
    })
}

fn no_size(path: &Path, what: &str) -> Failure {
    Failure::new(
        "not-found",
        format!(
            "{0}: {what}; give a size to make a region there, for example: mkfs.pramfs {0} 1G",
            shown(path)
        ),
    )
}

fn check_size(path: &Path, len: u64) -> Result<(), Failure> {
    let no = |why: String| Err(Failure::new("size", format!("{}: {why}", shown(path))));
    if len < MIN_REGION {
        return no(format!(
            "{len} bytes are too few; the minimum is {MIN_REGION} bytes (256K)"
        ));
    }
    if !len.is_multiple_of(REGION_UNIT) {
        return no(format!(
            "a size of {len} bytes is not a multiple of {REGION_UNIT}; the next smaller multiple is {}",
            len / REGION_UNIT * REGION_UNIT
        ));
    }
    Ok(())
}

/// Without blkid, treats zeros as empty and anything else as data.
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
        // A server of root can have another lock, if a reader had this one.
        Ok(()) => match served_without_lock(&file) {
            Ok(None) => Ok(file),
            Ok(Some(server)) => Err(Failure::new(
                "in-use",
                format!("{}: the region is in use by {server}", shown(path)),
            )),
            Err(e) => Err(Failure::os("cannot test the locks of", path, e)),
        },
        Err(Errno::WOULDBLOCK) => {
            // Opening it normally fails with the holder's name.
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
