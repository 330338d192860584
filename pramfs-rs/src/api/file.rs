//! [`File`]: an open file.

use std::fs::Permissions;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::Arc;

use super::cursor::{self, Cursor};
use super::mapped::MappedFile;
use super::metadata::{FileTimes, Metadata};
use crate::credentials::Credentials;
use crate::fs::Inode;
use crate::fs::{AppendCursor, Engine, ExtentCache, Fs, InodeRef};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::sync::{Mutex, rank};
use pramfs_medium::types::{Access, Fallocate, FileExtent, Ino, SetAttr};

/// Limit of bytes that [`File::read_to_end_at`] requests at a time.
const CHUNK: u64 = 8 << 20;

/// The access modes of an open file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rights {
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) append: bool,
}

/// An open regular file.
///
/// [`read_at`](Self::read_at), [`write_at`](Self::write_at) and
/// [`append`](Self::append) make no system call and take no path; what they promise
/// is in `docs/semantics.md`. A file that is removed stays usable until it is dropped.
///
/// # Threads
/// `File` is [`Send`] and [`Sync`], and has no lifetime: it keeps what it needs of the
/// [`FileSystem`](crate::FileSystem) alive. All methods take `&self`, so threads share one
/// `File` by reference, in an [`Arc`], or by [`try_clone`](Self::try_clone). Writes and reads
/// of one file exclude each other only as far as `docs/semantics.md` says; appends never mix.
///
/// `File` and `&File` are [`Read`], [`Write`] and [`Seek`], like `std::fs::File`, with one
/// position for the file and its [clones](Self::try_clone). A [`Cursor`] has its own.
///
/// ```
/// # use pramfs::{FileSystem, MountOptions};
/// # let region = pramfs::pmem::Region::new("example", pramfs::pmem::HeapBackend::boxed(4 << 20));
/// # pramfs::format::format(&region, &pramfs::format::FormatOptions::default())?;
/// # let fs = FileSystem::mount(region, MountOptions::default())?;
/// let file = fs.create("/log")?;
/// assert_eq!(file.append(b"first")?, 0);
/// assert_eq!(file.append(b"second")?, 5);
/// let mut back = [0; 6];
/// file.read_exact_at(&mut back, 5)?;
/// assert_eq!(&back, b"second");
/// # Ok::<(), pramfs::Error>(())
/// ```
#[derive(Debug)]
pub struct File {
    pub(super) engine: Arc<Engine>,
    pub(super) ino: Ino,
    rights: Rights,
    /// The position of `Read`, `Write` and `Seek`.
    position: Arc<Mutex<u64, rank::Position>>,
    /// Dropped before `inode`, so that the inode is still in memory while it is freed.
    _held: InodeRef,
    /// Kept, so that calls need no look-up.
    pub(crate) inode: Arc<Inode>,
    pub(crate) extents: ExtentCache,
    pub(crate) append_cursor: AppendCursor,
}

impl Fs {
    /// Opens a file by its inode number, for reading and writing.
    ///
    /// # Errors
    /// [`Error::Stale`] if no inode has the number.
    pub fn open_file(&self, ino: Ino) -> Result<File> {
        // Take the reference first: after an unlink in between, it keeps the orphan.
        let held = self.hold(ino);
        let rights = Rights {
            read: true,
            write: true,
            append: false,
        };
        File::open(self.engine(), held, rights)
    }
}

impl File {
    pub(super) fn open(engine: &Arc<Engine>, held: InodeRef, rights: Rights) -> Result<File> {
        Ok(File {
            engine: Arc::clone(engine),
            ino: held.ino(),
            rights,
            position: Arc::default(),
            inode: engine.inode(held.ino())?,
            _held: held,
            extents: ExtentCache::default(),
            append_cursor: AppendCursor::default(),
        })
    }

    /// Returns another handle of the same file, with the same rights and the same position.
    ///
    /// # Errors
    /// [`Error::Io`] after the file system has failed or been unmounted.
    pub fn try_clone(&self) -> Result<File> {
        let held = InodeRef::new(&self.engine, self.ino);
        let mut file = File::open(&self.engine, held, self.rights)?;
        file.position = Arc::clone(&self.position);
        Ok(file)
    }

    /// Returns a cursor with a separate position in this file.
    pub fn cursor(&self) -> Cursor<&File> {
        Cursor::new(self)
    }

    /// As [`cursor`](Self::cursor), but the cursor owns the file.
    pub fn into_cursor(self) -> Cursor<File> {
        Cursor::new(self)
    }

