//! What the tests of bad input share.
//!
//! * [`bed`]: a file system to ask for what cannot be.
//! * [`model`]: what a file system should hold, and the comparison with what
//!   it does hold.
//! * [`image`]: images to be damaged, each with its model.
//! * [`anatomy`]: what every byte of an image belongs to, and so what its
//!   damage may reach.
#![allow(dead_code, reason = "each test uses its part of this")]

pub mod anatomy;
pub mod bed;
pub mod image;
pub mod model;

use std::sync::Arc;

use pramfs::{AtimePolicy, Clock, ErrorPolicy, MountOptions, inode::Time};
use pramfs_medium::pmem::{HeapBackend, Region, RegionView};

/// A clock that stands still.
#[derive(Debug)]
pub struct Stopped(pub i64);

impl Clock for Stopped {
    fn now(&self) -> Time {
        Time {
            sec: self.0,
            nsec: 0,
        }
    }
}

/// Options of a mount that repeats exactly and goes on after damage.
pub fn steady() -> MountOptions {
    MountOptions {
        errors: ErrorPolicy::Continue,
        atime: AtimePolicy::NoAtime,
        background: false,
        cache_bytes: 1 << 16,
        clock: Arc::new(Stopped(1_700_000_100)),
        ..MountOptions::default()
    }
}

/// A region of this process that holds a copy of an image.
pub fn region_with(image: &[u8]) -> Region {
    let region = Region::new("image", HeapBackend::boxed(image.len()));
    let stored = region.window().store_unflushed(0, image);
    stored.expect("the image fits its own length");
    region
}

/// The bytes of a region.
pub fn bytes_of<'r>(region: impl Into<RegionView<'r>>) -> Vec<u8> {
    let region = region.into();
    let mut bytes = vec![0; region.len() as usize];
    region
        .read(0, &mut bytes)
        .expect("the region has its own length");
    bytes
}
