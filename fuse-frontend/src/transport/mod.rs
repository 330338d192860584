//! How requests come from the kernel, and replies go back: `-o transport=`.
//!
//! A transport negotiates with the kernel, reads requests, has
//! [`Adapter::serve_request`] serve them, and carries the replies. It knows nothing of the file
//! system; the handlers know nothing of it.
//!
//! * `auto`, the default: io_uring where the kernel offers it; otherwise `dev` serves.
//! * `uring`: the same, with a warning if `dev` serves.
//! * `dev`: reads and writes of `/dev/fuse`.
//! * `fuser`: the crate `fuser`, which parses and sends by itself. It has no STATX.
//!
//! [`virtio`] serves guests. It is no mount option, and knows the handlers through a
//! [`Door`](crate::door::Door) only.

pub(crate) mod dev;
mod fuser;
mod handshake;
mod threads;
pub(crate) mod uring;
pub mod virtio;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use pramfs_fuse_protocol::Negotiated;

use crate::adapter::Adapter;

/// A transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// The crate `fuser`.
    Fuser,
    /// Reads and writes of `/dev/fuse`.
    Dev,
    /// io_uring where it can be used, or else `/dev/fuse`.
    #[default]
    Auto,
    /// The same, with a warning if io_uring cannot be used.
    Uring,
}

impl Transport {
    /// Prepares for a transport while the process still has all rights. Returns whether
    /// CAP_SYS_NICE must be kept for it.
    pub fn needs_sys_nice(self) -> bool {
        self.may_use_io_uring() && uring::permit().is_err()
    }

    /// Whether it may come to io_uring, as far as is known before the mount.
    pub fn may_use_io_uring(self) -> bool {
        match self {
            Transport::Fuser | Transport::Dev => false,
            Transport::Auto => uring::may_be_switched_on(),
            Transport::Uring => true,
        }
    }
}

/// How to serve.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// The transport.
    pub transport: Transport,
    /// Serving threads.
    pub threads: usize,
    /// How long a thread of `dev` looks for the next request before it sleeps.
    pub busy_poll: Duration,
    /// Other users than the owner of the mount may access it.
    pub allow_other: bool,
}

/// What serving takes.
#[derive(Debug, Clone, Copy)]
pub struct Demand {
    /// Threads.
    pub threads: usize,
    /// Bytes of memory, at most.
    pub bytes: usize,
    /// Bytes of address space beside them.
    pub addresses: usize,
}

/// Bytes of a request or reply with data.
const REQUEST: usize = (1 << 20) + (2 << 12);
/// Bytes of the buffer of a thread of `fuser`.
const FUSER: usize = (16 << 20) + 4096;
/// Bytes of a thread's stack.
const STACK: usize = 2 << 20;

impl Settings {
    /// Returns what a session takes.
    pub fn demand(self) -> Demand {
        let of = |threads: usize, each: usize| Demand {
            threads,
            bytes: threads.saturating_mul(each + STACK),
            addresses: 0,
        };
        match self.transport {
            Transport::Fuser => of(self.threads, FUSER),
            // One buffer for requests, and one for reads that are copied.
            by if !by.may_use_io_uring() => of(self.threads, 2 * REQUEST),
            Transport::Dev | Transport::Auto | Transport::Uring => {
                let (threads, entries) = uring::demand(self);
                Demand {
                    addresses: entries.saturating_mul(REQUEST),
                    // Or by `dev`. The entry of a thread keeps what its last request needed,
                    // for a second.
                    ..of(threads.max(self.threads), 2 * REQUEST)
                }
            }
        }
    }
}

/// A connection that both sides have agreed upon, and that nobody serves yet.
pub struct Session {
    kind: Kind,
    /// Why another transport serves than the one that was asked for.
    pub instead: Option<String>,
}

enum Kind {
    Fuser(fuser::Session),
    Dev(dev::Session),
    Uring(uring::Session),
}

impl Session {
    /// Negotiates with the kernel.
    ///
    /// # Errors
    /// The connection failed, or the kernel is too old.
    pub fn negotiate(
        adapter: Arc<Adapter>,
        connection: OwnedFd,
        settings: Settings,
    ) -> io::Result<Session> {
        let (kind, instead) = match settings.transport {
            Transport::Fuser => {
                let session = fuser::Session::negotiate(adapter, connection, settings)?;
                (Kind::Fuser(session), None)
            }
            Transport::Dev => {
                let session = dev::Session::negotiate(adapter, connection, settings)?;
                (Kind::Dev(session), None)
            }
            Transport::Uring => uring::negotiate(adapter, connection, settings)?,
            Transport::Auto => {
                let (kind, why) = uring::negotiate(adapter, connection, settings)?;
                if let Some(why) = why {
                    tracing::info!("no io_uring, /dev/fuse is used: {why}");
                }
                (kind, None)
            }
        };
        Ok(Session { kind, instead })
    }

    /// Takes over a connection that another server has negotiated and left. The adapter knows what
    /// the kernel offers.
    pub fn resume(
        adapter: Arc<Adapter>,
        channels: Vec<OwnedFd>,
        agreed: Negotiated,
        busy_poll: Duration,
    ) -> Session {
        Session {
            kind: Kind::Dev(dev::Session::resume(adapter, channels, agreed).polling(busy_poll)),
            instead: None,
        }
    }

    /// Calls this once it serves: with requests that the kernel sends again, when they are answered.
    pub fn when_it_serves(mut self, tell: impl FnOnce() + Send + 'static) -> Session {
        if let Kind::Dev(session) = &mut self.kind {
            session.when_it_serves(Box::new(tell));
        }
        self
    }

    /// Returns what a later server needs to take the connection over, where one can: the
    /// descriptors, the first one that was mounted, and what was agreed upon.
    pub fn to_keep(&self) -> Option<(&[OwnedFd], Negotiated)> {
        match &self.kind {
            Kind::Dev(session) => Some(session.to_keep()),
            Kind::Fuser(_) | Kind::Uring(_) => None,
        }
    }

    /// Returns the name of the transport, as a mount option.
    pub fn name(&self) -> &'static str {
        match &self.kind {
            Kind::Fuser(_) => "fuser",
            Kind::Dev(_) => "dev",
            Kind::Uring(_) => "uring",
        }
    }

    /// Whether the threads make system calls of io_uring.
    pub fn uses_io_uring(&self) -> bool {
        matches!(self.kind, Kind::Uring(_))
    }

    /// Serves until the file system is unmounted or the connection fails. All threads have
    /// ended when this returns `Ok`. After an error, some may still serve: the caller ends the
    /// process.
    ///
    /// # Errors
    /// The connection or a thread failed.
    pub fn run(self) -> io::Result<()> {
        match self.kind {
            Kind::Fuser(session) => session.run(),
            Kind::Dev(session) => session.run(),
            Kind::Uring(session) => session.run(),
        }
    }
}
