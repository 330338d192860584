//! Shared code of the tests of invalid input.
//!
//! * [`fixture`]: a file system for invalid requests.
//! * [`model`]: the expected contents of a file system, and their comparison with the
//!   real ones.
//! * [`image`]: images to be damaged, each with its model.
//! * [`anatomy`]: the owner of every byte of an image, and so the possible effect of its
//!   damage.

pub mod anatomy;
pub mod fixture;
pub mod image;
pub mod model;

use std::sync::Arc;

use pramfs::{AtimePolicy, Clock, ErrorPolicy, MountOptions, inode::Time};
use pramfs_medium::pmem::{HeapBackend, Region, RegionAccess, RegionView};

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

/// Mount options for repeatable runs that continue after damage.
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

/// A region in the memory of this process with a copy of an image.
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
