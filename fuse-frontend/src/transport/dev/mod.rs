//! The transport `dev`: reads requests from `/dev/fuse`, and writes replies to it.
//!
//! Each serving thread has a channel of its own (a clone of the descriptor), so that two
//! threads do not contend for the list of requests that wait for a reply. A reply is one
//! writev(2), whose data may lie in the medium.

pub(crate) mod buffer;
mod reply;

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pramfs_fuse_protocol::flags::InitFlags;
use pramfs_fuse_protocol::{Malformed, Negotiated, Request, Rules, notify};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::Settings;
use super::handshake::Offer;
use super::threads::Threads;
use crate::adapter::Adapter;
use buffer::{Buffer, NoMemory};
use reply::DeviceReply;

/// A connection that both sides have agreed upon.
pub(super) struct Session {
    adapter: Arc<Adapter>,
    /// One for each thread; the first one was mounted.
    channels: Vec<OwnedFd>,
    agreed: Negotiated,
    /// How long a thread looks for the next request before it sleeps.
    busy_poll: Duration,
    /// Another server has served before.
    resumes: bool,
    /// Is told when it serves.
    serves: Option<Box<dyn FnOnce() + Send>>,
}

impl Session {
    /// Negotiates with the kernel.
    ///
    /// # Errors
    /// The connection failed, or the kernel is too old.
    pub(super) fn negotiate(
        adapter: Arc<Adapter>,
        connection: OwnedFd,
        settings: Settings,
    ) -> io::Result<Session> {
        let offer = Offer::read(&connection)?;
        let agreed = offer.answer(&connection, &adapter, InitFlags::empty())?;
        let session = Session::new(adapter, connection, agreed, settings.threads);
        Ok(session.polling(settings.busy_poll))
    }

    /// Opens a channel for each thread; for fewer threads if that fails.
    pub(super) fn new(
        adapter: Arc<Adapter>,
        connection: OwnedFd,
        agreed: Negotiated,
        threads: usize,
    ) -> Session {
        let clones: Vec<_> = (1..threads)
            .filter_map(|_| {
                pramfs_kernel_sys::fuse::clone_connection(&connection)
                    .inspect_err(|e| tracing::warn!("no channel for a serving thread: {e}"))
                    .ok()
            })
            .collect();
        Session {
            adapter,
            channels: [connection].into_iter().chain(clones).collect(),
            agreed,
            busy_poll: Duration::ZERO,
            resumes: false,
            serves: None,
        }
    }

    /// Takes over the channels of another server.
    pub(super) fn resume(
        adapter: Arc<Adapter>,
        channels: Vec<OwnedFd>,
        agreed: Negotiated,
    ) -> Session {
        Session {
            adapter,
            channels,
            agreed,
            busy_poll: Duration::ZERO,
            resumes: true,
            serves: None,
        }
    }

    /// Lets each thread look for the next request for so long before it sleeps.
    pub(super) fn polling(mut self, busy_poll: Duration) -> Session {
        self.busy_poll = busy_poll;
        self
    }

    /// Calls this once it serves: with requests that the kernel sends again, when they are answered.
    pub(super) fn when_it_serves(&mut self, tell: Box<dyn FnOnce() + Send>) {
        self.serves = Some(tell);
    }

    /// Returns what another server would have to take over.
    pub(super) fn to_keep(&self) -> (&[OwnedFd], Negotiated) {
        (&self.channels, self.agreed)
    }

