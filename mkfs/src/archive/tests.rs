//! A region is saved and restored whole, and a damaged file restores nothing.

use std::io::{self, Cursor, Read};
use std::path::Path;

use pramfs::format::{FormatOptions, format};
use pramfs::pmem::{Region, RegionOptions};
use pramfs::{FileSystem, MountOptions, inode::Fs, inode::Ino};
use pramfs_fsck::{Policy, RepairOptions, repair};
use pramfs_medium::media::probe_superblock;
use pramfs_medium::pmem::RegionAccess;

use super::format::{CHUNK_HEADER, CHUNK_MAX, ChunkHeader, END, End, HEADER, Header, RUN};
use super::restore::{Check, Order, Reader, restore};
use super::save::Source;
use super::writer::{Contents, Zeroed, write_save};
use crate::Failure;

const LEN: u64 = 24 << 20;

fn options(block_size: u32) -> FormatOptions {
    FormatOptions {
        label: "saved".into(),
        block_size,
        ..FormatOptions::default()
    }
}

fn mounted(region: Region) -> FileSystem {
    FileSystem::mount(region, MountOptions::default()).unwrap()
}

/// A region with files of several kinds. A part of them is removed, so that the blocks in use
/// have gaps.
fn filled(dir: &Path, block_size: u32) -> std::path::PathBuf {
    let path = dir.join(format!("region-{block_size}"));
    let region = RegionOptions::new().create(&path, LEN).unwrap();
    format(&region, &options(block_size)).unwrap();
    let fs = mounted(region);
    for i in 0..60u32 {
        let file = fs.create(format!("/file-{i}")).unwrap();
        file.append(&vec![i as u8 ^ 0x5a; 1 + i as usize * 997])
            .unwrap();
    }
    let big = fs.create("/big").unwrap();
    for i in 0..300u32 {
        big.append(&vec![(i % 251) as u8; 10_007]).unwrap();
    }
    for i in (0..60).step_by(3) {
        fs.remove_file(format!("/file-{i}")).unwrap();
    }
    drop(big);
    fs.unmount().unwrap();
    path
}

fn opened(path: &Path) -> Fs {
    let region = RegionOptions::new().read_only(true).open(path).unwrap();
    let options = MountOptions {
        read_only: true,
        background: false,
        ..MountOptions::default()
    };
    Fs::open(region, options).unwrap()
}

fn saved(path: &Path) -> Vec<u8> {
    let mut out = Vec::new();
    let (_, done) = opened(path)
        .close_with(|region| {
            let source = Source::new(region, "region")?;
            let done = write_save(&source, &mut out, 3, &|_| {}).unwrap();
            assert_eq!(done.blocks, source.blocks());
            Ok::<_, Failure>(done)
        })
        .unwrap();
    assert_eq!(done.unwrap().len, out.len() as u64);
    out
}

/// A saved region of several chunks.
pub(super) fn saved_in_chunks(dir: &Path) -> Vec<u8> {
    saved(&filled(dir, 4096))
}

fn checked(file: &[u8]) -> Result<(Reader<&[u8]>, u64), Failure> {
    let mut reader = Reader::new(file, "file")?;
    let blocks = Check::new(&mut reader).rest(&|_| {})?;
    Ok((reader, blocks))
}

fn restored(file: &[u8], region: &Region) -> Result<u64, Failure> {
    let (first, _) = checked(file)?;
    restore(&first, Reader::new(file, "file")?, region, &|_| {})
}

fn assert_holds(fs: &FileSystem) {
    for i in 0..60u32 {
        let path = format!("/file-{i}");
        if i % 3 == 0 {
            assert!(fs.open(&path).is_err(), "{path}");
            continue;
        }
        let mut bytes = vec![0; 1 + i as usize * 997];
        let got = fs.open(&path).unwrap().read_at(&mut bytes, 0).unwrap();
        assert_eq!(got, bytes.len());
        assert!(bytes.iter().all(|b| *b == i as u8 ^ 0x5a), "{path}");
    }
    let mut bytes = vec![0; 300 * 10_007 + 1];
    let got = fs.open("/big").unwrap().read_at(&mut bytes, 0).unwrap();
    assert_eq!(got, 300 * 10_007);
    for (i, part) in bytes[..got].chunks(10_007).enumerate() {
        assert!(part.iter().all(|b| *b == (i % 251) as u8), "part {i}");
    }
}

