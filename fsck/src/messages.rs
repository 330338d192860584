//! The words of each issue: its short name, its severity and its sentence.
//!
//! A repair tells findings apart by their sentence, so no two findings of one
//! check have the same.

use std::fmt;

use super::issue::{Issue, Severity};
use pramfs_medium::error::Damage;
use pramfs_medium::media::bitmap::BitmapKind;
use pramfs_medium::media::checksum::SEALED_BITS;
use pramfs_medium::types::Ino;

/// A name, escaped so that it is readable on one line.
struct Name<'a>(&'a [u8]);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

fn plural(n: u64) -> &'static str {
    if n == 1 { "" } else { "s" }
}

fn bitmap(kind: BitmapKind) -> &'static str {
    match kind {
        BitmapKind::Blocks => "block bitmap",
        BitmapKind::Inodes => "inode bitmap",
    }
}

/// An inode: its number, and a name if it is reserved or internal.
struct Who(Ino);

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Ino::INODE_TABLE => f.write_str("inode table"),
            Ino::INODE_GROUPS => f.write_str("inode-group descriptors"),
            Ino::BLOCK_GROUPS => f.write_str("block-group descriptors"),
            Ino::ROOT => f.write_str("root directory (inode 2)"),
            Ino::ORPHANS => f.write_str("orphan table (inode 3)"),
            Ino::LEASES => f.write_str("lease table (inode 4)"),
            ino => write!(f, "{ino}"),
        }
    }
}

impl Issue {
    /// Returns the kind of damage and the severity.
    fn class(&self) -> (Damage, Severity) {
        use Issue::*;
        use Severity::{Error, Fatal, Warning};
        match self {
            NoSuperblock { .. } => (Damage::NoSuperblock, Fatal),
            SuperblockDamaged { .. } => (Damage::SuperblockDamaged, Error),
            SuperblocksDiffer => (Damage::SuperblocksDiffer, Error),
            LabelsDiffer => (Damage::LabelsDiffer, Warning),
            UnknownFeatures { .. } => (Damage::UnknownFeatures, Fatal),
            CheckpointDamaged { .. } => (Damage::CheckpointDamaged, Error),
            DynamicWordsDiffer => (Damage::DynamicWordsDiffer, Warning),
            StateUnknown { .. } => (Damage::StateUnknown, Warning),
            NotUnmounted => (Damage::NotUnmounted, Warning),
            ErrorsRecorded { .. } => (Damage::ErrorsRecorded, Warning),
            InternalInodeDamaged { .. } => (Damage::InternalInodeDamaged, Error),
            InternalInodeLost { .. } => (Damage::InternalInodeLost, Fatal),
            InternalInodesDiffer { .. } => (Damage::InternalInodesDiffer, Error),
            LiveRecords { .. } => (Damage::LiveRecords, Error),
            RecordsRefused { .. } => (Damage::RecordsRefused, Error),
            RetiredWordDamaged { .. } => (Damage::RetiredWordDamaged, Error),
            RecordTorn { .. } => (Damage::RecordTorn, Warning),
            LaneDamaged { .. } => (Damage::LaneDamaged, Error),
            LsnsUsedUp { .. } => (Damage::LsnsUsedUp, Error),
            DescriptorMissing { .. } => (Damage::DescriptorMissing, Error),
            BitmapPointer { .. } => (Damage::BitmapPointer, Error),
            BitmapSum { .. } => (Damage::BitmapSum, Error),
            BitsPastEnd { .. } => (Damage::BitsPastEnd, Warning),
            BlocksLeaked { .. } => (Damage::BlocksLeaked, Warning),
            BlocksFree { .. } => (Damage::BlocksFree, Error),
            BlockUsedTwice { .. } => (Damage::BlockUsedTwice, Error),
            ReservedInodeFree { .. } => (Damage::ReservedInodeFree, Error),
            InodeMissing { .. } => (Damage::InodeMissing, Error),
            InodeDamaged { .. } => (Damage::InodeDamaged, Error),
            InodeField { .. } => (Damage::InodeField, Error),
            InodeReserved { .. } => (Damage::InodeReserved, Warning),
            BlockCount { .. } => (Damage::BlockCount, Error),
            MapPointer { .. } => (Damage::MapPointer, Error),
            MapEmpty { .. } => (Damage::MapEmpty, Error),
            BlocksMissing { .. } => (Damage::BlocksMissing, Error),
            LostFlag { .. } => (Damage::LostFlag, Warning),
            MapHole { .. } => (Damage::MapHole, Error),
            BadTarget { .. } => (Damage::BadTarget, Error),
            TargetChecksum { .. } => (Damage::TargetChecksum, Error),
            InodeLeaked { .. } => (Damage::InodeLeaked, Error),
            TreePointer { .. } => (Damage::TreePointer, Error),
            TreeEmpty { .. } => (Damage::TreeEmpty, Error),
            TreeLeaf { .. } => (Damage::TreeLeaf, Error),
            DuplicateName { .. } => (Damage::DuplicateName, Error),
            DanglingEntry { .. } => (Damage::DanglingEntry, Error),
            EntryReserved { .. } => (Damage::EntryReserved, Error),
            EntryType { .. } => (Damage::EntryType, Error),
            EntryCount { .. } => (Damage::EntryCount, Error),
            EntriesMissing { .. } => (Damage::EntriesMissing, Error),
            LinkCount { .. } => (Damage::LinkCount, Error),
            DirectoryNames { .. } => (Damage::DirectoryNames, Error),
            DirectoryParent { .. } => (Damage::DirectoryParent, Error),
            DirectoryLoop { .. } => (Damage::DirectoryLoop, Error),
            NameOfOrphan { .. } => (Damage::NameOfOrphan, Error),
            XattrItem { .. } => (Damage::XattrItem, Error),
            XattrChecksum { .. } => (Damage::XattrChecksum, Error),
            AclDamaged { .. } => (Damage::AclDamaged, Error),
            AclMode { .. } => (Damage::AclMode, Error),
            OrphanSlotDamaged { .. } => (Damage::OrphanSlotDamaged, Error),
            OrphanSlotWrong { .. } => (Damage::OrphanSlotWrong, Error),
            OrphanTwice { .. } => (Damage::OrphanTwice, Error),
            OrphanNotEmpty { .. } => (Damage::OrphanNotEmpty, Error),
            LeasesLeft => (Damage::LeasesLeft, Error),
            Unreadable { .. } => (Damage::Unreadable, Fatal),
        }
    }

