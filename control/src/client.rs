//! The client end of a control socket.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

use crate::directory::Directory;
use crate::error::ControlError;
use crate::identity::Identity;
use crate::message::{self, Reply, Request, Served};
use crate::wire;

/// Time limit of each step: a place in the queue, sending, the answer. The server
/// answers the clients ahead in the queue first.
const IO_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to the server of a region, which is verified to belong to root or to this
/// user.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    identity: Identity,
    pid: i32,
}

/// An answer from a process that has proved that it has the region open.
#[derive(Debug)]
pub struct Proved {
    /// The mount that it serves.
    pub served: Served,
    /// Its connection to the kernel, if requested.
    pub connection: Option<OwnedFd>,
}

impl Client {
    /// Connects to the server of a region. Returns `None` if no process listens.
    ///
    /// # Errors
    /// [`ControlError::Peer`] if another user's process listens; [`ControlError::Timeout`].
    pub fn connect(
        directory: &Directory,
        identity: Identity,
    ) -> Result<Option<Client>, ControlError> {
        let socket = wire::socket()?;
        wire::limit(&socket, IO_TIMEOUT)?;
        let address = SocketAddrUnix::new(directory.way_to(&identity.socket_name())).map_err(
            ControlError::os("the name of the control socket is too long"),
        )?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => {}
            // Not bound, or its server has died. A server that is ending resets the
            // connections in its queue.
            Err(Errno::NOENT | Errno::CONNREFUSED | Errno::CONNRESET) => return Ok(None),
            Err(error) => {
                let what = "cannot connect to the control socket";
                return Err(wire::failure(error, IO_TIMEOUT, what));
            }
        }
        let pid = wire::check_peer(&socket)?;
        Ok(Some(Client {
            socket,
            identity,
            pid,
        }))
    }

    /// Returns the pid of the server, as reported by the kernel.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Sends a request, and checks that the answer comes from a process that has the
    /// region open.
    ///
    /// # Errors
    /// A refusal by the server, a timeout, and [`ControlError::OtherRegion`].
    pub fn ask(self, request: Request) -> Result<Proved, ControlError> {
        wire::send(&self.socket, &message::encode(&request)?, &[], IO_TIMEOUT)?;
        let (bytes, descriptors) = wire::receive(&self.socket, IO_TIMEOUT)?;
        let served = match message::reply(&bytes)? {
            Reply::Serves(served) => served,
            Reply::Refused { reason, message } => {
                return Err(ControlError::Refused { reason, message });
            }
        };
        let wanted = match request {
            Request::Status => 1,
            Request::Connection => 2,
        };
        if descriptors.len() != wanted {
            return Err(ControlError::Malformed(format!(
                "{} descriptors, not {wanted}",
                descriptors.len()
            )));
        }
        let mut descriptors = descriptors.into_iter();
        let region = descriptors.next();
        if !region.is_some_and(|region| self.is_ours(&region)) {
            return Err(ControlError::OtherRegion);
        }
        Ok(Proved {
            served,
            connection: descriptors.next(),
        })
    }

    fn is_ours(&self, region: impl AsFd) -> bool {
        Identity::of(region).is_ok_and(|theirs| theirs == self.identity)
    }
}
