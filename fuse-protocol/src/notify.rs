//! Notifications: what a server says to the kernel without being asked.
//!
//! A notification about a node or name may wait for locks that a request holds. So none
//! may be sent from a handler whose caller could hold them.

use zerocopy::IntoBytes;

use crate::data::Data;
use crate::flags::InvalEntryFlags;
use crate::message::{Message, NoRoom};
use crate::wire::*;

wire_enum! {
    /// The number of a notification, in the place of an error.
    NotifyCode: i32 {
        /// Wakes those who poll.
        Poll = "FUSE_NOTIFY_POLL", 1;
        /// Invalidates a node.
        InvalInode = "FUSE_NOTIFY_INVAL_INODE", 2;
        /// Invalidates a name.
        InvalEntry = "FUSE_NOTIFY_INVAL_ENTRY", 3;
        /// Stores in the page cache.
        Store = "FUSE_NOTIFY_STORE", 4;
        /// Asks for bytes of the page cache.
        Retrieve = "FUSE_NOTIFY_RETRIEVE", 5;
        /// Says that a name is gone.
        Delete = "FUSE_NOTIFY_DELETE", 6;
        /// Asks for requests without an answer again.
        Resend = "FUSE_NOTIFY_RESEND", 7, 40;
        /// Invalidates all names.
        IncEpoch = "FUSE_NOTIFY_INC_EPOCH", 8, 44;
        /// Drops cached nodes.
        Prune = "FUSE_NOTIFY_PRUNE", 9, 45;
    }
}

impl NotifyCode {
    /// The minor version from which on the kernel knows it.
    #[must_use]
    pub const fn since(self) -> u32 {
        match self {
            NotifyCode::Poll => 11,
            NotifyCode::InvalInode | NotifyCode::InvalEntry => 12,
            NotifyCode::Store | NotifyCode::Retrieve => 15,
            NotifyCode::Delete => 18,
            NotifyCode::Resend => 40,
            NotifyCode::IncEpoch => 44,
            NotifyCode::Prune => 45,
        }
    }
}

fn message<'a>(code: NotifyCode) -> Message<'a> {
    Message::new(0, code.number())
}

fn len32(len: usize) -> Result<u32, NoRoom> {
    u32::try_from(len).map_err(|_| NoRoom {
        need: len,
        room: u32::MAX as usize,
    })
}

/// Wakes those who poll with the handle `kh` of a POLL request.
#[must_use]
pub fn poll(kh: u64) -> Message<'static> {
    message(NotifyCode::Poll).with(&NotifyPollWakeupOut { kh })
}

/// Invalidates the attributes of a node and `len` bytes of its page cache from `off` on. A
/// negative `off` leaves the page cache alone; with `len` 0 or less the range has no end.
#[must_use]
pub fn inval_inode(ino: u64, off: i64, len: i64) -> Message<'static> {
    message(NotifyCode::InvalInode).with(&NotifyInvalInodeOut { ino, off, len })
}

/// Invalidates a name.
///
/// # Errors
/// [`NoRoom`] for a name that a message cannot hold.
pub fn inval_entry(
    parent: u64,
    name: &[u8],
    flags: InvalEntryFlags,
) -> Result<Message<'_>, NoRoom> {
    let namelen = len32(name.len())?;
    let out = NotifyInvalEntryOut {
        parent,
        namelen,
        flags,
    };
    message(NotifyCode::InvalEntry).with(&out).with_name(name)
}

/// Says that the name of `child` is gone.
///
/// # Errors
/// [`NoRoom`] for a name that a message cannot hold.
pub fn delete(parent: u64, child: u64, name: &[u8]) -> Result<Message<'_>, NoRoom> {
    let namelen = len32(name.len())?;
    let out = NotifyDeleteOut {
        parent,
        child,
        namelen,
        padding: 0,
    };
    message(NotifyCode::Delete).with(&out).with_name(name)
}

/// Stores bytes in the page cache of a node.
///
/// # Errors
/// [`NoRoom`] for more bytes than a message can have.
pub fn store<'a>(
    nodeid: u64,
    offset: u64,
    data: impl Into<Data<'a>>,
) -> Result<Message<'a>, NoRoom> {
    let data = data.into();
    let size = len32(data.len())?;
    let out = NotifyStoreOut {
        nodeid,
        offset,
        size,
        padding: 0,
    };
    message(NotifyCode::Store).with(&out).with_data(data)
}

