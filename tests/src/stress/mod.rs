//! Threads of mixed operations over one small tree, so that they meet.
//!
//! * [`pattern`]: contents that say what they are, so that a byte of another
//!   file, of another place or of half a write is found by whoever reads it.
//! * `access`: what a worker can do, on the engine directly or by system calls.
//! * `worker`: one thread: operations on what all share, and on files of its
//!   own whose every byte it knows.
//! * [`walk`]: the whole tree at the end, and its removal.

mod client;
mod engine;
mod mount;
pub mod pattern;
mod private_file;
mod target;
mod walk;
mod worker;

pub use client::{ClientAccess, Leased, Synced, Writer};
pub use engine::EngineAccess;
pub use mount::MountAccess;
pub use target::{About, Target};
pub use walk::{Summary, assert_same, remove_all, walk};
pub use worker::{COLD, Plan, Totals, populate, run};
