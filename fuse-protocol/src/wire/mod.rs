//! The structures on the wire, as they are in the kernel's header.
//!
//! Numbers have the byte order of the machine: both sides run on it. (virtiofs demands
//! the same of guest and host.) Each structure can be read from bytes at any address, and
//! written as bytes. Each field of flags keeps bits that have no name.

pub(crate) mod file;
pub(crate) mod header;
pub(crate) mod init;
pub(crate) mod misc;
pub(crate) mod node;
pub(crate) mod notify;
pub(crate) mod uring;

pub use file::*;
pub use header::*;
pub use init::*;
pub use misc::*;
pub use node::*;
pub use notify::*;
pub use uring::*;
