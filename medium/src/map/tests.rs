//! Compares the file map with a plain table, at every block size.

mod damage;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::format::{FormatOptions, format};
use crate::journal::{Rules, set_thread_lane};
use crate::media::superblock::{BLOCK_GROUPS_OFFSET, INODE_GROUPS_OFFSET};
use crate::media::{DiskInode, SuperStatic};
use crate::pmem::{HeapBackend, Region};
use crate::types::BlockRun;

/// File blocks are plain numbers in these tests.
mod plain {
    use super::super as map;
    use super::*;
    use crate::media::walk::Leaf;
    use crate::types::FileBlock;
    use crate::volume::Plan;

    pub fn run(vol: &Volume, map: &MapRef, index: u64, max: u64) -> Result<Extent> {
        map::run(vol, map, FileBlock(index), max)
    }
    pub fn find(vol: &Volume, map: &MapRef, index: u64) -> Result<Leaf> {
        map::find(vol, map, FileBlock(index))
    }
    pub fn plan(tx: &Record<'_>, map: &MapRef, index: u64, max: u64) -> Result<u64> {
        map::plan(tx, map, FileBlock(index), max)
    }
    pub fn plan_huge(tx: &Record<'_>, map: &MapRef, index: u64) -> Result<bool> {
        map::plan_huge(tx, map, FileBlock(index))
    }
    pub fn insert(
        tx: &mut Plan<'_>,
        map: &mut MapRef,
        index: u64,
        run: BlockRun,
        unwritten: bool,
    ) -> Result<()> {
        map::insert(tx, map, FileBlock(index), run, unwritten)
    }
    pub fn insert_huge(
        tx: &mut Plan<'_>,
        map: &mut MapRef,
        index: u64,
        run: BlockRun,
        unwritten: bool,
    ) -> Result<()> {
        map::insert_huge(tx, map, FileBlock(index), run, unwritten)
    }
    pub fn set_written(tx: &mut Plan<'_>, map: &mut MapRef, index: u64, count: u64) -> Result<u64> {
        map::set_written(tx, map, FileBlock(index), count)
    }
    pub fn remove(tx: &mut Plan<'_>, map: &mut MapRef, from: u64, to: u64) -> Result<u64> {
        let next = map::remove(tx, map, FileBlock(from), FileBlock(to))?;
        Ok(next.0)
    }
}
use plain::{find, insert, insert_huge, plan, plan_huge, remove, run, set_written};

const INO: Ino = Ino(77);

