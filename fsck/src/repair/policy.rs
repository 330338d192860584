//! Decides the repairs and their order.

use std::fmt;
use std::sync::Arc;

use crate::findings::Issue;
use crate::{CheckOptions, Finding};
use pramfs_medium::media::bitmap::BitmapKind;
use pramfs_medium::types::Ino;

/// The answer to a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Repair this.
    Yes,
    /// Leave this.
    No,
    /// Repair this and everything that follows.
    All,
    /// End and store nothing.
    Cancel,
}

/// Called to ask about a finding before it is repaired.
pub type Ask = Arc<dyn Fn(&Finding) -> Answer + Send + Sync>;

/// The limit of a repair.
#[derive(Clone)]
pub enum Policy {
    /// Nothing: check only.
    No,
    /// Only repairs that lose nothing: counts, copies, leaked space.
    Preen,
    /// Everything.
    Yes,
    /// Repairs that the callback agrees to.
    Ask(Ask),
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Policy::No => "No",
            Policy::Preen => "Preen",
            Policy::Yes => "Yes",
            Policy::Ask(_) => "Ask",
        })
    }
}

/// Options of a repair.
#[derive(Debug, Clone)]
pub struct RepairOptions {
    /// The limit of the repair.
    pub policy: Policy,
    /// Options of the check in each round. A repair keeps all findings.
    pub check: CheckOptions,
}

impl RepairOptions {
    /// Creates options with a policy and without progress reports.
    pub fn new(policy: Policy) -> RepairOptions {
        RepairOptions {
            policy,
            check: CheckOptions::default(),
        }
    }
}

impl Policy {
    /// Whether the policy allows a repair of a finding, or a question about it.
    pub(super) fn allows(&self, issue: &Issue) -> bool {
        match self {
            Policy::No => false,
            Policy::Preen => issue.is_safe(),
            Policy::Yes | Policy::Ask(_) => true,
        }
    }
}

/// The phase that frees inodes past repair. It follows the repair of trees and
/// of multiply-claimed blocks, because names of these inodes may be behind them.
pub(super) const DEFERRED: u8 = 8;

/// Whether a finding concerns a structure that leads to the inode table or to a
/// bitmap. While one is left, nothing that it hides may be treated as missing.
pub(super) fn is_root(issue: &Issue) -> bool {
    use Issue::*;
    match issue {
        MapPointer { ino, .. }
        | MapHole { ino, .. }
        | MapEmpty { ino, .. }
        | BlocksMissing { ino, .. }
        | BlockUsedTwice { ino, .. } => *ino >= Ino::INODE_TABLE,
        DescriptorMissing { .. } | BitmapPointer { .. } => true,
        BitmapSum { kind, .. } => *kind == BitmapKind::Inodes,
        _ => false,
    }
}

/// Whether the repair frees or removes something because a reference or its
/// target is missing. It must wait until no [`is_root`] finding is left.
pub(super) fn needs_intact_roots(issue: &Issue) -> bool {
    use Issue::*;
    matches!(
        issue,
        InodeMissing { .. }
            | DanglingEntry { .. }
            | BlocksLeaked { .. }
            | InodeLeaked { .. }
            | LeaseSlotWrong { .. }
    )
}

/// Whether the repair marks the file system as clean. It comes last, and only if
/// no error is left.
pub(super) fn marks_clean(issue: &Issue) -> bool {
    matches!(
        issue,
        Issue::NotUnmounted | Issue::ErrorsRecorded { .. } | Issue::ScrubFindings { .. }
    )
}