    /// Returns the inode number.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Returns the metadata.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn metadata(&self) -> Result<Metadata> {
        Ok(self.engine.getattr(self.ino)?.into())
    }

    #[inline]
    fn may_read(&self) -> Result<()> {
        match self.rights.read {
            true => Ok(()),
            false => Err(Error::BadHandle("the file is not open for reading")),
        }
    }

    #[inline]
    fn may_write(&self) -> Result<()> {
        match self.rights.write {
            true => Ok(()),
            false => Err(Error::BadHandle("the file is not open for writing")),
        }
    }

    #[inline]
    fn may_append(&self) -> Result<()> {
        match self.rights.write | self.rights.append {
            true => Ok(()),
            false => Err(Error::BadHandle("the file is not open for writing")),
        }
    }

    /// Reads into `buf` from `offset` on. Returns the number of bytes before the end of the
    /// file or before a lost range. The rest of `buf` may have changed as well.
    ///
    /// # Errors
    /// [`Error::BadHandle`], [`Error::Corrupt`], [`Error::Io`]; [`Error::Lost`] if the first
    /// byte is in a lost range.
    #[inline]
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.may_read()?;
        self.engine
            .read_from_file(&self.inode, &self.extents, offset, buf)
    }

    /// As [`read_at`](Self::read_at), until `buf` is full.
    ///
    /// # Errors
    /// As for [`read_at`](Self::read_at); [`Error::UnexpectedEnd`] if the file ends before.
    pub fn read_exact_at(&self, mut buf: &mut [u8], mut offset: u64) -> Result<()> {
        while !buf.is_empty() {
            match self.read_at(buf, offset)? {
                0 => return Err(Error::UnexpectedEnd(offset)),
                n => {
                    buf = &mut buf[n..];
                    offset += n as u64;
                }
            }
        }
        Ok(())
    }

    /// Appends all bytes from `offset` to the end of the file to `buf`; returns their number.
    ///
    /// # Errors
    /// As for [`read_at`](Self::read_at); `buf` keeps the bytes read before the error.
    pub fn read_to_end_at(&self, buf: &mut Vec<u8>, offset: u64) -> Result<usize> {
        let start = buf.len();
        loop {
            let at = offset.saturating_add((buf.len() - start) as u64);
            let left = self.metadata()?.len().saturating_sub(at);
            if left == 0 {
                return Ok(buf.len() - start);
            }
            let (old, want) = (buf.len(), left.min(CHUNK) as usize);
            buf.try_reserve(want)
                .map_err(|_| Error::OutOfMemory(want as u64))?;
            buf.resize(old + want, 0);
            let read = self.read_at(&mut buf[old..], at);
            buf.truncate(old + *read.as_ref().unwrap_or(&0));
            if read? == 0 {
                return Ok(buf.len() - start);
            }
        }
    }

    /// Writes bytes at an offset; they are durable when it returns. Returns the number of
    /// bytes written: fewer if the region or its host is full. An overwrite is in place, and
    /// atomic in units of 8 aligned bytes.
    ///
    /// # Errors
    /// [`Error::BadHandle`], [`Error::NoSpace`], [`Error::TooLarge`], [`Error::ReadOnly`];
    /// [`Error::Lost`] if it begins within a block of a lost range.
    #[inline]
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        self.may_write()?;
        self.engine
            .write_to_file(&self.inode, &self.extents, offset, buf)
    }

    /// As [`write_at`](Self::write_at), but writes all bytes.
    ///
    /// # Errors
    /// As for [`write_at`](Self::write_at). Some of the bytes may have been written by then.
    pub fn write_all_at(&self, mut buf: &[u8], mut offset: u64) -> Result<()> {
        while !buf.is_empty() {
            match self.write_at(buf, offset)? {
                0 => return Err(Error::NoSpace("not one byte could be written")),
                n => {
                    buf = &buf[n..];
                    offset += n as u64;
                }
            }
        }
        Ok(())
    }

    /// Writes all bytes or none: whatever happens, a crash leaves the bytes of the file as they
    /// were before or as they are after the call. They are durable when it returns. `buf` may be
    /// as long as the free blocks of the region allow; a second copy of the overwritten bytes is
    /// needed until the next changes.
    ///
    /// # Errors
    /// As for [`write_at`](Self::write_at). No byte has changed then.
    pub fn write_atomic(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.may_write()?;
        self.engine
            .write_atomic_to_file(&self.inode, &self.extents, offset, buf)
    }

    /// Writes all bytes at the end of the file and returns the offset of the first.
    /// Appends of several threads do not mix. After a crash, an append that fits in one journal
    /// record is either complete or absent; see `docs/semantics.md`.
    ///
    /// # Errors
    /// As for [`write_at`](Self::write_at).
    #[inline]
    pub fn append(&self, buf: &[u8]) -> Result<u64> {
        self.may_append()?;
        self.engine
            .append_to_file(&self.inode, &self.append_cursor, buf)
    }

    /// Writes for `Write`; returns the number of bytes, and the position after them.
    pub(super) fn write_from(&self, buf: &[u8], position: u64) -> Result<(usize, u64)> {
        if self.rights.append {
            let at = self.append(buf)?;
            return Ok((buf.len(), at + buf.len() as u64));
        }
        let n = self.write_at(buf, position)?;
        Ok((n, position + n as u64))
    }

    /// Sets the size in bytes. Added bytes read as zeros.
    ///
    /// # Errors
    /// As for [`write_at`](Self::write_at).
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.may_write()?;
        self.set(&SetAttr {
            size: Some(size),
            ..SetAttr::default()
        })
    }

    /// Sets the permission bits.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for an immutable file, [`Error::ReadOnly`].
    pub fn set_permissions(&self, perm: Permissions) -> Result<()> {
        self.set(&SetAttr {
            perm: Some(perm.mode() & 0o7777),
            ..SetAttr::default()
        })
    }

    /// Sets access and modification times.
    ///
    /// # Errors
    /// As for [`set_permissions`](Self::set_permissions); [`Error::TimeOutOfRange`].
    pub fn set_times(&self, times: FileTimes) -> Result<()> {
        self.set(&times.to_set()?)
    }

    fn set(&self, set: &SetAttr) -> Result<()> {
        self.engine
            .setattr(&Credentials::ROOT, self.ino, set)
            .map(drop)
    }

    /// Allocates, punches or zeroes a range.
    ///
    /// # Errors
    /// As for [`write_at`](Self::write_at).
    pub fn fallocate(&self, what: Fallocate, offset: u64, len: u64) -> Result<()> {
        self.may_write()?;
        self.engine
            .fallocate(&Credentials::ROOT, self.ino, what, offset, len)
    }

    /// Returns where a range of the file lies in the region.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn extents(&self, range: Range<u64>) -> Result<Vec<FileExtent>> {
        let len = range.end.saturating_sub(range.start);
        self.engine.file_extents(self.ino, range.start, len)
    }

    /// Makes the contents and all metadata durable. Data and size are durable when a call
    /// returns, but times of overwrites are not, and stores through a mapping need
    /// [`MappedFile::persist`].
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sync_all(&self) -> Result<()> {
        self.engine.fsync(self.ino, false)
    }

    /// As [`sync_all`](Self::sync_all), without times.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sync_data(&self) -> Result<()> {
        self.engine.fsync(self.ino, true)
    }

    /// Maps a range of bytes: a contiguous view of the medium itself. The range must lie
    /// within the file. A mapping for writing first fills holes with zeroed blocks; one
    /// for reading has pages of zeros there.
    ///
    /// # Errors
    /// [`Error::BadHandle`]; [`Error::Invalid`] for an empty range or one past the end of the
    /// file; [`Error::NotSupported`] for blocks smaller than a page; also on devdax and
    /// hugetlbfs, which map only whole huge pages, for a range that is neither
    /// contiguous on the medium nor made of 2 MiB leaves; [`Error::NoSpace`].
    pub fn map(&self, range: Range<u64>, access: Access) -> Result<MappedFile> {
        match access {
            Access::Read => self.may_read()?,
            Access::Write => self.may_write()?,
        }
        MappedFile::new(&self.engine, self.ino, range, 0, access)
    }

    /// As [`map`](Self::map), and reserves `reserve` bytes of address space from the start
    /// of the range, into which [`MappedFile::extend`] grows the view. Reserved addresses
    /// cost no memory.
    ///
    /// # Errors
    /// As for [`map`](Self::map); [`Error::Pmem`] with ENOMEM if address space is short.
    pub fn map_reserved(
        &self,
        range: Range<u64>,
        reserve: u64,
        access: Access,
    ) -> Result<MappedFile> {
        match access {
            Access::Read => self.may_read()?,
            Access::Write => self.may_write()?,
        }
        MappedFile::new(&self.engine, self.ino, range, reserve.max(1), access)
    }
}

/// The same methods, for programs that are generic over files.
impl FileExt for File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(File::read_at(self, buf, offset)?)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        Ok(File::write_at(self, buf, offset)?)
    }
}

impl Read for &File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut position = self.position.lock();
        let n = File::read_at(self, buf, *position)?;
        *position += n as u64;
        Ok(n)
    }
}

impl Write for &File {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let mut position = self.position.lock();
        let (n, end) = self.write_from(buf, *position)?;
        *position = end;
        Ok(n)
    }

    /// Does nothing: every write is durable when it returns.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let mut position = self.position.lock();
        *position = cursor::target(self, *position, to)?;
        Ok(*position)
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Read::read(&mut &*self, buf)
    }
}

impl Write for File {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        Write::write(&mut &*self, buf)
    }

    /// Does nothing: every write is durable when it returns.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        Seek::seek(&mut &*self, to)
    }
}
