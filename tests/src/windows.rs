//! Append windows, made on the medium without the engine: as a holder leaves them that has
//! appended, and whose server has died.

use pramfs_medium::media::features::{APPEND_WINDOWS, PARKED_LEASES};
use pramfs_medium::media::lease::{END_OFFSET, LeaseSlot, SlotContents, WINDOW_OFFSET};
use pramfs_medium::media::{Medium, SuperStatic, probe_superblock};
use pramfs_medium::pmem::{Region, RegionAccess as _};
use zerocopy::IntoBytes as _;

use crate::crash::leased::{home, inode, places};

/// An append window.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// Slot of a lease to write.
    pub slot: u32,
    /// Where the window starts.
    pub start: u64,
    /// Where its blocks end. The file must have them.
    pub limit: u64,
    /// Size of the file, which may have grown since the window was opened.
    pub size: u64,
    /// How far the holder has appended.
    pub end: u64,
}

/// Opens a window on the medium, and sets the size of its file and the features.
///
/// # Errors
/// Where the slot names no file, or the region cannot be stored to.
pub fn plant(region: &Region, window: Window) -> Result<(), String> {
    let geo = probe_superblock(region)
        .map_err(|e| e.to_string())?
        .geometry();
    let medium = Medium { region, geo: &geo };
    let put = |at: u64, bytes: &[u8]| {
        let stored = region.window().store_unflushed(at, bytes);
        stored.map_err(|e| e.to_string())
    };
    for page in geo.pages() {
        let mut fixed: SuperStatic = medium.read_pod(page).map_err(|e| e.to_string())?;
        fixed.incompat |= APPEND_WINDOWS;
        fixed.ro_compat |= PARKED_LEASES;
        fixed.seal();
        put(page.0, fixed.as_bytes())?;
    }
    let place = places(medium)?.get(window.slot as usize).copied();
    let place = place.ok_or("there is no such slot")?;
    let read = || medium.read_pod::<LeaseSlot>(place);
    let slot = read().map_err(|e| e.to_string())?;
    let SlotContents::Used(lease) = slot.contents(geo.seed, window.slot) else {
        return Err("the slot is not in use".to_owned());
    };
    let Window { start, limit, .. } = window;
    let line = LeaseSlot::new_window(geo.seed, window.slot, lease.id, start, limit);
    put((place + WINDOW_OFFSET).0, line.recorded_window())?;
    let opened = read().map_err(|e| e.to_string())?;
    let opened = opened.append_window(geo.seed, window.slot)?;
    let word = opened.ok_or("there is no window")?.word_of(window.end);
    put((place + END_OFFSET).0, &word.to_le_bytes())?;
    let mut file = inode(medium, lease.ino)?;
    file.size = window.size;
    file.seal(geo.seed, lease.ino);
    put(home(medium, lease.ino)?.0, file.as_bytes())
}
