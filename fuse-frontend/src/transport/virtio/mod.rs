//! The transport `virtio`: requests of guests, over vhost-user.
//!
//! Purpose: a VMM connects to a socket, hands over the memory of its guest, and says where the
//! queues of the device lie in it. The crate `vhost-user-backend` speaks with the VMM. This folder
//! takes requests out of the queues, has a [`Door`] serve them, and copies the replies into the
//! memory of the guest, from the medium if it can.
//!
//! * `socket.rs`: the socket;
//! * `guest.rs`: the queues of one guest, `pool.rs`: its threads;
//! * `window.rs`: maps of files in the guest;
//! * `chain.rs`: the pieces of a request and of a reply.
//!
//! Trust: the VMM may make this server wait, fail or end. The guest may not. It sees what is in the
//! region, and nothing else of this machine (docs/security.md).

pub(crate) mod chain;
mod guest;
mod pool;
mod socket;
#[cfg(test)]
mod tests;
mod window;

use std::io::{self, PipeReader, PipeWriter};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec};
use vhost::vhost_user::{Error as VhostUserError, Listener};
use vhost_user_backend::{Error, ShutdownHandle};

use crate::door::Door;
pub use guest::GuestSettings;
pub(crate) use guest::buffer;
use guest::{Guest, TAG};
pub use socket::Socket;

/// Pause after a VMM could not be served.
const AFTER_FAILURE: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Most queues for requests.
pub const MAX_QUEUES: usize = 16;

/// Most bytes of a tag.
pub const MAX_TAG: usize = TAG;

/// Ends the service of guests.
#[derive(Debug)]
pub struct Stop {
    /// Closed at the end, which wakes whoever waits for a VMM.
    open: Mutex<Option<PipeWriter>>,
    closed: PipeReader,
    connections: Mutex<Vec<(usize, Connection)>>,
}

struct Connection(ShutdownHandle);

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connection")
    }
}

impl Stop {
    /// Makes one.
    ///
    /// # Errors
    /// No descriptor.
    pub fn new() -> io::Result<Stop> {
        let (closed, open) = io::pipe()?;
        Ok(Stop {
            open: Mutex::new(Some(open)),
            closed,
            connections: Mutex::default(),
        })
    }

    /// Ends all connections, and accepts no more.
    pub fn stop(&self) {
        drop(
            self.open
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
        for (_, Connection(handle)) in &*self.lock() {
            handle.shutdown();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(usize, Connection)>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopped(&self) -> bool {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.is_none()
    }

    /// Notes a connection. It ends at once if all do.
    fn enter(&self, door: usize, handle: ShutdownHandle) {
        let mut all = self.lock();
        all.push((door, Connection(handle.clone())));
        drop(all);
        if self.is_stopped() {
            handle.shutdown();
        }
    }

    fn leave(&self, door: usize) {
        self.lock().retain(|(of, _)| *of != door);
    }

    /// Waits for so long. Returns whether the end has come.
    fn wait_for_end(&self, pause: Timespec) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.closed, PollFlags::IN)];
        let polled = rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&pause)))?;
        Ok(polled != 0)
    }

    /// Waits for a VMM. Returns false at the end.
    fn wait(&self, socket: &Socket) -> io::Result<bool> {
        loop {
            let mut fds = [
                PollFd::new(&self.closed, PollFlags::IN),
                PollFd::new(socket, PollFlags::IN),
            ];
            match rustix::event::poll(&mut fds, None) {
                Ok(_) if !fds[0].revents().is_empty() => return Ok(false),
                Ok(_) if !fds[1].revents().is_empty() => return Ok(true),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// A socket, and how its VMMs are served.
pub struct Gate<'g> {
    /// A number of its own.
    pub number: usize,
    /// The socket.
    pub socket: Socket,
    /// How to serve.
    pub settings: GuestSettings,
    /// Serves one VMM, and ends with it.
    pub once: bool,
    /// Whoever reaches the socket may have the window, and with it the whole region.
    pub trusts_vmm: bool,
    /// Makes the door of a guest.
    pub door: &'g (dyn Fn() -> Door + Sync),
}

impl Gate<'_> {
    /// Serves one VMM after the other, until the end. What fails for one guest (a limit of
    /// descriptors, threads or memory) concerns no other: the VMM waits, and the next attempt
    /// follows.
    ///
    /// # Errors
    /// The socket failed; or the only VMM cannot be served.
    pub fn serve(self, stop: &Stop) -> io::Result<()> {
        let mut listener = Listener::from(self.socket.listener()?);
        while stop.wait(&self.socket)? {
            let served = match self.objection() {
                Some(why) => self.turn_away(why),
                None => self.serve_one(&mut listener, stop),
            };
            if self.once {
                return served;
            }
            if let Err(error) = served {
                tracing::error!("a VMM cannot be served, another attempt follows: {error}");
                if stop.wait_for_end(AFTER_FAILURE)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Why this VMM must not have the window.
    fn objection(&self) -> Option<&'static str> {
        let exposed =
            self.settings.window.is_some() && !self.trusts_vmm && !self.socket.is_private();
        exposed.then_some(
            "other users can reach the socket by now, and whoever runs the VMM gets the whole region with a window; set its owner and mode (0600) back, or say --trust-vmm",
        )
    }

    fn turn_away(&self, why: &'static str) -> io::Result<()> {
        drop(self.socket.listener()?.accept()?);
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    }

    fn serve_one(&self, listener: &mut Listener, stop: &Stop) -> io::Result<()> {
        let guest = Arc::new(Guest::new((self.door)(), &self.settings)?);
        let mut daemon = guest.daemon()?;
        let started = daemon.start(listener);
        started.map_err(|error| io::Error::other(error.to_string()))?;
        tracing::info!("a VMM is connected");
        if let Some(handle) = daemon.shutdown_handle() {
            stop.enter(self.number, handle);
        }
        match daemon.wait() {
            Ok(()) | Err(Error::HandleRequest(VhostUserError::Disconnected)) => {
                tracing::info!("the VMM is gone");
            }
            Err(error) => tracing::warn!("the VMM is disconnected: {error}"),
        }
        stop.leave(self.number);
        guest.stop();
        drop(daemon);
        guest.finish();
        Ok(())
    }
}
