//! Crashes while a file system extends its own structures, and while a large leaf is
//! split: another group of blocks and of inodes, another block of the orphan table, a
//! hole in a leaf of 2 MiB.
//!
//! Most workloads are too small for these. At every fence of the operation, single lines
//! and some combinations are lost; the image must show the state before or after.

use std::sync::Arc;

use pramfs::format::FormatOptions;
use pramfs::{
    Fallocate,
    inode::{Credentials, Fs, Ino},
};
use pramfs_medium::journal::{Rules, set_thread_lane};
use pramfs_medium::pmem::{Event, EventKind};
use pramfs_tests::crash::images::{Limits, everywhere};
use pramfs_tests::crash::machine::Torn;
use pramfs_tests::crash::oracle::Oracle;
use pramfs_tests::recorded::{Recorded, recovered_tree};
use pramfs_tests::region::repeatable;
use pramfs_tests::tree::Tree;

const CX: Credentials<'_> = Credentials::new(0, 0);

const LIMITS: Limits = Limits {
    lines: 3,
    pairs: 12,
    random: 6,
    torn: Torn::Edges,
};

/// For images whose walk covers thousands of files.
const FEW: Limits = Limits {
    lines: 2,
    pairs: 0,
    random: 2,
    torn: Torn::Half,
};

fn file(fs: &Fs, name: &str) -> Ino {
    let made = fs.create(&CX, Ino::ROOT, name.as_bytes(), 0o644);
    made.unwrap().ino
}

/// Crashes `run` at every fence. `grown` checks its events for the intended growth.
fn crash(
    len: usize,
    format: &FormatOptions,
    setup: impl FnOnce(&Fs),
    run: impl FnOnce(&Fs),
    grown: impl FnOnce(&[Event]) -> bool,
) {
    set_thread_lane(0);
    let format = FormatOptions {
        lanes: Some(2),
        ..format.clone()
    };
    let mut rec = Recorded::new(len, &format, Rules::default());
    setup(&rec.fs);
    let from = rec.now();
    // The check has compared the free space.
    let tidy = |tree: Tree| Tree {
        free: 0,
        free_inodes: 0,
        ..tree
    };
    let tree = |image: &[u8]| tidy(recovered_tree(image).unwrap());
    let before = tree(&rec.sim.image());
    run(&rec.fs);
    let to = rec.now();
    let after = tree(&rec.sim.image());
    let events = rec.events()[from..to].to_vec();
    assert!(grown(&events), "nothing has grown");
    let machine = rec.at(from);
    let look = |moment: usize, found: Result<Tree, String>| {
        let at = || format!("crash at event {moment} of {}", events.len());
        let found = tidy(found.unwrap_or_else(|e| panic!("{}: {e}", at())));
        let returned = moment == events.len();
        assert!(
            found == after || !returned && found == before,
            "{}\n--- against the state before:\n{}--- against the state after:\n{}",
            at(),
            before.differences(&found),
            after.differences(&found)
        );
    };
    // The oracle supports only regions with one group.
    let geo = rec.geometry();
    let images = if geo.blocks() > geo.bits_per_group() {
        everywhere(machine, &events, &FEW, 7, &mut |moment, cut| {
            look(moment, recovered_tree(cut).map_err(|e| e.to_string()))
        })
    } else {
        let mut oracle = Oracle::new(&Arc::default(), rec.start()).unwrap();
        oracle.everywhere(machine, &events, &LIMITS, &mut |moment, found| {
            look(moment, found.map(|state| state.tree.clone()))
        })
    };
    println!("{images} images of {} events", events.len());
    assert!(images > 20);
}

/// Whether a block of zeros was stored.
fn zeros(events: &[Event], len: usize) -> Option<u64> {
    let store = |e: &Event| matches!(e.kind, EventKind::NtStore | EventKind::Store);
    let zeroed = |e: &&Event| store(e) && e.bytes.len() == len && e.bytes.iter().all(|b| *b == 0);
    events.iter().find(zeroed).map(|e| e.offset)
}

#[test]
fn crash_during_block_group_init_recovers() {
    // 4096 blocks are the first group, 2048 the second, which keeps its bitmap in its
    // last block.
    let len = 3 << 20;
    crash(
        len,
        &repeatable(512),
        |fs| {
            file(fs, "f");
            let ballast = file(fs, "ballast");
            let keep = Fallocate::Allocate { keep_size: true };
            // In small pieces, since a large one would go to the other group.
            let mut at = 0;
            loop {
                let left = fs.statfs().unwrap().available.saturating_sub(2047);
                let Some(n) = [64, 4].into_iter().find(|n| left > n + 4) else {
                    break;
                };
                fs.fallocate(&CX, ballast, keep, at * 512, n * 512).unwrap();
                at += n;
            }
        },
        |fs| {
            let f = fs.resolve(b"/f").unwrap().ino;
            fs.append(&CX, f, &[7; 10_000]).unwrap();
        },
        |events| zeros(events, 512) == Some(len as u64 - 512),
    );
}

#[test]
fn crash_during_inode_group_init_recovers() {
    crash(
        4 << 20,
        &FormatOptions {
            max_inodes: Some(6000),
            ..repeatable(512)
        },
        |fs| {
            let made = (0..).map(|i| file(fs, &format!("{i}")));
            assert!(made.take(4096).any(|ino| ino.0 == 4095));
        },
        |fs| assert_eq!(file(fs, "the first of its group").0, 4096),
        |events| zeros(events, 512).is_some(),
    );
}

#[test]
fn crash_during_orphan_table_growth_recovers() {
    let unlink = |fs: &Fs, i: usize| {
        let name = format!("f{i}");
        fs.hold(file(fs, &name)).into_count();
        fs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
    };
    crash(
        512 << 10,
        &repeatable(512),
        |fs| {
            (0..64).for_each(|i| unlink(fs, i));
            let last = file(fs, "last");
            fs.hold(last).into_count();
        },
        |fs| fs.unlink(Ino::ROOT, b"last").unwrap(),
        |events| zeros(events, 512).is_some(),
    );
}

#[test]
fn crash_during_punch_in_large_leaf_recovers() {
    let huge = |fs: &Fs| {
        let f = file(fs, "f");
        let grow = Fallocate::Allocate { keep_size: false };
        fs.fallocate(&CX, f, grow, 0, 2 << 20).unwrap();
        fs.fill(f, 0, 2 << 20).unwrap();
        fs.write(&CX, f, 0, &[5; 40_000]).unwrap();
    };
    crash(
        8 << 20,
        &repeatable(4096),
        huge,
        |fs| {
            let f = fs.resolve(b"/f").unwrap().ino;
            fs.fallocate(&CX, f, Fallocate::PunchHole, 8192, 16384)
                .unwrap();
        },
        // The table of the pieces.
        |events| {
            events
                .iter()
                .any(|e| e.bytes.len() == 4096 && e.kind != EventKind::Flush)
        },
    );
}
