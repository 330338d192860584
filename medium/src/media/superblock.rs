//! The superblock page: 4096 bytes at offset 0, and a copy.
//!
//! - The static part has a CRC. Only mkfs writes it, except for the label, the features
//!   `parked_leases`, `append_windows`, `atomic_data`, `ranged_marks` and `bad_blocks`, the root
//!   of the list of bad blocks, and the sizes that a grow changes.
//! - The dynamic words change in a running file system, each by one 8-byte
//!   store, outside that CRC. The important ones carry their own check.
//! - The three internal inodes have a CRC like any inode.

use zerocopy::IntoBytes;

use super::checksum::crc;
use super::features::{APPEND_WINDOWS, ATOMIC_DATA, BAD_BLOCKS, PARKED_LEASES, RANGED_MARKS};

/// `PRAMFSrs`, read as a little-endian word.
pub const MAGIC: u64 = u64::from_le_bytes(*b"PRAMFSrs");
/// Features in `ro_compat` that mounts set.
const RO_COMPAT_BY_MOUNTS: u64 = PARKED_LEASES | BAD_BLOCKS | RANGED_MARKS;
/// Features in `incompat` that mounts set.
const INCOMPAT_BY_MOUNTS: u64 = APPEND_WINDOWS | ATOMIC_DATA;
/// Version of the format.
pub const VERSION: u32 = 1;
/// Bytes of the superblock page.
pub const PAGE: u64 = 4096;
/// Offset at which mkfs puts the copy.
pub const COPY_OFFSET: u64 = 64 << 10;
/// Offset of the dynamic words in the page.
pub const DYNAMIC_OFFSET: u64 = 0x200;
/// Offset in the page of the inode of the inode table.
pub const INODE_TABLE_OFFSET: u64 = 0x400;
/// Offset in the page of the inode of the inode-group descriptors.
pub const INODE_GROUPS_OFFSET: u64 = 0x500;
/// Offset in the page of the inode of the block-group descriptors.
pub const BLOCK_GROUPS_OFFSET: u64 = 0x600;
/// Smallest region.
pub const MIN_REGION: u64 = 256 << 10;
/// `state`: unmounted cleanly.
pub const STATE_CLEAN: u64 = 1;
/// `state`: mounted, or not unmounted cleanly.
pub const STATE_ACTIVE: u64 = 2;

layout! {
    /// One region of the file system. In this version a file system has exactly one.
    pub struct Member: 32 {
        0x00 uuid: [u8; 16] = "uuid of the region",
        0x10 blocks: u64 = "number of blocks in the region",
        0x18 reserved_flags: u64 = "zero",
    }
}

layout! {
    /// The static part, at offset 0 of the page.
    pub struct SuperStatic: 512 {
        0x000 magic: u64 = "`PRAMFSrs`",
        0x008 version: u32 = "1",
        0x00c block_size_log2: u32 = "9 to 12 (the layout allows up to 16)",
        0x010 compat: u64 = "features that a version without them may ignore",
        0x018 ro_compat: u64 = "features that a version without them may mount read-only",
        0x020 incompat: u64 = "features that a version without them must not mount",
        0x028 uuid: [u8; 16] = "uuid, in the order of its text form",
        0x038 label: [u8; 64] = "UTF-8, zero-padded",
        0x078 hash_seed: [u8; 16] = "key of SipHash-1-3 for names",
        0x088 region_len: u64 = "length of the region, bytes",
        0x090 blocks: u64 = "number of blocks",
        0x098 copy_offset: u64 = "byte offset of the superblock copy",
        0x0a0 journal_offset: u64 = "byte offset of the journal",
        0x0a8 journal_len: u64 = "length of the journal, bytes",
        0x0b0 lanes: u32 = "number of journal lanes",
        0x0b4 slot_size: u32 = "size of a record slot, bytes",
        0x0b8 inodes_max: u64 = "upper bound of inode numbers, exclusive",
        0x0c0 blocks_per_group: u32 = "bits of a block bitmap",
        0x0c4 inodes_per_group: u32 = "bits of an inode bitmap",
        0x0c8 reserve_blocks: u64 = "blocks kept for unlink and truncate",
        0x0d0 created_sec: i64 = "time of mkfs, seconds",
        0x0d8 created_nsec: u32 = "time of mkfs, nanoseconds",
        0x0dc member_count: u32 = "1",
        0x0e0 members: [Member; 4] = "regions of the file system",
        0x160 writer: [u8; 32] = "program that made the file system, zero-padded",
        0x180 refcount_root: u64 = "reserved: reference-count tree",
        0x188 datasum_root: u64 = "reserved: data checksums",
        0x190 quota_root: u64 = "reserved: quota",
        0x198 badblock_root: u64 = "pointer to the first block of the list of bad blocks; 0: there is none",
        0x1a0 replica_uuid: [u8; 16] = "reserved: replica",
        0x1b0 replica_generation: u64 = "reserved: replica",
        0x1b8 default_options: u64 = "options of mounts that say nothing else",
        0x1c0 reserved_tail: [u8; 60] = "zero",
        0x1fc crc: u32 = "CRC32C of the preceding 508 bytes, seed 0",
    }
}

