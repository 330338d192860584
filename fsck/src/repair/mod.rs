//! Repairs a file system.
//!
//! Purpose: rounds of check and change over a [`View`] (`rounds.rs`). The result of the
//! last round goes to the medium through the journal (`commit.rs`).
//!
//! Invariants:
//! - Nothing is stored before the last round is over. A repair that cannot be
//!   finished stores nothing.
//! - A repair does not touch what the check finds intact.
//! - A round takes the time of a check, and there are at most [`MAX_ROUNDS`](rounds::MAX_ROUNDS).
//!
//! Not here: the definition of damage (the check), the questions (the caller).

mod bad_blocks;
mod bitmaps;
mod build;
mod commit;
mod edit;
mod entries;
mod gather;
mod inodes;
mod internal_inodes;
mod leases;
mod lost;
mod lost_pointers;
mod maps;
mod marks;
mod multiply_claimed;
mod names;
mod pages;
mod policy;
pub(crate) mod replay;
mod rounds;
mod scan;

use std::collections::{HashMap, HashSet};
use std::time::Instant;

pub use policy::{Answer, Ask, Policy, RepairOptions};
use rounds::Run;

use super::bad_blocks as known_bad;
use super::bitmaps::GroupBits;
use super::claims::Claims;
use super::findings::Issue;
use super::inodes::Inodes;
use super::maps::Extent;
use super::outcome::{Done, Loss};
use super::paths::Paths;
use super::report::{Outcome, Report};
use super::view::View;
use super::{Checker, superblock};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::media::features::METADATA_IMAGE;
use pramfs_medium::media::lease::refuse_if_leased;
use pramfs_medium::media::{Geometry, probe_superblock};
use pramfs_medium::pmem::{Region, RegionAccess};
use pramfs_medium::types::Ino;

/// Returns the number of blocks that the search for lost pointer blocks has read
/// in this thread.
#[cfg(test)]
pub(super) fn tables_tried() -> u64 {
    lost_pointers::TRIED.get()
}

/// Checks the file system of an unmounted region, and repairs what the policy
/// allows.
///
/// Each finding of the report says whether it was repaired. With
/// [`Policy::No`], or if the region is read-only, nothing is stored. The check
/// sees what the next mount will see: records that a crash left in the journal
/// are replayed in memory.
///
/// # Errors
/// Storing to the medium failed: run the repair again.
///
/// ```
/// use pramfs::format::{FormatOptions, format};
/// use pramfs_fsck::{self as fsck, Policy, RepairOptions};
/// use pramfs::pmem::{HeapBackend, Region};
/// # use pramfs_medium::pmem::RegionAccess;
///
/// let region = Region::new("example", HeapBackend::boxed(1 << 20));
/// format(&region, &FormatOptions::default())?;
/// region.window().store_unflushed(0x60, &[0xff])?; // damage
/// let report = fsck::repair(&region, &RepairOptions::new(Policy::Yes))?;
/// assert_eq!(report.findings.len(), 1);
/// assert!(report.is_sound() && fsck::check(&region, &Default::default()).is_clean());
/// # Ok::<(), pramfs::Error>(())
/// ```
pub fn repair(region: &Region, options: &RepairOptions) -> Result<Report> {
    region.check_owner()?;
    let mut report = repair_once(region, options)?;
    // What failed is known now, and nothing was stored.
    for _ in 0..known_bad::TRIES {
        if !report.met_failure {
            break;
        }
        report = repair_once(region, options)?;
    }
    Ok(report)
}

