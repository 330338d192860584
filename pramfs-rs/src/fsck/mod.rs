//! Checking a file system: everything on the medium against everything else.
//!
//! Purpose: a region that nobody has mounted is read from the superblock down,
//! by readings of its own of what the engine writes, and every disagreement is
//! a typed [`Finding`]. Nothing is stored.
//!
//! Invariants: no bytes whatever make a check panic, loop or leave the region;
//! time and memory grow with what the file system holds, not with the square
//! of it; damage is reported where it is, and what it hides (blocks and names
//! behind a damaged pointer) is counted and not reported again as leaked.
//!
//! A repair ([`repair()`]) is rounds of such checks, with what is to be changed
//! laid over the medium.
//!
//! Left to others: for a check, replaying the journal (a mount does, and a
//! repair).
//!
//! ```
//! use pramfs::format::{FormatOptions, format};
//! use pramfs::fsck::{self, CheckOptions};
//! use pramfs::pmem::{HeapBackend, Region};
//!
//! let region = Region::new("example", HeapBackend::boxed(1 << 20));
//! format(&region, &FormatOptions::default())?;
//! let report = fsck::check(&region, &CheckOptions::default());
//! assert!(report.is_clean(), "{report}");
//! # Ok::<(), pramfs::Error>(())
//! ```
//!
//! A caller that mounts, works and then checks keeps a second handle on the
//! memory (a clone of a `SimBackend`, the path of a file), or hands the mounted
//! file system to [`check_fs`].
#![forbid(unsafe_code)]

mod bitmaps;
mod claims;
mod directory;
mod inodes;
mod issue;
mod journal;
mod links;
mod maps;
mod messages;
mod orphans;
mod outcome;
mod paths;
mod remedy;
mod repair;
mod report;
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

pub use issue::{Issue, Page, Part, Severity};
pub use journal::LSNS_USED_UP;
pub use outcome::{Done, Loss, Lost};
pub use repair::{Answer, Ask, Policy, RepairOptions, repair};
pub use report::{Counts, Finding, Outcome, Report};

use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::media::bitmap::BitmapKind;
use crate::media::{DiskInode, Geometry};
use crate::pmem::{Region, RegionView};
use crate::types::Ino;
use bitmaps::GroupBits;
use claims::Claims;
use inodes::Inodes;
use maps::Extent;
use view::View;

/// Which part of a check is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Superblock, journal and bitmaps: counted in groups.
    Format,
    /// Inodes: counted in inodes.
    Inodes,
    /// What inodes own: counted in inodes.
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

/// Called now and then with what is done of how much.
pub type Progress = Arc<dyn Fn(Step, u64, u64) + Send + Sync>;

/// How to check.
#[derive(Clone)]
pub struct CheckOptions {
    /// Most findings that are kept; more are counted.
    pub max_findings: usize,
    /// Told how far the check is.
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

/// Checks the file system of a region that nobody has mounted.
///
/// Whatever the bytes are, the answer is a report: also that there is no file
/// system, and that reading failed. Of a region whose journal is not empty
/// only the superblock and the journal are looked at; mount it first.
pub fn check<'r>(region: impl Into<RegionView<'r>>, options: &CheckOptions) -> Report {
    let region = region.into().region();
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
    if region.faults() != faults {
        let why = format!("{} failed under a read", region.info().name);
        report.add(Issue::Unreadable { why }, usize::MAX);
        report.complete = false;
    }
    report.time = start.elapsed();
    report
}

/// Unmounts a file system and checks what it leaves. The region comes back
/// unless something else (an open file, a mapping) still holds it.
///
/// # Errors
/// Those of the unmount.
pub fn check_fs(fs: Fs, options: &CheckOptions) -> Result<(Option<Region>, Report)> {
    let engine = fs.engine().clone();
    fs.close_now()?;
    let report = check(&engine.vol.region, options);
    Ok((Arc::into_inner(engine).map(|e| e.vol.region), report))
}

/// A check under way.
struct Checker<'a> {
    region: &'a View<'a>,
    geo: Geometry,
    options: &'a CheckOptions,
    report: Report,
    /// Blocks that something owns.
    claims: Claims,
    /// Inodes in use.
    inodes: Inodes,
    /// Where the inode table is.
    table: Vec<Extent>,
    /// Where the group descriptors are: blocks, inodes.
    descs: [Vec<Extent>; 2],
    /// What the bits of each group are to be read from: blocks, inodes.
    groups: [Vec<GroupBits>; 2],
    /// Groups whose sum does not fit, by kind and number.
    unsound: HashSet<(u64, u64)>,
    /// Blocks of which every claimer is to be told, and those told so far.
    watched: HashSet<u64>,
    claimers: Vec<(u64, Ino)>,
    /// Some pointers could not be followed: what seems leaked may be behind
    /// them.
    hidden_blocks: bool,
    /// Of some groups of blocks the bits are not known: their bitmaps, if they
    /// have any, seem leaked.
    unknown_groups: bool,
    /// Some entries could not be read: what seems nameless may be among them.
    hidden_names: bool,
    /// Room for a leaf.
    buffer: Vec<u8>,
}

impl<'a> Checker<'a> {
    fn new(
        region: &'a View<'a>,
        geo: Geometry,
        options: &'a CheckOptions,
        mut report: Report,
    ) -> Self {
        report.counts.blocks = geo.blocks;
        report.counts.block_size = geo.block_size;
        Checker {
            claims: Claims::new(geo.blocks),
            inodes: Inodes::new(&geo),
            table: Vec::new(),
            descs: Default::default(),
            groups: Default::default(),
            unsound: HashSet::new(),
            watched: HashSet::new(),
            claimers: Vec::new(),
            hidden_blocks: false,
            unknown_groups: false,
            hidden_names: false,
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

    /// [`run`](Self::run), with what stopped it as a finding.
    fn run_to_end(&mut self) {
        match self.run() {
            Ok(complete) => self.report.complete = complete,
            Err(e) => self.add(Issue::Unreadable { why: e.to_string() }),
        }
    }

    /// Gives what is marked as lost its paths. Made last: the walk makes claims
    /// of its own.
    fn name_marks(&mut self, report: &mut Report) {
        if report.marked.is_empty() {
            return;
        }
        self.claims = Claims::new(self.geo.blocks);
        let inos = report.marked.iter().filter_map(|l| l.ino).collect();
        // A name that cannot be found out is no reason to end.
        if let Ok(paths) = self.paths(&inos) {
            for mark in &mut report.marked {
                mark.path = mark.ino.and_then(|ino| paths.path(ino));
            }
        }
    }

    /// All checks in turn; false where one of them had to be the last.
    fn run(&mut self) -> Result<bool, Error> {
        self.check_pages()?;
        if self.check_journal()? {
            return Ok(false);
        }
        self.claim_fixed();
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
        self.check_links()?;
        self.compare_blocks(&self.groups[0].clone())?;
        self.report.counts.used_blocks = self.claims.count();
        Ok(true)
    }

    /// The inode that stands at an offset.
    fn read_inode(&self, at: u64) -> Result<DiskInode, Error> {
        Ok(self.region.read_pod(at)?)
    }
}
