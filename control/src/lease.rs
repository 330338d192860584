//! Leases: the messages about direct access to files of a mount, and what a server does
//! for them.

use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::ControlError;
use crate::message::{Refusal, Reply};

/// Largest number of extents in one answer: each takes at most 80 bytes of a message.
pub(crate) const MOST_EXTENTS: usize = 40;
/// Largest number of leases in one answer: each takes at most 240 bytes.
pub(crate) const MOST_LEASES: usize = 16;

/// A right to one lease, for one use within a few seconds by the user who asked for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Ticket(pub [u8; 16]);

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A log must not show a ticket that can still be used.
impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket(..)")
    }
}

impl From<Ticket> for String {
    fn from(ticket: Ticket) -> String {
        ticket.to_string()
    }
}

impl FromStr for Ticket {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Ticket, &'static str> {
        let digits = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
        let mut ticket = [0; 16];
        if text.len() != 2 * ticket.len() {
            return Err("a ticket has 32 digits");
        }
        for (byte, pair) in ticket.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let (Some(high), Some(low)) = (digits(pair[0]), digits(pair[1])) else {
                return Err("a ticket has hexadecimal digits");
            };
            *byte = high << 4 | low;
        }
        Ok(Ticket(ticket))
    }
}

impl TryFrom<String> for Ticket {
    type Error = &'static str;
    fn try_from(text: String) -> Result<Ticket, &'static str> {
        text.parse()
    }
}

/// The answer of the ioctl on an open file: a ticket, and the name of the socket to redeem it at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TicketReply {
    /// The ticket.
    pub ticket: Ticket,
    /// Name of the control socket in its directory.
    pub socket: String,
}

impl TicketReply {
    /// Bytes of the answer.
    pub const SIZE: usize = 80;

    /// Encodes it. `None` if the name of the socket is too long.
    pub fn encode(&self) -> Option<[u8; TicketReply::SIZE]> {
        let mut bytes = [0; TicketReply::SIZE];
        bytes[..16].copy_from_slice(&self.ticket.0);
        let name = self.socket.as_bytes();
        // A NUL ends the name.
        bytes[16..TicketReply::SIZE - 1]
            .get_mut(..name.len())?
            .copy_from_slice(name);
        Some(bytes)
    }

    /// Decodes it.
    ///
    /// # Errors
    /// [`ControlError::Malformed`] if the name is not that of a control socket.
    pub fn decode(bytes: &[u8; TicketReply::SIZE]) -> Result<TicketReply, ControlError> {
        let (ticket, name) = bytes.split_at(16);
        let end = name.iter().position(|byte| *byte == 0);
        let name = std::str::from_utf8(&name[..end.unwrap_or(name.len())]);
        let is_name = |name: &&str| name.ends_with(".sock") && !name.contains('/');
        let (Ok(ticket), Some(socket)) = (ticket.try_into(), name.ok().filter(is_name)) else {
            return Err(ControlError::Malformed("the name of the socket".into()));
        };
        Ok(TicketReply {
            ticket: Ticket(ticket),
            socket: socket.to_owned(),
        })
    }
}

/// Identifies a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LeaseKey {
    /// Slot of the lease table.
    pub slot: u32,
    /// Distinguishes the leases that the slot has held.
    pub id: u64,
}

/// What becomes of a lease to read when a program opens the file in a way that lets it store through
/// a mapping of the mount. Such a store reaches the medium at the write-back of its page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Coherence {
    /// Nothing: the holder sees each store at its write-back.
    #[default]
    WriteBack,
    /// The holder reads through the mount from then on: it knows no blocks any more, and is told
    /// none ([`Refusal::Ended`](crate::Refusal::Ended)).
    Recalled,
    /// The program gets the file without the page cache, and cannot map it with `MAP_SHARED`: the
    /// holder has mappings, which cannot be taken from it.
    Kept,
}

/// Consecutive blocks of a file that are consecutive in the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Offset in the file, bytes.
    #[serde(rename = "f")]
    pub file_offset: u64,
    /// Offset in the region, bytes.
    #[serde(rename = "r")]
    pub region_offset: u64,
    /// Length, bytes.
    #[serde(rename = "n")]
    pub len: u64,
}

