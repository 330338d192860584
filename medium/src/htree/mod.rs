//! The hash tree that holds directories and extended attributes: an
//! extendible-hash trie of blocks, keyed by SipHash-1-3 of the name.
//!
//! The root pointer, stored in the inode, names a leaf or an index block. An
//! index block is an array of pointers and nothing else. Each level of index
//! blocks consumes the next `fan_log2` bits of the 63-bit hash, from bit 62
//! downwards. A leaf whose items share `depth` bits is named by every slot of its
//! index block that begins with those bits. A slot without items is a hole. A tree
//! that never had an item has no blocks. A directory without entries may keep its
//! only leaf.
//!
//! Invariants:
//!
//! - Every item lies in the leaf that its hash leads to.
//! - The low 8 bits of a hash are a tie-breaker. A hash occurs once in a tree and
//!   never changes during the life of its item, so it serves as a readdir cookie.
//! - A leaf changes in place only by after-images in a record that also updates its
//!   sum. A split writes new blocks.
//!
//! The caller holds the owner's lock, stores the root and the number of blocks in
//! the inode, and interprets the values.

mod build;
mod count;
mod edit;
mod insert;
mod leaf;
mod remove;
mod scramble;
mod scrub;
mod walk;

#[cfg(test)]
mod tests;

pub use count::count;
pub use insert::{FreeSlots, InsertionPoint, NewItem, NewLeaf, insert, insertion_point};
pub use leaf::{Image, Item, LeafAt, item_parts};
pub use remove::{free_step, remove, remove_found, set_value};
pub use scramble::scrambled;
pub use scrub::{Path, TreeStep, step};
#[cfg(test)]
pub use walk::visit_blocks;
pub use walk::{
    DirEntry, LeafCursor, VacantEntry, find, find_dir, find_dir_on, find_dir_or_vacant, is_empty,
    scan, seek_leaf,
};

use siphasher::sip::SipHasher13;

use crate::error::{Damage, Error, Result};
use crate::media::checksum::mix64;
use crate::media::pointer::{LEAF, Ptr, PtrAt};
use crate::media::walk::{EMPTY_TABLE, TO_FIXED};
use crate::media::{DiskInode, Geometry};
use crate::types::{Bno, Ino};

/// Bits of a hash.
pub const HASH_BITS: u32 = 63;
/// Bits of a hash that can distinguish leaves. The bits below are the tie-breaker.
const SPLIT_BITS: u32 = 55;
/// Bits of the tie-breaker, all set.
pub const TIE_MASK: u64 = 0xff;
/// Maximum number of index-block levels, reached with the smallest blocks (64 pointers).
const MAX_LEVELS: usize = (HASH_BITS / 6) as usize;
/// Bytes of a record reserved for the caller (inodes, for example).
const CALLER_ROOM: usize = 1000;

/// The contents of a tree. The kind seeds the checks of pointers and leaves, so
/// that the two trees of one inode cannot be mistaken for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TreeKind {
    /// Entries of a directory. A value is an inode number of 8 bytes.
    Directory,
    /// Extended attributes.
    Xattrs,
}

impl TreeKind {
    /// Returns the number of the first pointer level. File maps count from 0.
    fn first_level(self) -> u32 {
        match self {
            TreeKind::Directory => 16,
            TreeKind::Xattrs => 32,
        }
    }
}

/// A tree: its owner, and the state that the owner's inode stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeRef {
    /// Owner.
    pub ino: Ino,
    /// Contents.
    pub kind: TreeKind,
    /// Root pointer. Changes update it, and the caller stores it.
    pub root: Ptr,
    /// Number of blocks added (or, if negative, freed) by changes through this
    /// value.
    pub blocks: i64,
}

impl TreeRef {
    /// Returns the tree of a directory.
    #[inline]
    pub fn directory(d: &DiskInode) -> TreeRef {
        TreeRef {
            ino: Ino(d.ino),
            kind: TreeKind::Directory,
            root: Ptr(d.root),
            blocks: 0,
        }
    }

