//! Pages that fail under a live mapping.

use pramfs_medium::pmem::{Region, RegionAccess as _};

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// From now on, the first access to a page of the mapping raises SIGBUS. The file keeps
/// its contents.
///
/// # Panics
/// If the page does not lie in the region, or cannot be mapped anew.
pub fn fail_page(region: &Region, page: u64) {
    let range = region.raw_range(page * PAGE, PAGE).expect("in the region");
    let at = range.cast::<libc::c_void>();
    // SAFETY: the page lies in the mapping of `region`, which the test owns;
    // what takes its place is a mapping of the same length, behind the end of an
    // empty file, and the region's guard covers it as it did the page.
    unsafe {
        let empty = libc::memfd_create(c"empty".as_ptr(), 0);
        assert!(empty >= 0);
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let got = libc::mmap(at, PAGE as usize, prot, flags, empty, 0);
        assert_eq!(got, at);
        libc::close(empty);
    }
}