fn repair_once(region: &Region, options: &RepairOptions) -> Result<Report> {
    let start = Instant::now();
    let faults = region.faults();
    let mut report = Report::default();
    let Some(geo) = superblock::open(region.into(), &options.check, &mut report) else {
        report.time = start.elapsed();
        return Ok(report);
    };
    if !matches!(options.policy, Policy::No) {
        let fixed = probe_superblock(region)?.fixed;
        if fixed.ro_compat & METADATA_IMAGE != 0 {
            return Err(Error::NotSupported(
                "an image for a report is not repaired; check it: fsck.pramfs -n",
            ));
        }
        // A repair could give away blocks that a process maps.
        refuse_if_leased(region)?;
    }
    let mut run = Run::new(options, View::new(region), geo);
    let journal = match replay::replay(&mut run.view, &run.geo) {
        Ok(journal) => journal,
        Err(e) => {
            report.add(Issue::Unreadable { why: e.to_string() }, usize::MAX);
            return Ok(report);
        }
    };
    let discards = run.confirm_discard(&journal);
    run.rounds();
    run.name_losses();
    run.settle_losses();
    let mut report = run.report;
    report.lost = std::mem::take(&mut run.notes.lost);
    let marked = std::mem::take(&mut run.notes.marked);
    report.replayed = journal.live.len() as u64;
    report.refused = journal.refused as u64;
    report.met_failure = known_bad::note_failures(region.into(), &run.view);
    let faulted = region.faults() != faults;
    let unknown = faulted && (region.is_cut() || run.view.failed().is_empty());
    let failed = unknown || report.met_failure;
    if unknown && !report.met_failure {
        let why = format!("{} failed during a read", region.info().name);
        report.add(Issue::Unreadable { why }, usize::MAX);
        report.complete = false;
    }
    let store = !matches!(options.policy, Policy::No) && !region.info().read_only && !failed;
    let repaired = report.findings.iter().any(|f| f.outcome == Outcome::Fixed);
    let any = repaired || journal.needs_checkpoint();
    if store && discards && report.complete && !report.cancelled && any {
        let result = commit::commit(region, &run.view, &run.geo, &journal, &run.notes);
        report.stored = result?;
    } else {
        // Nothing was stored, so nothing is repaired.
        for f in &mut report.findings {
            if f.outcome == Outcome::Fixed {
                (f.outcome, f.done) = (Outcome::Left, None);
            }
        }
        report.lost.clear();
        report.marked = marked;
    }
    report.time = start.elapsed();
    Ok(report)
}

/// What later rounds need to know of earlier ones.
#[derive(Debug, Default)]
struct RoundState {
    /// Inodes whose counts a repair has changed. Correcting the counts belongs to
    /// that repair.
    recount: HashSet<u64>,
    /// A repair was tried.
    changed: bool,
    /// The number at which record numbers restart.
    first: Option<u64>,
    /// Number of findings repaired so far.
    version: u64,
    /// The directory `lost+found`.
    lost_found: Option<Ino>,
    /// Blocks that had an owner in any round.
    owned: Option<Claims>,
    /// In some round blocks were hidden behind damage.
    hidden: bool,
    /// Inodes whose lost blocks were searched for.
    searched: lost::Searched,
    /// Inodes to be freed, with the type that names gave them. Freeing is
    /// deferred, because further names may be found.
    deferred: HashMap<u64, u8>,
    /// Inodes of `searched` that were already in `recount` at the search.
    recounted: lost::Searched,
    /// `paths` may be incomplete: directories were hidden by damage.
    few_paths: bool,
    /// Paths of the first round that knew all directories.
    paths: Paths,
    /// Losses so far.
    lost: Vec<Loss>,
    /// Losses already in `lost`, to list each once.
    reported: HashSet<Loss>,
    /// Indexes in `lost` of byte ranges, by inode.
    ranges: HashMap<u64, Vec<usize>>,
    /// Number of blocks found again, by inode.
    again: HashMap<u64, u64>,
    /// Number of blocks compared with damaged pointers.
    tables_tried: usize,
    /// Names removed from directories whose path was not known then: index of
    /// the loss, directory and name.
    late: Vec<(usize, Ino, Vec<u8>)>,
    /// Ranges that were marked as lost before this repair.
    marked: Vec<Loss>,
    /// Pages with slots whose append windows were closed, by number.
    closed: HashSet<u64>,
}

/// The check's data about the file system.
struct Known {
    claims: Claims,
    inodes: Inodes,
    /// Extents of the inode table.
    table: Vec<Extent>,
    /// Extents of the group descriptors: blocks, inodes.
    descs: [Vec<Extent>; 2],
    /// Where the bits of each group are: blocks, inodes.
    groups: [Vec<GroupBits>; 2],
    /// Groups with a checksum mismatch, by kind and number.
    bad_sums: HashSet<(u64, u64)>,
    /// Extents of the lease table.
    leases: Vec<Extent>,
    hidden_blocks: bool,
    /// Multiply-claimed blocks.
    shared: HashSet<u64>,
}

