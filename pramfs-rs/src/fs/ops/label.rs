//! The label of the file system.
//!
//! Invariant: at each moment one of the two superblock pages is valid. The next mount
//! finishes a change that a crash interrupted
//! ([`finish_change_of_fixed`](crate::fs::engine::superblock::finish_change_of_fixed)).

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

    /// Changes the label durably. A crash leaves the old label or the new one.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than 63 bytes or one with a NUL;
    /// [`Error::ReadOnly`].
    pub fn set_label(&self, label: &str) -> Result<()> {
        self.op(Need::Write, || {
            if label.len() >= size_of::<[u8; 64]>() || label.contains('\0') {
                return Err(Error::Invalid("a label has at most 63 bytes and no NUL"));
            }
            self.super_state.change_fixed(self.vol.medium(), |fixed| {
                fixed.label = [0; 64];
                fixed.label[..label.len()].copy_from_slice(label.as_bytes());
            })
        })
    }
}
