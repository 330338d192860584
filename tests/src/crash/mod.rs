//! The crash explorer: every image that a power failure could leave, of every
//! short sequence of operations, mounted by the real recovery and judged.
//!
//! ```text
//! workload   sequences of operations, run on the sim backend beside the model
//! operations the operations, each of steps that are actions (act)
//! machine    what is durable after each of the recorded events, and what may be
//! images     which of the possible images to look at; each is looked at once
//! fixture    the tree from which they start
//! live       the file system that they run on, and the model
//! atomic     operations that change bytes of files
//! leased     leases of its files, and what their holders map
//! oracle     mount, check, look, use (usage), each image and medium once (known)
//! state      what an image shows, and which states are right
//! explorer   all of that for all workloads, and for crashes in recoveries (again)
//! report     counts, or the story of an image that nothing explains
//! sample     a part of many workloads
//! setup      what such an image depends on, as options to find it again
//! ```
//!
//! `docs/crash-testing.md` says what is assumed and what was found.

mod act;
pub mod action;
mod again;
pub mod atomic;
pub mod concurrent;
pub mod explorer;
pub mod fixture;
pub mod images;
pub mod known;
pub mod leased;
mod live;
pub mod machine;
pub mod operations;
pub mod oracle;
pub mod report;
pub mod sample;
pub mod scheduler;
pub mod scratch;
pub mod setup;
pub mod state;
mod steps;
pub mod sweep;
mod usage;
pub mod workload;

pub use act::vacate;
pub use machine::Machine;
