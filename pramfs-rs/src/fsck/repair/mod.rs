//! Repairing a file system.
//!
//! Purpose: rounds of check and change over a [`View`]. A round finds
//! everything, mends what comes first (a bitmap before what it counts, an
//! inode before its names) and looks again, so that each change is decided on
//! by what the check says of the whole. What the last round leaves goes to the
//! medium by the journal (`commit.rs`).
//!
//! Invariants: until the rounds are over nothing is stored; a repair that
//! cannot be finished stores nothing at all. What a check calls intact is not
//! touched. A round is as long as a check, and there are at most [`MAX_ROUNDS`].
//!
//! Left to others: what is damage (the check), what is asked (the caller).

mod bitmaps;
mod build;
mod commit;
mod edit;
mod entries;
mod gather;
mod inodes;
mod internal_inodes;
mod lost;
mod lost_pointers;
mod maps;
mod marks;
mod multiply_claimed;
mod names;
mod pages;
mod policy;
mod replay;
mod scan;

use std::collections::{HashMap, HashSet};
use std::time::Instant;

pub use policy::{Answer, Ask, Policy, RepairOptions};

use super::bitmaps::GroupBits;
use super::claims::Claims;
use super::inodes::Inodes;
use super::issue::{Issue, Page, Severity};
use super::maps::Extent;
use super::outcome::{Done, Loss, Lost};
use super::paths::Paths;
use super::report::{Finding, Outcome, Report};
use super::view::View;
use super::{CheckOptions, Checker, superblock};
use crate::error::{Error, Result};
use crate::media::Geometry;
use crate::pmem::Region;
use crate::types::Ino;

/// Blocks that the search for lost blocks of pointers has looked at in this
/// thread.
#[cfg(test)]
pub(super) fn tables_tried() -> u64 {
    lost_pointers::TRIED.get()
}

/// Most rounds of check and change.
const MAX_ROUNDS: usize = 60;
/// Times that one finding is tried to be mended.
const MAX_TRIES: u32 = 3;
/// Of a finding that is not tried to be mended any more, and is not called
/// hopeless.
const LEFT: u32 = u32::MAX;

/// Checks the file system of a region that nobody has mounted and mends what
/// the policy allows.
///
/// The findings of the report say of each whether it was mended. With
/// [`Policy::No`], or where the region is read-only, nothing is stored; what a
/// crash left in the journal is then looked at as the next mount will see it.
///
/// # Errors
/// Storing to the medium failed: run it again.
///
/// ```
/// use pramfs::format::{FormatOptions, format};
/// use pramfs::fsck::{self, Policy, RepairOptions};
/// use pramfs::pmem::{HeapBackend, Region};
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
    let start = Instant::now();
    let faults = region.faults();
    region.check_owner()?;
    let mut report = Report::default();
    let Some(geo) = superblock::open(region, &options.check, &mut report) else {
        report.time = start.elapsed();
        return Ok(report);
    };
    let mut run = Run::new(options, View::new(region), geo);
    let journal = match replay::replay(&mut run.view, &run.geo) {
        Ok(journal) => journal,
        Err(e) => {
            report.add(Issue::Unreadable { why: e.to_string() }, usize::MAX);
            return Ok(report);
        }
    };
    let discards = run.agree_to_discard(&journal);
    run.rounds();
    run.name_losses();
    run.settle_losses();
    let mut report = run.report;
    report.lost = run.notes.lost;
    let marked = run.notes.marked;
    report.replayed = journal.live.len() as u64;
    report.refused = journal.refused as u64;
    let failed = region.faults() != faults;
    if failed {
        let why = format!("{} failed under a read", region.info().name);
        report.add(Issue::Unreadable { why }, usize::MAX);
        report.complete = false;
    }
    let store = !matches!(options.policy, Policy::No) && !region.info().read_only && !failed;
    let mended = report.findings.iter().any(|f| f.outcome == Outcome::Fixed);
    let any = mended || journal.ends();
    if store && discards && report.complete && !report.cancelled && any {
        let result = commit::commit(&run.view, &run.geo, &journal, run.notes.first);
        report.stored = result?;
    } else {
        // Nothing was stored: nothing is mended.
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

/// Rounds under way.
struct Run<'r> {
    options: &'r RepairOptions,
    view: View<'r>,
    geo: Geometry,
    report: Report,
    /// Findings by their sentence: number, and times tried.
    seen: HashMap<String, (usize, u32)>,
    /// Findings that lack space, and how much had been mended then.
    waiting: HashMap<usize, u64>,
    /// Nothing is asked any more.
    all: bool,
    notes: RoundState,
}

