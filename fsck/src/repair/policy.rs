//! What to repair, in which order, and who decides.

use std::fmt;
use std::sync::Arc;

use crate::issue::{Issue, Part, Severity};
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

/// What a repair may change.
#[derive(Clone)]
pub enum Policy {
    /// Nothing: check only.
    No,
    /// What loses nothing: counts, copies, leaked space.
    Preen,
    /// Everything.
    Yes,
    /// What the callback agrees to.
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
    /// What the repair may change.
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

/// The phase of findings that cannot be repaired.
pub(super) const NEVER: u8 = u8::MAX;

/// The phase that frees inodes past repair. It follows the repair of trees and
/// of multiply-claimed blocks, because names of these inodes may be behind them.
pub(super) const DEFERRED: u8 = 8;

/// Returns the phase that repairs a finding. No repair relies on a structure that
/// an earlier phase repairs.
pub(super) fn phase(issue: &Issue) -> u8 {
    use Issue::*;
    let internal = |ino: &Ino| *ino >= Ino::INODE_TABLE;
    match issue {
        NoSuperblock { .. }
        | UnknownFeatures { .. }
        | Unreadable { .. }
        | LiveRecords { .. }
        | RecordsRefused { .. } => NEVER,
        SuperblockDamaged { .. }
        | SuperblocksDiffer
        | LabelsDiffer
        | CheckpointDamaged { .. }
        | InternalInodeDamaged { .. }
        | InternalInodesDiffer { .. }
        | RetiredWordDamaged { .. }
        | RecordTorn { .. }
        | LaneDamaged { .. }
        | StateUnknown { .. } => 0,
        InternalInodeLost { .. } => 1,
        // The structures that lead to the block bitmap, then the block bitmap, then
        // those that need it.
        MapPointer { ino, .. }
        | MapHole { ino, .. }
        | MapEmpty { ino, .. }
        | BlockCount { ino, .. }
        | BlocksMissing { ino, .. }
        | BlockUsedTwice { ino, .. }
            if internal(ino) =>
        {
            if *ino == Ino::BLOCK_GROUPS {
                1
            } else {
                3
            }
        }
        DescriptorMissing { kind, .. } => match kind {
            BitmapKind::Blocks => 1,
            BitmapKind::Inodes => 3,
        },
        BitmapPointer { kind, .. } | BitmapSum { kind, .. } | BitsPastEnd { kind, .. } => {
            match kind {
                BitmapKind::Blocks => 2,
                BitmapKind::Inodes => 4,
            }
        }
        ReservedInodeFree { .. } => 4,
        InodeDamaged { .. } | InodeMissing { .. } | InodeField { .. } => 5,
        MapPointer { ino, .. } | MapHole { ino, .. } | MapEmpty { ino, .. }
            if *ino == Ino::ORPHANS =>
        {
            5
        }
        MapEmpty {
            part: Part::Contents,
            ..
        } => 8,
        MapPointer { .. }
        | MapHole { .. }
        | MapEmpty { .. }
        | TreePointer { .. }
        | TreeEmpty { .. }
        | TreeLeaf { .. }
        | EntriesMissing { .. }
        | DuplicateName { .. }
        | XattrItem { .. }
        | XattrChecksum { .. }
        | AclDamaged { .. }
        | BadTarget { .. }
        | TargetChecksum { .. }
        | LeasesLeft => 6,
        BlockUsedTwice { .. } => 7,
        BlocksMissing { .. } => 8,
        DanglingEntry { .. }
        | EntryReserved { .. }
        | EntryType { .. }
        | NameOfOrphan { .. }
        | DirectoryNames { .. }
        | DirectoryLoop { .. }
        | OrphanSlotDamaged { .. }
        | OrphanSlotWrong { .. }
        | OrphanTwice { .. }
        | OrphanNotEmpty { .. } => 9,
        InodeLeaked { .. } => 10,
        InodeReserved { .. }
        | LostFlag { .. }
        | AclMode { .. }
        | BlockCount { .. }
        | EntryCount { .. }
        | LinkCount { .. }
        | DirectoryParent { .. }
        | BlocksLeaked { .. }
        | BlocksFree { .. }
        | LsnsUsedUp { .. } => 11,
        DynamicWordsDiffer | NotUnmounted | ErrorsRecorded { .. } => 12,
    }
}

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
        InodeMissing { .. } | DanglingEntry { .. } | BlocksLeaked { .. } | InodeLeaked { .. }
    )
}

/// Whether the repair marks the file system as clean. It comes last, and only if
/// no error is left.
pub(super) fn marks_clean(issue: &Issue) -> bool {
    matches!(issue, Issue::NotUnmounted | Issue::ErrorsRecorded { .. })
}

impl Issue {
    /// Whether its repair loses no byte and no name, and guesses nothing.
    /// `fsck.pramfs -p` repairs these.
    pub fn is_safe(&self) -> bool {
        use Issue::*;
        match self {
            BitmapSum { kind, .. } | BitmapPointer { kind, .. } => *kind == BitmapKind::Blocks,
            InternalInodeLost { .. } => false,
            MapPointer { .. } | MapHole { .. } | MapEmpty { .. } | BlocksMissing { .. } => false,
            TreePointer { .. } | TreeEmpty { .. } | TreeLeaf { .. } => false,
            EntriesMissing { .. } => false,
            DuplicateName { .. } | XattrItem { .. } | XattrChecksum { .. } => false,
            AclDamaged { .. } => false,
            BadTarget { .. } | TargetChecksum { .. } | BlockUsedTwice { .. } => false,
            InodeDamaged { .. } | InodeMissing { .. } | InodeField { .. } => false,
            DanglingEntry { .. } | EntryReserved { .. } | DirectoryNames { .. } => false,
            DirectoryLoop { .. } | NameOfOrphan { .. } | LaneDamaged { .. } => false,
            RecordsRefused { .. } => false,
            SuperblocksDiffer | InternalInodesDiffer { .. } | DescriptorMissing { .. } => false,
            other => other.severity() != Severity::Fatal,
        }
    }
}
