//! What read does not promise: contents have no checksum.

use std::sync::Arc;

use pramfs::inode::Credentials;
use pramfs_fsck::{CheckOptions, check};
use pramfs_medium::pmem::SimBackend;
use pramfs_tests::region::{mount, quiet, region_of};

use crate::support::library::{contents, file, small};

/// Contents have no checksum: a change of the medium changes the file.
#[test]
fn flipped_data_byte_is_not_detected() {
    let (sim, fs) = small();
    let f = file(&fs, "f");
    fs.append(&Credentials::ROOT, f, &[0x5a; 4096]).unwrap();
    let at = fs.file_extents(f, 0, 4096).unwrap()[0]
        .region_offset
        .unwrap();
    fs.close().unwrap();
    let mut image = sim.image();
    image[at as usize + 100] ^= 1;
    let sim = SimBackend::from_image(&image).unwrap();
    let report = check(&region_of(&sim), &CheckOptions::default());
    assert!(report.is_clean(), "{report}");
    let fs = Arc::new(mount(&sim, quiet()).unwrap());
    assert_eq!(contents(&fs, f)[99..102], [0x5a, 0x5b, 0x5a]);
}
