//! Whether the holes of an inode are holes.
//!
//! A zero in a pointer block or an index block has no check: a line of the
//! medium that was lost reads as eight of them. The inode knows how many blocks
//! it owns, and a directory how many entries it has: where a hole matters, what
//! the trees own is counted and compared, once for each inode in memory. Who
//! meets no hole pays nothing.
//!
//! Invariant: every record changes the count together with the trees, so that
//! both agree at every moment at which the lock of the inode is free, after a
//! crash too. So an inode that was whole stays so, and a new one is.

use std::sync::atomic::Ordering;

use crate::fs::Engine;
use crate::fs::inode::Inode;
use crate::fs::inode::completeness::{DAMAGED, UNREADABLE_XATTRS};
use crate::fs::inode::disk::map_of;
use crate::fs::inode::state::InodeState;
use crate::fs::inode::trees::{dir_tree, is_large, map_of_value, parse_large, xattr_tree};
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::htree::{self, TreeRef};
use pramfs_medium::map;
use pramfs_medium::types::{FileType, Ino};

/// Where a hole was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hole {
    /// In a file map, or the tree of a directory.
    Contents,
    /// In the tree of attributes.
    Xattrs,
}

/// Blocks that an inode owns, by its trees.
struct Owned {
    contents: u64,
    /// `None`: they are damaged, and say so themselves.
    xattrs: Option<u64>,
    /// Entries of a directory, if its leaves are readable.
    entries: Option<u64>,
}

impl Engine {
    /// What was met is a hole, and not what is left of blocks that were lost.
    /// The caller holds the lock of the inode.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where the inode counts other blocks, or entries, than
    /// it has.
    #[inline]
    pub(crate) fn check_hole(&self, state: &InodeState, hole: Hole) -> Result<()> {
        if state.complete.is_known() {
            return Ok(());
        }
        self.count_blocks(state, hole)
    }

    /// As [`check_hole`](Self::check_hole), of contents; reads without a lock know it
    /// from then on.
    #[inline]
    pub(crate) fn check_hole_of(&self, inode: &Inode, state: &InodeState) -> Result<()> {
        self.check_hole(state, Hole::Contents)?;
        if state.complete.is_known() {
            inode.complete.note();
        }
        Ok(())
    }

    /// A name was not found in a tree of a locked inode: it is not in it.
    ///
    /// # Errors
    /// As for [`check_hole`](Self::check_hole).
    #[inline]
    pub(crate) fn check_absent(
        &self,
        state: &InodeState,
        tree: &TreeRef,
        name: &[u8],
    ) -> Result<()> {
        if state.complete.is_known() {
            return Ok(());
        }
        self.look_for_hole(state, tree, name)
    }

    #[cold]
    fn look_for_hole(&self, state: &InodeState, tree: &TreeRef, name: &[u8]) -> Result<()> {
        if !htree::seek_leaf(&self.vol, tree, name)?.is_hole() {
            return Ok(());
        }
        match tree.kind {
            htree::TreeKind::Directory => self.check_hole(state, Hole::Contents),
            htree::TreeKind::Xattrs => self.check_hole(state, Hole::Xattrs),
        }
    }

    #[cold]
    fn count_blocks(&self, state: &InodeState, hole: Hole) -> Result<()> {
        let d = &state.disk;
        let bad = || {
            Err(Error::corrupt(
                Damage::BlocksMissing,
                Ino(d.ino).to_string(),
                format!(
                    "it does not have the {} blocks that it counts: what reads as a hole may be lost",
                    d.blocks
                ),
            ))
        };
        match state.complete.0.load(Ordering::Relaxed) {
            DAMAGED => return bad(),
            UNREADABLE_XATTRS if hole == Hole::Contents => return Ok(()),
            _ => {}
        }
        let owned = self.owned(state)?;
        let counted = match owned.xattrs {
            Some(xattrs) => owned.contents.checked_add(xattrs) == Some(d.blocks),
            // Then nobody can tell; what is known to be missing is theirs.
            None if hole == Hole::Contents => {
                state.complete.0.store(UNREADABLE_XATTRS, Ordering::Relaxed);
                return Ok(());
            }
            None => false,
        };
        let listed = !state.is_dir() || owned.entries.is_none_or(|n| n == d.size);
        if counted && listed {
            state.complete.note();
            return Ok(());
        }
        state.complete.0.store(DAMAGED, Ordering::Relaxed);
        match owned.entries {
            Some(found) if counted => Err(Error::corrupt(
                match found < d.size {
                    true => Damage::EntriesMissing,
                    false => Damage::EntryCount,
                },
                Ino(d.ino).to_string(),
                format!("it has {found} entries, but counts {}", d.size),
            )),
            _ => bad(),
        }
    }

