//! The file system on inode numbers.
//!
//! Every operation takes `&self`; threads may call operations concurrently. An
//! operation that changes metadata is atomic and durable when it returns; see
//! `docs/semantics.md` for data.
//!
//! The folders, from the lowest to the highest. A folder uses only those above it in this
//! list; the test `fs_has_no_circles` checks that.
//!
//! | folder | holds |
//! |---|---|
//! | `survivor` | what outlives a server that another one takes over from |
//! | `policy` | rules that need no file system: names, permissions of chattr, suid, times |
//! | `cache` | caches that are read without a lock |
//! | `inode` | an inode in memory: its state, its lock, the table, references |
//! | `engine` | the state of a mount, the frame of an operation, records, damage |
//! | `steps` | steps that several operations share, on locked inodes |
//! | `ops` | the POSIX operations, one file for each family |
//! | `scrub` | reading everything against its checksums |
//! | `mount` | mounting, the timer, unmounting |
//!
//! Each lock has a rank, and is taken in the order of
//! [`Rank`](pramfs_medium::sync::rank::Rank).

mod cache;
mod clock;
mod engine;
mod inode;
mod inode_ref;
mod mount;
mod ops;
mod options;
mod policy;
mod scrub;
mod steps;
mod survivor;

pub(crate) use cache::append_cursor::AppendCursor;
pub(crate) use cache::extent_cache::ExtentCache;
pub(crate) use engine::Need;
pub(crate) use inode::Inode;
pub(crate) use inode::refs::By;
pub(crate) use inode::state::{InodeState, check_file};
pub(crate) use mount::close::Handle;

pub use clock::{Clock, DistinctClock, SystemClock};
pub use engine::Engine;
pub use engine::damage::{Repeats, Writability};
pub use engine::report::RecoveryReport;
pub use inode::leases::{HeldLease, LeaseEvent};
pub use inode_ref::{Holding, InodeRef, InodeRefs};
pub use mount::Fs;
pub use mount::close::CloseError;
pub use mount::snapshot::{Snapshot, SnapshotEnd};
pub use ops::free_space::FreeSpace;
pub use ops::grow::Grown;
pub use ops::lease::{LeaseGrant, LeasedExtents};
pub use ops::readdir::Taken;
pub use ops::state::{FsState, RecordedError};
pub use ops::statfs::MemoryUse;
pub use ops::verify::VerifiedData;
pub use options::{AtimePolicy, DataMode, ErrorPolicy, MountOptions};
pub use scrub::{ScrubFinding, ScrubOptions};
pub use survivor::Survivor;
pub use survivor::references::KeptReferences;
