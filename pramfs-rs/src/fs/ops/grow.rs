//! Growing: the file system takes over a larger region while it is in use.
//!
//! Order, each step durable before the next begins:
//! 1. The file of the region becomes longer, its length durable (fsync), and its new part is
//!    mapped behind the old one. The kernel is asked which ranges of it are bad, as at mount.
//! 2. The tables of group descriptors become longer (`steps::group_tables`). Blocks past the
//!    old end cannot be allocated yet, so a full region may have room for a part of a table
//!    only. It then grows by as much as that describes, and goes on from there.
//! 3. The new sizes are stored to the copy of the superblock, then to the first page. A crash
//!    leaves one valid page: the first decides if it is valid, and the next mount makes the
//!    other equal to it.
//! 4. The sizes in memory change, with no operation under way. Before one begins, the bad
//!    blocks of the new part are listed.
//!
//! A crash before 3 is complete leaves the old size and longer tables. The next grow finds
//! them. A crash before 4 is complete leaves bad blocks that are not listed. The next mount asks
//! the kernel.

use std::ops::Range;
use std::sync::atomic::Ordering;

use pramfs_medium::error::{Error, Result};
use pramfs_medium::media::SuperStatic;
use pramfs_medium::media::bitmap::BitmapKind;
use pramfs_medium::media::probe::check_geometry;
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::pmem::{PmemError, RegionAccess as _};
use pramfs_medium::size::human;
use pramfs_medium::volume::GroupRoots;

use crate::fs::engine::superblock::internal;
use crate::fs::steps::bad_blocks::avoid_bad_ranges;
use crate::fs::steps::group_tables::place_of;
use crate::fs::{Engine, Need};

/// The sizes of a file system before and after a grow, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grown {
    /// Before.
    pub from: u64,
    /// After.
    pub to: u64,
}

impl Engine {
    /// See [`FileSystem::grow`](crate::FileSystem::grow).
    ///
    /// # Errors
    /// As there.
    pub fn grow(&self, size: Option<u64>) -> Result<Grown> {
        let _one = self.growing.lock();
        let geo = &self.vol.geo;
        let from = geo.region_bytes();
        self.op(Need::Write, || self.check_size(size))?;
        let region = &self.vol.region;
        // A region that is larger already stays so. It is asked nevertheless: its file may
        // have been truncated behind it, or its length may not be durable yet.
        let len = region.grow(size.map(|size| size.max(region.len())))?;
        // A device or a file may have outgrown the format.
        let most = self.super_state.fixed.lock().max_len();
        let len = size.unwrap_or(len.min(most));
        let bad = match from < region.len() {
            true => avoid_bad_ranges(region, from),
            false => Vec::new(),
        };
        self.grow_to(len, &bad)?;
        let to = geo.region_bytes();
        if to > from {
            tracing::info!("grown from {} to {}", human(from), human(to));
        }
        Ok(Grown { from, to })
    }

    fn refuse<T>(&self, errno: i32, why: String) -> Result<T> {
        let path = self.vol.region.info().name;
        Err(PmemError::Unusable { path, why, errno }.into())
    }

    /// Refuses sizes that no region could have, before its file changes.
    fn check_size(&self, size: Option<u64>) -> Result<()> {
        let (Some(size), from) = (size, self.vol.geo.region_bytes()) else {
            return Ok(());
        };
        if size < from {
            return self.refuse(
                libc::EINVAL,
                format!(
                    "cannot shrink from {from} to {size} bytes: blocks past the new end may be in use and would have to move; make a smaller file system and copy the files"
                ),
            );
        }
        let block = self.vol.geo.block_size;
        if !size.is_multiple_of(block) {
            return self.refuse(
                libc::EINVAL,
                format!("cannot grow to {size} bytes: no multiple of the block, {block} bytes"),
            );
        }
        let most = self.super_state.fixed.lock().max_len();
        if size > most {
            return self.refuse(
                libc::EFBIG,
                format!(
                    "cannot grow to {size} bytes: with blocks of {} bytes the format ends at {most}",
                    self.vol.geo.block_size
                ),
            );
        }
        Ok(())
    }

    /// Steps 2 to 4.
    fn grow_to(&self, len: u64, bad: &[Range<u64>]) -> Result<()> {
        let old = *self.super_state.fixed.lock();
        let mut goal = old.grown(len);
        if let Some(survivor) = &self.options.survivor {
            // More inodes than it can count would lose their references.
            let most = survivor.inodes().unwrap_or(u64::MAX);
            goal.inodes_max = goal.inodes_max.min(most).max(old.inodes_max);
        }
        loop {
            let now = *self.super_state.fixed.lock();
            if !now.differs_in_size(&goal) {
                return Ok(());
            }
            let blocks = self.lengthen_table(BitmapKind::Blocks, goal.blocks)?;
            let inodes = self.lengthen_table(BitmapKind::Inodes, goal.inodes_max)?;
            let mut next = match blocks >= goal.blocks {
                true => goal,
                false => old.grown(self.vol.geo.bytes(blocks.max(now.blocks))),
            };
            next.inodes_max = next.inodes_max.min(inodes).max(now.inodes_max);
            if !now.differs_in_size(&next) {
                return Err(Error::NoSpace(
                    "no free block for the descriptors of the new part, and the reserve is used up; remove a file, then grow again",
                ));
            }
            self.publish_size(&next, bad)?;
        }
    }

    /// Makes the sizes durable, then takes them over.
    fn publish_size(&self, new: &SuperStatic, bad: &[Range<u64>]) -> Result<()> {
        let (vol, medium) = (&self.vol, self.vol.medium());
        // No mount would accept other sizes.
        check_geometry(new, vol.region.len())
            .or_else(|why| self.refuse(libc::EINVAL, format!("cannot grow: {why}")))?;
        // May take long or fail, so nothing waits for it, and nothing is stored yet.
        let prepared = vol.prepare_growth(new)?;
        // No operation is under way, and each that follows comes after the new sizes.
        let _all = self.gate.write().map_err(|_| self.ended())?;
        if !self.is_up() {
            return Err(self.ended());
        }
        if self.read_only.load(Ordering::Relaxed) {
            return Err(Error::ReadOnly(
                "the mount is read-only, or damage was found",
            ));
        }
        let root = |kind: BitmapKind| {
            internal(medium, place_of(kind), kind.owner()).map(|inode| MapRoot::of(&inode))
        };
        let roots = GroupRoots {
            blocks: root(BitmapKind::Blocks)?,
            inodes: root(BitmapKind::Inodes)?,
        };
        self.super_state
            .change_fixed(medium, |fixed| *fixed = fixed.with_size_of(new))?;
        vol.grow(&prepared, roots);
        if !bad.is_empty() {
            // Of what has become longer so far; a later step lists the rest.
            self.take_out_known(bad, true);
        }
        Ok(())
    }
}
