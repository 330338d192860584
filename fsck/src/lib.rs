//! Checks a file system: everything on the medium against everything else.
//!
//! Purpose: a check reads an unmounted region from the superblock down. It has
//! its own code to read what the engine writes. Every contradiction becomes a
//! typed [`Finding`]. A check stores nothing.
//!
//! Invariants:
//! - No content of the region makes a check panic, loop or leave the region.
//! - Time and memory grow linearly with the contents of the file system.
//! - Damage is reported where it is. What it hides (blocks and names behind a
//!   damaged pointer) is counted, and not reported again as leaked.
//!
//! A repair ([`repair()`]) runs rounds of such checks. Its pending changes
//! overlay the medium.
//!
//! Not here: a check does not replay the journal. A mount and a repair do.
//!
//! ```
//! use pramfs::format::{FormatOptions, format};
//! use pramfs::pmem::{HeapBackend, Region};
//! use pramfs_fsck::{CheckOptions, check};
//!
//! let region = Region::new("example", HeapBackend::boxed(1 << 20));
//! format(&region, &FormatOptions::default())?;
//! let report = check(&region, &CheckOptions::default());
//! assert!(report.is_clean(), "{report}");
//! # Ok::<(), pramfs::Error>(())
//! ```
//!
//! To mount, work and then check, keep a second handle on the memory (a clone
//! of a `SimBackend`, the path of a file), or pass the mounted file system to
//! [`check_fs`].
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(unreachable_pub))]

mod bad_blocks;
mod bitmaps;
mod claims;
mod directory;
mod findings;
mod inodes;
mod journal;
mod leases;
mod links;
mod maps;
mod metadata;

mod orphans;
mod outcome;
mod owners;
mod paths;
mod repair;
mod report;
mod sums;
mod superblock;
mod trees;
mod view;
mod xattrs;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

pub use findings::{Issue, Page, Part, Severity};
pub use journal::LSNS_USED_UP;

pub use metadata::Metadata;
pub use outcome::{Done, Loss, Lost};
pub use owners::{DataOf, Owned, Owner, Owners, State};
pub use repair::{Answer, Ask, Policy, RepairOptions, repair};
pub use report::{Counts, Finding, Outcome, Report};

use bitmaps::GroupBits;
use claims::Claims;
use inodes::Inodes;
use leases::LeaseTable;
use maps::Extent;
use pramfs::inode::Fs;
use pramfs_medium::error::{Error, Result};
use pramfs_medium::media::bitmap::BitmapKind;
use pramfs_medium::media::{DiskInode, Geometry};
use pramfs_medium::pmem::{Region, RegionView};
use pramfs_medium::types::{BlockRun, Ino, RegionOffset};
use view::View;

/// The part of a check that is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Superblock, journal and bitmaps: counted in groups.
    Format,
    /// Inodes: counted in inodes.
    Inodes,
    /// Blocks and trees that inodes own: counted in inodes.
    Contents,
    /// Names, parents and link counts: counted in inodes.
    Links,
    /// The block bitmap: counted in groups.
    Blocks,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Format => "superblock, journal, bitmaps",
            Step::Inodes => "inodes",
            Step::Contents => "contents",
            Step::Links => "links",
            Step::Blocks => "blocks",
        })
    }
}

/// Called from time to time with the step, the units done and their total.
pub type Progress = Arc<dyn Fn(Step, u64, u64) + Send + Sync>;

/// Options of a check.
#[derive(Clone)]
pub struct CheckOptions {
    /// The most findings to keep. Further ones are only counted.
    pub max_findings: usize,
    /// Called with the progress of the check.
    pub progress: Option<Progress>,
}

impl Default for CheckOptions {
    fn default() -> Self {
        CheckOptions {
            max_findings: 100_000,
            progress: None,
        }
    }
}

impl fmt::Debug for CheckOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckOptions")
            .field("max_findings", &self.max_findings)
            .field("progress", &self.progress.is_some())
            .finish()
    }
}

/// Checks the file system of an unmounted region.
///
/// The result is a report for any content, also if the region holds no file
/// system or if reading failed. If the journal is not empty, only the
/// superblock and the journal are checked; mount the file system first.
pub fn check<'r>(region: impl Into<RegionView<'r>>, options: &CheckOptions) -> Report {
    let region = region.into();
    let mut report = check_once(region, options);
    // What failed during the check is known now: its blocks count as bad.
    for _ in 0..bad_blocks::TRIES {
        if !report.met_failure {
            break;
        }
        report = check_once(region, options);
    }
    report
}

fn check_once(region: RegionView<'_>, options: &CheckOptions) -> Report {
    let start = Instant::now();
    let faults = region.faults();
    let mut report = Report::default();
    let view = View::new(region);
    if let Err(e) = region.check_owner() {
        report.add(Issue::Unreadable { why: e.to_string() }, usize::MAX);
        report.complete = false;
    } else if let Some(geo) = superblock::open(region, options, &mut report) {
        let mut c = Checker::new(&view, geo, options, report);
        c.run_to_end();
        report = std::mem::take(&mut c.report);
        c.name_marks(&mut report);
    }
    report.met_failure = bad_blocks::note_failures(region, &view);
    // Failed pages that are known count as damage of what they held.
    let unknown = region.is_cut() || view.failed().is_empty();
    if region.faults() != faults && unknown && !report.met_failure {
        let why = format!("{} failed during a read", region.info().name);
        report.add(Issue::Unreadable { why }, usize::MAX);
        report.complete = false;
    }
    report.time = start.elapsed();
    report
}

