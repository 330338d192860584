//! The completeness check: tells real holes of an inode from lost pointers.
//!
//! A zero pointer has no checksum, and a lost cache line of the medium reads as eight zero
//! pointers. The inode stores the number of its blocks, and a directory also the number of
//! its entries. When an operation depends on a hole, this check counts the blocks and
//! entries in the trees and compares the numbers, once for each inode in memory. An
//! operation that finds no hole pays nothing.
//!
//! Invariant: every record changes the counts together with the trees. They agree whenever
//! the lock of the inode is free, and after a crash. An inode that was complete therefore
//! stays complete, and a new inode is complete.
//!
//! The flags that remember the result are in
//! [`inode::completeness`](crate::fs::inode::completeness).

use std::sync::atomic::Ordering;

use crate::fs::Engine;
use crate::fs::inode::Inode;
use crate::fs::inode::completeness::{DAMAGED, UNREADABLE_XATTRS};
use crate::fs::inode::large_values::{map_of_value, parse_large};
use crate::fs::inode::state::InodeState;
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::htree::{self, TreeRef};
use pramfs_medium::map::{self, MapRef};
use pramfs_medium::types::{FileType, Ino};

/// The tree in which a hole was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hole {
    /// A file map, or the tree of a directory.
    Contents,
    /// The tree of extended attributes.
    Xattrs,
}

/// The blocks and entries that the trees of an inode hold.
struct Owned {
    contents: u64,
    /// `None` if the attribute tree is damaged. Its checksums report that damage.
    xattrs: Option<u64>,
    /// Entries of a directory, if its leaves are readable.
    entries: Option<u64>,
}

impl Engine {
    /// Checks that a hole is real, and not the trace of lost pointers. The caller holds
    /// the lock of the inode.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the trees do not hold the blocks or entries that the inode
    /// counts.
    #[inline]
    pub(crate) fn check_hole(&self, state: &InodeState, hole: Hole) -> Result<()> {
        if state.complete.is_known() {
            return Ok(());
        }
        self.count_blocks(state, hole)
    }

    /// As [`check_hole`](Self::check_hole), for the contents. Also passes the result to
    /// readers without a lock.
    #[inline]
    pub(crate) fn check_hole_of(&self, inode: &Inode, state: &InodeState) -> Result<()> {
        self.check_hole(state, Hole::Contents)?;
        if state.complete.is_known() {
            inode.complete.note();
        }
        Ok(())
    }

    /// Checks that a name that was not found in a tree of a locked inode is missing, and
    /// not behind a lost pointer.
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
        let disk = &state.disk;
        let bad = || {
            Err(Error::corrupt(
                Damage::BlocksMissing,
                Ino(disk.ino),
                format!(
                    "it does not have the {} blocks that it counts: a hole in it may be lost data",
                    disk.blocks
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
            Some(xattrs) => owned.contents.checked_add(xattrs) == Some(disk.blocks),
            // The contents cannot be checked. The only damage that is known is in the
            // attributes, so accept the hole.
            None if hole == Hole::Contents => {
                state.complete.0.store(UNREADABLE_XATTRS, Ordering::Relaxed);
                return Ok(());
            }
            None => false,
        };
        let listed = !state.is_dir() || owned.entries.is_none_or(|n| n == disk.size);
        if counted && listed {
            state.complete.note();
            return Ok(());
        }
        state.complete.0.store(DAMAGED, Ordering::Relaxed);
        match owned.entries {
            Some(found) if counted => Err(Error::corrupt(
                match found < disk.size {
                    true => Damage::EntriesMissing,
                    false => Damage::EntryCount,
                },
                Ino(disk.ino),
                format!("it has {found} entries, but counts {}", disk.size),
            )),
            _ => bad(),
        }
    }

    fn owned(&self, state: &InodeState) -> Result<Owned> {
        let disk = &state.disk;
        let mut owned = Owned {
            contents: 0,
            xattrs: Some(0),
            entries: Some(0),
        };
        if disk.root != 0 && state.kind() == FileType::Directory {
            let count = htree::count(&self.vol, &TreeRef::directory(disk), disk.blocks)?;
            (owned.contents, owned.entries) = (count.blocks, count.items);
        } else if disk.root != 0 {
            // The count stops at one block too many; the exact number does not matter.
            let count = map::count(&self.vol, &MapRef::of(disk), disk.blocks)?;
            owned.contents = count.unwrap_or(u64::MAX);
        }
        if disk.xattr_root != 0 {
            owned.xattrs = match self.owned_by_xattrs(state) {
                Ok(blocks) => Some(blocks),
                Err(Error::Corrupt { .. }) => None,
                Err(e) => return Err(e),
            };
        }
        Ok(owned)
    }

    fn owned_by_xattrs(&self, state: &InodeState) -> Result<u64> {
        let (disk, mut large) = (&state.disk, Vec::new());
        let tree = TreeRef::xattrs(disk);
        let mut blocks = htree::count(&self.vol, &tree, disk.blocks)?.blocks;
        htree::scan(&self.vol, &tree, 0, &|| Ok(()), &mut |item, value, name| {
            if item.is_large() {
                large.push((name.to_vec(), value.to_vec()));
            }
            std::ops::ControlFlow::Continue(())
        })?;
        for (name, value) in large {
            let value = parse_large(&self.vol.geo, Ino(disk.ino), &value)?;
            let map = map_of_value(&self.vol.geo, &value, Ino(disk.ino), &name);
            // Bound each count by the remaining blocks, so that the total time does not
            // depend on the number of values.
            let most = disk
                .blocks
                .min(self.vol.geo.blocks())
                .saturating_sub(blocks);
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
    use pramfs_medium::pmem::RegionAccess as _;
    use pramfs_medium::pmem::{Region, SimBackend};
    use pramfs_medium::types::{Fallocate, SetAttr, XattrMode};

    const BLOCK: u64 = 4096;

    /// Makes a file of two data blocks and a hole, and mounts again.
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
        let at = fs.vol.geo.offset(root.block()).0;
        let w = fs.vol.region.window();
        for word in 0..8 {
            w.store_u64_unflushed(at + word * 8, u64::MAX).unwrap();
        }
        let mut bytes = [7; BLOCK as usize];
        fs.read(ino, 5 * BLOCK, &mut bytes).unwrap();
        assert_eq!(bytes, [0; BLOCK as usize]);
        assert_eq!(state(&fs, ino), UNREADABLE_XATTRS);
        fs.read(ino, 5 * BLOCK, &mut bytes).unwrap();
        // A missing attribute may be lost.
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
