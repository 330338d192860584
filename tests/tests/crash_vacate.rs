//! A crash in a vacate: data blocks and pointer blocks of a file leave a leaf of the region.
//!
//! Images as in `crash_gather.rs`, before each fence: nothing of what is uncertain, all of it, the
//! record and the copies apart, and random lines and words. Then the blocks that the crash may
//! have freed are filled: what a file holds must not be among them.

use pramfs::Result;
use pramfs::inode::{Fs, Vacated};
use pramfs_medium::journal::{Rules, set_thread_lane};
use pramfs_medium::media::Geometry;
use pramfs_medium::pmem::EventKind;
use pramfs_medium::types::FileExtent;
use pramfs_tests::crash::Machine;
use pramfs_tests::crash::sweep::{CX, file, ino, pattern};
use pramfs_tests::random::Random;
use pramfs_tests::recorded::{Recorded, options, recover, recovered_tree};
use pramfs_tests::region;
use pramfs_tests::tree::Tree;

/// Random images before each fence.
const RANDOM: usize = 6;

/// One configuration.
struct Case {
    block: usize,
    features: &'static [&'static str],
    region: usize,
    file: usize,
}

/// A closed file system with `/f`, and `/g`, whose blocks alternate. Every second block of `/g` is
/// a hole: so leaves are in use in part.
fn loose(case: &Case) -> Result<Vec<u8>> {
    let mut format = region::repeatable(case.block as u32);
    format.lanes = Some(2);
    format.features = case
        .features
        .iter()
        .map(|f| ((*f).to_owned(), true))
        .collect();
    let sim = region::formatted(case.region, &format)?;
    let fs = region::mount(&sim, options(Rules::default()))?;
    let files = [(file(&fs, "f", b""), 1), (file(&fs, "g", b""), 2)];
    let files = files.map(|(ino, seed)| (ino, pattern(case.file, seed)));
    for at in (0..case.file).step_by(case.block) {
        for (ino, bytes) in &files {
            let part = &bytes[at..case.file.min(at + case.block)];
            fs.write(&CX, *ino, at as u64, part)?;
        }
    }
    let punch = pramfs_medium::types::Fallocate::PunchHole;
    for at in (0..case.file).step_by(2 * case.block) {
        fs.fallocate(&CX, files[1].0, punch, at as u64, case.block as u64)?;
    }
    fs.close()?;
    Ok(sim.image())
}

fn extents(fs: &Fs) -> Vec<FileExtent> {
    fs.file_extents(ino(fs, "/f"), 0, u64::MAX).unwrap()
}

/// Where the pointer blocks of `/f` lie.
fn tables(fs: &Fs) -> Vec<u64> {
    let (blocks, _) = fs.pointer_blocks(ino(fs, "/f"), 0, usize::MAX).unwrap();
    blocks.iter().map(|block| block.region_offset).collect()
}

/// What files hold.
fn files(image: &[u8]) -> Result<Tree> {
    recovered_tree(image)
}

/// Images that a power failure may leave now.
fn images(machine: &Machine, geo: &Geometry, random: &mut Random, look: &mut dyn FnMut(&[u8])) {
    look(&machine.least());
    look(&machine.most());
    for image in machine.journal_apart(geo) {
        look(&image);
    }
    for i in 0..RANDOM {
        look(&match i % 2 {
            0 => machine.lines(|_| random.one_in(2)),
            _ => machine.random(random),
        });
    }
}

/// Fills what is free with other bytes, and reads `/f`.
fn is_kept_in_full_region(image: &[u8], bytes: &[u8]) -> bool {
    let fs = recover(image).unwrap();
    let rest = file(&fs, "rest", b"");
    let (other, mut at) = (vec![0xc3; 4096], 0);
    while fs.write(&CX, rest, at, &other).is_ok_and(|n| n == 4096) {
        at += 4096;
    }
    let mut found = vec![0; bytes.len()];
    fs.read(ino(&fs, "/f"), 0, &mut found).unwrap() == bytes.len() && found == bytes
}

/// Crashes a vacate of a leaf of data, or of the leaf of a pointer block.
fn sweep(case: &Case, of_pointers: bool) {
    let image = loose(case).unwrap();
    let before = files(&image).unwrap();
    let bytes = pattern(case.file, 1);
    let rules = Rules {
        long_windows: false,
        ..Rules::default()
    };
    let mut rec = Recorded::from_image(&image, rules).unwrap();
    let old = (extents(&rec.fs), tables(&rec.fs));
    let unit = rec.fs.gather_unit();
    let place = match of_pointers {
        true => *old.1.last().unwrap(),
        false => old.0.last().unwrap().region_offset.unwrap(),
    };
    let leaf = place - place % unit;
    let last = (case.file as u64 - 1) / unit * unit;
    let from = rec.now();
    let f = ino(&rec.fs, "/f");
    assert_eq!(rec.fs.vacate(f, last, leaf).unwrap(), Vacated::Moved);
    let to = rec.now();
    let new = (extents(&rec.fs), tables(&rec.fs));
    assert_ne!(new, old);
    assert!(!of_pointers || new.1 != old.1);
    let events = rec.events()[from..to].to_vec();
    let geo = rec.fs.superblock().geometry();
    let mut machine = rec.at(from);
    let (mut random, mut seen) = (Random::new(7), [0, 0]);
    for (i, event) in events.iter().map(Some).chain([None]).enumerate() {
        if event.is_none_or(|event| event.kind == EventKind::Fence) {
            images(&machine, &geo, &mut random, &mut |image| {
                let at = format!(
                    "{} {:?}: crash at event {i} of {}",
                    case.block,
                    case.features,
                    events.len()
                );
                // It is checked there, as fsck does.
                let found = files(image).unwrap_or_else(|e| panic!("{at}: {e}"));
                assert!(
                    found == before,
                    "{at}: another file:\n{}",
                    before.differences(&found)
                );
                let fs = recover(image).unwrap();
                let found = (extents(&fs), tables(&fs));
                drop(fs);
                let is_new = found == new;
                assert!(is_new || found == old, "{at}: neither old nor new blocks");
                assert!(is_new || event.is_some(), "{at}: it had returned");
                assert!(is_kept_in_full_region(image, &bytes), "{at}: shared blocks");
                seen[usize::from(is_new)] += 1;
            });
        }
        if let Some(event) = event {
            machine.run(event);
        }
    }
    println!(
        "{} {:?}: {} images with old blocks, {} with new",
        case.block, case.features, seen[0], seen[1]
    );
    assert!(seen[0] > RANDOM && seen[1] > RANDOM, "{seen:?}");
}

const SMALL: Case = Case {
    block: 512,
    features: &[],
    region: 1 << 20,
    file: 60_000,
};

const LARGE: Case = Case {
    block: 4096,
    features: &[],
    region: 16 << 20,
    file: (2 << 20) + 5000,
};

#[test]
fn crash_in_vacate_of_data_leaves_old_or_new_blocks() {
    set_thread_lane(0);
    sweep(&SMALL, false);
    sweep(&LARGE, false);
}

#[test]
fn crash_in_vacate_of_pointer_blocks_leaves_old_or_new_blocks() {
    set_thread_lane(0);
    sweep(&SMALL, true);
    sweep(&LARGE, true);
}

#[test]
fn crash_in_vacate_with_sums_leaves_right_ones() {
    set_thread_lane(0);
    let features = &["data_checksums"];
    for of_pointers in [false, true] {
        sweep(&Case { features, ..SMALL }, of_pointers);
        sweep(&Case { features, ..LARGE }, of_pointers);
    }
}
