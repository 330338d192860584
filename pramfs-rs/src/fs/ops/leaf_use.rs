//! What is in use in each leaf of the region, and the pointer blocks of a file: by both, a
//! caller knows which leaves hold nothing but what [`vacate`](super::vacate) can move.
//!
//! Invariant: both are snapshots.

use crate::fs::inode::state::check_file;
use crate::fs::{Engine, Need};
use pramfs_medium::error::Result;
use pramfs_medium::map;
use pramfs_medium::pmem::PointerBlock;
use pramfs_medium::types::Ino;

impl Engine {
    /// Returns the number of blocks in use in each aligned [part](Self::gather_unit) of the
    /// region, beginning with part `first`, of at most `most` parts. A part that the region ends in
    /// has none. As in [`free_space`](Self::free_space), a block is in use if its bit is set on the
    /// medium.
    ///
    /// ```
    /// # use pramfs::format::{FormatOptions, format};
    /// # use pramfs::pmem::RegionOptions;
    /// # use pramfs::{inode::Fs, MountOptions};
    /// let region = RegionOptions::new().memfd("example", 16 << 20)?;
    /// format(&region, &FormatOptions::default())?;
    /// let fs = Fs::open(region, MountOptions::default())?;
    /// let used = fs.leaf_use(0, 100)?;
    /// assert!(used.len() == 8 && used[0] > 0);
    /// assert_eq!(fs.leaf_use(7, 100)?, used[7..]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`]; those of the medium.
    pub fn leaf_use(&self, first: u64, most: usize) -> Result<Vec<u16>> {
        self.op(Need::Read, || {
            if !self.is_read_only() && first == 0 {
                self.free_forgotten_inodes();
                self.vol.retire_pending()?;
            }
            let (geo, medium) = (&self.vol.geo, self.vol.medium());
            let (per_group, fan) = (geo.bits_per_group(), geo.fan());
            let leaves = geo.blocks() / fan;
            let mut used = Vec::new();
            for leaf in (first..leaves).take(most) {
                let (group, bit) = (leaf * fan / per_group, leaf * fan % per_group);
                let bitmap = self.vol.blocks.bitmap_offset(medium, group)?;
                let mut count = 0;
                if let Some((bitmap, _)) = bitmap {
                    for word in bit / 64..(bit + fan) / 64 {
                        count += medium.load_u64(bitmap.word(word))?.count_ones();
                    }
                }
                used.push(count as u16);
            }
            Ok(used)
        })
    }

    /// Returns the pointer blocks of a file that cover bytes from `offset` on, in the order of the
    /// first byte that each covers from there on, at most `most` and those above one more part of
    /// the file; and the offset to go on at, which is the size of the file at its end.
    ///
    /// # Errors
    /// As for [`file_extents`](Self::file_extents).
    pub fn pointer_blocks(
        &self,
        ino: Ino,
        offset: u64,
        most: usize,
    ) -> Result<(Vec<PointerBlock>, u64)> {
        self.op(Need::Read, || {
            let geo = &self.vol.geo;
            let inode = self.iget_user(ino)?;
            let state = inode.state.read();
            check_file(inode.ino, &state)?;
            let size = state.disk.size;
            let (mut at, end) = (geo.file_block(offset), geo.file_block_from(size));
            let mut found = Vec::new();
            while at < end && found.len() < most {
                let tables = map::tables_above(&self.vol, &state.map(), at)?;
                // One that covers blocks before `at` was found there, or by an earlier call.
                let new = tables.iter().filter(|table| table.first >= at);
                found.extend(new.map(|table| PointerBlock {
                    file_offset: geo.file_offset(table.first),
                    region_offset: geo.offset(table.block).0,
                }));
                at = match tables.last() {
                    Some(table) if table.level == 1 => geo.end_under(1, at),
                    // A leaf, or a hole.
                    _ => {
                        let leaf = map::look(&self.vol, &state.map(), at)?;
                        leaf.first.saturating_add(leaf.count).max(at + 1)
                    }
                };
            }
            let next = geo.file_offset(at.min(end)).min(size);
            Ok((found, next))
        })
    }
}
