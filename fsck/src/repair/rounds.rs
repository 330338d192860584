//! The rounds of a repair.
//!
//! A round checks everything and repairs the first phase that has findings (a bitmap before
//! the data that it counts, an inode before its names). Then the next round checks again, so
//! that each change is based on a check of the whole.
//!
//! Invariant: a round changes only the view. What a finding needs is decided in `policy.rs`,
//! and done by the [`Repairer`] in the other files of this folder.

use std::collections::{HashMap, HashSet};

use super::super::claims::Claims;
use super::super::findings::{Issue, NEVER, Page, Severity};
use super::super::inodes::Inodes;
use super::super::outcome::{Loss, Lost};
use super::super::report::{Finding, Outcome, Report};
use super::super::view::View;
use super::super::{CheckOptions, Checker};
use super::policy::{self, Answer, Policy, RepairOptions};
use super::{Known, Repairer, RoundState, names, replay};
use pramfs_medium::error::Error;
use pramfs_medium::media::Geometry;
use pramfs_medium::types::Ino;

/// Maximum number of rounds of check and change.
pub(super) const MAX_ROUNDS: usize = 60;
/// Maximum number of attempts to repair one finding.
const MAX_TRIES: u32 = 3;
/// The number of attempts of a finding that is left. It is not tried again, and its outcome
/// is not `Failed`.
const LEFT: u32 = u32::MAX;

/// A running repair.
pub(super) struct Run<'r> {
    options: &'r RepairOptions,
    pub(super) view: View<'r>,
    pub(super) geo: Geometry,
    pub(super) report: Report,
    /// Findings by their sentence: index, and number of attempts.
    seen: HashMap<String, (usize, u32)>,
    /// Findings that lack space, with [`RoundState::version`] at that time.
    waiting: HashMap<usize, u64>,
    /// The answer "all" was given: ask no more.
    all: bool,
    pub(super) notes: RoundState,
}

impl<'r> Run<'r> {
    pub(super) fn new(options: &'r RepairOptions, view: View<'r>, geo: Geometry) -> Run<'r> {
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

    /// Adds findings for records that cannot be replayed. The view already has
    /// them dead, so the rounds do not see them. Returns false if the policy does
    /// not allow that; then nothing may be stored.
    pub(super) fn confirm_discard(&mut self, journal: &replay::Journal) -> bool {
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

    /// Checks and changes until nothing is left to do.
    pub(super) fn rounds(&mut self) {
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
            // While the inode table or a bitmap is damaged, some directories may
            // be unknown.
            let roots = found.issues().any(policy::is_root);
            if round == 0 || self.notes.few_paths && !roots {
                self.notes.few_paths = roots;
                // An unknown path is not an error.
                if let Ok(paths) = checker.name_findings(&mut found.findings) {
                    self.notes.paths = paths;
                }
            }
            self.notes.owned(&known.claims, known.hidden_blocks);
            known.inodes = std::mem::replace(&mut checker.inodes, Inodes::new(&self.geo));
            // A name found since then may change the decision.
            let mut says = |ino: u64| known.inodes.get(Ino(ino)).map(|i| i.said);
            let deferred = &mut self.notes.deferred;
            deferred.retain(|ino, said| says(*ino) == Some(*said));
            self.report.complete = found.complete;
            self.report.counts = found.counts;
            self.report.marked = std::mem::take(&mut found.marked);
            if round == 0 {
                self.notes.marked = self.report.marked.clone();
            }
            let last: HashSet<String> = found.issues().map(|i| i.to_string()).collect();
            let todo = self.select(round, found.findings);
            if todo.is_empty() || round == MAX_ROUNDS || self.report.cancelled {
                // A finding that no longer appears was repaired, perhaps together
                // with another.
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

    /// Adds present paths to losses of inodes whose path before the repair was
    /// unknown.
    pub(super) fn name_losses(&mut self) {
        // The number of a freed inode may belong to another by now.
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
        checker.claims = Claims::new(self.geo.blocks());
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

    /// Removes ranges from the losses that came back with a pointer block found
    /// later. Only ranges that are marked remain lost.
    pub(super) fn settle_losses(&mut self) {
        let (mut marks, mut reported) = (HashMap::<Ino, Vec<(u64, u64)>>::new(), HashSet::new());
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
            // The marks of an inode are in ascending order.
            let marks = marks.get(&ino).map_or(&[][..], |marks| marks);
            let first = marks.partition_point(|(_, to)| *to <= at);
            for (from, to) in marks[first..].iter().take_while(|(from, _)| *from < end) {
                let (at, end) = (at.max(*from), end.min(*to));
                let what = Lost::Bytes {
                    at,
                    len: end.saturating_sub(at),
                };
                if at < end && reported.insert((ino, at)) {
                    self.notes.lost.push(Loss {
                        what,
                        ..loss.clone()
                    });
                }
            }
        }
    }

    /// Records the findings, and selects those to repair in this round: the first
    /// phase among the findings that may be repaired.
    fn select(&mut self, round: usize, found: Vec<Finding>) -> Vec<(Issue, Option<usize>)> {
        let mut todo = Vec::new();
        let mut clean_marks = Vec::new();
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
                    // It counted as repaired, and is found again.
                    if f.outcome == Outcome::Fixed {
                        f.outcome = Outcome::Left;
                    }
                    // After another repair there may be space for it.
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
                    if self.notes.deferred.contains_key(&ino.0) =>
                {
                    policy::DEFERRED
                }
                _ => issue.phase(),
            };
            if policy::marks_clean(&issue) {
                clean_marks.push((phase, issue, Some(number)));
                continue;
            }
            // Free or remove nothing whose references may be hidden.
            let open = open && !(roots && policy::needs_intact_roots(&issue));
            if open && phase != NEVER {
                todo.push((phase, issue, Some(number).filter(|n| *n != usize::MAX)));
            }
        }
        // Mark the file system as clean only if no error is left.
        if todo.is_empty() && !errors {
            clean_marks.retain(|(_, issue, number)| {
                let f = number.and_then(|n| self.report.findings.get(n));
                f.is_some_and(|f| f.outcome == Outcome::Left) && self.options.policy.allows(issue)
            });
            todo = clean_marks;
        }
        // If all findings of a phase are declined, try the next phase.
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

    /// Asks about each finding, if the policy is to ask.
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

    /// Repairs the selected findings, and records their outcomes.
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
        let (mut repaired, mut waiting) = (0, Vec::new());
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
            // A lack of space does not count as an attempt. It is always reported,
            // even for a finding that an earlier repair caused.
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
            repaired += u64::from(f.done.is_some());
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
        self.notes.version += repaired;
        self.waiting.extend(waiting);
    }
}
