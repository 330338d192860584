//! What a check hands back: findings in the order in which they were made,
//! and counts of what was looked at.

use std::fmt;
use std::time::Duration;

use super::issue::{Issue, Severity};
use super::outcome::{Done, Loss};

/// What became of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Nothing was tried: a check only, or the policy does not allow it.
    Left,
    /// It was mended.
    Fixed,
    /// Whoever was asked said no.
    Declined,
    /// It could not be mended.
    Failed,
    /// Mending it needs free blocks, and there are not enough.
    NoSpace,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is.
    pub issue: Issue,
    /// What became of it.
    pub outcome: Outcome,
    /// What was done about it, where it was mended.
    pub done: Option<Done>,
    /// A path of the inode that it is about, where one is known; filled in by
    /// a repair.
    pub path: Option<Vec<u8>>,
    /// It came to light only as something else was mended.
    pub later: bool,
    pub(super) asked: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.severity, self.issue)
    }
}

/// What a file system holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Blocks of the region.
    pub blocks: u64,
    /// Blocks in use, those of the format included.
    pub used_blocks: u64,
    /// Bytes of a block.
    pub block_size: u64,
    /// Inodes in use by files, directories and the rest.
    pub inodes: u64,
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Devices, pipes and sockets.
    pub special: u64,
    /// Entries of directories.
    pub entries: u64,
    /// Extended attributes.
    pub xattrs: u64,
    /// Inodes without a name that the next mount frees.
    pub orphans: u64,
    /// Files whose truncation the next mount finishes.
    pub truncations: u64,
    /// Blocks in use that lie, or may lie, behind what is damaged: whether
    /// they are leaked cannot be told.
    pub hidden_blocks: u64,
    /// Inodes that have, or may have, a name behind what is damaged.
    pub hidden_inodes: u64,
}

/// The result of a check.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// What was found, in the order of the checks.
    pub findings: Vec<Finding>,
    /// Findings beyond [`CheckOptions::max_findings`](super::CheckOptions::max_findings).
    pub dropped: u64,
    /// Whether every check was made. False after a fatal finding, and where
    /// the journal has to be replayed first.
    pub complete: bool,
    /// What was looked at.
    pub counts: Counts,
    /// Journal records of a crash that were replayed first, on the medium by a
    /// repair that stored something, in memory otherwise.
    pub replayed: u64,
    /// Journal records that a crash left and that name what no record may: they
    /// are not replayed, and what they leave half done is found.
    pub refused: u64,
    /// What a repair has lost, and what it kept of what had no owner.
    pub lost: Vec<Loss>,
    /// Ranges of files that are marked as lost, by this repair or an earlier one:
    /// they are EIO until they are written. That is no damage.
    pub marked: Vec<Loss>,
    /// Bytes that a repair has stored; 0: the medium is as it was.
    pub stored: u64,
    /// Whoever was asked wanted to end: nothing was stored.
    pub cancelled: bool,
    /// How long it took.
    pub time: Duration,
}

impl Report {
    /// Nothing was found and nothing was left out.
    pub fn is_clean(&self) -> bool {
        self.complete && self.findings.is_empty()
    }

    /// Everything was looked at, and no error is left: what was found was
    /// mended, or is a warning.
    pub fn is_sound(&self) -> bool {
        self.complete && self.dropped == 0 && self.left().all(|f| f.severity < Severity::Error)
    }

    /// Findings that were not mended.
    pub fn left(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|f| f.outcome != Outcome::Fixed)
    }

    /// Findings that were mended.
    pub fn fixed(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|f| f.outcome == Outcome::Fixed)
    }

    /// The worst severity found.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|f| f.severity).max()
    }

    /// The issues alone.
    pub fn issues(&self) -> impl Iterator<Item = &Issue> {
        self.findings.iter().map(|f| &f.issue)
    }

    /// Findings of a severity.
    pub fn count(&self, severity: Severity) -> usize {
        self.findings
            .iter()
            .filter(|f| f.severity == severity)
            .count()
    }

    pub(super) fn add(&mut self, issue: Issue, max: usize) {
        if self.findings.len() >= max {
            self.dropped += 1;
            return;
        }
        let severity = issue.severity();
        self.findings.push(Finding {
            severity,
            issue,
            outcome: Outcome::Left,
            done: None,
            path: None,
            later: false,
            asked: false,
        });
    }

    /// Adds a finding; gives its number.
    pub(super) fn add_finding(&mut self, finding: Finding) -> usize {
        self.findings.push(finding);
        self.findings.len() - 1
    }
}

/// A line for each finding, and a summary.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        for mark in &self.marked {
            writeln!(f, "note: {mark}, and read as EIO until they are written")?;
        }
        if self.dropped > 0 {
            writeln!(f, "... and {} more findings", self.dropped)?;
        }
        let c = &self.counts;
        if c.hidden_blocks + c.hidden_inodes > 0 {
            writeln!(
                f,
                "{} blocks and {} inodes could not be placed because of the damage above",
                c.hidden_blocks, c.hidden_inodes
            )?;
        }
        let state = match (self.complete, self.worst()) {
            (true, None) => "clean".to_owned(),
            (complete, _) => format!(
                "{} fatal, {} errors, {} warnings{}",
                self.count(Severity::Fatal),
                self.count(Severity::Error),
                self.count(Severity::Warning),
                if complete {
                    ""
                } else {
                    "; not checked to the end"
                }
            ),
        };
        write!(
            f,
            "{state}: {} files, {} directories, {} symlinks, {} others; {} of {} blocks of {} bytes in use; {:.3} s",
            c.files,
            c.directories,
            c.symlinks,
            c.special,
            c.used_blocks,
            c.blocks,
            c.block_size,
            self.time.as_secs_f64()
        )
    }
}
