//! Growing a file system by the library. The order of its stores is in `fs/ops/grow.rs`.

use super::FileSystem;
use crate::fs::Grown;
use pramfs_medium::error::Result;

impl FileSystem {
    /// Makes the file system larger while it is in use: `size` bytes, or without a size as
    /// large as its device or file is now, as far as the reserved addresses go. A file shorter than `size` is made longer first; it
    /// stays so if something fails later. Returns the sizes before and after; the same size
    /// twice is no error.
    ///
    /// Files, views and leases stay as they are, at the same addresses. No data moves, and no
    /// group of the new part is formatted before it is used. What depends on the size is a
    /// descriptor of 32 bytes on the medium and 128 bytes of memory for each group, prepared
    /// while operations go on; they wait only while both superblock pages are stored. A crash
    /// leaves the old size or the new one. A region does not shrink.
    ///
    /// ```
    /// use pramfs::format::{FormatOptions, format};
    /// use pramfs::pmem::RegionOptions;
    /// use pramfs::{FileSystem, MountOptions};
    ///
    /// # let path = std::env::temp_dir().join(format!("grow-{}", std::process::id()));
    /// let region = RegionOptions::new().create(&path, 1 << 20)?;
    /// format(&region, &FormatOptions::default())?;
    /// let fs = FileSystem::mount(region, MountOptions::default())?;
    /// fs.write("/file", "there before")?;
    /// let grown = fs.grow(Some(64 << 20))?;
    /// assert_eq!((grown.from, grown.to), (1 << 20, 64 << 20));
    /// assert!(fs.statfs()?.free > 15_000);
    /// assert_eq!(fs.read_to_string("/file")?, "there before");
    /// assert!(fs.grow(Some(1 << 20)).is_err(), "it does not shrink");
    /// fs.unmount()?;
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), pramfs::Error>(())
    /// ```
    ///
    /// # Errors
    /// By [`errno`](crate::Error::errno): EINVAL for a smaller size, one that the medium cannot
    /// have, or a file that was truncated; ENOMEM; EFBIG past the end of the format (2^40 - 1 blocks) or of the host; ENOSPC if a
    /// device is smaller, its host has no room, or no block is free for the descriptors of the
    /// new part; EROFS for a read-only mount; EOPNOTSUPP if the addresses reserved when the
    /// region was opened do not suffice
    /// ([`RegionOptions::room_to_grow`](crate::pmem::RegionOptions::room_to_grow)), or for
    /// memory of this process.
    pub fn grow(&self, size: Option<u64>) -> Result<Grown> {
        self.inodes().grow(size)
    }
}
