//! The report of a check: findings in the order of the checks, and counts of
//! what was checked.

use std::fmt;
use std::time::Duration;

use super::findings::{Issue, Severity};
use super::outcome::{Done, Loss};

/// The outcome of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// No repair was tried: only a check, or the policy does not allow it.
    Left,
    /// It was repaired.
    Fixed,
    /// The answer to the question was no.
    Declined,
    /// It could not be repaired.
    Failed,
    /// The repair needs more free blocks than there are.
    NoSpace,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Its severity.
    pub severity: Severity,
    /// The damage, and where it is.
    pub issue: Issue,
    /// The action of the repair.
    pub outcome: Outcome,
    /// The action taken, if it was repaired.
    pub done: Option<Done>,
    /// A path of the inode that it concerns, if known. Only a repair sets it, and a check for
    /// data that do not match their checksum.
    pub path: Option<Vec<u8>>,
    /// It came to light only after another repair.
    pub later: bool,
    pub(super) asked: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.severity, self.issue)
    }
}

/// Counts of the contents of a file system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Blocks of the region.
    pub blocks: u64,
    /// Blocks in use, including those of the format.
    pub used_blocks: u64,
    /// Block size in bytes.
    pub block_size: u64,
    /// Inodes in use by files, directories and all other types.
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
    /// Orphans, which the next mount frees.
    pub orphans: u64,
    /// Files whose truncation the next mount finishes.
    pub truncations: u64,
    /// Leases, which the next mount adopts or ends.
    pub leases: u64,
    /// Blocks in use that are, or may be, behind damage: a check cannot tell
    /// whether they are leaked.
    pub hidden_blocks: u64,
    /// Inodes that have, or may have, a name behind damage.
    pub hidden_inodes: u64,
}

/// The result of a check.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Findings, in the order of the checks.
    pub findings: Vec<Finding>,
    /// Findings beyond [`CheckOptions::max_findings`](super::CheckOptions::max_findings).
    pub dropped: u64,
    /// Whether every check ran. False after a fatal finding, and if the journal
    /// must be replayed first.
    pub complete: bool,
    /// Counts of what was checked.
    pub counts: Counts,
    /// Journal records of a crash that were replayed first: on the medium if the
    /// repair stored something, else in memory.
    pub replayed: u64,
    /// Journal records of a crash that were not replayed, because at least one
    /// targets a place that no record may change. What they leave incomplete is
    /// a finding.
    pub refused: u64,
    /// Losses of a repair, and data without an owner that it kept.
    pub lost: Vec<Loss>,
    /// Ranges of files that this repair or an earlier one marked as lost: they
    /// are EIO until they are written. They are not damage.
    pub marked: Vec<Loss>,
    /// Bytes that a repair stored; 0 if the medium is unchanged.
    pub stored: u64,
    /// The answer to a question was cancel: nothing was stored.
    pub cancelled: bool,
    /// Pages failed that were not known to: what was read of them is no basis for a report.
    pub(crate) met_failure: bool,
    /// Duration.
    pub time: Duration,
}

impl Report {
    /// Whether the check is complete and has no findings.
    pub fn is_clean(&self) -> bool {
        self.complete && self.findings.is_empty()
    }

    /// Whether the check is complete and no error is left: every finding was
    /// repaired or is a warning.
    pub fn is_sound(&self) -> bool {
        self.complete && self.dropped == 0 && self.left().all(|f| f.severity < Severity::Error)
    }

    /// Returns the findings that were not repaired.
    pub fn left(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|f| f.outcome != Outcome::Fixed)
    }

    /// Returns the findings that were repaired.
    pub fn fixed(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|f| f.outcome == Outcome::Fixed)
    }

    /// Returns the worst severity.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|f| f.severity).max()
    }

    /// Returns the issues of all findings.
    pub fn issues(&self) -> impl Iterator<Item = &Issue> {
        self.findings.iter().map(|f| &f.issue)
    }

    /// Returns the number of findings of a severity.
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

    /// Adds a finding and returns its index.
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
            writeln!(
                f,
                "note: {mark}; reads fail with EIO until they are written"
            )?;
        }
        if self.dropped > 0 {
            writeln!(f, "... and {} more findings", self.dropped)?;
        }
        let c = &self.counts;
        if c.hidden_blocks + c.hidden_inodes > 0 {
            writeln!(
                f,
                "{} blocks and {} inodes could not be checked because of the damage above",
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
                    "; the check is incomplete"
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
