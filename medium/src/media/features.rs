//! Feature masks: what a file system uses beyond the first version.
//!
//! - An unknown `incompat` bit refuses the mount.
//! - An unknown `ro_compat` bit allows a read-only mount.
//! - An unknown `compat` bit is ignored.
//!
//! Reserved features have names too, so that a refusal can name what is missing.

/// The mask of a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mask {
    /// Any version may write.
    Compat,
    /// A version without the feature may read.
    RoCompat,
    /// A version without the feature must not mount.
    Incompat,
}

/// One feature.
#[derive(Debug, Clone, Copy)]
pub struct Feature {
    /// Name for `-O` and for messages.
    pub name: &'static str,
    /// Mask.
    pub mask: Mask,
    /// Bit in the mask.
    pub bit: u32,
    /// Whether this version supports it. Otherwise the bit is reserved.
    pub supported: bool,
    /// Its meaning.
    pub doc: &'static str,
}

/// Leaves of 2 MiB in file maps (4 KiB blocks only).
pub const HUGE_LEAVES: u64 = 1 << 0;

/// The lease table may have slots in use. Set and cleared by mounts.
pub const PARKED_LEASES: u64 = 1 << 0;

/// Each block of file data has a checksum ([`sums`](super::sums)).
pub const DATA_CHECKSUMS: u64 = 1 << 1;

/// A slot of the lease table may hold a size that its inode does not have yet. Set and cleared
/// by mounts.
pub const APPEND_WINDOWS: u64 = 1 << 4;

/// The superblock leads to a list of bad blocks. Set by mounts and by fsck, and never cleared by
/// a mount.
pub const BAD_BLOCKS: u64 = 1 << 3;

/// An image of metadata, for reports: file data are missing, and read as zeros. `pramfs image`
/// sets it; no mount writes to it.
pub const METADATA_IMAGE: u64 = 1 << 4;

/// Names and attributes are replaced by others of the same length ([`htree`](crate::htree)), and
/// the keys of their hashes are missing. With [`METADATA_IMAGE`] only.
pub const SCRAMBLED: u64 = 1 << 5;

/// Records may copy file data, and may continue in blocks. Set and cleared by mounts.
pub const ATOMIC_DATA: u64 = 1 << 5;

/// A mark of a file whose sums do not hold may be a range of its blocks. Set by mounts, and
/// cleared by those that leave none. A version without it may read: it takes the whole file for
/// marked.
pub const RANGED_MARKS: u64 = 1 << 6;

impl Feature {
    /// Whether mounts set and clear it, as they need it. mkfs does not.
    pub fn is_set_by_mounts(&self) -> bool {
        matches!(
            (self.mask, 1u64 << self.bit),
            (Mask::RoCompat, PARKED_LEASES | BAD_BLOCKS | RANGED_MARKS)
                | (Mask::Incompat, APPEND_WINDOWS | ATOMIC_DATA)
        )
    }
}

/// All named features.
pub const FEATURES: &[Feature] = &[
    feature(
        "huge_leaves",
        Mask::Incompat,
        0,
        true,
        "file maps may have 2 MiB leaves",
    ),
    feature(
        "giant_leaves",
        Mask::Incompat,
        1,
        false,
        "file maps may have 1 GiB leaves",
    ),
    feature(
        "members",
        Mask::Incompat,
        2,
        false,
        "the file system spans several regions",
    ),
    feature(
        "shared_blocks",
        Mask::Incompat,
        3,
        false,
        "blocks with more than one owner, reference-count tree",
    ),
    feature(
        "append_windows",
        Mask::Incompat,
        4,
        true,
        "the lease table may tell sizes that the inodes do not have yet",
    ),
    feature(
        "atomic_data",
        Mask::Incompat,
        5,
        true,
        "records may copy file data, and continue in blocks",
    ),
    feature(
        "parked_leases",
        Mask::RoCompat,
        0,
        true,
        "the lease table names files whose blocks are mapped",
    ),
    feature(
        "data_checksums",
        Mask::RoCompat,
        1,
        true,
        "checksums over file contents",
    ),
    feature(
        "quota",
        Mask::RoCompat,
        2,
        false,
        "usage is counted by owner, group and project",
    ),
    feature(
        "bad_blocks",
        Mask::RoCompat,
        3,
        true,
        "blocks of failed pages are in a list, and never allocated",
    ),
    feature(
        "metadata_image",
        Mask::RoCompat,
        4,
        false,
        "an image for reports: file data are missing",
    ),
    feature(
        "scrambled",
        Mask::RoCompat,
        5,
        false,
        "names and attributes are replaced, in an image for reports",
    ),
    feature(
        "ranged_marks",
        Mask::RoCompat,
        6,
        true,
        "marks of file data whose checksums do not hold may be ranges of blocks",
    ),
    feature(
        "replica",
        Mask::Compat,
        0,
        false,
        "the region has a replica elsewhere",
    ),
];

const fn feature(
    name: &'static str,
    mask: Mask,
    bit: u32,
    supported: bool,
    doc: &'static str,
) -> Feature {
    Feature {
        name,
        mask,
        bit,
        supported,
        doc,
    }
}

/// Returns the feature with this name.
pub fn by_name(name: &str) -> Option<&'static Feature> {
    FEATURES.iter().find(|f| f.name == name)
}

/// Returns the names of the bits of one mask. An unknown bit is `bit N`.
pub fn names(mask: Mask, bits: u64) -> Vec<String> {
    (0..64)
        .filter(|b| bits & (1 << b) != 0)
        .map(|b| {
            FEATURES
                .iter()
                .find(|f| f.mask == mask && f.bit == b)
                .map_or_else(|| format!("bit {b}"), |f| f.name.to_owned())
        })
        .collect()
}

/// Returns the bits of one mask that this version does not support.
pub fn unsupported(mask: Mask, bits: u64) -> u64 {
    let known: u64 = FEATURES
        .iter()
        .filter(|f| f.mask == mask && f.supported)
        .map(|f| 1u64 << f.bit)
        .sum();
    bits & !known
}
