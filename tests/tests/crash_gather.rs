//! A crash in a gather that makes a leaf of 2 MiB. The cases of `crash_sweep.rs` are small, and
//! never make one.
//!
//! Before the fence of the copy 32768 lines are uncertain, too many for the choice of images
//! there. Here are, before each fence: nothing of what is uncertain, all of it, and random lines
//! and words.

use pramfs::Result;
use pramfs::inode::{Fs, Gathered};
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

const LEN: usize = 16 << 20;
const LEAF: usize = 2 << 20;
const BLOCK: usize = 4096;
/// Random images before each fence.
const RANDOM: usize = 6;

/// A closed file system with `/f` and `/g`, whose blocks alternate.
fn scattered(features: &[&str]) -> Result<Vec<u8>> {
    let mut format = region::repeatable(BLOCK as u32);
    format.lanes = Some(2);
    format.features = features.iter().map(|f| ((*f).to_owned(), true)).collect();
    let sim = region::formatted(LEN, &format)?;
    let fs = region::mount(&sim, options(Rules::default()))?;
    let files = [(file(&fs, "f", b""), 1), (file(&fs, "g", b""), 2)];
    let files = files.map(|(ino, seed)| (ino, pattern(LEAF, seed)));
    for at in (0..LEAF).step_by(BLOCK) {
        for (ino, bytes) in &files {
            fs.write(&CX, *ino, at as u64, &bytes[at..at + BLOCK])?;
        }
    }
    fs.close()?;
    Ok(sim.image())
}

fn extents(fs: &Fs) -> Vec<FileExtent> {
    fs.file_extents(ino(fs, "/f"), 0, u64::MAX).unwrap()
}

fn is_leaf(extents: &[FileExtent]) -> bool {
    let aligned = |place: Option<u64>| place.is_some_and(|place| place % LEAF as u64 == 0);
    extents.len() == 1 && extents[0].len == LEAF as u64 && aligned(extents[0].region_offset)
}

/// What files hold. The check knows what is free, and a leaf needs no pointer block.
fn files(image: &[u8]) -> Result<Tree> {
    let mut tree = recovered_tree(image)?;
    (tree.free, tree.free_inodes) = (0, 0);
    tree.nodes.values_mut().for_each(|node| node.blocks = 0);
    Ok(tree)
}

/// Images that a power failure may leave now.
fn images(machine: &Machine, geo: &Geometry, random: &mut Random, look: &mut dyn FnMut(&[u8])) {
    look(&machine.least());
    look(&machine.most());
    // A record before the copy that it makes reachable, and the other way round.
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

fn sweep(features: &[&str]) {
    let image = scattered(features).unwrap();
    let before = files(&image).unwrap();
    let rules = Rules {
        long_windows: false,
        ..Rules::default()
    };
    let mut rec = Recorded::from_image(&image, rules).unwrap();
    let old = extents(&rec.fs);
    assert!(old.len() > 400, "{} extents", old.len());
    let from = rec.now();
    assert_eq!(
        rec.fs.gather(ino(&rec.fs, "/f"), 0).unwrap(),
        Gathered::Moved
    );
    let to = rec.now();
    assert!(is_leaf(&extents(&rec.fs)));
    let events = rec.events()[from..to].to_vec();
    let geo = rec.fs.superblock().geometry();
    let mut machine = rec.at(from);
    let (mut random, mut seen) = (Random::new(7), [0, 0]);
    for (i, event) in events.iter().map(Some).chain([None]).enumerate() {
        if event.is_none_or(|event| event.kind == EventKind::Fence) {
            images(&machine, &geo, &mut random, &mut |image| {
                let at = format!("{features:?}: crash at event {i} of {}", events.len());
                // It is checked there, as fsck does.
                let found = files(image).unwrap_or_else(|e| panic!("{at}: {e}"));
                assert!(
                    found == before,
                    "{at}: another file:\n{}",
                    before.differences(&found)
                );
                let found = extents(&recover(image).unwrap());
                let is_new = is_leaf(&found);
                assert!(is_new || found == old, "{at}: neither old nor new blocks");
                assert!(is_new || event.is_some(), "{at}: it had returned");
                seen[usize::from(is_new)] += 1;
            });
        }
        if let Some(event) = event {
            machine.run(event);
        }
    }
    println!(
        "{features:?}: {} images with old blocks, {} with new",
        seen[0], seen[1]
    );
    assert!(seen[0] > RANDOM && seen[1] > RANDOM, "{seen:?}");
}

#[test]
fn crash_in_gather_of_leaf_leaves_old_or_new_blocks() {
    set_thread_lane(0);
    sweep(&[]);
}

#[test]
fn crash_in_gather_of_leaf_with_sums_leaves_right_ones() {
    set_thread_lane(0);
    sweep(&["data_checksums"]);
}
