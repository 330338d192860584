//! `pramfs defrag`: moves scattered files into leaves of 2 MiB, or into runs where there are no leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;

use clap::Args;
use pramfs_medium::pmem::Gathered;
use pramfs_medium::size::human;
use serde::Serialize;

use super::compact::Compacted;
use super::missed::Missed;
use super::place::{FileAt, Place};
use super::{Lies, NO_LEAVES, Parts, Spread, Subcommand, lies, share};
use crate::failure::shown;
use crate::open::Intent;
use crate::{Failure, output, tree};

/// Rounds, of which each may make the free leaves that the next one needs.
const ROUNDS: usize = 4;
/// Files that are named for each reason.
pub(super) const NAMED: usize = 20;
/// Why a file was left whose parts could not be moved because of an error.
pub(super) const FAILED: &str = "failed";

#[derive(Debug, Args)]
#[command(
    after_help = "If there are fewer free leaves than scattered parts, blocks of files are first moved out of leaves that\n\
    are at most half full. That is not done for one file, with --no-compact, or in a file system without leaves.\n\
    A file that is mapped, leased or immutable is left, and named. Each part of 2 MiB is moved by\n\
    itself: the command may be interrupted at any time, and a crash loses nothing.\n\n\
    Exit status: 0 success, 1 failure, or a file could not be examined or moved because of an error, 2 wrong usage."
)]
pub(in crate::commands) struct Defrag {
    /// Mount point, file on a mount, or file or device that holds the file system
    place: PathBuf,
    /// Move files into the free leaves that there are, and make none free
    #[arg(long)]
    no_compact: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Files that were left for one reason.
#[derive(Debug, Default, Serialize)]
struct Left {
    files: u64,
    /// Some of them.
    named: Vec<String>,
    /// The last one.
    #[serde(skip)]
    last: Vec<u8>,
}

/// Files that were left, by the reason.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(super) struct LeftFiles(BTreeMap<&'static str, Left>);

impl LeftFiles {
    /// Adds a file, once for each reason: all its parts come one after the other.
    pub(super) fn add(&mut self, why: &'static str, path: &[u8]) {
        let left = self.0.entry(why).or_default();
        if left.files > 0 && left.last == path {
            return;
        }
        left.files += 1;
        left.last = path.to_owned();
        if left.named.len() < NAMED {
            left.named.push(tree::name(path));
        }
    }

    pub(super) fn has(&self, why: &str) -> bool {
        self.0.contains_key(why)
    }

    /// Prints them for people.
    ///
    /// # Errors
    /// Those of standard output.
    pub(super) fn print(&self, what: &str) -> Result<(), Failure> {
        for (why, left) in &self.0 {
            for path in &left.named {
                output::line(&format!("{what}, {why}: {path}"))?;
            }
            let more = left.files.saturating_sub(left.named.len() as u64);
            if more > 0 {
                output::line(&format!("{what}, {why}: {more} more"))?;
            }
        }
        Ok(())
    }
}

#[derive(Debug, Serialize)]
struct Report {
    place: String,
    /// Bytes that were moved.
    moved: u64,
    files: u64,
    before: Spread,
    after: Spread,
    /// Bytes of a part.
    part: u64,
    /// Free leaves; `None` in a file system without leaves.
    free_leaves: Option<u64>,
    /// How free leaves were made; `None` if that was left out.
    compacted: Option<Compacted>,
    left: LeftFiles,
    /// Errors of the last round, one for each of some files.
    #[serde(skip)]
    failures: Vec<String>,
    /// By the last round, so that each file is named once.
    #[serde(flatten)]
    missed: Missed,
}

impl Subcommand for Defrag {
    const NAME: &'static str = "defrag";
    const ABOUT: &'static str = "Move scattered files into leaves of 2 MiB, mounted or not";

