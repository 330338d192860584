//! The extent cache: the places of file blocks in the region, in ordinary memory. It
//! serves random reads of open files, and the inode table.
//!
//! A copy of 4 KiB is so short that the processor overlaps it with the next one, but only
//! if few instructions lie between them. Measured: 350 ns per read with up to 80
//! instructions between two copies, 540 ns with 160. The walk through the pointer tree,
//! which checks each pointer, takes too many. Even one checked pointer of the medium is
//! too slow, because the TLB has lost its page by then. The cache therefore keeps the
//! results of walks.
//!
//! The unit is a part: the range of a file that one pointer block covers. A part is one
//! huge leaf, or single blocks. Single blocks usually lie at equal distances, since a file
//! grows alone or in turns with others. The cache keeps such a run as its first block and
//! its step ([`StridedRun`]), and one bit per block: the block is known, and lies on the
//! run. This is small, so that copied data do not evict it from the processor's caches.
//! Each block outside the run has a 32-bit place.
//!
//! Invariant: a cached part shows the file map after the number of records that is stored
//! with the part. Each record that changes a map also changes its inode, and an inode in
//! use stays in memory, where its records are counted. A writer of the cache takes a lock
//! and checks under it that its result is current. A reader takes no lock.

use pramfs_medium::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use pramfs_medium::sync::order::{acquire, release};
use pramfs_medium::sync::{Mutex, OnceLock, rank};
use pramfs_medium::types::Bno;

/// Parts in the first chunk. Each further chunk has twice as many as the one before it.
const FIRST: u64 = if cfg!(loom) { 1 } else { 512 };
/// Number of further chunks. With blocks of 4 KiB, all chunks together cover the first
/// 511 GiB of a file.
const PART_TABLES: usize = 8;
/// Maximum memory for the single blocks of parts, bytes. With blocks of 4 KiB, it suffices
/// for 8 GiB of a file.
const MAX_BYTES: usize = 8 << 20;

/// Words of a bitmap with one bit per block of a part.
const KNOWN: usize = if cfg!(loom) { 1 } else { 8 };

/// The extent cache of a file, see the module. Its memory, with blocks of 4 KiB:
///
/// - 16 KiB for the first GiB of a file;
/// - 32 bytes for each further 2 MiB, up to the last part that is read or to twice that
///   offset: at most 8 MiB;
/// - for each 2 MiB that is read and lies in single blocks, 96 bytes, and 2 KiB more if
///   some distances differ: at most 8 MiB.
#[derive(Debug, Default)]
pub(crate) struct ExtentCache {
    first: OnceLock<Box<[Part; FIRST as usize]>>,
    further: [OnceLock<Box<[Part]>>; PART_TABLES],
    /// Memory in use for the single blocks of parts, bytes. Its lock serializes the
    /// writers of the cache.
    bytes: Mutex<usize, rank::Leaf>,
}

/// A part of a file.
#[derive(Debug, Default)]
struct Part {
    /// The number of records that the fields below belong to, plus one; 0 if they are
    /// not valid.
    valid: AtomicU64,
    /// Its first block, if it is one huge leaf.
    leaf: Place,
    /// Its single blocks.
    blocks: OnceLock<Box<Blocks>>,
}

/// A block number, or zero for none: block 0 belongs to no file.
#[derive(Debug, Default)]
struct Place(AtomicU32);

impl Place {
    #[inline]
    fn get(&self) -> Option<Bno> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            block => Some(Bno(block.into())),
        }
    }

    fn put(&self, block: u32) {
        self.0.store(block, Ordering::Relaxed);
    }
}

/// The cached places of the single blocks of a part.
#[derive(Debug, Default)]
struct Blocks {
    /// The [`StridedRun`] of the blocks in `known`.
    run: AtomicU64,
    /// A bit for each block that is known and lies on the run.
    known: [AtomicU64; KNOWN],
    /// The places of the other blocks.
    others: OnceLock<Box<[Place]>>,
}

