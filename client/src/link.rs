//! The connections to servers: one for each control socket, shared by all files.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::Mutex;
use pramfs_control::{Connection, ControlError, DIRECTORY, Directory, Refusal, TicketReply};
use rustix::process::{Gid, Uid, getegid, geteuid};

use crate::descriptors::{Kept, are_given_up, keep};
use crate::error::{Error, Result};

/// A connection to a server. It ends with the first failure; the next file connects anew.
#[derive(Debug)]
pub(crate) struct Link {
    /// The process that connected. A forked child shares the socket and must not use it.
    process: u32,
    user: User,
    /// `None` once it has failed.
    connection: Mutex<Option<(Kept, Connection)>>,
}

/// The user and the group of a connection. The server learns them when the process connects, and
/// compares them with those of the process that has asked for the ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct User {
    user: Uid,
    group: Gid,
}

impl User {
    /// The calling thread as it is now: a program may change it.
    fn now() -> User {
        User {
            user: geteuid(),
            group: getegid(),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // In a forked child the number of the socket may be another file.
        if self.process != std::process::id() && are_given_up() {
            std::mem::forget(self.connection.get_mut().take());
        }
    }
}

type Links = Mutex<HashMap<(PathBuf, String), Arc<Link>>>;

static LINKS: LazyLock<Links> = LazyLock::new(Links::default);

impl Link {
    /// Returns the link to the socket that a ticket names.
    pub(crate) fn to(directory: Option<&PathBuf>, ticket: &TicketReply) -> Result<Arc<Link>> {
        let path = directory.cloned().unwrap_or_else(|| DIRECTORY.into());
        let key = (path, ticket.socket.clone());
        if let Some(link) = LINKS.lock().get(&key)
            && link.is_usable()
        {
            return Ok(Arc::clone(link));
        }
        let Some(opened) = Directory::open(&key.0)? else {
            return Err(Error::ServerGone);
        };
        let user = User::now();
        let Some(connection) = Connection::open(&opened, &ticket.socket)? else {
            return Err(Error::ServerGone);
        };
        let (kept, connection) = connection.kept(keep).map_err(|source| ControlError::Os {
            what: "cannot keep a descriptor",
            source,
        })?;
        let link = Arc::new(Link {
            process: std::process::id(),
            user,
            connection: Mutex::new(Some((kept, connection))),
        });
        LINKS.lock().insert(key, Arc::clone(&link));
        Ok(link)
    }

    /// Whether further files can use it.
    fn is_usable(&self) -> bool {
        // A busy connection has not failed yet.
        self.process == std::process::id()
            && self.user == User::now()
            && self.connection.try_lock().is_none_or(|c| c.is_some())
    }

    /// Asks the server.
    pub(crate) fn ask<T>(
        &self,
        ask: impl FnOnce(&Connection) -> Result<T, ControlError>,
    ) -> Result<T> {
        if self.process != std::process::id() {
            return Err(Error::Refused {
                reason: Refusal::Ended,
                message: "the file was opened before this process was forked".into(),
            });
        }
        let mut connection = self.connection.lock();
        let asked = ask(&connection.as_ref().ok_or(Error::ServerGone)?.1);
        if let Err(error) = &asked
            && !matches!(error, ControlError::Refused { .. })
        {
            // An answer that comes later would be taken for that of the next request.
            *connection = None;
        }
        Ok(asked?)
    }
}

/// Closes the connections to all servers. Leases that are left ask nothing more; further files connect
/// anew. For a library inside a program that gives its rights away: the server knows a connection by
/// the user who has made it.
pub fn close_connections() {
    let links = std::mem::take(&mut *LINKS.lock());
    for link in links.into_values() {
        // A forked child shares the socket, and must not use it.
        if link.process == std::process::id() {
            *link.connection.lock() = None;
        }
    }
}

/// Waits for what the kernel tells the server late, a quarter of a second in all.
const LATE: [Duration; 8] = {
    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }
    [ms(1), ms(2), ms(4), ms(8), ms(16), ms(32), ms(64), ms(128)]
};

/// Asks the server, and again a limited number of times after an error that passes.
pub(crate) fn asked_again<T>(
    ask: impl Fn() -> Result<T>,
    passes: impl Fn(&Error) -> bool,
) -> Result<T> {
    let mut answer = ask();
    for wait in LATE {
        if !answer.as_ref().is_err_and(&passes) {
            break;
        }
        std::thread::sleep(wait);
        answer = ask();
    }
    answer
}