    /// Serves until the end of the connection.
    ///
    /// # Errors
    /// A read failed; or no thread could be started.
    pub(super) fn run(self) -> io::Result<()> {
        let mut threads = Threads::new();
        self.start(&mut threads)?;
        threads.wait()
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// None could be started.
    pub(super) fn start(self, threads: &mut Threads) -> io::Result<()> {
        let rules = self.agreed.rules(self.adapter.name_max());
        let (locked, busy_poll) = (self.adapter.has_takeover(), self.busy_poll);
        let buffer = |_: &OwnedFd| {
            let buffer = Buffer::new(rules.max_request)?;
            if locked && let Err(error) = buffer.lock() {
                tracing::warn!(
                    "a request that the server reads while it is killed may fail with EIO, because its memory cannot be locked (RLIMIT_MEMLOCK): {error}"
                );
            }
            Ok(buffer)
        };
        let mut buffers: Vec<_> = self.channels.iter().map(buffer).collect();
        if self.resumes
            && let (Some(connection), Some(Ok(buffer))) =
                (self.channels.first(), buffers.first_mut())
        {
            ask_again(connection)?;
            serve_resent(&self.adapter, connection, buffer, &rules)?;
        }
        if let Some(tell) = self.serves {
            tell();
        }
        let (mut count, mut why) = (0, None);
        let channels = self.channels.into_iter().zip(buffers);
        for (number, (channel, buffer)) in channels.enumerate() {
            let adapter = Arc::clone(&self.adapter);
            let name = format!("fuse-dev-{number}");
            let started = match buffer {
                Ok(buffer) => threads.start(name, move || {
                    serve(&adapter, &channel, buffer, &rules, busy_poll)
                }),
                Err(NoMemory) => Err(io::ErrorKind::OutOfMemory.into()),
            };
            match started {
                Ok(()) => count += 1,
                Err(error) => {
                    tracing::warn!("a serving thread cannot be started: {error}");
                    why = Some(error);
                }
            }
        }
        match why {
            Some(error) if count == 0 => Err(error),
            _ => Ok(()),
        }
    }
}

/// Makes the kernel send all requests again that have no answer.
fn ask_again(connection: &OwnedFd) -> io::Result<()> {
    let message = notify::resend();
    let mut pieces = [IoSlice::new(&[]); 2];
    let pieces = message.io_slices(&mut pieces).map_err(io::Error::other)?;
    match rustix::io::retry_on_intr(|| rustix::io::writev(connection, pieces)) {
        // It was unmounted while no server lived.
        Ok(_) | Err(Errno::NODEV | Errno::NOTCONN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Serves the requests of a channel until the end of the connection.
fn serve(
    adapter: &Adapter,
    channel: &OwnedFd,
    mut buffer: Buffer,
    rules: &Rules,
    busy_poll: Duration,
) -> io::Result<()> {
    loop {
        look_for_request(channel, busy_poll)?;
        if !serve_next(adapter, channel, &mut buffer, rules)? {
            return Ok(());
        }
    }
}

/// Reads a request, and serves it. Returns false at the end of the connection.
///
/// # Errors
/// The read failed.
pub(crate) fn serve_next(
    adapter: &Adapter,
    channel: &OwnedFd,
    buffer: &mut Buffer,
    rules: &Rules,
) -> io::Result<bool> {
    let Some(bytes) = next(channel, buffer, Errno::NODEV)? else {
        return Ok(false);
    };
    serve_one(adapter, channel, bytes, rules);
    Ok(true)
}

/// Looks for a request for a while, without sleep. Another thread may take it.
///
/// # Errors
/// The connection failed.
fn look_for_request(channel: &OwnedFd, busy_poll: Duration) -> io::Result<()> {
    if busy_poll.is_zero() {
        return Ok(());
    }
    let begun = Instant::now();
    while !is_readable(channel)? && begun.elapsed() < busy_poll {
        std::hint::spin_loop();
    }
    Ok(())
}

/// Serves a request.
fn serve_one(adapter: &Adapter, channel: &OwnedFd, bytes: &[u8], rules: &Rules) {
    match Request::parse(bytes, rules) {
        Ok(request) => {
            let reply = DeviceReply::new(channel.as_fd(), request.unique())
                .touching(adapter.has_takeover());
            adapter.serve_request(&request.header, request.operation, reply);
        }
        Err(refused) => refuse(channel, refused),
    }
}

/// Serves the requests that the kernel sends again to a server that takes over, and at most one
/// other, until there is none or the connection has ended. The kernel puts them before all
/// others. Nobody else serves meanwhile, so that the first of the others is seen.
///
/// # Errors
/// A read failed.
fn serve_resent(
    adapter: &Adapter,
    channel: &OwnedFd,
    buffer: &mut Buffer,
    rules: &Rules,
) -> io::Result<()> {
    // The caller of the last one may be killed between a look and a read, which would wait for
    // the next caller then. A server that dies here leaves the flag to the next one.
    set_nonblocking(channel, true)?;
    while let Some(bytes) = next(channel, buffer, Errno::AGAIN)? {
        let is_last = match Request::parse(bytes, rules) {
            // The kernel passes them before all others.
            Ok(request) => !request.is_resent() && request.operation.opcode().has_reply(),
            Err(_) => false,
        };
        serve_one(adapter, channel, bytes, rules);
        if is_last {
            break;
        }
    }
    set_nonblocking(channel, false)?;
    adapter.has_served_resent();
    Ok(())
}

fn set_nonblocking(channel: &OwnedFd, nonblocking: bool) -> io::Result<()> {
    let mut flags = rustix::fs::fcntl_getfl(channel)?;
    flags.set(OFlags::NONBLOCK, nonblocking);
    Ok(rustix::fs::fcntl_setfl(channel, flags)?)
}

/// Whether a request waits to be read.
fn is_readable(channel: &OwnedFd) -> io::Result<bool> {
    const NOW: Timespec = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut asked = [PollFd::new(channel, PollFlags::IN)];
    let polled = rustix::io::retry_on_intr(|| rustix::event::poll(&mut asked, Some(&NOW)))?;
    Ok(polled != 0)
}

/// Answers a request that is malformed, or that this version does not know.
fn refuse(channel: &OwnedFd, refused: Malformed) {
    tracing::debug!("a request is refused: {}", refused.error);
    if let Some(unique) = refused.unique {
        DeviceReply::new(channel.as_fd(), unique).refuse(refused.error.errno());
    }
}

/// Reads the next request. Returns `None` at the end of the connection, and if the read fails
/// with `last`.
fn next<'b>(
    channel: &OwnedFd,
    buffer: &'b mut Buffer,
    last: Errno,
) -> io::Result<Option<&'b [u8]>> {
    let n = loop {
        match rustix::io::read(channel, buffer.room()) {
            Ok(n) => break n,
            Err(error) if error == last => return Ok(None),
            // ENOENT: the caller was interrupted before the request was read.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
            // ECONNABORTED: it ended while a request was taken from the queue.
            Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    };
    Ok(Some(&buffer.room()[..n]))
}
