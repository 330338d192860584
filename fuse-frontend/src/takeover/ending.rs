//! The end of the supervisor, in bounded time.
//!
//! A server that was killed may not end: a thread of it may wait for an answer of its own mount.
//! That wait ends with the connection. So where the mount has failed, the connection is aborted
//! first.

use std::time::{Duration, Instant};

use super::child::Server;
use super::messages::Held;
use crate::kernel;

/// How long servers may take to end.
const GRACE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(2);

/// Ends a connection, so that programs get errors instead of waiting.
pub(super) fn abort(held: Held) {
    if let (Some(connection), minor) = (held.channels.first(), held.minor)
        && minor != 0
        && let Err(error) = kernel::abort(connection, minor)
    {
        // It ends when the servers have ended.
        tracing::debug!("the connection cannot be aborted: {error}");
    }
}

/// Kills servers, and waits for their ends. Those that do not end in time are left alone.
pub(super) fn end(servers: impl IntoIterator<Item = Server>) {
    let mut left: Vec<Server> = servers.into_iter().collect();
    for server in &mut left {
        server.kill();
    }
    let begun = Instant::now();
    loop {
        left.retain_mut(|server| server.try_wait().is_none());
        if left.is_empty() {
            return;
        }
        if begun.elapsed() > GRACE {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    for server in left {
        tracing::warn!("server {} is killed, and has not ended yet", server.pid());
    }
}
