//! The control socket of a region that root's server has mounted.
//!
//! Purpose: whoever wants something of a live mount (to mount it a second time,
//! later its state, more room, a lease) finds the process that serves it
//! without believing a name that somebody else can choose.
//!
//! One socket for each region, `/run/pramfs/NAME`, NAME made of the region's
//! device and inode number ([`Identity`]). What makes the answer trustworthy:
//! - only root can make a name in that directory ([`Directory`] checks it, and
//!   all directories above it, each time);
//! - the kernel says who listens and who connects (`SO_PEERCRED`): both sides
//!   talk to root and to their own user only;
//! - the server passes a descriptor of its region, opened through the one that
//!   it has mapped, and the client compares it with what it has opened itself.
//!
//! Invariant: nothing here waits for ever. Each step with a peer has a time
//! limit, each message a length limit.
//!
//! Left to others: what is done with the answer; see `second_mount` in
//! `fuse-frontend/`.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod client;
mod directory;
mod error;
mod identity;
mod message;
mod server;
mod wire;

pub use client::{Client, Proved};
pub use directory::{DIRECTORY, Directory};
pub use error::ControlError;
pub use identity::Identity;
pub use message::{MAX_MESSAGE, Refusal, Reply, Request, Served, VERSION};
pub use server::{Server, Service};
