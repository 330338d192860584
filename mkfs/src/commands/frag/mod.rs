//! `pramfs frag` and `pramfs defrag`: how scattered files and free space are, and moving files
//! into leaves of 2 MiB, or into runs in a file system without leaves.

mod compact;
mod defrag;
mod missed;
mod place;

use std::ops::Range;
use std::path::PathBuf;

use clap::Args;
use pramfs_medium::pmem::FreeRuns;
use pramfs_medium::size::human;
use pramfs_medium::types::FileExtent;
use serde::Serialize;

use super::Subcommand;
use crate::failure::shown;
use crate::open::Intent;
use crate::tree::Name;
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

/// The parts of files that can be moved by themselves, and how one should lie.
#[derive(Debug, Clone, Copy)]
struct Parts {
    /// Bytes of a part.
    len: u64,
    /// A part is a leaf of 2 MiB, so its run must be aligned. Otherwise any run is as good, and the
    /// last part of a file, which may be shorter, counts too.
    are_leaves: bool,
}

impl Parts {
    fn of(free: &FreeRuns) -> Parts {
        Parts {
            len: free.part * free.block_size,
            are_leaves: free.leaves.is_some(),
        }
    }

    /// Returns the parts of a file.
    fn in_file(self, extents: &[FileExtent]) -> impl Iterator<Item = Range<u64>> {
        let end = extents.last().map_or(0, |last| last.file_offset + last.len);
        let count = match self.are_leaves {
            true => end / self.len,
            false => end.div_ceil(self.len),
        };
        (0..count).map(move |i| i * self.len..end.min((i + 1) * self.len))
    }
}

/// How the data of files lie.
#[derive(Debug, Default, Clone, Copy, Serialize)]
struct Spread {
    files: u64,
    /// Runs of data in all of them.
    extents: u64,
    /// Bytes of data.
    bytes: u64,
    /// Bytes in parts without holes: each could be a leaf, or one run where there are no leaves.
    large_bytes: u64,
    /// Bytes of them that are one.
    leaf_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Scattered {
    path: Name,
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
    /// Bytes of a part: those of a leaf, where there are leaves.
    leaf: u64,
    block_size: u64,
    /// Free bytes.
    free: u64,
    /// Free leaves; `None` in a file system without leaves.
    free_leaves: Option<u64>,
    free_runs: Vec<Run>,
    #[serde(flatten)]
    missed: Missed,
}

impl Spread {
    fn add(&mut self, extents: &[FileExtent], parts: Parts) -> (u64, u64) {
        let data: Vec<_> = runs(extents).collect();
        let (count, bytes) = (data.len() as u64, data.iter().map(|run| run.2).sum());
        self.files += 1;
        self.extents += count;
        self.bytes += bytes;
        for part in parts.in_file(extents) {
            let len = part.end - part.start;
            match lies(extents, part, parts) {
                Lies::Whole => {
                    self.large_bytes += len;
                    self.leaf_bytes += len;
                }
                Lies::Scattered => self.large_bytes += len,
                Lies::Holes => {}
            }
        }
        (count, bytes)
    }

    /// Share of the parts that lie as they should, in percent.
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
    /// In one run, which is aligned where there are leaves.
    Whole,
    /// In several, or in one that is not aligned.
    Scattered,
    /// It has holes, or blocks that were never written.
    Holes,
}

fn lies(extents: &[FileExtent], part: Range<u64>, parts: Parts) -> Lies {
    let from = extents.partition_point(|e| e.file_offset + e.len <= part.start);
    let (mut at, mut is_whole) = (part.start, true);
    let mut first = None;
    for e in extents[from..]
        .iter()
        .take_while(|e| e.file_offset < part.end)
    {
        let Some(place) = e
            .region_offset
            .filter(|_| !e.unwritten && e.file_offset <= at)
        else {
            return Lies::Holes;
        };
        let here = place + (at - e.file_offset);
        let base = *first.get_or_insert(here);
        let is_aligned = !parts.are_leaves || base % parts.len == 0;
        is_whole &= here == base + (at - part.start) && is_aligned;
        at = e.file_offset + e.len;
    }
    match (at >= part.end, is_whole) {
        (false, _) => Lies::Holes,
        (true, true) => Lies::Whole,
        (true, false) => Lies::Scattered,
    }
}

/// Says how many of the parts lie as they should.
fn share(spread: &Spread, parts: Parts) -> String {
    let (len, share) = (human(parts.len), spread.share());
    match parts.are_leaves {
        true => format!("{share:.1} % of the parts of {len} lie in leaves"),
        false => format!("{share:.1} % of the parts of {len} lie in one run"),
    }
}

/// Why parts need no leaves.
const NO_LEAVES: &str = "this file system has no leaves of 2 MiB, which need blocks of 4096 bytes and mkfs.pramfs -O huge_leaves";

impl Subcommand for Frag {
    const NAME: &'static str = "frag";
    const ABOUT: &'static str = "Show how scattered files and free space are";

