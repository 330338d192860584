//! Marks of ranges of files: beside a view for writing, the other blocks of its file are compared
//! with their checksums as ever, and only its range is summed afterwards.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pramfs::inode::{Credentials, Fs, Ino, LeaseMode, SetAttr};
use pramfs::{Access, Error, Fallocate, File, MappedFile, MountOptions, OpenOptions};
use pramfs_fsck::{CheckOptions, check};
use pramfs_medium::media::features::RANGED_MARKS;
use pramfs_medium::media::inode::FL_UNSUMMED;
use pramfs_medium::media::{DiskInode, probe_superblock};
use pramfs_medium::pmem::{EventKind, RegionAccess, SimBackend};
use pramfs_tests::random::Random;
use pramfs_tests::region::{inode_home, lost, mount, quiet, region_of};
use pramfs_tests::sums::{file, forge, fresh, is_wrong, place, text};
use pramfs_tests::watchdog::Watchdog;
use zerocopy::FromBytes;

const CX: Credentials<'_> = Credentials::ROOT;
const BLOCK: u64 = 4096;

fn open(fs: &Fs) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).open(fs, "/file").unwrap()
}

/// Maps blocks of a file for writing.
fn view(file: &File, blocks: Range<u64>) -> MappedFile {
    let range = blocks.start * BLOCK..blocks.end * BLOCK;
    file.map(range, Access::Write).unwrap()
}

/// Returns the marked blocks of a file.
fn marked(fs: &Fs, ino: Ino) -> Vec<Range<u64>> {
    let found = fs.verify_data(ino, 0..u64::MAX).unwrap();
    assert_eq!(found.is_marked, !found.unsummed.is_empty());
    let blocks = |bytes: &Range<u64>| bytes.start / BLOCK..bytes.end.div_ceil(BLOCK);
    found.unsummed.iter().map(blocks).collect()
}

fn blocks(range: Range<u64>) -> Vec<Range<u64>> {
    vec![range]
}

fn truncate(fs: &Fs, ino: Ino, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.setattr(&CX, ino, &set).unwrap();
}

fn has_feature(sim: &SimBackend) -> bool {
    let info = probe_superblock(&region_of(sim)).unwrap();
    info.fixed.ro_compat & RANGED_MARKS != 0
}

/// Returns the image that a crash leaves if all stores have arrived.
fn crashed(sim: &SimBackend) -> SimBackend {
    SimBackend::from_image(&sim.image()).unwrap()
}

#[track_caller]
fn assert_sound(sim: &SimBackend) {
    let report = check(&region_of(sim), &CheckOptions::default());
    assert!(report.is_clean(), "{report}");
}

#[test]
fn forged_byte_beside_view_is_eio_and_in_view_is_not() {
    let (_, fs) = fresh(8 << 20, 4096);
    let bytes = text(64 * BLOCK as usize);
    let ino = file(&fs, "file", &bytes);
    let file = open(&fs);
    let held = view(&file, 5..6);
    assert_eq!(marked(&fs, ino), blocks(5..6));
    forge(&fs, place(&fs, ino, 5 * BLOCK + 9));
    forge(&fs, place(&fs, ino, 7 * BLOCK + 9));
    let mut into = vec![0; 8 * BLOCK as usize];
    let block = BLOCK as usize;
    let read = |at: u64, into: &mut [u8]| [file.read_at(into, at), fs.read(ino, at, into)];
    for result in read(5 * BLOCK, &mut into[..block]) {
        assert_eq!(result.unwrap(), block);
    }
    for result in read(7 * BLOCK + 100, &mut into[..10]) {
        assert!(is_wrong(&result, ino, 7 * BLOCK));
    }
    // Reads that begin before, in and after the view end at the block, or do not reach it.
    for (from, whole) in [(3, 4), (5, 2), (6, 1)] {
        for result in read(from * BLOCK, &mut into[..]) {
            assert_eq!(result.unwrap(), whole * block, "{from}");
        }
    }
    for result in read(8 * BLOCK, &mut into[..]) {
        assert_eq!(result.unwrap(), 8 * block);
    }
    assert!(into == bytes[8 * block..16 * block]);
    let found = fs.verify_data(ino, 0..u64::MAX).unwrap();
    assert_eq!(found.wrong, blocks(7 * BLOCK..8 * BLOCK));
    assert_eq!(found.compared, 63 * BLOCK);
    // A change of a part of it would hide it.
    assert!(is_wrong(
        &fs.write(&CX, ino, 7 * BLOCK + 5, b"x"),
        ino,
        7 * BLOCK
    ));
    assert!(is_wrong(
        &fs.write(&CX, ino, 5 * BLOCK, &bytes[..2 * block + 5]),
        ino,
        7 * BLOCK
    ));
    fs.write(&CX, ino, 5 * BLOCK + 5, b"x").unwrap();
    // The end of the last view has no say: the blocks beside it are not summed again.
    drop(held);
    assert!(fs.sum_marked_files());
    assert!(marked(&fs, ino).is_empty());
    assert!(is_wrong(
        &fs.read(ino, 7 * BLOCK, &mut into),
        ino,
        7 * BLOCK
    ));
    assert_eq!(fs.read(ino, 5 * BLOCK, &mut into[..block]).unwrap(), block);
}

