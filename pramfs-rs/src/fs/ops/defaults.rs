//! What mkfs has chosen and an administrator may choose anew: the default options of mounts, and
//! the number of blocks that are kept for removals.
//!
//! The invariant is that of [`label`](super::label): a crash leaves the old values or the new
//! ones, and the next mount makes both superblock pages equal.

use crate::fs::{Engine, Need};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::media::default_options::DefaultOptions;

/// Fewest blocks that are kept for removals.
const RESERVE_MIN: u64 = 2;
/// Most such blocks, and the largest part of the file system. Each of them is looked for at a mount,
/// and kept in memory.
const RESERVE_MAX: u64 = 4096;
const RESERVE_PART: u64 = 8;

impl Engine {
    /// Returns the default options, which [`set_default_options`](Self::set_default_options)
    /// changes. The library does not apply them: its callers give [`MountOptions`].
    ///
    /// [`MountOptions`]: crate::MountOptions
    pub fn default_options(&self) -> DefaultOptions {
        DefaultOptions::from_bits(self.super_state.fixed.lock().default_options)
    }

    /// Changes the default options durably. They hold for later mounts.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; those of the medium.
    pub fn set_default_options(&self, options: DefaultOptions) -> Result<()> {
        self.op(Need::Write, || {
            self.super_state.change_fixed(self.vol.medium(), |fixed| {
                fixed.default_options = options.bits();
            })
        })
    }

    /// Changes the number of blocks that are kept for removals in a full file system, durably,
    /// for later mounts.
    ///
    /// # Errors
    /// [`Error::Invalid`] for fewer than two, more than 4096, or more than an eighth of the file
    /// system;
    /// [`Error::ReadOnly`]; those of the medium.
    pub fn set_reserve(&self, blocks: u64) -> Result<()> {
        self.op(Need::Write, || {
            let most = (self.vol.geo.blocks() / RESERVE_PART).min(RESERVE_MAX);
            if !(RESERVE_MIN..=most).contains(&blocks) {
                return Err(Error::Invalid(
                    "the reserve has at least 2 blocks, and at most 4096 or an eighth of the file system",
                ));
            }
            self.super_state.change_fixed(self.vol.medium(), |fixed| {
                fixed.reserve_blocks = blocks;
            })
        })
    }
}
