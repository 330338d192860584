//! Extended attributes: an htree beside the inode's contents.
//!
//! A small value is stored in its item. A larger one has separate blocks, which
//! the item names (root pointer, height, length, CRC). Setting an attribute takes
//! one record: a new large value is written to free blocks first, as new data.

use zerocopy::IntoBytes;

use super::acl::is_acl;
use super::attr::lock_and_check_group;
use super::change::Edit;
use super::completeness::Hole;
use super::inode::{Inode, InodeState, touch_ctime};
use super::{Engine, Need, chattr, lost};
use crate::credentials::Credentials;
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::htree::NewItem;
use pramfs_medium::htree::{self, TreeKind, TreeRef};
use pramfs_medium::map::{self, MapRef};
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::acl::ACCESS;
use pramfs_medium::media::checksum::crc;
use pramfs_medium::media::htree::{
    ItemHeader, LargeValue, NAME_MAX, VALUE_IN_BLOCKS as BLOCKS, VALUE_INLINE as INLINE, VALUE_MAX,
};
use pramfs_medium::media::pointer::Ptr;
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::types::{FileBlock, FileType, Ino, XattrMode};
use pramfs_medium::volume::Plan;

/// Maximum list of names, bytes: the limit of the kernel.
const LIST_MAX: usize = 65_536;
/// Largest inline item, bytes.
const INLINE_ITEM: usize = 1024;
/// Maximum number of pieces in which a large value is allocated.
const PIECES: usize = 16;

/// The content of an attribute's item: kind and value.
pub(super) type Stored = (u8, Vec<u8>);

/// Checks the mode of setting an attribute against its existence.
pub(super) fn check_mode(exists: bool, mode: XattrMode) -> Result<()> {
    match (exists, mode) {
        (true, XattrMode::Create) => Err(Error::Exists),
        (false, XattrMode::Replace) => Err(Error::NoAttribute),
        _ => Ok(()),
    }
}

/// Parses the description of a value in blocks from its item.
pub(super) fn parse_large(engine: &Engine, ino: Ino, stored: &[u8]) -> Result<LargeValue> {
    let large = LargeValue::parse(stored).ok_or_else(|| {
        Error::corrupt(
            Damage::XattrItem,
            ino.to_string(),
            "an extended attribute is damaged",
        )
    })?;
    if large.len as usize > VALUE_MAX || large.height > engine.vol.geo.max_height() {
        return Err(Error::corrupt(
            Damage::XattrItem,
            ino.to_string(),
            "an extended attribute has an impossible size",
        ));
    }
    Ok(large)
}

/// Returns the map of the value's blocks.
pub(super) fn map_of_value(engine: &Engine, large: &LargeValue, ino: Ino, name: &[u8]) -> MapRef {
    let MapRoot { ino, root, height } = large.map(ino, htree::name_hash(&engine.vol.geo, name));
    MapRef {
        ino,
        root,
        height,
        blocks: 0,
        healed: false,
    }
}

/// Returns the attribute tree of an inode.
pub(super) fn xattr_tree(d: &DiskInode) -> TreeRef {
    TreeRef {
        ino: Ino(d.ino),
        kind: TreeKind::Xattrs,
        root: Ptr(d.xattr_root),
        blocks: 0,
    }
}

fn store(d: &mut DiskInode, tree: &TreeRef) {
    d.xattr_root = tree.root.0;
    d.blocks = d.blocks.saturating_add_signed(tree.blocks);
}

/// Whether the value of an item is in separate blocks.
pub(super) fn is_large(item: &ItemHeader) -> bool {
    item.kind == BLOCKS
}

/// Checks that an attribute name can be set.
fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Error::NameTooLong(name.len(), NAME_MAX));
    }
    const SPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    if SPACES.contains(&name) {
        return Err(Error::Invalid(
            "an extended attribute needs a name after its namespace",
        ));
    }
    let ok = SPACES.iter().any(|s| name.starts_with(s)) || is_acl(name);
    if !ok || name.contains(&0) {
        return Err(Error::NotSupported(
            "extended attributes outside of user., trusted., security. and POSIX ACLs",
        ));
    }
    Ok(())
}

