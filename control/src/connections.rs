//! The connections of a server: accepts clients, answers them, and keeps their number,
//! their silence and their unread answers bounded.

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use crate::admission::Admission;
use crate::error::ControlError;
use crate::lease::{Granted, LeaseKey, MOST_EXTENTS, MOST_LEASES, Peer, Refused};
use crate::message::{self, Refusal, Reply, Request};
use crate::server::Service;
use crate::status::{MAX_STATUS, Report};
use crate::wire;

/// A client never makes the thread wait.
const ACCEPTED: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Clients accepted before the next look at the messages.
const AT_ONCE: usize = 64;

/// Bytes of a document in one answer. Each of them takes at most two there.
const PIECE: usize = 1900;

/// Wait after an accept that failed for lack of resources.
const PAUSE: Duration = Duration::from_millis(100);

/// What clients may use of a server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Time from one message to the next of a client without a lease.
    pub silence: Duration,
    /// Connections in all.
    pub connections: usize,
    /// Connections of all users but root and the server's. The rest is kept for these two.
    pub of_users: usize,
    /// Of these, the connections of all users but the owner of the region.
    pub of_others: usize,
    /// Connections of one of these others.
    pub of_user: usize,
    /// Leases of one connection.
    pub leases: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            silence: Duration::from_secs(3),
            connections: 256,
            of_users: 64,
            of_others: 48,
            of_user: 8,
            leases: 512,
        }
    }
}

/// A client.
#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    peer: Peer,
    /// Its user is root or the server's.
    is_administrator: bool,
    /// When it last sent a message, or connected.
    heard: Instant,
    /// The leases granted to it. Whether they still exist is left to the engine.
    leases: HashSet<LeaseKey>,
    /// The state of the mount that it is reading.
    document: String,
}

/// Whether a connection goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    GoOn,
    Close,
}

/// The clients of a server.
#[derive(Debug)]
pub(crate) struct Connections<'s> {
    listener: &'s OwnedFd,
    service: &'s Service,
    limits: Limits,
    /// Admits users who may ask for leases.
    admission: Option<Admission>,
    open: Vec<Connection>,
}

impl<'s> Connections<'s> {
    pub(crate) fn new(
        listener: &'s OwnedFd,
        service: &'s Service,
        limits: Limits,
        admission: Option<Admission>,
    ) -> Connections<'s> {
        Connections {
            listener,
            service,
            limits,
            admission,
            open: Vec::new(),
        }
    }

    /// Answers until the listener is shut down.
    pub(crate) fn serve(mut self) {
        loop {
            let (listener, ready) = match self.wait() {
                Ok(events) => events,
                Err(Errno::INTR) => continue,
                // Out of memory: later it may work.
                Err(_) => {
                    std::thread::sleep(PAUSE);
                    continue;
                }
            };
            // From the last to the first, so that numbers stay right.
            let mut closed = false;
            for at in (0..self.open.len()).rev() {
                let silent = self.open[at].leases.is_empty()
                    && self.open[at].heard.elapsed() >= self.limits.silence;
                let next = match ready[at] {
                    true => self.answer(at),
                    false if silent => Next::Close,
                    false => Next::GoOn,
                };
                if next == Next::Close {
                    let gone = self.open.swap_remove(at);
                    closed |= !gone.leases.is_empty();
                }
            }
            if closed && let Some(leases) = &self.service.leases {
                leases.end_released();
            }
            // Shut down. An accept that does not wait would not tell.
            if listener.contains(PollFlags::HUP) {
                return;
            }
            if !listener.is_empty() {
                self.accept();
            }
        }
    }

    /// Waits for a client or a message. Returns the events of the listener, and which
    /// connections are ready.
    fn wait(&self) -> rustix::io::Result<(PollFlags, Vec<bool>)> {
        let mut all = Vec::with_capacity(1 + self.open.len());
        all.push(PollFd::new(self.listener, PollFlags::IN));
        for connection in &self.open {
            all.push(PollFd::new(&connection.socket, PollFlags::IN));
        }
        let without_lease = self.open.iter().filter(|c| c.leases.is_empty());
        let limit = without_lease
            .map(|c| self.limits.silence.saturating_sub(c.heard.elapsed()))
            .min();
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        rustix::event::poll(&mut all, limit.as_ref())?;
        let mut events = all.iter().map(PollFd::revents);
        let listener = events.next().unwrap_or(PollFlags::empty());
        Ok((listener, events.map(|events| !events.is_empty()).collect()))
    }

    /// Accepts the clients that wait.
    fn accept(&mut self) {
        // The others wait for an answer meanwhile.
        for _ in 0..AT_ONCE {
            match rustix::net::accept_with(self.listener, ACCEPTED) {
                Ok(socket) => {
                    // A failed client gets its own error; the server goes on.
                    if let Ok(connection) = self.admit(socket) {
                        self.open.push(connection);
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => {
                    std::thread::sleep(PAUSE);
                    return;
                }
            }
        }
    }

    fn admit(&self, socket: OwnedFd) -> Result<Connection, ControlError> {
        wire::limit_unread(&socket)?;
        let (peer, is_administrator) = wire::peer(&socket)?;
        if self.open.len() >= self.limits.connections {
            return Err(refuse(&socket));
        }
        let peer = match (is_administrator, self.admission) {
            (true, _) => peer,
            // The mode of the socket keeps others out as well.
            (false, None) => return Err(ControlError::Peer(peer.uid)),
            (false, Some(admission)) => {
                let peer = admission.check(&socket, peer)?;
                if self.is_full_for(peer.uid, admission.users.owner()) {
                    return Err(refuse(&socket));
                }
                peer
            }
        };
        Ok(Connection {
            socket,
            peer,
            is_administrator,
            heard: Instant::now(),
            leases: HashSet::new(),
            document: String::new(),
        })
    }

    /// Keeps places for root, for the owner of the region, and for each of the other users.
    fn is_full_for(&self, user: u32, owner: u32) -> bool {
        let of = |is: &dyn Fn(u32) -> bool| {
            let users = self.open.iter().filter(|c| !c.is_administrator);
            users.filter(|c| is(c.peer.uid)).count()
        };
        let limits = self.limits;
        of(&|_| true) >= limits.of_users
            || user != owner
                && (of(&|other| other != owner) >= limits.of_others
                    || of(&|other| other == user) >= limits.of_user)
    }

    /// Answers one message of a connection.
    fn answer(&mut self, at: usize) -> Next {
        let service = self.service;
        let most = self.limits.leases;
        let connection = &mut self.open[at];
        let bytes = match wire::receive_now(&connection.socket) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Next::GoOn,
            Err(_) => return Next::Close,
        };
        connection.heard = Instant::now();
        let request = match message::request(&bytes) {
            Ok(request) => request,
            Err(refusal) => return connection.say(&refusal, &[]),
        };
        match connection.ask(service, &request, most) {
            Ok(next) => next,
            Err(refused) => connection.say(&refused.into(), &[]),
        }
    }
}

