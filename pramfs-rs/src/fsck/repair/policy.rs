//! What is mended, in which order, and who decides.

use std::fmt;
use std::sync::Arc;

use crate::fsck::issue::{Issue, Part, Severity};
use crate::fsck::{CheckOptions, Finding};
use crate::media::bitmap::BitmapKind;
use crate::types::Ino;

/// What is said to a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Mend this.
    Yes,
    /// Leave this.
    No,
    /// Mend this and all that follows.
    All,
    /// End here and store nothing.
    Cancel,
}

/// Asked about a finding before it is mended.
pub type Ask = Arc<dyn Fn(&Finding) -> Answer + Send + Sync>;

/// What is mended.
#[derive(Clone)]
pub enum Policy {
    /// Nothing: look only.
    No,
    /// What loses nothing, whoever reads it: counts, copies, leaked space.
    Preen,
    /// Everything.
    Yes,
    /// What is agreed to.
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

/// How to repair.
#[derive(Debug, Clone)]
pub struct RepairOptions {
    /// What is mended.
    pub policy: Policy,
    /// How each round checks. A repair keeps all findings.
    pub check: CheckOptions,
}

impl RepairOptions {
    /// By a policy; nobody is told of the progress.
    pub fn new(policy: Policy) -> RepairOptions {
        RepairOptions {
            policy,
            check: CheckOptions::default(),
        }
    }
}

impl Policy {
    /// Whether a finding may be mended, or asked about.
    pub(super) fn allows(&self, issue: &Issue) -> bool {
        match self {
            Policy::No => false,
            Policy::Preen => issue.is_safe(),
            Policy::Yes | Policy::Ask(_) => true,
        }
    }
}

/// The phase of what no repair helps.
pub(super) const NEVER: u8 = u8::MAX;

/// The phase in which inodes are freed that are past repair: after trees and
/// blocks with two owners, behind which their names may be.
pub(super) const PUT_OFF: u8 = 8;

/// In which order findings are mended: nothing is decided by what a finding
/// of an earlier phase says is wrong.
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
        // What the block bitmap needs, the block bitmap, and what needs that.
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

/// What the inode table and the bitmaps are found by: while one of these is
/// left, nothing that it hides may be taken for missing.
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

/// Whether mending it gives something back because nothing was found to need
/// it.
pub(super) fn gives_back(issue: &Issue) -> bool {
    use Issue::*;
    matches!(
        issue,
        InodeMissing { .. } | DanglingEntry { .. } | BlocksLeaked { .. } | InodeLeaked { .. }
    )
}

/// What says that the file system is in order: mended last, and only if it is.
pub(super) fn marks_clean(issue: &Issue) -> bool {
    matches!(issue, Issue::NotUnmounted | Issue::ErrorsRecorded { .. })
}

impl Issue {
    /// Whether mending it loses no byte and no name, and guesses nothing:
    /// what `fsck.pramfs -p` mends.
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
