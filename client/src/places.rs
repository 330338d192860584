//! Places of a leased file in the region, for reads without a lock.
//!
//! The lock of the blocks takes some hundredths of the time of a copy of 4 KiB, and a search
//! among many extents takes more.
//!
//! The file is divided into windows of 2 MiB. For each window there is room for one extent
//! that has blocks of it. Windows that are far apart share the room.
//!
//! Invariant: an extent is replaced only by one of a later layout. A reader may therefore
//! find a mixture of two extents, but only if the layout that it asked for has passed. It
//! looks at the layout again after its copy (`snapshot`).

use pramfs_medium::sync::atomic::{AtomicU64, Ordering, fence};
use pramfs_medium::sync::order::{acquire, release};
use pramfs_medium::sync::{Mutex, OnceLock, rank};

/// Bytes of a window, as a power of two.
const WINDOW: u32 = 21;
/// Extents with a place: 16 KiB for each file that is read.
const COUNT: usize = if cfg!(loom) { 1 } else { 512 };

/// The places of a file.
#[derive(Debug, Default)]
pub(crate) struct Places {
    all: OnceLock<Box<[Place]>>,
    /// Serializes the writers.
    writers: Mutex<(), rank::Leaf>,
}

/// Where an extent is.
#[derive(Debug, Default)]
struct Place {
    /// The layout that it belongs to, plus one; 0 if it is not valid.
    valid: AtomicU64,
    /// Offset of the extent in the file.
    file_offset: AtomicU64,
    /// Offset in the region.
    region_offset: AtomicU64,
    len: AtomicU64,
}

impl Places {
    /// Returns where a range is in the region, if it is known and one piece. The result
    /// counts only if the layout is still the current one afterwards.
    #[inline]
    pub(crate) fn get(&self, layout: u64, offset: u64, len: u64) -> Option<u64> {
        let all = self.all.get()?;
        let place = all.get((offset >> WINDOW) as usize % COUNT)?;
        if place.valid.load(acquire("place-valid")) != layout.wrapping_add(1) {
            return None;
        }
        let within = offset.wrapping_sub(place.file_offset.load(Ordering::Relaxed));
        let extent = place.len.load(Ordering::Relaxed);
        let is_inside = within <= extent && len <= extent - within;
        is_inside.then(|| {
            place
                .region_offset
                .load(Ordering::Relaxed)
                .wrapping_add(within)
        })
    }

    /// Notes an extent of a layout as the place of the window around `offset`, unless it has
    /// one of this or a later layout.
    pub(crate) fn put(
        &self,
        layout: u64,
        offset: u64,
        (file_offset, region_offset, len): (u64, u64, u64),
    ) {
        let make = || (0..COUNT).map(|_| Place::default()).collect();
        let all = self.all.get_or_init(make);
        let place = &all[(offset >> WINDOW) as usize % COUNT];
        let Some(valid) = layout.checked_add(1) else {
            return;
        };
        let _writers = self.writers.lock();
        if place.valid.load(Ordering::Relaxed) >= valid {
            return;
        }
        // A reader that finds one of the next words also finds, after its copy, the layout
        // that this thread has seen.
        fence(release("place-layout"));
        place.file_offset.store(file_offset, Ordering::Relaxed);
        place.region_offset.store(region_offset, Ordering::Relaxed);
        place.len.store(len, Ordering::Relaxed);
        place.valid.store(valid, release("place-put"));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const FAR: u64 = (COUNT as u64) << WINDOW;

    #[test]
    fn place_is_of_its_layout_and_range() {
        let places = Places::default();
        assert_eq!(places.get(3, 0, 1), None);
        places.put(3, 4096, (4096, 1 << 30, 8192));
        assert_eq!(places.get(3, 4096, 8192), Some(1 << 30));
        assert_eq!(places.get(3, 5000, 10), Some((1 << 30) + 904));
        for (layout, offset, len) in [
            (4, 4096, 10),
            (2, 4096, 10),
            (3, 4095, 10),
            (3, 4096, 8193),
            (3, 12288, 1),
            (3, 5000, u64::MAX),
            (3, u64::MAX, 10),
            (3, 4096 + FAR, 10),
        ] {
            assert_eq!(places.get(layout, offset, len), None, "{offset} {len}");
        }
    }

    #[test]
    fn place_is_replaced_by_that_of_later_layout_only() {
        let places = Places::default();
        places.put(3, 0, (0, 4096, 4096));
        places.put(3, FAR, (FAR, 8192, 4096));
        places.put(2, 0, (0, 12288, 4096));
        assert_eq!(places.get(3, 0, 1), Some(4096));
        places.put(4, FAR, (FAR, 8192, 4096));
        assert_eq!(places.get(3, 0, 1), None);
        assert_eq!(places.get(4, FAR, 1), Some(8192));
        places.put(u64::MAX, 0, (0, 0, 1));
        assert_eq!(places.get(u64::MAX, 0, 1), None);
    }

    /// One extent of a large file serves all of its windows.
    #[test]
    fn extent_is_the_place_of_each_window_in_it() {
        let places = Places::default();
        for offset in [0, FAR - 1] {
            places.put(0, offset, (0, 4096, 2 * FAR));
        }
        assert_eq!(places.get(0, 2 * FAR - 10, 10), Some(4096 + 2 * FAR - 10));
        assert_eq!(places.get(0, FAR + 7, 4096), Some(4096 + FAR + 7));
    }
}
