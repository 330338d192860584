//! What can be read of an image without an error, to be held against what can
//! be read of it after a repair.

use pramfs::{MountOptions, inode::Fs};
use pramfs_medium::pmem::{HeapBackend, Region, RegionAccess, RegionView};

use crate::snapshot::{Errors, Snapshot, Take, Tolerance};

/// A region of memory with these bytes.
pub fn copy_of(image: &[u8]) -> Region {
    let region = Region::new("copy", HeapBackend::boxed(image.len()));
    region
        .window()
        .store_unflushed(0, image)
        .expect("it has room");
    region
}

/// All bytes of a region.
pub fn bytes_of<'r>(region: impl Into<RegionView<'r>>) -> Vec<u8> {
    let region = region.into();
    let mut image = vec![0; region.len() as usize];
    region.read(0, &mut image).expect("it is there");
    image
}

/// Everything that can be read of an image; `None` where it cannot be mounted.
pub fn tree(image: &[u8]) -> Option<Snapshot> {
    let options = MountOptions {
        read_only: true,
        background: false,
        ..MountOptions::default()
    };
    let fs = Fs::open(copy_of(image), options).ok()?;
    let how = Take {
        errors: Errors::Noted,
        ..Take::default()
    };
    Snapshot::take(&fs, &how).ok()
}

/// What of `before` is not as it was in `after`, in words.
pub fn worse(before: &Snapshot, after: &Snapshot) -> Vec<String> {
    let text = before.differences_beyond(after, &Tolerance::Repair);
    text.lines().map(str::to_owned).collect()
}
