//! `pramfs frag` and `pramfs defrag`: how scattered files and free space are, and moving files
//! into leaves of 2 MiB.

mod defrag;
mod missed;
mod place;

use std::path::PathBuf;

use clap::Args;
use pramfs_medium::pmem::FreeRuns;
use pramfs_medium::size::human;
use pramfs_medium::types::FileExtent;
use serde::Serialize;

use super::Subcommand;
use crate::failure::shown;
use crate::open::Intent;
use crate::{Failure, output};
pub(super) use defrag::Defrag;
use missed::Missed;
pub(super) use place::FileAt;
use place::Place;

/// Most scattered files that are listed.
const WORST: usize = 10;

#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 success, 1 failure, or a file could not be examined, 2 wrong usage."
)]
pub(super) struct Frag {
    /// Mount point, file on a mount, or file or device that holds the file system
    place: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// How the data of files lie.
#[derive(Debug, Default, Clone, Copy, Serialize)]
struct Spread {
    files: u64,
    /// Runs of data in all of them.
    extents: u64,
    /// Bytes of data.
    bytes: u64,
    /// Bytes in parts as long as a leaf, which could be one.
    large_bytes: u64,
    /// Bytes of them that lie in one aligned run.
    leaf_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Scattered {
    path: String,
    extents: u64,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct Run {
    /// Runs of at least so many blocks, and fewer than twice as many.
    blocks: u64,
    runs: u64,
}

#[derive(Debug, Serialize)]
struct Report {
    place: String,
    #[serde(flatten)]
    spread: Spread,
    worst: Vec<Scattered>,
    /// Bytes of a leaf.
    leaf: u64,
    block_size: u64,
    /// Free bytes.
    free: u64,
    /// Free leaves.
    free_leaves: u64,
    free_runs: Vec<Run>,
    #[serde(flatten)]
    missed: Missed,
}

impl Spread {
    fn add(&mut self, extents: &[FileExtent], leaf: u64) -> (u64, u64) {
        let data: Vec<_> = runs(extents).collect();
        let (count, bytes) = (data.len() as u64, data.iter().map(|run| run.2).sum());
        self.files += 1;
        self.extents += count;
        self.bytes += bytes;
        let end = extents.last().map_or(0, |last| last.file_offset + last.len);
        for part in 0..end / leaf {
            match lies(extents, part * leaf, leaf) {
                Lies::Leaf => {
                    self.large_bytes += leaf;
                    self.leaf_bytes += leaf;
                }
                Lies::Scattered => self.large_bytes += leaf,
                Lies::Holes => {}
            }
        }
        (count, bytes)
    }

    /// Share of the large parts that lie in leaves, in percent.
    fn share(&self) -> f64 {
        match self.large_bytes {
            0 => 100.0,
            all => self.leaf_bytes as f64 * 100.0 / all as f64,
        }
    }
}

/// Runs of data that follow each other in file and region: offset, place, bytes.
fn runs(extents: &[FileExtent]) -> impl Iterator<Item = (u64, u64, u64)> {
    let mut rest = extents.iter().peekable();
    std::iter::from_fn(move || {
        loop {
            let first = rest.next()?;
            let Some(place) = first.region_offset else {
                continue;
            };
            let mut len = first.len;
            while let Some(next) = rest.next_if(|next| {
                next.file_offset == first.file_offset + len
                    && next.region_offset == Some(place + len)
            }) {
                len += next.len;
            }
            return Some((first.file_offset, place, len));
        }
    })
}

/// How a part of a file lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lies {
    /// In one aligned run.
    Leaf,
    /// In several, or in one that is not aligned.
    Scattered,
    /// It has holes, or blocks that were never written.
    Holes,
}

fn lies(extents: &[FileExtent], offset: u64, leaf: u64) -> Lies {
    let end = offset + leaf;
    let from = extents.partition_point(|e| e.file_offset + e.len <= offset);
    let (mut at, mut is_leaf) = (offset, true);
    let mut first = None;
    for e in extents[from..].iter().take_while(|e| e.file_offset < end) {
        let Some(place) = e
            .region_offset
            .filter(|_| !e.unwritten && e.file_offset <= at)
        else {
            return Lies::Holes;
        };
        let here = place + (at - e.file_offset);
        let base = *first.get_or_insert(here);
        is_leaf &= here == base + (at - offset) && base % leaf == 0;
        at = e.file_offset + e.len;
    }
    match (at >= end, is_leaf) {
        (false, _) => Lies::Holes,
        (true, true) => Lies::Leaf,
        (true, false) => Lies::Scattered,
    }
}

impl Subcommand for Frag {
    const NAME: &'static str = "frag";
    const ABOUT: &'static str = "Show how scattered files and free space are";

