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
//! Left to others: replaying the journal (a mount does), and repair.
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
mod orphans;
mod report;
mod superblock;
mod trees;
mod words;
mod xattrs;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

pub use issue::{Issue, Page, Part, Severity};
pub use report::{Counts, Finding, Report};

use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::media::bitmap::BitmapKind;
use crate::media::{DiskInode, Geometry};
use crate::pmem::Region;
use claims::Claims;
use inodes::Inodes;
use maps::Extent;

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
            Step::Format => "format",
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
pub fn check(region: &Region, options: &CheckOptions) -> Report {
    let start = Instant::now();
    let faults = region.faults();
    let mut report = Report::default();
    match superblock::open(region, options, &mut report) {
        None => {}
        Some(geo) => {
            let mut c = Checker::new(region, geo, options, report);
            match c.run() {
                Ok(complete) => c.report.complete = complete,
                Err(e) => c.add(Issue::Unreadable { why: e.to_string() }),
            }
            report = c.report;
        }
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
    let shared = fs.shared().clone();
    fs.close()?;
    let report = check(shared.region(), options);
    Ok((Arc::into_inner(shared).map(|s| s.vol.region), report))
}

/// A check under way.
struct Checker<'a> {
    region: &'a Region,
    geo: Geometry,
    options: &'a CheckOptions,
    report: Report,
    /// Blocks that something owns.
    claims: Claims,
    /// Inodes in use.
    inodes: Inodes,
    /// Where the inode table is.
    table: Vec<Extent>,
    /// Some pointers could not be followed: what seems leaked may be behind
    /// them.
    hidden_blocks: bool,
    /// Some entries could not be read: what seems nameless may be among them.
    hidden_names: bool,
    /// Room for a leaf.
    buffer: Vec<u8>,
}

impl<'a> Checker<'a> {
    fn new(
        region: &'a Region,
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
            hidden_blocks: false,
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

    /// All checks in turn; false where one of them had to be the last.
    fn run(&mut self) -> Result<bool, Error> {
        if self.check_journal()? {
            return Ok(false);
        }
        self.claim_fixed();
        let Some(internal) = self.internal_inodes()? else {
            return Ok(false);
        };
        let [table, inode_groups, block_groups] = internal;
        let block_descs = self.walk_internal(&block_groups)?;
        let inode_descs = self.walk_internal(&inode_groups)?;
        self.table = self.walk_internal(&table)?;
        let block_groups = self.load_groups(BitmapKind::Blocks, &block_descs)?;
        let inode_groups = self.load_groups(BitmapKind::Inodes, &inode_descs)?;
        self.find_inodes(&inode_groups)?;
        self.read_inodes()?;
        self.check_orphans()?;
        self.check_leases()?;
        self.check_contents()?;
        self.check_links()?;
        self.compare_blocks(&block_groups)?;
        self.report.counts.used_blocks = self.claims.count();
        Ok(true)
    }

    /// The inode that stands at an offset.
    fn read_inode(&self, at: u64) -> Result<DiskInode, Error> {
        Ok(self.region.read_pod(at)?)
    }
}