    fn run(&self) -> Result<(), Failure> {
        let place = Place::of(&self.place, Intent::Read)?;
        let free = place.free()?;
        let parts = Parts::of(&free);
        let (mut spread, mut worst) = (Spread::default(), Vec::new());
        let mut missed = Missed::default();
        place.each_file(&mut missed, &mut |path, file| {
            let (extents, bytes) = spread.add(&file.extents(path)?, parts);
            if extents > 1 {
                worst.push(Scattered {
                    path: path.into(),
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
            leaf: Parts::of(free).len,
            block_size: free.block_size,
            free: free.blocks * free.block_size,
            free_leaves: free.leaves,
            free_runs: (0..).zip(&free.runs).filter_map(used).collect(),
            missed,
        }
    }

    fn print(&self) -> Result<(), Failure> {
        let s = &self.spread;
        let parts = Parts {
            len: self.leaf,
            are_leaves: self.free_leaves.is_some(),
        };
        output::line(&format!(
            "{}: {} files, {} of data in {} extents, {:.2} a file",
            self.place,
            s.files,
            human(s.bytes),
            s.extents,
            s.extents as f64 / s.files.max(1) as f64
        ))?;
        output::line(&format!(
            "{}, which have {}",
            share(s, parts),
            human(s.large_bytes)
        ))?;
        match self.free_leaves {
            Some(leaves) => output::line(&format!(
                "{} free, {leaves} free leaves of {}",
                human(self.free),
                human(self.leaf)
            ))?,
            None => output::line(&format!("{} free; {NO_LEAVES}", human(self.free)))?,
        }
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

    const LEAVES: Parts = Parts {
        len: 100,
        are_leaves: true,
    };
    const RUNS: Parts = Parts {
        are_leaves: false,
        ..LEAVES
    };

    #[test]
    fn part_is_a_leaf_only_in_one_aligned_run() {
        let of = |extents: &[FileExtent]| lies(extents, 100..200, LEAVES);
        assert_eq!(of(&[extent(0, Some(1000), 300)]), Lies::Whole);
        assert_eq!(of(&[extent(0, Some(1050), 300)]), Lies::Scattered);
        let two = [extent(0, Some(1000), 150), extent(150, Some(1150), 50)];
        assert_eq!(of(&two), Lies::Whole);
        let two = [extent(0, Some(1000), 150), extent(150, Some(2000), 50)];
        assert_eq!(of(&two), Lies::Scattered);
        let hole = [extent(0, Some(1000), 150), extent(150, None, 50)];
        assert_eq!(of(&hole), Lies::Holes);
        assert_eq!(of(&[extent(0, Some(1000), 150)]), Lies::Holes);
        assert_eq!(of(&[]), Lies::Holes);
    }

    #[test]
    fn part_without_leaves_is_whole_in_any_run_and_the_last_one_counts() {
        let unaligned = [extent(0, Some(1050), 250)];
        let ranges: Vec<_> = RUNS.in_file(&unaligned).collect();
        assert_eq!(ranges, [0..100, 100..200, 200..250]);
        assert_eq!(LEAVES.in_file(&unaligned).count(), 2);
        for part in ranges {
            assert_eq!(lies(&unaligned, part, RUNS), Lies::Whole);
        }
        let two = [extent(0, Some(1050), 220), extent(220, Some(90), 30)];
        assert_eq!(lies(&two, 200..250, RUNS), Lies::Scattered);
        assert_eq!(lies(&two, 100..200, RUNS), Lies::Whole);
        let mut spread = Spread::default();
        spread.add(&two, RUNS);
        assert_eq!((spread.large_bytes, spread.leaf_bytes), (250, 200));
        assert_eq!(RUNS.in_file(&[]).count(), 0);
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
