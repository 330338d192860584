//! File contents against a plain vector, at every block size, on a region that
//! was full of other bytes before; and what the operations cost in fences.

use crate::credentials::Credentials;
use crate::fs::Fs;
use crate::fs::options::MountOptions;
use pramfs_medium::error::Error;
use pramfs_medium::format::{FormatOptions, format};
use pramfs_medium::journal::set_thread_lane;
use pramfs_medium::map::{self, Node};
use pramfs_medium::pmem::{HeapBackend, PmemBackend, Region, SimBackend};
use pramfs_medium::types::{Fallocate, FileBlock, FileExtent, Ino, SeekWhence, SetAttr};

/// What the region is full of before it is formatted: nobody may ever read it.
const STALE: u8 = 0xd7;

pub(crate) fn mount(backend: Box<dyn PmemBackend>, block_size: u32) -> Fs {
    let region = Region::new("test", backend);
    for at in (0..region.len()).step_by(1 << 20) {
        let n = (region.len() - at).min(1 << 20) as usize;
        region
            .window()
            .store_unflushed(at, &vec![STALE; n])
            .unwrap();
    }
    let options = FormatOptions {
        block_size,
        uuid: Some([9; 16]),
        hash_seed: Some([2; 16]),
        ..FormatOptions::default()
    };
    format(&region, &options).unwrap();
    set_thread_lane(0);
    Fs::open(
        region,
        MountOptions {
            background: false,
            ..MountOptions::default()
        },
    )
    .unwrap()
}

pub(crate) fn new_file(fs: &Fs, name: &[u8]) -> Ino {
    fs.create(&Credentials::ROOT, Ino::ROOT, name, 0o644)
        .unwrap()
        .ino
}

pub(crate) fn truncate(fs: &Fs, ino: Ino, size: u64) -> crate::Result<()> {
    fs.setattr(
        &Credentials::ROOT,
        ino,
        &SetAttr {
            size: Some(size),
            ..SetAttr::default()
        },
    )
    .map(|_| ())
}

