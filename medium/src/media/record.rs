//! Journal records: a header and entries of full after-images.
//!
//! An entry is one word (kind, length, place) and its payload. The CRC of a record
//! covers all of it. [`EntryKind`] and the bounds that recovery checks limit the
//! places that a hostile record can name.

use super::checksum::crc;
use crate::types::{Lsn, RegionOffset};

/// Magic of a record.
pub const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"prec");
/// Offset of the first entry in a record.
pub const ENTRIES_AT: usize = RecordHeader::SIZE;

layout! {
    /// Head of a record.
    pub struct RecordHeader: 32 {
        0x00 magic: u32 = "`prec`",
        0x04 crc: u32 = "CRC32C of the record from 0x08 to its end, seeded by file system",
        0x08 lsn: u64 = "log sequence number",
        0x10 len: u32 = "length of the record with this header, bytes",
        0x14 entries: u32 = "number of entries",
        0x18 lane: u32 = "lane of the record",
        0x1c slot: u32 = "slot of the lane, 0 or 1",
    }
}

impl RecordHeader {
    /// Computes the CRC of a record. `record` includes the header.
    pub fn crc_of(fs_seed: u64, record: &[u8]) -> u32 {
        crc(fs_seed, &record[8..])
    }
}

/// The kind of change that an entry makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum EntryKind {
    /// Part of an inode, in the table or in a superblock page.
    Inode = 1,
    /// Block pointers.
    Pointer = 2,
    /// Part of an htree leaf.
    Leaf = 3,
    /// Group descriptor.
    Desc = 4,
    /// Slot of the orphan or lease table.
    Slot = 5,
    /// Sets bits in one word of a bitmap. Payload: mask, then kind of bitmap and group.
    SetBits = 6,
    /// Clears bits. Payload as for `SetBits`.
    ClearBits = 7,
    /// Payload: number of words to fill with zeros.
    Zero = 8,
    /// Copies bytes of free blocks to file data, see [`DataCopy`].
    Copy = 9,
    /// The record continues in free blocks. Payload: number of bytes there, and their CRC.
    More = 10,
    /// Sums of data blocks.
    Sum = 11,
}

impl EntryKind {
    /// Whether the payload replaces the bytes at the place of the entry.
    #[inline]
    pub fn replaces(self) -> bool {
        matches!(
            self,
            EntryKind::Inode
                | EntryKind::Pointer
                | EntryKind::Leaf
                | EntryKind::Slot
                | EntryKind::Sum
        )
    }

    /// Decodes a code on the medium.
    #[inline]
    pub fn from_code(code: u64) -> Option<EntryKind> {
        Some(match code {
            1 => EntryKind::Inode,
            2 => EntryKind::Pointer,
            3 => EntryKind::Leaf,
            4 => EntryKind::Desc,
            5 => EntryKind::Slot,
            6 => EntryKind::SetBits,
            7 => EntryKind::ClearBits,
            8 => EntryKind::Zero,
            9 => EntryKind::Copy,
            10 => EntryKind::More,
            11 => EntryKind::Sum,
            _ => return None,
        })
    }
}

const PLACE_BITS: u32 = 49;
const WORDS_BITS: u32 = 10;

/// The word before a payload: place in units of 8 bytes (49 bits), payload length
/// in words (10 bits), kind (5 bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryWord(pub u64);

impl EntryWord {
    /// Maximum number of payload words in one entry.
    pub const MAX_WORDS: usize = (1 << WORDS_BITS) - 1;

    /// Makes the word of an entry for the byte offset `offset`, a multiple of 8.
    #[inline]
    pub fn new(kind: EntryKind, offset: u64, words: usize) -> EntryWord {
        debug_assert!(offset.is_multiple_of(8) && words <= Self::MAX_WORDS);
        EntryWord(
            (offset / 8)
                | ((words as u64) << PLACE_BITS)
                | ((kind as u64) << (PLACE_BITS + WORDS_BITS)),
        )
    }

    /// Returns the byte offset in the region.
    #[inline]
    pub fn offset(self) -> u64 {
        (self.0 & ((1 << PLACE_BITS) - 1)) * 8
    }

    /// Returns the number of payload words.
    #[inline]
    pub fn words(self) -> usize {
        (self.0 >> PLACE_BITS & Self::MAX_WORDS as u64) as usize
    }

    /// Returns the kind, or `None` for an unknown code.
    #[inline]
    pub fn kind(self) -> Option<EntryKind> {
        EntryKind::from_code(self.0 >> (PLACE_BITS + WORDS_BITS))
    }
}

/// What an entry of kind `Copy` does: bytes of free blocks, or zeros, become bytes of a file.
///
/// Its payload is two words: the offset of the source in the region, and the number of bytes.
/// Source and target have the same offset within a word, so that the place of the entry, a
/// multiple of 8, tells the target. A source below 8 stands for zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataCopy {
    /// The first byte to change.
    pub to: RegionOffset,
    /// The first byte of the source; `None` for zeros.
    pub from: Option<RegionOffset>,
    /// Number of bytes.
    pub len: u64,
}

impl DataCopy {
    /// Number of bytes of the payload.
    pub const PAYLOAD: usize = 16;

    /// Reads an entry at `place`. `None` if the payload has another form.
    pub fn read(place: RegionOffset, payload: &[u8]) -> Option<DataCopy> {
        let ([from, len], []) = payload.as_chunks::<8>() else {
            return None;
        };
        let (from, len) = (u64::from_le_bytes(*from), u64::from_le_bytes(*len));
        Some(DataCopy {
            to: place.checked_add(from % 8)?,
            from: (from >= 8).then_some(RegionOffset(from)),
            len,
        })
    }

    /// Returns the place and the payload of the entry.
    pub fn entry(self) -> (RegionOffset, [u64; 2]) {
        let within = self.to.0 % 8;
        let from = self.from.map_or(within, |from| from.0);
        debug_assert!(from % 8 == within && (from >= 8 || self.from.is_none()));
        (RegionOffset(self.to.0 - within), [from, self.len])
    }
}

/// The state of a record slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotState {
    /// Never written.
    Empty,
    /// A record with a correct CRC.
    Valid(Lsn),
    /// Torn or damaged.
    Bad,
}