/// Changes a view according to the findings of one round.
struct Repairer<'f, 'r> {
    view: &'f mut View<'r>,
    geo: &'f Geometry,
    known: Known,
    notes: &'f mut RoundState,
    /// Blocks without an owner, once they were scanned.
    scanned: Option<scan::Scan>,
    /// Trees rebuilt in this round, by inode and kind.
    rebuilt: HashSet<(u64, u32)>,
    /// Where the next search for a free block starts: strict, lenient.
    cursor: [u64; 2],
    /// Owners of multiply-claimed blocks, once they were searched for.
    twice: Option<Vec<multiply_claimed::BlockOwner>>,
    /// Names to remove in this round, by directory.
    to_remove: HashMap<u64, HashSet<Vec<u8>>>,
    /// Surplus names of the directories that lose names in this round, once they
    /// were looked up.
    names: Option<names::Names>,
    /// Directories whose rebuild failed for lack of space.
    stuck: HashSet<u64>,
    /// The action taken on the current finding.
    done: Option<Done>,
    /// The current finding is deferred to a later phase.
    later: bool,
    /// The policy is to repair only what loses nothing.
    preen: bool,
    /// The repair of the current finding needs a guess, which is not allowed.
    left: bool,
    /// Files whose pointer blocks were put back, once they were searched for.
    found: Option<HashSet<u64>>,
    /// Actions on trees and inodes in this round.
    fates: HashMap<(u64, u32), Done>,
}

impl Repairer<'_, '_> {
    /// Returns the action taken on the finding that was repaired last.
    fn done_about(&mut self, issue: &Issue) -> Done {
        use super::findings::Part;
        use pramfs_medium::htree::TreeKind;
        let key = match issue {
            Issue::TreePointer { ino, part, .. }
            | Issue::TreeEmpty { ino, part, .. }
            | Issue::TreeLeaf { ino, part, .. }
            | Issue::MapPointer { ino, part, .. }
            | Issue::MapEmpty { ino, part, .. }
            | Issue::MapHole { ino, part, .. } => (
                ino.0,
                match part {
                    Part::Contents => 0,
                    Part::Entries => gather::first_level(TreeKind::Directory),
                    Part::Xattrs | Part::XattrValue => gather::first_level(TreeKind::Xattrs),
                },
            ),
            Issue::EntriesMissing { ino, .. } => (ino.0, gather::first_level(TreeKind::Directory)),
            Issue::XattrItem { ino, .. } | Issue::XattrChecksum { ino, .. } => {
                (ino.0, gather::first_level(TreeKind::Xattrs))
            }
            Issue::DescriptorMissing { kind, .. } => (kind.owner().0, 0),
            Issue::BlocksLeaked { start, .. } => (*start, lost::LEAKED),
            other => (other.ino().map_or(0, |i| i.0), 0),
        };
        let fate = self.fates.get(&key).copied();
        let done = self.done.take();
        done.or(fate).unwrap_or_else(|| issue.usually())
    }
}

impl RoundState {
    /// Whether a finding is only the consequence of an earlier repair.
    fn explains(&self, issue: &Issue) -> bool {
        match issue {
            Issue::BlocksLeaked { .. } | Issue::BlocksFree { .. } => self.changed,
            Issue::BlockCount { ino, .. }
            | Issue::BlocksMissing { ino, .. }
            | Issue::EntriesMissing { ino, .. }
            | Issue::EntryCount { ino, .. }
            | Issue::LostFlag { ino, .. }
            | Issue::LinkCount { ino, .. }
            | Issue::DirectoryParent { ino, .. }
            | Issue::DanglingEntry { ino, .. } => self.recount.contains(&ino.0),
            _ => false,
        }
    }
}

impl Checker<'_> {
    /// Moves the data that a repair needs out of the check.
    fn known(&mut self, found: &Report) -> Known {
        let shared = found.issues().filter_map(|i| match i {
            Issue::BlockUsedTwice { block, .. } => Some(*block),
            _ => None,
        });
        Known {
            claims: std::mem::replace(&mut self.claims, Claims::new(self.geo.blocks())),
            inodes: Inodes::new(&self.geo),
            table: self.table.clone(),
            descs: std::mem::take(&mut self.descs),
            groups: std::mem::take(&mut self.groups),
            bad_sums: std::mem::take(&mut self.bad_sums),
            leases: std::mem::take(&mut self.leases.extents),
            hidden_blocks: self.hidden_blocks,
            shared: shared.collect(),
        }
    }
}
