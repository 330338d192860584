//! What a run of the explorer gives: counts, or the story of an image that
//! nothing explains.

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use pramfs_medium::media::Geometry;
use pramfs_medium::media::superblock::PAGE;
use pramfs_medium::types::RegionOffset;
use serde::{Deserialize, Serialize};

use super::images::Coverage;
use super::machine::Uncertain;
use super::setup::Setup;

/// Counts of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Workloads run.
    pub workloads: u64,
    /// Sequences left out because an operation of theirs does not apply.
    pub left_out: u64,
    /// Operations that were to be crashed and were refused.
    pub refused: u64,
    /// Moments at which the power failed: fences and returns.
    pub points: u64,
    /// Images that were built at them.
    pub images: u64,
    /// Those that were unlike every other, and were mounted.
    pub distinct: u64,
    /// Those of crashed recoveries that were unlike every other.
    pub recovery_distinct: u64,
    /// Media that they recovered to, each checked and used.
    pub media: u64,
    /// Recoveries that were crashed themselves.
    pub recoveries: u64,
    /// Images built in them.
    pub recovery_images: u64,
    /// Moments by how much of what is possible was looked at: everything, all
    /// subsets of lines, all pairs, some pairs.
    pub coverage: [u64; 4],
    /// The most lines that were uncertain at a moment.
    pub most_lines: u64,
    /// Processor time of all workers together.
    pub worked: Duration,
}

impl Summary {
    /// Notes how a moment was covered.
    pub fn covered(&mut self, how: Coverage, lines: usize) {
        let i = match how {
            Coverage::Everything => 0,
            Coverage::Subsets => 1,
            Coverage::Pairs => 2,
            Coverage::SomePairs => 3,
        };
        self.coverage[i] += 1;
        self.most_lines = self.most_lines.max(lines as u64);
    }

    /// Images mounted for each minute of each core.
    pub fn rate(&self) -> f64 {
        (self.distinct + self.recovery_distinct) as f64 * 60.0 / self.worked.as_secs_f64().max(1e-9)
    }

    /// A row of the table in `docs/crash-testing.md`.
    pub fn row(&self, name: &str) -> String {
        format!(
            "| {name} | {} | {} | {} | {} | {} | {} | {} | {} | {:.0} |",
            self.workloads,
            self.points,
            self.images,
            self.distinct,
            self.recoveries,
            self.recovery_images,
            self.recovery_distinct,
            self.media,
            self.worked.as_secs_f64()
        )
    }

    /// Head of the table.
    pub const HEAD: &str = "| run | workloads | crash points | images | distinct | \
        recoveries crashed | images | distinct | media | core seconds |\n\
        |---|---|---|---|---|---|---|---|---|---|";
}

impl AddAssign for Summary {
    fn add_assign(&mut self, s: Summary) {
        self.workloads += s.workloads;
        self.left_out += s.left_out;
        self.refused += s.refused;
        self.points += s.points;
        self.images += s.images;
        self.distinct += s.distinct;
        self.media += s.media;
        self.recoveries += s.recoveries;
        self.recovery_images += s.recovery_images;
        self.recovery_distinct += s.recovery_distinct;
        for (a, b) in self.coverage.iter_mut().zip(s.coverage) {
            *a += b;
        }
        self.most_lines = self.most_lines.max(s.most_lines);
        self.worked += s.worked;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = self.coverage;
        writeln!(
            f,
            "{} workloads ({} sequences do not apply, {} last operations were refused), {} crash points with up to {} uncertain lines",
            self.workloads, self.left_out, self.refused, self.points, self.most_lines
        )?;
        writeln!(
            f,
            "  of them {} with every possible image, {} with every subset of lines, {} with lines, pairs and complements, {} with a choice of those",
            c[0], c[1], c[2], c[3]
        )?;
        writeln!(
            f,
            "{} images, {} of them distinct; {} recoveries crashed, with {} images, {} of them distinct; all recovered to {} media",
            self.images,
            self.distinct,
            self.recoveries,
            self.recovery_images,
            self.recovery_distinct,
            self.media
        )?;
        write!(
            f,
            "{:.1} core seconds: {:.0} images mounted for each minute of a core",
            self.worked.as_secs_f64(),
            self.rate()
        )
    }
}

/// An image that nothing explains.
#[derive(Debug, Clone)]
pub struct Counterexample {
    /// The workload, by which it is found again.
    pub workload: String,
    /// Where it ran, and how.
    pub setup: Setup,
    /// When the power failed.
    pub moment: String,
    /// What of the uncertain lines was on the medium.
    pub lines: Vec<String>,
    /// What is wrong.
    pub problem: String,
    /// The seed.
    pub seed: u64,
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "workload: {}", self.workload)?;
        if let Some(block_size) = self.setup.block_size {
            writeln!(f, "blocks of {block_size} bytes")?;
        }
        writeln!(f, "the power fails {}", self.moment)?;
        for line in &self.lines {
            writeln!(f, "  {line}")?;
        }
        writeln!(f, "{}", self.problem)?;
        write!(
            f,
            "again: cargo run --release -p pramfs-tests --bin crash-explorer -- --workload '{}' --seed {} {}",
            self.workload, self.seed, self.setup
        )
    }
}

/// What stands at an offset.
fn place(geo: &Geometry, at: u64) -> String {
    for (page, name) in [
        (0, "superblock"),
        (geo.copy_offset.0, "copy of the superblock"),
    ] {
        if (page..page + PAGE).contains(&at) {
            return format!("{name} + {:#x}", at - page);
        }
    }
    if (geo.journal_offset.0..geo.journal_offset.0 + geo.journal_len).contains(&at) {
        for lane in 0..geo.lanes {
            for slot in 0..2 {
                let from = geo.slot_offset(lane, slot).0;
                if (from..from + geo.slot_size).contains(&at) {
                    return format!("record in lane {lane}, slot {slot} + {:#x}", at - from);
                }
            }
        }
        return format!("journal + {:#x}", at - geo.journal_offset.0);
    }
    format!(
        "block {} + {:#x}",
        geo.block_at(RegionOffset(at)).0,
        at % geo.block_size
    )
}

/// Which of the uncertain lines are on the medium, in words.
pub fn lines(geo: &Geometry, uncertain: &[Uncertain], choice: &[u16]) -> Vec<String> {
    let mut out = Vec::new();
    let mut counts = [0; 2];
    let mut none = Vec::new();
    for (l, v) in uncertain.iter().zip(choice) {
        let last = l.values.len() - 1;
        let at = place(geo, l.at as u64);
        match usize::from(*v) {
            0 => {
                counts[0] += 1;
                none.push(at);
            }
            v if v == last => {
                counts[1] += 1;
                out.push(format!("stored: {at}"));
            }
            v => {
                let words: Vec<usize> = (0..8)
                    .filter(|w| l.values[v][w * 8..w * 8 + 8] != l.values[0][w * 8..w * 8 + 8])
                    .collect();
                out.push(format!("torn: {at}: of the stores only words {words:?}"));
            }
        }
    }
    if out.len() > 12 && none.len() <= 12 {
        out.retain(|l| l.starts_with("torn"));
        out.push(format!("all {} others are stored, but not:", counts[1]));
        out.extend(none.iter().map(|at| format!("lost: {at}")));
    } else {
        out.push(format!("lost: the other {} uncertain lines", counts[0]));
    }
    out
}