fn assert_sound(region: &Region) {
    let report = pramfs_fsck::check(region, &pramfs_fsck::CheckOptions::default());
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

#[test]
fn region_of_each_block_size_is_restored_whole() {
    let dir = tempfile::tempdir().unwrap();
    for block_size in [512, 1024, 2048, 4096] {
        let path = filled(dir.path(), block_size);
        let file = saved(&path);
        // Only blocks in use, and compressed.
        assert!((file.len() as u64) < LEN / 8, "{}", file.len());
        // Also into a larger region with other contents.
        for (name, len) in [("equal", LEN), ("larger", LEN + (4 << 20))] {
            let region = RegionOptions::new().memfd(name, len).unwrap();
            format(&region, &options(4096)).unwrap();
            let pending = region.window().nt_store(len / 2, &[0xee; 1 << 16]).unwrap();
            let _ = region.write_back().fence(pending);
            restored(&file, &region).unwrap();
            assert_sound(&region);
            assert_holds(&mounted(region));
        }
    }
}

#[test]
fn changes_in_journal_are_saved() {
    let dir = tempfile::tempdir().unwrap();
    let path = filled(dir.path(), 4096);
    let fs = mounted(RegionOptions::new().open(&path).unwrap());
    fs.create("/late").unwrap().append(b"in a record").unwrap();
    // As a crash leaves it: the last records are not retired.
    let crashed = dir.path().join("crashed");
    std::fs::copy(&path, &crashed).unwrap();
    drop(fs);
    let before = std::fs::read(&crashed).unwrap();
    assert!(opened(&crashed).recovery().records > 0, "no live record");
    let file = saved(&crashed);
    assert!(before == std::fs::read(&crashed).unwrap(), "it was changed");
    let region = RegionOptions::new().memfd("crashed", LEN).unwrap();
    restored(&file, &region).unwrap();
    let fs = mounted(region);
    let mut bytes = [0; 11];
    fs.open("/late").unwrap().read_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"in a record");
    assert_holds(&fs);
}

#[test]
fn file_that_was_altered_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = saved(&filled(dir.path(), 1024));
    checked(&file).unwrap();
    // All bytes of the structures, and others at random.
    let mut places: Vec<usize> = (0..HEADER + CHUNK_HEADER).collect();
    places.extend(file.len() - END..file.len());
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..500 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        places.push(random as usize % file.len());
    }
    for at in places {
        let mut altered = file.clone();
        altered[at] ^= 1 << (at % 8);
        let refused = checked(&altered).err();
        let refused = refused.unwrap_or_else(|| panic!("byte {at} of {}", file.len()));
        assert_eq!(refused.reason, "damaged", "{}", refused.message);
    }
    let mut longer = file.clone();
    longer.push(0);
    assert!(checked(&longer).is_err());
}

/// Offsets of the chunks and of the end.
fn borders(file: &[u8]) -> Vec<usize> {
    let mut all = vec![HEADER];
    while file.len() - all[all.len() - 1] > END {
        let at = all[all.len() - 1];
        let stored = u32::from_le_bytes(file[at + 4..at + 8].try_into().unwrap());
        all.push(at + CHUNK_HEADER + stored as usize);
    }
    assert!(all.len() >= 4, "{} chunks", all.len() - 1);
    all
}

#[test]
fn file_that_was_cut_off_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = saved(&filled(dir.path(), 4096));
    let borders = borders(&file);
    let places = borders
        .iter()
        .flat_map(|at| [at - 1, *at, at + 1, at + CHUNK_HEADER]);
    for len in places.chain([0, 1, HEADER - 1, file.len() - 1]) {
        let refused = checked(&file[..len.min(file.len() - 1)]).err();
        assert_eq!(refused.map(|f| f.reason), Some("damaged"), "{len}");
    }
    // A chunk that is left out, and two that changed places.
    let without = [&file[..borders[0]], &file[borders[1]..]].concat();
    let swapped = [
        &file[..borders[0]],
        &file[borders[1]..borders[2]],
        &file[borders[0]..borders[1]],
        &file[borders[2]..],
    ]
    .concat();
    assert!(checked(&without).is_err() && checked(&swapped).is_err());
}