/// Every block of the map is counted in the inode.
pub(crate) fn check_blocks(fs: &Fs, ino: Ino) {
    let inode = fs.iget(ino).unwrap();
    let state = inode.state.read();
    let mut owned = 0;
    map::visit(&fs.vol, &state.map(), &mut |node| {
        match node {
            Node::Table { .. } => owned += 1,
            Node::Leaf { count, .. } => owned += count,
            Node::Damaged { error, .. } => panic!("{error}"),
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(owned, state.disk.blocks);
}

pub(crate) struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

struct Fixture {
    fs: Fs,
    ino: Ino,
    model: Vec<u8>,
    rng: Rng,
    /// Bytes that the file grows to.
    most: u64,
    record_id: u8,
}

impl Fixture {
    fn offset(&mut self) -> u64 {
        match self.rng.below(4) {
            0 => self.model.len() as u64,
            1 => self.rng.below(self.most) & !0xfff,
            2 => {
                (self.rng.below(self.most) & !0x1f_ffff) + self.rng.below(2) * self.rng.below(5000)
            }
            _ => self.rng.below(self.most),
        }
    }

    fn len(&mut self) -> u64 {
        match self.rng.below(10) {
            0 => 1 + self.rng.below(self.most / 3),
            1 => 4096 * (1 + self.rng.below(8)),
            n => 1 + self.rng.below(1 << (n + 5)),
        }
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        self.record_id = self.record_id.wrapping_add(1);
        if self.record_id == 0 || self.record_id == STALE {
            self.record_id += 1;
        }
        (0..len)
            .map(|i| {
                if i % 61 == 0 {
                    self.record_id ^ 1
                } else {
                    self.record_id
                }
            })
            .map(|b| if b == STALE { 3 } else { b })
            .collect()
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if self.model.len() < at + bytes.len() {
            self.model.resize(at + bytes.len(), 0);
        }
        self.model[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn write(&mut self, append: bool) {
        let offset = if append {
            self.model.len() as u64
        } else {
            self.offset()
        };
        let len = self.len();
        if offset + len > self.most * 2 {
            return;
        }
        let bytes = self.bytes(len);
        if append {
            match self.fs.append(&Credentials::ROOT, self.ino, &bytes) {
                Ok(at) => {
                    assert_eq!(at, offset);
                    self.put(at as usize, &bytes);
                }
                Err(Error::NoSpace(_)) => {}
                Err(e) => panic!("{e}"),
            }
        } else {
            match self.fs.write(&Credentials::ROOT, self.ino, offset, &bytes) {
                Ok(n) => self.put(offset as usize, &bytes[..n]),
                Err(Error::NoSpace(_)) => {}
                Err(e) => panic!("{e}"),
            }
        }
    }

    fn fallocate(&mut self) {
        let (offset, len) = (self.offset(), self.len());
        let end = offset + len;
        if end > self.most * 2 {
            return;
        }
        let keep_size = self.rng.below(2) == 0;
        let what = match self.rng.below(3) {
            0 => Fallocate::Allocate { keep_size },
            1 => Fallocate::PunchHole,
            _ => Fallocate::ZeroRange { keep_size },
        };
        match self
            .fs
            .fallocate(&Credentials::ROOT, self.ino, what, offset, len)
        {
            Ok(()) => {}
            // Zeroing in place has happened all the same.
            Err(Error::NoSpace(_)) if matches!(what, Fallocate::Allocate { .. }) => return,
            Err(Error::NoSpace(_)) => {
                let end = end.min(self.model.len() as u64);
                if offset < end {
                    self.model[offset as usize..end as usize].fill(0);
                }
                return;
            }
            Err(e) => panic!("{e}"),
        }
        if !matches!(what, Fallocate::Allocate { .. }) {
            let end = end.min(self.model.len() as u64);
            if offset < end {
                self.model[offset as usize..end as usize].fill(0);
            }
        }
        let grows = matches!(
            what,
            Fallocate::Allocate { keep_size: false } | Fallocate::ZeroRange { keep_size: false }
        );
        if grows && end > self.model.len() as u64 {
            self.model.resize(end as usize, 0);
        }
    }

    fn truncate(&mut self) {
        let size = if self.rng.below(6) == 0 {
            self.rng.below(5000)
        } else {
            self.offset()
        };
        truncate(&self.fs, self.ino, size).unwrap();
        self.model.resize(size as usize, 0);
    }

    fn seek(&mut self) {
        let offset = self.offset();
        let size = self.model.len() as u64;
        for whence in [SeekWhence::Data, SeekWhence::Hole] {
            match self.fs.seek(self.ino, offset, whence) {
                Ok(at) => {
                    assert!(offset < size && at >= offset && at <= size);
                    if whence == SeekWhence::Data {
                        assert!(
                            self.model[offset as usize..at as usize]
                                .iter()
                                .all(|b| *b == 0)
                        );
                    }
                }
                Err(Error::NoSuchAddress(_)) => {
                    assert!(offset >= size || whence == SeekWhence::Data);
                    if offset < size {
                        assert!(self.model[offset as usize..].iter().all(|b| *b == 0));
                    }
                }
                Err(e) => panic!("{e}"),
            }
        }
    }

    fn extents(&mut self) {
        let size = self.model.len() as u64;
        let list = self.fs.file_extents(self.ino, 0, u64::MAX).unwrap();
        let mut at = 0;
        for FileExtent {
            file_offset,
            region_offset,
            len,
            unwritten,
            lost,
        } in list
        {
            assert!(!lost);
            assert_eq!(file_offset, at);
            let want = &self.model[at as usize..(at + len) as usize];
            match region_offset.filter(|_| !unwritten) {
                Some(r) => {
                    let mut got = vec![0; len as usize];
                    self.fs.region().read(r, &mut got).unwrap();
                    assert!(got == want);
                }
                None => assert!(want.iter().all(|b| *b == 0)),
            }
            at += len;
        }
        assert_eq!(at, size);
    }

    fn read(&mut self, offset: u64, len: u64) {
        let mut got = vec![0xee; len as usize];
        let n = self.fs.read(self.ino, offset, &mut got).unwrap();
        let from = self.model.len().min(offset as usize);
        let to = self.model.len().min((offset + len) as usize);
        assert_eq!(n, to - from);
        if let Some(i) = (0..n).find(|&i| got[i] != self.model[from + i]) {
            panic!(
                "byte {}: {:#x} for {:#x}",
                from + i,
                got[i],
                self.model[from + i]
            );
        }
        let mut lent = 0;
        let there = self
            .fs
            .with_contiguous(self.ino, offset, len as usize, &mut |bytes| {
                lent = bytes.len()
            })
            .unwrap();
        assert!(there.is_none_or(|m| m == n && lent == n));
    }

    fn step(&mut self) {
        match self.rng.below(16) {
            0..6 => self.write(false),
            6..8 => self.write(true),
            8..10 => self.truncate(),
            10..13 => self.fallocate(),
            13 => self.seek(),
            14 => self.extents(),
            _ => {
                let (offset, len) = (self.offset(), self.len());
                self.read(offset, len);
            }
        }
    }

    fn check(&mut self) {
        assert_eq!(
            self.fs.getattr(self.ino).unwrap().size,
            self.model.len() as u64
        );
        self.read(0, self.model.len() as u64 + 10);
        check_blocks(&self.fs, self.ino);
    }
}

fn model(block_size: u32, region: usize, most: u64, steps: u32) {
    for seed in 1..=4 {
        let fs = mount(HeapBackend::boxed(region), block_size);
        let free = |fs: &Fs| fs.statfs().unwrap().free;
        // The first file makes the directory's block and the groups.
        let filler = new_file(&fs, b"filler");
        let all = free(&fs) << fs.vol.geo.block_log2;
        let _ = fs.fallocate(
            &Credentials::ROOT,
            filler,
            Fallocate::Allocate { keep_size: false },
            0,
            all - all / 16,
        );
        fs.unlink(Ino::ROOT, b"filler").unwrap();
        let ino = new_file(&fs, b"file");
        fs.vol.retire_pending().unwrap();
        let before = free(&fs);
        let mut fixture = Fixture {
            fs,
            ino,
            model: Vec::new(),
            rng: Rng(0x9876_5432_1fed * seed),
            most,
            record_id: 0,
        };
        for i in 0..steps {
            fixture.step();
            if i % 8 == 0 {
                fixture.check();
            }
        }
        fixture.check();
        fixture.fs.unlink(Ino::ROOT, b"file").unwrap();
        fixture.fs.vol.retire_pending().unwrap();
        let after = free(&fixture.fs);
        assert!(
            after >= before - 2 && after <= before + 1,
            "{before} {after}"
        );
    }
}

#[test]
fn files_match_vec_with_512_byte_blocks() {
    model(512, 4 << 20, 300 << 10, 300);
}

#[test]
fn files_match_vec_with_1024_byte_blocks() {
    model(1024, 4 << 20, 700 << 10, 300);
}

#[test]
fn files_match_vec_with_2048_byte_blocks() {
    model(2048, 8 << 20, 1 << 20, 300);
}

#[test]
fn files_match_vec_with_4096_byte_blocks() {
    model(4096, 64 << 20, 10 << 20, 300);
}

#[test]
fn files_match_vec_in_nearly_full_region() {
    model(512, 1 << 20, 700 << 10, 300);
    model(4096, 8 << 20, 8 << 20, 200);
}

#[test]
fn write_at_maximum_offset_is_short_or_fails() {
    let fs = mount(HeapBackend::boxed(4 << 20), 4096);
    let ino = new_file(&fs, b"file");
    let max = i64::MAX as u64;
    assert!(matches!(
        fs.write(&Credentials::ROOT, ino, max, b"x"),
        Err(Error::TooLarge(_))
    ));
    assert!(matches!(
        fs.write(&Credentials::ROOT, ino, u64::MAX, b"x"),
        Err(Error::TooLarge(_))
    ));
    assert_eq!(
        fs.write(&Credentials::ROOT, ino, max - 2, b"xyz").unwrap(),
        2
    );
    assert_eq!(fs.getattr(ino).unwrap().size, max);
    assert!(matches!(
        fs.append(&Credentials::ROOT, ino, b"x"),
        Err(Error::TooLarge(_))
    ));
    let mut two = [0; 9];
    assert_eq!(fs.read(ino, max - 2, &mut two).unwrap(), 2);
    assert_eq!(&two[..2], b"xy");
    assert_eq!(fs.seek(ino, 0, SeekWhence::Data).unwrap(), max & !4095);
    assert!(matches!(
        truncate(&fs, ino, max + 1),
        Err(Error::TooLarge(_))
    ));
    let all = Fallocate::Allocate { keep_size: false };
    assert!(matches!(
        fs.fallocate(&Credentials::ROOT, ino, all, max, 1),
        Err(Error::TooLarge(_))
    ));
    assert!(matches!(
        fs.fallocate(&Credentials::ROOT, ino, all, 1, u64::MAX),
        Err(Error::TooLarge(_))
    ));
    assert!(matches!(
        fs.fallocate(&Credentials::ROOT, ino, all, 1, 0),
        Err(Error::Invalid(_))
    ));
    truncate(&fs, ino, 0).unwrap();
    check_blocks(&fs, ino);
    assert_eq!(fs.getattr(ino).unwrap().blocks, 0);
}

#[test]
fn write_in_full_region_is_short_then_enospc() {
    let fs = mount(HeapBackend::boxed(2 << 20), 4096);
    let ino = new_file(&fs, b"file");
    let big = vec![1; 4 << 20];
    let n = fs.write(&Credentials::ROOT, ino, 0, &big).unwrap();
    assert!(n > 1 << 20 && n < 2 << 20);
    assert_eq!(fs.getattr(ino).unwrap().size, n as u64);
    assert!(matches!(
        fs.write(&Credentials::ROOT, ino, n as u64 + 4096, b"x"),
        Err(Error::NoSpace(_))
    ));
    assert!(matches!(
        fs.append(&Credentials::ROOT, ino, &big),
        Err(Error::NoSpace(_))
    ));
    assert_eq!(fs.getattr(ino).unwrap().size, n as u64);
    let all = Fallocate::Allocate { keep_size: true };
    assert!(matches!(
        fs.fallocate(&Credentials::ROOT, ino, all, 0, 1 << 30),
        Err(Error::NoSpace(_))
    ));
    check_blocks(&fs, ino);
    // What is full can be emptied, and then filled again.
    truncate(&fs, ino, 5000).unwrap();
    assert_eq!(
        fs.write(&Credentials::ROOT, ino, 0, &big[..1 << 20])
            .unwrap(),
        1 << 20
    );
    fs.unlink(Ino::ROOT, b"file").unwrap();
}

#[test]
fn large_aligned_file_uses_large_leaves() {
    let fs = mount(HeapBackend::boxed(32 << 20), 4096);
    let ino = new_file(&fs, b"file");
    for _ in 0..4 {
        fs.append(&Credentials::ROOT, ino, &vec![5; 1 << 20])
            .unwrap();
    }
    // Two leaves and one pointer block above them.
    assert_eq!(fs.getattr(ino).unwrap().blocks, 1025 * 8);
    let list = fs.file_extents(ino, 0, 4 << 20).unwrap();
    assert!(
        list.iter()
            .all(|e| e.region_offset.unwrap() % (2 << 20) == 0 && e.len >= 2 << 20)
    );
    let other = new_file(&fs, b"other");
    fs.fallocate(
        &Credentials::ROOT,
        other,
        Fallocate::Allocate { keep_size: false },
        4096,
        6 << 20,
    )
    .unwrap();
    let list = fs.file_extents(other, 0, 8 << 20).unwrap();
    assert!(
        list.iter()
            .any(|e| e.file_offset == 2 << 20 && e.region_offset.unwrap() % (2 << 20) == 0)
    );
    fs.fill(other, 0, 6 << 20).unwrap();
    let list = fs.file_extents(other, 0, 8 << 20).unwrap();
    assert!(list.iter().all(|e| e.region_offset.is_some()));
    let mut bytes = vec![1; 6 << 20];
    fs.read(other, 0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|b| *b == 0));
}

#[test]
fn mount_finishes_truncate_after_crash() {
    // Scattered blocks: two files that grow in turns.
    let backend = SimBackend::new(8 << 20).unwrap();
    let fs = mount(Box::new(backend), 512);
    let (a, b) = (new_file(&fs, b"a"), new_file(&fs, b"b"));
    for _ in 0..1200 {
        fs.append(&Credentials::ROOT, a, &[1; 512]).unwrap();
        fs.append(&Credentials::ROOT, b, &[2; 512]).unwrap();
    }
    // The first record of the truncation, and no more of it.
    let slot = {
        let inode = fs.iget(a).unwrap();
        let mut state = inode.state.write();
        let mut new = state.disk;
        new.size = 100;
        let mut tx = fs.vol.begin();
        let slot = fs.put_orphan(&mut tx, a).unwrap();
        crate::fs::engine::change::put_inode(&mut tx, &inode, &state, &mut new).unwrap();
        tx.commit().unwrap();
        state.committed(&new);
        slot
    };
    let image = {
        let mut bytes = vec![0; fs.region().len() as usize];
        fs.region().read(0, &mut bytes).unwrap();
        bytes
    };
    drop(fs);
    for background in [false, true] {
        for what in 0..3 {
            let region = Region::new("again", Box::new(SimBackend::from_image(&image).unwrap()));
            let fs = Fs::open(
                region,
                MountOptions {
                    background,
                    ..MountOptions::default()
                },
            )
            .unwrap();
            match what {
                // Extended before or after it is finished: nothing old is seen.
                0 => {
                    truncate(&fs, a, 100_000).unwrap();
                    let mut bytes = vec![7; 100_000];
                    fs.read(a, 0, &mut bytes).unwrap();
                    assert!(
                        bytes[..100].iter().all(|b| *b == 1)
                            && bytes[100..].iter().all(|b| *b == 0)
                    );
                }
                1 => assert_eq!(fs.append(&Credentials::ROOT, a, &[3; 10]).unwrap(), 100),
                _ => fs.unlink(Ino::ROOT, b"a").unwrap(),
            }
            while fs
                .iget(a)
                .is_ok_and(|i| i.state.read().orphan_slot.is_some())
            {
                std::thread::yield_now();
            }
            if what < 2 {
                // One of data, and two pointer blocks above it.
                assert_eq!(fs.getattr(a).unwrap().blocks, 3);
                check_blocks(&fs, a);
            }
            let word = {
                let table = fs.iget(Ino::ORPHANS).unwrap();
                let state = table.state.read();
                let block = map::find(&fs.vol, &state.map(), FileBlock(0))
                    .unwrap()
                    .block
                    .unwrap();
                fs.vol
                    .region
                    .load_u64(fs.vol.geo.offset(block) + u64::from(slot) * 8)
                    .unwrap()
            };
            assert_eq!(word, 0);
            assert!(!fs.is_read_only());
            fs.close().unwrap();
        }
    }
}

/// Fences and bytes of one operation, on the mean.
fn cost(fs: &Fs, backend: &SimBackend, times: u64, mut f: impl FnMut(u64)) -> (f64, u64) {
    let _ = fs;
    let (mut worst, before) = (0, backend.counters());
    for i in 0..times {
        let fences = backend.counters().fences;
        f(i);
        worst = worst.max(backend.counters().fences - fences);
    }
    (
        (backend.counters().fences - before.fences) as f64 / times as f64,
        worst,
    )
}

#[test]
fn file_operations_stay_within_fence_budget() {
    let sim = SimBackend::new(64 << 20).unwrap();
    sim.recording(false);
    let fs = mount(Box::new(sim.clone()), 4096);
    let ino = new_file(&fs, b"file");
    let block = [1; 4096];
    let n = 2000;
    let budget = |what: &str, most: f64, (mean, worst): (f64, u64)| {
        println!("{what:40} {mean:6.3} worst {worst}");
        assert!(mean <= most, "{what}: {mean} fences");
    };
    budget(
        "append with allocation",
        2.01,
        cost(&fs, &sim, n, |_| {
            _ = fs.append(&Credentials::ROOT, ino, &block).unwrap()
        }),
    );
    budget(
        "append of 100 bytes",
        2.01,
        cost(&fs, &sim, n, |_| {
            _ = fs.append(&Credentials::ROOT, ino, &block[..100]).unwrap();
        }),
    );
    budget(
        "overwrite",
        1.0,
        cost(&fs, &sim, n, |i| {
            _ = fs.write(&Credentials::ROOT, ino, i * 4096, &block).unwrap();
        }),
    );
    budget(
        "overwrite, unaligned",
        1.0,
        cost(&fs, &sim, n, |i| {
            _ = fs
                .write(&Credentials::ROOT, ino, i * 4000 + 7, &block)
                .unwrap();
        }),
    );
    let other = new_file(&fs, b"other");
    fs.fallocate(
        &Credentials::ROOT,
        other,
        Fallocate::Allocate { keep_size: true },
        4096,
        n * 4096,
    )
    .unwrap();
    budget(
        "append into preallocated",
        2.01,
        cost(&fs, &sim, n, |_| {
            _ = fs.append(&Credentials::ROOT, other, &block).unwrap()
        }),
    );
    let third = new_file(&fs, b"third");
    let alloc = Fallocate::Allocate { keep_size: false };
    budget(
        "fallocate",
        2.01,
        cost(&fs, &sim, n, |i| {
            fs.fallocate(&Credentials::ROOT, third, alloc, i * 4096, 4096)
                .unwrap()
        }),
    );
    budget(
        "punch hole",
        2.01,
        cost(&fs, &sim, n / 2, |i| {
            fs.fallocate(
                &Credentials::ROOT,
                ino,
                Fallocate::PunchHole,
                i * 8192,
                4096,
            )
            .unwrap();
        }),
    );
    budget(
        "truncate, shorter",
        2.01,
        cost(&fs, &sim, n, |i| {
            truncate(&fs, other, (n - i - 1) * 4096).unwrap()
        }),
    );
    budget(
        "truncate, longer",
        2.01,
        cost(&fs, &sim, n, |i| truncate(&fs, other, i * 100).unwrap()),
    );
}
