//! [`Storage`]: a file as redb sees it.

use std::io;
use std::path::Path;

use pramfs::{Error, File, FileSystem, OpenOptions, Result};
use redb::StorageBackend;

use crate::claim::Claim;

/// A file of a region as the storage of a database, for
/// [`Builder::create_with_backend`](redb::Builder::create_with_backend).
///
/// ```
/// # use pramfs::{FileSystem, MountOptions};
/// # let region = pramfs::pmem::RegionOptions::new().memfd("example", 64 << 20)?;
/// # pramfs::format::format(&region, &pramfs::format::FormatOptions::default())?;
/// # let fs = FileSystem::mount(region, MountOptions::default())?;
/// let storage = pramfs_redb::Storage::create(&fs, "/table.redb")?;
/// let db = redb::Database::builder()
///     .set_cache_size(16 << 20)
///     .create_with_backend(storage)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Storage {
    file: File,
    _claim: Claim,
}

impl Storage {
    /// Opens a file, or creates an empty one.
    ///
    /// # Errors
    /// Those of [`OpenOptions::open`]; [`Error::Busy`] if another `Storage` of this process has
    /// the file.
    pub fn create(fs: &FileSystem, path: impl AsRef<Path>) -> Result<Storage> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        Storage::claimed(fs, options.open(fs, path)?)
    }

    /// Opens a file that exists and is not empty.
    ///
    /// # Errors
    /// As of [`create`](Self::create); [`Error::Invalid`] for an empty file, in which redb would
    /// make a new database.
    pub fn open(fs: &FileSystem, path: impl AsRef<Path>) -> Result<Storage> {
        let file = OpenOptions::new().read(true).write(true).open(fs, path)?;
        match file.metadata()?.len() {
            0 => Err(Error::Invalid(
                "the file is empty, and holds no database: create one",
            )),
            _ => Storage::claimed(fs, file),
        }
    }

    fn claimed(fs: &FileSystem, file: File) -> Result<Storage> {
        let claim = Claim::of(fs, &file)?;
        Ok(Storage {
            file,
            _claim: claim,
        })
    }
}

impl StorageBackend for Storage {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        Ok(self.file.read_exact_at(out, offset)?)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Ok(self.file.set_len(len)?)
    }

    /// Data and sizes are durable when the calls that change them return, unless the region was
    /// opened with `Durability::Process` on a medium that has to be synced.
    fn sync_data(&self) -> io::Result<()> {
        Ok(self.file.sync_data()?)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        Ok(self.file.write_all_at(data, offset)?)
    }
}
