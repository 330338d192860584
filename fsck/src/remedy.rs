//! What a repair does about each kind of finding, in words. The table in
//! `docs/fsck.md` says the same.

use super::issue::{Issue, Part};
use pramfs_medium::types::Ino;

impl Issue {
    /// Returns what a repair does about it, as a verb phrase without a subject.
    pub fn remedy(&self) -> &'static str {
        use Issue::*;
        match self {
            NoSuperblock { .. } | UnknownFeatures { .. } | Unreadable { .. } => "none",
            LiveRecords { .. } => "replay",
            RecordsRefused { .. } => "do not replay; repair what they left incomplete",
            SuperblockDamaged { .. } => "copy from the other page",
            LabelsDiffer => "copy the label that mounts use to the other page",
            SuperblocksDiffer => "copy the page that mounts use over the other",
            CheckpointDamaged { .. } => "copy from the other page",
            DynamicWordsDiffer => "copy from the page that mounts use",
            StateUnknown { .. } | NotUnmounted => "set to clean",
            ErrorsRecorded { .. } => "reset the error counters",
            InternalInodeDamaged { .. } => "copy from the other page",
            InternalInodeLost { .. } => "correct by its checksum",
            InternalInodesDiffer { .. } => "copy the one that changed last over the other",
            RetiredWordDamaged { .. } => "copy from the other word",
            RecordTorn { .. } => "empty the slot",
            LaneDamaged { .. } => "empty both slots",
            LsnsUsedUp { .. } => "empty the journal and restart its numbers",
            DescriptorMissing { .. } => "find it, or rebuild from what is in use",
            BitmapPointer { .. } => "find the bitmap, or rebuild from what is in use",
            BitmapSum { .. } => "correct, or recompute",
            BitsPastEnd { .. } => "clear",
            BlocksLeaked { .. } => "free, or keep in lost+found if damage had hidden them",
            BlocksFree { .. } => "mark as in use",
            BlockUsedTwice { .. } => "give each owner a block of its own",
            ReservedInodeFree { .. } => "mark as in use",
            InodeMissing { .. } => "mark as free",
            InodeDamaged { .. } => {
                "correct by its checksum, keep if its pointers prove it, or free"
            }
            InodeField { .. } => "set to a valid value",
            InodeReserved { .. } => "clear",
            BlocksMissing { .. } => {
                "find pointer blocks by their content; keep data without an owner in lost+found"
            }
            EntriesMissing { .. } | TreeEmpty { .. } => "rebuild the tree from the leaves found",
            MapEmpty { part, .. } if *part == Part::Contents => {
                "find pointer blocks by their content, or mark as lost"
            }
            MapEmpty { .. } => "remove the attribute",
            BlockCount { .. } | EntryCount { .. } | LinkCount { .. } => "set to the number found",
            MapPointer { ino, .. } if *ino >= Ino::INODE_TABLE => "correct, or find its blocks",
            MapPointer { part, .. } if *part == Part::Contents => {
                "correct, or mark as lost: EIO until it is written"
            }
            MapPointer { .. } => "correct, or remove the attribute",
            LostFlag { .. } => "set to match the map",
            MapHole { part, .. } if *part == Part::Contents => "rebuild, or remove the link",
            MapHole { .. } => "remove the attribute",
            BadTarget { .. } | TargetChecksum { .. } => "correct, or remove the link",
            InodeLeaked { .. } => "connect to lost+found, or free if it was unlinked",
            TreePointer { .. } => "correct, or rebuild the tree from the leaves found",
            TreeLeaf { .. } => "correct, or rebuild from the items that can be verified",
            DuplicateName { .. } => "keep the first one",
            DanglingEntry { .. } | EntryReserved { .. } => "remove the entry",
            EntryType { .. } => "set to the type of the inode",
            DirectoryNames { .. } => "keep the name in its parent",
            DirectoryParent { .. } => "set to the directory that names it",
            DirectoryLoop { .. } => "break the loop, and connect what it held to lost+found",
            NameOfOrphan { .. } => "set the link count to the number of names found",
            XattrItem { .. } => "correct, or remove the attribute",
            XattrChecksum { .. } => "remove the attribute",
            AclDamaged { .. } => {
                "remove it, and clear the group permissions; what it denied to named users is lost"
            }
            AclMode { .. } => "set to those of the ACL",
            OrphanSlotDamaged { .. } | OrphanSlotWrong { .. } | OrphanTwice { .. } => {
                "empty the slot"
            }
            OrphanNotEmpty { .. } => "connect to lost+found",
            LeasesLeft => "empty the table",
        }
    }
}