/// Blocks that were forged are still wrong, so nothing beside the range was summed anew. The
/// record tells how many sums it has.
#[test]
fn end_of_view_sums_its_range_alone() {
    let (sim, fs) = fresh(8 << 20, 4096);
    let ino = file(&fs, "file", &text(256 * BLOCK as usize));
    let file = open(&fs);
    let view = view(&file, 100..103);
    for block in 0..3 {
        view.store(block * BLOCK + 8, 0x1234u64).unwrap();
    }
    for at in [0, 99, 103, 255] {
        forge(&fs, place(&fs, ino, at * BLOCK));
    }
    drop(view);
    sim.recording(true);
    assert!(fs.sum_marked_files());
    let events = sim.take_record();
    let bytes = |kinds: &[EventKind]| -> u64 {
        let of = events.iter().filter(|e| kinds.contains(&e.kind));
        of.map(|e| e.bytes.len() as u64).sum()
    };
    // Three sums and the inode, in the record and in place.
    let stored = bytes(&[EventKind::Store, EventKind::NtStore]);
    assert!(stored < 1024, "{stored} bytes");
    // What was stored is written back before its sum is durable: the blocks of the view, and lines
    // of metadata.
    let flushed = bytes(&[EventKind::Flush]);
    assert!((3 * BLOCK..4 * BLOCK).contains(&flushed), "{flushed} bytes");
    let found = fs.verify_data(ino, 0..u64::MAX).unwrap();
    let wrong: Vec<_> = found.wrong.iter().map(|r| r.start / BLOCK).collect();
    assert_eq!(wrong, [0, 99, 103, 255]);
    assert!(!found.is_marked);
}

#[test]
fn second_view_widens_mark_durably() {
    let (sim, fs) = fresh(8 << 20, 4096);
    let ino = file(&fs, "file", &text(64 * BLOCK as usize));
    let file = open(&fs);
    let first = view(&file, 20..22);
    let second = view(&file, 10..11);
    assert_eq!(marked(&fs, ino), blocks(10..22));
    let within = view(&file, 12..20);
    let third = view(&file, 30..31);
    assert_eq!(marked(&fs, ino), blocks(10..31));
    third.store(0, 7u64).unwrap();
    let again = mount(&crashed(&sim), quiet()).unwrap();
    assert_eq!(marked(&again, ino), blocks(10..31));
    assert!(again.sum_marked_files());
    assert!(
        again
            .verify_data(ino, 0..u64::MAX)
            .unwrap()
            .wrong
            .is_empty()
    );
    drop((first, second, third));
    assert!(!fs.sum_marked_files(), "one view is left");
    drop(within);
    assert!(fs.sum_marked_files());
    let found = fs.verify_data(ino, 0..u64::MAX).unwrap();
    assert!(found.wrong.is_empty() && !found.is_marked, "{found:?}");
    drop(file);
    fs.close().unwrap();
    assert_sound(&sim);
}

#[test]
fn write_lease_over_view_marks_whole_file() {
    let (sim, fs) = fresh(8 << 20, 4096);
    let ino = file(&fs, "file", &text(16 * BLOCK as usize));
    let file = open(&fs);
    let view = view(&file, 3..4);
    assert_eq!(marked(&fs, ino), blocks(3..4));
    let generation = fs.getattr(ino).unwrap().generation;
    drop(fs.grant_lease(ino, generation, LeaseMode::Write, 1, 0));
    assert_eq!(marked(&fs, ino), blocks(0..16));
    // It may grow, by the lease or otherwise.
    fs.append(&CX, ino, &[1; BLOCK as usize]).unwrap();
    assert_eq!(marked(&fs, ino), blocks(0..17));
    let again = mount(&crashed(&sim), quiet()).unwrap();
    assert_eq!(marked(&again, ino), blocks(0..17));
    drop(view);
}

