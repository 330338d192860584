//! [`Cursor`]: a position in an open file.

use std::borrow::Borrow;
use std::io::{self, BufRead, Read, Seek, SeekFrom, Write};

use super::file::File;

/// Bytes that [`BufRead`] fetches at a time.
const BUFFER: usize = 64 << 10;

/// A separate position in an open file: `Read`, `BufRead`, `Write` and `Seek`.
///
/// One file can have any number of cursors; `F` is `File` or a reference to one.
/// Every write is durable when it returns, as with
/// [`File::write_at`]. If the file is open for appending only, a write is an append, and
/// the position moves to the end of it.
///
/// `BufRead` copies up to 64 KiB at a time into a buffer of the cursor. It does not
/// return a reference into the medium, because another program or thread could store
/// there while the reference lives, which Rust forbids.
///
/// # Threads
/// `Cursor<File>` and `Cursor<&File>` are [`Send`] and [`Sync`]. Reading, writing and seeking
/// take `&mut self`, because they move the position: threads make a cursor each, of one
/// [`File`]. `Cursor<File>` has no lifetime; `Cursor<&File>` lives as long as the borrow.
///
/// ```
/// use std::io::{BufRead, Seek, Write};
/// # use pramfs::{FileSystem, MountOptions};
/// # let region = pramfs::pmem::Region::new("example", pramfs::pmem::HeapBackend::boxed(4 << 20));
/// # pramfs::format::format(&region, &pramfs::format::FormatOptions::default())?;
/// # let fs = FileSystem::mount(region, MountOptions::default())?;
/// let mut cursor = fs.create("/lines")?.into_cursor();
/// writeln!(cursor, "one")?;
/// writeln!(cursor, "two")?;
/// cursor.rewind()?;
/// let lines: Vec<String> = cursor.lines().collect::<Result<_, _>>()?;
/// assert_eq!(lines, ["one", "two"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Cursor<F: Borrow<File>> {
    file: F,
    position: u64,
    /// Bytes of the file from `position` on.
    buffer: Vec<u8>,
    /// Bytes of `buffer` already consumed; `position` includes them.
    consumed: usize,
}

impl<F: Borrow<File>> Cursor<F> {
    /// Makes a cursor at the start of the file.
    pub fn new(file: F) -> Cursor<F> {
        Cursor {
            file,
            position: 0,
            buffer: Vec::new(),
            consumed: 0,
        }
    }

    /// Returns the file.
    pub fn get_ref(&self) -> &File {
        self.file.borrow()
    }

    /// Returns the file, without the position.
    pub fn into_inner(self) -> F {
        self.file
    }

    /// Returns the position in bytes from the start of the file.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Moves to an offset, which may lie past the end of the file.
    pub fn set_position(&mut self, position: u64) {
        self.position = position;
        self.forget();
    }

    fn buffered(&self) -> &[u8] {
        &self.buffer[self.consumed..]
    }

    fn forget(&mut self) {
        self.buffer.clear();
        self.consumed = 0;
    }
}

impl<F: Borrow<File>> Read for Cursor<F> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = if self.buffered().is_empty() {
            self.forget();
            self.file.borrow().read_at(buf, self.position)?
        } else {
            let n = buf.len().min(self.buffered().len());
            buf[..n].copy_from_slice(&self.buffered()[..n]);
            self.consumed += n;
            n
        };
        self.position += n as u64;
        Ok(n)
    }
}

impl<F: Borrow<File>> BufRead for Cursor<F> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.buffered().is_empty() {
            self.consumed = 0;
            self.buffer.resize(BUFFER, 0);
            let read = self.file.borrow().read_at(&mut self.buffer, self.position);
            self.buffer.truncate(*read.as_ref().unwrap_or(&0));
            read?;
        }
        Ok(self.buffered())
    }

    fn consume(&mut self, amount: usize) {
        let n = amount.min(self.buffered().len());
        self.consumed += n;
        self.position += n as u64;
    }
}

impl<F: Borrow<File>> Write for Cursor<F> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        // The buffer may contain bytes that this write changes.
        self.forget();
        let (n, end) = self.file.borrow().write_from(buf, self.position)?;
        self.position = end;
        Ok(n)
    }

    /// Does nothing: every write is durable when it returns.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<F: Borrow<File>> Seek for Cursor<F> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.position = target(self.file.borrow(), self.position, to)?;
        self.forget();
        Ok(self.position)
    }

    fn stream_position(&mut self) -> io::Result<u64> {
        Ok(self.position)
    }
}

/// Returns the target of a seek.
pub(super) fn target(file: &File, position: u64, to: SeekFrom) -> io::Result<u64> {
    let (base, offset) = match to {
        SeekFrom::Start(at) => return Ok(at),
        SeekFrom::Current(offset) => (position, offset),
        SeekFrom::End(offset) => (file.metadata()?.len(), offset),
    };
    base.checked_add_signed(offset).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("a seek by {offset} from offset {base} is outside the range of offsets"),
        )
    })
}
