//! The mappings of the region that stand for mappings of files.
//!
//! For the kernel such a mapping is one of the region. If it grew in place, by mremap(2), it
//! would show the blocks behind those of the file, which belong to other files. Invariant: a
//! mapping that is noted here never grows so.
//!
//! A note may outlive its mapping, if the program replaces that by `MAP_FIXED`. It then
//! refuses a growth that would have been right, and nothing worse.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::table::Entry;

/// Mappings at a time; a further one is left to the mount.
const MOST: usize = 1024;

static NOTES: [Note; MOST] = [const { Note::new() }; MOST];
/// One more than the highest number that was ever used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// A mapping. Free if its length is zero.
struct Note {
    base: AtomicU64,
    len: AtomicU64,
    /// Offset in the file.
    offset: AtomicU64,
    protection: AtomicU64,
    /// The lease, as an entry of the table.
    lease: AtomicU64,
}

impl Note {
    const fn new() -> Note {
        Note {
            base: AtomicU64::new(0),
            len: AtomicU64::new(0),
            offset: AtomicU64::new(0),
            protection: AtomicU64::new(0),
            lease: AtomicU64::new(0),
        }
    }
}

/// What is known about a mapping.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    number: usize,
    pub base: u64,
    pub len: u64,
    /// Offset in the file.
    pub offset: u64,
    pub protection: i32,
    /// The lease that it was made with.
    pub lease: Entry,
}

/// Claims a note before the mapping is made. `None`: there are too many.
pub(crate) fn claim() -> Option<usize> {
    let claimed = NOTES.iter().position(|note| {
        // Covers no address, and is not free.
        note.len
            .compare_exchange(0, u64::MAX, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    })?;
    USED.fetch_max(claimed + 1, Ordering::Release);
    Some(claimed)
}

/// Gives a claimed note up.
pub(crate) fn unclaim(number: usize) {
    NOTES[number].len.store(0, Ordering::Release);
}

/// Fills a claimed note, before the program learns of the mapping.
pub(crate) fn fill(
    number: usize,
    (base, len): (u64, u64),
    offset: u64,
    protection: i32,
    lease: Entry,
) {
    let note = &NOTES[number];
    note.base.store(base, Ordering::Relaxed);
    note.offset.store(offset, Ordering::Relaxed);
    note.protection.store(protection as u64, Ordering::Relaxed);
    note.lease.store(lease.encode(), Ordering::Relaxed);
    note.len.store(len, Ordering::Release);
}

/// Returns the mapping that has an address.
pub(crate) fn find(at: u64) -> Option<View> {
    let used = USED.load(Ordering::Acquire);
    NOTES[..used].iter().enumerate().find_map(|(number, note)| {
        let len = note.len.load(Ordering::Acquire);
        let base = note.base.load(Ordering::Relaxed);
        let is_inside = len != u64::MAX && at.checked_sub(base).is_some_and(|within| within < len);
        is_inside.then(|| View {
            number,
            base,
            len,
            offset: note.offset.load(Ordering::Relaxed),
            protection: note.protection.load(Ordering::Relaxed) as i32,
            lease: Entry::decode(note.lease.load(Ordering::Relaxed)),
        })
    })
}

/// Notes that a mapping has been moved, and perhaps made shorter.
pub(crate) fn moved(view: &View, base: u64, len: u64) {
    let note = &NOTES[view.number];
    note.len.store(u64::MAX, Ordering::Release);
    note.base.store(base, Ordering::Relaxed);
    note.len.store(len, Ordering::Release);
}

/// Notes that a range is about to be unmapped. A mapping that is left in part stays noted as
/// a whole.
pub(crate) fn unmapped(base: u64, len: u64) {
    let used = USED.load(Ordering::Acquire);
    let end = base.saturating_add(len);
    for note in &NOTES[..used] {
        let size = note.len.load(Ordering::Acquire);
        let start = note.base.load(Ordering::Relaxed);
        let is_whole = size != 0 && size != u64::MAX && start >= base && start + size <= end;
        if is_whole {
            // A thread that maps the same addresses again has claimed another note.
            let _changed = note
                .len
                .compare_exchange(size, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn view_is_found_until_it_is_unmapped() {
        let number = claim().unwrap();
        assert!(find(0x7000_0000).is_none());
        fill(number, (0x7000_0000, 0x2000), 4096, 1, Entry::Unknown);
        assert_eq!(find(0x7000_1fff).unwrap().offset, 4096);
        assert!(find(0x7000_2000).is_none() && find(0x6fff_ffff).is_none());
        unmapped(0x7000_0000, 0x1000);
        let view = find(0x7000_1000).unwrap();
        moved(&view, 0x9000_0000, 0x1000);
        assert!(find(0x7000_0000).is_none() && find(0x9000_0fff).is_some());
        unmapped(0x8000_0000, 0x2000_0000);
        assert!(find(0x9000_0000).is_none());
        let other = claim().unwrap();
        unclaim(other);
        assert!(claim().unwrap() <= other);
    }
}
