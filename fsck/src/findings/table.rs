//! The table of findings: one row for each kind of damage that a check can find.
//!
//! A row holds the meaning (the document prints it), the fields, the cells (see
//! [`Cells`]), the sentence and the remedy. An expression may use the fields. Words
//! after `=>` stand in the document for a cell that depends on the fields, or for a
//! remedy that needs more words than a question to the user.

use std::fmt;

use super::*;
use crate::outcome::Done::*;
use Severity::{Error, Fatal, Warning};
use pramfs_medium::media::checksum::SEALED_BITS;

findings! {
    // ---- superblock pages

    /// Neither page can be used.
    NoSuperblock { why: String = "What is wrong with the first page." }
        Fatal, phase: NEVER, safe: false, done: Rebuilt;
        says: "no usable superblock: {why}";
        remedy: "none";

    /// One page cannot be used; the other serves.
    SuperblockDamaged {
        page: Page = "The damaged page.",
        what: &'static str = "What is wrong with it.",
    }
        Error, phase: 0, safe: true, done: Copied;
        says: "the {page} is damaged: {what}";
        remedy: "copy from the other page";

    /// Both static parts are valid and differ.
    SuperblocksDiffer
        Error, phase: 0, safe: false, done: Copied;
        says: "the superblock pages describe different file systems";
        remedy: "copy the page that mounts use over the other";

    /// Both static parts are valid and differ only in the label, the default options, the reserve, or in the features
    /// `parked_leases`, `append_windows`, `atomic_data`, `ranged_marks` and `bad_blocks`: a crash while it was changed.
    LabelsDiffer
        Warning, phase: 0, safe: true, done: Copied;
        says: "the superblock pages differ in the label or in a feature that mounts change";
        remedy: "copy the page that mounts use to the other";

    /// Both static parts are valid and differ only in the size, and perhaps in what a mount
    /// changes: a crash in a grow. Mounts use the size of the first page.
    GrowInterrupted
        Warning, phase: 0, safe: true, done: Copied;
        says: "the superblock pages differ in the size: a grow was interrupted, and can be repeated";
        remedy: "copy the page that mounts use to the other";

    /// The file system uses features that this version does not support.
    UnknownFeatures { names: Vec<String> = "Their names." }
        Fatal, phase: NEVER, safe: false, done: Rebuilt;
        says: "the file system uses features that this version does not support: {}",
            names.join(", ");
        remedy: "none";

    /// Checksum mismatch of a checkpoint word.
    CheckpointDamaged { page: Page = "The page that holds it." }
        Error, phase: 0, safe: true, done: Copied;
        says: "the checkpoint in the {page} is damaged";
        remedy: "copy from the other page";

    /// The dynamic words of the two pages differ.
    DynamicWordsDiffer
        Warning, phase: 12, safe: true, done: Copied;
        says: "the dynamic words of the superblock pages differ";
        remedy: "copy from the page that mounts use";

    /// The state word is neither clean nor mounted.
    StateUnknown { state: u64 = "The state word." }
        Warning, phase: 0, safe: true, done: Set;
        says: "the state word is {state:#x}: neither clean nor mounted";
        remedy: "set to clean";

    /// The last mount did not end with an unmount.
    NotUnmounted
        Warning, phase: 12, safe: true, done: Set;
        says: "the file system was not unmounted cleanly, or is mounted";
        remedy: "set to clean";

    /// The engine recorded errors since mkfs or the last repair.
    ErrorsRecorded { count: u32 = "Number of errors.", errno: u32 = "The errno of the first." }
        Warning, phase: 12, safe: true, done: Cleared;
        says: "{count} error{} recorded while mounted; the first has errno {errno}",
            if *count == 1 { " was" } else { "s were" };
        remedy: "reset the error counters";

    /// Scrubs have found something since mkfs or the last repair.
    ScrubFindings { count: u64 = "Number of findings." }
        Warning, phase: 12, safe: true, done: Cleared;
        says: "{count} finding{} of scrubs {} recorded; if fsck finds nothing, scrub again",
            if *count == 1 { "" } else { "s" }, if *count == 1 { "is" } else { "are" };
        remedy: "clear the record of the scrubs";

    /// More of the record of the scrubs is damaged than a crash can explain.
    ScrubRecordDamaged
        Warning, phase: 0, safe: true, done: Cleared;
        says: "the record of the scrubs is damaged";
        remedy: "clear it";

    /// An internal inode is damaged in one page.
    InternalInodeDamaged { page: Page = "The page that holds it.", ino: Ino = "The inode." }
        Error, phase: 0, safe: true, done: Copied, inode: *ino;
        says: "the inode of the {} is damaged in the {page}", Who(*ino);
        remedy: "copy from the other page";

    /// An internal inode is damaged in both pages.
    InternalInodeLost { ino: Ino = "The inode." }
        Fatal, phase: 1, safe: false, done: Corrected, inode: *ino;
        says: "the inode of the {} is damaged in both superblock pages", Who(*ino);
        remedy: "correct by its checksum";

    /// An internal inode is valid in both pages, and they differ.
    InternalInodesDiffer { ino: Ino = "The inode." }
        Error, phase: 0, safe: false, done: Copied, inode: *ino;
        says: "the inode of the {} differs between the superblock pages", Who(*ino);
        remedy: "copy the one that changed last over the other";

    // ---- journal

    /// The journal holds records that a mount would replay.
    LiveRecords { records: u64 = "Number of records." }
        Error, phase: NEVER => "before 0", safe: true, done: Replayed;
        says: "the journal holds {records} record{} to replay: mount the file system once, then \
            check it", plural(*records);
        remedy: "replay";

    /// The journal holds records to replay, and at least one targets a place that no record may
    /// change: a mount refuses them.
    RecordsRefused { records: u64 = "Number of all records to replay." }
        Error, phase: NEVER => "before 0", safe: false, done: Discarded;
        says: "the journal holds {records} record{} to replay, and at least one targets a place \
            that no record may change", plural(*records);
        remedy: "do not replay; repair what they left incomplete";

    /// Checksum mismatch of a lane's `retired` word or of its copy.
    RetiredWordDamaged { lane: u32 = "Lane.", copy: u64 = "0: the word, 1: its copy." }
        Error, phase: 0, safe: true, done: Copied;
        says: "journal lane {lane}: {} is damaged",
            if *copy == 0 { "the retired word" } else { "the copy of the retired word" };
        remedy: "copy from the other word";

    /// A slot holds no valid record.
    RecordTorn { lane: u32 = "Lane.", slot: u32 = "Slot, 0 or 1." }
        Warning, phase: 0, safe: true, done: Cleared;
        says: "journal lane {lane}: slot {slot} holds no valid record";
        remedy: "empty the slot";

    /// Both slots of a lane hold no valid record: no crash leaves that.
    LaneDamaged { lane: u32 = "Lane." }
        Error, phase: 0, safe: false, done: Cleared;
        says: "journal lane {lane}: neither slot holds a valid record";
        remedy: "empty both slots";

    /// At least half of the journal's record numbers (2^51 of 2^52) are used up. Once all are,
    /// every change fails.
    LsnsUsedUp { newest: u64 = "The largest number in use." }
        Error, phase: 11, safe: true, done: Renumbered;
        says: "at least half of the journal's record numbers are used up (the largest is \
            {newest}); at {} every change fails", 1u64 << SEALED_BITS;
        remedy: "empty the journal and restart its numbers"
            => "empty the journal and restart its numbers above all generations";

    // ---- bitmaps

    /// The file of group descriptors does not reach a group.
    DescriptorMissing { kind: BitmapKind = "Bitmap.", group: u64 = "Group." }
        Error, phase: group_phase(*kind, 1) => "1 or 3", safe: false, done: Rebuilt;
        says: "{}, group {group}: the group descriptor is missing", bitmap(*kind);
        remedy: "find it, or rebuild from what is in use";

    /// A descriptor's pointer to its bitmap is invalid.
    BitmapPointer { kind: BitmapKind = "Bitmap.", group: u64 = "Group." }
        Error, phase: group_phase(*kind, 2) => "2 or 4",
        safe: *kind == BitmapKind::Blocks => "of blocks", done: Rebuilt;
        says: "{}, group {group}: the pointer to the bitmap block is damaged", bitmap(*kind);
        remedy: "find the bitmap, or rebuild from what is in use";

    /// Checksum mismatch of a bitmap: its sum is not the one in its descriptor.
    BitmapSum { kind: BitmapKind = "Bitmap.", group: u64 = "Group." }
        Error, phase: group_phase(*kind, 2) => "2 or 4",
        safe: *kind == BitmapKind::Blocks => "of blocks", done: Rebuilt;
        says: "{}, group {group}: checksum mismatch", bitmap(*kind);
        remedy: "correct, or recompute";

    /// Bits past the end of a bitmap are set.
    BitsPastEnd { kind: BitmapKind = "Bitmap.", group: u64 = "Group." }
        Warning, phase: group_phase(*kind, 2) => "2 or 4", safe: true, done: Cleared;
        says: "{}, group {group}: bits past the end are set", bitmap(*kind);
        remedy: "clear";

    /// Blocks are allocated but unused: the bitmap marks them as in use, and they have no
    /// owner.
    BlocksLeaked { start: u64 = "First block.", len: u64 = "Number of blocks." }
        Warning, phase: 11, safe: true, done: Freed, block: *start;
        says: "{len} block{} starting at block {start}: allocated but unused", plural(*len);
        remedy: "free, or keep in lost+found if damage had hidden them"
            => "free; if damage had hidden them and they hold data, keep in lost+found";

    /// Blocks have an owner, and the bitmap marks them as free.
    BlocksFree { start: u64 = "First block.", len: u64 = "Number of blocks." }
        Error, phase: 11, safe: true, done: Marked, block: *start;
        says: "{len} block{} starting at block {start}: in use, but marked as free", plural(*len);
        remedy: "mark as in use";

    /// Multiply-claimed block: two owners name it.
    BlockUsedTwice {
        block: u64 = "The block.",
        ino: Ino = "The owner that the check found second.",
    }
        Error, phase: inode_phase(*ino, 7) => "1, 3 or 7", safe: false, done: Separated,
        inode: *ino, block: *block;
        says: "multiply-claimed block {block}: {} also claims it", Who(*ino);
        remedy: "give each owner a block of its own";

    // ---- inodes

    /// The inode bitmap marks a reserved inode as free.
    ReservedInodeFree { ino: Ino = "The inode number." }
        Error, phase: 4, safe: true, done: Marked, inode: *ino;
        says: "inode {} is reserved, but marked as free", ino.0;
        remedy: "mark as in use";

    /// An inode is in use, and the inode table has no block for it.
    InodeMissing { ino: Ino = "The inode." }
        Error, phase: 5, safe: false, done: Freed, inode: *ino;
        says: "{} is marked as in use, but the inode table has no block for it", Who(*ino);
        remedy: "mark as free";

    /// Checksum or number mismatch of an inode.
    InodeDamaged { ino: Ino = "The inode." }
        Error, phase: 5 => "5 or 8", safe: false, done: Rebuilt, inode: *ino;
        says: "{}: checksum or inode number mismatch", Who(*ino);
        remedy: "correct by its checksum, keep if its pointers prove it, or free"
            => "correct by its checksum; else keep if its pointers prove it; else rebuild a \
                directory from its leaves; else free";

    /// A field holds an invalid value.
    InodeField {
        ino: Ino = "The inode.",
        what: &'static str = "The field, and what is wrong with it.",
    }
        Error, phase: 5 => "5 or 8", safe: false, done: Set, inode: *ino;
        says: "{}: {what}", Who(*ino);
        remedy: "set to a valid value";

    /// Reserved fields are not zero.
    InodeReserved { ino: Ino = "The inode." }
        Warning, phase: 11, safe: true, done: Cleared, inode: *ino;
        says: "{}: reserved fields are not zero", Who(*ino);
        remedy: "clear";

    /// An inode counts fewer blocks than it owns.
    BlockCount {
        ino: Ino = "The inode.",
        recorded: u64 = "The value in the inode.",
        found: u64 = "The value found by the check.",
    }
        Error, phase: inode_phase(*ino, 11) => "1, 3 or 11", safe: true, done: Set, inode: *ino;
        says: "{}: the block count is {recorded}, should be {found}", Who(*ino);
        remedy: "set to the number found";

    /// A pointer of a file map is invalid.
    MapPointer {
        ino: Ino = "The inode.",
        part: Part = "Contents, or a large attribute.",
        level: u32 = "Level of the pointer; 0 if it names a data block.",
        first: u64 = "First file block that it covers.",
    }
        Error, phase: map_phase(*ino, 6) => "1, 3, 5 or 6", safe: false,
        done: part.pick(Cleared, Removed), inode: *ino;
        says: "{}, {part}: the level-{level} pointer for file block {first} is damaged", Who(*ino);
        remedy: if is_internal(*ino) {
            "correct, or find its blocks"
        } else {
            part.pick(
                "correct, or mark as lost: EIO until it is written",
                "correct, or remove the attribute",
            )
        }
            => "of a file: correct, find by its content, or mark as lost; of an attribute: \
                correct, or remove the attribute; of the inode table and descriptors: correct, or \
                find their blocks by their content; of the lease table: correct, or empty it";

    /// A pointer block of a file map holds no pointers. The format frees such a block, so its
    /// pointers were lost.
    MapEmpty {
        ino: Ino = "The inode.",
        part: Part = "Contents, or a large attribute.",
        level: u32 = "Level of the pointer to it.",
        first: u64 = "First file block that it covers.",
    }
        Error, phase: map_phase(*ino, part.pick(8, 6)) => "1, 3, 5, 6 or 8", safe: false,
        done: part.pick(Cleared, Removed), inode: *ino;
        says: "{}, {part}: the level-{level} pointer block for file block {first} holds no \
            pointers", Who(*ino);
        remedy: part.pick(
            "find pointer blocks by their content, or mark as lost",
            "remove the attribute",
        )
            => "find pointer blocks by their content, or mark as lost; of an attribute: remove \
                it; of the inode table and descriptors: find their blocks by their content; of \
                the lease table: empty it";

    /// An inode owns fewer blocks than it counts: pointers were lost.
    BlocksMissing {
        ino: Ino = "The inode.",
        recorded: u64 = "The value in the inode.",
        found: u64 = "The value found by the check.",
    }
        Error, phase: inode_phase(*ino, 8) => "1, 3 or 8", safe: false, done: Set, inode: *ino;
        says: "{}: the block count is {recorded}, but only {found} were found: pointers were lost",
            Who(*ino);
        remedy: "find pointer blocks by their content; keep data without an owner in lost+found"
            => "find pointer blocks and leaves by their content; keep data without an owner in \
                lost+found; then set to the number found, and mark holes as lost if all of them \
                were";

    /// A file's flag for lost ranges does not match its map.
    LostFlag { ino: Ino = "The inode.", marked: bool = "Whether the map marks any range as lost." }
        Warning, phase: 11, safe: true, done: Set, inode: *ino;
        says: "{}: {}", Who(*ino), if *marked {
            "ranges are marked as lost, but its flag for lost ranges is clear"
        } else {
            "its flag for lost ranges is set, but no range is marked as lost"
        };
        remedy: "set to match the map";

    /// The mark that checksums of a file's data do not hold has an impossible range of blocks.
    MarkedRange {
        ino: Ino = "The inode.",
        is_flagged: bool = "Whether the inode has the flag of the mark.",
        what: &'static str = "What is wrong."
    }
        Error, phase: 11, safe: true, done: Set, inode: *ino;
        says: "{}: the range of blocks whose checksums do not hold is impossible: {what}",
            Who(*ino);
        remedy: if *is_flagged {
            "mark the whole file, which the next mount that uses it sums"
        } else {
            "clear"
        }
            => "with the flag, mark the whole file, which the next mount that uses it sums; else \
                clear";

    /// The checksum of file data does not match, or is damaged itself.
    DataSum {
        ino: Ino = "The inode.",
        offset: u64 = "Offset in the file of the first such byte.",
        len: u64 = "Number of bytes, up to the end of the last such block."
    }
        Error, phase: NEVER, safe: false, done: Set, inode: *ino;
        says: "{}: the checksum of {len} bytes at offset {offset} does not match", Who(*ino);
        remedy: "none: reading them fails with EIO, until the whole blocks are written";

    /// Part of a file that must be whole is a hole, or not written.
    MapHole {
        ino: Ino = "The inode.",
        part: Part = "Contents, or a large attribute.",
        first: u64 = "First file block that is missing.",
    }
        Error, phase: map_phase(*ino, 6) => "1, 3, 5 or 6", safe: false,
        done: part.pick(Cleared, Removed), inode: *ino;
        says: "{}, {part}: file block {first} is missing", Who(*ino);
        remedy: part.pick("rebuild, or remove the link", "remove the attribute")
            => "of a link: remove the link; of an attribute: remove the attribute; of the orphan \
                table: rebuild it; of the lease table: empty it";

    /// A symbolic link has an invalid target.
    BadTarget { ino: Ino = "The inode." }
        Error, phase: 6, safe: false, done: Removed, inode: *ino;
        says: "{}: the target of the symbolic link is invalid", Who(*ino);
        remedy: "correct, or remove the link";

    /// Checksum mismatch of the target of a long symbolic link.
    TargetChecksum { ino: Ino = "The inode." }
        Error, phase: 6, safe: false, done: Removed, inode: *ino;
        says: "{}: checksum mismatch of the symbolic link target", Who(*ino);
        remedy: "correct, or remove the link";

    /// Unattached inode: neither an entry nor the orphan table names it, or the orphan table
    /// does and its link count is not 0.
    InodeLeaked { ino: Ino = "The inode." }
        Error, phase: 10, safe: true, done: Moved, inode: *ino;
        says: "unattached {}: in use, but without a name", Who(*ino);
        remedy: "connect to lost+found, or free if it was unlinked";

    // ---- hash trees

    /// A pointer of a hash tree is invalid.
    TreePointer {
        ino: Ino = "Owner.",
        part: Part = "Entries or attributes.",
        level: u32 = "Level; 0 for the root.",
        index: u64 = "Number of the pointer in its level.",
    }
        Error, phase: 6, safe: false, done: Rebuilt, inode: *ino;
        says: "{}, {part}: level-{level} pointer {index} is damaged", Who(*ino);
        remedy: "correct, or rebuild the tree from the leaves found";

    /// An index block of a hash tree holds no pointers.
    TreeEmpty {
        ino: Ino = "Owner.",
        part: Part = "Entries or attributes.",
        level: u32 = "Level of the pointer to it; 0 for the root.",
        index: u64 = "Number of the pointer in its level.",
    }
        Error, phase: 6, safe: false, done: Rebuilt, inode: *ino;
        says: "{}, {part}: the index block below level-{level} pointer {index} holds no pointers",
            Who(*ino);
        remedy: "rebuild the tree from the leaves found";

    /// A leaf of a hash tree is invalid.
    TreeLeaf {
        ino: Ino = "Owner.",
        part: Part = "Entries or attributes.",
        block: u64 = "Block.",
        what: &'static str = "What is wrong with it.",
    }
        Error, phase: 6, safe: false, done: Rebuilt, inode: *ino, block: *block;
        says: "{}, {part}, leaf block {block}: {what}", Who(*ino);
        remedy: "correct, or rebuild from the items that can be verified";

    /// A name occurs twice in one tree.
    DuplicateName {
        ino: Ino = "Owner.",
        part: Part = "Entries or attributes.",
        name: Vec<u8> = "The name.",
    }
        Error, phase: 6, safe: false, done: Removed, inode: *ino;
        says: "{}, {part}: duplicate name {}", Who(*ino), Name(name);
        remedy: "keep the first one";

    // ---- directories

    /// An entry names an inode that does not exist.
    DanglingEntry {
        dir: Ino = "Directory.",
        name: Vec<u8> = "Name.",
        ino: Ino = "The inode that it names.",
    }
        Error, phase: 9, safe: false, done: Removed, inode: *dir;
        says: "{}: entry {} names {ino}, which does not exist", Who(*dir), Name(name);
        remedy: "remove the entry";

    /// An entry names a reserved inode, which can have no name.
    EntryReserved {
        dir: Ino = "Directory.",
        name: Vec<u8> = "Name.",
        ino: Ino = "The inode that it names.",
    }
        Error, phase: 9, safe: false, done: Removed, inode: *dir;
        says: "{}: entry {} names inode {}, which is reserved and cannot have a name",
            Who(*dir), Name(name), ino.0;
        remedy: "remove the entry";

    /// The type in an entry is not that of its inode.
    EntryType {
        dir: Ino = "Directory.",
        name: Vec<u8> = "Name.",
        ino: Ino = "The inode that it names.",
    }
        Error, phase: 9, safe: true, done: Set, inode: *dir;
        says: "{}: entry {} has the wrong file type for {ino}", Who(*dir), Name(name);
        remedy: "set to the type of the inode";

    /// A directory counts fewer entries than it holds.
    EntryCount {
        ino: Ino = "Directory.",
        recorded: u64 = "The value in its inode.",
        found: u64 = "The value found by the check.",
    }
        Error, phase: 11, safe: true, done: Set, inode: *ino;
        says: "{}: the entry count is {recorded}, should be {found}", Who(*ino);
        remedy: "set to the number found";

    /// A directory holds fewer entries than it counts: names were lost.
    EntriesMissing {
        ino: Ino = "Directory.",
        recorded: u64 = "The value in its inode.",
        found: u64 = "The value found by the check.",
    }
        Error, phase: 6, safe: false, done: Rebuilt, inode: *ino;
        says: "{}: the entry count is {recorded}, but only {found} were found: names were lost",
            Who(*ino);
        remedy: "rebuild the tree from the leaves found"
            => "rebuild the tree with the leaves found; then set to the number found";

    /// The link count is not the number of names.
    LinkCount {
        ino: Ino = "The inode.",
        recorded: u32 = "The value in the inode.",
        found: u32 = "The value found by the check.",
    }
        Error, phase: 11, safe: true, done: Set, inode: *ino;
        says: "{}: the link count is {recorded}, should be {found}", Who(*ino);
        remedy: "set to the number found";

    /// A directory has more than one name.
    DirectoryNames { ino: Ino = "The directory.", names: u32 = "Number of names." }
        Error, phase: 9, safe: false, done: Removed, inode: *ino;
        says: "{} is a directory with {names} names", Who(*ino);
        remedy: "keep the name in its parent";

    /// The parent of a directory is not the directory that names it.
    DirectoryParent {
        ino: Ino = "The directory.",
        recorded: Ino = "The value in its inode.",
        found: Ino = "The value found by the check.",
    }
        Error, phase: 11, safe: true, done: Set, inode: *ino;
        says: "{}: the parent is inode {}, should be inode {}", Who(*ino), recorded.0, found.0;
        remedy: "set to the directory that names it";

    /// Directories name each other, and the root does not reach them.
    DirectoryLoop { ino: Ino = "One of them." }
        Error, phase: 9, safe: false, done: Moved, inode: *ino;
        says: "{} is in a directory loop that the root does not reach", Who(*ino);
        remedy: "break the loop, and connect what it held to lost+found";

    /// An inode with a link count of 0 still has a name.
    NameOfOrphan { ino: Ino = "The inode." }
        Error, phase: 9, safe: false, done: Set, inode: *ino;
        says: "{} has a link count of 0, but still has a name", Who(*ino);
        remedy: "set the link count to the number of names found";

    // ---- extended attributes

    /// The item of an attribute is invalid.
    XattrItem { ino: Ino = "Owner.", name: Vec<u8> = "Name." }
        Error, phase: 6, safe: false, done: Removed, inode: *ino;
        says: "{}: attribute {} is invalid", Who(*ino), Name(name);
        remedy: "correct, or remove the attribute";

    /// Checksum mismatch of a large attribute.
    XattrChecksum { ino: Ino = "Owner.", name: Vec<u8> = "Name." }
        Error, phase: 6, safe: false, done: Removed, inode: *ino;
        says: "{}: checksum mismatch of attribute {}", Who(*ino), Name(name);
        remedy: "remove the attribute";

    /// An ACL is malformed, or on an inode that cannot have one.
    AclDamaged { ino: Ino = "Owner.", name: Vec<u8> = "Name." }
        Error, phase: 6, safe: false, done: Removed, inode: *ino;
        says: "{}: {} is not a valid ACL for this inode", Who(*ino), Name(name);
        remedy: "remove it, and clear the group permissions; what it denied to named users is lost"
            => "remove it, and clear the group permissions, as for attributes that are lost with \
                their leaf; what it denied to named users is lost";

    /// The permission bits are not those of the access ACL.
    AclMode {
        ino: Ino = "Owner.",
        recorded: u32 = "The value in the inode.",
        found: u32 = "The permissions in the ACL, which take precedence.",
    }
        Error, phase: 11, safe: true, done: Set, inode: *ino;
        says: "{}: the mode has permissions {recorded:03o}, but the access ACL has {found:03o}",
            Who(*ino);
        remedy: "set to those of the ACL";

    // ---- tables

    /// Checksum mismatch of a slot of the orphan table.
    OrphanSlotDamaged { slot: u64 = "Slot." }
        Error, phase: 9, safe: true, done: Cleared, inode: Ino::ORPHANS;
        says: "orphan table: slot {slot} is damaged";
        remedy: "empty the slot";

    /// A slot of the orphan table names an inode that cannot be an orphan.
    OrphanSlotWrong { slot: u64 = "Slot.", ino: Ino = "The inode that it names." }
        Error, phase: 9, safe: true, done: Cleared, inode: *ino;
        says: "orphan table: slot {slot} names inode {}, which is not an orphan", ino.0;
        remedy: "empty the slot";

    /// Two slots of the orphan table name one inode.
    OrphanTwice { slot: u64 = "The second slot.", ino: Ino = "The inode that it names." }
        Error, phase: 9, safe: true, done: Cleared, inode: *ino;
        says: "orphan table: slot {slot} names {ino}, as an earlier slot does";
        remedy: "empty the slot";

    /// An orphan directory, removed and about to be freed, still has entries.
    OrphanNotEmpty { ino: Ino = "The directory." }
        Error, phase: 9, safe: true, done: Moved, inode: *ino;
        says: "{} is an orphan directory that still has entries", Who(*ino);
        remedy: "connect to lost+found";

    /// Checksum mismatch of a slot of the lease table.
    LeaseSlotDamaged {
        slot: u64 = "Slot.",
        appended: bool = "Whether bytes were appended in its append window.",
    }
        Error, phase: 5, safe: !*appended => "without appended bytes", done: Cleared,
        inode: Ino::LEASES;
        says: "lease table: slot {slot} is damaged{}", appended_to_unknown(*appended);
        remedy: "correct by its checksum, or empty the slot";

    /// A slot of the lease table names an inode that is not a regular file, or of which
    /// another generation exists.
    LeaseSlotWrong { slot: u64 = "Slot.", ino: Ino = "The inode that it names." }
        Error, phase: 9, safe: true, done: Cleared, inode: *ino;
        says: "lease table: slot {slot} names inode {}, which is not that file", ino.0;
        remedy: "empty the slot";

    /// The lease table has slots in use, or append windows, and the superblock lacks the
    /// feature that keeps older versions from changing such files.
    LeaseFeatureMissing { name: &'static str = "The feature." }
        Error, phase: 9, safe: true, done: Cleared, inode: Ino::LEASES;
        says: "lease table: it is in use, but the feature {name} is not set";
        remedy: "end the leases" => "close the append windows, or empty the slots";

    /// A free slot of the lease table has an append window.
    AppendWindowLeft {
        slot: u64 = "Slot.",
        appended: bool = "Whether bytes were appended in it.",
    }
        Error, phase: 9, safe: !*appended => "without appended bytes", done: Cleared,
        inode: Ino::LEASES;
        says: "lease table: slot {slot} is free, but it has an append window{}",
            appended_to_unknown(*appended);
        remedy: "clear the append window";

    /// Checksum mismatch of an append window, or an impossible one.
    AppendWindowDamaged {
        slot: u64 = "Slot.",
        ino: Ino = "The file.",
        what: &'static str = "What is wrong with it.",
        bytes: u64 = "Bytes that may have been appended: the blocks past the end of the file.",
    }
        Error, phase: 5, safe: *bytes == 0 => "without appended bytes", done: Cleared,
        inode: *ino;
        says: "lease table: slot {slot}, a lease of {ino}: {what}{}", appended_past_end(*bytes);
        remedy: "correct by its checksum, or clear; the size stays"
            => "correct by its checksum, and close as `append-window-open`; else clear: the size \
                stays, and so do the blocks past the end";

    /// An append window contradicts the size or the map of its file, or another lease of the
    /// file.
    AppendWindowWrong {
        slot: u64 = "Slot.",
        ino: Ino = "The file.",
        what: &'static str = "What is wrong with it.",
    }
        Error, phase: 5, safe: false, done: Cleared, inode: *ino;
        says: "lease table: slot {slot}, the append window of {ino}: {what}";
        remedy: "close it: add what was appended to the size of the file";

    /// The check of the word that tells how much was appended in a window does not fit, or it
    /// tells more than the window holds.
    AppendEndDamaged {
        slot: u64 = "Slot.",
        ino: Ino = "The file.",
        bytes: u64 = "Bytes that may have been appended: the blocks of the window past the end \
            of the file.",
    }
        Error, phase: 5, safe: false, done: Cleared, inode: *ino;
        says: "lease table: slot {slot}, the append window of {ino}: the number of bytes appended \
            is damaged{}", appended_past_end(*bytes);
        remedy: "correct by its check, or clear; the size stays"
            => "correct by its check, and close as `append-window-open`; else clear: the size \
                stays, and so do the blocks past the end";

    /// An append window is open, and bytes may have been appended in it: a crash. The next
    /// mount closes it.
    AppendWindowOpen {
        slot: u64 = "Slot.",
        ino: Ino = "The file.",
        bytes: u64 = "Bytes appended that the size of the file does not count yet.",
    }
        Warning, phase: 5, safe: true, done: Set, inode: *ino;
        says: "lease table: slot {slot} has an open append window of {ino}; {bytes} byte{} \
            appended past the size of the file", if *bytes == 1 { " was" } else { "s were" };
        remedy: "close it: add what was appended to the size of the file";

    // ---- the medium

    /// The list of bad blocks is damaged, or the superblock lacks its feature.
    BadBlockListDamaged { what: String = "What is wrong with it." }
        Error, phase: 11, safe: true, done: Cleared;
        says: "the list of bad blocks is damaged: {what}";
        remedy: "clear it, and list the bad blocks that are known";

    /// Blocks that have failed are not in the list of bad blocks.
    BadBlockUnlisted { start: u64 = "The first block.", len: u64 = "Number of blocks." }
        Error, phase: 11, safe: true, done: Marked;
        says: "the medium has failed under {len} block{} from block {start} on, and the list of \
            bad blocks does not name {}", if *len == 1 { "" } else { "s" },
            if *len == 1 { "it" } else { "them" };
        remedy: "take out of use: add to the list of bad blocks";

    /// Reading failed.
    Unreadable { why: String = "What failed." }
        Fatal, phase: NEVER, safe: false, done: Rebuilt;
        says: "the region could not be read: {why}";
        remedy: "none";
}
