//! The promised rows, in groups that share a setup.

mod aged;
mod append;
mod atomic;
pub mod builds;
mod databases;
mod dbench;
pub mod leases;
mod lookup;
mod map;
mod metrics;
mod mount_io;
mod mount_names;
mod names;
mod peers;
mod preload;
pub mod programs;
mod read_write;
mod scrub;
mod server_memory;
mod sums;
mod threads;
mod transports;
mod untouched;

use crate::harness::Group;

/// All groups, in the order of the table.
pub const GROUPS: &[&Group] = &[
    &read_write::GROUP,
    &append::GROUP,
    &atomic::GROUP,
    &scrub::GROUP,
    &sums::GROUP,
    &untouched::GROUP,
    &aged::GROUP,
    &names::GROUP,
    &lookup::GROUP,
    &map::GROUP,
    &mount_io::GROUP,
    &mount_names::GROUP,
    &metrics::GROUP,
    &dbench::GROUP,
    &leases::GROUP,
    &preload::GROUP,
    &programs::GROUP,
    &databases::GROUP,
    &server_memory::GROUP,
    &threads::GROUP,
    &transports::IO,
    &transports::TREES,
];

/// Those of the transports alone.
pub const TRANSPORTS: &[&Group] = &[&transports::IO, &transports::TREES, &dbench::HELD_BACK];
