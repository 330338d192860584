//! The client end of a control socket.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

use crate::directory::Directory;
use crate::error::ControlError;
use crate::identity::Identity;
use crate::lease::{Blocks, Coherence, Granted, LeaseKey, LeaseRow, Ticket, Window};
use crate::message::{self, Reply, Request, Served};
use crate::snapshot::SnapshotReader;
use crate::status::{Logging, MAX_STATUS, MountStatus, SetLogging};
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
        let connected = connect(directory, &identity.socket_name(), IO_TIMEOUT)?;
        Ok(connected.map(|(socket, pid)| Client {
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
        let (reply, descriptors) = asked(&self.socket, &request, IO_TIMEOUT)?;
        let served = match reply {
            Reply::Serves(served) => served,
            other => return Err(unexpected(other)),
        };
        let wanted = match request {
            Request::Connection => 2,
            _ => 1,
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

/// Connects to a socket by its name, and checks that root or this user listens. `None` if
/// no process does.
fn connect(
    directory: &Directory,
    name: &str,
    time: Duration,
) -> Result<Option<(OwnedFd, i32)>, ControlError> {
    let socket = wire::socket()?;
    wire::limit(&socket, time)?;
    let address = SocketAddrUnix::new(directory.way_to(name)).map_err(ControlError::os(
        "the name of the control socket is too long",
    ))?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => {}
        // Not bound, or its server has died. A server that is ending resets the
        // connections in its queue.
        Err(Errno::NOENT | Errno::CONNREFUSED | Errno::CONNRESET) => return Ok(None),
        Err(error) => {
            let what = "cannot connect to the control socket";
            return Err(wire::failure(error, time, what));
        }
    }
    let pid = wire::check_peer(&socket)?.pid.cast_signed();
    Ok(Some((socket, pid)))
}

/// Sends a request, and returns the answer. A server that is full sends its refusal unasked, and
/// disconnects: the request may find the other end closed.
fn asked(
    socket: &OwnedFd,
    request: &Request,
    time: Duration,
) -> Result<(Reply, Vec<OwnedFd>), ControlError> {
    let sent = wire::send(socket, &message::encode(request)?, &[], time);
    if !matches!(sent, Ok(()) | Err(ControlError::Gone)) {
        sent?;
    }
    let answer = match wire::receive(socket, time) {
        // The refusal comes after the note that the request was not read.
        Err(ControlError::Gone) => wire::receive(socket, time)?,
        answer => answer?,
    };
    let (bytes, descriptors) = answer;
    Ok((message::reply(&bytes)?, descriptors))
}

/// Returns the error for a reply that the request does not expect.
fn unexpected(reply: Reply) -> ControlError {
    match reply {
        Reply::Refused { reason, message } => ControlError::Refused { reason, message },
        _ => ControlError::Malformed("the answer to another request".into()),
    }
}

/// A connection for requests about leases. It stays open between them.
///
/// After an error other than [`ControlError::Refused`] it is of no further use.
pub struct Connection {
    socket: OwnedFd,
    pid: i32,
    /// Time limit of each step.
    time: Duration,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Connection {
    /// Connects to the socket of this name. `None` if no process listens.
    ///
    /// # Errors
    /// [`ControlError::Peer`] if the server is neither root's nor this user's;
    /// [`ControlError::Timeout`].
    pub fn open(directory: &Directory, name: &str) -> Result<Option<Connection>, ControlError> {
        Connection::open_within(directory, name, IO_TIMEOUT)
    }

    /// As [`open`](Self::open), with another time limit than ten seconds for each step: a place
    /// in the queue, sending, the answer.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_within(
        directory: &Directory,
        name: &str,
        time: Duration,
    ) -> Result<Option<Connection>, ControlError> {
        let connected = connect(directory, name, time)?;
        Ok(connected.map(|(socket, pid)| Connection { socket, pid, time }))
    }

    /// Returns the pid of the server, as reported by the kernel.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Replaces the socket by what `keep` makes of it: a copy with another number. Returns what
    /// it gives besides.
    ///
    /// # Errors
    /// Those of `keep`.
    pub fn kept<T>(
        self,
        keep: impl FnOnce(OwnedFd) -> std::io::Result<(T, OwnedFd)>,
    ) -> std::io::Result<(T, Connection)> {
        let (kept, socket) = keep(self.socket)?;
        let (pid, time) = (self.pid, self.time);
        Ok((kept, Connection { socket, pid, time }))
    }

    fn ask(&self, request: &Request) -> Result<(Reply, Vec<OwnedFd>), ControlError> {
        asked(&self.socket, request, self.time)
    }

    /// Redeems a ticket. The lease lasts as long as the descriptor, its copies and its
    /// mappings.
    ///
    /// # Errors
    /// A refusal by the server, a timeout.
    pub fn lease(&self, ticket: Ticket) -> Result<(Granted, OwnedFd), ControlError> {
        self.coherent_lease(ticket, Coherence::default())
    }

    /// As [`lease`](Self::lease), and says what becomes of a lease to read. The answer repeats it,
    /// if the server knows of it.
    ///
    /// # Errors
    /// As for [`lease`](Self::lease).
    pub fn coherent_lease(
        &self,
        ticket: Ticket,
        coherence: Coherence,
    ) -> Result<(Granted, OwnedFd), ControlError> {
        match self.ask(&Request::Lease { ticket, coherence })? {
            (Reply::Granted(granted), mut descriptors) if descriptors.len() == 1 => {
                Ok((*granted, descriptors.remove(0)))
            }
            (Reply::Granted(_), _) => Err(ControlError::Malformed(
                "a lease without its descriptor".into(),
            )),
            (other, _) => Err(unexpected(other)),
        }
    }

    /// Changes what becomes of a lease to read: [`Kept`](Coherence::Kept) before the file is mapped.
    ///
    /// # Errors
    /// As for [`lease`](Self::lease); a refusal with [`Refusal::Busy`](crate::Refusal::Busy) if a
    /// program may store to the file through a mapping of the mount.
    pub fn cohere(&self, lease: LeaseKey, coherence: Coherence) -> Result<(), ControlError> {
        self.done(&Request::Cohere { lease, coherence })
    }

    /// Returns blocks of a leased file from an offset on.
    ///
    /// # Errors
    /// As for [`lease`](Self::lease).
    pub fn blocks(&self, lease: LeaseKey, offset: u64) -> Result<Blocks, ControlError> {
        match self.ask(&Request::Blocks { lease, offset })?.0 {
            Reply::Blocks(blocks) => Ok(blocks),
            other => Err(unexpected(other)),
        }
    }

    /// Fills holes of a file that is leased to write. Returns the offset up to which this is
    /// done: the server fills a limited number of bytes at once, and nothing past the end of
    /// the file, unless `ahead`: then that is allocated, and left undefined.
    ///
    /// # Errors
    /// As for [`lease`](Self::lease).
    pub fn fill(
        &self,
        lease: LeaseKey,
        range: Range<u64>,
        ahead: bool,
    ) -> Result<u64, ControlError> {
        let (offset, end) = (range.start, range.end);
        let request = Request::Fill {
            lease,
            offset,
            end,
            ahead,
        };
        match self.ask(&request)?.0 {
            Reply::Filled { end } => Ok(end),
            other => Err(unexpected(other)),
        }
    }

    /// Asks for an append window of a file that is leased to write, with room for a number of
    /// bytes. It takes the place of the one before. A server without windows refuses with
    /// [`Refusal::Unknown`](crate::Refusal::Unknown).
    ///
    /// # Errors
    /// As for [`lease`](Self::lease).
    pub fn window(&self, lease: LeaseKey, bytes: u64, opens: u32) -> Result<Window, ControlError> {
        let request = Request::Window {
            lease,
            bytes,
            opens,
        };
        match self.ask(&request)?.0 {
            Reply::Window(window) => Ok(window),
            other => Err(unexpected(other)),
        }
    }

    /// Tells the server that a lease has been given up: its descriptor and mappings are
    /// closed. Without this call the server notices a little later.
    ///
    /// # Errors
    /// As for [`lease`](Self::lease).
    pub fn release(&self, lease: LeaseKey) -> Result<(), ControlError> {
        self.done(&Request::Release { lease })
    }

    /// Ends the requests of a lease. Only root and the user of the server may.
    ///
    /// # Errors
    /// As for [`lease`](Self::lease).
    pub fn revoke(&self, lease: LeaseKey) -> Result<(), ControlError> {
        self.done(&Request::Revoke { lease })
    }

    fn done(&self, request: &Request) -> Result<(), ControlError> {
        match self.ask(request)?.0 {
            Reply::Done => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Returns what is mounted. Unlike [`Client::ask`], this does not prove which region the
    /// server has open.
    ///
    /// # Errors
    /// As for [`lease`](Self::lease).
    pub fn served(&self) -> Result<Served, ControlError> {
        match self.ask(&Request::Status)?.0 {
            Reply::Serves(served) => Ok(served),
            other => Err(unexpected(other)),
        }
    }

    /// Returns the region that the server has open, as it says, by a descriptor that identifies
    /// it (`O_PATH`).
    ///
    /// # Errors
    /// As for [`lease`](Self::lease).
    pub fn region(&self) -> Result<OwnedFd, ControlError> {
        match self.ask(&Request::Status)? {
            (Reply::Serves(_), mut descriptors) if descriptors.len() == 1 => {
                Ok(descriptors.remove(0))
            }
            (Reply::Serves(_), _) => Err(ControlError::Malformed(
                "an answer without the region".into(),
            )),
            (other, _) => Err(unexpected(other)),
        }
    }

    /// Returns how many requests of the kernel the mount has served, by operation. Only root and
    /// the user of the server may.
    ///
    /// # Errors
    /// As for [`lease`](Self::lease).
    pub fn requests(&self) -> Result<BTreeMap<String, u64>, ControlError> {
        match self.ask(&Request::Requests)?.0 {
            Reply::Requests { counts } => Ok(counts),
            other => Err(unexpected(other)),
        }
    }

    /// Asks for a snapshot of the file system, for which the server uses at most `memory`
    /// bytes. Waits until the operations under way have ended. Only root and the user of the
    /// server may.
    ///
    /// # Errors
    /// As for [`lease`](Self::lease); [`ControlError::Os`] if the server could make none.
    pub fn snapshot(&self, memory: u64) -> Result<SnapshotReader, ControlError> {
        match self.ask(&Request::Snapshot { memory })? {
            (Reply::Done, mut descriptors) if descriptors.len() == 1 => {
                let socket = descriptors.remove(0);
                SnapshotReader::new(socket.into()).map_err(|source| ControlError::Os {
                    what: "no snapshot",
                    source,
                })
            }
            (Reply::Done, _) => Err(ControlError::Malformed(
                "a snapshot without its socket".into(),
            )),
            (other, _) => Err(unexpected(other)),
        }
    }

    /// Returns the state of the mount. Only root and the user of the server may.
    ///
    /// # Errors
    /// As for [`lease`](Self::lease); [`ControlError::Malformed`] for a document that is too long
    /// or no state.
    pub fn status(&self) -> Result<MountStatus, ControlError> {
        let malformed = |what: String| ControlError::Malformed(what);
        let (mut document, mut from) = (String::new(), 0);
        loop {
            match self.ask(&Request::Report { from })?.0 {
                Reply::Report { text, next } => {
                    document += &text;
                    match next {
                        None => break,
                        Some(next)
                            if next == document.len() as u64 && document.len() <= MAX_STATUS =>
                        {
                            from = next;
                        }
                        Some(next) => {
                            return Err(malformed(format!("a state that goes on at {next}")));
                        }
                    }
                }
                other => return Err(unexpected(other)),
            }
        }
        serde_json::from_str(&document).map_err(|error| malformed(error.to_string()))
    }

    /// Sets what the server logs. Returns what is in force then. Only root and the user of the
    /// server may.
    ///
    /// # Errors
    /// As for [`lease`](Self::lease).
    pub fn set_logging(&self, change: SetLogging) -> Result<Logging, ControlError> {
        match self.ask(&Request::SetLogging(change))?.0 {
            Reply::Logging(logging) => Ok(logging),
            other => Err(unexpected(other)),
        }
    }

    /// Returns all leases of the mount. Only root and the user of the server may.
    ///
    /// # Errors
    /// As for [`lease`](Self::lease).
    pub fn leases(&self) -> Result<Vec<LeaseRow>, ControlError> {
        let (mut all, mut from) = (Vec::new(), 0);
        loop {
            match self.ask(&Request::Leases { from })?.0 {
                Reply::Leases { leases, next } => {
                    all.extend(leases);
                    match next {
                        Some(next) if next > from => from = next,
                        _ => return Ok(all),
                    }
                }
                other => return Err(unexpected(other)),
            }
        }
    }
}