/// The file with other contents of its first chunk, and sums that fit.
fn forged(file: &[u8], change: impl FnOnce(&mut [u8], usize)) -> Vec<u8> {
    let seed = Header::decode(file[..HEADER].try_into().unwrap())
        .unwrap()
        .seed();
    let borders = borders(file);
    let head = file[HEADER..HEADER + CHUNK_HEADER].try_into().unwrap();
    let (head, _) = ChunkHeader::decode(head, seed).unwrap();
    let stored = &file[HEADER + CHUNK_HEADER..borders[1]];
    let mut payload = zstd::bulk::decompress(stored, CHUNK_MAX).unwrap();
    change(&mut payload, head.runs as usize * RUN);
    let stored = zstd::bulk::compress(&payload, 3).unwrap();
    let head = ChunkHeader {
        stored: stored.len() as u32,
        ..head
    };
    let mut out = file[..HEADER].to_vec();
    out.extend(head.encode(seed, &stored));
    out.extend(stored);
    let at = file.len() - END;
    out.extend(&file[borders[1]..at]);
    let end = End::decode(file[at..].try_into().unwrap(), seed).unwrap();
    let end = End {
        len: (out.len() + END) as u64,
        crc_of_all: crc32c::crc32c(&out),
        ..end
    };
    out.extend(end.encode(seed));
    out
}

#[test]
fn file_without_two_valid_superblocks_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = saved(&filled(dir.path(), 4096));
    checked(&forged(&file, |_, _| {})).unwrap();
    // The version, and the same of the copy, which is in the block that follows.
    for at in [8, 4096 + 8] {
        let newer = forged(&file, |payload, data| payload[data + at] ^= 0x40);
        let refused = checked(&newer).err().map(|failure| failure.reason);
        assert_eq!(refused, Some("damaged"), "{at}");
    }
}

#[test]
fn file_that_stores_block_twice_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = saved(&filled(dir.path(), 4096));
    // The last run of the first chunk begins with block 0.
    let twice = forged(&file, |payload, data| {
        assert!(data >= 2 * RUN);
        payload[data - RUN..data - RUN + 8].fill(0);
    });
    let refused = checked(&twice).err().unwrap();
    assert!(refused.message.contains("out of order"), "{refused:?}");
}

#[test]
fn runs_in_two_ascending_parts_without_common_block_are_admitted() {
    let admitted = |runs: &[(u64, u64)]| {
        let mut order = Order::default();
        runs.iter().all(|(from, to)| order.admits(*from..*to))
    };
    assert!(admitted(&[
        (0, 1),
        (1, 2),
        (2, 60),
        (99, 100),
        (60, 80),
        (80, 99)
    ]));
    assert!(admitted(&[(0, 2), (5, 6), (8, 9), (11, 12), (20, 21)]));
    // Twice, backwards twice, too many parts before, and into the first part.
    assert!(!admitted(&[(0, 2), (1, 3)]));
    assert!(!admitted(&[(0, 2), (9, 10), (5, 6), (4, 5)]));
    assert!(!admitted(&[(0, 1), (2, 3), (4, 5), (6, 7), (3, 4)]));
    assert!(!admitted(&[(0, 2), (9, 10), (5, 6), (8, 10)]));
}

/// Fails after some bytes.
struct Failing<'a> {
    bytes: Cursor<&'a [u8]>,
    left: usize,
}

impl Read for Failing<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = into.len().min(self.left);
        if most == 0 && !into.is_empty() {
            return Err(io::Error::other("interrupted"));
        }
        let got = self.bytes.read(&mut into[..most])?;
        self.left -= got;
        Ok(got)
    }
}

#[test]
fn interrupted_restore_leaves_region_that_does_not_mount() {
    let dir = tempfile::tempdir().unwrap();
    let file = saved(&filled(dir.path(), 4096));
    let (first, _) = checked(&file).unwrap();
    for left in borders(&file).into_iter().chain([file.len() - 1]) {
        // A file system is there, which is lost from the first store on.
        let region = RegionOptions::new().memfd("interrupted", LEN).unwrap();
        format(&region, &options(4096)).unwrap();
        let bytes = Cursor::new(&file[..]);
        let second = Reader::new(Failing { bytes, left }, "file").unwrap();
        let failed = restore(&first, second, &region, &|_| {}).unwrap_err();
        assert_eq!(failed.reason, "incomplete", "{}", failed.message);
        assert!(
            failed.message.contains("holds no file system"),
            "{}",
            failed.message
        );
        assert!(probe_superblock(&region).is_err(), "{left}");
        restored(&file, &region).unwrap();
        assert_sound(&region);
    }
}