#[test]
fn appends_beside_mark_are_summed() {
    let (_, fs) = fresh(8 << 20, 4096);
    let ino = file(&fs, "file", &text(10 * BLOCK as usize - 100));
    let file = open(&fs);
    let _view = view(&file, 3..4);
    // In parts of blocks, and at the cursor.
    fs.append(&CX, ino, &[1; 200]).unwrap();
    truncate(&fs, ino, 11 * BLOCK);
    for _ in 0..3 {
        file.append(&[2; BLOCK as usize]).unwrap();
    }
    fs.fallocate(
        &CX,
        ino,
        Fallocate::ZeroRange { keep_size: false },
        20 * BLOCK,
        BLOCK,
    )
    .unwrap();
    assert_eq!(marked(&fs, ino), blocks(3..4));
    let found = fs.verify_data(ino, 0..u64::MAX).unwrap();
    assert!(
        found.wrong.is_empty() && found.compared >= 13 * BLOCK,
        "{found:?}"
    );
    forge(&fs, place(&fs, ino, 12 * BLOCK));
    let mut into = [0; 10];
    assert!(is_wrong(
        &fs.read(ino, 12 * BLOCK, &mut into),
        ino,
        12 * BLOCK
    ));
}

#[test]
fn truncation_cuts_mark_and_growth_does_not_restore_it() {
    let (sim, fs) = fresh(8 << 20, 4096);
    let ino = file(&fs, "file", &text(40 * BLOCK as usize));
    let file = open(&fs);
    let views = [view(&file, 5..6), view(&file, 19..21)];
    assert_eq!(marked(&fs, ino), blocks(5..21));
    truncate(&fs, ino, 10 * BLOCK - 7);
    assert_eq!(marked(&fs, ino), blocks(5..10));
    truncate(&fs, ino, 30 * BLOCK);
    fs.write(&CX, ino, 19 * BLOCK, &[3; 3 * BLOCK as usize])
        .unwrap();
    assert_eq!(marked(&fs, ino), blocks(5..10));
    // The blocks of this view have left the file.
    views[1].store(0, 5u64).unwrap();
    assert!(fs.verify_data(ino, 0..u64::MAX).unwrap().wrong.is_empty());
    assert_sound_marks(&crashed(&sim));
    truncate(&fs, ino, 5 * BLOCK);
    assert!(marked(&fs, ino).is_empty());
    drop((views, file));
    fs.close().unwrap();
    assert_sound(&sim);
}

/// What a crash leaves is recovered and sound.
#[track_caller]
fn assert_sound_marks(sim: &SimBackend) {
    mount(sim, quiet()).unwrap().close().unwrap();
    assert_sound(sim);
}

/// If damage ends a truncation between two records, the file may grow over blocks of a view.
#[test]
fn truncation_by_many_records_marks_whole_file() {
    let (sim, fs) = fresh(80 << 20, 4096);
    let ino = file(&fs, "file", &text(10 * BLOCK as usize));
    let other = file(&fs, "other", b"x");
    // Each block has its bit in another word, and a record has room for so many words.
    for i in 0..200 {
        let bytes = [1; BLOCK as usize];
        fs.write(&CX, ino, (10 + i) * BLOCK, &bytes).unwrap();
        fs.write(&CX, other, i * 64 * BLOCK, &[2; 63 * BLOCK as usize])
            .unwrap();
    }
    let file = open(&fs);
    let view = view(&file, 150..151);
    assert_eq!(marked(&fs, ino), blocks(150..151));
    truncate(&fs, ino, 10 * BLOCK);
    assert_eq!(marked(&fs, ino), blocks(0..10));
    view.store(0, 5u64).unwrap();
    assert_sound_marks(&crashed(&sim));
    drop((view, file));
    assert!(fs.sum_marked_files());
    assert!(marked(&fs, ino).is_empty());
    fs.close().unwrap();
    assert_sound(&sim);
}

