#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(not(test), deny(unreachable_pub))]

#[macro_use]
mod table;

mod data;
mod errno;
mod error;
mod extension;
pub mod flags;
mod listing;
mod message;
mod name;
mod negotiate;
pub mod notify;
pub mod numbers;
mod opcode;
mod reader;
mod record;
pub mod reply;
mod request;
mod rules;
mod time;
pub mod wire;

/// All numbers and structures, as tables for the test that compares them with the header.
#[doc(hidden)]
pub mod tables {
    pub use crate::table::{Constant, FLOOR, Field, Struct};

    /// All numbers.
    pub const CONSTANTS: &[&[Constant]] = &[
        crate::opcode::CONSTANTS,
        crate::notify::CONSTANTS,
        crate::flags::CONSTANTS,
        crate::numbers::CONSTANTS,
    ];

    /// All structures.
    pub const STRUCTS: &[&[Struct]] = &[
        crate::wire::header::STRUCTS,
        crate::wire::init::STRUCTS,
        crate::wire::node::STRUCTS,
        crate::wire::file::STRUCTS,
        crate::wire::misc::STRUCTS,
        crate::wire::notify::STRUCTS,
        crate::wire::uring::STRUCTS,
    ];
}

pub use data::Data;
pub use errno::Errno;
pub use error::{Malformed, RequestError};
pub use extension::{Extensions, Groups, SecurityContexts};
pub use listing::{BadName, Fit, Listing};
pub use message::{Message, NoRoom};
pub use negotiate::{Negotiated, NegotiationError, Outcome, Wanted, negotiate, other_major};
pub use opcode::Opcode;
pub use record::{RECORD_SIZE, RecordError};
pub use request::{ForgetList, InitRequest, MappingList, Operation, Parts, Request};
pub use rules::{Rules, XATTR_NAME_MAX, XATTR_VALUE_MAX};
pub use time::{NewTime, Time};
