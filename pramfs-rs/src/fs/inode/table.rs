//! The inode table: maps inode numbers to homes, and grows.
//!
//! The table is a file of inodes. Its own inode is in the superblock page and its
//! copy. The bytes of an inode whose bit in the inode bitmap is clear are undefined,
//! so growth needs no zeroed blocks: one record adds pointers.

use crate::fs::cache::extent_cache::{CachedExtent, ExtentCache};
use crate::fs::inode::completeness::Completeness;
use crate::fs::inode::disk::put_lines;
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::journal::LastRecord;
use pramfs_medium::map::{self, MapRef};
use pramfs_medium::media::inode::INODE_SIZE;
use pramfs_medium::media::superblock::INODE_TABLE_OFFSET;
use pramfs_medium::media::{DiskInode, Geometry};
use pramfs_medium::sync::{RwLock, rank};
use pramfs_medium::types::{FileBlock, Ino, RegionOffset};
use pramfs_medium::volume::Volume;

/// Blocks by which the table grows.
const GROW: u64 = 16;

/// The inode table, see the module.
#[derive(Debug)]
pub(crate) struct InodeTable {
    inode: RwLock<DiskInode, rank::InodeTable>,
    last_record: LastRecord,
    /// The places of its blocks. No block is moved or freed, so entries stay valid.
    known: ExtentCache,
    /// Whether its holes are real, and not lost pointers.
    complete: Completeness,
}

/// The record counter for cached blocks of the table: constant, since they do not
/// move.
const ALWAYS: u64 = 0;

impl InodeTable {
    /// Creates the table from its inode in the superblock page.
    pub(crate) fn new(inode: DiskInode) -> InodeTable {
        InodeTable {
            inode: RwLock::new(inode),
            last_record: LastRecord::default(),
            known: ExtentCache::default(),
            complete: Completeness::unknown(),
        }
    }

    /// Returns the home of an inode without a lock, if its block is cached.
    #[inline]
    fn known(&self, geo: &Geometry, ino: Ino) -> Option<RegionOffset> {
        let at = ino.0 * INODE_SIZE;
        let (part, within) = part_of(geo, geo.file_block(at));
        match self.known.get(ALWAYS, part, within)? {
            CachedExtent::Block(block) => Some(geo.offset(block) + geo.within_block(at)),
            CachedExtent::Leaf(_) => None,
        }
    }

    fn find(&self, vol: &Volume, disk: &DiskInode, ino: Ino) -> Result<Option<RegionOffset>> {
        let (geo, at) = (&vol.geo, ino.0 * INODE_SIZE);
        let index = geo.file_block(at);
        let Some(block) = map::find(vol, &MapRef::of(disk), index)?.block else {
            return Ok(None);
        };
        let (part, within) = part_of(geo, index);
        let of = (within, geo.fan() as usize);
        self.known
            .put(ALWAYS, part, of, CachedExtent::Block(block), || true);
        Ok(Some(geo.offset(block) + geo.within_block(at)))
    }

    /// Returns the home of an inode.
    ///
    /// # Errors
    /// [`Error::Stale`] for a number that the table does not reach,
    /// [`Error::Corrupt`].
    #[inline]
    pub(crate) fn home(&self, vol: &Volume, ino: Ino) -> Result<RegionOffset> {
        if ino.0 >= vol.geo.inodes_max() {
            return Err(Error::Stale(ino));
        }
        self.find_now(vol, ino)?.ok_or(Error::Stale(ino))
    }

    /// Returns the home of an inode; `None` if the table does not reach its number.
    #[inline]
    pub(crate) fn find_now(&self, vol: &Volume, ino: Ino) -> Result<Option<RegionOffset>> {
        match self.known(&vol.geo, ino) {
            Some(home) => Ok(Some(home)),
            None => self.find(vol, &self.inode.read(), ino),
        }
    }

    /// As [`home`](Self::home), but grows the table to reach a number that was
    /// allocated. Growth takes a separate record: a crash after it leaves only a
    /// longer table.
    pub(crate) fn home_or_grow(&self, vol: &Volume, ino: Ino) -> Result<RegionOffset> {
        let geo = &vol.geo;
        if let Some(home) = self.find_now(vol, ino)? {
            return Ok(home);
        }
        let mut inode = self.inode.write();
        if let Some(home) = self.find(vol, &inode, ino)? {
            return Ok(home);
        }
        let index = geo.file_block(ino.0 * INODE_SIZE);
        let last = geo.file_block_from(geo.inodes_max() * INODE_SIZE);
        let mut map = MapRef::of(&inode);
        if !self.complete.is_known() {
            // Inodes whose blocks were lost must not get new blocks.
            if map::count(vol, &map, inode.blocks)? != Some(inode.blocks) {
                return Err(Error::corrupt(
                    Damage::BlockCount,
                    "the inode table",
                    "it has fewer or more blocks than it counts",
                ));
            }
            self.complete.note();
        }
        let mut tx = vol.begin();
        let room = map::run(vol, &map, index, GROW.min(last - index).max(1))?;
        // A small region spends few blocks on inodes.
        let want = room.count.min(GROW).min(1 + geo.blocks() / 256).max(1);
        let want = map::plan(&tx, &map, index, want)?.max(1);
        let run = tx.alloc_blocks(None, want as u32, false)?;
        map::insert(&mut tx, &mut map, index, run, false)?;
        let mut new = *inode;
        map.store(&mut new);
        new.size = new.size.max(geo.file_offset(index + run.len));
        let homes = geo.pages().map(|page| page + INODE_TABLE_OFFSET);
        put_lines(
            &mut tx,
            &self.last_record,
            &homes,
            Ino::INODE_TABLE,
            &inode,
            &mut new,
            0,
        )?;
        // `last_record` also covers the pointer blocks of the table.
        tx.commit()?;
        *inode = new;
        self.find(vol, &inode, ino)?
            .ok_or_else(|| Error::corrupt(Damage::MapHole, "the inode table", "it did not grow"))
    }
}

/// Returns the part of the table that holds a block, and the block's place in it.
#[inline]
fn part_of(geo: &Geometry, index: FileBlock) -> (u64, usize) {
    (geo.index_at(1, index), geo.slot_of(index) as usize)
}