/// A lease keeps the blocks past the end, and with them the view of them, for a file that grows
/// again.
#[test]
fn truncation_beside_lease_marks_whole_file() {
    let (_, fs) = fresh(8 << 20, 4096);
    let ino = file(&fs, "file", &text(40 * BLOCK as usize));
    let file = open(&fs);
    let view = view(&file, 19..21);
    let generation = fs.getattr(ino).unwrap().generation;
    drop(fs.grant_lease(ino, generation, LeaseMode::Read, 1, 0));
    fs.region_to_damage().pretend_lease(0, true);
    assert_eq!(marked(&fs, ino), blocks(19..21));
    truncate(&fs, ino, 10 * BLOCK);
    truncate(&fs, ino, 40 * BLOCK);
    view.store(0, 5u64).unwrap();
    let mut into = [0; 8];
    assert_eq!(fs.read(ino, 19 * BLOCK, &mut into).unwrap(), 8);
    assert_eq!(u64::from_le_bytes(into), 5);
}

/// Its holder cannot store. Without a view, a truncation beside it drops no other sums.
#[test]
fn mark_beside_lease_to_read_is_cut_and_summed() {
    let (sim, fs) = fresh(8 << 20, 4096);
    let ino = file(&fs, "file", &text(40 * BLOCK as usize));
    let file = open(&fs);
    drop(view(&file, 9..21));
    let generation = fs.getattr(ino).unwrap().generation;
    drop(fs.grant_lease(ino, generation, LeaseMode::Read, 1, 0));
    fs.region_to_damage().pretend_lease(0, true);
    truncate(&fs, ino, 10 * BLOCK);
    assert_eq!(marked(&fs, ino), blocks(9..10));
    truncate(&fs, ino, 40 * BLOCK);
    assert_eq!(marked(&fs, ino), blocks(9..10));
    assert!(fs.sum_marked_files());
    assert!(marked(&fs, ino).is_empty());
    let verified = fs.verify_data(ino, 0..u64::MAX).unwrap();
    assert!(verified.wrong.is_empty() && !verified.is_marked);
    let again = mount(&crashed(&sim), quiet()).unwrap();
    assert!(marked(&again, ino).is_empty());
}

/// A terabyte of holes takes no records.
#[test]
fn holes_of_marked_file_are_passed_at_once() {
    let (_, fs) = fresh(8 << 20, 4096);
    let ino = file(&fs, "file", &text(BLOCK as usize));
    truncate(&fs, ino, 1 << 40);
    fs.write(&CX, ino, (1 << 40) - BLOCK, &[7; BLOCK as usize])
        .unwrap();
    let file = open(&fs);
    drop(view(&file, 0..1));
    drop(view(&file, (1 << 28) - 1..1 << 28));
    assert_eq!(marked(&fs, ino), blocks(0..1 << 28));
    assert!(fs.sum_marked_files());
    assert!(marked(&fs, ino).is_empty());
    assert!(fs.verify_data(ino, 0..u64::MAX).unwrap().wrong.is_empty());
}

#[test]
fn immutable_file_is_not_marked() {
    let (_, fs) = fresh(8 << 20, 4096);
    let ino = file(&fs, "file", &text(4 * BLOCK as usize));
    let file = open(&fs);
    let immutable = SetAttr {
        flags: Some(0x10),
        ..SetAttr::default()
    };
    fs.setattr(&CX, ino, &immutable).unwrap();
    let error = file.map(0..BLOCK, Access::Write).unwrap_err();
    assert_eq!(error.errno(), libc::EPERM);
    assert!(marked(&fs, ino).is_empty());
}

#[test]
fn punched_and_filled_mark_stays() {
    let (sim, fs) = fresh(8 << 20, 4096);
    let ino = file(&fs, "file", &text(40 * BLOCK as usize));
    let file = open(&fs);
    let view = view(&file, 10..14);
    fs.fallocate(&CX, ino, Fallocate::PunchHole, 8 * BLOCK + 10, 4 * BLOCK)
        .unwrap();
    fs.write(&CX, ino, 9 * BLOCK, &[9; 2 * BLOCK as usize])
        .unwrap();
    view.store(0, 5u64).unwrap();
    view.store(3 * BLOCK, 6u64).unwrap();
    assert_eq!(marked(&fs, ino), blocks(10..14));
    assert!(fs.verify_data(ino, 0..u64::MAX).unwrap().wrong.is_empty());
    assert_sound_marks(&crashed(&sim));
    drop((view, file));
    fs.close().unwrap();
    assert_sound(&sim);
}