impl Connection {
    /// Sends an answer, or disconnects a client that does not read its answers.
    fn say(&self, reply: &Reply, descriptors: &[BorrowedFd<'_>]) -> Next {
        let bytes = message::encode(reply).or_else(|error| {
            message::encode(&Reply::from(Refused::new(
                Refusal::System,
                error.to_string(),
            )))
        });
        let sent = bytes.and_then(|bytes| wire::send_now(&self.socket, &bytes, descriptors));
        match sent {
            Ok(()) => Next::GoOn,
            Err(_) => Next::Close,
        }
    }

    /// Carries a request out, and answers it unless it is refused.
    fn ask(
        &mut self,
        service: &Service,
        request: &Request,
        most_leases: usize,
    ) -> Result<Next, Refused> {
        if request.is_administrative() && !self.is_administrator {
            let message = format!("user {} may not ask this", self.peer.uid);
            return Err(Refused::new(Refusal::NotPermitted, message));
        }
        let leases = || {
            service.leases.as_deref().ok_or_else(|| {
                Refused::new(
                    Refusal::Unsupported,
                    "this mount has no direct access; mount it with the option direct=",
                )
            })
        };
        let region = service.region.as_fd();
        Ok(match *request {
            Request::Status => self.say(&Reply::Serves(service.served), &[region]),
            Request::Connection => {
                let descriptors = [region, service.connection.as_fd()];
                self.say(&Reply::Serves(service.served), &descriptors)
            }
            Request::Requests => {
                let counts = service.counts.as_deref().ok_or_else(|| {
                    Refused::new(Refusal::Unsupported, "this server counts no requests")
                })?;
                let counts = counts.counts();
                self.say(&Reply::Requests { counts }, &[])
            }
            Request::Snapshot { memory } => {
                let snapshots = service.snapshots.as_deref().ok_or_else(|| {
                    Refused::new(Refusal::Unsupported, "this server makes no snapshots")
                })?;
                let failed = |e: std::io::Error| Refused::new(Refusal::System, e.to_string());
                let (ours, theirs) = UnixStream::pair().map_err(failed)?;
                snapshots.start(memory, ours).map_err(failed)?;
                self.say(&Reply::Done, &[theirs.as_fd()])
            }
            Request::Report { from } => {
                if from == 0 {
                    self.document = document(reporter(service)?)?;
                }
                self.say(&piece(&self.document, from)?, &[])
            }
            Request::SetLogging(change) => {
                let logging = reporter(service)?.set_logging(&change);
                let logging = logging.map_err(|why| Refused::new(Refusal::Unsupported, why))?;
                self.say(&Reply::Logging(logging), &[])
            }
            Request::Lease { ticket, coherence } => {
                if self.leases.len() >= most_leases {
                    let message = "this connection has too many leases";
                    return Err(Refused::new(Refusal::Full, message));
                }
                let mut next = Next::Close;
                let mut send = |granted: &Granted, fd: BorrowedFd<'_>| {
                    next = self.say(&Reply::Granted(Box::new(granted.clone())), &[fd]);
                };
                let (leases, peer) = (leases()?, &self.peer);
                let lease = leases.grant(ticket, coherence, peer, MOST_EXTENTS, &mut send)?;
                self.leases.insert(lease);
                next
            }
            Request::Cohere { lease, coherence } => {
                self.check(lease)?;
                leases()?.cohere(lease, coherence)?;
                self.say(&Reply::Done, &[])
            }
            Request::Blocks { lease, offset } => {
                self.check(lease)?;
                let blocks = leases()?.blocks(lease, offset, MOST_EXTENTS)?;
                self.say(&Reply::Blocks(blocks), &[])
            }
            Request::Fill {
                lease,
                offset,
                end,
                ahead,
            } => {
                self.check(lease)?;
                let end = leases()?.fill(lease, offset..end, ahead)?;
                self.say(&Reply::Filled { end }, &[])
            }
            Request::Window {
                lease,
                bytes,
                opens,
            } => {
                self.check(lease)?;
                let window = leases()?.window(lease, bytes, opens)?;
                self.say(&Reply::Window(window), &[])
            }
            Request::Release { lease } => {
                self.check(lease)?;
                self.leases.remove(&lease);
                leases()?.end_released();
                self.say(&Reply::Done, &[])
            }
            Request::Leases { from } => {
                let (leases, next) = leases()?.list(from, MOST_LEASES);
                self.say(&Reply::Leases { leases, next }, &[])
            }
            Request::Revoke { lease } => {
                leases()?.revoke(lease)?;
                self.say(&Reply::Done, &[])
            }
        })
    }