    /// Returns the tree of an inode's extended attributes.
    #[inline]
    pub fn xattrs(d: &DiskInode) -> TreeRef {
        TreeRef {
            ino: Ino(d.ino),
            kind: TreeKind::Xattrs,
            root: Ptr(d.xattr_root),
            blocks: 0,
        }
    }

    /// Stores a changed tree in its inode, and adds the blocks that it gained to the inode's
    /// count: both stay equal in every record. Once for each change.
    #[inline]
    pub fn store(&self, d: &mut DiskInode) {
        match self.kind {
            TreeKind::Directory => d.root = self.root.0,
            TreeKind::Xattrs => d.xattr_root = self.root.0,
        }
        d.blocks = d.blocks.saturating_add_signed(self.blocks);
    }

    /// Returns the place of the pointer in slot `index` of a level. Level 0 is the
    /// root.
    #[inline]
    fn at(&self, geo: &Geometry, level: u32, index: u64) -> PtrAt {
        PtrAt {
            fs_seed: geo.seed,
            ino: self.ino,
            level: self.kind.first_level() + level,
            index,
        }
    }

    /// Checks a pointer that is not a hole and returns its block, which lies in the
    /// region and outside the superblock pages and the journal.
    #[inline]
    pub fn open(&self, geo: &Geometry, ptr: Ptr, level: u32, index: u64) -> Result<Bno> {
        let b = ptr.block();
        if !ptr.fits(self.at(geo, level, index)) || ptr.flags() & !LEAF != 0 {
            return Err(self.bad_pointer(level, index, "the check of the pointer does not fit"));
        }
        if b.0 >= geo.blocks() {
            return Err(self.bad_pointer(level, index, "the pointer leads outside the region"));
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
            (
                self.ino,
                format!("{}, pointer {index} of level {level}", self.name()),
            ),
            what,
        )
    }

    /// An index block without pointers: it was lost.
    #[cold]
    fn empty_table(&self, level: u32, index: u64) -> Error {
        Error::corrupt(
            Damage::TreeEmpty,
            (
                self.ino,
                format!("{}, pointer {index} of level {level}", self.name()),
            ),
            EMPTY_TABLE,
        )
    }

    #[cold]
    fn bad_leaf(&self, block: Bno, what: &str) -> Error {
        Error::corrupt(
            Damage::TreeLeaf,
            (self.ino, format!("{}, leaf block {}", self.name(), block.0)),
            what,
        )
    }

    /// Returns the seed of the sum of a leaf. It depends on the block number, so that
    /// a leaf in the wrong block is detected.
    pub fn leaf_seed(&self, geo: &Geometry, block: Bno) -> u64 {
        let owner = mix64(self.ino.0 ^ u64::from(self.kind.first_level()) << 58);
        mix64(geo.seed ^ owner).wrapping_add(mix64(block.0))
    }
}

/// Computes the hash of a name: 63 bits with the low 8 zero. The hash is at least
/// 256, which leaves small cookies free for other uses.
#[inline]
pub fn name_hash(geo: &Geometry, name: &[u8]) -> u64 {
    let (k0, k1) = geo.hash_keys;
    let h = SipHasher13::new_with_keys(k0, k1).hash(name) >> 1 & !TIE_MASK;
    #[cfg(test)]
    let h = h & tests::HASH_MASK.get();
    h.max(TIE_MASK + 1)
}

/// Returns the first `bits` bits of a hash as a number.
#[inline]
fn first_bits(hash: u64, bits: u32) -> u64 {
    hash.checked_shr(HASH_BITS - bits).unwrap_or(0)
}

/// Returns the first `bits` bits of a hash at their original position.
#[inline]
fn prefix_of(hash: u64, bits: u32) -> u64 {
    hash & !width(bits)
}

/// Returns a mask of all bits after the first `bits`.
#[inline]
fn width(bits: u32) -> u64 {
    (1u64 << (HASH_BITS - bits)) - 1
}
