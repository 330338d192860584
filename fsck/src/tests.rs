//! A file system that the engine leaves has no finding. Each kind of damage has
//! its own finding. Any bytes can be checked.

mod any_bytes;
mod clean;
pub(crate) mod each;
mod forged;
mod leases;
mod many;
mod metadata;
mod owners;
pub(crate) mod plant;
mod repair;
mod sums;
// Shared with the end-to-end tests, which see the library from outside.
#[path = "../../tests/src/readable.rs"]
mod readable;