impl SuperStatic {
    /// Computes the CRC of these contents.
    pub fn expected_crc(&self) -> u32 {
        crc(0, &self.as_bytes()[..SuperStatic::SIZE - 4])
    }

    /// Whether a crash may have left the pages like this: they differ at most in what a
    /// mounted file system changes: the label, the default options, the reserve, the features
    /// `parked_leases`, `append_windows`, `atomic_data`, `ranged_marks` and `bad_blocks`, the root
    /// of the list of bad blocks, and the sizes ([`differs_in_size`](Self::differs_in_size)).
    pub fn is_same_but_changed(&self, other: &SuperStatic) -> bool {
        let differ = (self.ro_compat ^ other.ro_compat) & !RO_COMPAT_BY_MOUNTS
            | (self.incompat ^ other.incompat) & !INCOMPAT_BY_MOUNTS;
        let expected = SuperStatic {
            label: other.label,
            ro_compat: other.ro_compat,
            incompat: other.incompat,
            badblock_root: other.badblock_root,
            default_options: other.default_options,
            reserve_blocks: other.reserve_blocks,
            crc: other.crc,
            ..self.with_size_of(other)
        };
        differ == 0 && *other == expected
    }

    /// Stores the current CRC in the structure.
    pub fn seal(&mut self) {
        self.crc = self.expected_crc();
    }
}

layout! {
    /// An error, its time and its inode.
    pub struct ErrorMark: 32 {
        0x00 time_sec: i64 = "seconds since the epoch, 0 = no error",
        0x08 ino: u64 = "inode concerned, 0 = none",
        0x10 errno: u32 = "errno of the error",
        0x14 count: u32 = "number of errors up to then",
        0x18 reserved_tail: u64 = "zero",
    }
}

layout! {
    /// The dynamic words, at offset 0x200 of the page.
    pub struct SuperDynamic: 192 {
        0x00 state: u64 = "1 clean, 2 mounted or crashed",
        0x08 mounts: u64 = "mount generation: number of read-write mounts",
        0x10 checkpoint: u64 = "sealed LSN: records up to it are dead",
        0x18 last_mount_sec: i64 = "time of the last read-write mount",
        0x20 reserved_head: [u64; 4] = "zero",
        0x40 first_error: ErrorMark = "first error since mkfs or fsck",
        0x60 last_error: ErrorMark = "latest error",
        0x80 reserved_tail: [u64; 8] = "zero",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::features::HUGE_LEAVES;
    use zerocopy::FromZeros;

    fn changed(f: impl FnOnce(&mut SuperStatic)) -> bool {
        let first = SuperStatic::new_zeroed();
        let mut copy = first;
        f(&mut copy);
        copy.seal();
        first.is_same_but_changed(&copy) && copy.is_same_but_changed(&first)
    }

    #[test]
    fn pages_that_differ_in_what_mounts_change_are_same() {
        assert!(changed(|_| {}));
        assert!(changed(|sb| sb.label[3] = b'x'));
        assert!(changed(|sb| sb.default_options = 1 << 63));
        assert!(changed(|sb| sb.reserve_blocks = 3));
        assert!(changed(|sb| sb.ro_compat = PARKED_LEASES));
        assert!(changed(|sb| sb.incompat = APPEND_WINDOWS));
        assert!(changed(|sb| {
            (sb.ro_compat, sb.badblock_root) = (BAD_BLOCKS, 7);
        }));
        assert!(changed(|sb| sb.incompat = ATOMIC_DATA));
        assert!(changed(|sb| sb.ro_compat = RANGED_MARKS));
        assert!(changed(|sb| {
            (sb.region_len, sb.blocks, sb.inodes_max) = (1 << 30, 1 << 18, 1 << 19);
            sb.reserve_blocks = 64;
            sb.members[0].blocks = 1 << 18;
        }));
        assert!(changed(|sb| {
            (sb.ro_compat, sb.incompat) = (PARKED_LEASES, APPEND_WINDOWS);
        }));
    }

    #[test]
    fn pages_that_differ_in_anything_else_are_not_same() {
        for bit in (0..64).map(|bit| 1u64 << bit) {
            assert!(!changed(|sb| sb.compat = bit));
            let by_mounts = bit & RO_COMPAT_BY_MOUNTS != 0;
            assert!(by_mounts || !changed(|sb| sb.ro_compat = bit));
            let by_mounts = bit & INCOMPAT_BY_MOUNTS != 0;
            assert!(by_mounts || !changed(|sb| sb.incompat = bit));
        }
        assert!(!changed(|sb| sb.incompat = APPEND_WINDOWS | HUGE_LEAVES));
        assert!(!changed(|sb| sb.lanes = 1));
        assert!(!changed(|sb| sb.journal_offset = 4096));
        assert!(!changed(|sb| sb.members[1].blocks = 1));
        assert!(!changed(|sb| sb.uuid[0] = 1));
        assert!(!changed(|sb| sb.reserved_tail[0] = 1));
    }
}
