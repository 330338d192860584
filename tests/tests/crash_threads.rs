//! Crashes while several threads work at the same time, on their own lanes or shared
//! ones, in one directory. For each thread, completed operations are there, the next one
//! is there as a whole or not at all, and nothing later is.
//!
//! The threads are not synchronized, so runs differ; the operations of each thread are
//! fixed. A thread records its progress in the unused part of a lane's line, where the
//! record shows it between the events of the operations.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::time::Duration;

use pramfs::{
    RenameFlags, XattrMode,
    inode::{Credentials, Fs, Ino, SetAttr},
};
use pramfs_medium::journal::{Rules, set_thread_lane};
use pramfs_medium::media::Geometry;
use pramfs_medium::pmem::{Event, EventKind, RegionAccess};
use pramfs_tests::random::Random;
use pramfs_tests::recorded::{Recorded, recovered_tree};
use pramfs_tests::region::repeatable;
use pramfs_tests::tree::Tree;
use pramfs_tests::watchdog::Watchdog;

const THREADS: usize = 3;
const OPERATIONS: usize = 60;
/// Small, so that freed blocks are soon reused.
const LEN: usize = 256 << 10;

/// Where a thread records its progress: nothing else uses these words.
fn note(geo: &Geometry, thread: usize) -> u64 {
    geo.retired_offset(0).0 + 32 + thread as u64 * 8
}

/// Operation number `i` of a thread. Names belong to one thread.
fn operation(fs: &Fs, thread: usize, i: usize) {
    let ctx = Credentials::ROOT;
    let name = |n: usize| format!("{thread}-{}", n % 5).into_bytes();
    let find = |n: usize| fs.lookup(Ino::ROOT, &name(n)).map(|a| a.ino);
    // A failed call (an existing or missing name) changes nothing, and fails in every
    // run.
    let k = i / 7;
    let _ = match i % 7 {
        0 => fs.create(&ctx, Ino::ROOT, &name(k), 0o600).map(drop),
        1 => find(k)
            .and_then(|f| fs.append(&Credentials::ROOT, f, &vec![i as u8; 300 * (i % 5)]))
            .map(drop),
        2 => find(k).and_then(|f| {
            fs.setxattr(
                &Credentials::ROOT,
                f,
                b"user.x",
                &vec![i as u8; i * 20],
                XattrMode::Set,
            )
        }),
        3 => fs.rename(
            &ctx,
            Ino::ROOT,
            &name(k),
            Ino::ROOT,
            &name(k + 3),
            RenameFlags::default(),
        ),
        4 => find(k + 3).and_then(|f| {
            let set = SetAttr {
                size: Some(i as u64 * 10),
                ..SetAttr::default()
            };
            fs.setattr(&Credentials::ROOT, f, &set).map(drop)
        }),
        5 => fs
            .symlink(&ctx, Ino::ROOT, &name(k + 1), &vec![b't'; 1 + i * 5])
            .map(drop),
        _ => fs.unlink(Ino::ROOT, &name(k + 2)),
    };
}

/// The visible state of a thread's names, without effects of other threads.
type View = BTreeMap<Vec<u8>, (u64, Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>)>;

fn view(t: &Tree, thread: usize) -> View {
    let mine = format!("/{thread}-").into_bytes();
    t.nodes
        .iter()
        .filter(|(path, _)| path.starts_with(&mine))
        .map(|(path, n)| (path.clone(), (n.size, n.data.clone(), n.xattrs.clone())))
        .collect()
}

fn fresh(lanes: u32) -> Recorded {
    let mut format = repeatable(512);
    format.lanes = Some(lanes);
    Recorded::new(LEN, &format, Rules::default())
}

/// The visible state of each thread's names after each of its operations.
fn expected() -> Vec<Vec<View>> {
    (0..THREADS)
        .map(|thread| {
            let rec = fresh(1);
            let mut views = vec![View::new()];
            for i in 0..OPERATIONS {
                operation(&rec.fs, thread, i);
                views.push(view(&Tree::of(&rec.fs).unwrap(), thread));
            }
            views
        })
        .collect()
}

/// `chosen`: each thread keeps its lane; otherwise it uses the lane that last changed the
/// place, as outside of tests.
fn run(lanes: u32, chosen: bool, seed: u64, expected: &[Vec<View>]) -> usize {
    let mut rec = fresh(lanes);
    let from = rec.now();
    let geo = rec.geometry();
    let fs = &rec.fs;
    let together = Barrier::new(THREADS);
    std::thread::scope(|s| {
        for thread in 0..THREADS {
            let (geo, together) = (&geo, &together);
            s.spawn(move || {
                if chosen {
                    set_thread_lane(thread as u32);
                }
                together.wait();
                for i in 0..OPERATIONS {
                    operation(fs, thread, i);
                    let w = fs.region_to_damage().window();
                    w.store_u64_unflushed(note(geo, thread), i as u64 + 1)
                        .unwrap();
                    std::thread::yield_now();
                }
            });
        }
    });
    let events: Vec<Event> = rec.events()[from..].to_vec();
    let mut machine = rec.at(from);
    let mut done = [0; THREADS];
    let mut random = Random::new(seed);
    let mut images = 0;
    for e in &events {
        machine.run(e);
        if e.kind == EventKind::Store {
            for (thread, done) in done.iter_mut().enumerate() {
                if e.offset == note(&geo, thread) {
                    *done += 1;
                }
            }
        }
        if !random.one_in(events.len() as u64 / 300) {
            continue;
        }
        let image = match random.below(6) {
            0 => machine.least(),
            1 => machine.most(),
            2 => machine.journal_apart(&geo)[0].clone(),
            3 => machine.journal_apart(&geo)[1].clone(),
            _ => machine.random(&mut random),
        };
        images += 1;
        let at = format!(
            "{lanes} lanes, chosen: {chosen}, crash at event {} with {done:?} operations done",
            e.seq
        );
        let t = recovered_tree(&image).unwrap_or_else(|e| panic!("{at}: {e}"));
        for (thread, views) in expected.iter().enumerate() {
            let found = view(&t, thread);
            let possible = &views[done[thread]..(done[thread] + 2).min(views.len())];
            assert!(
                possible.contains(&found),
                "{at}: thread {thread} has {:?}",
                found
                    .iter()
                    .map(|(n, v)| (String::from_utf8_lossy(n), v.0))
                    .collect::<Vec<_>>()
            );
        }
    }
    images
}

#[test]
fn completed_ops_of_threads_survive_crash() {
    let _watchdog = Watchdog::new("threads that crash together", Duration::from_secs(300));
    let expected = expected();
    for lanes in 1..=THREADS as u32 {
        for round in 0..4 {
            let chosen = round % 2 == 0;
            let n = run(lanes, chosen, u64::from(lanes) + 10 * round, &expected);
            println!("{THREADS} threads on {lanes} lanes, chosen: {chosen}: {n} images");
        }
    }
}
