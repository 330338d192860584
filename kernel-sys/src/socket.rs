//! setsockopt(2), for an option that is newer than the crates.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `SO_PASSRIGHTS` of `asm-generic/socket.h`, Linux 6.16.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Forbids peers of a Unix socket to pass descriptors to it: their sendmsg(2) fails with
/// EPERM. A connection gets this from the listening socket. Passing descriptors to the peer
/// stays possible.
///
/// # Errors
/// ENOPROTOOPT before Linux 6.16; EOPNOTSUPP if it is not a Unix socket.
pub fn refuse_descriptors(socket: BorrowedFd<'_>) -> io::Result<()> {
    let pass: libc::c_int = 0;
    // SAFETY: the call reads the four bytes of `pass`, and keeps no pointer. The descriptor is
    // open while it is borrowed.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const pass).cast(),
            size_of_val(&pass) as libc::socklen_t,
        )
    };
    match set {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
