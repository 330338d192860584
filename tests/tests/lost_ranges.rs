//! Ranges of a file that a repair cannot restore: marked in its map, EIO until written,
//! reported by name, and never mistaken for other data.

use std::collections::BTreeSet;
use std::ops::Range;

use pramfs::Damage;
use pramfs::pmem::Region;
use pramfs::{
    Error, Fallocate, SeekWhence, XattrMode,
    inode::{Credentials, Fs, Ino, SetAttr},
};
use pramfs_fsck::{CheckOptions, Done, Lost, Policy, RepairOptions, Report, check, repair};
use pramfs_medium::journal::Rules;
use pramfs_medium::media::pointer::{Ptr, PtrAt};
use pramfs_medium::media::superblock::INODE_TABLE_OFFSET;
use pramfs_medium::media::{DiskInode, Geometry, probe_superblock};
use pramfs_tests::random::Random;
use pramfs_tests::readable::{bytes_of, copy_of};
use pramfs_tests::recorded::{Recorded, recover};
use pramfs_tests::region::{fresh, inode_home, quiet};
use zerocopy::{FromBytes, IntoBytes};

const LIST: &[u8] = b"system.pramfs.lost";
const FL_LOST: u32 = 1 << 31;
const CX: Credentials<'_> = Credentials::new(0, 0);

/// Bytes that encode their offset in the file.
fn bytes(len: usize) -> Vec<u8> {
    let word = |i: usize| (i as u64 / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..len).map(|i| word(i).to_le_bytes()[i % 8]).collect()
}

