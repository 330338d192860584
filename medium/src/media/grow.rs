//! The sizes that a file system has after a grow.

use super::inode::INODE_SIZE;
use super::sums::usable_blocks;
use super::superblock::SuperStatic;
use crate::types::Ino;

/// The most blocks that pointers can address.
pub const MAX_BLOCKS: u64 = (1 << 40) - 1;
/// The largest bound of inode numbers.
const MAX_INODES: u64 = 1 << 40;

impl SuperStatic {
    /// Returns the largest length of a region that this format can use, bytes.
    pub fn max_len(&self) -> u64 {
        MAX_BLOCKS << self.block_size_log2
    }

    /// Returns the static part after a grow to `len` bytes, without its CRC. Everything that
    /// has a place in the region stays there. The number of inodes grows as the region does.
    ///
    /// `len` is at least the present length. What exceeds a whole block or
    /// [`max_len`](Self::max_len) stays unused.
    pub fn grown(&self, len: u64) -> SuperStatic {
        let blocks = (len >> self.block_size_log2).min(MAX_BLOCKS);
        let blocks = usable_blocks(self.ro_compat, blocks, 8 << self.block_size_log2);
        let len = blocks << self.block_size_log2;
        let first = Ino::FIRST_FREE.0;
        let inodes = u128::from(self.inodes_max.saturating_sub(first)) * u128::from(len)
            / u128::from(self.region_len.max(1));
        let most = (len / INODE_SIZE).saturating_add(first).min(MAX_INODES);
        let inodes = u64::try_from(inodes).unwrap_or(most).saturating_add(first);
        let reserve = (blocks / 64).clamp(2, u64::from(self.lanes).max(1) * 2);
        let mut new = SuperStatic {
            region_len: len,
            blocks,
            inodes_max: inodes.min(most).max(self.inodes_max),
            reserve_blocks: reserve.max(self.reserve_blocks),
            ..*self
        };
        new.members[0].blocks = blocks;
        new
    }

    /// Whether the two differ in what a grow changes.
    pub fn differs_in_size(&self, other: &SuperStatic) -> bool {
        // An administrator may have chosen another reserve for the same size.
        let same_reserve = SuperStatic {
            reserve_blocks: self.reserve_blocks,
            ..self.with_size_of(other)
        };
        same_reserve != *self
    }

    /// Returns this static part with the sizes of another.
    pub fn with_size_of(&self, other: &SuperStatic) -> SuperStatic {
        let mut new = SuperStatic {
            region_len: other.region_len,
            blocks: other.blocks,
            inodes_max: other.inodes_max,
            reserve_blocks: other.reserve_blocks,
            ..*self
        };
        new.members[0].blocks = other.members[0].blocks;
        new
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::probe::check_geometry;
    use crate::format::FormatOptions;

    proptest! {
        #[test]
        fn grown_sizes_pass_the_check_of_a_mount(
            from in (256u64 << 10)..1 << 24,
            to in 0u64..1 << 36,
            density in prop_oneof![Just(256u64), 256u64..1 << 16],
            block_log2 in 9u32..=12,
        ) {
            let options = FormatOptions {
                block_size: 1 << block_log2,
                bytes_per_inode: Some(density),
                ..FormatOptions::default()
            };
            let Ok(old) = options.superblock(from >> 12 << 12) else {
                return Ok(());
            };
            let len = old.region_len + to;
            let checked = check_geometry(&old.grown(len), len);
            prop_assert_eq!(checked, Ok(()));
        }
    }

    #[test]
    fn grown_size_has_no_inode_for_part_of_block() {
        let dense = FormatOptions {
            bytes_per_inode: Some(256),
            ..FormatOptions::default()
        };
        let old = dense.superblock(4 << 20).unwrap();
        assert_eq!(check_geometry(&old.grown(8_392_703), 8_392_703), Ok(()));
    }

    #[test]
    fn grown_sizes_are_those_of_mkfs_but_for_the_journal() {
        let options = FormatOptions {
            uuid: Some([1; 16]),
            hash_seed: Some([2; 16]),
            time: Some(Default::default()),
            ..FormatOptions::default()
        };
        for (from, to) in [
            (256 << 10, 1u64 << 40),
            (1 << 30, 1 << 40),
            (5 << 20, 9 << 20),
        ] {
            let (old, made) = (
                options.superblock(from).unwrap(),
                options.superblock(to).unwrap(),
            );
            let new = old.grown(to);
            assert_eq!((new.region_len, new.blocks), (made.region_len, made.blocks));
            assert_eq!(new.members, made.members);
            assert_eq!(new.inodes_max, made.inodes_max, "{from} to {to}");
            assert!(new.reserve_blocks <= made.reserve_blocks);
            assert!(new.reserve_blocks >= old.reserve_blocks);
            assert_eq!(
                (new.journal_offset, new.lanes),
                (old.journal_offset, old.lanes)
            );
            assert!(old.differs_in_size(&new) && !old.differs_in_size(&old));
            assert_eq!(old.grown(from), old);
        }
    }

    #[test]
    fn grown_last_group_has_room_for_its_sums() {
        let options = FormatOptions {
            features: vec![("data_checksums".to_owned(), true)],
            ..FormatOptions::default()
        };
        let (group, block) = (128u64 << 20, 4096);
        let old = options.superblock(group).unwrap();
        for (blocks, used) in [(0, 0), (1, 0), (65, 0), (66, 66), (5000, 5000)] {
            let new = old.grown(group + blocks * block);
            assert_eq!(new.region_len, group + used * block, "{blocks} blocks more");
            assert_eq!(check_geometry(&new, new.region_len), Ok(()));
            let made = options.superblock(group + blocks * block).unwrap();
            assert_eq!(made.region_len, new.region_len);
        }
        let mut short = old;
        short.blocks += 65;
        short.region_len += 65 * block;
        assert!(check_geometry(&short, short.region_len).is_err());
    }

    #[test]
    fn number_of_inodes_never_becomes_smaller_nor_too_large() {
        let many = FormatOptions {
            bytes_per_inode: Some(256),
            ..FormatOptions::default()
        };
        let old = many.superblock(1 << 30).unwrap();
        let new = old.grown(1 << 50);
        assert!(new.inodes_max <= 1 << 40 && new.inodes_max > old.inodes_max);
    }
}