    /// Checks that a lease was granted to this connection.
    fn check(&self, lease: LeaseKey) -> Result<(), Refused> {
        match self.leases.contains(&lease) {
            true => Ok(()),
            false => Err(Refused::new(
                Refusal::Ended,
                "this connection has no such lease",
            )),
        }
    }
}

/// Tells a client why it is disconnected, before it has asked anything.
fn refuse(socket: &OwnedFd) -> ControlError {
    let refused = Refused::new(
        Refusal::Full,
        "the server has as many connections as it keeps for this user; try again later",
    );
    let sent = message::encode(&Reply::from(refused))
        .and_then(|bytes| wire::send_now(socket, &bytes, &[]));
    sent.err().unwrap_or(ControlError::Gone)
}

fn reporter(service: &Service) -> Result<&dyn Report, Refused> {
    (service.report.as_deref()).ok_or_else(|| {
        Refused::new(
            Refusal::Unsupported,
            "this server does not report its state",
        )
    })
}

/// Makes the document of the state.
fn document(report: &dyn Report) -> Result<String, Refused> {
    let text = serde_json::to_string(&report.status())
        .map_err(|error| Refused::new(Refusal::System, error.to_string()))?;
    match text.len() <= MAX_STATUS {
        true => Ok(text),
        false => Err(Refused::new(
            Refusal::System,
            format!(
                "the state takes {} bytes, more than {MAX_STATUS}",
                text.len()
            ),
        )),
    }
}

/// Returns the piece of a document that begins at `from`.
fn piece(document: &str, from: u64) -> Result<Reply, Refused> {
    let rest = usize::try_from(from)
        .ok()
        .and_then(|from| document.get(from..));
    let rest = rest.filter(|rest| !rest.is_empty()).ok_or_else(|| {
        Refused::new(
            Refusal::Malformed,
            format!("no piece of the state begins at {from}"),
        )
    })?;
    let mut end = rest.len().min(PIECE);
    while !rest.is_char_boundary(end) {
        end -= 1;
    }
    let text = &rest[..end];
    let more = text.len() < rest.len();
    Ok(Reply::Report {
        text: text.to_owned(),
        next: more.then(|| from + text.len() as u64),
    })
}
