//! Sends a view to a descriptor: from the medium to a socket, a pipe or another file,
//! without a buffer of the program in between.

use std::ops::Range;
use std::os::fd::AsFd;

use super::mapped::MappedFile;
use pramfs_medium::error::{Error, Result};
use pramfs_medium::pmem::{PmemError, Sent};

impl MappedFile {
    /// Writes a range of the view to a descriptor by write(2), with the medium itself
    /// as the source. User space copies nothing; the kernel copies once, into its
    /// socket buffer, pipe or page cache. Works with every descriptor that write(2)
    /// accepts.
    ///
    /// Returns the number of bytes written: fewer than requested if the descriptor
    /// accepts no more at the moment, or failed after some of them.
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
    /// [`Error::Invalid`] for a range outside the view, [`Error::Io`] if the medium
    /// failed, and the error of write(2) at the first byte ([`Error::Pmem`], with its
    /// errno).
    pub fn write_to(&self, to: impl AsFd, range: Range<u64>) -> Result<u64> {
        let (at, len) = self.range(&range)?;
        let written = self
            .view
            .write_to(to.as_fd(), at, len)
            .map_err(|e| self.page_gone(e))?;
        self.check_fault(at, written)?;
        Ok(written)
    }

    /// Sends a range of the view to a connected socket with MSG_ZEROCOPY: a network
    /// device that supports scatter-gather reads the bytes from the medium, and not even
    /// the kernel copies. This pays off for ranges of tens of kilobytes and more. If the
    /// kernel must copy (a peer on the same machine, a unix socket, a small
    /// `ulimit -l`), it does, and [`Sent::copied`] reports that.
    ///
    /// Returns when the kernel no longer uses the medium: with TCP, when the
    /// peer has acknowledged the bytes. Until then no other code may use
    /// MSG_ZEROCOPY on the socket or read its error queue. The peer may or may not see
    /// stores to the range during the call.
    ///
    /// # Errors
    /// As for [`write_to`](Self::write_to), with the errors of send(2).
    pub fn send_zerocopy(&self, socket: impl AsFd, range: Range<u64>) -> Result<Sent> {
        let (at, len) = self.range(&range)?;
        let sent = self
            .view
            .send_zerocopy(socket.as_fd(), at, len)
            .map_err(|e| self.page_gone(e))?;
        self.check_fault(at, sent.bytes)?;
        Ok(sent)
    }

    /// Returns where a range lies in the view, if no fault of its pages is known.
    fn range(&self, range: &Range<u64>) -> Result<(u64, u64)> {
        let Some(len) = range.end.checked_sub(range.start) else {
            return Err(Error::Invalid("the end of the range is before its start"));
        };
        let at = self.at(range.start, len)?;
        self.check_fault(at, len)?;
        Ok((at, len))
    }

    /// Converts EFAULT: the kernel reports a page that it cannot access, without SIGBUS.
    fn page_gone(&self, e: PmemError) -> Error {
        if e.errno() == libc::EFAULT {
            self.failed()
        } else {
            Error::Pmem(e)
        }
    }
}
