//! The inode table: from inode number to the inode's home, and its growth.
//!
//! The table is a file of inodes whose own inode stands in the superblock page
//! and its copy. A slot whose bit is clear in the inode bitmap means nothing,
//! so that growing needs no zeroed blocks: one record adds pointers.

use parking_lot::RwLock;

use super::inode::{map_of, put_lines, store_map};
use crate::error::{Error, Result};
use crate::journal::Place;
use crate::map;
use crate::media::inode::INODE_SIZE;
use crate::media::superblock::INODE_TABLE_OFFSET;
use crate::media::{DiskInode, Geometry};
use crate::types::Ino;
use crate::volume::Volume;

/// Blocks by which the table grows.
const GROW: u64 = 16;

/// See the module.
#[derive(Debug)]
pub struct InodeTable {
    inode: RwLock<DiskInode>,
    place: Place,
}

impl InodeTable {
    /// The table whose inode was read from the superblock page.
    pub fn new(inode: DiskInode) -> InodeTable {
        InodeTable {
            inode: RwLock::new(inode),
            place: Place::default(),
        }
    }

    fn find(geo: &Geometry, vol: &Volume, d: &DiskInode, ino: Ino) -> Result<Option<u64>> {
        let at = ino.0 * INODE_SIZE;
        let leaf = map::find(vol, &map_of(d), at >> geo.block_log2)?;
        Ok(leaf.block.map(|b| geo.offset(b) + at % geo.block_size))
    }

    /// Where an inode lives.
    ///
    /// # Errors
    /// [`Error::Stale`] for a number that the table does not reach,
    /// [`Error::Corrupt`].
    #[inline]
    pub fn home(&self, vol: &Volume, ino: Ino) -> Result<u64> {
        if ino.0 >= vol.geo.inodes_max {
            return Err(Error::Stale(ino));
        }
        Self::find(&vol.geo, vol, &self.inode.read(), ino)?.ok_or(Error::Stale(ino))
    }

    /// Where an inode lives; `None` where the table does not reach its number.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn find_now(&self, vol: &Volume, ino: Ino) -> Result<Option<u64>> {
        Self::find(&vol.geo, vol, &self.inode.read(), ino)
    }

    /// As [`home`](Self::home), growing the table to reach a number that has
    /// just been taken. Growth is a record of its own: a crash after it leaves
    /// a longer table and nothing else.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Corrupt`].
    pub fn home_or_grow(&self, vol: &Volume, ino: Ino) -> Result<u64> {
        let geo = &vol.geo;
        if let Some(home) = Self::find(geo, vol, &self.inode.read(), ino)? {
            return Ok(home);
        }
        let mut inode = self.inode.write();
        if let Some(home) = Self::find(geo, vol, &inode, ino)? {
            return Ok(home);
        }
        let index = (ino.0 * INODE_SIZE) >> geo.block_log2;
        let last = (geo.inodes_max * INODE_SIZE).div_ceil(geo.block_size);
        let mut tx = vol.begin();
        let mut m = map_of(&inode);
        let room = map::run(vol, &m, index, GROW.min(last - index).max(1))?;
        // Small regions give inodes no more than they need.
        let want = room.count.min(GROW).min(1 + geo.blocks / 256).max(1);
        let want = map::plan(&tx, &m, index, want)?.max(1);
        let run = tx.alloc_blocks(None, want as u32, false)?;
        map::insert(&mut tx, &mut m, index, run, false)?;
        let mut new = *inode;
        store_map(&mut new, &m);
        new.size = new.size.max((index + run.len) << geo.block_log2);
        let homes = [INODE_TABLE_OFFSET, geo.copy_offset + INODE_TABLE_OFFSET];
        put_lines(
            &mut tx,
            &self.place,
            &homes,
            Ino::INODE_TABLE,
            &inode,
            &mut new,
            0,
        )?;
        // The pointer blocks of the table are guarded by `place` too.
        tx.commit()?;
        *inode = new;
        Self::find(geo, vol, &inode, ino)?
            .ok_or_else(|| Error::corrupt("the inode table", "it did not grow"))
    }
}