/// The blocks of a leased file at one moment. Ranges without an extent read as zeros.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocks {
    /// The layout counter that belongs to them.
    pub layout: u64,
    /// Size of the file, bytes.
    pub size: u64,
    /// Offset in the file from which they are complete.
    pub start: u64,
    /// Offset in the file up to which they are complete.
    pub end: u64,
    /// In ascending order.
    pub extents: Vec<Extent>,
}

/// A granted lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// The lease.
    pub lease: LeaseKey,
    /// The uuid of the file system, as two numbers.
    pub filesystem: (u64, u64),
    /// Number of the inode.
    pub inode: u64,
    /// Its generation.
    pub generation: u64,
    /// Block size, bytes.
    pub block_size: u64,
    /// Offset in the region of the two words that the reader watches: the layout counter
    /// and the size.
    pub view: u64,
    /// Offset in the region of the word in which the holder notes that it has stored to the
    /// file. Zero in the answer of a server without leases to write.
    #[serde(default)]
    pub stored: u64,
    /// What was asked for. A server that does not know of it answers with the default.
    #[serde(default)]
    pub coherence: Coherence,
    /// The first blocks of the file.
    pub blocks: Blocks,
}

/// Where the holder of a lease may append without a request, in a file that it alone has leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Distinguishes it from all other windows.
    pub number: u64,
    /// Size of the file, bytes.
    pub start: u64,
    /// Offset in the file of the end of its blocks, bytes.
    pub limit: u64,
    /// Keys the checks of the ends that the holder stores.
    pub key: u64,
}

/// A lease, for listings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRow {
    /// The lease.
    pub lease: LeaseKey,
    /// Number of the inode.
    pub inode: u64,
    /// Process that asked for it.
    pub pid: u32,
    /// User of that process.
    pub uid: u32,
    /// It allows stores.
    #[serde(default)]
    pub write: bool,
    /// Bytes of the file that it keeps allocated.
    pub bytes: u64,
    /// Time of the grant, seconds since the epoch.
    pub granted_sec: i64,
    /// It outlived the server that granted it.
    pub adopted: bool,
    /// Its requests have been ended.
    pub revoked: bool,
}

/// The process at the other end of a connection, as the kernel reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its groups: that of the process first, and the supplementary ones, which are not asked
    /// for if it is root or the user of the server.
    pub groups: Vec<u32>,
}

/// Why a server refuses a request about leases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The kind of reason.
    pub reason: Refusal,
    /// The reason, in words.
    pub message: String,
}

impl Refused {
    /// For `map_err` and `ok_or_else`.
    pub fn new(reason: Refusal, message: impl Into<String>) -> Refused {
        Refused {
            reason,
            message: message.into(),
        }
    }
}

impl From<Refused> for Reply {
    fn from(Refused { reason, message }: Refused) -> Reply {
        Reply::Refused { reason, message }
    }
}

