//! Extended attributes of a locked inode, within a transaction.
//!
//! A small value is stored in its item. A larger one has separate blocks, which
//! the item names (root pointer, height, length, CRC). Setting an attribute takes
//! one record: a new large value is written to free blocks first, as new data.
//!
//! Invariant: the item and its blocks change in one record, so a crash leaves the old value
//! or the new one. The checks of names and sizes are in [`ops::xattr`](crate::fs::ops), the
//! rules of ACLs in [`acl`](super::acl).

use zerocopy::IntoBytes;

use crate::fs::Engine;
use crate::fs::inode::Inode;
use crate::fs::inode::disk::touch_ctime;
use crate::fs::inode::large_values::{map_of_value, parse_large};
use crate::fs::inode::state::{AclPresence, InodeState};
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::htree::{self, NewItem, TreeRef};
use pramfs_medium::map;
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::acl::{ACCESS, DEFAULT};
use pramfs_medium::media::checksum::crc;
use pramfs_medium::media::htree::{
    ItemHeader, LargeValue, VALUE_IN_BLOCKS as BLOCKS, VALUE_INLINE as INLINE,
};
use pramfs_medium::media::pointer::Ptr;
use pramfs_medium::types::{FileBlock, Ino, XattrMode};
use pramfs_medium::volume::Plan;

/// Largest inline item, bytes.
const INLINE_ITEM: usize = 1024;
/// Maximum number of pieces in which a large value is allocated.
const PIECES: usize = 16;

/// The content of an attribute's item: kind and value.
pub(crate) type Stored = (u8, Vec<u8>);

