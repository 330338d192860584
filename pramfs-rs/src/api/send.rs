//! Handing a view to a descriptor: from the medium to a socket, a pipe or
//! another file, with no buffer of the program's in between.

use std::ops::Range;
use std::os::fd::AsFd;

use super::mapped::MappedFile;
use pramfs_medium::error::{Error, Result};
use pramfs_medium::pmem::{PmemError, Sent};

impl MappedFile {
    /// Writes a range of the view to a descriptor: write(2), whose source is
    /// the medium itself. In user space nothing is copied; the kernel copies
    /// once, into its socket buffer, pipe or page cache. Works with every
    /// descriptor that write(2) takes.
    ///
    /// Returns the bytes written: fewer than asked for where the descriptor
    /// takes no more just now, or failed after some of them.
    ///
    /// ```
    /// use std::io::Read;
    /// use std::os::unix::net::UnixStream;
    /// use pramfs::format::{FormatOptions, format};
    /// use pramfs::pmem::RegionOptions;
    /// use pramfs::{Access, FileSystem, MountOptions};
    ///
    /// let region = RegionOptions::new().memfd("example", 4 << 20)?;
    /// format(&region, &FormatOptions::default())?;
    /// let fs = FileSystem::mount(region, MountOptions::default())?;
    /// let file = fs.create("/page")?;
    /// file.append(b"zero copies in user space")?;
    /// let view = file.map(0..25, Access::Read)?;
    /// let (ours, mut theirs) = UnixStream::pair()?;
    /// assert_eq!(view.write_to(&ours, 0..4)?, 4);
    /// let mut word = [0; 4];
    /// theirs.read_exact(&mut word)?;
    /// assert_eq!(&word, b"zero");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range that leaves the view, [`Error::Io`]
    /// where the medium failed, and what write(2) says to the first byte
    /// ([`Error::Pmem`], with its errno).
    pub fn write_to(&self, to: impl AsFd, range: Range<u64>) -> Result<u64> {
        let (at, len) = self.range(&range)?;
        let written = self
            .view
            .write_to(to.as_fd(), at, len)
            .map_err(|e| self.page_gone(e))?;
        self.check_fault(at, written)?;
        Ok(written)
    }

    /// Sends a range of the view to a connected socket with MSG_ZEROCOPY: a
    /// network device that can gather takes the bytes from the medium, and
    /// not even the kernel copies. Pays for ranges of tens of kilobytes and
    /// more. Where the kernel cannot do without a copy (a peer on the same
    /// machine, a unix socket, a small `ulimit -l`) it makes one, and
    /// [`Sent::copied`] says so.
    ///
    /// Returns when the kernel has let go of the medium: with TCP, when the
    /// peer has acknowledged the bytes. Until then nobody else may use
    /// MSG_ZEROCOPY on the socket or read its error queue. Stores to the range
    /// while it is being sent may or may not be seen by the peer.
    ///
    /// # Errors
    /// As for [`write_to`](Self::write_to), with what send(2) says.
    pub fn send_zerocopy(&self, socket: impl AsFd, range: Range<u64>) -> Result<Sent> {
        let (at, len) = self.range(&range)?;
        let sent = self
            .view
            .send_zerocopy(socket.as_fd(), at, len)
            .map_err(|e| self.page_gone(e))?;
        self.check_fault(at, sent.bytes)?;
        Ok(sent)
    }

    /// Where a range lies in the view; its pages can be had, as far as known.
    fn range(&self, range: &Range<u64>) -> Result<(u64, u64)> {
        let Some(len) = range.end.checked_sub(range.start) else {
            return Err(Error::Invalid("the range ends before it begins"));
        };
        let at = self.at(range.start, len)?;
        self.check_fault(at, len)?;
        Ok((at, len))
    }

    /// The kernel takes no SIGBUS: a page that it cannot have is EFAULT.
    fn page_gone(&self, e: PmemError) -> Error {
        if e.errno() == libc::EFAULT {
            self.failed()
        } else {
            Error::Pmem(e)
        }
    }
}
