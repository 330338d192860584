//! A file system that the engine leaves has no finding. Each kind of damage has
//! its own finding. Any bytes can be checked.

mod any_bytes;
mod clean;
pub(crate) mod each;
mod forged;
mod many;
pub(crate) mod plant;
mod repair;
// The tests of the whole system have a snapshot for this, which also reads mounts.
mod readable;
