//! [`Damage`]: the kinds of damage, one list for the engine's errors and fsck's findings.

macro_rules! kinds {
    ($($(#[$doc:meta])+ $name:ident = $code:literal,)+) => {
        /// A kind of damage on the medium. The errors of the engine and the findings of
        /// fsck share the list.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Damage {
            $($(#[$doc])+ $name,)+
        }

        impl Damage {
            /// All kinds.
            pub const ALL: &'static [Damage] = &[$(Damage::$name,)+];

            /// A short name for programs. It stays the same between versions.
            ///
            /// ```
            /// # use pramfs_medium::error as pramfs;
            /// use pramfs::Damage;
            /// assert_eq!(Damage::InodeDamaged.code(), "inode-damaged");
            /// ```
            pub const fn code(self) -> &'static str {
                match self {
                    $(Damage::$name => $code,)+
                }
            }
        }
    };
}

kinds! {
    /// No superblock page is valid.
    NoSuperblock = "no-superblock",
    /// One superblock page is damaged.
    SuperblockDamaged = "superblock-damaged",
    /// The superblock pages differ in the label, or in the features of the lease table.
    LabelsDiffer = "labels-differ",
    /// The superblock pages differ in the size of the file system.
    GrowInterrupted = "grow-interrupted",
    /// The superblock pages describe different file systems.
    SuperblocksDiffer = "superblocks-differ",
    /// Feature bits that this version does not support.
    UnknownFeatures = "unknown-features",
    /// The checkpoint of a superblock page is damaged.
    CheckpointDamaged = "checkpoint-damaged",
    /// The dynamic words of the superblock pages differ.
    DynamicWordsDiffer = "dynamic-words-differ",
    /// The state word is neither clean nor mounted.
    StateUnknown = "state-unknown",
    /// The file system was not unmounted cleanly, or is mounted.
    NotUnmounted = "not-unmounted",
    /// Errors were recorded while the file system was mounted.
    ErrorsRecorded = "errors-recorded",
    /// Scrubs have found something while the file system was mounted.
    ScrubFindings = "scrub-findings",
    /// The record of the scrubs is damaged.
    ScrubRecordDamaged = "scrub-record-damaged",
    /// An inode of the superblock pages is damaged in one of them.
    InternalInodeDamaged = "internal-inode-damaged",
    /// An inode of the superblock pages is damaged in both.
    InternalInodeLost = "internal-inode-lost",
    /// An inode of the superblock pages differs between them.
    InternalInodesDiffer = "internal-inodes-differ",
    /// Journal records to replay.
    LiveRecords = "live-records",
    /// Journal records that target a place that no record may change.
    RecordsRefused = "records-refused",
    /// The retired word of a journal lane is damaged.
    RetiredWordDamaged = "retired-word-damaged",
    /// A journal record is torn.
    RecordTorn = "record-torn",
    /// A journal lane is damaged.
    LaneDamaged = "lane-damaged",
    /// The record numbers of the journal are used up.
    LsnsUsedUp = "lsns-used-up",
    /// The descriptor of a bitmap group is missing.
    DescriptorMissing = "descriptor-missing",
    /// The pointer to a bitmap block is damaged.
    BitmapPointer = "bitmap-pointer",
    /// The checksum of a bitmap group does not match.
    BitmapSum = "bitmap-sum",
    /// Bits past the end of a bitmap.
    BitsPastEnd = "bits-past-end",
    /// Blocks are allocated but unused.
    BlocksLeaked = "blocks-leaked",
    /// Blocks are in use but marked as free.
    BlocksFree = "blocks-free",
    /// A multiply-claimed block.
    BlockUsedTwice = "block-used-twice",
    /// A reserved inode is marked as free.
    ReservedInodeFree = "reserved-inode-free",
    /// An inode is marked as in use, but the inode table has no block for it.
    InodeMissing = "inode-missing",
    /// The checksum or the number of an inode does not match.
    InodeDamaged = "inode-damaged",
    /// A field of an inode has an impossible value.
    InodeField = "inode-field",
    /// Reserved bytes of an inode are not zero.
    InodeReserved = "inode-reserved",
    /// The block count of an inode is wrong.
    BlockCount = "block-count",
    /// A pointer of a file map is damaged.
    MapPointer = "map-pointer",
    /// A pointer block of a file map holds no pointers.
    MapEmpty = "map-empty",
    /// A file has fewer blocks than its inode counts: pointers were lost.
    BlocksMissing = "blocks-missing",
    /// The flag for lost ranges does not match the map.
    LostFlag = "lost-flag",
    /// The mark that checksums of a file do not hold has an impossible range.
    MarkedRange = "marked-range",
    /// The checksum of file data does not match.
    DataSum = "data-sum",
    /// A block is missing where a file must have no hole.
    MapHole = "map-hole",
    /// The target of a symbolic link is invalid.
    BadTarget = "bad-target",
    /// The checksum of the target of a symbolic link does not match.
    TargetChecksum = "target-checksum",
    /// An inode is in use, but has no name.
    InodeLeaked = "inode-leaked",
    /// A pointer of a hash tree is damaged.
    TreePointer = "tree-pointer",
    /// An index block of a hash tree holds no pointers.
    TreeEmpty = "tree-empty",
    /// A leaf of a hash tree is damaged.
    TreeLeaf = "tree-leaf",
    /// A directory has a name twice.
    DuplicateName = "duplicate-name",
    /// An entry names an inode that does not exist.
    DanglingEntry = "dangling-entry",
    /// An entry names a reserved inode.
    EntryReserved = "entry-reserved",
    /// An entry has another file type than its inode.
    EntryType = "entry-type",
    /// The entry count of a directory is wrong.
    EntryCount = "entry-count",
    /// A directory has fewer entries than it counts: names were lost.
    EntriesMissing = "entries-missing",
    /// The link count of an inode is wrong.
    LinkCount = "link-count",
    /// A directory has several names.
    DirectoryNames = "directory-names",
    /// The recorded parent of a directory is wrong.
    DirectoryParent = "directory-parent",
    /// Directories form a loop.
    DirectoryLoop = "directory-loop",
    /// An inode with a link count of 0 has a name.
    NameOfOrphan = "name-of-orphan",
    /// An extended attribute is invalid.
    XattrItem = "xattr-item",
    /// The checksum of an extended attribute does not match.
    XattrChecksum = "xattr-checksum",
    /// An ACL is invalid.
    AclDamaged = "acl-damaged",
    /// The mode and the access ACL of an inode differ.
    AclMode = "acl-mode",
    /// A slot of the orphan table is damaged.
    OrphanSlotDamaged = "orphan-slot-damaged",
    /// A slot of the orphan table names an inode that is not an orphan.
    OrphanSlotWrong = "orphan-slot-wrong",
    /// The orphan table names an inode twice.
    OrphanTwice = "orphan-twice",
    /// An orphaned directory is not empty.
    OrphanNotEmpty = "orphan-not-empty",
    /// A slot of the lease table is damaged.
    LeaseSlotDamaged = "lease-slot-damaged",
    /// A slot of the lease table names no regular file.
    LeaseSlotWrong = "lease-slot-wrong",
    /// The lease table holds what its features do not announce.
    LeaseFeatureMissing = "lease-feature-missing",
    /// A free slot of the lease table has an append window.
    AppendWindowLeft = "append-window-left",
    /// An append window is damaged.
    AppendWindowDamaged = "append-window-damaged",
    /// An append window contradicts its file or another lease.
    AppendWindowWrong = "append-window-wrong",
    /// The word that tells what was appended in a window is damaged.
    AppendEndDamaged = "append-end-damaged",
    /// An append window is open: the next mount closes it.
    AppendWindowOpen = "append-window-open",
    /// The list of bad blocks is damaged.
    BadBlockListDamaged = "bad-block-list-damaged",
    /// Blocks have failed and are not in the list of bad blocks.
    BadBlockUnlisted = "bad-block-unlisted",
    /// The medium cannot be read.
    Unreadable = "unreadable",
}

#[cfg(test)]
mod tests {
    use super::Damage;

    #[test]
    fn codes_of_damage_are_distinct() {
        let mut codes: Vec<_> = Damage::ALL.iter().map(|kind| kind.code()).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), Damage::ALL.len());
    }
}