/// Asks for bytes of the page cache of a node. They come in a request NOTIFY_REPLY whose
/// number is `notify_unique`.
#[must_use]
pub fn retrieve(notify_unique: u64, nodeid: u64, offset: u64, size: u32) -> Message<'static> {
    message(NotifyCode::Retrieve).with(&NotifyRetrieveOut {
        notify_unique,
        nodeid,
        offset,
        size,
        padding: 0,
    })
}

/// Asks for all requests that have no answer, once more: what a server does that takes a
/// connection over. They come with [`UNIQUE_RESEND`](crate::numbers::UNIQUE_RESEND).
#[must_use]
pub fn resend() -> Message<'static> {
    message(NotifyCode::Resend)
}

/// Makes the kernel ask for every name again.
#[must_use]
pub fn inc_epoch() -> Message<'static> {
    message(NotifyCode::IncEpoch)
}

/// Drops cached nodes that are not in use.
///
/// # Errors
/// [`NoRoom`] for more nodes than a message can have.
pub fn prune(nodes: &[u64]) -> Result<Message<'_>, NoRoom> {
    let count = len32(nodes.len())?;
    let out = NotifyPruneOut {
        count,
        ..NotifyPruneOut::default()
    };
    let nodes = Data::Whole(nodes.as_bytes());
    message(NotifyCode::Prune).with(&out).with_data(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Length, code, number 0, and the body.
    fn parts(message: &Message<'_>) -> (u32, i32, u64, Vec<u8>) {
        let header = message.header();
        let body = message.to_vec()[16..].to_vec();
        assert_eq!(header.len as usize, 16 + body.len());
        (header.len, header.error, header.unique, body)
    }

    #[test]
    fn names_end_with_a_nul_that_their_length_leaves_out() {
        let message = inval_entry(5, b"name", InvalEntryFlags::EXPIRE_ONLY).unwrap();
        let (len, code, unique, body) = parts(&message);
        assert_eq!((len, code, unique), (16 + 16 + 5, 3, 0));
        assert_eq!(body[8..12], 4u32.to_ne_bytes());
        assert_eq!(body[12..16], 1u32.to_ne_bytes());
        assert_eq!(&body[16..], b"name\0");
        let message = delete(5, 6, b"n").unwrap();
        let (len, code, _, body) = parts(&message);
        assert_eq!((len, code), (16 + 24 + 2, 6));
        assert_eq!(&body[24..], b"n\0");
    }

    #[test]
    fn notifications_of_nodes_have_the_kernels_lengths() {
        let of = |message: &Message<'_>| {
            let (len, code, unique, _) = parts(message);
            assert_eq!(unique, 0);
            (len, code)
        };
        assert_eq!(of(&poll(1)), (24, 1));
        assert_eq!(of(&inval_inode(1, -1, 0)), (40, 2));
        assert_eq!(of(&store(1, 2, &b"abc"[..]).unwrap()), (43, 4));
        assert_eq!(of(&retrieve(1, 2, 3, 4)), (48, 5));
        assert_eq!(of(&resend()), (16, 7));
        assert_eq!(of(&inc_epoch()), (16, 8));
        assert_eq!(of(&prune(&[1, 2]).unwrap()), (48, 9));
    }

    #[test]
    fn sizes_count_the_data_alone() {
        let message = store(1, 2, &b"abc"[..]).unwrap();
        let (.., body) = parts(&message);
        assert_eq!(body[16..20], 3u32.to_ne_bytes());
        let message = prune(&[7, 8]).unwrap();
        let (.., body) = parts(&message);
        assert_eq!(body[..4], 2u32.to_ne_bytes());
        assert_eq!(body[24..], 8u64.to_ne_bytes());
    }

    #[test]
    fn table_and_versions_agree() {
        for (code, row) in NotifyCode::ALL.iter().zip(CONSTANTS) {
            assert_eq!(code.since().max(38), row.since, "{code:?}");
        }
    }
}
