//! Takeover (`-o takeover=on`): the server dies, and the next one goes on.
//!
//! The kernel fails the requests of a connection's descriptor when its last copy is closed, and
//! ends the connection with the last descriptor. So a second process, the [`supervisor`], holds a
//! copy of each. It starts the server, and another one when that dies. The kernel sends
//! unanswered requests again when the new server asks for them.
//!
//! * [`supervisor`] and `child`: the process that holds the descriptors and starts servers;
//! * [`link`]: the server's end of the socket between the two, [`messages`] what passes over it;
//! * [`state`]: what a later server must know of the connection, as bytes with a version;
//! * [`memory`]: what must survive a server beside the region, in memory of the supervisor;
//! * [`resume`]: the start of a later server.
//!
//! Invariant: the supervisor reads nothing that comes from the kernel, a user of the mount or the
//! region.

use std::io;

use pramfs_fuse_protocol::NegotiationError;
use pramfs_fuse_protocol::flags::InitFlags;

mod child;
mod death;
mod ending;
pub(crate) mod first;
pub mod link;
pub mod memory;
pub mod messages;
pub mod resume;
pub mod state;
pub mod supervisor;

/// Descriptors of a connection that fit into a message: one for each thread.
pub const MAX_CHANNELS: usize = crate::options::MAX_THREADS;

/// Deaths of servers within a minute that end a mount, by default.
pub const DEATHS: usize = 5;

/// Explains why a kernel cannot be taken over from, if that is why the negotiation failed.
pub(crate) fn why_refused(error: &io::Error) -> Option<&'static str> {
    let error: &NegotiationError = error.get_ref()?.downcast_ref()?;
    match error {
        NegotiationError::Missing(flags) if flags.contains(InitFlags::HAS_RESEND) => Some(
            "takeover=on needs Linux 6.9 or newer: this kernel does not send unanswered requests to another server (FUSE_HAS_RESEND); leave takeover=on out",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_without_resend_is_named() {
        let why = |error| {
            let error = io::Error::new(io::ErrorKind::Unsupported, error);
            why_refused(&error)
        };
        let missing = InitFlags::HAS_RESEND | InitFlags::NO_OPEN_SUPPORT;
        let said = why(NegotiationError::Missing(missing)).unwrap();
        assert!(said.contains("Linux 6.9"), "{said}");
        let other = NegotiationError::Missing(InitFlags::NO_OPEN_SUPPORT);
        assert_eq!(why(other), None);
        assert_eq!(why_refused(&io::ErrorKind::NotFound.into()), None);
    }
}
