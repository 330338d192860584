//! Counted references that outlive a process.

use std::fmt::Debug;

use pramfs_medium::types::Ino;

/// Counted references that outlive this process, see
/// [`Survivor`](crate::inode::Survivor).
pub trait KeptReferences: Debug + Send + Sync {
    /// Returns the counted references of an inode; 0 for a number that no inode may have.
    fn references(&self, of: Ino) -> u64;

    /// Adds counted references. No two threads change those of one inode at once.
    fn add_references(&self, of: Ino, added: u64);

    /// Takes up to so many counted references off, and returns how many are left.
    fn sub_references(&self, of: Ino, released: u64) -> u64;
}
