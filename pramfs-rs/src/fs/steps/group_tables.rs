//! The tables of group descriptors, which a grow makes longer.
//!
//! A table is the file of an internal inode, whose own inode is in both superblock pages.
//! Invariant: what is added describes groups past the end of the bitmap, which nobody looks
//! at before the new size holds. So
//! * blocks are added by records, like those of the inode table: a crash leaves a longer table;
//! * descriptors in blocks that are there already are stored in place, and fenced here.
//!
//! All of it may be repeated: the next grow finds the longer table and stores the same again.

use pramfs_medium::error::{Error, Result};
use pramfs_medium::map::{self, MapRef};
use pramfs_medium::media::bitmap::{BitmapKind, GroupDesc};
use pramfs_medium::media::superblock::{BLOCK_GROUPS_OFFSET, INODE_GROUPS_OFFSET};
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::media::{DiskInode, Geometry};
use pramfs_medium::pmem::{RegionAccess as _, Unfenced};
use pramfs_medium::types::FileBlock;
use pramfs_medium::volume::Volume;
use zerocopy::IntoBytes as _;

use crate::fs::engine::superblock::internal;
use crate::fs::inode::disk::put_lines;
use crate::fs::{Engine, Need};

/// Blocks that one record adds at most.
const AT_ONCE: u64 = 64;

/// Returns the place of a table's inode in a superblock page.
pub(crate) fn place_of(kind: BitmapKind) -> u64 {
    match kind {
        BitmapKind::Blocks => BLOCK_GROUPS_OFFSET,
        BitmapKind::Inodes => INODE_GROUPS_OFFSET,
    }
}

/// The descriptors of groups that are not in use.
fn unused(geo: &Geometry, kind: BitmapKind, groups: std::ops::Range<u64>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity((groups.end - groups.start) as usize * GroupDesc::SIZE);
    for group in groups {
        bytes.extend_from_slice(GroupDesc::unused(geo, kind, group).as_bytes());
    }
    bytes
}

impl Engine {
    /// Makes a table long enough for so many bits, or as long as there is room for. Returns
    /// the number of bits that it describes. The caller lets one grow run at a time.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; those of the region.
    pub(crate) fn lengthen_table(&self, kind: BitmapKind, bits: u64) -> Result<u64> {
        let geo = &self.vol.geo;
        let groups = bits.div_ceil(geo.bits_per_group());
        let wanted = geo.file_block_from(groups * GroupDesc::SIZE as u64);
        let there = self.blocks_of_table(kind)?;
        let mut have = there;
        while have < wanted {
            match self.op(Need::Write, || self.add_to_table(kind, wanted)) {
                Ok(end) => have = end,
                Err(Error::NoSpace(_)) => break,
                Err(e) => return Err(e),
            }
        }
        let in_block = geo.block_size / GroupDesc::SIZE as u64;
        let described = groups.min(have.0 * in_block);
        // The rest is in blocks that were just filled.
        self.op(Need::Write, || {
            self.describe_unused(kind, described.min(there.0 * in_block))
        })?;
        Ok(bits.min(described.saturating_mul(geo.bits_per_group())))
    }

    fn table_inode(&self, kind: BitmapKind) -> Result<DiskInode> {
        internal(self.vol.medium(), place_of(kind), kind.owner())
    }

    fn blocks_of_table(&self, kind: BitmapKind) -> Result<FileBlock> {
        let inode = self.op(Need::Read, || self.table_inode(kind))?;
        Ok(self.vol.geo.file_block_from(inode.size))
    }

    /// Adds blocks to the end of a table, in one record, and returns its new end.
    fn add_to_table(&self, kind: BitmapKind, wanted: FileBlock) -> Result<FileBlock> {
        let geo = &self.vol.geo;
        let inode = self.table_inode(kind)?;
        let from = geo.file_block_from(inode.size);
        let mut map = MapRef::of(&inode);
        let mut tx = self.vol.begin_at(&self.group_tables);
        // What it takes comes back with the new part.
        tx.allow_reserve();
        let most = map::plan(&tx, &map, from, (wanted - from).min(AT_ONCE))?.max(1);
        let run = tx.alloc_blocks(None, most as u32, false)?;
        let in_block = geo.block_size / GroupDesc::SIZE as u64;
        for i in 0..run.len {
            let first = (from.0 + i) * in_block;
            let bytes = unused(geo, kind, first..first + in_block);
            tx.write_new(geo.offset(run.start) + geo.bytes(i), &bytes)?;
        }
        map::insert(&mut tx, &mut map, from, run, false)?;
        let mut new = inode;
        map.store(&mut new);
        new.size = geo.file_offset(from + run.len);
        let homes = geo.pages().map(|page| page + place_of(kind));
        let last = &self.group_tables;
        put_lines(&mut tx, last, &homes, kind.owner(), &inode, &mut new, 0)?;
        tx.commit()?;
        Ok(from + run.len)
    }

    /// Stores and fences the descriptors of the groups past the end of a bitmap, up to a
    /// group.
    fn describe_unused(&self, kind: BitmapKind, end: u64) -> Result<()> {
        let Volume { region, geo, .. } = &self.vol;
        let set = self.vol.bitmap(kind);
        let in_block = geo.block_size / GroupDesc::SIZE as u64;
        let (mut group, mut pending) = (set.groups(), Unfenced::none());
        if group >= end {
            return Ok(());
        }
        let table = MapRoot::of(&self.table_inode(kind)?);
        while group < end {
            let stop = ((group / in_block + 1) * in_block).min(end);
            let at = set.desc_offset_in(&table, self.vol.medium(), group)?;
            let bytes = unused(geo, kind, group..stop);
            region.need_room(at.0, bytes.len() as u64)?;
            pending = pending.join(region.window().store(at.0, &bytes)?);
            group = stop;
        }
        let _ = region.window().fence(pending);
        Ok(())
    }
}
