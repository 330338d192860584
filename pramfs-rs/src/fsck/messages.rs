//! Issues in words: short names, severities, sentences.

use std::fmt;

use super::issue::{Issue, Severity};
use crate::media::bitmap::BitmapKind;
use crate::media::checksum::SEALED_BITS;
use crate::types::Ino;

/// A name as a person can read it on one line.
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

/// An inode by its number, or by its name where it is internal.
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
    /// Short name and severity, in one list.
    fn class(&self) -> (&'static str, Severity) {
        use Issue::*;
        use Severity::{Error, Fatal, Warning};
        match self {
            NoSuperblock { .. } => ("no-superblock", Fatal),
            SuperblockDamaged { .. } => ("superblock-damaged", Error),
            SuperblocksDiffer => ("superblocks-differ", Error),
            LabelsDiffer => ("labels-differ", Warning),
            UnknownFeatures { .. } => ("unknown-features", Fatal),
            CheckpointDamaged { .. } => ("checkpoint-damaged", Error),
            DynamicWordsDiffer => ("dynamic-words-differ", Warning),
            StateUnknown { .. } => ("state-unknown", Warning),
            NotUnmounted => ("not-unmounted", Warning),
            ErrorsRecorded { .. } => ("errors-recorded", Warning),
            InternalInodeDamaged { .. } => ("internal-inode-damaged", Error),
            InternalInodeLost { .. } => ("internal-inode-lost", Fatal),
            InternalInodesDiffer { .. } => ("internal-inodes-differ", Error),
            LiveRecords { .. } => ("live-records", Error),
            RecordsRefused { .. } => ("records-refused", Error),
            RetiredWordDamaged { .. } => ("retired-word-damaged", Error),
            RecordTorn { .. } => ("record-torn", Warning),
            LaneDamaged { .. } => ("lane-damaged", Error),
            LsnsUsedUp { .. } => ("lsns-used-up", Error),
            DescriptorMissing { .. } => ("descriptor-missing", Error),
            BitmapPointer { .. } => ("bitmap-pointer", Error),
            BitmapSum { .. } => ("bitmap-sum", Error),
            BitsPastEnd { .. } => ("bits-past-end", Warning),
            BlocksLeaked { .. } => ("blocks-leaked", Warning),
            BlocksFree { .. } => ("blocks-free", Error),
            BlockUsedTwice { .. } => ("block-used-twice", Error),
            ReservedInodeFree { .. } => ("reserved-inode-free", Error),
            InodeMissing { .. } => ("inode-missing", Error),
            InodeDamaged { .. } => ("inode-damaged", Error),
            InodeField { .. } => ("inode-field", Error),
            InodeReserved { .. } => ("inode-reserved", Warning),
            BlockCount { .. } => ("block-count", Error),
            MapPointer { .. } => ("map-pointer", Error),
            MapEmpty { .. } => ("map-empty", Error),
            BlocksMissing { .. } => ("blocks-missing", Error),
            LostFlag { .. } => ("lost-flag", Warning),
            MapHole { .. } => ("map-hole", Error),
            BadTarget { .. } => ("bad-target", Error),
            TargetChecksum { .. } => ("target-checksum", Error),
            InodeLeaked { .. } => ("inode-leaked", Error),
            TreePointer { .. } => ("tree-pointer", Error),
            TreeEmpty { .. } => ("tree-empty", Error),
            TreeLeaf { .. } => ("tree-leaf", Error),
            DuplicateName { .. } => ("duplicate-name", Error),
            DanglingEntry { .. } => ("dangling-entry", Error),
            EntryReserved { .. } => ("entry-reserved", Error),
            EntryType { .. } => ("entry-type", Error),
            EntryCount { .. } => ("entry-count", Error),
            EntriesMissing { .. } => ("entries-missing", Error),
            LinkCount { .. } => ("link-count", Error),
            DirectoryNames { .. } => ("directory-names", Error),
            DirectoryParent { .. } => ("directory-parent", Error),
            DirectoryLoop { .. } => ("directory-loop", Error),
            NameOfOrphan { .. } => ("name-of-orphan", Error),
            XattrItem { .. } => ("xattr-item", Error),
            XattrChecksum { .. } => ("xattr-checksum", Error),
            AclDamaged { .. } => ("acl-damaged", Error),
            AclMode { .. } => ("acl-mode", Error),
            OrphanSlotDamaged { .. } => ("orphan-slot-damaged", Error),
            OrphanSlotWrong { .. } => ("orphan-slot-wrong", Error),
            OrphanTwice { .. } => ("orphan-twice", Error),
            OrphanNotEmpty { .. } => ("orphan-not-empty", Error),
            LeasesLeft => ("leases-left", Error),
            Unreadable { .. } => ("unreadable", Fatal),
        }
    }

    /// How bad it is.
    pub fn severity(&self) -> Severity {
        self.class().1
    }

    /// A short name that stays the same between versions, for programs.
    pub fn code(&self) -> &'static str {
        self.class().0
    }

    /// The inode that is hurt, if it is one.
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

    /// The first block that is hurt, if it is one.
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
            LabelsDiffer => f.write_str("the two superblocks have different labels"),
            SuperblocksDiffer => f.write_str("the two superblocks describe different file systems"),
            UnknownFeatures { names } => {
                write!(
                    f,
                    "the file system uses features that this version does not know: {}",
                    names.join(", ")
                )
            }
            CheckpointDamaged { page } => write!(f, "the checkpoint in the {page} is damaged"),
            DynamicWordsDiffer => {
                f.write_str("the changing words of the two superblock pages differ")
            }
            StateUnknown { state } => {
                write!(f, "the state word is {state:#x}, neither clean nor mounted")
            }
            NotUnmounted => f.write_str("the file system was not unmounted, or is mounted"),
            ErrorsRecorded { count, errno } => {
                write!(
                    f,
                    "{count} error{} recorded while it was mounted, the first with errno {errno}",
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
                "the journal holds {records} record{} to be replayed: mount the file system once before it is checked",
                plural(*records)
            ),
            RecordsRefused { records } => write!(
                f,
                "the journal holds {records} record{} to be replayed that name what no record may",
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
                "more than half of the journal's record numbers are used up (the largest is {newest}): at {} every change fails",
                1u64 << SEALED_BITS
            ),
            DescriptorMissing { kind, group } => {
                write!(
                    f,
                    "{}, group {group}: its descriptor is missing",
                    bitmap(*kind)
                )
            }
            BitmapPointer { kind, group } => {
                write!(
                    f,
                    "{}, group {group}: the pointer to its bits is damaged",
                    bitmap(*kind)
                )
            }
            BitmapSum { kind, group } => write!(
                f,
                "{}, group {group}: the checksum does not fit",
                bitmap(*kind)
            ),
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
                    "{len} block{} from {start} on are in use and belong to nothing",
                    plural(*len)
                )
            }
            BlocksFree { start, len } => {
                write!(
                    f,
                    "{len} block{} from {start} on are free in the bitmap and in use",
                    plural(*len)
                )
            }
            BlockUsedTwice { block, ino } => {
                write!(f, "block {block} of {} has another owner too", Who(*ino))
            }
            ReservedInodeFree { ino } => {
                write!(f, "inode {} is reserved and free in the bitmap", ino.0)
            }
            InodeMissing { ino } => write!(
                f,
                "{} is in use and the inode table has no block for it",
                Who(*ino)
            ),
            InodeDamaged { ino } => write!(f, "{}: its checksum does not fit", Who(*ino)),
            InodeField { ino, what } => write!(f, "{}: {what}", Who(*ino)),
            InodeReserved { ino } => write!(f, "{}: reserved fields are not zero", Who(*ino)),
            BlockCount {
                ino,
                recorded,
                found,
            } => {
                write!(
                    f,
                    "{} says that it owns {recorded} blocks and owns {found}",
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
                    "{}, {part}: the pointer of level {level} to block {first} is damaged",
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
                    "{}, {part}: the pointer block of level {level} for block {first} holds no pointer",
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
                    "{} counts {recorded} blocks and {found} were found: pointers were lost",
                    Who(*ino)
                )
            }
            MapHole { ino, part, first } => {
                write!(f, "{}, {part}: block {first} is missing", Who(*ino))
            }
            BadTarget { ino } => write!(
                f,
                "{}: a symbolic link whose target cannot be one",
                Who(*ino)
            ),
            LostFlag { ino, marked: true } => write!(
                f,
                "{}: parts of it are marked as lost, and its flag does not say so",
                Who(*ino)
            ),
            LostFlag { ino, marked: false } => write!(
                f,
                "{}: its flag says that parts of it were lost, and none is marked",
                Who(*ino)
            ),
            TargetChecksum { ino } => {
                write!(f, "{}: the checksum of the target does not fit", Who(*ino))
            }
            InodeLeaked { ino } => write!(f, "{} is in use and has no name", Who(*ino)),
            TreePointer {
                ino,
                part,
                level,
                index,
            } => {
                write!(
                    f,
                    "{}, {part}: pointer {index} of level {level} is damaged",
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
                    "{}, {part}: the index block below pointer {index} of level {level} holds no pointer",
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
                write!(
                    f,
                    "{}, {part}: the name {} stands there twice",
                    Who(*ino),
                    Name(name)
                )
            }
            DanglingEntry { dir, name, ino } => {
                write!(
                    f,
                    "{}: the entry {} names {ino}, which does not exist",
                    Who(*dir),
                    Name(name)
                )
            }
            EntryReserved { dir, name, ino } => {
                write!(
                    f,
                    "{}: the entry {} names inode {}, which can have no name",
                    Who(*dir),
                    Name(name),
                    ino.0
                )
            }
            EntryType { dir, name, ino } => {
                write!(
                    f,
                    "{}: the entry {} has another type than {ino}",
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
                    "{} says that it has {recorded} entries and has {found}",
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
                    "{} counts {recorded} entries and {found} were found: names were lost",
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
                    "{} has a link count of {recorded} instead of {found}",
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
                    "{} says that its parent is inode {}, and it is inode {}",
                    Who(*ino),
                    recorded.0,
                    found.0
                )
            }
            DirectoryLoop { ino } => {
                write!(
                    f,
                    "{} is in a loop of directories that the root does not reach",
                    Who(*ino)
                )
            }
            NameOfOrphan { ino } => write!(f, "{} has no links and still a name", Who(*ino)),
            XattrItem { ino, name } => write!(
                f,
                "{}: the attribute {} cannot be right",
                Who(*ino),
                Name(name)
            ),
            XattrChecksum { ino, name } => {
                write!(
                    f,
                    "{}: the checksum of the attribute {} does not fit",
                    Who(*ino),
                    Name(name)
                )
            }
            AclDamaged { ino, name } => {
                write!(f, "{}: {} is no ACL", Who(*ino), Name(name))
            }
            AclMode {
                ino,
                recorded,
                found,
            } => write!(
                f,
                "{}: the mode says {recorded:03o}, the access ACL {found:03o}",
                Who(*ino)
            ),
            OrphanSlotDamaged { slot } => write!(f, "orphan table: slot {slot} is damaged"),
            OrphanSlotWrong { slot, ino } => {
                write!(
                    f,
                    "orphan table: slot {slot} names inode {}, which is no orphan",
                    ino.0
                )
            }
            OrphanTwice { slot, ino } => write!(f, "orphan table: slot {slot} names {ino} again"),
            OrphanNotEmpty { ino } => {
                write!(f, "{} is a removed directory that has entries", Who(*ino))
            }
            LeasesLeft => f.write_str("the lease table is not empty"),
            Unreadable { why } => write!(f, "the region could not be read: {why}"),
        }
    }
}