    fn run(&self) -> Result<(), Failure> {
        let place = Place::of(&self.place, Intent::Write)?;
        let done = self.work(&place);
        let closed = place.close(&self.place);
        // What went wrong first is said.
        let report = done.and_then(|report| closed.map(|()| report))?;
        match self.json {
            true => output::json(&report)?,
            false => report.print()?,
        }
        for failure in &report.failures {
            eprintln!("pramfs: {failure}");
        }
        report.missed.end()?;
        let compacted = report.compacted.as_ref();
        match report.left.has(FAILED) || compacted.is_some_and(Compacted::has_failed) {
            // The report names the files.
            true => Err(Failure::silent()),
            false => Ok(()),
        }
    }
}

impl Report {
    fn print(&self) -> Result<(), Failure> {
        let parts = Parts {
            len: self.part,
            are_leaves: self.free_leaves.is_some(),
        };
        output::line(&format!(
            "{}: {} of {} files moved; {}, before {:.1} %; {}",
            self.place,
            human(self.moved),
            self.files,
            share(&self.after, parts),
            self.before.share(),
            match self.free_leaves {
                Some(leaves) => format!("{leaves} free leaves"),
                None => NO_LEAVES.to_owned(),
            }
        ))?;
        if let Some(compacted) = &self.compacted {
            compacted.print()?;
        }
        self.left.print("left")?;
        self.missed.print()
    }
}

impl Defrag {
    /// Whether free leaves are made. That needs to know all files.
    fn compacts(&self, place: &Place, parts: Parts) -> bool {
        !self.no_compact && parts.are_leaves && matches!(place, Place::All { .. })
    }

    fn work(&self, place: &Place) -> Result<Report, Failure> {
        let free = place.free()?;
        let parts = Parts::of(&free);
        let no_space = match parts.are_leaves {
            true => "no free leaf",
            false => "no free run",
        };
        let mut report = Report {
            place: shown(&self.place),
            moved: 0,
            files: 0,
            before: Spread::default(),
            after: Spread::default(),
            part: parts.len,
            free_leaves: free.leaves,
            compacted: self.compacts(place, parts).then(Compacted::default),
            left: LeftFiles::default(),
            failures: Vec::new(),
            missed: Missed::default(),
        };
        let mut barred = BTreeSet::new();
        for round in 0..ROUNDS {
            let moved = report.moved;
            report.after = Spread::default();
            report.left = LeftFiles::default();
            report.failures.clear();
            let mut has_more = false;
            if let Some(compacted) = &mut report.compacted {
                has_more = compacted.run(place, parts, &mut barred, &mut report.failures)?;
            }
            let mut missed = Missed::default();
            place.each_file(&mut missed, &mut |path, file| {
                let extents = file.extents(path)?;
                if round == 0 {
                    report.before.add(&extents, parts);
                }
                let is_scattered =
                    |part: &Range<u64>| lies(&extents, part.clone(), parts) == Lies::Scattered;
                let scattered = parts.in_file(&extents).filter(is_scattered);
                let before = report.moved;
                report.parts(path, file, scattered, no_space)?;
                match report.moved == before {
                    true => report.after.add(&extents, parts),
                    false => {
                        report.files += 1;
                        report.after.add(&file.extents(path)?, parts)
                    }
                };
                Ok(())
            })?;
            report.missed = missed;
            let is_done = report.moved == moved && !has_more;
            if is_done || !report.left.has(no_space) {
                break;
            }
        }
        report.free_leaves = place.free()?.leaves;
        Ok(report)
    }
}

impl Report {
    /// Moves parts of a file, but for those that cannot be moved.
    fn parts(
        &mut self,
        path: &[u8],
        file: &FileAt<'_>,
        parts: impl Iterator<Item = Range<u64>>,
        no_space: &'static str,
    ) -> Result<(), Failure> {
        // Each reason is named once for a file.
        let mut told: Vec<&str> = Vec::new();
        for part in parts {
            let mut is_of_part = false;
            let why = match file.gather(path, part.start) {
                Ok(Gathered::Moved) => {
                    self.moved += part.end - part.start;
                    continue;
                }
                // It has changed meanwhile.
                Ok(Gathered::Whole | Gathered::Holes) => continue,
                Ok(Gathered::Mapped) => {
                    is_of_part = true;
                    "mapped"
                }
                Ok(Gathered::Leased) => "leased",
                Ok(Gathered::Immutable) => "immutable",
                Ok(Gathered::Unsummed) => {
                    is_of_part = true;
                    "without checksums yet"
                }
                Ok(Gathered::NoSpace) => no_space,
                // What the file system is in cannot be right for the next file either.
                Err(failure) if ["read-only", "permission"].contains(&failure.reason) => {
                    return Err(failure);
                }
                Err(failure) => {
                    if !told.contains(&FAILED) && self.failures.len() < NAMED {
                        self.failures.push(failure.message);
                    }
                    is_of_part = true;
                    FAILED
                }
            };
            if told.contains(&why) {
                continue;
            }
            told.push(why);
            self.left.add(why, path);
            if !is_of_part {
                break;
            }
        }
        Ok(())
    }
}