/// Blocks at equal distances: the place of the first block, modulo 2^32, and the distance
/// from one to the next. It fits one word, so a reader sees the old run or the new one,
/// never a mixture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StridedRun {
    first: u32,
    step: u32,
}

impl StridedRun {
    /// No run yet.
    const NONE: StridedRun = StridedRun { first: 0, step: 0 };

    #[inline]
    fn of(word: u64) -> StridedRun {
        StridedRun {
            first: word as u32,
            step: (word >> 32) as u32,
        }
    }

    fn word(self) -> u64 {
        u64::from(self.step) << 32 | u64::from(self.first)
    }

    #[inline]
    fn at(self, within: usize) -> u32 {
        self.first
            .wrapping_add(self.step.wrapping_mul(within as u32))
    }

    /// Returns the run with this step through a block.
    fn through(within: usize, block: u32, step: u32) -> StridedRun {
        let first = block.wrapping_sub(step.wrapping_mul(within as u32));
        StridedRun { first, step }
    }

    /// Returns the ascending run through two blocks, if there is one.
    fn joining(one: (usize, u32), other: (usize, u32)) -> Option<StridedRun> {
        let apart = other.0 as i64 - one.0 as i64;
        let far = i64::from(other.1) - i64::from(one.1);
        if apart == 0 || far % apart != 0 {
            return None;
        }
        let step = u32::try_from(far / apart).ok().filter(|s| *s != 0)?;
        Some(StridedRun::through(one.0, one.1, step))
    }
}

impl Blocks {
    #[inline]
    fn get(&self, within: usize) -> Option<Bno> {
        // Load the bit before the run: the writer stores the run before it sets the bit.
        let bits = self.known.get(within / 64)?.load(acquire("extent-bit"));
        if bits >> (within % 64) & 1 != 0 {
            let run = StridedRun::of(self.run.load(Ordering::Relaxed));
            return Some(Bno(run.at(within).into()));
        }
        self.others.get()?.get(within)?.get()
    }

    fn is_known(&self, within: usize) -> bool {
        self.known[within / 64].load(Ordering::Relaxed) >> (within % 64) & 1 != 0
    }

    fn note(&self, within: usize) {
        let bits = &self.known[within / 64];
        let with = bits.load(Ordering::Relaxed) | 1 << (within % 64);
        bits.store(with, release("extent-bit-set"));
    }

    fn clear(&self) {
        self.run.store(StridedRun::NONE.word(), Ordering::Relaxed);
        let others = self.others.get().into_iter().flatten();
        others.for_each(|b| b.put(0));
        for bits in &self.known {
            bits.store(0, Ordering::Relaxed);
        }
    }

    /// Caches the place of one of `count` blocks. `room` reserves memory, in bytes, and
    /// returns false if the limit is reached. A concurrent reader sees the cached place
    /// of each other block, or none.
    fn put(&self, within: usize, block: u32, count: usize, room: impl FnOnce(usize) -> bool) {
        let run = StridedRun::of(self.run.load(Ordering::Relaxed));
        let fitting = match run {
            StridedRun::NONE => Some(StridedRun::through(within, block, 1)),
            run if run.at(within) == block => Some(run),
            run => {
                let mut known = (0..count).filter(|&i| self.is_known(i));
                match (known.next(), known.next()) {
                    // A single known block lies on every run through it.
                    (Some(one), None) => StridedRun::joining((one, run.at(one)), (within, block)),
                    _ => None,
                }
            }
        };
        if let Some(fitting) = fitting {
            self.run.store(fitting.word(), Ordering::Relaxed);
            return self.note(within);
        }
        if self.others.get().is_some() || room(count * size_of::<Place>()) {
            self.others.get_or_init(|| fresh(count))[within].put(block);
        }
    }
}

/// The cached place of a block of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CachedExtent {
    /// The block itself. The next block may be anywhere.
    Block(Bno),
    /// The first block of its part, which is one huge leaf.
    Leaf(Bno),
}