#[test]
fn feature_is_set_before_first_range_and_cleared_by_unmount() {
    let (sim, fs) = fresh(8 << 20, 4096);
    let ino = file(&fs, "file", &text(40 * BLOCK as usize));
    assert!(!has_feature(&sim));
    let file = open(&fs);
    let view = view(&file, 3..4);
    assert!(has_feature(&sim));
    // A mount sums what a crash has left, though nobody uses the file.
    let copy = crashed(&sim);
    mount(&copy, quiet()).unwrap().close().unwrap();
    assert!(!has_feature(&copy));
    assert_sound(&copy);
    let again = mount(&copy, quiet()).unwrap();
    assert!(marked(&again, ino).is_empty());
    drop((view, file));
    fs.close().unwrap();
    assert!(!has_feature(&sim));
    assert_sound(&sim);
}

/// The timer notes what a crash has left before its first tick.
#[test]
fn timer_sums_files_that_a_crash_left_marked() {
    let _dog = Watchdog::new("the timer", Duration::from_secs(300));
    let (sim, fs) = fresh(8 << 20, 4096);
    file(&fs, "other", &text(5));
    let ino = file(&fs, "file", &text(40 * BLOCK as usize));
    let open = open(&fs);
    let view = view(&open, 3..4);
    let copy = crashed(&sim);
    let home = inode_home(&copy.image(), ino);
    let with_timer = MountOptions {
        background: true,
        ..quiet()
    };
    let again = mount(&copy, with_timer).unwrap();
    let flags = || {
        let image = copy.image();
        let disk = DiskInode::read_from_bytes(&image[home..][..DiskInode::SIZE]);
        disk.unwrap().flags
    };
    // Nothing here loads the inode.
    while flags() & FL_UNSUMMED != 0 {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(marked(&again, ino).is_empty());
    again.close().unwrap();
    assert!(!has_feature(&copy));
    drop((view, open));
}

#[test]
fn failed_page_leaves_rest_of_marked_file_summed() {
    let (sim, fs) = fresh(8 << 20, 4096);
    let ino = file(&fs, "file", &text(40 * BLOCK as usize));
    let open = open(&fs);
    let view = view(&open, 10..20);
    view.store(5 * BLOCK, 0x0102_0304u64).unwrap();
    let page = place(&fs, ino, 12 * BLOCK) / BLOCK;
    let copy = lost(&sim.image(), page as usize, false);
    let again = mount(&copy, quiet()).unwrap();
    let mut into = vec![0; BLOCK as usize];
    assert!(again.read(ino, 12 * BLOCK, &mut into).is_err());
    assert!(again.sum_marked_files());
    for block in (0..40).filter(|block| *block != 12) {
        let read = again.read(ino, block * BLOCK, &mut into);
        assert_eq!(read.unwrap(), BLOCK as usize, "block {block}");
    }
    // A new block has a sum again.
    again.write(&CX, ino, 12 * BLOCK, &into).unwrap();
    let found = again.verify_data(ino, 0..u64::MAX).unwrap();
    assert!(found.wrong.is_empty() && !found.is_marked, "{found:?}");
    drop((view, open));
}

/// A damaged inode may be marked, and older versions would not know its range.
#[test]
fn feature_stays_while_an_inode_cannot_be_read() {
    let (sim, fs) = fresh(8 << 20, 4096);
    let ino = file(&fs, "file", &text(40 * BLOCK as usize));
    let open = open(&fs);
    let view = view(&open, 3..4);
    let copy = crashed(&sim);
    let again = mount(&copy, quiet()).unwrap();
    let home = inode_home(&copy.image(), ino) as u64;
    let window = again.region_to_damage().window();
    window.store_unflushed(home + 0x90, &[0xff]).unwrap();
    drop(window);
    // Nobody has used it.
    again.sum_marked_files();
    assert!(!again.is_read_only());
    again.close().unwrap();
    assert!(has_feature(&copy));
    drop((view, open));
}

/// Versions without ranges know such marks.
#[test]
fn lease_of_small_file_needs_no_feature() {
    let (sim, fs) = fresh(8 << 20, 4096);
    let ino = file(&fs, "file", &text(16 * BLOCK as usize));
    let generation = fs.getattr(ino).unwrap().generation;
    drop(fs.grant_lease(ino, generation, LeaseMode::Write, 1, 0));
    assert_eq!(marked(&fs, ino), blocks(0..16));
    assert!(!has_feature(&sim));
}

/// Each record takes 8 MiB out of the mark, and a crash between them leaves the rest.
#[test]
fn file_is_summed_in_steps_that_crash_keeps() {
    const STEP: u64 = (8 << 20) / BLOCK;
    let (sim, fs) = fresh(40 << 20, 4096);
    let size = 20 << 20;
    let ino = file(&fs, "file", &text(size));
    let file = open(&fs);
    let end = size as u64 / BLOCK;
    drop(view(&file, 2..end));
    assert_eq!(marked(&fs, ino), blocks(2..end));
    assert!(!fs.sum_marked_part());
    assert_eq!(marked(&fs, ino), blocks(2 + STEP..end));
    let copy = crashed(&sim);
    let again = mount(&copy, quiet()).unwrap();
    assert_eq!(marked(&again, ino), blocks(2 + STEP..end));
    assert!(
        again
            .verify_data(ino, 0..u64::MAX)
            .unwrap()
            .wrong
            .is_empty()
    );
    again.close().unwrap();
    assert_sound(&copy);
    // Another view meanwhile adds its range to the rest.
    drop(view(&file, STEP..STEP + 1));
    assert_eq!(marked(&fs, ino), blocks(STEP..end));
    assert!(fs.sum_marked_files());
    assert!(marked(&fs, ino).is_empty());
    assert!(fs.verify_data(ino, 0..u64::MAX).unwrap().wrong.is_empty());
}

#[test]
fn gather_beside_mark_moves_and_in_mark_does_not() {
    use pramfs::inode::Gathered;
    let (_, fs) = fresh(24 << 20, 4096);
    let unit = fs.gather_unit();
    let ino = file(&fs, "file", b"");
    let other = file(&fs, "other", b"");
    for _ in 0..2 * unit / BLOCK {
        fs.append(&CX, ino, &[5; BLOCK as usize]).unwrap();
        fs.append(&CX, other, &[6; BLOCK as usize]).unwrap();
    }
    let file = open(&fs);
    let held = view(&file, 3..4);
    drop(view(&file, 7..8));
    assert_eq!(fs.gather(ino, 0).unwrap(), Gathered::Unsummed);
    assert_eq!(fs.gather(ino, unit).unwrap(), Gathered::Moved);
    assert_eq!(marked(&fs, ino), blocks(3..8));
    assert!(fs.verify_data(ino, 0..u64::MAX).unwrap().wrong.is_empty());
    drop(held);
    assert!(fs.sum_marked_files());
    assert_eq!(fs.gather(ino, 0).unwrap(), Gathered::Moved);
    assert!(fs.verify_data(ino, 0..u64::MAX).unwrap().wrong.is_empty());
}

#[test]
fn view_past_end_marks_nothing() {
    let (sim, fs) = fresh(8 << 20, 4096);
    let ino = file(&fs, "file", &text(4 * BLOCK as usize));
    let file = open(&fs);
    let refused = file.map(3 * BLOCK..5 * BLOCK, Access::Write);
    assert!(matches!(refused, Err(Error::Invalid(_))));
    assert!(marked(&fs, ino).is_empty());
    assert!(!has_feature(&sim));
}

/// Readers without the lock see a longer range before a store to it, or look again.
#[test]
fn reads_while_views_come_and_go_never_fail() {
    const BLOCKS: u64 = 64;
    let (_, fs) = fresh(8 << 20, 4096);
    let ino = file(&fs, "file", &text((BLOCKS * BLOCK) as usize));
    let stop = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    std::thread::scope(|s| {
        for seed in 0..2 {
            let (fs, stop, reads) = (&fs, &stop, &reads);
            s.spawn(move || {
                let (file, mut random) = (open(fs), Random::new(seed));
                let mut into = vec![0; 3 * BLOCK as usize];
                while !stop.load(Ordering::Relaxed) {
                    let at = random.below((BLOCKS - 3) * BLOCK);
                    let len = 1 + random.below(3 * BLOCK - 1) as usize;
                    assert_eq!(file.read_at(&mut into[..len], at).unwrap(), len);
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let (file, mut random) = (open(&fs), Random::new(9));
        for round in 0..400u64 {
            let first = random.below(BLOCKS - 4);
            let view = view(&file, first..first + 1 + random.below(4));
            for i in 0..view.len() / 512 {
                view.store(i * 512 + 8 * random.below(64), round).unwrap();
            }
            fs.write(&CX, ino, random.below(BLOCKS * BLOCK - 9), b"written")
                .unwrap();
            drop(view);
            if round % 3 == 0 {
                assert!(fs.sum_marked_files());
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(reads.into_inner() > 100);
    assert!(fs.sum_marked_files());
    assert!(fs.verify_data(ino, 0..u64::MAX).unwrap().wrong.is_empty());
}