/// Whether an attribute name is that of an ACL.
pub(crate) fn is_acl(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

/// Checks the mode of setting an attribute against its existence.
pub(crate) fn check_mode(exists: bool, mode: XattrMode) -> Result<()> {
    match (exists, mode) {
        (true, XattrMode::Create) => Err(Error::Exists),
        (false, XattrMode::Replace) => Err(Error::NoAttribute),
        _ => Ok(()),
    }
}

impl Engine {
    /// Returns the item of an attribute; `None` if the inode has no such attribute.
    ///
    /// # Errors
    /// [`Error::Corrupt`], also if the attribute may be behind a lost pointer.
    pub(crate) fn find_value(&self, state: &InodeState, name: &[u8]) -> Result<Option<Stored>> {
        if state.disk.xattr_root == 0 {
            return Ok(None);
        }
        let mut out = None;
        let tree = TreeRef::xattrs(&state.disk);
        let found = htree::find(
            &self.vol,
            &tree,
            name,
            &mut |item: &ItemHeader, value: &[u8]| {
                out = Some((item.kind, value.to_vec()));
            },
        )?;
        if !found {
            self.check_absent(state, &tree, name)?;
        }
        Ok(out)
    }

    /// Puts an attribute into the tree of an inode and replaces the old value, if
    /// any.
    pub(crate) fn put_value(
        &self,
        tx: &mut Plan<'_>,
        new: &mut DiskInode,
        name: &[u8],
        value: &[u8],
        old: Option<&Stored>,
    ) -> Result<()> {
        let mut large = None;
        let (kind, stored): (u8, &[u8]) = if self.fits_inline(name, value) {
            (INLINE, value)
        } else {
            let value = self.put_large(tx, new, name, value)?;
            (BLOCKS, large.insert(value).as_bytes())
        };
        let mut tree = TreeRef::xattrs(new);
        let item = NewItem {
            name,
            kind,
            value: stored,
        };
        match old {
            Some((k, v)) => {
                if *k == BLOCKS {
                    self.free_large(tx, new, name, v)?;
                }
                if v.len() != stored.len() || !htree::set_value(tx, &tree, name, kind, stored)? {
                    htree::remove(tx, &mut tree, name)?;
                    htree::insert(tx, &mut tree, &item)?;
                }
            }
            None => {
                htree::insert(tx, &mut tree, &item)?;
            }
        }
        tree.store(new);
        Ok(())
    }

    /// Removes an attribute from the tree of an inode.
    pub(crate) fn take_value(
        &self,
        tx: &mut Plan<'_>,
        new: &mut DiskInode,
        name: &[u8],
        (kind, value): &Stored,
    ) -> Result<()> {
        if *kind == BLOCKS {
            self.free_large(tx, new, name, value)?;
        }
        let mut tree = TreeRef::xattrs(new);
        htree::remove(tx, &mut tree, name)?;
        tree.store(new);
        Ok(())
    }

    /// Removes an attribute of a locked inode, in a record of its own.
    pub(crate) fn remove_xattr_locked(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        name: &[u8],
        completes: bool,
    ) -> Result<()> {
        let old = self.find_value(state, name)?.ok_or(Error::NoAttribute)?;
        self.change(inode, state, |tx, new| {
            tx.allow_reserve();
            tx.touch(&inode.last_record);
            self.take_value(tx, new, name, &old)?;
            touch_ctime(new, self.now());
            if completes {
                tx.decide(None);
            }
            Ok(())
        })?;
        if is_acl(name) {
            state.acls = AclPresence::default();
        }
        Ok(())
    }

    /// Whether an attribute fits an inline item.
    pub(crate) fn fits_inline(&self, name: &[u8], value: &[u8]) -> bool {
        name.len() + value.len() <= self.inline_room()
    }

    /// Maximum bytes of name and value in an inline item.
    pub(crate) fn inline_room(&self) -> usize {
        INLINE_ITEM.min(self.vol.geo.leaf.max_item()) - ItemHeader::SIZE
    }

    /// Writes a large value to new blocks, and adds them to the inode's block count. The
    /// caller puts the returned description into the item.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if no space is left or it takes more than 16 pieces.
    fn put_large(
        &self,
        tx: &mut Plan<'_>,
        disk: &mut DiskInode,
        name: &[u8],
        value: &[u8],
    ) -> Result<LargeValue> {
        let geo = &self.vol.geo;
        let blocks = geo.blocks_for(value.len() as u64);
        let large =
            |root, height| LargeValue::new(root, height, value.len() as u32, crc(geo.seed, value));
        let mut map = map_of_value(&self.vol.geo, &large(Ptr::HOLE, 0), Ino(disk.ino), name);
        let mut done = 0;
        for _ in 0..PIECES {
            if done == blocks {
                break;
            }
            let want = map::plan(tx, &map, FileBlock(done), blocks - done)?;
            if want == 0 {
                break;
            }
            let run = tx.alloc_blocks(None, want as u32, false)?;
            let from = geo.bytes(done) as usize;
            let to = value.len().min(geo.bytes(done + run.len) as usize);
            tx.write_new(geo.offset(run.start), &value[from..to])?;
            map::insert(tx, &mut map, FileBlock(done), run, false)?;
            done += run.len;
        }
        if done != blocks {
            return Err(Error::NoSpace(
                "free space is too fragmented for so large an attribute",
            ));
        }
        disk.blocks = disk.blocks.saturating_add_signed(map.blocks);
        Ok(large(map.root, map.height))
    }

    /// Frees the blocks of a large value, and subtracts them from the block count.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if the record has no room for all of them.
    fn free_large(
        &self,
        tx: &mut Plan<'_>,
        disk: &mut DiskInode,
        name: &[u8],
        stored: &[u8],
    ) -> Result<()> {
        let ino = Ino(disk.ino);
        let large = parse_large(&self.vol.geo, ino, stored)?;
        let mut map = map_of_value(&self.vol.geo, &large, ino, name);
        let end = map.root().end(&self.vol.geo);
        if map::remove(tx, &mut map, FileBlock(0), end)? < end {
            return Err(Error::NoSpace(
                "the blocks of an attribute do not fit one record",
            ));
        }
        disk.blocks = disk.blocks.saturating_add_signed(map.blocks);
        Ok(())
    }

    /// Frees one step of an inode's attributes: first the large values one at a time,
    /// then the tree. A large value is freed only in a record that is still `fresh`,
    /// since only an empty record has room for any value. Otherwise the next record
    /// frees it.
    pub(crate) fn free_some_xattrs(
        &self,
        tx: &mut Plan<'_>,
        disk: &mut DiskInode,
        fresh: bool,
    ) -> Result<bool> {
        let mut large = None;
        // Lost blocks have no owner any more, and stay marked as used until fsck.
        let hole = || Ok(());
        htree::scan(
            &self.vol,
            &TreeRef::xattrs(disk),
            0,
            &hole,
            &mut |item, value, name| {
                if item.is_large() {
                    large = Some((name.to_vec(), value.to_vec()));
                    return std::ops::ControlFlow::Break(());
                }
                std::ops::ControlFlow::Continue(())
            },
        )?;
        let mut tree = TreeRef::xattrs(disk);
        if let Some((name, value)) = large {
            if !fresh {
                return Ok(false);
            }
            // The next value needs the tree as on the medium: one value per record.
            self.free_large(tx, disk, &name, &value)?;
            // A lookup may miss an entry that a scan finds, if its hash does not match
            // its name. Callers repeat until nothing is left, so each step must remove
            // something or fail.
            if !htree::remove(tx, &mut tree, &name)? {
                return Err(Error::corrupt(
                    Damage::TreeLeaf,
                    ("attributes of", Ino(disk.ino)),
                    "a listed attribute is not found by its name",
                ));
            }
            tree.store(disk);
            return Ok(false);
        }
        let done = htree::free_step(tx, &mut tree)?;
        tree.store(disk);
        Ok(done)
    }
}