    /// Returns how bad it is.
    pub fn severity(&self) -> Severity {
        self.class().1
    }

    /// Returns the kind of damage. The engine's errors use the same kinds.
    pub fn kind(&self) -> Damage {
        self.class().0
    }

    /// Returns a short name for programs. It stays the same between versions.
    pub fn code(&self) -> &'static str {
        self.kind().code()
    }

    /// Returns the damaged inode, if the issue concerns one.
    pub fn ino(&self) -> Option<Ino> {
        use Issue::*;
        match self {
            InternalInodeDamaged { ino, .. }
            | InternalInodeLost { ino }
            | InternalInodesDiffer { ino }
            | BlockUsedTwice { ino, .. }
            | ReservedInodeFree { ino }
            | InodeMissing { ino }
            | InodeDamaged { ino }
            | InodeField { ino, .. }
            | InodeReserved { ino }
            | BlockCount { ino, .. }
            | MapPointer { ino, .. }
            | MapEmpty { ino, .. }
            | BlocksMissing { ino, .. }
            | MapHole { ino, .. }
            | LostFlag { ino, .. }
            | BadTarget { ino }
            | TargetChecksum { ino }
            | InodeLeaked { ino }
            | TreePointer { ino, .. }
            | TreeEmpty { ino, .. }
            | TreeLeaf { ino, .. }
            | DuplicateName { ino, .. }
            | EntryCount { ino, .. }
            | EntriesMissing { ino, .. }
            | LinkCount { ino, .. }
            | DirectoryNames { ino, .. }
            | DirectoryParent { ino, .. }
            | DirectoryLoop { ino }
            | NameOfOrphan { ino }
            | XattrItem { ino, .. }
            | XattrChecksum { ino, .. }
            | AclDamaged { ino, .. }
            | AclMode { ino, .. }
            | OrphanSlotWrong { ino, .. }
            | OrphanTwice { ino, .. }
            | OrphanNotEmpty { ino } => Some(*ino),
            DanglingEntry { dir, .. } | EntryReserved { dir, .. } | EntryType { dir, .. } => {
                Some(*dir)
            }
            LeasesLeft => Some(Ino::LEASES),
            OrphanSlotDamaged { .. } => Some(Ino::ORPHANS),
            _ => None,
        }
    }

    /// Returns the first damaged block, if the issue concerns one.
    pub fn block(&self) -> Option<u64> {
        use Issue::*;
        match self {
            BlocksLeaked { start: block, .. }
            | BlocksFree { start: block, .. }
            | BlockUsedTwice { block, .. }
            | TreeLeaf { block, .. } => Some(*block),
            _ => None,
        }
    }
}

