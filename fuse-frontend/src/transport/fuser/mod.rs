//! The transport `fuser`: the crate `fuser` 0.18 parses requests and packs replies.
//!
//! What it cannot pass on is missing here: STATX, TMPFILE, SYNCFS, the kill bits of SETATTR
//! and OPEN, times of negative entries.

mod filesystem;
mod reply;
mod unpack;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use fuser::{Config, SessionACL};

use super::Settings;
use crate::adapter::Adapter;
use filesystem::Server;

/// A connection that both sides have agreed upon.
pub(super) struct Session(fuser::Session<Server>);

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
        let acl = match settings.allow_other {
            true => SessionACL::All,
            false => SessionACL::Owner,
        };
        let mut config = Config::default();
        config.n_threads = Some(settings.threads);
        config.clone_fd = settings.threads > 1;
        fuser::Session::from_fd(Server(adapter), connection, acl, config).map(Session)
    }

    /// Serves until the end.
    ///
    /// # Errors
    /// The connection failed.
    pub(super) fn run(self) -> io::Result<()> {
        unless_unmounted(self.0.run())
    }
}

/// Passes on the end of a session, except for the error of a normal unmount.
///
/// A thread that has taken a request from the queue while the connection ends gets
/// ECONNABORTED from its read; `fuser` takes only ENODEV for the end. The kernel gives
/// this error after it has ended the connection, and to nobody else, since the session
/// does not negotiate `FUSE_ABORT_ERROR`.
fn unless_unmounted(served: io::Result<()>) -> io::Result<()> {
    match served {
        Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_ended_while_reading_request_is_unmounted() {
        let ended = |number| unless_unmounted(Err(io::Error::from_raw_os_error(number)));
        assert!(ended(libc::ECONNABORTED).is_ok());
        assert_eq!(
            ended(libc::EIO).unwrap_err().raw_os_error(),
            Some(libc::EIO)
        );
    }
}
