//! How requests come from the kernel, and replies go back: `-o transport=`.
//!
//! A transport negotiates with the kernel, reads requests, has
//! [`Adapter::serve_request`] serve them, and carries the replies. It knows nothing of the file
//! system; the handlers know nothing of it.
//!
//! * `fuser`: the crate `fuser`, which parses and sends by itself. It has no STATX.
//! * `dev`: reads and writes of `/dev/fuse`.

mod dev;
mod fuser;
mod handshake;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::adapter::Adapter;

/// A transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// The crate `fuser`.
    #[default]
    Fuser,
    /// Reads and writes of `/dev/fuse`.
    Dev,
}

/// How to serve.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// The transport.
    pub transport: Transport,
    /// Serving threads.
    pub threads: usize,
    /// Other users than the owner of the mount may access it.
    pub allow_other: bool,
}

/// A connection that both sides have agreed upon, and that nobody serves yet.
pub struct Session(Kind);

enum Kind {
    Fuser(fuser::Session),
    Dev(dev::Session),
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
        Ok(Session(match settings.transport {
            Transport::Fuser => {
                Kind::Fuser(fuser::Session::negotiate(adapter, connection, settings)?)
            }
            Transport::Dev => Kind::Dev(dev::Session::negotiate(adapter, connection, settings)?),
        }))
    }

    /// Serves until the file system is unmounted or the connection fails. All threads have
    /// ended when this returns.
    ///
    /// # Errors
    /// The connection failed.
    pub fn run(self) -> io::Result<()> {
        match self.0 {
            Kind::Fuser(session) => session.run(),
            Kind::Dev(session) => session.run(),
        }
    }
}