/// An image with a file of this length, `/dir/file`.
fn image_of(block: u32, len: usize) -> (Vec<u8>, Ino) {
    let (sim, fs) = fresh(16 << 20, block).unwrap();
    let dir = fs.mkdir(&CX, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    let ino = fs.create(&CX, dir, b"file", 0o644).unwrap().ino;
    fs.write(&CX, ino, 0, &bytes(len)).unwrap();
    fs.close().unwrap();
    (sim.image(), ino)
}

fn geometry(image: &[u8]) -> Geometry {
    probe_superblock(&copy_of(image)).unwrap().geometry()
}

fn inode(image: &[u8], ino: Ino) -> DiskInode {
    let home = inode_home(image, ino);
    DiskInode::read_from_bytes(&image[home..home + 256]).unwrap()
}

fn put_inode(image: &mut [u8], ino: Ino, f: impl FnOnce(&mut DiskInode)) {
    let (home, seed) = (inode_home(image, ino), geometry(image).seed);
    let mut d = inode(image, ino);
    f(&mut d);
    d.seal(seed, ino);
    image[home..home + 256].copy_from_slice(d.as_bytes());
}

/// Location of the pointer of a level that covers a file block.
fn slot_of(image: &[u8], ino: Ino, level: u32, index: u64) -> usize {
    let (geo, d) = (geometry(image), inode(image, ino));
    let (mut at, mut ptr) = (0, Ptr(d.root));
    for below in (level..u32::from(d.height)).rev() {
        let slot = index >> (geo.fan_log2 * below) & ((1 << geo.fan_log2) - 1);
        at = (geo.offset(ptr.block()) + slot * 8) as usize;
        ptr = Ptr(u64::from_le_bytes(image[at..at + 8].try_into().unwrap()));
    }
    at
}

fn repair_all(image: &[u8]) -> (Region, Report) {
    let region = copy_of(image);
    let report = repair(&region, &RepairOptions::new(Policy::Yes)).unwrap();
    assert!(report.is_sound(), "{report}");
    let again = check(&region, &CheckOptions::default());
    assert!(again.is_clean(), "{report}\nand again: {again}");
    (region, report)
}

fn open(region: Region) -> Fs {
    Fs::open(region, quiet()).unwrap()
}

fn is_lost<T: std::fmt::Debug>(result: pramfs::Result<T>) -> bool {
    match result {
        Err(e @ Error::Lost { .. }) => e.errno() == libc::EIO,
        other => panic!("{other:?}"),
    }
}

fn list(fs: &Fs, ino: Ino) -> Option<String> {
    let listed = fs.listxattr(ino).unwrap();
    let named = listed.split(|b| *b == 0).any(|name| name == LIST);
    match fs.getxattr(ino, LIST) {
        Ok(value) => {
            assert!(named);
            Some(String::from_utf8(value).unwrap())
        }
        Err(Error::NoAttribute) => {
            assert!(!named);
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// All lost ranges of a file.
fn is_only(fs: &Fs, ino: Ino, range: Range<u64>) {
    let lost = fs.lost_ranges(ino).unwrap();
    assert_eq!(lost, std::slice::from_ref(&range));
}

/// Checks an unmounted file system.
fn close_and_check(fs: Fs) -> Report {
    let report = pramfs_fsck::check_fs(fs, &CheckOptions::default())
        .unwrap()
        .1;
    assert!(report.is_clean(), "{report}");
    report
}

/// A line of pointers overwritten by random bytes, or zeros.
fn without_a_line(image: &[u8], ino: Ino, index: u64, noise: bool) -> Vec<u8> {
    let mut image = image.to_vec();
    let at = slot_of(&image, ino, 0, index) / 64 * 64;
    image[at..at + 64].fill(0);
    for word in image[at..at + 64].chunks_mut(8).filter(|_| noise) {
        word.copy_from_slice(&0x1234_5678_9abc_def1u64.to_le_bytes());
    }
    image
}

#[test]
fn lost_range_reads_eio_until_written() {
    for (block, noise) in [(512, true), (512, false), (4096, true), (4096, false)] {
        let step = block as usize;
        let len = 30 * step + 100;
        let (image, ino) = image_of(block, len);
        let whole = bytes(len);
        let (region, report) = repair_all(&without_a_line(&image, ino, 8, noise));
        let done: Vec<_> = report.findings.iter().filter_map(|f| f.done).collect();
        assert!(done.contains(&Done::MarkedLost), "{report}");
        let lost: u64 = (report.lost.iter())
            .filter(|l| l.path.as_deref() == Some(b"/dir/file"))
            .map(|l| match l.what {
                Lost::Bytes { len, .. } => len,
                _ => 0,
            })
            .sum();
        assert_eq!(lost, 8 * u64::from(block), "{:?}", report.lost);
        // A check reports it, but not as damage.
        for told in [&report, &check(&region, &CheckOptions::default())] {
            let [mark] = &told.marked[..] else {
                panic!("{told}")
            };
            let (at, len) = (8 * u64::from(block), 8 * u64::from(block));
            assert_eq!(mark.what, Lost::Bytes { at, len });
            assert_eq!(mark.path.as_deref(), Some(&b"/dir/file"[..]));
        }

        let fs = open(region);
        let mut out = vec![0; len];
        assert_eq!(fs.read(ino, 0, &mut out).unwrap(), 8 * step);
        assert_eq!(out[..8 * step], whole[..8 * step]);
        for at in [8 * step, 9 * step + 3, 16 * step - 1] {
            assert!(is_lost(fs.read(ino, at as u64, &mut out)));
        }
        let n = fs.read(ino, 16 * u64::from(block), &mut out).unwrap();
        assert_eq!(out[..n], whole[16 * step..]);
        assert!(is_lost(
            fs.with_contiguous(ino, 8 * u64::from(block), 9, &mut |_| ())
                .and_then(|lent| match lent {
                    None => fs.read(ino, 8 * u64::from(block), &mut out),
                    Some(_) => panic!("lent"),
                })
        ));
        let range = format!("{}+{}", 8 * step, 8 * step);
        assert_eq!(list(&fs, ino), Some(range));
        let set = fs
            .setxattr(&CX, ino, LIST, b"", XattrMode::Set)
            .unwrap_err();
        let removed = fs.removexattr(ino, LIST).unwrap_err();
        assert_eq!(
            (set.errno(), removed.errno()),
            (libc::EOPNOTSUPP, libc::EOPNOTSUPP)
        );
        let at = 8 * u64::from(block);
        assert_eq!(fs.seek(ino, at, SeekWhence::Data).unwrap(), at);
        assert_eq!(fs.seek(ino, 0, SeekWhence::Hole).unwrap(), len as u64);
        let extents = fs.file_extents(ino, 0, len as u64).unwrap();
        let marked: Vec<_> = extents.iter().filter(|e| e.lost).collect();
        assert!(
            marked.len() == 1 && marked[0].region_offset.is_none(),
            "{extents:?}"
        );
        assert_eq!((marked[0].file_offset, marked[0].len), (at, at));
        // Not damage that stops writing. chattr shows and keeps its own flags.
        assert_eq!(fs.getattr(ino).unwrap().flags, 0);
        let flags = SetAttr {
            flags: Some(0x80),
            ..SetAttr::default()
        };
        assert_eq!(fs.setattr(&CX, ino, &flags).unwrap().flags, 0x80);
        assert!(list(&fs, ino).is_some());

        // One block, then all but one, then that.
        fs.write(&CX, ino, at + u64::from(block), &whole[9 * step..10 * step])
            .unwrap();
        let n = fs.read(ino, at + u64::from(block), &mut out).unwrap();
        assert_eq!(out[..n], whole[9 * step..10 * step]);
        assert!(is_lost(fs.read(ino, at, &mut out)));
        fs.write(
            &CX,
            ino,
            at + 2 * u64::from(block),
            &whole[10 * step..20 * step],
        )
        .unwrap();
        assert_eq!(list(&fs, ino), Some(format!("{at}+{block}")));
        fs.write(&CX, ino, at, &whole[8 * step..9 * step]).unwrap();
        assert_eq!(fs.read(ino, 0, &mut out).unwrap(), len);
        assert_eq!(out, whole);
        assert_eq!(list(&fs, ino), None);
        assert_eq!(fs.lost_ranges(ino).unwrap(), []);
        assert_eq!(close_and_check(fs).marked, []);
    }
}

#[test]
fn partial_write_to_lost_block_fails() {
    let block = 4096u64;
    let (image, ino) = image_of(4096, 10 * 4096 + 700);
    // Blocks 8, 9 and 10, of which the last is not full.
    let (region, report) = repair_all(&without_a_line(&image, ino, 8, true));
    assert_eq!(report.marked.len(), 1, "{report}");
    let image = bytes_of(&region);
    let fs = open(region);
    let (at, size) = (8 * block, 10 * block + 700);
    let one = [7; 3 * 4096];
    // Neither the head nor the tail of a block, nor a part in the middle.
    for (at, len) in [(at, 10), (at + 10, 4086), (at + 1, 4094), (10 * block, 699)] {
        assert!(
            is_lost(fs.write(&CX, ino, at, &one[..len as usize])),
            "{at} {len}"
        );
        assert!(
            is_lost(fs.fallocate(&CX, ino, Fallocate::PunchHole, at, len)),
            "{at} {len}"
        );
        let zero = Fallocate::ZeroRange { keep_size: true };
        assert!(is_lost(fs.fallocate(&CX, ino, zero, at, len)), "{at} {len}");
    }
    assert!(is_lost(fs.append(&CX, ino, b"at the end")));
    for keep_size in [false, true] {
        let room = Fallocate::Allocate { keep_size };
        assert!(is_lost(fs.fallocate(&CX, ino, room, 0, 20 * block)));
    }
    assert!(is_lost(fs.fill(ino, 0, size)));
    is_only(&fs, ino, at..size);
    // As much as possible, then the error.
    assert_eq!(
        fs.write(&CX, ino, 7 * block, &one[..2 * 4096 + 9]).unwrap(),
        8192
    );
    is_only(&fs, ino, 9 * block..size);
    // Write-back from a page cache skips it.
    let mut out = [0; 4096];
    assert!(is_lost(fs.write_back(ino, 9 * block - 4, &one[..4 + 4095])));
    fs.read(ino, 9 * block - 4, &mut out[..4]).unwrap();
    assert_eq!(out[..4], [7; 4]);
    // Up to EOF, which is the whole of the last block.
    assert_eq!(fs.write(&CX, ino, 10 * block, &one[..700]).unwrap(), 700);
    is_only(&fs, ino, 9 * block..10 * block);
    close_and_check(fs);

    // A shorter file has a smaller lost range; a longer one has no larger one.
    let fs = open(copy_of(&image));
    let cut = |size| {
        let size = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        fs.setattr(&CX, ino, &size).unwrap();
    };
    cut(9 * block + 5);
    is_only(&fs, ino, at..9 * block + 5);
    cut(30 * block);
    is_only(&fs, ino, at..10 * block);
    assert_eq!(fs.read(ino, 10 * block, &mut out).unwrap(), 4096);
    assert_eq!(out, [0; 4096]);
    fs.fallocate(&CX, ino, Fallocate::PunchHole, 9 * block, block)
        .unwrap();
    fs.fallocate(&CX, ino, Fallocate::ZeroRange { keep_size: true }, at, 9)
        .unwrap_err();
    fs.fallocate(
        &CX,
        ino,
        Fallocate::ZeroRange { keep_size: true },
        at,
        block,
    )
    .unwrap();
    assert_eq!(list(&fs, ino), None);
    fs.read(ino, at, &mut out).unwrap();
    assert_eq!(out, [0; 4096]);
    close_and_check(fs);
}

#[test]
fn copy_of_lost_range_fails() {
    let block = 4096u64;
    let (image, ino) = image_of(4096, 20 * 4096);
    let (region, _) = repair_all(&without_a_line(&image, ino, 8, true));
    let fs = open(region);
    let to = fs.create(&CX, Ino::ROOT, b"to", 0o644).unwrap().ino;
    assert_eq!(
        fs.copy_range(&CX, (ino, 0), (to, 0), 20 * block).unwrap(),
        8 * block
    );
    assert!(is_lost(fs.copy_range(
        &CX,
        (ino, 8 * block),
        (to, 8 * block),
        block
    )));
    assert_eq!(fs.getattr(to).unwrap().size, 8 * block);
    // Copying to it: whole blocks only, of data and of zeros.
    assert!(is_lost(fs.copy_range(&CX, (to, 0), (ino, 8 * block), 100)));
    assert_eq!(
        fs.copy_range(&CX, (to, 0), (ino, 8 * block), block + 100)
            .unwrap(),
        block
    );
    let hole = fs.create(&CX, Ino::ROOT, b"hole", 0o644).unwrap().ino;
    let size = SetAttr {
        size: Some(9 * block),
        ..SetAttr::default()
    };
    fs.setattr(&CX, hole, &size).unwrap();
    assert!(is_lost(fs.copy_range(
        &CX,
        (hole, 0),
        (ino, 9 * block),
        100
    )));
    fs.copy_range(&CX, (hole, 0), (ino, 9 * block), 7 * block)
        .unwrap();
    assert_eq!(list(&fs, ino), None);
    close_and_check(fs);
}

#[test]
fn map_of_lost_range_fails() {
    use pramfs::{Access, OpenOptions};
    let block = 4096u64;
    let (image, ino) = image_of(4096, 20 * 4096);
    let (repaired, _) = repair_all(&without_a_line(&image, ino, 8, true));
    let region = pramfs::pmem::RegionOptions::new();
    let region = region.memfd("lost", image.len() as u64).unwrap();
    let bytes = bytes_of(&repaired);
    region.window().store_unflushed(0, &bytes).unwrap();
    let fs = open(region);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&fs, "/dir/file")
        .unwrap();
    for access in [Access::Read, Access::Write] {
        assert!(is_lost(file.map(0..20 * block, access).map(drop)));
        assert!(is_lost(
            file.map(9 * block + 1..9 * block + 2, access).map(drop)
        ));
        assert_eq!(file.map(0..8 * block, access).unwrap().len(), 8 * block);
        assert_eq!(
            file.map(16 * block..20 * block, access).unwrap().len(),
            4 * block
        );
    }
    is_only(&fs, ino, 8 * block..16 * block);
}

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

/// A crash at any moment of a write over lost blocks leaves them lost or written.
#[test]
fn crash_in_write_over_lost_blocks_is_atomic() {
    for block in [512u32, 4096] {
        let step = block as usize;
        let (image, ino) = image_of(block, 20 * step);
        let (region, _) = repair_all(&without_a_line(&image, ino, 8, true));
        let image = bytes_of(&region);
        let geo = geometry(&image);
        let mut rec = Recorded::from_image(&image, Rules::default()).unwrap();
        let from = rec.now();
        let new = vec![0x3c; 8 * step];
        rec.fs.write(&CX, ino, 8 * u64::from(block), &new).unwrap();
        let to = rec.now();
        let (mut before, mut after, mut random) = (0, 0, Random::new(1));
        for moment in from..=to {
            let machine = rec.at(moment);
            let mut images = vec![machine.least(), machine.most()];
            images.extend(machine.journal_apart(&geo));
            images.extend((0..4).map(|_| machine.random(&mut random)));
            for image in images {
                let fs = recover(&image).unwrap();
                let mut out = vec![0; 20 * step];
                let lost = fs.lost_ranges(ino).unwrap();
                let n = fs.read(ino, 0, &mut out).unwrap();
                if lost.is_empty() {
                    after += 1;
                    assert_eq!(n, out.len());
                    assert_eq!(out[8 * step..16 * step], new, "event {moment}");
                } else {
                    before += 1;
                    assert_eq!(n, 8 * step);
                    is_only(&fs, ino, 8 * u64::from(block)..16 * u64::from(block));
                    assert!(moment < to);
                }
                assert_eq!(out[..8 * step], bytes(8 * step));
                close_and_check(fs);
            }
        }
        assert!(before > 0 && after > 0, "{before} {after}");
    }
}

/// A loss mark is valid only in the contents of a file.
#[test]
fn lost_marks_outside_file_data_are_damage() {
    let (sim, fs) = fresh(4 << 20, 512).unwrap();
    let dir = fs.mkdir(&CX, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    let ino = fs.create(&CX, dir, b"file", 0o644).unwrap().ino;
    fs.setxattr(&CX, ino, b"user.small", b"value", XattrMode::Set)
        .unwrap();
    let large = fs.create(&CX, Ino::ROOT, b"large", 0o644).unwrap().ino;
    fs.setxattr(&CX, large, b"user.large", &[9; 5000], XattrMode::Set)
        .unwrap();
    let link = fs
        .symlink(&CX, Ino::ROOT, b"link", &[b'x'; 300])
        .unwrap()
        .ino;
    for i in 0..40 {
        fs.create(&CX, Ino::ROOT, format!("{i}").as_bytes(), 0o644)
            .unwrap();
    }
    fs.close().unwrap();
    let image = sim.image();
    let seed = geometry(&image).seed;
    let mark = |ino: Ino, level, index| {
        let at = PtrAt {
            fs_seed: seed,
            ino,
            level,
            index,
        };
        Ptr::lost(at).0
    };
    let euclean = |result: pramfs::Result<()>, what: &str| {
        let errno = result.unwrap_err().errno();
        assert_eq!(errno, libc::EUCLEAN, "{what}");
    };
    let judged = |what: &str, bad: &[u8], f: &dyn Fn(&Fs) -> pramfs::Result<()>| {
        let region = copy_of(bad);
        let report = check(&region, &CheckOptions::default());
        assert!(
            !report.is_sound() && report.marked.is_empty(),
            "{what}: {report}"
        );
        match Fs::open(copy_of(bad), quiet()) {
            Ok(fs) => euclean(f(&fs), what),
            Err(e) => assert_eq!(e.errno(), libc::EUCLEAN, "{what}: {e}"),
        }
        let report = repair(&region, &RepairOptions::new(Policy::Yes)).unwrap();
        assert!(
            report.is_sound() && report.marked.is_empty(),
            "{what}: {report}"
        );
        assert!(
            check(&region, &CheckOptions::default()).is_clean(),
            "{what}"
        );
    };
    let with = |ino: Ino, f: &dyn Fn(&mut DiskInode)| {
        let mut bad = image.clone();
        put_inode(&mut bad, ino, f);
        bad
    };

    let bad = with(dir, &|d| (d.root, d.flags) = (mark(dir, 16, 0), FL_LOST));
    judged("directory", &bad, &|fs| fs.lookup(dir, b"file").map(drop));
    let bad = with(dir, &|d| d.root = mark(dir, 0, 0));
    judged("directory as a file", &bad, &|fs| {
        fs.lookup(dir, b"file").map(drop)
    });
    let bad = with(ino, &|d| d.xattr_root = mark(ino, 32, 0));
    judged("attributes", &bad, &|fs| {
        fs.getxattr(ino, b"user.small").map(drop)
    });
    let bad = with(link, &|d| (d.root, d.height) = (mark(link, 0, 0), 0));
    judged("link", &bad, &|fs| fs.readlink(link).map(drop));
    let bad = with(Ino::ORPHANS, &|d| {
        (d.root, d.height, d.flags) = (mark(Ino::ORPHANS, 0, 0), 0, FL_LOST);
    });
    judged("orphan table", &bad, &|_| {
        Err(Error::corrupt(
            Damage::OrphanSlotDamaged,
            "mounted",
            "without a table",
        ))
    });
    // A block of the inode table.
    let mut bad = image.clone();
    let geo = geometry(&image);
    let table = DiskInode::read_from_bytes(
        &image[INODE_TABLE_OFFSET as usize..INODE_TABLE_OFFSET as usize + 256],
    )
    .unwrap();
    assert_eq!(table.height, 1);
    let index = large.0 * 256 / geo.block_size;
    let at = (geo.offset(Ptr(table.root).block()) + index * 8) as usize;
    bad[at..at + 8].copy_from_slice(&mark(Ino::INODE_TABLE, 0, index).to_le_bytes());
    judged("inode table", &bad, &|fs| fs.getattr(large).map(drop));
    // The flag alone, without any lost range, is not damage.
    let bad = with(ino, &|d| d.flags |= FL_LOST);
    let fs = open(copy_of(&bad));
    assert_eq!(list(&fs, ino), None);
    assert_eq!(fs.read(ino, 0, &mut [0; 9]).unwrap(), 0);
}
