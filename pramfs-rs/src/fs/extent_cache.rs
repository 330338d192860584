//! Where the parts of a file lie, in ordinary memory: for who reads an open
//! file here and there.
//!
//! A copy of 4 KiB is so short that a processor begins with the next one while
//! the lines of this one are on their way, but only if few instructions stand
//! between them. The walk through the pointer tree, which checks each pointer,
//! is too many (measured: 350 ns a read with up to 80 instructions between two,
//! 540 with 160). So its result is kept for each part of a file that one
//! pointer block or one huge leaf covers.
//!
//! Invariant: an entry says what the file map said when so many records had
//! changed the inode. Each record that changes a map changes its inode; an inode
//! that is held stays in memory, where they are counted.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::map::Part;
use crate::media::checksum::mix64;
use crate::types::Bno;

/// Parts that are kept, each in the slot of its number: with blocks of 4 KiB,
/// those of 1 GiB.
const SLOTS: usize = 512;
/// Bits of a part's number; parts behind those are not kept, and neither is
/// anything of an inode that was changed more often than the rest can count.
const PART_BITS: u32 = 24;
const PRESENT: u64 = 1 << 63;
const LEAF: u64 = 1 << 62;

/// See the module: 8 KiB once something is kept.
#[derive(Debug, Default)]
pub struct ExtentCache {
    slots: OnceLock<Box<[Slot]>>,
}

/// An entry. Its words are stored one after the other and by several threads;
/// they fit each other only if they are of one entry.
#[derive(Debug, Default)]
struct Slot {
    value: AtomicU64,
    tag: AtomicU64,
}

/// `None` where these would not tell the entry from all others.
#[inline]
fn tag(records: u64, part: u64, value: u64) -> Option<u64> {
    let whole = part >> PART_BITS == 0 && records >> (64 - PART_BITS) == 0;
    whole.then_some((records << PART_BITS | part) ^ mix64(value))
}

impl ExtentCache {
    /// What is known of a part of a file whose inode so many records have
    /// changed.
    #[inline]
    pub fn get(&self, records: u64, part: u64) -> Option<Part> {
        let slot = &self.slots.get()?[part as usize % SLOTS];
        let value = slot.value.load(Ordering::Relaxed);
        if value & PRESENT == 0 || slot.tag.load(Ordering::Relaxed) != tag(records, part, value)? {
            return None;
        }
        let block = Bno(value & !(PRESENT | LEAF));
        Some(if value & LEAF != 0 {
            Part::Leaf(block)
        } else {
            Part::Table(block)
        })
    }