impl ExtentCache {
    /// Returns the cached place of block `within` of a part. `records` is the number of
    /// records that have changed the inode.
    ///
    /// If a record changes the inode meanwhile, the result may belong to another number.
    /// The caller therefore validates the inode afterwards, or prevents such changes.
    #[inline]
    pub(crate) fn get(&self, records: u64, part: u64, within: usize) -> Option<CachedExtent> {
        // Most files have only these parts, so the fast path computes nothing more.
        let part = if part < FIRST {
            &self.first.get()?[part as usize]
        } else {
            self.further_part(part)?
        };
        if part.valid.load(acquire("extent-valid")) != records.wrapping_add(1) {
            return None;
        }
        if let Some(first) = part.leaf.get() {
            return Some(CachedExtent::Leaf(first));
        }
        part.blocks.get()?.get(within).map(CachedExtent::Block)
    }

    #[cold]
    #[inline(never)]
    fn further_part(&self, part: u64) -> Option<&Part> {
        let (chunk, at) = further(part)?;
        self.further.get(chunk)?.get()?.get(at)
    }

    /// Caches the place of block `within` of a part of `blocks` blocks. Does nothing if
    /// `is_current` returns false: further records have changed the inode. Does nothing
    /// either if a number does not fit its field.
    pub(crate) fn put(
        &self,
        records: u64,
        part: u64,
        (within, blocks): (usize, usize),
        what: CachedExtent,
        is_current: impl FnOnce() -> bool,
    ) {
        let (CachedExtent::Block(block) | CachedExtent::Leaf(block)) = what;
        let (Ok(block), Some(valid)) = (u32::try_from(block.0), records.checked_add(1)) else {
            return;
        };
        // Concurrent writers with different numbers of records would leave a mixture.
        let mut bytes = self.bytes.lock();
        if !is_current() {
            return;
        }
        // Orders the change of the inode before the stores below. A reader with another
        // number that sees one of these stores, and then validates the inode, sees the
        // change.
        fence(release("extent-after-change"));
        let Some(part) = self.part_to_keep(part) else {
            return;
        };
        if part.valid.load(Ordering::Relaxed) != valid {
            part.valid.store(0, Ordering::Relaxed);
            part.leaf.put(0);
            if let Some(blocks) = part.blocks.get() {
                blocks.clear();
            }
            // A reader that sees the new number also sees the cleared part.
            part.valid.store(valid, release("extent-cleared"));
        }
        match what {
            CachedExtent::Leaf(_) => part.leaf.put(block),
            CachedExtent::Block(_) => {
                let mut room = |more: usize| {
                    let fits = *bytes + more <= MAX_BYTES;
                    *bytes += if fits { more } else { 0 };
                    fits
                };
                if part.blocks.get().is_some() || room(size_of::<Blocks>()) {
                    let of = part.blocks.get_or_init(Box::default);
                    of.put(within, block, blocks, room);
                }
            }
        }
    }

    fn part_to_keep(&self, part: u64) -> Option<&Part> {
        if part < FIRST {
            let chunk = self
                .first
                .get_or_init(|| Box::new(std::array::from_fn(|_| Part::default())));
            return chunk.get(part as usize);
        }
        let (chunk, at) = further(part)?;
        let parts = (FIRST as usize) << (chunk + 1);
        self.further
            .get(chunk)?
            .get_or_init(|| fresh(parts))
            .get(at)
    }
}

/// Returns the further chunk that holds a part, and the part's place in it.
fn further(part: u64) -> Option<(usize, usize)> {
    let nth = part.checked_add(FIRST)?;
    let chunk = nth.ilog2().checked_sub(FIRST.ilog2() + 1)?;
    Some((chunk as usize, (nth - (FIRST << (chunk + 1))) as usize))
}