#[test]
fn file_that_was_replaced_between_passes_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = filled(dir.path(), 4096);
    let file = saved(&path);
    let (first, _) = checked(&file).unwrap();
    let fs = mounted(RegionOptions::new().open(&path).unwrap());
    fs.create("/another").unwrap();
    fs.unmount().unwrap();
    let other = saved(&path);
    let region = RegionOptions::new().memfd("replaced", LEN).unwrap();
    let second = Reader::new(&other[..], "file").unwrap();
    restore(&first, second, &region, &|_| {}).unwrap_err();
    assert!(probe_superblock(&region).is_err());
}

/// The bitmaps alone are read for blocks that are not in use.
#[test]
fn empty_region_of_a_tebibyte_is_saved_at_once() {
    let dir = tempfile::Builder::new()
        .prefix("pramfs-save-")
        .tempdir_in("/dev/shm")
        .unwrap();
    let path = dir.path().join("region");
    let region = RegionOptions::new().create(&path, 1 << 40).unwrap();
    format(&region, &options(4096)).unwrap();
    drop(region);
    let file = saved(&path);
    assert!(file.len() < 4 << 20, "{}", file.len());
    let host = std::fs::metadata(&path).unwrap();
    // Reading has not filled its holes.
    assert!(std::os::unix::fs::MetadataExt::blocks(&host) < 200 << 11);
}

#[test]
fn save_with_failed_listed_blocks_names_them_and_touches_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = filled(dir.path(), 4096);
    // No file has them.
    let bad = LEN / 4096 - 256;
    let bytes = bad * 4096..(bad + 2) * 4096;
    let region = RegionOptions::new().open(&path).unwrap();
    region.mark_bad(bytes.clone());
    let report = repair(&region, &RepairOptions::new(Policy::Yes)).unwrap();
    assert_eq!(report.findings.len(), 1, "{report}");
    drop(region);

    let fs = opened(&path);
    let file = fs.lookup(Ino::ROOT, b"big").unwrap().ino;
    let data = fs.file_extents(file, 0, 1).unwrap()[0].region_offset;
    let save = |region: &Region| {
        let source = Source::new(region, "region").unwrap_or_else(|e| panic!("{}", e.message));
        let mut out = Vec::new();
        let saved = write_save(&source, &mut out, 3, &|_| {});
        assert_eq!((source.faults(), region.faults()), (0, 0));
        saved.map(|saved| (saved, out))
    };
    let (_, tried) = fs
        .close_with(|region| {
            // Listed blocks that can be read are saved as they are.
            let (saved, _) = save(region).unwrap();
            assert_eq!(saved.zeroed, Zeroed::default());
            region.mark_bad(bytes);
            let (saved, out) = save(region).unwrap();
            assert_eq!((saved.zeroed.blocks, saved.zeroed.unnamed()), (2, 0));
            assert_eq!(saved.zeroed.arguments(), format!("{bad}-{}", bad + 1));
            let other = RegionOptions::new().memfd("other", LEN).unwrap();
            restored(&out, &other).unwrap();
            let fs = mounted(other);
            assert_holds(&fs);
            // Nothing takes the place of a block that no list has.
            region.mark_bad(data.unwrap()..data.unwrap() + 512);
            save(region).map(|(saved, _)| saved)
        })
        .unwrap();
    assert!(tried.unwrap_err().to_string().contains("medium failed"));
}

#[test]
fn zeroed_blocks_of_many_runs_are_counted_and_the_first_are_named() {
    let mut zeroed = Zeroed::default();
    for block in (10..1010).step_by(2) {
        zeroed.add(block..block + 1);
    }
    zeroed.add(1009..1020);
    assert_eq!((zeroed.blocks, zeroed.runs.len()), (511, 64));
    assert_eq!(zeroed.unnamed(), 511 - 64);
    assert!(zeroed.arguments().starts_with("10 12 14 "));

    let mut zeroed = Zeroed::default();
    zeroed.add(3..4);
    zeroed.add(4..6);
    zeroed.add(9..10);
    assert_eq!(
        (zeroed.arguments().as_str(), zeroed.unnamed()),
        ("3-5 9", 0)
    );
}