    /// Keeps what is known of a part.
    pub fn put(&self, records: u64, part: u64, what: Part) {
        let value = match what {
            Part::Leaf(block) => block.0 | LEAF | PRESENT,
            Part::Table(block) => block.0 | PRESENT,
        };
        let Some(tag) = tag(records, part, value) else {
            return;
        };
        let slots = self
            .slots
            .get_or_init(|| (0..SLOTS).map(|_| Slot::default()).collect());
        let slot = &slots[part as usize % SLOTS];
        slot.value.store(value, Ordering::Relaxed);
        slot.tag.store(tag, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_counts_for_its_part_and_its_change_alone() {
        let cache = ExtentCache::default();
        assert_eq!(cache.get(7, 3), None);
        cache.put(7, 3, Part::Leaf(Bno(512)));
        cache.put(7, 4, Part::Table(Bno(99)));
        assert_eq!(cache.get(7, 3), Some(Part::Leaf(Bno(512))));
        assert_eq!(cache.get(7, 4), Some(Part::Table(Bno(99))));
        assert_eq!(cache.get(8, 3), None);
        assert_eq!(cache.get(7, 3 + SLOTS as u64), None);
        cache.put(7, 3 + SLOTS as u64, Part::Leaf(Bno(1024)));
        assert_eq!(cache.get(7, 3), None);
        // Too far behind to be told apart.
        let far = 3 | 1 << PART_BITS;
        cache.put(7, far, Part::Leaf(Bno(2048)));
        assert_eq!(cache.get(7, far), None);
        cache.put(7 | 1 << 40, 3, Part::Leaf(Bno(2048)));
        assert_eq!(cache.get(7, 3), None);
        assert_eq!(cache.get(7 | 1 << 40, 3), None);
    }

    /// What an open file reads after its map has changed in each way.
    #[test]
    fn a_reader_sees_every_change_of_the_map() {
        use crate::direct::OpenOptions;
        use crate::format::{FormatOptions, format};
        use crate::pmem::{HeapBackend, Region};
        use crate::types::Fallocate;
        use crate::{AtimePolicy, Fs, MountOptions};

        const PART: u64 = 2 << 20;
        let region = Region::new("test", HeapBackend::boxed(32 << 20));
        format(&region, &FormatOptions::default()).unwrap();
        // No read waits for the lock to set an atime.
        let options = MountOptions {
            atime: AtimePolicy::NoAtime,
            ..MountOptions::default()
        };
        let fs = Fs::open(region, options).unwrap();
        let open = |name: &str| OpenOptions::new().create(true).open(&fs, name).unwrap();
        let (file, other) = (open("/file"), open("/other"));
        // A part in small blocks, which those of another file keep apart, and
        // one in a large leaf.
        for at in (0..PART).step_by(4096) {
            file.write_at(at, &[1; 4096]).unwrap();
            other.write_at(at, &[9; 4096]).unwrap();
        }
        file.write_at(PART, &vec![1; PART as usize]).unwrap();
        let places = [0, 8 * 4096, 8 * 4096 + 100, PART, PART + 64 * 4096];
        let expect = |at: u64, byte: u8| {
            let mut bytes = [7; 3000];
            for _ in 0..3 {
                assert_eq!(file.read_at(at, &mut bytes).unwrap(), 3000, "at {at}");
                assert_eq!(bytes, [byte; 3000], "at {at}");
            }
        };
        let known = || {
            let slots = file.extents.slots.get().unwrap();
            let kept = slots
                .iter()
                .filter(|s| s.value.load(Ordering::Relaxed) != 0);
            kept.count()
        };
        places.iter().for_each(|&at| expect(at, 1));
        assert_eq!(known(), 2);
        for &at in &places {
            let block = at / 4096 * 4096;
            file.write_at(at, &[2; 3000]).unwrap();
            expect(at, 2);
            file.fallocate(Fallocate::PunchHole, block, 4096).unwrap();
            expect(at, 0);
            file.write_at(at, &[3; 3000]).unwrap();
            expect(at, 3);
            file.fallocate(Fallocate::ZeroRange { keep_size: true }, block, 4096)
                .unwrap();
            expect(at, 0);
            file.write_at(at, &[4; 3000]).unwrap();
            expect(at, 4);
        }
        file.set_size(100).unwrap();
        // The blocks go to others, who fill them.
        other.write_at(PART, &vec![9; PART as usize]).unwrap();
        assert_eq!(file.read_at(PART, &mut [0; 10]).unwrap(), 0);
        file.set_size(2 * PART).unwrap();
        places[1..].iter().for_each(|&at| expect(at, 0));
        // What is written now goes to new blocks, and not to those of before.
        for &at in &places {
            file.write_at(at, &[5; 3000]).unwrap();
            expect(at, 5);
        }
        let mut theirs = vec![0; 2 * PART as usize];
        assert_eq!(other.read_at(0, &mut theirs).unwrap(), theirs.len());
        assert!(theirs.iter().all(|&b| b == 9));
    }

    #[test]
    fn words_of_two_entries_do_not_pass_for_one() {
        let cache = ExtentCache::default();
        cache.put(7, 3, Part::Leaf(Bno(512)));
        let slots = cache.slots.get().unwrap();
        let tag = slots[3].tag.load(Ordering::Relaxed);
        cache.put(7, 3, Part::Leaf(Bno(1024)));
        slots[3].tag.store(tag, Ordering::Relaxed);
        assert_eq!(cache.get(7, 3), None);
    }
}
