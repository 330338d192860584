//! A view of a range that a repair could not restore.

use pramfs_medium::pmem::RegionAccess as _;
use pramfs_tests::readable::bytes_of;

use crate::support::lost::{image_of, is_lost, is_only, open, repair_all, without_a_line};

#[test]
fn map_of_lost_range_fails() {
    use pramfs::{Access, OpenOptions};
    let block = 4096u64;
    let (image, ino) = image_of(4096, 20 * 4096);
    let (repaired, _) = repair_all(&without_a_line(&image, ino, 8, true));
    let region = pramfs::pmem::RegionOptions::new();
    let region = region.memfd("lost", image.len() as u64).unwrap();
    let bytes = bytes_of(&repaired);
    region.window().store_unflushed(0, &bytes).unwrap();
    let fs = open(region);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&fs, "/dir/file")
        .unwrap();
    for access in [Access::Read, Access::Write] {
        assert!(is_lost(file.map(0..20 * block, access).map(drop)));
        assert!(is_lost(
            file.map(9 * block + 1..9 * block + 2, access).map(drop)
        ));
        assert_eq!(file.map(0..8 * block, access).unwrap().len(), 8 * block);
        assert_eq!(
            file.map(16 * block..20 * block, access).unwrap().len(),
            4 * block
        );
    }
    is_only(&fs, ino, 8 * block..16 * block);
}
