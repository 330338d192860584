//! Returning free blocks to the host (FITRIM).
//!
//! A block that its group calls free is referenced neither by the medium, nor by a
//! record that a replay could see, nor by a view (rule 2 in `docs/consistency.md`).
//! While a piece is discarded, its blocks are marked as used in ordinary memory, so
//! that they are not allocated. After a crash they are free blocks, whose bytes are
//! undefined.

use crate::fs::{Engine, Need};
use pramfs_medium::alloc::RunLen;
use pramfs_medium::error::{Error, Result};
use pramfs_medium::pmem::RegionAccess;
use pramfs_medium::types::Bno;

/// Maximum bytes withheld from allocation at a time.
const PIECE: u64 = 8 << 20;

impl Engine {
    /// Returns free blocks to the host: all runs of at least `least` bytes in a byte
    /// range of the region. The room is taken again when the blocks are allocated.
    /// Returns the total bytes of these runs. The host may keep parts smaller than
    /// one of its pages.
    ///
    /// ```
    /// # use pramfs::format::{FormatOptions, format};
    /// # use pramfs::pmem::RegionOptions;
    /// # use pramfs::{inode::Fs, MountOptions};
    /// let region = RegionOptions::new().memfd("example", 4 << 20)?;
    /// format(&region, &FormatOptions::default())?;
    /// let fs = Fs::open(region, MountOptions::default())?;
    /// let free = fs.trim(0, u64::MAX, 0)?;
    /// assert!(free > 3 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range that begins past the end of the region or
    /// is shorter than a block, and for a `least` that no run can have;
    /// [`Error::NotSupported`] if the medium cannot discard; [`Error::Io`] if the
    /// discard fails.
    pub fn trim(&self, start: u64, len: u64, least: u64) -> Result<u64> {
        self.op(Need::Write, || {
            let geo = &self.vol.geo;
            let group = geo.bytes(geo.bits_per_group());
            if start >= geo.region_bytes() || len < geo.block_size || least > group {
                return Err(Error::Invalid(
                    "the range is outside the region, or too small",
                ));
            }
            if !self.vol.region.backend().can_discard() {
                return Err(Error::NotSupported("the medium cannot discard blocks"));
            }
            // Include orphans that wait to be freed, and blocks freed by records that
            // are not dead yet.
            self.free_forgotten_inodes();
            self.vol.retire_pending()?;
            let end = geo.whole_blocks(start.saturating_add(len));
            let range = geo.blocks_for(start)..end.min(geo.blocks());
            let least = geo.blocks_for(least).max(1) as u32;
            let most = geo.whole_blocks(PIECE) as u32;
            let region = &self.vol.region;
            let lengths = RunLen { least, most };
            // Blocks that a save goes on to read keep their bytes.
            let mut kept = 0;
            let blocks =
                self.vol
                    .blocks
                    .each_free(self.vol.medium(), range, lengths, &mut |run| {
                        let (at, len) = (geo.offset(Bno(run.start)).0, geo.bytes(run.len));
                        if region.needs_aside(at, len) {
                            kept += run.len;
                            return Ok(());
                        }
                        region.window().discard(at, len).map_err(refused)
                    })?;
            Ok(geo.bytes(blocks.saturating_sub(kept)))
        })
    }
}

/// Converts the error of a discard.
fn refused(e: std::io::Error) -> Error {
    // EOPNOTSUPP, or no system call at all.
    if e.kind() == std::io::ErrorKind::Unsupported || e.raw_os_error() == Some(libc::EOPNOTSUPP) {
        Error::NotSupported("the medium cannot discard blocks")
    } else {
        Error::io_failed("could not return free blocks to the host", e)
    }
}
