//! The lengths of the free runs, as the bitmaps have them.
//!
//! A block is free here when its bit is clear on the medium: so are those that an operation under
//! way has reserved, and a record that is not dead yet may still keep.

use crate::fs::{Engine, Need};
use pramfs_medium::error::Result;

/// Free runs of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FreeSpace {
    /// Free blocks.
    pub blocks: u64,
    /// Number of runs by the power of two: those of `1 << i` blocks and fewer than twice as many.
    pub runs: [u64; 32],
    /// Free runs that can become a leaf of 2 MiB: aligned, and as long as one. `None` in a file
    /// system without such leaves.
    pub leaves: Option<u64>,
}

impl FreeSpace {
    /// Adds a run.
    fn add(&mut self, first: u64, len: u64, leaf: u64) {
        if len == 0 {
            return;
        }
        self.blocks += len;
        let power = (u64::BITS - 1 - len.leading_zeros()) as usize;
        self.runs[power.min(31)] += 1;
        if let Some(leaves) = &mut self.leaves {
            let start = first.next_multiple_of(leaf);
            *leaves += (first + len).saturating_sub(start) / leaf;
        }
    }
}

impl Engine {
    /// Returns the lengths of the free runs. Reads all bitmaps in use.
    ///
    /// ```
    /// # use pramfs::format::{FormatOptions, format};
    /// # use pramfs::pmem::RegionOptions;
    /// # use pramfs::{inode::Fs, MountOptions};
    /// let region = RegionOptions::new().memfd("example", 16 << 20)?;
    /// format(&region, &FormatOptions::default())?;
    /// let fs = Fs::open(region, MountOptions::default())?;
    /// let free = fs.free_space()?;
    /// assert!(free.leaves >= Some(6) && free.blocks > 3900);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`]; those of the medium.
    pub fn free_space(&self) -> Result<FreeSpace> {
        self.op(Need::Read, || {
            if !self.is_read_only() {
                self.free_forgotten_inodes();
                self.vol.retire_pending()?;
            }
            let (geo, medium) = (&self.vol.geo, self.vol.medium());
            let per_group = geo.bits_per_group();
            let mut free = FreeSpace {
                leaves: geo.allows_huge_leaves().then_some(0),
                ..FreeSpace::default()
            };
            for group in 0..geo.blocks().div_ceil(per_group) {
                let first = group * per_group;
                let bits = per_group.min(geo.blocks() - first);
                let bitmap = self.vol.blocks.bitmap_offset(medium, group)?;
                let (mut at, mut start) = (0, 0);
                while at < bits {
                    // Of a group without a bitmap, the last blocks will be its own.
                    let word = match bitmap {
                        Some((bitmap, _)) => medium.load_u64(bitmap.word(at / 64))?,
                        None => 0,
                    };
                    for bit in 0..64.min(bits - at) {
                        let own = bitmap.is_none() && at + bit >= bits - geo.tail_blocks();
                        if word >> bit & 1 != 0 || own {
                            free.add(first + start, at + bit - start, geo.fan());
                            start = at + bit + 1;
                        }
                    }
                    at += 64;
                }
                free.add(first + start, bits.saturating_sub(start), geo.fan());
            }
            Ok(free)
        })
    }
}
