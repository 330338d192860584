//! statfs, and what the engine uses of memory.

use super::{Engine, Need};
use crate::error::Result;
use crate::fs::icache::BYTES_PER_INODE;
use crate::media::htree::NAME_MAX;
use crate::types::StatFs;

/// Ordinary memory that a mounted file system holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// Inodes in the cache.
    pub inodes: usize,
    /// Bytes they take, at most `MountOptions::cache_bytes` unless more are in
    /// use at once.
    pub inode_bytes: u64,
    /// Inodes that have references from outside (FUSE lookups, open files);
    /// about 32 bytes each.
    pub referenced: u64,
}

impl Engine {
    /// Sizes and free space: available is what the host of the region can give,
    /// too. The first call after a mount reads the bitmaps in
    /// use.
    ///
    /// # Errors
    /// [`crate::Error::Io`] on a failed file system.
    pub fn statfs(&self) -> Result<StatFs> {
        self.op(Need::Read, || {
            // What a removal has freed counts as free, also while its record
            // is not dead.
            if !self.is_read_only() {
                self.free_forgotten_inodes();
                self.vol.retire_pending()?;
            }
            let (free, available) = self.vol.free_blocks();
            let available = available.min(self.host_can_give(free));
            let inodes = self.vol.inodes.count_free(&self.vol.region, &self.vol.geo);
            let (head, _) = self.info.fixed.uuid.split_at(8);
            Ok(StatFs {
                block_size: self.vol.geo.block_size as u32,
                blocks: self.vol.geo.blocks,
                free,
                available,
                inodes: self.vol.geo.inodes_max,
                free_inodes: inodes,
                name_max: NAME_MAX as u32,
                fsid: head.iter().fold(0, |a, b| a << 8 | u64::from(*b)),
            })
        })
    }

    /// Free blocks that the host has room for: those that have it, and what it
    /// has left. `free`: all of them.
    fn host_can_give(&self, free: u64) -> u64 {
        let geo = &self.vol.geo;
        let Some(space) = self.vol.region.host_space() else {
            return u64::MAX;
        };
        let used = (geo.blocks - free.min(geo.blocks)) << geo.block_log2;
        let roomy = space.taken.min(space.len).saturating_sub(used);
        match space.free {
            Some(more) => roomy.saturating_add(more) >> geo.block_log2,
            None => u64::MAX,
        }
    }

    /// Memory in use by caches.
    pub fn memory(&self) -> MemoryUse {
        let inodes = self.cache.len();
        MemoryUse {
            inodes,
            inode_bytes: inodes as u64 * BYTES_PER_INODE,
            referenced: self.refs.len(),
        }
    }
}
