//! The transport `dev`: reads requests from `/dev/fuse`, and writes replies to it.
//!
//! Each serving thread has a channel of its own (a clone of the descriptor), so that two
//! threads do not contend for the list of requests that wait for a reply. A reply is one
//! writev(2), whose data may lie in the medium.

mod buffer;
mod reply;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use pramfs_fuse_protocol::flags::InitFlags;
use pramfs_fuse_protocol::{Malformed, Negotiated, Request, Rules};
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
    /// One for each thread.
    channels: Vec<OwnedFd>,
    agreed: Negotiated,
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
        Ok(Session::new(adapter, connection, agreed, settings.threads))
    }

    /// Opens a channel for each thread; for fewer threads if that fails.
    pub(super) fn new(
        adapter: Arc<Adapter>,
        connection: OwnedFd,
        agreed: Negotiated,
        threads: usize,
    ) -> Session {
        let mut channels = Vec::with_capacity(threads);
        for _ in 1..threads {
            match pramfs_kernel_sys::fuse::clone_connection(&connection) {
                Ok(channel) => channels.push(channel),
                Err(error) => tracing::warn!("no channel for a serving thread: {error}"),
            }
        }
        channels.push(connection);
        Session {
            adapter,
            channels,
            agreed,
        }
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
        let (mut count, mut why) = (0, None);
        for (number, channel) in self.channels.into_iter().enumerate() {
            let adapter = Arc::clone(&self.adapter);
            let name = format!("fuse-dev-{number}");
            let started = match Buffer::new(rules.max_request) {
                Ok(buffer) => {
                    threads.start(name, move || serve(&adapter, &channel, buffer, &rules))
                }
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

/// Serves the requests of a channel until the end of the connection.
fn serve(
    adapter: &Adapter,
    channel: &OwnedFd,
    mut buffer: Buffer,
    rules: &Rules,
) -> io::Result<()> {
    while let Some(bytes) = next(channel, &mut buffer)? {
        let refused = match Request::parse(bytes, rules) {
            Ok(request) => {
                let reply = DeviceReply::new(channel.as_fd(), request.unique());
                adapter.serve_request(&request.header, request.operation, reply);
                continue;
            }
            Err(refused) => refused,
        };
        refuse(channel, refused);
    }
    Ok(())
}

/// Answers a request that is malformed, or that this version does not know.
fn refuse(channel: &OwnedFd, refused: Malformed) {
    tracing::debug!("a request is refused: {}", refused.error);
    if let Some(unique) = refused.unique {
        DeviceReply::new(channel.as_fd(), unique).refuse(refused.error.errno());
    }
}

/// Reads the next request. Returns `None` at the end of the connection.
fn next<'b>(channel: &OwnedFd, buffer: &'b mut Buffer) -> io::Result<Option<&'b [u8]>> {
    let n = loop {
        match rustix::io::read(channel, buffer.room()) {
            Ok(n) => break n,
            // ENOENT: the caller was interrupted before the request was read.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
            // ECONNABORTED: it ended while a request was taken from the queue.
            Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    };
    Ok(Some(&buffer.room()[..n]))
}
