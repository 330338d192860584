//! Requests: a header and one operation, both fully checked.

mod encode;
mod operation;
mod parse;

pub use operation::{ForgetList, InitRequest, MappingList, Operation};

use crate::data::Data;
use crate::opcode::Opcode;
use crate::wire::InHeader;

/// A request. It borrows names and data from the bytes that it was parsed from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The header. Its numbers of nodes, users and processes are not checked: what they
    /// mean, and whether they exist, is known to the server alone.
    pub header: InHeader,
    /// The operation, as in the header.
    pub opcode: Opcode,
    /// What is asked for.
    pub operation: Operation<'a>,
}

/// A request as transports deliver it that keep its parts apart.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// Room that begins with the header.
    pub header: &'a [u8],
    /// Room that begins with the header of the operation. What belongs to it follows from
    /// the length in the header and that of the payload.
    pub operation: &'a [u8],
    /// The rest. Only data of WRITE, IOCTL and NOTIFY_REPLY may lie in several
    /// pieces, and nothing else may then be in the payload.
    pub payload: Data<'a>,
}

impl Request<'_> {
    /// The number that the reply repeats.
    #[must_use]
    pub fn unique(&self) -> u64 {
        self.header.unique
    }

    /// Whether the kernel sends this request again, because it had no answer (
    /// [`resend`](crate::notify::resend)).
    #[must_use]
    pub fn is_resent(&self) -> bool {
        self.header.unique & crate::numbers::UNIQUE_RESEND != 0
    }
}
