//! What cannot be done directly: by the file of the mount that a lease keeps open.

use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::leased::Leased;

impl Leased {
    pub(crate) fn read_through_mount(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.file.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(through_mount(error)),
            }
        }
        Ok(done)
    }

    pub(crate) fn write_through_mount(&self, buf: &[u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match write_there(&self.file, &buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // As write(2) does.
                Err(_) if done > 0 => break,
                Err(error) => return Err(through_mount(error)),
            }
        }
        Ok(done)
    }
}

/// Writes at an offset, also if somebody who shares the description has set O_APPEND since the lease
/// was granted. Then it needs another description of the file: with that flag the kernel, or the
/// server, takes the end of the file for the offset.
fn write_there(file: &std::fs::File, buf: &[u8], offset: u64) -> io::Result<usize> {
    if !rustix::fs::fcntl_getfl(file)?.contains(OFlags::APPEND) {
        return file.write_at(buf, offset);
    }
    let own = std::fs::OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_DIRECT | libc::O_NONBLOCK)
        .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
        .map_err(|_| io::Error::from(Errno::BADF))?;
    own.write_at(buf, offset)
}

/// Converts an error of the mount.
pub(crate) fn through_mount(error: io::Error) -> Error {
    match error.raw_os_error() {
        // ECANCELED: the request was in a queue of io_uring.
        Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED) => Error::ServerGone,
        _ => Error::Mount(error),
    }
}
