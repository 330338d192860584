//! What a repair does about each kind of finding, in words. The table of
//! `docs/fsck.md` has the same.

use super::issue::{Issue, Part};
use crate::types::Ino;

impl Issue {
    /// What a repair does about it, as what was done.
    pub fn remedy(&self) -> &'static str {
        use Issue::*;
        match self {
            NoSuperblock { .. } | UnknownFeatures { .. } | Unreadable { .. } => "nothing",
            LiveRecords { .. } => "replayed",
            RecordsRefused { .. } => "not replayed, and what they left half done mended",
            SuperblockDamaged { .. } => "copied from the other page",
            LabelsDiffer => "that of mounts was copied over the other",
            SuperblocksDiffer => "the one that mounts use was copied over the other",
            CheckpointDamaged { .. } => "copied from the other page",
            DynamicWordsDiffer => "copied from the page that mounts use",
            StateUnknown { .. } | NotUnmounted => "set to clean",
            ErrorsRecorded { .. } => "forgotten",
            InternalInodeDamaged { .. } => "copied from the other page",
            InternalInodeLost { .. } => "corrected by its checksum",
            InternalInodesDiffer { .. } => "the one that changed last was copied over the other",
            RetiredWordDamaged { .. } => "copied from the other word",
            RecordTorn { .. } => "emptied",
            LaneDamaged { .. } => "both slots emptied",
            LsnsUsedUp { .. } => "the journal emptied and numbered anew",
            DescriptorMissing { .. } => "found, or made anew of what is in use",
            BitmapPointer { .. } => "found, or made anew of what is in use",
            BitmapSum { .. } => "corrected, or renewed",
            BitsPastEnd { .. } => "cleared",
            BlocksLeaked { .. } => "freed, or kept in lost+found where damage hid them",
            BlocksFree { .. } => "marked as in use",
            BlockUsedTwice { .. } => "each owner has a block of its own",
            ReservedInodeFree { .. } => "marked as in use",
            InodeMissing { .. } => "marked as free",
            InodeDamaged { .. } => "corrected by its checksum, kept by its pointers, or freed",
            InodeField { .. } => "set to what it can be",
            InodeReserved { .. } => "cleared",
            BlocksMissing { .. } => {
                "blocks of pointers found by what is in them; data without an owner kept in lost+found"
            }
            EntriesMissing { .. } | TreeEmpty { .. } => "made anew of the leaves that were found",
            MapEmpty { part, .. } if *part == Part::Contents => {
                "blocks of pointers found by what is in them, or marked as lost"
            }
            MapEmpty { .. } => "the attribute removed",
            BlockCount { .. } | EntryCount { .. } | LinkCount { .. } => "set to what was found",
            MapPointer { ino, .. } if *ino >= Ino::INODE_TABLE => "corrected, or its blocks found",
            MapPointer { part, .. } if *part == Part::Contents => {
                "corrected, or marked as lost: EIO until it is written"
            }
            MapPointer { .. } => "corrected, or the attribute removed",
            LostFlag { .. } => "set to what is marked",
            MapHole { part, .. } if *part == Part::Contents => "made anew, or the link removed",
            MapHole { .. } => "the attribute removed",
            BadTarget { .. } | TargetChecksum { .. } => "corrected, or the link removed",
            InodeLeaked { .. } => "named in lost+found, or freed if it was unlinked",
            TreePointer { .. } => "corrected, or the tree made anew of the leaves that were found",
            TreeLeaf { .. } => "corrected, or made anew of the items that can be believed",
            DuplicateName { .. } => "the first one stays",
            DanglingEntry { .. } | EntryReserved { .. } => "removed",
            EntryType { .. } => "set to that of the inode",
            DirectoryNames { .. } => "the name in its parent stays",
            DirectoryParent { .. } => "set to the directory that names it",
            DirectoryLoop { .. } => "opened, and what it held named in lost+found",
            NameOfOrphan { .. } => "the link count set to the names found",
            XattrItem { .. } => "put right, or removed",
            XattrChecksum { .. } => "removed",
            AclDamaged { .. } => {
                "removed, and the group's rights with it; what it denied to users by name is lost"
            }
            AclMode { .. } => "set to that of the ACL",
            OrphanSlotDamaged { .. } | OrphanSlotWrong { .. } | OrphanTwice { .. } => "emptied",
            OrphanNotEmpty { .. } => "named in lost+found",
            LeasesLeft => "emptied",
        }
    }
}
