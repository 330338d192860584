//! The control socket of a region that root's server has mounted.
//!
//! Purpose: a program that needs something from a live mount (a second mount, a lease,
//! its state) finds the server process without trusting a name that
//! another user can choose.
//!
//! Each region has one socket, `/run/pramfs/NAME`, with NAME made of the region's device
//! and inode number ([`Identity`]). The answer is trustworthy because:
//! - only root can make a name in that directory ([`Directory`] checks it, and all
//!   directories above it, each time);
//! - the kernel identifies the peer (`SO_PEERCRED`): both sides talk only to root and to
//!   their own user;
//! - the server passes a descriptor of its region, opened through the mapped one, and the
//!   client compares it with the region that it has opened itself.
//!
//! Invariant: nothing here blocks forever. Each step with a peer has a time limit, each
//! message a length limit.
//!
//! Not here: the use of the answer; see `second_mount` in `fuse-frontend/`.
#![deny(missing_docs)]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(unreachable_pub))]

mod admission;
mod client;
mod connections;
mod directory;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod identity;
mod latency;
mod lease;
mod message;
mod server;
pub mod snapshot;
mod status;
pub mod text;
mod wire;

pub use admission::{Admission, PeerGroups, Users};
pub use client::{Client, Connection, Proved};
pub use directory::{DIRECTORY, Directory};
pub use error::ControlError;
pub use identity::Identity;
pub use latency::{BUCKETS, Latency, bucket_end, bucket_of};
pub use lease::{
    Blocks, Coherence, Extent, Granted, LeaseKey, LeaseRow, Leases, Peer, Refused, Ticket,
    TicketReply, Window,
};
pub use message::{MAX_MESSAGE, Refusal, Reply, Request, RequestCounts, Served, VERSION};
pub use server::{Listener, Server, Service};
pub use status::{
    DamageStatus, ErrorSeen, JournalStatus, LeaseCounts, LogLevel, Logging, MAX_STATUS,
    MediumStatus, MemoryStatus, MountStatus, OperationStatus, Report, ScrubReport, SetLogging,
    SlowOperation, Space, TakeoverStatus,
};