impl fmt::Display for Issue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Issue::*;
        match self {
            NoSuperblock { why } => write!(f, "no usable superblock: {why}"),
            SuperblockDamaged { page, what } => write!(f, "the {page} is damaged: {what}"),
            LabelsDiffer => f.write_str("the superblock pages have different labels"),
            SuperblocksDiffer => {
                f.write_str("the superblock pages describe different file systems")
            }
            UnknownFeatures { names } => {
                write!(
                    f,
                    "the file system uses features that this version does not support: {}",
                    names.join(", ")
                )
            }
            CheckpointDamaged { page } => write!(f, "the checkpoint in the {page} is damaged"),
            DynamicWordsDiffer => f.write_str("the dynamic words of the superblock pages differ"),
            StateUnknown { state } => {
                write!(f, "the state word is {state:#x}: neither clean nor mounted")
            }
            NotUnmounted => f.write_str("the file system was not unmounted cleanly, or is mounted"),
            ErrorsRecorded { count, errno } => {
                write!(
                    f,
                    "{count} error{} recorded while mounted; the first has errno {errno}",
                    if *count == 1 { " was" } else { "s were" }
                )
            }
            InternalInodeDamaged { page, ino } => {
                write!(f, "the inode of the {} is damaged in the {page}", Who(*ino))
            }
            InternalInodeLost { ino } => write!(
                f,
                "the inode of the {} is damaged in both superblock pages",
                Who(*ino)
            ),
            InternalInodesDiffer { ino } => {
                write!(
                    f,
                    "the inode of the {} differs between the superblock pages",
                    Who(*ino)
                )
            }
            LiveRecords { records } => write!(
                f,
                "the journal holds {records} record{} to replay: mount the file system once, then check it",
                plural(*records)
            ),
            RecordsRefused { records } => write!(
                f,
                "the journal holds {records} record{} to replay, and at least one targets a place that no record may change",
                plural(*records)
            ),
            RetiredWordDamaged { lane, copy } => write!(
                f,
                "journal lane {lane}: {} is damaged",
                if *copy == 0 {
                    "the retired word"
                } else {
                    "the copy of the retired word"
                }
            ),
            RecordTorn { lane, slot } => {
                write!(f, "journal lane {lane}: slot {slot} holds no valid record")
            }
            LaneDamaged { lane } => {
                write!(f, "journal lane {lane}: neither slot holds a valid record")
            }
            LsnsUsedUp { newest } => write!(
                f,
                "at least half of the journal's record numbers are used up (the largest is {newest}); at {} every change fails",
                1u64 << SEALED_BITS
            ),
            DescriptorMissing { kind, group } => {
                write!(
                    f,
                    "{}, group {group}: the group descriptor is missing",
                    bitmap(*kind)
                )
            }
            BitmapPointer { kind, group } => {
                write!(
                    f,
                    "{}, group {group}: the pointer to the bitmap block is damaged",
                    bitmap(*kind)
                )
            }
            BitmapSum { kind, group } => {
                write!(f, "{}, group {group}: checksum mismatch", bitmap(*kind))
            }
            BitsPastEnd { kind, group } => {
                write!(
                    f,
                    "{}, group {group}: bits past the end are set",
                    bitmap(*kind)
                )
            }
            BlocksLeaked { start, len } => {
                write!(
                    f,
                    "{len} block{} starting at block {start}: allocated but unused",
                    plural(*len)
                )
            }
            BlocksFree { start, len } => {
                write!(
                    f,
                    "{len} block{} starting at block {start}: in use, but marked as free",
                    plural(*len)
                )
            }
            BlockUsedTwice { block, ino } => {
                write!(
                    f,
                    "multiply-claimed block {block}: {} also claims it",
                    Who(*ino)
                )
            }
            ReservedInodeFree { ino } => {
                write!(f, "inode {} is reserved, but marked as free", ino.0)
            }
            InodeMissing { ino } => write!(
                f,
                "{} is marked as in use, but the inode table has no block for it",
                Who(*ino)
            ),
            InodeDamaged { ino } => write!(f, "{}: checksum or inode number mismatch", Who(*ino)),
            InodeField { ino, what } => write!(f, "{}: {what}", Who(*ino)),
            InodeReserved { ino } => write!(f, "{}: reserved fields are not zero", Who(*ino)),
            BlockCount {
                ino,
                recorded,
                found,
            } => {
                write!(
                    f,
                    "{}: the block count is {recorded}, should be {found}",
                    Who(*ino)
                )
            }
            MapPointer {
                ino,
                part,
                level,
                first,
            } => {
                write!(
                    f,
                    "{}, {part}: the level-{level} pointer for file block {first} is damaged",
                    Who(*ino)
                )
            }
            MapEmpty {
                ino,
                part,
                level,
                first,
            } => {
                write!(
                    f,
                    "{}, {part}: the level-{level} pointer block for file block {first} holds no pointers",
                    Who(*ino)
                )
            }
            BlocksMissing {
                ino,
                recorded,
                found,
            } => {
                write!(
                    f,
                    "{}: the block count is {recorded}, but only {found} were found: pointers were lost",
                    Who(*ino)
                )
            }
            MapHole { ino, part, first } => {
                write!(f, "{}, {part}: file block {first} is missing", Who(*ino))
            }
            BadTarget { ino } => write!(
                f,
                "{}: the target of the symbolic link is invalid",
                Who(*ino)
            ),
            LostFlag { ino, marked: true } => write!(
                f,
                "{}: ranges are marked as lost, but its flag for lost ranges is clear",
                Who(*ino)
            ),
            LostFlag { ino, marked: false } => write!(
                f,
                "{}: its flag for lost ranges is set, but no range is marked as lost",
                Who(*ino)
            ),
            TargetChecksum { ino } => {
                write!(
                    f,
                    "{}: checksum mismatch of the symbolic link target",
                    Who(*ino)
                )
            }
            InodeLeaked { ino } => {
                write!(f, "unattached {}: in use, but without a name", Who(*ino))
            }
            TreePointer {
                ino,
                part,
                level,
                index,
            } => {
                write!(
                    f,
                    "{}, {part}: level-{level} pointer {index} is damaged",
                    Who(*ino)
                )
            }
            TreeEmpty {
                ino,
                part,
                level,
                index,
            } => {
                write!(
                    f,
                    "{}, {part}: the index block below level-{level} pointer {index} holds no pointers",
                    Who(*ino)
                )
            }
            TreeLeaf {
                ino,
                part,
                block,
                what,
            } => write!(f, "{}, {part}, leaf block {block}: {what}", Who(*ino)),
            DuplicateName { ino, part, name } => {
                write!(f, "{}, {part}: duplicate name {}", Who(*ino), Name(name))
            }
            DanglingEntry { dir, name, ino } => {
                write!(
                    f,
                    "{}: entry {} names {ino}, which does not exist",
                    Who(*dir),
                    Name(name)
                )
            }
            EntryReserved { dir, name, ino } => {
                write!(
                    f,
                    "{}: entry {} names inode {}, which is reserved and cannot have a name",
                    Who(*dir),
                    Name(name),
                    ino.0
                )
            }
            EntryType { dir, name, ino } => {
                write!(
                    f,
                    "{}: entry {} has the wrong file type for {ino}",
                    Who(*dir),
                    Name(name)
                )
            }
            EntryCount {
                ino,
                recorded,
                found,
            } => {
                write!(
                    f,
                    "{}: the entry count is {recorded}, should be {found}",
                    Who(*ino)
                )
            }
            EntriesMissing {
                ino,
                recorded,
                found,
            } => {
                write!(
                    f,
                    "{}: the entry count is {recorded}, but only {found} were found: names were lost",
                    Who(*ino)
                )
            }
            LinkCount {
                ino,
                recorded,
                found,
            } => {
                write!(
                    f,
                    "{}: the link count is {recorded}, should be {found}",
                    Who(*ino)
                )
            }
            DirectoryNames { ino, names } => {
                write!(f, "{} is a directory with {names} names", Who(*ino))
            }
            DirectoryParent {
                ino,
                recorded,
                found,
            } => {
                write!(
                    f,
                    "{}: the parent is inode {}, should be inode {}",
                    Who(*ino),
                    recorded.0,
                    found.0
                )
            }
            DirectoryLoop { ino } => {
                write!(
                    f,
                    "{} is in a directory loop that the root does not reach",
                    Who(*ino)
                )
            }
            NameOfOrphan { ino } => write!(
                f,
                "{} has a link count of 0, but still has a name",
                Who(*ino)
            ),
            XattrItem { ino, name } => {
                write!(f, "{}: attribute {} is invalid", Who(*ino), Name(name))
            }
            XattrChecksum { ino, name } => {
                write!(
                    f,
                    "{}: checksum mismatch of attribute {}",
                    Who(*ino),
                    Name(name)
                )
            }
            AclDamaged { ino, name } => {
                write!(
                    f,
                    "{}: {} is not a valid ACL for this inode",
                    Who(*ino),
                    Name(name)
                )
            }
            AclMode {
                ino,
                recorded,
                found,
            } => write!(
                f,
                "{}: the mode has permissions {recorded:03o}, but the access ACL has {found:03o}",
                Who(*ino)
            ),
            OrphanSlotDamaged { slot } => write!(f, "orphan table: slot {slot} is damaged"),
            OrphanSlotWrong { slot, ino } => {
                write!(
                    f,
                    "orphan table: slot {slot} names inode {}, which is not an orphan",
                    ino.0
                )
            }
            OrphanTwice { slot, ino } => write!(
                f,
                "orphan table: slot {slot} names {ino}, as an earlier slot does"
            ),
            OrphanNotEmpty { ino } => {
                write!(
                    f,
                    "{} is an orphan directory that still has entries",
                    Who(*ino)
                )
            }
            LeasesLeft => f.write_str("the lease table is not empty"),
            Unreadable { why } => write!(f, "the region could not be read: {why}"),
        }
    }
}
