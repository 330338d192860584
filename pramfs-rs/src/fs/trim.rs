//! Free blocks go back to the host, as FITRIM has it.
//!
//! A block that its group calls free is named by nothing: not by the medium,
//! not by a record that a replay could see, not by a view (rule 2 in
//! `docs/consistency.md`). They are taken in ordinary memory, a piece at a time,
//! while the host has them, so that nobody is given one meanwhile; a crash finds
//! free blocks, whose bytes mean nothing.

use super::{Engine, Need};
use crate::error::{Error, Result};

/// Bytes that are kept from others at a time.
const PIECE: u64 = 8 << 20;

impl Engine {
    /// Gives free blocks of a range of the region, in bytes, back to the host:
    /// runs of at least `least` bytes. What the host then needs for them is
    /// taken from it again when they are used. Returns the bytes of these runs;
    /// the host may keep parts that are less than one of its pages.
    ///
    /// ```
    /// # use pramfs::format::{FormatOptions, format};
    /// # use pramfs::pmem::{Region, SimBackend};
    /// # use pramfs::{inode::Fs, MountOptions};
    /// let sim = SimBackend::new(4 << 20)?;
    /// let region = || Region::new("example", Box::new(sim.clone()));
    /// format(&region(), &FormatOptions::default())?;
    /// let fs = Fs::open(region(), MountOptions::default())?;
    /// let free = fs.trim(0, u64::MAX, 0)?;
    /// assert!(free > 3 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range that begins past the end of the region or
    /// holds no block, and for a `least` that no run can have;
    /// [`Error::NotSupported`] on a medium that takes nothing back; [`Error::Io`]
    /// where it fails to.
    pub fn trim(&self, start: u64, len: u64, least: u64) -> Result<u64> {
        self.op(Need::Write, || {
            let geo = &self.vol.geo;
            let group = geo.bits_per_group() << geo.block_log2;
            if start >= geo.blocks << geo.block_log2 || len < geo.block_size || least > group {
                return Err(Error::Invalid("nothing of the region is in that range"));
            }
            if !self.vol.region.backend().can_discard() {
                return Err(Error::NotSupported("the medium takes nothing back"));
            }
            // What is to be freed, and what records have freed that are not dead
            // yet, counts as well.
            self.free_forgotten_inodes();
            self.vol.retire_pending()?;
            let end = start.saturating_add(len) >> geo.block_log2;
            let range = start.div_ceil(geo.block_size)..end.min(geo.blocks);
            let least = least.div_ceil(geo.block_size).max(1) as u32;
            let most = (PIECE >> geo.block_log2) as u32;
            let region = &self.vol.region;
            let blocks =
                self.vol
                    .blocks
                    .each_free(region, geo, range, (least, most), &mut |run| {
                        let (at, len) = (run.start << geo.block_log2, run.len << geo.block_log2);
                        region.window().discard(at, len).map_err(refused)
                    })?;
            Ok(blocks << geo.block_log2)
        })
    }
}

/// What a host that does not take a range back has said.
fn refused(e: std::io::Error) -> Error {
    // EOPNOTSUPP, or no system call at all.
    if e.kind() == std::io::ErrorKind::Unsupported || e.raw_os_error() == Some(libc::EOPNOTSUPP) {
        Error::NotSupported("the medium takes nothing back")
    } else {
        Error::Io(format!(
            "free blocks could not be given back to the host: {e}"
        ))
    }
}
