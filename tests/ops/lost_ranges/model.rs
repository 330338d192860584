//! All operations on files with lost ranges of every level, compared with a model.

use std::collections::BTreeSet;

use pramfs::inode::{Fs, Ino, SetAttr};
use pramfs::{Error, Fallocate};
use pramfs_fsck::{CheckOptions, Lost};
use pramfs_medium::media::pointer::Ptr;
use pramfs_tests::random::Random;

use crate::support::lost::{
    CX, bytes, close_and_check, image_of, inode, list, open, repair_all, slot_of,
};

/// A file whose blocks are bytes, or lost.
struct Model {
    bytes: Vec<u8>,
    lost: BTreeSet<u64>,
    block: u64,
}

impl Model {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Whether a range covers a block up to EOF.
    fn covers(&self, b: u64, from: u64, to: u64) -> bool {
        let (start, end) = (b * self.block, ((b + 1) * self.block).min(self.size()));
        start >= end || from <= start && end <= to
    }

    /// The part of a write that succeeds.
    fn write(&mut self, at: u64, from: &[u8]) -> Option<usize> {
        let end = at + from.len() as u64;
        let blocks = at / self.block..=(end - 1) / self.block;
        let stop = blocks
            .clone()
            .find(|b| self.lost.contains(b) && !self.covers(*b, at, end));
        let end = stop.map_or(end, |b| (b * self.block).max(at));
        if end == at {
            return None;
        }
        self.lost
            .retain(|b| !blocks.contains(b) || b * self.block >= end);
        let len = self.bytes.len().max(end as usize);
        self.bytes.resize(len, 0);
        self.bytes[at as usize..end as usize].copy_from_slice(&from[..(end - at) as usize]);
        Some((end - at) as usize)
    }

    /// Zeroes a range within the file; false if it covers only a part of a lost block.
    fn zero(&mut self, at: u64, end: u64) -> bool {
        let blocks = at / self.block..=(end - 1) / self.block;
        if blocks
            .clone()
            .any(|b| self.lost.contains(&b) && !self.covers(b, at, end))
        {
            return false;
        }
        self.lost.retain(|b| !blocks.contains(b));
        let stop = end.min(self.size()) as usize;
        if (at as usize) < stop {
            self.bytes[at as usize..stop].fill(0);
        }
        true
    }

    fn resize(&mut self, size: u64) {
        self.bytes.resize(size as usize, 0);
        self.lost.retain(|b| b * self.block < size);
    }

    fn holds(&self, fs: &Fs, ino: Ino, what: &str) {
        assert_eq!(fs.getattr(ino).unwrap().size, self.size(), "{what}");
        let mut out = vec![0; self.block as usize];
        for b in 0..self.size().div_ceil(self.block) {
            let at = b * self.block;
            let read = fs.read(ino, at, &mut out);
            if self.lost.contains(&b) {
                assert!(
                    matches!(read, Err(Error::Lost { .. })),
                    "{what}: block {b}: {read:?}"
                );
            } else {
                let n = read.unwrap_or_else(|e| panic!("{what}: block {b}: {e}"));
                assert_eq!(
                    out[..n],
                    self.bytes[at as usize..at as usize + n],
                    "{what}: block {b}"
                );
            }
        }
        let lost: u64 = fs
            .lost_ranges(ino)
            .unwrap()
            .iter()
            .map(|r| r.end - r.start)
            .sum();
        let left = |b: &u64| self.block.min(self.size() - b * self.block);
        assert_eq!(lost, self.lost.iter().map(left).sum::<u64>(), "{what}");
    }
}