/// Unmounts a file system and checks it. Returns the region too, unless
/// something else (an open file, a mapping) still holds it.
///
/// # Errors
/// Errors of the unmount.
pub fn check_fs(fs: Fs, options: &CheckOptions) -> Result<(Option<Region>, Report)> {
    fs.close_with(|region| check(region, options))
}

/// A running check.
struct Checker<'a> {
    region: &'a View<'a>,
    geo: Geometry,
    options: &'a CheckOptions,
    report: Report,
    /// Blocks that something owns.
    claims: Claims,
    /// Inodes in use.
    inodes: Inodes,
    /// Extents of the inode table.
    table: Vec<Extent>,
    /// Extents of the group descriptors: blocks, inodes.
    descs: [Vec<Extent>; 2],
    /// Where the bits of each group are: blocks, inodes.
    groups: [Vec<GroupBits>; 2],
    /// Groups with a checksum mismatch, by kind and number.
    bad_sums: HashSet<(u64, u64)>,
    leases: LeaseTable,
    /// Blocks for which `claimers` records every claim.
    watched: HashSet<u64>,
    /// Claims of watched blocks so far.
    claimers: Vec<(u64, Ino)>,
    /// Bad blocks that the list does not name. Their bits may be clear.
    unlisted: Vec<BlockRun>,
    /// Some pointers could not be followed: blocks that seem leaked may be
    /// behind them.
    hidden_blocks: bool,
    /// The bits of some block groups are unknown: their bitmap blocks, if any,
    /// seem leaked.
    unknown_groups: bool,
    /// Some entries could not be read: inodes that seem unattached may be named
    /// by them.
    hidden_names: bool,
    /// What every block is to its owner, if the caller asks for it.
    owners: Option<Vec<Owned>>,
    /// Buffer for a leaf.
    buffer: Vec<u8>,
}

impl<'a> Checker<'a> {
    fn new(
        region: &'a View<'a>,
        geo: Geometry,
        options: &'a CheckOptions,
        mut report: Report,
    ) -> Self {
        report.counts.blocks = geo.blocks();
        report.counts.block_size = geo.block_size;
        Checker {
            claims: Claims::new(geo.blocks()),
            inodes: Inodes::new(&geo),
            table: Vec::new(),
            descs: Default::default(),
            groups: Default::default(),
            bad_sums: HashSet::new(),
            leases: LeaseTable::default(),
            watched: HashSet::new(),
            claimers: Vec::new(),
            unlisted: Vec::new(),
            hidden_blocks: false,
            unknown_groups: false,
            hidden_names: false,
            owners: None,
            buffer: Vec::new(),
            region,
            geo,
            options,
            report,
        }
    }

    fn add(&mut self, issue: Issue) {
        self.report.add(issue, self.options.max_findings);
    }

    fn progress(&self, step: Step, done: u64, total: u64) {
        if let Some(f) = &self.options.progress {
            f(step, done, total);
        }
    }

    /// Calls [`run`](Self::run), and reports the error that stopped it as a finding.
    fn run_to_end(&mut self) {
        match self.run() {
            Ok(complete) => self.report.complete = complete,
            Err(e) => self.add(Issue::Unreadable { why: e.to_string() }),
        }
    }

    /// Adds paths to the ranges marked as lost, and to data that do not match their
    /// checksum. Must run last, because its walk makes claims of its own.
    fn name_marks(&mut self, report: &mut Report) {
        let is_data = |f: &&Finding| matches!(f.issue, Issue::DataSum { .. });
        let data = report.findings.iter().filter(is_data);
        let data = data.filter_map(|f| f.issue.ino());
        let marked = report.marked.iter().filter_map(|l| l.ino);
        let inos: HashSet<_> = data.chain(marked).collect();
        if inos.is_empty() {
            return;
        }
        self.claims = Claims::new(self.geo.blocks());
        // An unknown path is not an error.
        if let Ok(paths) = self.paths(&inos) {
            for mark in &mut report.marked {
                mark.path = mark.ino.and_then(|ino| paths.path(ino));
            }
            for finding in &mut report.findings {
                if let Issue::DataSum { ino, .. } = finding.issue {
                    finding.path = paths.path(ino);
                }
            }
        }
    }

    /// Runs all checks in turn. Returns false if one of them ended the check.
    fn run(&mut self) -> Result<bool, Error> {
        self.check_pages()?;
        // Owners are also asked for as a crash has left them.
        if self.check_journal()? && self.owners.is_none() {
            return Ok(false);
        }
        self.claim_fixed();
        self.check_bad_blocks()?;
        let Some(internal) = self.internal_inodes()? else {
            return Ok(false);
        };
        let [table, inode_groups, block_groups] = internal;
        self.descs[0] = self.walk_internal(&block_groups)?;
        self.descs[1] = self.walk_internal(&inode_groups)?;
        self.table = self.walk_internal(&table)?;
        self.groups[0] = self.load_groups(BitmapKind::Blocks, &self.descs[0].clone())?;
        self.groups[1] = self.load_groups(BitmapKind::Inodes, &self.descs[1].clone())?;
        self.find_inodes(&self.groups[1].clone())?;
        self.read_inodes()?;
        self.check_orphans()?;
        self.check_leases()?;
        self.check_contents()?;
        self.check_windows();
        self.check_links()?;
        self.check_unowned_bad_blocks();
        self.compare_blocks(&self.groups[0].clone())?;
        self.report.counts.used_blocks = self.claims.count();
        Ok(true)
    }

    /// Reads the inode at an offset.
    fn read_inode(&self, at: RegionOffset) -> Result<DiskInode, Error> {
        Ok(self.region.read_pod(at)?)
    }
}