fn fresh<T: Default>(len: usize) -> Box<[T]> {
    std::iter::repeat_with(T::default).take(len).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: usize = 512;

    #[test]
    fn cached_word_fits_only_its_block_and_change() {
        let cache = ExtentCache::default();
        assert_eq!(cache.get(7, 3, 0), None);
        let keep = |records, part, within, what| {
            cache.put(records, part, (within, BLOCKS), what, || true);
        };
        keep(7, 3, 1, CachedExtent::Leaf(Bno(512)));
        keep(7, 4, 9, CachedExtent::Block(Bno(99)));
        for within in [0, 1, 511] {
            assert_eq!(cache.get(7, 3, within), Some(CachedExtent::Leaf(Bno(512))));
        }
        assert_eq!(cache.get(7, 4, 9), Some(CachedExtent::Block(Bno(99))));
        assert_eq!(cache.get(7, 4, 8), None);
        assert_eq!(cache.get(7, 5, 9), None);
        assert_eq!(cache.get(8, 3, 0), None);
        assert_eq!(cache.get(8, 4, 9), None);
        // A huge leaf that becomes single blocks, and the reverse.
        keep(8, 3, 5, CachedExtent::Block(Bno(1000)));
        assert_eq!(cache.get(8, 3, 5), Some(CachedExtent::Block(Bno(1000))));
        assert_eq!(cache.get(8, 3, 6), None);
        keep(9, 4, 9, CachedExtent::Leaf(Bno(1024)));
        assert_eq!(cache.get(9, 4, 9), Some(CachedExtent::Leaf(Bno(1024))));
        // A new place does not bring old ones back.
        keep(10, 4, 8, CachedExtent::Block(Bno(7)));
        assert_eq!(cache.get(10, 4, 8), Some(CachedExtent::Block(Bno(7))));
        assert_eq!((cache.get(10, 4, 9), cache.get(9, 4, 9)), (None, None));
        // An outdated place is not cached.
        cache.put(10, 4, (9, BLOCKS), CachedExtent::Block(Bno(8)), || false);
        assert_eq!(cache.get(10, 4, 9), None);
    }

    /// One thread changes the inode, another caches its place after the change, and a
    /// third reads. The reader must not take a place from after a change for one from
    /// before it. Miri returns stale values for loads that nothing orders.
    #[test]
    fn extent_of_change_is_unseen_before_change() {
        use std::sync::atomic::AtomicBool;

        use zerocopy::FromZeros;

        use crate::fs::inode::Inode;
        use pramfs_medium::media::DiskInode;
        use pramfs_medium::types::{Ino, RegionOffset};

        let disk = DiskInode {
            mode: libc::S_IFREG | 0o644,
            ..DiskInode::new_zeroed()
        };
        let inode = Inode::new(Ino(50), RegionOffset(0), disk);
        let cache = ExtentCache::default();
        let place = |records: u64| CachedExtent::Leaf(Bno(512 * (records + 1)));
        let keep = || {
            if let Some(g) = inode.state.snapshot(inode.ino) {
                let is_current = || inode.state.validate(g.changes);
                cache.put(g.records, 0, (0, BLOCKS), place(g.records), is_current);
            }
        };
        let rounds = if cfg!(miri) { 12 } else { 50_000 };
        let stop = AtomicBool::new(false);
        keep();
        std::thread::scope(|s| {
            s.spawn(|| {
                for _ in 0..rounds {
                    inode.state.write().records += 1;
                    std::thread::yield_now();
                }
                stop.store(true, Ordering::Release);
            });
            s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    keep();
                }
            });
            while !stop.load(Ordering::Relaxed) {
                if let Some(g) = inode.state.size_snapshot()
                    && let Some(known) = cache.get(g.records, 0, 0)
                    && inode.state.validate(g.changes)
                {
                    assert_eq!(known, place(g.records));
                }
            }
        });
    }

    #[test]
    fn cache_parts_stay_apart_and_drop_overflow() {
        let cache = ExtentCache::default();
        let keep = |records, part, what| cache.put(records, part, (0, BLOCKS), what, || true);
        let parts = [0, 1, 511, 512, 513, 1535, 1536, 1537, 4095, 10_000];
        for part in parts {
            keep(7, part, CachedExtent::Leaf(Bno(part + 1)));
        }
        for part in parts {
            assert_eq!(
                cache.get(7, part, 0),
                Some(CachedExtent::Leaf(Bno(part + 1)))
            );
        }
        let most = FIRST * ((2 << PART_TABLES) - 1);
        keep(7, most - 1, CachedExtent::Leaf(Bno(3)));
        assert_eq!(cache.get(7, most - 1, 0), Some(CachedExtent::Leaf(Bno(3))));
        for part in [most, 1 << 50, u64::MAX] {
            keep(7, part, CachedExtent::Leaf(Bno(5)));
            assert_eq!(cache.get(7, part, 0), None);
        }
        for (records, block) in [(9, 1 << 32), (9, 5 | 1 << 32), (u64::MAX, 5)] {
            keep(records, 2, CachedExtent::Leaf(Bno(block)));
            keep(records, 2, CachedExtent::Block(Bno(block)));
            assert_eq!(cache.get(records, 2, 0), None);
        }
        keep(9 | 1 << 32, 2, CachedExtent::Leaf(Bno(5)));
        assert_eq!(cache.get(9, 2, 0), None);
    }

    #[test]
    fn blocks_per_cache_part_are_bounded() {
        let cache = ExtentCache::default();
        let keep = |part, within, block| {
            cache.put(
                7,
                part,
                (within, BLOCKS),
                CachedExtent::Block(Bno(block)),
                || true,
            );
        };
        let most = (MAX_BYTES / (size_of::<Blocks>() + BLOCKS * size_of::<Place>())) as u64;
        for part in 0..most + 5 {
            for (within, block) in [(3, 50), (4, 90), (5, 70)] {
                keep(part, within, block);
            }
        }
        let get = |part, within| cache.get(7, part, within);
        assert_eq!(get(most - 1, 3), Some(CachedExtent::Block(Bno(50))));
        assert_eq!(get(most - 1, 5), Some(CachedExtent::Block(Bno(70))));
        assert_eq!(get(most + 4, 5), None);
        assert!(*cache.bytes.lock() <= MAX_BYTES && *cache.bytes.lock() > MAX_BYTES - (4 << 10));
        cache.put(7, most, (0, BLOCKS), CachedExtent::Leaf(Bno(6)), || true);
        assert_eq!(get(most, 3), Some(CachedExtent::Leaf(Bno(6))));
    }

    /// The cache returns the places that were put, in any order, on a run or not.
    #[test]
    fn cache_returns_blocks_at_any_distance() {
        let order = |i: usize| (i * 77 + 13) % BLOCKS;
        let ways: [fn(usize) -> u32; 7] = [
            |i| 5 + i as u32,
            |i| 1000 + 2 * i as u32,
            |i| 100_000 - 3 * i as u32,
            |i| u32::MAX - 7 * (BLOCKS - i) as u32,
            |i| (i as u32).wrapping_mul(0x9e37_79b9) | 1,
            |i| if i == 400 { 9 } else { 1000 + 2 * i as u32 },
            |_| 44,
        ];
        for (way, place) in ways.into_iter().enumerate() {
            let cache = ExtentCache::default();
            // The second round follows another record of the inode.
            for records in [7, 8] {
                for n in 0..BLOCKS {
                    let what = CachedExtent::Block(Bno(place(order(n)).into()));
                    cache.put(records, 2, (order(n), BLOCKS), what, || true);
                    for m in (0..BLOCKS).filter(|&m| m < 9 || m.abs_diff(n) < 3) {
                        let expect = CachedExtent::Block(Bno(place(order(m)).into()));
                        let found = cache.get(records, 2, order(m));
                        assert_eq!(found, (m <= n).then_some(expect), "{way}: {m} after {n}");
                    }
                }
            }
            let part = &cache.first.get().unwrap()[2];
            let blocks = part.blocks.get().unwrap();
            let regular = blocks.others.get().is_none();
            assert_eq!(regular, [0, 1, 3].contains(&way), "{way}");
            let on_run = (0..BLOCKS).filter(|&i| blocks.is_known(i)).count();
            assert_eq!(on_run, [512, 512, 1, 512, 2, 511, 1][way], "{way}");
        }
    }

    /// An open file reads the right bytes after each kind of change of its map.
    #[test]
    fn reader_sees_every_map_change() {
        use crate::api::OpenOptions;
        use crate::{AtimePolicy, MountOptions, inode::Fs};
        use pramfs_medium::format::{FormatOptions, format};
        use pramfs_medium::pmem::{HeapBackend, Region};
        use pramfs_medium::types::Fallocate;

        const PART: u64 = 2 << 20;
        let region = Region::new("test", HeapBackend::boxed(32 << 20));
        format(&region, &FormatOptions::default()).unwrap();
        // Reads then take no lock to set an atime.
        let options = MountOptions {
            atime: AtimePolicy::NoAtime,
            ..MountOptions::default()
        };
        let fs = Fs::open(region, options).unwrap();
        let open = |name: &str| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .open(&fs, name)
                .unwrap()
        };
        let (file, other) = (open("/file"), open("/other"));
        // A part in single blocks, separated by those of another file, and one in a
        // huge leaf.
        for at in (0..PART).step_by(4096) {
            file.write_at(&[1; 4096], at).unwrap();
            other.write_at(&[9; 4096], at).unwrap();
        }
        file.write_at(&vec![1; PART as usize], PART).unwrap();
        let places = [0, 8 * 4096, 8 * 4096 + 100, PART, PART + 64 * 4096];
        let expect = |at: u64, byte: u8| {
            let mut bytes = [7; 3000];
            for _ in 0..3 {
                assert_eq!(file.read_at(&mut bytes, at).unwrap(), 3000, "at {at}");
                assert_eq!(bytes, [byte; 3000], "at {at}");
            }
        };
        places.iter().for_each(|&at| expect(at, 1));
        let records = file.inode.state.read().records;
        let known = |at: u64| {
            let (part, within) = (at / PART, at % PART / 4096);
            file.extents.get(records, part, within as usize)
        };
        for &at in &places {
            assert_eq!(matches!(known(at), Some(CachedExtent::Leaf(_))), at >= PART);
            assert_eq!(matches!(known(at), Some(CachedExtent::Block(_))), at < PART);
        }
        assert_eq!(known(4096), None);
        for &at in &places {
            let block = at / 4096 * 4096;
            file.write_at(&[2; 3000], at).unwrap();
            expect(at, 2);
            file.fallocate(Fallocate::PunchHole, block, 4096).unwrap();
            expect(at, 0);
            file.write_at(&[3; 3000], at).unwrap();
            expect(at, 3);
            file.fallocate(Fallocate::ZeroRange { keep_size: true }, block, 4096)
                .unwrap();
            expect(at, 0);
            file.write_at(&[4; 3000], at).unwrap();
            expect(at, 4);
        }
        file.set_len(100).unwrap();
        // Another file gets the blocks and fills them.
        other.write_at(&vec![9; PART as usize], PART).unwrap();
        assert_eq!(file.read_at(&mut [0; 10], PART).unwrap(), 0);
        file.set_len(2 * PART).unwrap();
        places[1..].iter().for_each(|&at| expect(at, 0));
        // New writes go to new blocks, not to the former ones.
        for &at in &places {
            file.write_at(&[5; 3000], at).unwrap();
            expect(at, 5);
        }
        let mut theirs = vec![0; 2 * PART as usize];
        assert_eq!(other.read_at(&mut theirs, 0).unwrap(), theirs.len());
        assert!(theirs.iter().all(|&b| b == 9));
    }
}
