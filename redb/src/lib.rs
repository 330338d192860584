//! A storage backend of the database redb on a file of a pramfs region.
//!
//! redb keeps a whole database in one file, and tells what it needs of that by the trait
//! [`StorageBackend`](redb::StorageBackend). [`Storage`] implements it by the direct API of pramfs: redb then reads and
//! writes persistent memory without a system call. Every write is durable when it returns, in the
//! order in which redb makes them, so a commit waits for no fsync.
//!
//! ```
//! use pramfs::format::{FormatOptions, format};
//! use pramfs::pmem::RegionOptions;
//! use pramfs::{FileSystem, MountOptions};
//! use redb::{ReadableDatabase, TableDefinition};
//!
//! const VISITS: TableDefinition<'_, &str, u64> = TableDefinition::new("visits");
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let region = RegionOptions::new().memfd("example", 64 << 20)?; // or .open("/dev/dax0.0")
//! format(&region, &FormatOptions::default())?;
//! let fs = FileSystem::mount(region, MountOptions::default())?;
//!
//! let db = pramfs_redb::create(&fs, "/visits.redb")?;
//! let change = db.begin_write()?;
//! change.open_table(VISITS)?.insert("home", 1)?;
//! change.commit()?; // durable
//! drop(db);
//!
//! let db = pramfs_redb::open(&fs, "/visits.redb")?;
//! let table = db.begin_read()?.open_table(VISITS)?;
//! assert_eq!(table.get("home")?.map(|n| n.value()), Some(1));
//! # drop(table);
//! drop(db);
//! fs.unmount()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Crashes
//! redb writes pages to new places, and then one page of 4 KiB with checksums that makes them
//! valid. It needs no more of its storage than that a write before a sync is durable after it.
//! After a crash, it opens as after one on any other file: by its own repair, which reads the
//! database, unless `set_quick_repair` is set. pramfs itself recovers in constant time.
//!
//! # Threads and processes
//! A database is used by any number of threads. A region is open in one process; a second
//! [`Storage`] of the same file in it is refused with EBUSY.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod claim;
mod storage;

pub use storage::Storage;

use std::path::Path;

use pramfs::FileSystem;
use redb::{Database, DatabaseError};

/// Opens a database, or creates it: as [`Database::create`], in a file of a region.
///
/// # Errors
/// [`DatabaseError`]; the errors of the file system are in
/// [`StorageError::Io`](redb::StorageError::Io), with the error of pramfs as their source.
pub fn create(fs: &FileSystem, path: impl AsRef<Path>) -> Result<Database, DatabaseError> {
    let storage = Storage::create(fs, path).map_err(std::io::Error::from)?;
    Database::builder().create_with_backend(storage)
}

/// Opens a database that exists: as [`Database::open`], in a file of a region.
///
/// # Errors
/// As for [`create`]; [`pramfs::Error::NotFound`] if there is no such file, and
/// [`redb::StorageError::Io`] if it is empty.
pub fn open(fs: &FileSystem, path: impl AsRef<Path>) -> Result<Database, DatabaseError> {
    let storage = Storage::open(fs, path).map_err(std::io::Error::from)?;
    Database::builder().create_with_backend(storage)
}
