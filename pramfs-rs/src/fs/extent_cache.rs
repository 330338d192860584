//! Where the parts of a file lie, in ordinary memory: for who reads an open
//! file here and there, and for the inode table.
//!
//! A copy of 4 KiB is so short that a processor begins with the next one while
//! the lines of this one are on their way, but only if few instructions stand
//! between them. The walk through the pointer tree, which checks each pointer,
//! is too many (measured: 350 ns a read with up to 80 instructions between two,
//! 540 with 160), and so is one checked pointer of the medium, whose page the
//! address translation has forgotten by then. So what the walk found is kept,
//! in one word for each block, or for each leaf of a whole part: what one
//! pointer block covers.
//!
//! Invariant: a word says what the file map said when so many records had
//! changed the inode. Each record that changes a map changes its inode; an inode
//! that is held stays in memory, where they are counted.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::types::Bno;

/// Parts of the first chunk; each further chunk has twice as many.
const FIRST: u64 = 512;
/// Chunks: with blocks of 4 KiB, the parts of the first 511 GiB of a file.
const CHUNKS: usize = 9;
/// Bytes for the words of single blocks, at most: with blocks of 4 KiB, those
/// of 8 GiB of a file.
const MOST: usize = 16 << 20;

/// See the module. With blocks of 4 KiB: 16 KiB for the first GiB of a file, and
/// 32 bytes for each 2 MiB behind that, up to the last that is read or twice as
/// far, so 8 MiB at most; and 4 KiB for each 2 MiB that is read and lies in
/// single blocks.
#[derive(Debug, Default)]
pub struct ExtentCache {
    chunks: [OnceLock<Box<[Part]>>; CHUNKS],
    /// Bytes of the words of single blocks.
    bytes: AtomicUsize,
}

/// A part of a file.
#[derive(Debug, Default)]
struct Part {
    /// Where it lies as a whole.
    leaf: Word,
    /// Where its blocks lie.
    blocks: OnceLock<Box<[Word]>>,
}

/// A block number, and the number of records behind which it is true; zero for
/// none, as no file has block 0. One word, so that who loads it while another
/// stores it sees one of the two.
#[derive(Debug, Default)]
struct Word(AtomicU64);

impl Word {
    #[inline]
    fn get(&self, records: u32) -> Option<Bno> {
        let word = self.0.load(Ordering::Relaxed);
        let block = word & u64::from(u32::MAX);
        ((word >> 32) as u32 == records && block != 0).then_some(Bno(block))
    }

    /// Numbers that a word has no room for are not kept.
    fn put(&self, records: u32, block: Bno) {
        if let Ok(block) = u32::try_from(block.0) {
            let word = u64::from(records) << 32 | u64::from(block);
            self.0.store(word, Ordering::Relaxed);
        }
    }
}

/// Where a block of a file lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// The block itself; the next one may be anywhere.
    Block(Bno),
    /// The first block of its part, which lies in one piece.
    Leaf(Bno),
}

/// Chunk of a part, and place in that.
#[inline]
fn place(part: u64) -> Option<(usize, usize)> {
    // Most files end here, and what is to be quick has no more to compute.
    if part < FIRST {
        return Some((0, part as usize));
    }
    let nth = part.checked_add(FIRST)?;
    let chunk = nth.ilog2() - FIRST.ilog2();
    Some((chunk as usize, (nth - (FIRST << chunk)) as usize))
}

impl ExtentCache {
    /// What is known of the block `within` of a part of a file whose inode so
    /// many records have changed.
    #[inline]
    pub fn get(&self, records: u64, part: u64, within: usize) -> Option<Known> {
        let records = u32::try_from(records).ok()?;
        let (chunk, at) = place(part)?;
        let part = self.chunks.get(chunk)?.get()?.get(at)?;
        if let Some(first) = part.leaf.get(records) {
            return Some(Known::Leaf(first));
        }
        let word = part.blocks.get()?.get(within)?;
        word.get(records).map(Known::Block)
    }

    /// Keeps what is known of the block `within` of a part of so many blocks.
    pub fn put(&self, records: u64, part: u64, within: usize, blocks: usize, what: Known) {
        let (Ok(records), Some((chunk, at))) = (u32::try_from(records), place(part)) else {
            return;
        };
        let Some(chunk_cell) = self.chunks.get(chunk) else {
            return;
        };
        let parts = chunk_cell.get_or_init(|| fresh((FIRST as usize) << chunk));
        match what {
            Known::Leaf(first) => parts[at].leaf.put(records, first),
            Known::Block(block) => {
                if let Some(words) = self.words(&parts[at], blocks) {
                    words[within].put(records, block);
                }
            }
        }
    }

