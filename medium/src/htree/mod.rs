//! The hash tree that holds directories and extended attributes: an
//! extendible-hash trie of blocks, keyed by SipHash-1-3 of the name.
//!
//! The root pointer, kept in the inode, names a leaf or an index block. An
//! index block is an array of pointers and nothing else; each level of them
//! uses up the next `fan_log2` bits of the 63-bit hash, from bit 62 downwards.
//! A leaf whose items share `depth` bits stands in every slot of its index that
//! begins with those bits; a slot without items is a hole. A tree that never had
//! an item has no block at all; a directory that has lost its last one may keep
//! its only leaf.
//!
//! Invariants: every item lies in the leaf that its hash leads to; a hash,
//! whose low 8 bits are a tie-breaker, occurs once in a tree and stays with its
//! item for life, so that it serves as a readdir cookie; a block is renewed in
//! place only by after-images in a record together with its sum, and divided
//! only by writing new blocks.
//!
//! Left to others: locks (the caller holds the owner's lock), writing the root
//! and the number of blocks into the inode, and what a value means.

mod build;
mod count;
mod edit;
mod insert;
mod leaf;
mod remove;
mod walk;

#[cfg(test)]
mod tests;

pub use count::count;
pub use insert::{insert, insert_at, insert_on};
pub use leaf::{Image, Item, item_parts};
pub use remove::{free_step, remove, remove_found, set_value};
#[cfg(test)]
pub use walk::visit_blocks;
pub use walk::{
    Cursor, DirEntry, VacantEntry, find, find_dir, find_dir_on, find_dir_or_vacant, is_empty, scan,
    seek_leaf,
};

use siphasher::sip::SipHasher13;

use crate::error::{Damage, Error, Result};
use crate::media::Geometry;
use crate::media::checksum::mix64;
use crate::media::pointer::{LEAF, Ptr, PtrAt};
use crate::media::walk::TO_FIXED;
use crate::types::{Bno, Ino};

/// Bits of a hash.
pub const HASH_BITS: u32 = 63;
/// Bits of a hash that can tell leaves apart; those below are the tie-breaker.
const SPLIT_BITS: u32 = 55;
/// Bits of the tie-breaker, all set.
pub const TIE_MASK: u64 = 0xff;
/// Most levels of index blocks, with the smallest blocks (64 pointers).
const MAX_LEVELS: usize = (HASH_BITS / 6) as usize;
/// Bytes of a record that are left to the caller (inodes and the like).
const CALLER_ROOM: usize = 1000;

/// What a tree holds. The checks of its pointers and leaves are seeded by it,
/// so that the two trees of one inode cannot be taken for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TreeKind {
    /// Entries of a directory; a value is an inode number of 8 bytes.
    Directory,
    /// Extended attributes.
    Xattrs,
}

impl TreeKind {
    /// What the levels of its pointers count from; file maps count from 0.
    fn first_level(self) -> u32 {
        match self {
            TreeKind::Directory => 16,
            TreeKind::Xattrs => 32,
        }
    }
}

/// A tree: its owner, and what the owner's inode says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeRef {
    /// Owner.
    pub ino: Ino,
    /// What it holds.
    pub kind: TreeKind,
    /// Root pointer; renewed by changes, for the caller to store.
    pub root: Ptr,
    /// Blocks gained, or if negative lost, by the changes made through this
    /// value.
    pub blocks: i64,
}

impl TreeRef {
    /// Where the pointer of slot `index` of a level stands; level 0 is the root.
    #[inline]
    fn at(&self, geo: &Geometry, level: u32, index: u64) -> PtrAt {
        PtrAt {
            fs_seed: geo.seed,
            ino: self.ino,
            level: self.kind.first_level() + level,
            index,
        }
    }

    /// Checks a pointer that is not a hole; its block lies in the region.
    #[inline]
    pub fn open(&self, geo: &Geometry, ptr: Ptr, level: u32, index: u64) -> Result<Bno> {
        let b = ptr.block();
        if !ptr.fits(self.at(geo, level, index)) || ptr.flags() & !LEAF != 0 {
            return Err(self.bad_pointer(level, index, "the check of the pointer does not fit"));
        }
        if b.0 >= geo.blocks {
            return Err(self.bad_pointer(level, index, "the pointer leaves the region"));
        }
        if geo.is_fixed(b.0, 1) {
            return Err(self.bad_pointer(level, index, TO_FIXED));
        }
        Ok(b)
    }

    fn name(&self) -> String {
        match self.kind {
            TreeKind::Directory => format!("directory {}", self.ino),
            TreeKind::Xattrs => format!("attributes of {}", self.ino),
        }
    }

    #[cold]
    fn bad_pointer(&self, level: u32, index: u64, what: &str) -> Error {
        Error::corrupt(
            Damage::TreePointer,
            format!("{}, pointer {index} of level {level}", self.name()),
            what,
        )
    }

    #[cold]
    fn bad_leaf(&self, block: Bno, what: &str) -> Error {
        Error::corrupt(
            Damage::TreeLeaf,
            format!("{}, leaf block {}", self.name(), block.0),
            what,
        )
    }

    /// Seed of the sum of a leaf. It names the block, so that a leaf in the
    /// wrong place does not pass.
    pub fn leaf_seed(&self, geo: &Geometry, block: Bno) -> u64 {
        let owner = mix64(self.ino.0 ^ u64::from(self.kind.first_level()) << 58);
        mix64(geo.seed ^ owner).wrapping_add(mix64(block.0))
    }
}

/// The hash of a name: 63 bits, of which the low 8 are zero. It is at least
/// 256, so that small cookies are free for other uses.
#[inline]
pub fn name_hash(geo: &Geometry, name: &[u8]) -> u64 {
    let (k0, k1) = geo.hash_keys;
    let h = SipHasher13::new_with_keys(k0, k1).hash(name) >> 1 & !TIE_MASK;
    #[cfg(test)]
    let h = h & tests::HASH_MASK.get();
    h.max(TIE_MASK + 1)
}

/// The first `bits` bits of a hash, as a number.
#[inline]
fn first_bits(hash: u64, bits: u32) -> u64 {
    hash.checked_shr(HASH_BITS - bits).unwrap_or(0)
}

/// The first `bits` bits of a hash, in their place.
#[inline]
fn prefix_of(hash: u64, bits: u32) -> u64 {
    hash & !width(bits)
}

/// All the bits after the first `bits`.
#[inline]
fn width(bits: u32) -> u64 {
    (1u64 << (HASH_BITS - bits)) - 1
}
