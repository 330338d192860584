//! The inode table: from inode number to the inode's home, and its growth.
//!
//! The table is a file of inodes whose own inode stands in the superblock page
//! and its copy. A slot whose bit is clear in the inode bitmap means nothing,
//! so that growing needs no zeroed blocks: one record adds pointers.

use super::completeness::Completeness;
use super::extent_cache::{CachedExtent, ExtentCache};
use super::inode::{map_of, put_lines, store_map};
use crate::error::{Error, Result};
use crate::journal::LastRecord;
use crate::map;
use crate::media::inode::INODE_SIZE;
use crate::media::superblock::INODE_TABLE_OFFSET;
use crate::media::{DiskInode, Geometry};
use crate::sync::RwLock;
use crate::types::Ino;
use crate::volume::Volume;

/// Blocks by which the table grows.
const GROW: u64 = 16;

/// See the module.
#[derive(Debug)]
pub(super) struct InodeTable {
    inode: RwLock<DiskInode>,
    last_record: LastRecord,
    /// Where its blocks are. None ever moves or goes, so nothing that is known
    /// becomes wrong.
    known: ExtentCache,
    /// Its holes are holes.
    complete: Completeness,
}

/// Records behind which a block of the table is where it is: any.
const ALWAYS: u64 = 0;

impl InodeTable {
    /// The table whose inode was read from the superblock page.
    pub(super) fn new(inode: DiskInode) -> InodeTable {
        InodeTable {
            inode: RwLock::new(inode),
            last_record: LastRecord::default(),
            known: ExtentCache::default(),
            complete: Completeness::unknown(),
        }
    }

    /// Where an inode lives, without a lock, if its block was found before.
    #[inline]
    fn known(&self, geo: &Geometry, ino: Ino) -> Option<u64> {
        let at = ino.0 * INODE_SIZE;
        let (part, within) = part_of(geo, at >> geo.block_log2);
        match self.known.get(ALWAYS, part, within)? {
            CachedExtent::Block(block) => Some(geo.offset(block) + (at & (geo.block_size - 1))),
            CachedExtent::Leaf(_) => None,
        }
    }

    fn find(&self, vol: &Volume, d: &DiskInode, ino: Ino) -> Result<Option<u64>> {
        let (geo, at) = (&vol.geo, ino.0 * INODE_SIZE);
        let index = at >> geo.block_log2;
        let Some(block) = map::find(vol, &map_of(d), index)?.block else {
            return Ok(None);
        };
        let (part, within) = part_of(geo, index);
        let of = (within, 1 << geo.fan_log2);
        self.known
            .put(ALWAYS, part, of, CachedExtent::Block(block), || true);
        Ok(Some(geo.offset(block) + at % geo.block_size))
    }

    /// Where an inode lives.
    ///
    /// # Errors
    /// [`Error::Stale`] for a number that the table does not reach,
    /// [`Error::Corrupt`].
    #[inline]
    pub(super) fn home(&self, vol: &Volume, ino: Ino) -> Result<u64> {
        if ino.0 >= vol.geo.inodes_max {
            return Err(Error::Stale(ino));
        }
        if let Some(home) = self.known(&vol.geo, ino) {
            return Ok(home);
        }
        self.find(vol, &self.inode.read(), ino)?
            .ok_or(Error::Stale(ino))
    }

    /// Where an inode lives; `None` where the table does not reach its number.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub(super) fn find_now(&self, vol: &Volume, ino: Ino) -> Result<Option<u64>> {
        match self.known(&vol.geo, ino) {
            Some(home) => Ok(Some(home)),
            None => self.find(vol, &self.inode.read(), ino),
        }
    }

    /// As [`home`](Self::home), growing the table to reach a number that has
    /// just been taken. Growth is a record of its own: a crash after it leaves
    /// a longer table and nothing else.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Corrupt`].
    pub(super) fn home_or_grow(&self, vol: &Volume, ino: Ino) -> Result<u64> {
        let geo = &vol.geo;
        if let Some(home) = self.known(geo, ino) {
            return Ok(home);
        }
        if let Some(home) = self.find(vol, &self.inode.read(), ino)? {
            return Ok(home);
        }
        let mut inode = self.inode.write();
        if let Some(home) = self.find(vol, &inode, ino)? {
            return Ok(home);
        }
        let index = (ino.0 * INODE_SIZE) >> geo.block_log2;
        let last = (geo.inodes_max * INODE_SIZE).div_ceil(geo.block_size);
        let mut map = map_of(&inode);
        if !self.complete.is_known() {
            // Inodes whose blocks were lost must not get others.
            if map::count(vol, &map, inode.blocks)? != Some(inode.blocks) {
                return Err(Error::corrupt(
                    "the inode table",
                    "it does not have the blocks that it counts",
                ));
            }
            self.complete.note();
        }
        let mut tx = vol.begin();
        let room = map::run(vol, &map, index, GROW.min(last - index).max(1))?;
        // Small regions give inodes no more than they need.
        let want = room.count.min(GROW).min(1 + geo.blocks / 256).max(1);
        let want = map::plan(&tx, &map, index, want)?.max(1);
        let run = tx.alloc_blocks(None, want as u32, false)?;
        map::insert(&mut tx, &mut map, index, run, false)?;
        let mut new = *inode;
        store_map(&mut new, &map);
        new.size = new.size.max((index + run.len) << geo.block_log2);
        let homes = [INODE_TABLE_OFFSET, geo.copy_offset + INODE_TABLE_OFFSET];
        put_lines(
            &mut tx,
            &self.last_record,
            &homes,
            Ino::INODE_TABLE,
            &inode,
            &mut new,
            0,
        )?;
        // The pointer blocks of the table are guarded by `place` too.
        tx.commit()?;
        *inode = new;
        self.find(vol, &inode, ino)?
            .ok_or_else(|| Error::corrupt("the inode table", "it did not grow"))
    }
}

/// Part of the table that holds a block of it, and the block's place in that.
#[inline]
fn part_of(geo: &Geometry, index: u64) -> (u64, usize) {
    let within = index & ((1 << geo.fan_log2) - 1);
    (index >> geo.fan_log2, within as usize)
}