/// What later rounds are to know of earlier ones.
#[derive(Debug, Default)]
struct RoundState {
    /// Inodes whose counts a change has upset: putting them right is part of
    /// that change.
    recount: HashSet<u64>,
    /// Something was mended.
    changed: bool,
    /// The number from which records are counted anew.
    first: Option<u64>,
    /// Times that something was mended.
    version: u64,
    /// The directory of what is found without a name.
    lost_found: Option<Ino>,
    /// Blocks that something was found to own in any round.
    owned: Option<Claims>,
    /// In some round blocks were hidden behind damage.
    hidden: bool,
    /// Inodes whose lost blocks were looked for.
    searched: lost::Searched,
    /// Inodes that are to be freed, with the type that names said they have:
    /// names may yet be found.
    put_off: HashMap<u64, u8>,
    /// Of these, those whose count had been upset by then.
    recounted: lost::Searched,
    /// Paths by the first round that knew them all.
    few_paths: bool,
    paths: Paths,
    /// What was lost, and which of it was told.
    lost: Vec<Loss>,
    told: HashSet<Loss>,
    /// Which of them are bytes of a file, by inode.
    ranges: HashMap<u64, Vec<usize>>,
    /// Blocks of an inode that were found again.
    again: HashMap<u64, u64>,
    /// Blocks that were held against damaged pointers.
    tables_tried: usize,
    /// Names that went from directories whose path was not known then: the loss,
    /// directory and name.
    late: Vec<(usize, Ino, Vec<u8>)>,
    /// What was marked as lost before anything was mended.
    marked: Vec<Loss>,
}

/// What a check has learnt.
struct Known {
    claims: Claims,
    inodes: Inodes,
    /// Where the inode table is.
    table: Vec<Extent>,
    /// Where the group descriptors are: blocks, inodes.
    descs: [Vec<Extent>; 2],
    /// What the bits of each group are to be read from: blocks, inodes.
    groups: [Vec<GroupBits>; 2],
    /// Groups whose sum does not fit, by kind and number.
    unsound: HashSet<(u64, u64)>,
    hidden_blocks: bool,
    /// Blocks that more than one claims.
    shared: HashSet<u64>,
}

/// Changes a view by what a check has found.
struct Repairer<'f, 'r> {
    view: &'f mut View<'r>,
    geo: &'f Geometry,
    known: Known,
    notes: &'f mut RoundState,
    /// Blocks that nothing owns, if they were looked at.
    scanned: Option<scan::Scan>,
    /// Trees made anew in this round, by inode and kind.
    rebuilt: HashSet<(u64, u32)>,
    /// Where free blocks are looked for next, strictly and not.
    cursor: [u64; 2],
    /// Blocks that two claim, with who does.
    twice: Option<Vec<multiply_claimed::BlockOwner>>,
    /// Names that go in this round, by directory.
    to_remove: HashMap<u64, HashSet<Vec<u8>>>,
    /// Names of the directories that this round takes names from.
    names: Option<names::Names>,
    /// Directories that there is no space to make anew.
    stuck: HashSet<u64>,
    /// What was done about the finding that is being mended.
    done: Option<Done>,
    /// It is left for a later phase.
    later: bool,
    /// Only what loses nothing is mended.
    preen: bool,
    /// Mending it would take a guess, and is not allowed.
    left: bool,
    /// Files of which blocks of pointers were put back, once it was searched.
    found: Option<HashSet<u64>>,
    /// What became of trees and inodes in this round.
    fates: HashMap<(u64, u32), Done>,
}