fn volume(block_size: u32, len: usize) -> Volume {
    set_thread_lane(0);
    let region = Region::new("test", HeapBackend::boxed(len));
    let options = FormatOptions {
        block_size,
        uuid: Some([7; 16]),
        hash_seed: Some([1; 16]),
        ..FormatOptions::default()
    };
    format(&region, &options).unwrap();
    let geo = Geometry::new(&region.read_pod::<SuperStatic>(0).unwrap());
    let root = |at, ino| {
        let d: DiskInode = region.read_pod(at).unwrap();
        MapRoot {
            ino,
            root: Ptr(d.root),
            height: u32::from(d.height),
        }
    };
    let roots = crate::volume::GroupRoots {
        blocks: root(BLOCK_GROUPS_OFFSET, Ino::BLOCK_GROUPS),
        inodes: root(INODE_GROUPS_OFFSET, Ino::INODE_GROUPS),
    };
    Volume::new(region, geo, 1, roots, Rules::default())
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

struct Fixture {
    vol: Arc<Volume>,
    map: MapRef,
    model: BTreeMap<u64, (u64, bool)>,
    rng: Rng,
    /// Sum of free blocks, blocks of the map and groups made. It never changes.
    total: u64,
}

impl Fixture {
    fn new(block_size: u32, len: usize, seed: u64) -> Fixture {
        let vol = Arc::new(volume(block_size, len));
        let map = MapRef {
            ino: INO,
            root: Ptr::HOLE,
            height: 0,
            blocks: 0,
            healed: false,
        };
        let mut fixture = Fixture {
            vol,
            map,
            model: BTreeMap::new(),
            rng: Rng(seed),
            total: 0,
        };
        fixture.total = fixture.count();
        fixture
    }

    fn count(&self) -> u64 {
        self.vol.retire_pending().unwrap();
        let (set, vol) = (&self.vol.blocks, &self.vol);
        let made = (0..set.groups())
            .filter(|g| set.is_made(vol.medium(), *g).unwrap())
            .count() as u64;
        vol.free_blocks().0 + made + self.map.blocks as u64
    }

    /// Returns a random number from 1 to 2^(log2 - 1), more often a small one.
    fn small(&mut self, log2: u64) -> u64 {
        let n = self.rng.below(log2);
        1 + self.rng.below(1 << n)
    }

    fn index(&mut self) -> u64 {
        let log2 = self.vol.geo.block_size.ilog2();
        match self.rng.below(8) {
            0 => (1 << (44 - log2)) - self.rng.below(1500),
            1 => ((i64::MAX as u64) >> log2) - 1000 + self.rng.below(400),
            2 => self.rng.below(1 << (44 - log2)),
            3 => 0,
            _ => self.rng.below(3000),
        }
    }

    fn insert(&mut self) {
        let (vol, mut map) = (self.vol.clone(), self.map);
        let mut tx = vol.begin();
        let mut new: Vec<(u64, BlockRun, bool)> = Vec::new();
        for _ in 0..=self.rng.below(3) {
            let index = self.index();
            let want = self.small(10);
            let unwritten = self.rng.below(3) == 0;
            let goal = (self.rng.below(2) == 0).then(|| self.rng.below(self.vol.geo.blocks()));
            // `run` does not see the changes of this transaction.
            if new.iter().any(|(i, ..)| index.abs_diff(*i) < 1024) {
                continue;
            }
            let e = run(&self.vol, &self.map, index, want).unwrap();
            let past = self.vol.geo.whole_blocks(i64::MAX as u64) + 1;
            if e.block.is_some() {
                continue;
            }
            let n = plan(&tx, &map, index, e.count.min(past - index)).unwrap();
            if n == 0 {
                continue;
            }
            let Ok(run) = tx.alloc_blocks(goal.map(Bno), n as u32, false) else {
                break;
            };
            match insert(&mut tx, &mut map, index, run, unwritten) {
                Ok(()) => new.push((index, run, unwritten)),
                Err(Error::NoSpace(_)) => return,
                Err(e) => panic!("{e}"),
            }
        }
        assert!(tx.room() >= RESERVED_BYTES);
        tx.commit().unwrap();
        self.map = map;
        for (index, run, unwritten) in new {
            for i in 0..run.len {
                assert!(
                    self.model
                        .insert(index + i, (run.start.0 + i, unwritten))
                        .is_none()
                );
            }
        }
    }

    fn insert_huge(&mut self) {
        let index = self.index() & !511;
        let e = run(&self.vol, &self.map, index, 512).unwrap();
        if e.block.is_some() || e.count < 512 {
            return;
        }
        let mut map = self.map;
        let unwritten = self.rng.below(2) == 0;
        let near = self.rng.below(self.vol.geo.blocks());
        let mut tx = self.vol.begin();
        assert!(plan_huge(&tx, &map, index).unwrap());
        let Some(run) = tx.alloc_aligned(Bno(near), 512).unwrap() else {
            return;
        };
        match insert_huge(&mut tx, &mut map, index, run, unwritten) {
            Ok(()) => {}
            Err(Error::NoSpace(_)) => return,
            Err(e) => panic!("{e}"),
        }
        assert!(tx.room() >= RESERVED_BYTES);
        tx.commit().unwrap();
        self.map = map;
        for i in 0..512 {
            assert!(
                self.model
                    .insert(index + i, (run.start.0 + i, unwritten))
                    .is_none()
            );
        }
    }

    fn mapped(&mut self) -> Option<u64> {
        let index = self.index();
        self.model
            .range(index..)
            .next()
            .or(self.model.iter().next())
            .map(|(i, _)| *i)
    }

    fn set_written(&mut self) {
        let Some(mut index) = self.mapped() else {
            return;
        };
        let mut leaf = find(&self.vol, &self.map, index).unwrap();
        let mut count = 1;
        if leaf.count > 1 {
            (index, count) = (leaf.first.0, leaf.count);
        }
        let most = self.rng.below(700);
        while count < most {
            leaf = find(&self.vol, &self.map, index + count).unwrap();
            if leaf.block.is_none() || leaf.count > 1 {
                break;
            }
            count += 1;
        }
        let mut done = 0;
        while done < count {
            let mut map = self.map;
            let mut tx = self.vol.begin();
            let n = set_written(&mut tx, &mut map, index + done, count - done).unwrap();
            assert!(n > 0 && tx.room() >= RESERVED_BYTES);
            tx.commit().unwrap();
            self.map = map;
            done += n;
        }
        for i in index..index + count {
            self.model.get_mut(&i).unwrap().1 = false;
        }
    }

    fn remove(&mut self, from: u64, to: u64) {
        let mut at = from;
        while at < to {
            let mut map = self.map;
            let mut tx = self.vol.begin();
            let next = remove(&mut tx, &mut map, at, to).unwrap();
            assert!(
                next > at && tx.room() >= RESERVED_BYTES,
                "{at} {next} {to} {}",
                tx.room()
            );
            tx.commit().unwrap();
            self.map = map;
            // The range up to `next` is a hole, and the rest is unchanged.
            let gone: Vec<u64> = self.model.range(at..next).map(|(i, _)| *i).collect();
            for i in gone {
                self.model.remove(&i);
            }
            if self.rng.below(4) == 0 {
                self.check();
            }
            at = next;
        }
    }

    fn remove_some(&mut self) {
        let Some(index) = self.mapped() else { return };
        let len = match self.rng.below(12) {
            0 => u64::MAX - index,
            n => self.small(n),
        };
        let from = index.saturating_sub(self.rng.below(4));
        self.remove(from, from + len);
    }

    fn check(&self) {
        let mut found = BTreeMap::new();
        let mut owned = 0;
        let mut used = std::collections::BTreeSet::new();
        visit(&self.vol, &self.map, &mut |node| {
            match node {
                Node::Table { block, .. } => {
                    owned += 1;
                    assert!(used.insert(block.0));
                }
                Node::Leaf {
                    first,
                    count,
                    block,
                    unwritten,
                } => {
                    owned += count;
                    for i in 0..count {
                        assert!(used.insert(block.0 + i));
                        found.insert(first.0 + i, (block.0 + i, unwritten));
                    }
                }
                Node::Damaged { error, .. } => panic!("{error}"),
            }
            Ok(())
        })
        .unwrap();
        assert!(found == self.model);
        assert_eq!(owned, self.map.blocks as u64);
        for b in used {
            assert!(
                self.vol
                    .blocks
                    .is_set_at_home(self.vol.medium(), b)
                    .unwrap()
            );
        }
        assert_eq!(self.count(), self.total);
    }

    fn check_runs(&mut self) {
        let index = self.index();
        let (mut at, end) = (index, index + 300);
        while at < end {
            let e = run(&self.vol, &self.map, at, end - at).unwrap();
            assert!(e.index.0 == at && e.count > 0 && e.count <= end - at);
            for i in 0..e.count {
                let want = self.model.get(&(at + i)).copied();
                assert_eq!(e.block.map(|b| (b.0 + i, e.unwritten)), want);
            }
            at += e.count;
        }
    }

    fn step(&mut self) {
        match self.rng.below(12) {
            0..5 => self.insert(),
            5..7 => self.set_written(),
            7..10 => self.remove_some(),
            10..12 if self.vol.geo.allows_huge_leaves() => self.insert_huge(),
            _ => self.check_runs(),
        }
    }
}

fn model(block_size: u32, len: usize, steps: u32) {
    for seed in 1..=3 {
        let mut fixture = Fixture::new(block_size, len, 0x1234_5678_9abc * seed);
        for i in 0..steps {
            fixture.step();
            if i % 16 == 0 {
                fixture.check();
            }
        }
        fixture.check();
        fixture.remove(0, u64::MAX);
        assert_eq!(
            fixture.map,
            MapRef {
                ino: INO,
                root: Ptr::HOLE,
                height: 0,
                blocks: 0,
                healed: false
            }
        );
        fixture.check();
    }
}

#[test]
fn map_matches_model_with_512_byte_blocks() {
    model(512, 6 << 20, 500);
}

#[test]
fn map_matches_model_with_1024_byte_blocks() {
    model(1024, 8 << 20, 500);
}

#[test]
fn map_matches_model_with_2048_byte_blocks() {
    model(2048, 16 << 20, 500);
}

#[test]
fn map_matches_model_with_4096_byte_blocks() {
    model(4096, 200 << 20, 700);
    // A small region, which is often full.
    model(4096, 12 << 20, 500);
}

#[test]
fn insert_of_last_block_of_largest_file_works() {
    for log2 in 9..=12 {
        let mut fixture = Fixture::new(1 << log2, 1 << 20, 1);
        let last = i64::MAX as u64 >> log2;
        for index in [last, 0] {
            let mut map = fixture.map;
            let mut tx = fixture.vol.begin();
            assert_eq!(plan(&tx, &map, index, 1).unwrap(), 1);
            let run = tx.alloc_blocks(None, 1, true).unwrap();
            insert(&mut tx, &mut map, index, run, false).unwrap();
            tx.commit().unwrap();
            fixture.map = map;
            fixture.model.insert(index, (run.start.0, false));
        }
        assert_eq!(fixture.map.height, fixture.vol.geo.max_height());
        fixture.check();
        let mut tx = fixture.vol.begin();
        let run = tx.alloc_blocks(None, 1, true).unwrap();
        let mut map = fixture.map;
        assert!(matches!(
            insert(&mut tx, &mut map, last + 1, run, false),
            Err(Error::TooLarge(_))
        ));
        assert!(matches!(
            plan(&tx, &map, u64::MAX, 1),
            Err(Error::TooLarge(_))
        ));
        drop(tx);
        fixture.remove(0, u64::MAX);
        fixture.check();
    }
}

#[test]
fn remove_splits_huge_leaf_in_full_region() {
    let mut fixture = Fixture::new(4096, 8 << 20, 1);
    let mut map = fixture.map;
    let mut tx = fixture.vol.begin();
    let run = tx.alloc_aligned(Bno(0), 512).unwrap().unwrap();
    insert_huge(&mut tx, &mut map, 512, run, false).unwrap();
    tx.commit().unwrap();
    drop(tx);
    fixture.map = map;
    (0..512).for_each(|i| {
        assert!(
            fixture
                .model
                .insert(512 + i, (run.start.0 + i, false))
                .is_none()
        )
    });
    let mut filler = MapRef {
        ino: Ino(78),
        root: Ptr::HOLE,
        height: 0,
        blocks: 0,
        healed: false,
    };
    let mut index = 0;
    loop {
        let mut map = filler;
        let mut tx = fixture.vol.begin();
        let n = plan(&tx, &map, index, 100).unwrap();
        let Ok(run) = tx.alloc_blocks(None, n as u32, false) else {
            break;
        };
        match insert(&mut tx, &mut map, index, run, false) {
            Ok(()) => tx.commit().unwrap(),
            Err(Error::NoSpace(_)) => break,
            Err(e) => panic!("{e}"),
        };
        filler = map;
        index += run.len;
    }
    fixture.total -= filler.blocks as u64;
    fixture.remove(600, 601);
    assert_eq!(fixture.model.len(), 511);
    fixture.check();
}
