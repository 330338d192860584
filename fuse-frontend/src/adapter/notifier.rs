//! Notifications: what the server tells the kernel without being asked.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use pramfs_fuse_protocol::notify;

/// The connection, for notifications. Clones share it. Any transport may serve it, but none to
/// guests: their kernels take no notifications.
#[derive(Debug, Clone)]
pub struct Notifier(Option<Arc<OwnedFd>>);

impl Notifier {
    /// Notifies over a connection.
    pub fn new(connection: OwnedFd) -> Notifier {
        Notifier(Some(Arc::new(connection)))
    }

    /// Notifies nobody.
    pub fn of_guest() -> Notifier {
        Notifier(None)
    }

    /// Whether there is a kernel that takes notifications.
    pub fn is_heard(&self) -> bool {
        self.0.is_some()
    }

    /// Makes the kernel drop the attributes of a node and `len` bytes of its page cache from
    /// `from` on. A negative `from` leaves the page cache alone; with `len` 0 the range has no
    /// end.
    ///
    /// This waits for page locks, and so perhaps for requests.
    ///
    /// # Errors
    /// ENOENT if the kernel does not know the node. `Unsupported` for guests.
    pub fn invalidate(&self, node: u64, from: i64, len: i64) -> io::Result<()> {
        let connection = self.0.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let message = notify::inval_inode(node, from, len);
        let mut pieces = [IoSlice::new(&[]); 2];
        let pieces = message.io_slices(&mut pieces).map_err(io::Error::other)?;
        rustix::io::writev(&**connection, pieces)?;
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Notifications that go nowhere.
    pub(crate) fn nowhere() -> Notifier {
        let null = std::fs::File::options().write(true).open("/dev/null");
        Notifier::new(null.unwrap().into())
    }

    #[test]
    fn notification_is_one_message() {
        let (read, write) = std::io::pipe().unwrap();
        Notifier::new(write.into()).invalidate(7, -1, 0).unwrap();
        let mut message = [0; 64];
        let n = rustix::io::read(&read, &mut message).unwrap();
        assert_eq!(message[..n], *notify::inval_inode(7, -1, 0).to_vec());
    }
}