impl<'r> Run<'r> {
    fn new(options: &'r RepairOptions, view: View<'r>, geo: Geometry) -> Run<'r> {
        Run {
            options,
            view,
            geo,
            report: Report::default(),
            seen: HashMap::new(),
            waiting: HashMap::new(),
            all: false,
            notes: RoundState::default(),
        }
    }

    /// Records that cannot be replayed are made dead in the view: findings of
    /// which the rounds know nothing. False: that may not be done, and so
    /// nothing may.
    fn agree_to_discard(&mut self, journal: &replay::Journal) -> bool {
        let mut issues = Vec::new();
        if journal.checkpoint.is_none() {
            let pages = [Page::First, Page::Copy];
            issues.extend(pages.map(|page| Issue::CheckpointDamaged { page }));
        }
        for &lane in &journal.unknown {
            issues.extend([0, 1].map(|copy| Issue::RetiredWordDamaged { lane, copy }));
        }
        if journal.refused > 0 {
            issues.push(Issue::RecordsRefused {
                records: journal.refused as u64,
            });
        }
        let mut agreed = true;
        for issue in issues {
            self.report.add(issue, usize::MAX);
            let Some(f) = self.report.findings.last_mut() else {
                continue;
            };
            f.outcome = match &self.options.policy {
                Policy::No | Policy::Preen => Outcome::Left,
                Policy::Yes => Outcome::Fixed,
                Policy::Ask(_) if self.report.cancelled => Outcome::Left,
                Policy::Ask(ask) => match ask(f) {
                    Answer::Yes | Answer::All => Outcome::Fixed,
                    Answer::No => Outcome::Declined,
                    Answer::Cancel => {
                        self.report.cancelled = true;
                        Outcome::Left
                    }
                },
            };
            agreed &= f.outcome == Outcome::Fixed;
            f.done = (f.outcome == Outcome::Fixed).then(|| f.issue.usually());
        }
        agreed
    }

    /// Checks and changes until nothing more is to be done.
    fn rounds(&mut self) {
        for round in 0..=MAX_ROUNDS {
            let options = CheckOptions {
                max_findings: usize::MAX,
                progress: self.options.check.progress.clone(),
            };
            let mut checker =
                Checker::new(&self.view, self.geo.clone(), &options, Report::default());
            checker.run_to_end();
            let mut found = std::mem::take(&mut checker.report);
            let mut known = checker.known(&found);
            // While the inode table or a bitmap is damaged, directories are
            // not all known.
            let roots = found.issues().any(policy::is_root);
            if round == 0 || self.notes.few_paths && !roots {
                self.notes.few_paths = roots;
                // A name that cannot be found out is no reason to end.
                if let Ok(paths) = checker.name_findings(&mut found.findings) {
                    self.notes.paths = paths;
                }
            }
            self.notes.owned(&known.claims, known.hidden_blocks);
            known.inodes = std::mem::replace(&mut checker.inodes, Inodes::new(&self.geo));
            // A name that has come to light since decides anew.
            let mut says = |ino: u64| known.inodes.get(Ino(ino)).map(|i| i.said);
            let put_off = &mut self.notes.put_off;
            put_off.retain(|ino, said| says(*ino) == Some(*said));
            self.report.complete = found.complete;
            self.report.counts = found.counts;
            self.report.marked = std::mem::take(&mut found.marked);
            if round == 0 {
                self.notes.marked = self.report.marked.clone();
            }
            let last: HashSet<String> = found.issues().map(|i| i.to_string()).collect();
            let todo = self.select(round, found.findings);
            if todo.is_empty() || round == MAX_ROUNDS || self.report.cancelled {
                // What is not found any more was mended, be it with another.
                let findings = self.report.findings.iter_mut();
                for f in findings.filter(|_| self.notes.changed) {
                    let key = f.issue.to_string();
                    if self.seen.contains_key(&key) && !last.contains(&key) {
                        f.outcome = Outcome::Fixed;
                        f.done.get_or_insert_with(|| f.issue.usually());
                    }
                }
                return;
            }
            self.repair(todo, known);
        }
    }

    /// Losses of inodes whose paths were not known before it are named by where
    /// they are now.
    fn name_losses(&mut self) {
        // The number of what was freed may be another's by now.
        let gone = |l: &Loss| matches!(l.what, Lost::File | Lost::Link);
        let nameless = |l: &&mut Loss| l.path.is_none() && l.ino.is_some() && !gone(l);
        let late = std::mem::take(&mut self.notes.late);
        let marked = &mut self.report.marked;
        marked.extend(self.notes.marked.iter().cloned());
        let before = marked.len() - self.notes.marked.len();
        let named = late.is_empty() && !self.notes.lost.iter_mut().any(|l| nameless(&l));
        if named && marked.is_empty() {
            return;
        }
        let options = CheckOptions {
            max_findings: 0,
            progress: None,
        };
        let mut checker = Checker::new(&self.view, self.geo.clone(), &options, Report::default());
        checker.run_to_end();
        checker.claims = Claims::new(self.geo.blocks);
        let inos = (self.notes.lost.iter().chain(&*marked)).filter_map(|l| l.ino);
        if let Ok(paths) = checker.paths(&inos.collect()) {
            for loss in marked.iter_mut() {
                loss.path = loss.ino.and_then(|ino| paths.path(ino));
            }
            for loss in self.notes.lost.iter_mut().filter(nameless) {
                loss.path = loss.ino.and_then(|ino| paths.path(ino));
            }
            for (n, dir, name) in late {
                if let Some(loss) = self.notes.lost.get_mut(n) {
                    loss.path = paths.below(dir, &name);
                }
            }
        }
        self.notes.marked = marked.split_off(before);
    }

    /// Bytes that were thought lost, and came back with a block of pointers that
    /// was found later, are not: what is lost is marked.
    fn settle_losses(&mut self) {
        let (mut marks, mut told) = (HashMap::<Ino, Vec<(u64, u64)>>::new(), HashSet::new());
        for mark in &self.report.marked {
            if let (Some(ino), Lost::Bytes { at, len }) = (mark.ino, &mark.what) {
                marks.entry(ino).or_default().push((*at, at + len));
            }
        }
        for loss in std::mem::take(&mut self.notes.lost) {
            let (at, end, ino) = match (&loss.what, loss.ino) {
                (Lost::Bytes { at, len }, Some(ino)) if ino >= Ino::FIRST_FREE => {
                    (*at, at + len, ino)
                }
                _ => {
                    self.notes.lost.push(loss);
                    continue;
                }
            };
            // Those of an inode are in order.
            let marks = marks.get(&ino).map_or(&[][..], |marks| marks);
            let first = marks.partition_point(|(_, to)| *to <= at);
            for (from, to) in marks[first..].iter().take_while(|(from, _)| *from < end) {
                let (at, end) = (at.max(*from), end.min(*to));
                let what = Lost::Bytes {
                    at,
                    len: end.saturating_sub(at),
                };
                if at < end && told.insert((ino, at)) {
                    self.notes.lost.push(Loss {
                        what,
                        ..loss.clone()
                    });
                }
            }
        }
    }

    /// RoundState what was found, and picks what is mended in this round: of what
    /// may be mended, that which comes first.
    fn select(&mut self, round: usize, found: Vec<Finding>) -> Vec<(Issue, Option<usize>)> {
        let mut todo = Vec::new();
        let mut vouching = Vec::new();
        let roots = found.iter().any(|f| policy::is_root(&f.issue));
        let errors = found.iter().any(|f| f.severity >= Severity::Error);
        for finding in found {
            let issue = finding.issue.clone();
            let silent = round > 0 && self.notes.explains(&issue);
            let key = issue.to_string();
            let (number, tries) = match self.seen.get(&key) {
                Some(&known) => known,
                None => {
                    let number = if silent {
                        usize::MAX
                    } else {
                        self.report.add_finding(Finding {
                            later: round > 0,
                            ..finding
                        })
                    };
                    self.seen.insert(key, (number, 0));
                    (number, 0)
                }
            };
            let known = self.report.findings.get_mut(number);
            if tries == LEFT {
                continue;
            }
            if tries >= MAX_TRIES {
                if let Some(f) = known {
                    f.outcome = Outcome::Failed;
                }
                continue;
            }
            let open = match known {
                Some(f) => {
                    // It was thought mended, and is here again.
                    if f.outcome == Outcome::Fixed {
                        f.outcome = Outcome::Left;
                    }
                    // What lacked space may have it, once something else was
                    // mended.
                    let again = f.outcome == Outcome::NoSpace
                        && self
                            .waiting
                            .get(&number)
                            .is_some_and(|v| *v < self.notes.version);
                    (again || f.outcome == Outcome::Left) && self.options.policy.allows(&issue)
                }
                None => !matches!(self.options.policy, Policy::No),
            };
            let phase = match &issue {
                Issue::InodeDamaged { ino } | Issue::InodeField { ino, .. }
                    if self.notes.put_off.contains_key(&ino.0) =>
                {
                    policy::PUT_OFF
                }
                _ => policy::phase(&issue),
            };
            if policy::marks_clean(&issue) {
                vouching.push((phase, issue, Some(number)));
                continue;
            }
            // Nothing is given back for what may be hidden.
            let open = open && !(roots && policy::gives_back(&issue));
            if open && phase != policy::NEVER {
                todo.push((phase, issue, Some(number).filter(|n| *n != usize::MAX)));
            }
        }
        // The file system is called clean only where no error is left.
        if todo.is_empty() && !errors {
            vouching.retain(|(_, issue, number)| {
                let f = number.and_then(|n| self.report.findings.get(n));
                f.is_some_and(|f| f.outcome == Outcome::Left) && self.options.policy.allows(issue)
            });
            todo = vouching;
        }
        // Where all of a phase was declined, the next one has its turn.
        while let Some(first) = todo.iter().map(|t| t.0).min() {
            let (now, later) = todo.into_iter().partition(|t| t.0 == first);
            let mut now: Vec<(u8, Issue, Option<usize>)> = now;
            self.ask(&mut now);
            if !now.is_empty() || self.report.cancelled {
                return now.into_iter().map(|(_, i, n)| (i, n)).collect();
            }
            todo = later;
        }
        Vec::new()
    }

    /// Asks about each finding, where there is somebody to ask.
    fn ask(&mut self, todo: &mut Vec<(u8, Issue, Option<usize>)>) {
        let Policy::Ask(ask) = &self.options.policy else {
            return;
        };
        todo.retain(|(_, _, number)| {
            let Some(f) = number.and_then(|n| self.report.findings.get_mut(n)) else {
                return true;
            };
            if self.all || f.asked {
                return true;
            }
            if self.report.cancelled {
                return false;
            }
            match ask(f) {
                Answer::Yes => f.asked = true,
                Answer::All => self.all = true,
                Answer::No => {
                    f.outcome = Outcome::Declined;
                    return false;
                }
                Answer::Cancel => {
                    self.report.cancelled = true;
                    return false;
                }
            }
            true
        });
    }

    fn repair(&mut self, todo: Vec<(Issue, Option<usize>)>, known: Known) {
        let mut fixer = Repairer {
            view: &mut self.view,
            geo: &self.geo,
            known,
            notes: &mut self.notes,
            scanned: None,
            rebuilt: HashSet::new(),
            cursor: [0; 2],
            twice: None,
            to_remove: names::to_remove(&todo),
            names: None,
            stuck: HashSet::new(),
            done: None,
            later: false,
            preen: matches!(self.options.policy, Policy::Preen),
            left: false,
            found: None,
            fates: HashMap::new(),
        };
        let (mut mended, mut waiting) = (0, Vec::new());
        let mut tried = false;
        let version = fixer.notes.version;
        for (issue, number) in &todo {
            let result = fixer.repair(issue, &todo);
            let done = fixer.done_about(issue);
            let left = std::mem::take(&mut fixer.left);
            if let Some((_, tries)) = self.seen.get_mut(&issue.to_string()).filter(|_| left) {
                *tries = LEFT;
            }
            if std::mem::take(&mut fixer.later) || left {
                continue;
            }
            tried = true;
            // What lacks space is told to lack it, however often it is tried; and
            // told it is, though it comes of what was mended.
            let full = matches!(result, Err(Error::NoSpace(_)));
            let mut number = *number;
            if let Some((known, tries)) = self.seen.get_mut(&issue.to_string()) {
                if full && number.is_none() {
                    self.report.add(issue.clone(), usize::MAX);
                    *known = self.report.findings.len() - 1;
                    self.report.findings[*known].later = true;
                    number = Some(*known);
                }
                *tries += u32::from(!full);
            }
            let Some(f) = number.and_then(|n| self.report.findings.get_mut(n)) else {
                continue;
            };
            f.done = matches!(result, Ok(true)).then_some(done);
            mended += u64::from(f.done.is_some());
            f.outcome = match result {
                Ok(true) => Outcome::Fixed,
                Ok(false) => Outcome::Failed,
                Err(Error::NoSpace(_)) => {
                    waiting.extend(number.map(|n| (n, version)));
                    Outcome::NoSpace
                }
                Err(_) => Outcome::Failed,
            };
        }
        self.notes.changed |= tried;
        self.notes.version += mended;
        self.waiting.extend(waiting);
    }
}

impl Repairer<'_, '_> {
    /// What was done about a finding that has just been mended.
    fn done_about(&mut self, issue: &Issue) -> Done {
        use super::issue::Part;
        use crate::htree::TreeKind;
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
    /// Whether something is there only because of what was mended before.
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
    /// What a repair has to know; it is taken from the check.
    fn known(&mut self, found: &Report) -> Known {
        let shared = found.issues().filter_map(|i| match i {
            Issue::BlockUsedTwice { block, .. } => Some(*block),
            _ => None,
        });
        Known {
            claims: std::mem::replace(&mut self.claims, Claims::new(self.geo.blocks)),
            inodes: Inodes::new(&self.geo),
            table: self.table.clone(),
            descs: std::mem::take(&mut self.descs),
            groups: std::mem::take(&mut self.groups),
            unsound: std::mem::take(&mut self.unsound),
            hidden_blocks: self.hidden_blocks,
            shared: shared.collect(),
        }
    }
}
