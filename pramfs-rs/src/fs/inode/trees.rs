//! The hash trees of an inode: the entries of a directory, and the extended attributes.

use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::htree::{self, TreeKind, TreeRef};
use pramfs_medium::map::MapRef;
use pramfs_medium::media::htree::{ItemHeader, LargeValue, VALUE_IN_BLOCKS, VALUE_MAX};
use pramfs_medium::media::pointer::Ptr;
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::media::{DiskInode, Geometry};
use pramfs_medium::types::Ino;

/// Returns the htree of a directory.
pub(crate) fn dir_tree(d: &DiskInode) -> TreeRef {
    TreeRef {
        ino: Ino(d.ino),
        kind: TreeKind::Directory,
        root: Ptr(d.root),
        blocks: 0,
    }
}

/// Stores a changed directory tree in its inode.
pub(crate) fn store_tree(d: &mut DiskInode, tree: &TreeRef) {
    d.root = tree.root.0;
    d.blocks = d.blocks.saturating_add_signed(tree.blocks);
}

/// Returns the attribute tree of an inode.
pub(crate) fn xattr_tree(d: &DiskInode) -> TreeRef {
    TreeRef {
        ino: Ino(d.ino),
        kind: TreeKind::Xattrs,
        root: Ptr(d.xattr_root),
        blocks: 0,
    }
}

pub(crate) fn store_xattrs(d: &mut DiskInode, tree: &TreeRef) {
    d.xattr_root = tree.root.0;
    d.blocks = d.blocks.saturating_add_signed(tree.blocks);
}

/// Whether the value of an item is in separate blocks.
pub(crate) fn is_large(item: &ItemHeader) -> bool {
    item.kind == VALUE_IN_BLOCKS
}

/// Parses the description of a value in blocks from its item.
pub(crate) fn parse_large(geo: &Geometry, ino: Ino, stored: &[u8]) -> Result<LargeValue> {
    let large = LargeValue::parse(stored).ok_or_else(|| {
        Error::corrupt(
            Damage::XattrItem,
            ino.to_string(),
            "an extended attribute is damaged",
        )
    })?;
    if large.len as usize > VALUE_MAX || large.height > geo.max_height() {
        return Err(Error::corrupt(
            Damage::XattrItem,
            ino.to_string(),
            "an extended attribute has an impossible size",
        ));
    }
    Ok(large)
}

/// Returns the map of the value's blocks.
pub(crate) fn map_of_value(geo: &Geometry, large: &LargeValue, ino: Ino, name: &[u8]) -> MapRef {
    let MapRoot { ino, root, height } = large.map(ino, htree::name_hash(geo, name));
    MapRef {
        ino,
        root,
        height,
        blocks: 0,
        healed: false,
    }
}