    fn run(&self) -> Result<(), Failure> {
        let place = Place::of(&self.place, Intent::Read)?;
        let free = place.free()?;
        let leaf = free.leaf * free.block_size;
        let (mut spread, mut worst) = (Spread::default(), Vec::new());
        let mut missed = Missed::default();
        place.each_file(&mut missed, &mut |path, file| {
            let (extents, bytes) = spread.add(&file.extents(path)?, leaf);
            if extents > 1 {
                worst.push(Scattered {
                    path: crate::tree::name(path),
                    extents,
                    bytes,
                });
                worst.sort_by_key(|w| std::cmp::Reverse(w.extents));
                worst.truncate(WORST);
            }
            Ok(())
        })?;
        let report = Report::new(shown(&self.place), spread, worst, missed, &free);
        match self.json {
            true => output::json(&report)?,
            false => report.print()?,
        }
        report.missed.end()
    }
}

impl Report {
    fn new(
        place: String,
        spread: Spread,
        worst: Vec<Scattered>,
        missed: Missed,
        free: &FreeRuns,
    ) -> Report {
        let used = |(power, runs): (u32, &u64)| {
            (*runs > 0).then(|| Run {
                blocks: 1 << power,
                runs: *runs,
            })
        };
        Report {
            place,
            spread,
            worst,
            leaf: free.leaf * free.block_size,
            block_size: free.block_size,
            free: free.blocks * free.block_size,
            free_leaves: free.leaves,
            free_runs: (0..).zip(&free.runs).filter_map(used).collect(),
            missed,
        }
    }

    fn print(&self) -> Result<(), Failure> {
        let s = &self.spread;
        let leaf = human(self.leaf);
        output::line(&format!(
            "{}: {} files, {} of data in {} extents, {:.2} a file",
            self.place,
            s.files,
            human(s.bytes),
            s.extents,
            s.extents as f64 / s.files.max(1) as f64
        ))?;
        output::line(&format!(
            "{:.1} % of {} in parts of {leaf} lie in leaves of {leaf}",
            s.share(),
            human(s.large_bytes)
        ))?;
        output::line(&format!(
            "{} free, {} free leaves of {leaf}",
            human(self.free),
            self.free_leaves
        ))?;
        for run in &self.free_runs {
            output::line(&format!(
                "{:>12} free runs of {} and more",
                run.runs,
                human(run.blocks * self.block_size)
            ))?;
        }
        for file in &self.worst {
            output::line(&format!(
                "{:>12} extents, {}: {}",
                file.extents,
                human(file.bytes),
                file.path
            ))?;
        }
        self.missed.print()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(file_offset: u64, place: Option<u64>, len: u64) -> FileExtent {
        FileExtent {
            file_offset,
            region_offset: place,
            len,
            unwritten: false,
            lost: false,
        }
    }

    #[test]
    fn part_is_a_leaf_only_in_one_aligned_run() {
        let of = |extents: &[FileExtent]| lies(extents, 100, 100);
        assert_eq!(of(&[extent(0, Some(1000), 300)]), Lies::Leaf);
        assert_eq!(of(&[extent(0, Some(1050), 300)]), Lies::Scattered);
        let two = [extent(0, Some(1000), 150), extent(150, Some(1150), 50)];
        assert_eq!(of(&two), Lies::Leaf);
        let two = [extent(0, Some(1000), 150), extent(150, Some(2000), 50)];
        assert_eq!(of(&two), Lies::Scattered);
        let hole = [extent(0, Some(1000), 150), extent(150, None, 50)];
        assert_eq!(of(&hole), Lies::Holes);
        assert_eq!(of(&[extent(0, Some(1000), 150)]), Lies::Holes);
        assert_eq!(of(&[]), Lies::Holes);
    }

    #[test]
    fn extents_that_follow_each_other_are_one_run() {
        let list = [
            extent(0, Some(0), 10),
            extent(10, Some(10), 10),
            extent(20, None, 10),
            extent(30, Some(90), 10),
        ];
        let found: Vec<_> = runs(&list).collect();
        assert_eq!(found, [(0, 0, 20), (30, 90, 10)]);
    }
}
