//! Sends and receives one packet and its descriptors, in bounded time.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use crate::error::ControlError;
use crate::lease::Peer;
use crate::message::MAX_MESSAGE;

/// Limit of descriptors in one message. The kernel truncates a larger one, which is then
/// refused.
const MAX_DESCRIPTORS: usize = 4;

/// Makes a socket that keeps message boundaries.
pub(crate) fn socket() -> Result<OwnedFd, ControlError> {
    rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(ControlError::os("cannot make a control socket"))
}

/// Sets a time limit for all further calls on this socket.
pub(crate) fn limit(socket: impl AsFd, time: Duration) -> Result<(), ControlError> {
    for which in [Timeout::Recv, Timeout::Send] {
        sockopt::set_socket_timeout(&socket, which, Some(time)).map_err(ControlError::os(
            "cannot limit the time of a control socket",
        ))?;
    }
    Ok(())
}

/// Largest amount of answers that a client may leave unread, in bytes.
const UNREAD: usize = 64 << 10;

/// Makes calls on a socket return at once, with EAGAIN where they would wait.
pub(crate) fn do_not_wait(socket: &OwnedFd) -> Result<(), ControlError> {
    rustix::io::ioctl_fionbio(socket, true)
        .map_err(ControlError::os("cannot set up a control socket"))
}

/// Bounds the answers that a client may leave unread.
pub(crate) fn limit_unread(socket: &OwnedFd) -> Result<(), ControlError> {
    sockopt::set_socket_send_buffer_size(socket, UNREAD)
        .map_err(ControlError::os("cannot set up a control socket"))
}

/// Returns the peer as the kernel reports it, and whether it is root or the user of this
/// process.
pub(crate) fn peer(socket: impl AsFd) -> Result<(Peer, bool), ControlError> {
    // Not by rustix: a process of another PID namespace has the number 0 here, which its type
    // does not allow.
    let peer = nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::PeerCredentials);
    let peer = peer.map_err(|error| ControlError::Os {
        what: "cannot identify the peer",
        source: error.into(),
    })?;
    let (uid, own) = (peer.uid(), rustix::process::geteuid().as_raw());
    let peer_process = Peer {
        pid: peer.pid().unsigned_abs(),
        uid,
        groups: vec![peer.gid()],
    };
    Ok((peer_process, uid == 0 || uid == own))
}

/// Checks that the peer belongs to root or to the user of this process. Returns it.
pub(crate) fn check_peer(socket: impl AsFd) -> Result<Peer, ControlError> {
    match peer(socket)? {
        (peer, true) => Ok(peer),
        (peer, false) => Err(ControlError::Peer(peer.uid)),
    }
}

/// As [`send`], on a socket that does not wait.
pub(crate) fn send_now(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), ControlError> {
    send(socket, bytes, descriptors, Duration::ZERO)
}

/// As [`receive`], on a socket that does not wait. `None` if there is no message. Closes
/// descriptors that come with one.
pub(crate) fn receive_now(socket: impl AsFd) -> Result<Option<Vec<u8>>, ControlError> {
    match receive(socket, Duration::ZERO) {
        Ok((bytes, _closed)) => Ok(Some(bytes)),
        Err(ControlError::Timeout(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Converts the error of a failed call on a socket with this time limit.
pub(crate) fn failure(error: Errno, time: Duration, what: &'static str) -> ControlError {
    match error {
        // AGAIN also means that the queue of connections stays full.
        Errno::AGAIN | Errno::TIMEDOUT | Errno::INPROGRESS => ControlError::Timeout(time),
        Errno::CONNRESET | Errno::PIPE | Errno::NOTCONN => ControlError::Gone,
        error => ControlError::os(what)(error),
    }
}

pub(crate) fn send(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    time: Duration,
) -> Result<(), ControlError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(ControlError::Malformed("too many descriptors".into()));
    }
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(
            &socket,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        )
    })
    .map_err(|error| failure(error, time, "cannot send over the control socket"))?;
    Ok(())
}

pub(crate) fn receive(
    socket: impl AsFd,
    time: Duration,
) -> Result<(Vec<u8>, Vec<OwnedFd>), ControlError> {
    let mut bytes = vec![0; MAX_MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(
            &socket,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    })
    .map_err(|error| failure(error, time, "cannot receive from the control socket"))?;
    // Taken out even on an error below, so that they are closed.
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received
        .flags
        .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
    {
        return Err(ControlError::Malformed("the message is too long".into()));
    }
    if received.bytes == 0 {
        return Err(ControlError::Gone);
    }
    bytes.truncate(received.bytes);
    Ok((bytes, descriptors))
}
