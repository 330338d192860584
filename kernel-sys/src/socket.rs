//! Options of sockets that the crates do not have.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `SO_PASSRIGHTS` of `asm-generic/socket.h`, Linux 6.16.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Longest list of groups that is asked for: the kernel's own limit (NGROUPS_MAX).
const MOST_GROUPS: usize = 65536;

/// Returns the supplementary groups of the process at the other end of a Unix socket, as they
/// were when it connected (`SO_PEERGROUPS`, Linux 4.13).
///
/// # Errors
/// Those of getsockopt(2); `InvalidData` for more groups than the kernel gives to a process.
pub fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0; 64];
    loop {
        let room = size_of_val(&groups[..]);
        let mut len = room as libc::socklen_t;
        // SAFETY: the call writes at most `len` bytes, the length of `groups`, and `len` itself,
        // and keeps no pointer. Any bytes are numbers. The descriptor is open while it is
        // borrowed.
        let got = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        let len = len as usize / size_of::<u32>();
        if got == 0 {
            groups.truncate(len);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) {
            return Err(error);
        }
        // The list of a peer does not change: the kernel has told its length. The list grows each
        // time, so this ends.
        if len <= groups.len() || len > MOST_GROUPS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        groups.resize(len, 0);
    }
}

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

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn groups_of_peer_are_returned_whatever_their_number() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let groups = peer_groups(ours.as_fd()).unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
        let shown = line.unwrap().split_ascii_whitespace();
        let shown: Vec<u32> = shown.map(|group| group.parse().unwrap()).collect();
        assert_eq!(groups, shown);
        let many: Vec<u32> = (1000..3000).collect();
        std::thread::spawn(move || {
            // SAFETY: changes the groups of this thread alone, which ends. The list lives until
            // the call has returned.
            let set = unsafe { libc::syscall(libc::SYS_setgroups, many.len(), many.as_ptr()) };
            if set != 0 {
                return; // Not root.
            }
            let (ours, _theirs) = UnixStream::pair().unwrap();
            assert_eq!(peer_groups(ours.as_fd()).unwrap(), many);
        })
        .join()
        .unwrap();
    }
}
