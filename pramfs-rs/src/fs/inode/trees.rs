//! The hash trees of an inode: the entries of a directory, and the extended attributes.
//!
//! Invariant: storing a tree in its inode also changes the inode's block count, so that
//! both stay equal in every record. The trees themselves are in `pramfs_medium::htree`;
//! this file converts between them and the fields of the inode, and between an attribute
//! item and the blocks of its value.

use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::htree::{self, TreeRef};
use pramfs_medium::map::MapRef;
use pramfs_medium::media::htree::{LargeValue, VALUE_MAX};
use pramfs_medium::media::{DiskInode, Geometry};
use pramfs_medium::types::Ino;

/// Returns the htree of a directory.
pub(crate) fn dir_tree(disk: &DiskInode) -> TreeRef {
    TreeRef::directory(disk)
}

/// Stores a changed directory tree in its inode.
pub(crate) fn store_tree(disk: &mut DiskInode, tree: &TreeRef) {
    tree.store(disk);
}

/// Parses the description of a value in blocks from its item.
pub(crate) fn parse_large(geo: &Geometry, ino: Ino, stored: &[u8]) -> Result<LargeValue> {
    let large = LargeValue::parse(stored).ok_or_else(|| {
        Error::corrupt(Damage::XattrItem, ino, "an extended attribute is damaged")
    })?;
    if large.len as usize > VALUE_MAX || large.height > geo.max_height() {
        return Err(Error::corrupt(
            Damage::XattrItem,
            ino,
            "an extended attribute has an impossible size",
        ));
    }
    Ok(large)
}

/// Returns the map of the value's blocks.
pub(crate) fn map_of_value(geo: &Geometry, large: &LargeValue, ino: Ino, name: &[u8]) -> MapRef {
    large.map(ino, htree::name_hash(geo, name)).into()
}