    /// The words of a part's blocks, unless there would be too many of them.
    fn words<'a>(&self, part: &'a Part, blocks: usize) -> Option<&'a [Word]> {
        if let Some(words) = part.blocks.get() {
            return Some(words);
        }
        let bytes = blocks * size_of::<Word>();
        if self.bytes.load(Ordering::Relaxed) + bytes > MOST {
            return None;
        }
        Some(part.blocks.get_or_init(|| {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
            fresh(blocks)
        }))
    }
}

fn fresh<T: Default>(len: usize) -> Box<[T]> {
    std::iter::repeat_with(T::default).take(len).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: usize = 512;

    #[test]
    fn a_word_counts_for_its_block_and_its_change_alone() {
        let cache = ExtentCache::default();
        assert_eq!(cache.get(7, 3, 0), None);
        cache.put(7, 3, 1, BLOCKS, Known::Leaf(Bno(512)));
        cache.put(7, 4, 9, BLOCKS, Known::Block(Bno(99)));
        for within in [0, 1, 511] {
            assert_eq!(cache.get(7, 3, within), Some(Known::Leaf(Bno(512))));
        }
        assert_eq!(cache.get(7, 4, 9), Some(Known::Block(Bno(99))));
        assert_eq!(cache.get(7, 4, 8), None);
        assert_eq!(cache.get(7, 5, 9), None);
        assert_eq!(cache.get(8, 3, 0), None);
        assert_eq!(cache.get(8, 4, 9), None);
        // A leaf that has become blocks, and the other way round.
        cache.put(8, 3, 5, BLOCKS, Known::Block(Bno(1000)));
        assert_eq!(cache.get(8, 3, 5), Some(Known::Block(Bno(1000))));
        assert_eq!(cache.get(8, 3, 6), None);
        cache.put(9, 4, 9, BLOCKS, Known::Leaf(Bno(1024)));
        assert_eq!(cache.get(9, 4, 9), Some(Known::Leaf(Bno(1024))));
    }

    #[test]
    fn parts_do_not_meet_and_what_has_no_room_is_not_kept() {
        let cache = ExtentCache::default();
        let parts = [0, 1, 511, 512, 513, 1535, 1536, 1537, 4095, 10_000];
        for part in parts {
            cache.put(7, part, 0, BLOCKS, Known::Leaf(Bno(part + 1)));
        }
        for part in parts {
            assert_eq!(cache.get(7, part, 0), Some(Known::Leaf(Bno(part + 1))));
        }
        let most = FIRST * ((1 << CHUNKS) - 1);
        for part in [most, 1 << 50, u64::MAX] {
            cache.put(7, part, 0, BLOCKS, Known::Leaf(Bno(5)));
            assert_eq!(cache.get(7, part, 0), None);
        }
        for (records, block) in [
            (1 << 32, 5),
            (7 | 1 << 32, 5),
            (9, 1 << 32),
            (9, 5 | 1 << 32),
        ] {
            cache.put(records, 2, 0, BLOCKS, Known::Leaf(Bno(block)));
            cache.put(records, 2, 0, BLOCKS, Known::Block(Bno(block)));
            for records in [records, records & u64::from(u32::MAX)] {
                assert_eq!(cache.get(records, 2, 0), None);
            }
        }
    }

    #[test]
    fn words_of_blocks_have_a_bound() {
        let cache = ExtentCache::default();
        let most = (MOST / BLOCKS / size_of::<Word>()) as u64;
        for part in 0..most + 5 {
            cache.put(7, part, 3, BLOCKS, Known::Block(Bno(5)));
        }
        assert_eq!(cache.get(7, most - 1, 3), Some(Known::Block(Bno(5))));
        assert_eq!(cache.get(7, most, 3), None);
        assert_eq!(cache.bytes.load(Ordering::Relaxed), MOST);
        cache.put(7, most, 3, BLOCKS, Known::Leaf(Bno(6)));
        assert_eq!(cache.get(7, most, 3), Some(Known::Leaf(Bno(6))));
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
        places.iter().for_each(|&at| expect(at, 1));
        let records = file.inode.core.read().records;
        let known = |at: u64| {
            let (part, within) = (at / PART, at % PART / 4096);
            file.extents.get(records, part, within as usize)
        };
        for &at in &places {
            assert_eq!(matches!(known(at), Some(Known::Leaf(_))), at >= PART);
            assert_eq!(matches!(known(at), Some(Known::Block(_))), at < PART);
        }
        assert_eq!(known(4096), None);
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
}