impl Engine {
    pub(super) fn find_value(&self, state: &InodeState, name: &[u8]) -> Result<Option<Stored>> {
        if state.disk.xattr_root == 0 {
            return Ok(None);
        }
        let mut out = None;
        let tree = xattr_tree(&state.disk);
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

    /// Returns the value of an attribute.
    ///
    /// # Errors
    /// [`Error::NoAttribute`], [`Error::NotSupported`] for a name outside the
    /// known namespaces.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.op(Need::Read, || {
            if name != lost::LIST {
                check_name(name)?;
            }
            let inode = self.iget_user(ino)?;
            let state = inode.state.read();
            state.alive(ino)?;
            if name == lost::LIST {
                return self.lost_list(&state)?.ok_or(Error::NoAttribute);
            }
            let (kind, value) = self.find_value(&state, name)?.ok_or(Error::NoAttribute)?;
            if kind != BLOCKS {
                return Ok(value);
            }
            let bad = || {
                Error::corrupt(
                    Damage::XattrChecksum,
                    ino.to_string(),
                    "an extended attribute is damaged",
                )
            };
            let large = parse_large(self, ino, &value)?;
            let mut value = vec![0; large.len as usize];
            let map = map_of_value(self, &large, ino, name);
            match self.read_map(&map, 0, &mut value, || Err(bad())) {
                // Only regular files can have lost ranges.
                Err(Error::Lost { .. }) => return Err(bad()),
                Ok(read) if read < value.len() => return Err(bad()),
                read => drop(read?),
            }
            if crc(self.vol.geo.seed, &value) != large.crc {
                return Err(bad());
            }
            Ok(value)
        })
    }

    /// Returns the names of all attributes, each followed by a NUL. Includes the list
    /// of lost ranges.
    ///
    /// # Errors
    /// [`Error::AttributeTooLarge`] if the names do not fit 64 KiB.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        self.op(Need::Read, || {
            let inode = self.iget_user(ino)?;
            let state = inode.state.read();
            state.alive(ino)?;
            let mut out = Vec::new();
            if state.disk.xattr_root != 0 {
                let tree = xattr_tree(&state.disk);
                let hole = || self.check_hole(&state, Hole::Xattrs);
                htree::scan(&self.vol, &tree, 0, &hole, &mut |_, _, name| {
                    out.extend_from_slice(name);
                    out.push(0);
                    std::ops::ControlFlow::Continue(())
                })?;
            }
            if !self.lost_in(&state, 1)?.is_empty() {
                out.extend_from_slice(lost::LIST);
                out.push(0);
            }
            if out.len() > LIST_MAX {
                return Err(Error::AttributeTooLarge(out.len(), LIST_MAX));
            }
            Ok(out)
        })
    }

    /// Sets an attribute of up to 64 KiB. An access ACL also sets the mode, and
    /// clears sgid if the caller is not in the file's group.
    ///
    /// # Errors
    /// [`Error::Exists`] or [`Error::NoAttribute`] by `mode`,
    /// [`Error::AttributeTooLarge`], [`Error::NoSpace`];
    /// [`Error::NotPermitted`] if the file is immutable or append-only;
    /// [`Error::Invalid`] for a malformed ACL, [`Error::AccessDenied`] for a default
    /// ACL on a non-directory.
    pub fn setxattr(
        &self,
        caller: &Credentials<'_>,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.op(Need::Write, || {
            check_name(name)?;
            if value.len() > VALUE_MAX {
                return Err(Error::AttributeTooLarge(value.len(), VALUE_MAX));
            }
            let inode = self.iget_user(ino)?;
            // An access ACL sets the mode of directories as well.
            let asked = |state: &InodeState| {
                (name == ACCESS && state.disk.mode & libc::S_ISGID != 0).then_some(state.disk.gid)
            };
            let (mut state, keeps_sgid) = lock_and_check_group(&inode, caller, asked);
            state.alive(ino)?;
            chattr::check_write(&state.disk)?;
            if is_acl(name) {
                return self.set_acl(&inode, &mut state, (name, value), mode, keeps_sgid);
            }
            let old = self.find_value(&state, name)?;
            check_mode(old.is_some(), mode)?;
            let attribute = (name, value);
            match self.set_value_locked(&inode, &mut state, attribute, old.as_ref()) {
                // Blocks that were freed recently may be contiguous.
                Err(Error::NoSpace(_)) if self.vol.retire_pending()? => {
                    self.set_value_locked(&inode, &mut state, attribute, old.as_ref())
                }
                done => done,
            }
        })
    }

    fn set_value_locked(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        (name, value): (&[u8], &[u8]),
        old: Option<&Stored>,
    ) -> Result<()> {
        let mut new = Edit::new(inode, state);
        let mut tx = self.begin(inode);
        tx.touch(&inode.last_record);
        self.put_value(&mut tx, &mut new, name, value, old)?;
        touch_ctime(&mut new, self.now());
        let new = new.stage(&mut tx)?;
        self.commit(tx, [new])?;
        Ok(())
    }

    /// Puts an attribute into the tree of an inode and replaces the old value, if
    /// any.
    pub(super) fn put_value(
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
        let mut tree = xattr_tree(new);
        let item = NewItem {
            name,
            kind,
            value: stored,
        };
        match old {
            Some((k, v)) => {
                if *k == BLOCKS {
                    self.free_large(tx, new, Ino(new.ino), name, v)?;
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
        store(new, &tree);
        Ok(())
    }

    /// Removes an attribute from the tree of an inode.
    pub(super) fn take_value(
        &self,
        tx: &mut Plan<'_>,
        new: &mut DiskInode,
        name: &[u8],
        (kind, value): &Stored,
    ) -> Result<()> {
        if *kind == BLOCKS {
            self.free_large(tx, new, Ino(new.ino), name, value)?;
        }
        let mut tree = xattr_tree(new);
        htree::remove(tx, &mut tree, name)?;
        store(new, &tree);
        Ok(())
    }

    /// Removes an attribute. Removing an ACL leaves the mode unchanged; removing an
    /// ACL that does not exist succeeds.
    ///
    /// # Errors
    /// [`Error::NoAttribute`]; [`Error::NotPermitted`] if the file is immutable or
    /// append-only.
    pub fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.op(Need::Write, || {
            check_name(name)?;
            let inode = self.iget_user(ino)?;
            let mut state = inode.state.write();
            state.alive(ino)?;
            chattr::check_write(&state.disk)?;
            if is_acl(name) && state.kind() == FileType::Symlink {
                return Err(Error::NotSupported("an ACL of a symbolic link"));
            }
            match self.remove_xattr_locked(&inode, &mut state, name) {
                Err(Error::NoAttribute) if is_acl(name) => Ok(()),
                done => done,
            }
        })
    }

    pub(super) fn remove_xattr_locked(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        name: &[u8],
    ) -> Result<()> {
        let old = self.find_value(state, name)?.ok_or(Error::NoAttribute)?;
        let mut new = Edit::new(inode, state);
        let mut tx = self.begin(inode);
        tx.allow_reserve();
        tx.touch(&inode.last_record);
        self.take_value(&mut tx, &mut new, name, &old)?;
        touch_ctime(&mut new, self.now());
        let new = new.stage(&mut tx)?;
        self.commit(tx, [new])?;
        if is_acl(name) {
            Engine::forget_acls(state);
        }
        Ok(())
    }

    pub(super) fn fits_inline(&self, name: &[u8], value: &[u8]) -> bool {
        name.len() + value.len() <= self.inline_room()
    }

    /// Maximum bytes of name and value in an inline item.
    pub(super) fn inline_room(&self) -> usize {
        INLINE_ITEM.min(self.vol.geo.leaf.max_item()) - ItemHeader::SIZE
    }

    fn put_large(
        &self,
        tx: &mut Plan<'_>,
        d: &mut DiskInode,
        name: &[u8],
        value: &[u8],
    ) -> Result<LargeValue> {
        let geo = &self.vol.geo;
        let blocks = (value.len() as u64).div_ceil(geo.block_size);
        let large =
            |root, height| LargeValue::new(root, height, value.len() as u32, crc(geo.seed, value));
        let mut map = map_of_value(self, &large(Ptr::HOLE, 0), Ino(d.ino), name);
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
        d.blocks = d.blocks.saturating_add_signed(map.blocks);
        Ok(large(map.root, map.height))
    }

    fn free_large(
        &self,
        tx: &mut Plan<'_>,
        d: &mut DiskInode,
        ino: Ino,
        name: &[u8],
        stored: &[u8],
    ) -> Result<()> {
        let large = parse_large(self, ino, stored)?;
        let mut map = map_of_value(self, &large, ino, name);
        let end = FileBlock(map.root().capacity(&self.vol.geo));
        if map::remove(tx, &mut map, FileBlock(0), end)? < end {
            return Err(Error::NoSpace(
                "the blocks of an attribute do not fit one record",
            ));
        }
        d.blocks = d.blocks.saturating_add_signed(map.blocks);
        Ok(())
    }

    /// Frees one step of an inode's attributes: first the large values one at a time,
    /// then the tree. A large value is freed only in a record that is still `fresh`,
    /// since only an empty record has room for any value. Otherwise the next record
    /// frees it.
    pub(super) fn free_some_xattrs(
        &self,
        tx: &mut Plan<'_>,
        d: &mut DiskInode,
        fresh: bool,
    ) -> Result<bool> {
        let mut large = None;
        // Lost blocks have no owner any more, and stay marked as used until fsck.
        let hole = || Ok(());
        htree::scan(
            &self.vol,
            &xattr_tree(d),
            0,
            &hole,
            &mut |item, value, name| {
                if is_large(item) {
                    large = Some((name.to_vec(), value.to_vec()));
                    return std::ops::ControlFlow::Break(());
                }
                std::ops::ControlFlow::Continue(())
            },
        )?;
        let mut tree = xattr_tree(d);
        if let Some((name, value)) = large {
            if !fresh {
                return Ok(false);
            }
            // The next value needs the tree as on the medium: one value per record.
            self.free_large(tx, d, Ino(d.ino), &name, &value)?;
            // A lookup may miss an entry that a scan finds, if its hash does not match
            // its name. Callers repeat until nothing is left, so each step must remove
            // something or fail.
            if !htree::remove(tx, &mut tree, &name)? {
                return Err(Error::corrupt(
                    Damage::TreeLeaf,
                    format!("attributes of inode {}", d.ino),
                    "a listed attribute is not found by its name",
                ));
            }
            store(d, &tree);
            return Ok(false);
        }
        let done = htree::free_step(tx, &mut tree)?;
        store(d, &tree);
        Ok(done)
    }
}
