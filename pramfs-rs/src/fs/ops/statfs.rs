//! statfs, and the engine's use of memory.

use crate::fs::engine::room::host_is_full;
use crate::fs::inode::cache::BYTES_PER_INODE;
use crate::fs::{Engine, Need};
use pramfs_medium::error::Result;
use pramfs_medium::map::{self, MapRef};
use pramfs_medium::media::htree::NAME_MAX;
use pramfs_medium::pmem::{CHUNK, RegionAccess as _};
use pramfs_medium::types::StatFs;

/// The ordinary memory that a mounted file system uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// Inodes in the cache.
    pub inodes: usize,
    /// Bytes of these inodes: at most `MountOptions::cache_bytes`, unless more inodes
    /// are in use at once.
    pub inode_bytes: u64,
    /// Inodes with references from outside (FUSE lookups, open files), about 32 bytes
    /// each.
    pub referenced: u64,
}

impl Engine {
    /// Returns sizes and free space. Available blocks are limited by the free space of
    /// the host. The first call after a mount reads the bitmaps in use.
    ///
    /// # Errors
    /// [`crate::Error::Io`] if the file system has failed.
    pub fn statfs(&self) -> Result<StatFs> {
        self.op(Need::Read, || {
            // Make blocks that removals freed count as free, even if their record is
            // not dead yet.
            if !self.is_read_only() {
                self.free_forgotten_inodes();
                self.vol.retire_pending()?;
            }
            Ok(self.space())
        })
    }

    /// Returns sizes and free space as they are.
    pub(crate) fn space(&self) -> StatFs {
        let (free, available) = self.vol.free_blocks();
        let available = available.min(self.host_can_give(free));
        let inodes = self.vol.inodes.count_free(self.vol.medium());
        let (head, _) = self.info.fixed.uuid.split_at(8);
        StatFs {
            block_size: self.vol.geo.block_size as u32,
            blocks: self.vol.geo.blocks(),
            free,
            available,
            inodes: self.vol.geo.inodes_max(),
            free_inodes: inodes,
            name_max: NAME_MAX as u32,
            fsid: head.iter().fold(0, |a, b| a << 8 | u64::from(*b)),
        }
    }

    /// Returns how many blocks the host can back: free blocks that have room, plus
    /// the free space of the host. `free` is the number of all free blocks.
    pub(crate) fn host_can_give(&self, free: u64) -> u64 {
        let geo = &self.vol.geo;
        let Some(space) = self.vol.region.host_space() else {
            return u64::MAX;
        };
        let used = geo.bytes(geo.blocks() - free.min(geo.blocks()));
        let roomy = space.taken.min(space.len).saturating_sub(used);
        match space.free {
            Some(more) => geo.whole_blocks(roomy.saturating_add(more)),
            None => u64::MAX,
        }
    }

    /// Refuses to fill the holes of a byte range if the host lacks space for all of them. An
    /// operation that must be complete asks this first: as it goes on, it takes room in
    /// pieces, and what it has taken stays taken when it fails. Ranges of up to 2 MiB are not
    /// checked, since they fail soon enough.
    pub(crate) fn check_host_holds(&self, map: &MapRef, from: u64, to: u64) -> Result<()> {
        if to.saturating_sub(from) <= CHUNK {
            return Ok(());
        }
        let geo = &self.vol.geo;
        let (mut at, end) = (geo.file_block(from), geo.file_block_from(to));
        let mut available = self.host_can_give(self.vol.free_blocks().0);
        // Blocks whose record is not dead yet count as used at first.
        let mut retired = false;
        let mut missing = 0;
        while available != u64::MAX && at < end {
            let extent = map::run(&self.vol, map, at, end - at)?;
            missing += extent.block.map_or(extent.count, |_| 0);
            at += extent.count;
            if missing > available && !retired {
                retired = true;
                self.vol.retire_pending()?;
                available = self.host_can_give(self.vol.free_blocks().0);
            }
            if missing > available {
                return Err(host_is_full());
            }
        }
        Ok(())
    }

    /// Returns the memory in use by caches.
    pub fn memory(&self) -> MemoryUse {
        let inodes = self.cache.len();
        MemoryUse {
            inodes,
            inode_bytes: inodes as u64 * BYTES_PER_INODE,
            referenced: self.refs.len(),
        }
    }
}
