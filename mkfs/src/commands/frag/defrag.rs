//! `pramfs defrag`: moves scattered files into leaves of 2 MiB, or into runs where there are no leaves.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use clap::Args;
use pramfs_medium::pmem::Gathered;
use pramfs_medium::size::human;
use serde::Serialize;

use super::missed::Missed;
use super::place::{FileAt, Place};
use super::{Lies, NO_LEAVES, Parts, Spread, Subcommand, lies, share};
use crate::failure::shown;
use crate::open::Intent;
use crate::{Failure, output, tree};

/// Rounds, of which each may make the free leaves that the next one needs.
const ROUNDS: usize = 4;
/// Files that are named for each reason.
const NAMED: usize = 20;
/// Why a file was left whose parts could not be moved because of an error.
const FAILED: &str = "failed";

#[derive(Debug, Args)]
#[command(
    after_help = "A file that is mapped, leased or immutable is left, and named. Each part of 2 MiB is moved by\n\
    itself: the command may be interrupted at any time, and a crash loses nothing.\n\n\
    Exit status: 0 success, 1 failure, or a file could not be examined or moved because of an error, 2 wrong usage."
)]
pub(in crate::commands) struct Defrag {
    /// Mount point, file on a mount, or file or device that holds the file system
    place: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Files that were left, and why.
#[derive(Debug, Default, Serialize)]
struct Left {
    files: u64,
    /// Some of them.
    named: Vec<String>,
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
    left: BTreeMap<&'static str, Left>,
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
        place.close(&self.place)?;
        let report = done?;
        match self.json {
            true => output::json(&report)?,
            false => report.print()?,
        }
        for failure in &report.failures {
            eprintln!("pramfs: {failure}");
        }
        report.missed.end()?;
        match report.left.contains_key(FAILED) {
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
        for (why, left) in &self.left {
            for path in &left.named {
                output::line(&format!("left, {why}: {path}"))?;
            }
            let more = left.files.saturating_sub(left.named.len() as u64);
            if more > 0 {
                output::line(&format!("left, {why}: {more} more"))?;
            }
        }
        self.missed.print()
    }
}

impl Defrag {
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
            left: BTreeMap::new(),
            failures: Vec::new(),
            missed: Missed::default(),
        };
        for round in 0..ROUNDS {
            let moved = report.moved;
            report.after = Spread::default();
            report.left.clear();
            report.failures.clear();
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
            if report.moved == moved || !report.left.contains_key(no_space) {
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
            let left = self.left.entry(why).or_default();
            left.files += 1;
            if left.named.len() < NAMED {
                left.named.push(tree::name(path));
            }
            if !is_of_part {
                break;
            }
        }
        Ok(())
    }
}