/// What a server does for requests about leases. The calls come from one thread.
pub trait Leases: fmt::Debug + Send + Sync {
    /// Grants the lease of a ticket. For one to write, `coherence` changes nothing. Calls `send`
    /// with the answer and the descriptor of the lease, which does not end before `send` has
    /// returned.
    ///
    /// # Errors
    /// The reason for a refusal. `send` has not been called then.
    fn grant(
        &self,
        ticket: Ticket,
        coherence: Coherence,
        peer: &Peer,
        most: usize,
        send: &mut dyn FnMut(&Granted, BorrowedFd<'_>),
    ) -> Result<LeaseKey, Refused>;

    /// Changes what becomes of a lease to read: [`Kept`](Coherence::Kept) before its holder maps the
    /// file.
    ///
    /// # Errors
    /// The reason for a refusal: [`Refusal::Busy`] if a program has the file open in such a way.
    fn cohere(&self, lease: LeaseKey, coherence: Coherence) -> Result<(), Refused>;

    /// Returns blocks from an offset on, at most `most` extents.
    ///
    /// # Errors
    /// The reason for a refusal.
    fn blocks(&self, lease: LeaseKey, offset: u64, most: usize) -> Result<Blocks, Refused>;

    /// Fills holes and unwritten blocks of a file that is leased to write, so that its holder
    /// can store to all of a range. If `ahead`, also allocates what lies past the end of the
    /// file, and leaves it undefined. Returns how far; the caller asks again for the rest.
    ///
    /// # Errors
    /// The reason for a refusal.
    fn fill(&self, lease: LeaseKey, range: Range<u64>, ahead: bool) -> Result<u64, Refused>;

    /// Opens an append window with room for a number of bytes, for a file that is leased to
    /// write. Closes the one before. `opens` says how often the client has the file open.
    ///
    /// # Errors
    /// The reason for a refusal: [`Refusal::Busy`] if the file has another lease, or is open
    /// elsewhere.
    fn window(&self, lease: LeaseKey, bytes: u64, opens: u32) -> Result<Window, Refused>;

    /// Ends the leases that no process holds any more.
    fn end_released(&self);

    /// Returns leases from a slot on, at most `most`, and the next slot.
    fn list(&self, from: u32, most: usize) -> (Vec<LeaseRow>, Option<u32>);

    /// Ends the requests of a lease.
    ///
    /// # Errors
    /// The reason for a refusal.
    fn revoke(&self, lease: LeaseKey) -> Result<(), Refused>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticket_reply_survives_encoding() {
        let reply = TicketReply {
            ticket: Ticket(std::array::from_fn(|i| i as u8 * 17)),
            socket: format!("file-{0}-{0}-{1}.sock", u32::MAX, u64::MAX),
        };
        let bytes = reply.encode().unwrap();
        assert_eq!(TicketReply::decode(&bytes).unwrap(), reply);
        assert_eq!(reply.ticket.to_string().parse(), Ok(reply.ticket));
    }

    #[test]
    fn ticket_reply_with_path_is_refused() {
        for socket in ["../x.sock", "x", "", &"a".repeat(63)] {
            let reply = TicketReply {
                ticket: Ticket([1; 16]),
                socket: socket.into(),
            };
            let bytes = reply.encode().unwrap();
            assert!(TicketReply::decode(&bytes).is_err(), "{socket}");
        }
        let too_long = TicketReply {
            ticket: Ticket([1; 16]),
            socket: "a".repeat(64),
        };
        assert_eq!(too_long.encode(), None);
    }

    #[test]
    fn largest_answers_fit_message() {
        let extent = Extent {
            file_offset: u64::MAX,
            region_offset: u64::MAX,
            len: u64::MAX,
        };
        let lease = LeaseKey {
            slot: u32::MAX,
            id: u64::MAX,
        };
        let blocks = Blocks {
            layout: u64::MAX,
            size: u64::MAX,
            start: u64::MAX,
            end: u64::MAX,
            extents: vec![extent; MOST_EXTENTS],
        };
        let granted = Granted {
            lease,
            filesystem: (u64::MAX, u64::MAX),
            inode: u64::MAX,
            generation: u64::MAX,
            block_size: 4096,
            view: u64::MAX,
            stored: u64::MAX,
            coherence: Coherence::WriteBack,
            blocks,
        };
        let row = LeaseRow {
            lease,
            inode: u64::MAX,
            pid: u32::MAX,
            uid: u32::MAX,
            write: false,
            bytes: u64::MAX,
            granted_sec: i64::MIN,
            adopted: false,
            revoked: false,
        };
        crate::message::encode(&Reply::Granted(Box::new(granted))).unwrap();
        let window = Window {
            number: u64::MAX,
            start: u64::MAX,
            limit: u64::MAX,
            key: u64::MAX,
        };
        crate::message::encode(&Reply::Window(window)).unwrap();
        let leases = vec![row; MOST_LEASES];
        let next = Some(u32::MAX);
        crate::message::encode(&Reply::Leases { leases, next }).unwrap();
    }
}
