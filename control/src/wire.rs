//! One packet and its descriptors, in a time that is bounded.

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
use crate::message::MAX_MESSAGE;

/// Most descriptors in one message. One that has more loses them, and is refused
/// for that.
const MAX_DESCRIPTORS: usize = 4;

/// A socket whose messages keep their bounds.
pub(crate) fn socket() -> Result<OwnedFd, ControlError> {
    rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(ControlError::os("cannot make a control socket"))
}

/// From here on no call on this socket takes longer.
pub(crate) fn limit(socket: impl AsFd, time: Duration) -> Result<(), ControlError> {
    for which in [Timeout::Recv, Timeout::Send] {
        sockopt::set_socket_timeout(&socket, which, Some(time)).map_err(ControlError::os(
            "cannot limit the time of a control socket",
        ))?;
    }
    Ok(())
}

/// Whether the process at the other end belongs to root or to the user of this
/// one, as the kernel says; its number.
pub(crate) fn check_peer(socket: impl AsFd) -> Result<i32, ControlError> {
    let peer = sockopt::socket_peercred(socket)
        .map_err(ControlError::os("cannot tell who is at the other end"))?;
    let (peer_id, own) = (peer.uid, rustix::process::geteuid());
    if peer_id.is_root() || peer_id == own {
        Ok(peer.pid.as_raw_nonzero().get())
    } else {
        Err(ControlError::Peer(peer_id.as_raw()))
    }
}

/// What a failed call on a socket with this time limit means.
pub(crate) fn failure(error: Errno, time: Duration, what: &'static str) -> ControlError {
    match error {
        // AGAIN also where a queue of connections stays full.
        Errno::AGAIN | Errno::TIMEDOUT | Errno::INPROGRESS => ControlError::Timeout(time.as_secs()),
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
    // Taken out in any case, so that they are closed.
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
        return Err(ControlError::Malformed("a message that is too long".into()));
    }
    if received.bytes == 0 {
        return Err(ControlError::Gone);
    }
    bytes.truncate(received.bytes);
    Ok((bytes, descriptors))
}
