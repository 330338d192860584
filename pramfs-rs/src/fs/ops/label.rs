//! The label of the file system.
//!
//! Invariant: at each moment one of the two superblock pages is valid. The next mount
//! finishes a change that a crash interrupted
//! ([`finish_label`](crate::fs::engine::superblock::finish_label)).

use pramfs_medium::pmem::RegionAccess as _;
use zerocopy::IntoBytes;

use crate::fs::{Engine, Need};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::media::probe::text;

impl Engine {
    /// Returns the current label; in a forked child, the label at the mount.
    pub fn label(&self) -> String {
        if self.open.is_inherited() {
            return text(&self.info.fixed.label);
        }
        text(&self.super_state.fixed.lock().label)
    }

    /// Changes the label durably.
    ///
    /// Stores and fences the copy, then the first page, so that one page is valid at each
    /// moment. A crash leaves the old label or the new one, and the next mount makes both
    /// pages equal.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than 63 bytes or one with a NUL;
    /// [`Error::ReadOnly`].
    pub fn set_label(&self, label: &str) -> Result<()> {
        self.op(Need::Write, || {
            let failed_fences = self.vol.region.backend().failed_fences();
            if label.len() >= size_of::<[u8; 64]>() || label.contains('\0') {
                return Err(Error::Invalid("a label has at most 63 bytes and no NUL"));
            }
            let mut fixed = self.super_state.fixed.lock();
            let mut new = *fixed;
            new.label = [0; 64];
            new.label[..label.len()].copy_from_slice(label.as_bytes());
            new.seal();
            let w = self.vol.region.window();
            for page in self.vol.geo.pages().into_iter().rev() {
                let pending = w.store(page.0, new.as_bytes())?;
                let _ = w.fence(pending);
                if self.vol.region.backend().failed_fences() != failed_fences {
                    // The other page is unchanged.
                    return Err(Error::io("the label could not be written"));
                }
            }
            *fixed = new;
            Ok(())
        })
    }
}
