//! The report of a mount: the state that it found, and the work of recovery.
//!
//! `mount` fills it once; it does not change afterwards. Damage that operations find later
//! goes to [`damage`](crate::fs::engine::damage).

use std::time::Duration;

/// The findings of a mount, for logs and tests.
#[derive(Debug, Clone, Default)]
pub struct RecoveryReport {
    /// The last unmount was clean.
    pub was_clean: bool,
    /// Journal records replayed.
    pub records: usize,
    /// Slots with a torn record: their operations had not completed.
    pub torn: usize,
    /// Unlinked inodes to be freed.
    pub orphans: usize,
    /// Damage found.
    pub damage: Vec<String>,
    /// The first superblock was damaged and the copy was used.
    pub used_copy: bool,
    /// The copy of the superblock is damaged. Nothing is lost yet, but there is no
    /// copy to fall back on.
    pub copy_damaged: bool,
    /// Duration of the mount without the freeing of orphans.
    pub time: Duration,
}
