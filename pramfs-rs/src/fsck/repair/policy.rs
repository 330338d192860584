//! What is mended, in which order, and who decides.

use std::fmt;
use std::sync::Arc;

use crate::fsck::issue::{Issue, Severity};
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
        MapPointer { ino, .. } | MapHole { ino, .. } | BlockCount { ino, .. } if internal(ino) => 1,
        BlockUsedTwice { ino, .. } if internal(ino) => 1,
        DescriptorMissing { .. } => 1,
        BitmapPointer { .. } | BitmapSum { .. } | BitsPastEnd { .. } => 2,
        ReservedInodeFree { .. } => 2,
        InodeDamaged { .. } | InodeMissing { .. } | InodeField { .. } => 3,
        MapPointer { ino, .. } | MapHole { ino, .. } if *ino == Ino::ORPHANS => 3,
        MapPointer { .. }
        | MapHole { .. }
        | TreePointer { .. }
        | TreeLeaf { .. }
        | DuplicateName { .. }
        | XattrItem { .. }
        | XattrChecksum { .. }
        | AclDamaged { .. }
        | BadTarget { .. }
        | TargetChecksum { .. }
        | LeasesLeft => 4,
        BlockUsedTwice { .. } => 5,
        DanglingEntry { .. }
        | EntryReserved { .. }
        | EntryType { .. }
        | NameOfOrphan { .. }
        | DirectoryNames { .. }
        | DirectoryLoop { .. }
        | OrphanSlotDamaged { .. }
        | OrphanSlotWrong { .. }
        | OrphanTwice { .. }
        | OrphanNotEmpty { .. } => 6,
        InodeLeaked { .. } => 7,
        InodeReserved { .. }
        | AclMode { .. }
        | BlockCount { .. }
        | EntryCount { .. }
        | LinkCount { .. }
        | DirectoryParent { .. }
        | BlocksLeaked { .. }
        | BlocksFree { .. } => 8,
        DynamicWordsDiffer | NotUnmounted | ErrorsRecorded { .. } => 9,
    }
}

/// What says that the file system is in order: mended last, and only if it is.
pub(super) fn vouches(issue: &Issue) -> bool {
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
            MapPointer { .. } | MapHole { .. } | TreePointer { .. } | TreeLeaf { .. } => false,
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