/// Damages pointers of every level, in a tree of three levels.
#[test]
fn lost_marks_of_every_level_match_model() {
    const BLOCKS: u64 = 4300;
    let block = 512u64;
    let (image, ino) = image_of(512, (BLOCKS * block) as usize - 100);
    assert_eq!(inode(&image, ino).height, 3);
    for seed in 0..6u64 {
        let mut random = Random::new(seed);
        let mut bad = image.clone();
        let level = (seed % 3) as u32;
        // The block behind it is overwritten too: otherwise the repair would find the
        // pointer block.
        let index = random.below(BLOCKS);
        let at = slot_of(&bad, ino, level, index);
        let below = Ptr(u64::from_le_bytes(bad[at..at + 8].try_into().unwrap())).block();
        bad[at..at + 8].copy_from_slice(&0x1234_5678_9abc_def1u64.to_le_bytes());
        if level > 0 {
            let from = (below.0 * block) as usize;
            bad[from..from + 512].fill(0x77);
        }
        let (region, report) = repair_all(&bad);
        let shift = 6 * level;
        let first = index >> shift << shift;
        let mut fs = open(region);
        let lost = fs.lost_ranges(ino).unwrap();
        let lost = lost
            .iter()
            .flat_map(|r| r.start / block..r.end.div_ceil(block));
        let mut model = Model {
            bytes: bytes((BLOCKS * block) as usize - 100),
            lost: lost.collect(),
            block,
        };
        // Below more than one level, the repair finds the pointer blocks.
        let covered: BTreeSet<u64> = (first..(first + (1 << shift)).min(BLOCKS)).collect();
        let all = model.lost == covered;
        assert!(
            all || level == 2 && model.lost.is_subset(&covered),
            "seed {seed}"
        );
        let told: u64 = (report.lost.iter())
            .map(|l| match l.what {
                Lost::Bytes { len, .. } => len,
                _ => 0,
            })
            .sum();
        let marked = fs.lost_ranges(ino).unwrap();
        let marked: u64 = marked.iter().map(|r| r.end - r.start).sum();
        assert_eq!(told, marked, "seed {seed}: {:?}", report.lost);
        model.holds(&fs, ino, "repaired");
        for n in 0..60 {
            let near = first * block;
            let at = match random.below(3) {
                0 => random.below(model.size() + 2000),
                1 => random.below(model.size() / block + 3) * block,
                _ => near + random.below(4) * block / 2,
            };
            let len = match random.below(3) {
                0 => 1 + random.below(3 * block),
                1 => block * (1 + random.below(3)),
                _ => block * (1 + random.below(90)),
            };
            let what = format!("seed {seed}, step {n}: {at} and {len}");
            match random.below(6) {
                0 | 1 => {
                    let from = vec![n as u8 + 1; len as usize];
                    match (fs.write(&CX, ino, at, &from), model.write(at, &from)) {
                        (Ok(done), Some(wanted)) => assert_eq!(done, wanted, "{what}"),
                        (Err(Error::Lost { .. }), None) => {}
                        other => panic!("{what}: {other:?}"),
                    }
                }
                2 | 3 => {
                    let how = match random.below(2) {
                        0 => Fallocate::PunchHole,
                        _ => Fallocate::ZeroRange { keep_size: true },
                    };
                    let done = fs.fallocate(&CX, ino, how, at, len);
                    let wanted = model.zero(at, at + len);
                    assert_eq!(done.is_ok(), wanted, "{what}: {how:?} {done:?}");
                }
                4 => {
                    let size = if n % 2 == 0 { at } else { model.size() + len };
                    let set = SetAttr {
                        size: Some(size),
                        ..SetAttr::default()
                    };
                    fs.setattr(&CX, ino, &set).unwrap();
                    model.resize(size);
                }
                _ => {
                    let room = Fallocate::Allocate { keep_size: true };
                    let done = fs.fallocate(&CX, ino, room, at, len);
                    let blocks = at / block..=(at + len - 1) / block;
                    let clear = !model.lost.iter().any(|b| blocks.contains(b));
                    assert_eq!(done.is_ok(), clear, "{what}: {done:?}");
                }
            }
            if n % 5 == 0 {
                model.holds(&fs, ino, &what);
            }
            if n % 20 == 19 {
                let (region, report) = pramfs_fsck::check_fs(fs, &CheckOptions::default()).unwrap();
                assert!(report.is_clean(), "{what}: {report}");
                fs = open(region.unwrap());
                model.holds(&fs, ino, &what);
            }
        }
        model.holds(&fs, ino, "at the end");
        // After writing from end to end, nothing is lost.
        let all = bytes(model.bytes.len().max(1));
        assert_eq!(fs.write(&CX, ino, 0, &all).unwrap(), all.len());
        assert_eq!(list(&fs, ino), None);
        fs.unlink(fs.lookup(Ino::ROOT, b"dir").unwrap().ino, b"file")
            .unwrap();
        close_and_check(fs);
    }
}
