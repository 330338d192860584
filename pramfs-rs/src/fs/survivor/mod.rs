//! What has to outlive a server for another process to take over from it.
//!
//! The kernel keeps its connection while any process holds it, and with the connection what it
//! knows: which inodes it has, how often it has looked each of them up, and which requests
//! wait for an answer. A server that takes over needs the other side of that:
//! * the times of changes that are written lazily ([`Survivor::note_times`]): programs have
//!   been told of them;
//! * the counted references, so that an inode without names stays as long as the kernel has it;
//! * which of the requests that it is asked again are done ([`Outcomes`]).
//!
//! Both live as long as the connection, so not on the medium: a machine that fails ends them all.

pub(crate) mod references;

use std::io;

use pramfs_medium::journal::Outcomes;
use pramfs_medium::types::{Ino, Time};

use references::KeptReferences;

/// Memory that outlives the process. [`Fs::open`](crate::inode::Fs::open) uses it from before the
/// recovery on.
pub trait Survivor: Outcomes + KeptReferences {
    /// Called first, with one more than the largest number that an inode may have. A file
    /// system that grows may have more later, up to [`inodes`](Self::inodes).
    ///
    /// # Errors
    /// There is no memory; or the memory of the servers before has no room for so many.
    fn prepare(&self, inodes: u64) -> io::Result<()>;

    /// Returns one more than the largest inode number that there is room for; `None` before
    /// [`prepare`](Self::prepare).
    fn inodes(&self) -> Option<u64>;

    /// Notes the mtime and ctime of a change that the medium does not have yet. Called before
    /// anybody is told of them.
    fn note_times(&self, of: Ino, times: Time);

    /// Lists an inode whose times the medium does not have yet. One thread at a time.
    fn list_lazy(&self, of: Ino);

    /// Returns the inodes that dead servers have listed and not written, with their times.
    fn listed_lazy(&self) -> Vec<(Ino, Time)>;

    /// Returns the end of the list.
    fn end_of_lazy(&self) -> u64;

    /// Notes that the medium has the times of all that were listed before `end`.
    fn lazy_are_written(&self, end: u64);
}
