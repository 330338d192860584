//! `pramfs defrag`: moves scattered files into leaves of 2 MiB.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use pramfs_medium::pmem::Gathered;
use pramfs_medium::size::human;
use serde::Serialize;

use super::missed::Missed;
use super::place::{FileAt, Place};
use super::{Lies, Spread, Subcommand, lies};
use crate::failure::shown;
use crate::open::Intent;
use crate::{Failure, output, tree};

/// Rounds, of which each may make the free leaves that the next one needs.
const ROUNDS: usize = 4;
/// Files that are named for each reason.
const NAMED: usize = 20;

#[derive(Debug, Args)]
#[command(
    after_help = "A file that is mapped, leased or immutable is left, and named. Each part of 2 MiB is moved by\n\
    itself: the command may be interrupted at any time, and a crash loses nothing.\n\n\
    Exit status: 0 success, 1 failure, or a file could not be examined, 2 wrong usage."
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
    /// Free leaves.
    free_leaves: u64,
    left: BTreeMap<&'static str, Left>,
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
        report.missed.end()
    }
}

impl Report {
    fn print(&self) -> Result<(), Failure> {
        output::line(&format!(
            "{}: {} of {} files moved; {:.1} % of the parts of 2 MiB lie in leaves, before {:.1} %; {} free leaves",
            self.place,
            human(self.moved),
            self.files,
            self.after.share(),
            self.before.share(),
            self.free_leaves
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
        let leaf = free.leaf * free.block_size;
        let mut report = Report {
            place: shown(&self.place),
            moved: 0,
            files: 0,
            before: Spread::default(),
            after: Spread::default(),
            free_leaves: 0,
            left: BTreeMap::new(),
            missed: Missed::default(),
        };
        for round in 0..ROUNDS {
            let moved = report.moved;
            report.after = Spread::default();
            report.left.clear();
            let mut missed = Missed::default();
            place.each_file(&mut missed, &mut |path, file| {
                let extents = file.extents(path)?;
                if round == 0 {
                    report.before.add(&extents, leaf);
                }
                let end = extents.last().map_or(0, |last| last.file_offset + last.len);
                let parts = (0..end / leaf).map(|part| part * leaf);
                let scattered = parts.filter(|at| lies(&extents, *at, leaf) == Lies::Scattered);
                let before = report.moved;
                report.parts(path, file, scattered, leaf)?;
                match report.moved == before {
                    true => report.after.add(&extents, leaf),
                    false => {
                        report.files += 1;
                        report.after.add(&file.extents(path)?, leaf)
                    }
                };
                Ok(())
            })?;
            report.missed = missed;
            if report.moved == moved || !report.left.contains_key(NO_SPACE) {
                break;
            }
        }
        report.free_leaves = place.free()?.leaves;
        Ok(report)
    }
}

const NO_SPACE: &str = "no free leaf";

impl Report {
    /// Moves parts of a file, but for those that cannot be moved.
    fn parts(
        &mut self,
        path: &[u8],
        file: &FileAt<'_>,
        parts: impl Iterator<Item = u64>,
        leaf: u64,
    ) -> Result<(), Failure> {
        // Each reason is named once for a file.
        let mut told: Vec<&str> = Vec::new();
        for at in parts {
            let mut is_of_part = false;
            let why = match file.gather(path, at) {
                Ok(Gathered::Moved) => {
                    self.moved += leaf;
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
                Ok(Gathered::Unsummed) => "without checksums yet",
                Ok(Gathered::NoSpace) => NO_SPACE,
                // What the file system is in cannot be right for the next file either.
                Err(failure) if ["read-only", "permission"].contains(&failure.reason) => {
                    return Err(failure);
                }
                Err(failure) => {
                    eprintln!("pramfs: warning: {}", failure.message);
                    is_of_part = true;
                    "failed"
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
