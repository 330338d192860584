//! pramfs: a crash-safe persistent-memory file system as a library.
//!
//! ```text
//! api  ->  fs  ->  htree, map  ->  volume  ->  journal, alloc  ->  media  ->  pmem
//! ```
//! A layer uses only the layers to its right. See `docs/architecture.md` in the repository.
#![deny(missing_docs)]
#![forbid(unsafe_code)]
// Users of the crate can name every `pub` item: tests/public_items.rs relies on it.
#![cfg_attr(not(test), deny(unreachable_pub))]

mod api;
mod credentials;
mod fs;
pub mod inode;

/// The memory that holds a file system.
///
/// [`RegionOptions`](pmem::RegionOptions) creates or opens a region: a file on a DAX file
/// system, a device, or an ordinary file. [`Region::new`](pmem::Region::new) makes one from
/// a backend, such as [`HeapBackend`](pmem::HeapBackend) for tests.
pub mod pmem {
    pub use pramfs_medium::pmem::{
        BackendKind, Durability, Granularity, HeapBackend, Persistence, PmemError, Protect, Region,
        RegionInfo, RegionOptions, SourceKind, free_protection_keys, install_fault_guard,
    };
}

/// Formatting: creates a file system in a region.
pub mod format {
    pub use pramfs_medium::format::{FormatOptions, format};
}

pub use api::{
    Advice, Atom, Cursor, DirEntry, File, FileSystem, FileTimes, MappedFile, Metadata, OpenOptions,
    ReadDir, Sent, StagedView, UnmountError,
};
pub use fs::{
    AtimePolicy, Clock, DataMode, DistinctClock, ErrorPolicy, Grown, MountOptions, RecoveryReport,
    SystemClock,
};
pub use pramfs_medium::error::{Damage, Error, Result};
pub use pramfs_medium::pmem::direct::{DirectFile, DirectView};
pub use pramfs_medium::types::{
    Access, Fallocate, FileExtent, FileType, RenameFlags, SeekWhence, StatFs, XattrMode,
};

/// The version of this library. With the feature `testing`, which adds hooks that
/// break crash safety, it ends with `+testing`.
pub const VERSION: &str = if cfg!(feature = "testing") || pramfs_medium::TESTING {
    concat!(env!("CARGO_PKG_VERSION"), "+testing")
} else {
    env!("CARGO_PKG_VERSION")
};
