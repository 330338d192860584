//! [`File`]: an open file.

use std::ops::Range;
use std::sync::Arc;

use super::mapped::{Access, MappedFile};
use crate::error::Result;
use crate::fs::inode::Inode;
use crate::fs::{AppendCursor, ExtentCache, Fs, InodeRef, Shared};
use crate::types::{Attr, Fallocate, FileExtent, Ino, SetAttr};

/// An open file of a mounted file system. Calls need no path and no
/// permission; what they promise is in `docs/semantics.md`.
///
/// ```
/// use pramfs::direct::OpenOptions;
/// use pramfs::format::{FormatOptions, format};
/// use pramfs::pmem::RegionOptions;
/// use pramfs::{Fs, MountOptions};
///
/// let region = RegionOptions::new().memfd("example", 4 << 20)?;
/// format(&region, &FormatOptions::default())?;
/// let fs = Fs::open(region, MountOptions::default())?;
/// let file = OpenOptions::new().create(true).open(&fs, "/log")?;
/// assert_eq!(file.append(b"first")?, 0);
/// assert_eq!(file.append(b"second")?, 5);
/// let mut back = [0; 6];
/// assert_eq!(file.read_at(5, &mut back)?, 6);
/// assert_eq!(&back, b"second");
/// # Ok::<(), pramfs::Error>(())
/// ```
#[derive(Debug)]
pub struct File {
    pub(super) shared: Arc<Shared>,
    pub(super) ino: Ino,
    /// Given back first: what it frees is still in memory.
    _held: InodeRef,
    /// InodeRef, so that no call has to look it up.
    pub(crate) inode: Arc<Inode>,
    pub(crate) extents: ExtentCache,
    /// Where appends go on.
    pub(crate) append_cursor: AppendCursor,
}

impl Fs {
    /// Opens a file by its inode number.
    ///
    /// # Errors
    /// [`crate::Error::Stale`] where there is none.
    pub fn open_file(&self, ino: Ino) -> Result<File> {
        // The reference first: an unlink in between leaves an orphan that we
        // hold.
        let held = self.hold(ino);
        Ok(File {
            shared: self.shared().clone(),
            ino,
            inode: self.inode(ino)?,
            _held: held,
            extents: ExtentCache::default(),
            append_cursor: AppendCursor::default(),
        })
    }
}

impl File {
    /// Inode number.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Attributes.
    ///
    /// # Errors
    /// [`crate::Error::Io`].
    pub fn attr(&self) -> Result<Attr> {
        self.shared.getattr(self.ino)
    }

    /// Size in bytes.
    ///
    /// # Errors
    /// As for [`attr`](Self::attr).
    pub fn size(&self) -> Result<u64> {
        Ok(self.attr()?.size)
    }

    /// Copies bytes out; returns how many there were before the end, or before
    /// some that were lost. What is behind those in `into` may have changed, too.
    ///
    /// # Errors
    /// [`crate::Error::IsDirectory`], [`crate::Error::Corrupt`],
    /// [`crate::Error::Io`]; [`crate::Error::Lost`] where the first was lost.
    #[inline]
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.shared
            .read_held(&self.inode, &self.extents, offset, into)
    }

    /// Writes bytes; durable when it returns. An overwrite is in place, and
    /// atomic in units of 8 aligned bytes.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`], [`crate::Error::TooLarge`],
    /// [`crate::Error::ReadOnly`]; [`crate::Error::Lost`] where it begins with a
    /// part of a block that was lost.
    #[inline]
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<usize> {
        self.shared
            .write_held(&self.inode, &self.extents, offset, from)
    }

    /// Writes all of the bytes at the end of the file and returns where that
    /// was; atomic against other appends and against crashes of up to one
    /// record, see `docs/semantics.md`.
    ///
    /// # Errors
    /// As for [`write_at`](Self::write_at).
    #[inline]
    pub fn append(&self, from: &[u8]) -> Result<u64> {
        self.shared
            .append_held(&self.inode, &self.append_cursor, from)
    }

    /// Sets the size.
    ///
    /// # Errors
    /// As for [`write_at`](Self::write_at).
    pub fn set_size(&self, size: u64) -> Result<()> {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.shared.setattr(self.ino, &set).map(drop)
    }

    /// Allocates, punches or zeroes a range.
    ///
    /// # Errors
    /// As for [`write_at`](Self::write_at).
    pub fn fallocate(&self, what: Fallocate, offset: u64, len: u64) -> Result<()> {
        self.shared.fallocate(self.ino, what, offset, len)
    }

    /// Where a range of the file lies in the region.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`].
    pub fn extents(&self, range: Range<u64>) -> Result<Vec<FileExtent>> {
        let len = range.end.saturating_sub(range.start);
        self.shared.file_extents(self.ino, range.start, len)
    }

    /// Times and, on media that are not flushed by cache lines, data reach
    /// the medium.
    ///
    /// # Errors
    /// [`crate::Error::Io`].
    pub fn sync(&self) -> Result<()> {
        self.shared.fsync(self.ino, false)
    }

    /// Shows a range of bytes as one view of the medium. The range lies within
    /// the file; on a view for writing holes are filled with zeroed blocks
    /// first, on a read-only one they are pages of zeros.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for an empty range or one past the end of the
    /// file; [`crate::Error::NotSupported`] for blocks smaller than a page, and
    /// on devdax and hugetlbfs, which map whole huge pages only, for a range
    /// that neither lies together on the medium nor is made of 2 MiB leaves;
    /// [`crate::Error::NoSpace`].
    pub fn map(&self, range: Range<u64>, access: Access) -> Result<MappedFile> {
        MappedFile::new(&self.shared, self.ino, range, access)
    }
}
