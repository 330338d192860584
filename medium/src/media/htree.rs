//! Leaves of an htree: the hash-indexed tree that holds directories and
//! extended attributes.
//!
//! A leaf is a header line, one tag byte for each slot, and slots of 32 bytes.
//! An item occupies consecutive slots. The tag of its first slot is 2 to 255 and
//! derives from its hash. The tags of its other slots are 1. The tag of a free slot
//! is 0.

use zerocopy::FromBytes;

use super::pointer::Ptr;
use super::walk::MapRoot;
use crate::types::Ino;

/// Magic of a leaf.
pub const LEAF_MAGIC: u32 = u32::from_le_bytes(*b"hlf1");
/// Longest name of an item, bytes. Its length is stored in one byte.
pub const NAME_MAX: usize = u8::MAX as usize;
/// Size of a slot, bytes.
pub const SLOT: usize = 32;
/// Tag of a free slot.
pub const TAG_FREE: u8 = 0;
/// Tag of a slot that continues the preceding item.
pub const TAG_NEXT: u8 = 1;

/// Returns a mask of the tags that equal `tag`.
#[inline]
pub fn equal_tags(tags: &[u8; 16], tag: u8) -> u16 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{
            _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8,
        };
        // SAFETY: SSE2 is part of x86_64. The load needs no alignment and reads
        // exactly the 16 bytes of `tags`.
        unsafe {
            let tags = _mm_loadu_si128(tags.as_ptr().cast());
            _mm_movemask_epi8(_mm_cmpeq_epi8(tags, _mm_set1_epi8(tag as i8))) as u16
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let each = tags.iter().enumerate();
        each.fold(0, |mask, (i, t)| mask | u16::from(*t == tag) << i)
    }
}

layout! {
    /// Head of a leaf.
    pub struct LeafHeader: 64 {
        0x00 magic: u32 = "`hlf1`",
        0x04 depth: u16 = "hash bits that all items of this leaf share",
        0x06 items: u16 = "number of items",
        0x08 sum: u64 = "sum over the block's 64-byte lines, with this field as zero",
        0x10 owner: u64 = "inode that owns the tree",
        0x18 prefix: u64 = "the shared hash bits, at the top of the word",
        0x20 used_slots: u16 = "number of slots in use",
        0x22 reserved_half: [u8; 6] = "zero",
        0x28 reserved_tail: [u64; 3] = "zero",
    }
}

layout! {
    /// Head of an item. The value (`value_len` bytes) and the name follow.
    pub struct ItemHeader: 12 {
        0x00 hash_low: u32 = "low half of the hash of the name; lowest 8 bits: tie-breaker",
        0x04 hash_high: u32 = "high half; bit 63 of the hash is 0",
        0x08 value_len: u16 = "bytes of the value",
        0x0a name_len: u8 = "bytes of the name",
        0x0b kind: u8 = "directory: `DT_*` type of the file; xattr: 1 value in the item, 2 value in blocks",
    }
}

impl ItemHeader {
    /// Returns the hash, which is also the readdir cookie.
    pub fn hash(&self) -> u64 {
        u64::from(self.hash_high) << 32 | u64::from(self.hash_low)
    }

    /// Whether the value of an attribute is in separate blocks.
    pub fn is_large(&self) -> bool {
        self.kind == VALUE_IN_BLOCKS
    }
}

/// `kind` of an attribute with the value in its item.
pub const VALUE_INLINE: u8 = 1;
/// `kind` of an attribute with the value in separate blocks. The value of the item
/// is a [`LargeValue`].
pub const VALUE_IN_BLOCKS: u8 = 2;
/// Longest value of an attribute, bytes.
pub const VALUE_MAX: usize = 65_536;

layout! {
    /// The value in the item of a large attribute: it names the blocks.
    pub struct LargeValue: 20 {
        0x00 root_low: u32 = "low half of the root pointer of the value's file map",
        0x04 root_high: u32 = "high half",
        0x08 height: u32 = "levels of pointer blocks below the root",
        0x0c len: u32 = "length of the value, bytes, at most 65,536",
        0x10 crc: u32 = "CRC32C of the value, seeded by file system",
    }
}

impl LargeValue {
    /// Makes the entry for a value of `len` bytes in the blocks of a map.
    pub fn new(root: Ptr, height: u32, len: u32, crc: u32) -> LargeValue {
        LargeValue {
            root_low: root.0 as u32,
            root_high: (root.0 >> 32) as u32,
            height,
            len,
            crc,
        }
    }

    /// Parses the value of an item. Returns `None` if it is too short.
    pub fn parse(value: &[u8]) -> Option<LargeValue> {
        LargeValue::read_from_prefix(value).ok().map(|(v, _)| v)
    }

    /// Returns the map of the value's blocks. The owner and the hash of the
    /// attribute's name, with a zero tie-breaker, seed its pointers.
    pub fn map(&self, ino: Ino, name_hash: u64) -> MapRoot {
        MapRoot {
            ino: Ino(ino.0 ^ name_hash.rotate_left(13)),
            root: Ptr(u64::from(self.root_high) << 32 | u64::from(self.root_low)),
            height: self.height,
        }
    }
}

/// The division of a block into header, tags and slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafShape {
    /// Block size, bytes.
    pub block_size: usize,
    /// Number of slots.
    pub slots: usize,
    /// Offset of the first slot. The tags start at 64.
    pub slots_at: usize,
}

impl LeafShape {
    /// Offset of the first tag.
    pub const TAGS_AT: usize = LeafHeader::SIZE;

    /// Computes the shape for a block size of 512 to 65,536 bytes.
    pub const fn new(block_size: usize) -> LeafShape {
        let slots = (block_size - LeafHeader::SIZE) / (SLOT + 1);
        let slots_at = (LeafHeader::SIZE + slots).next_multiple_of(SLOT);
        let slots = if slots_at + slots * SLOT > block_size {
            slots - 1
        } else {
            slots
        };
        LeafShape {
            block_size,
            slots,
            slots_at,
        }
    }

    /// Returns the size of the largest item, bytes.
    pub const fn max_item(&self) -> usize {
        self.slots * SLOT
    }
}

const _: () = {
    let mut bs = 512;
    while bs <= 65536 {
        let s = LeafShape::new(bs);
        assert!(s.slots_at + s.slots * SLOT <= bs);
        // The longest name with the value of a directory entry fits.
        assert!(ItemHeader::SIZE + 8 + 255 <= s.max_item());
        bs *= 2;
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_tags_finds_tags_at_any_position() {
        let bytes = [0u8, 1, 2, 3, 0x7e, 0x7f, 0x80, 0x81, 0xfe, 0xff];
        for byte in bytes {
            for at in 0..16 {
                for other in bytes {
                    let mut part = [other; 16];
                    part[at] = byte;
                    let want = if other == byte { 0xffff } else { 1 << at };
                    assert_eq!(equal_tags(&part, byte), want);
                }
            }
        }
    }
}
