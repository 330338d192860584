//! The functions that take the place of those of the C library.
//!
//! Each passes what it cannot serve to the next library. Invariant: a call that is served
//! leaves errno alone, takes no lock that another thread may hold for long, and allocates
//! nothing; only a file whose blocks are not known yet needs more.
//!
//! All are `C-unwind`: the C library unwinds a thread that is cancelled in a call of `real`.
//! No value with a destructor lives across such a call.
#![allow(
    clippy::missing_safety_doc,
    reason = "the contract of each is that of the function of this name in the C library"
)]

mod data;
mod descriptors;
mod filters;
mod memory;
mod open;
mod position;
mod serve;
mod times;
mod users;
mod vectors;