    fn owned(&self, state: &InodeState) -> Result<Owned> {
        let d = &state.disk;
        let mut owned = Owned {
            contents: 0,
            xattrs: Some(0),
            entries: Some(0),
        };
        if d.root != 0 && state.kind() == FileType::Directory {
            let count = htree::count(&self.vol, &dir_tree(d), d.blocks)?;
            (owned.contents, owned.entries) = (count.blocks, count.items);
        } else if d.root != 0 {
            // One too many is as bad as many.
            let count = map::count(&self.vol, &map_of(d), d.blocks)?;
            owned.contents = count.unwrap_or(u64::MAX);
        }
        if d.xattr_root != 0 {
            owned.xattrs = match self.owned_by_xattrs(state) {
                Ok(blocks) => Some(blocks),
                Err(Error::Corrupt { .. }) => None,
                Err(e) => return Err(e),
            };
        }
        Ok(owned)
    }

    fn owned_by_xattrs(&self, state: &InodeState) -> Result<u64> {
        let (d, mut large) = (&state.disk, Vec::new());
        let tree = xattr_tree(d);
        let mut blocks = htree::count(&self.vol, &tree, d.blocks)?.blocks;
        htree::scan(&self.vol, &tree, 0, &|| Ok(()), &mut |item, value, name| {
            if is_large(item) {
                large.push((name.to_vec(), value.to_vec()));
            }
            std::ops::ControlFlow::Continue(())
        })?;
        for (name, value) in large {
            let value = parse_large(&self.vol.geo, Ino(d.ino), &value)?;
            let map = map_of_value(&self.vol.geo, &value, Ino(d.ino), &name);
            // What is left of all, so that no number of values takes longer.
            let most = d.blocks.min(self.vol.geo.blocks).saturating_sub(blocks);
            match map::count(&self.vol, &map, most)? {
                Some(count) => blocks += count,
                None => return Ok(u64::MAX),
            }
        }
        Ok(blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::inode::completeness::{COMPLETE, UNKNOWN};
    use crate::{
        MountOptions,
        inode::{Credentials, Fs},
    };
    use pramfs_medium::format::{FormatOptions, format};
    use pramfs_medium::media::pointer::Ptr;
    use pramfs_medium::pmem::{Region, SimBackend};
    use pramfs_medium::types::{Fallocate, SetAttr, XattrMode};

    const BLOCK: u64 = 4096;

    /// A file of two blocks of data and a hole, as a mount finds it.
    fn found(xattr: bool) -> (Fs, Ino) {
        let sim = SimBackend::new(4 << 20).unwrap();
        let open = || {
            let options = MountOptions {
                background: false,
                ..MountOptions::default()
            };
            Fs::open(Region::new("whole", Box::new(sim.clone())), options).unwrap()
        };
        let region = Region::new("whole", Box::new(sim.clone()));
        format(&region, &FormatOptions::default()).unwrap();
        drop(region);
        let fs = open();
        let file = fs.create(&Credentials::ROOT, Ino::ROOT, b"file", 0o644);
        let ino = file.unwrap().ino;
        fs.append(&Credentials::ROOT, ino, &[1; 2 * BLOCK as usize])
            .unwrap();
        let size = SetAttr {
            size: Some(9 * BLOCK),
            ..SetAttr::default()
        };
        fs.setattr(&Credentials::ROOT, ino, &size).unwrap();
        if xattr {
            fs.setxattr(
                &Credentials::ROOT,
                ino,
                b"user.name",
                b"value",
                XattrMode::Set,
            )
            .unwrap();
        }
        fs.close().unwrap();
        (open(), ino)
    }

    fn state(fs: &Fs, ino: Ino) -> u8 {
        let inode = fs.iget(ino).unwrap();
        let state = inode.state.read();
        state.complete.0.load(Ordering::Relaxed)
    }

    #[test]
    fn file_with_damaged_attributes_is_counted_once() {
        let (fs, ino) = found(true);
        let root = Ptr(fs.iget(ino).unwrap().state.read().disk.xattr_root);
        let at = fs.vol.geo.offset(root.block());
        let w = fs.vol.region.window();
        for word in 0..8 {
            w.store_u64_unflushed(at + word * 8, u64::MAX).unwrap();
        }
        let mut bytes = [7; BLOCK as usize];
        fs.read(ino, 5 * BLOCK, &mut bytes).unwrap();
        assert_eq!(bytes, [0; BLOCK as usize]);
        assert_eq!(state(&fs, ino), UNREADABLE_XATTRS);
        fs.read(ino, 5 * BLOCK, &mut bytes).unwrap();
        // An attribute that is not found may be lost.
        assert!(
            fs.getxattr(ino, b"user.other")
                .is_err_and(|e| e.errno() != libc::ENODATA)
        );
    }

    #[test]
    fn punch_of_hole_counts_nothing() {
        let (fs, ino) = found(false);
        fs.fallocate(&Credentials::ROOT, ino, Fallocate::PunchHole, 0, BLOCK)
            .unwrap();
        assert_eq!(state(&fs, ino), UNKNOWN);
        fs.fallocate(&Credentials::ROOT, ino, Fallocate::PunchHole, 0, 9 * BLOCK)
            .unwrap();
        assert_eq!(state(&fs, ino), COMPLETE);
        assert_eq!(fs.getattr(ino).unwrap().blocks, 0);
    }
}
