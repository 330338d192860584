//! Row: two threads on two files, direct 4 KiB overwrite, against one thread.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};

use crate::fixture::{Direct, MIB, random_page};
use crate::harness::{Context, Group, Huge, Ops, Report, Rng, Row, Side, interleave};
use crate::sys::{self, Aligned, Mapping, PAGE};

const ROWS: &[Row] = &[Row {
    id: "two-threads",
    work: "2 threads on 2 files, direct 4 KiB overwrite",
    against: "1 thread",
    floor: 1.7,
    strictly: false,
}];

/// The group.
pub const GROUP: Group = Group {
    rows: ROWS,
    measure,
};

const FILE: u64 = 256 * MIB;

fn measure(cx: &Context, out: &mut Report) -> Result<()> {
    ensure!(cx.cpus.len() >= 2, "there is only one processor to run on");
    let ours = Direct::new(cx, "threads", 1024 * MIB, 2 * FILE, Huge::Never)?;
    let files = [ours.create("one")?, ours.create("two")?];
    let chunk = vec![0x5au8; MIB as usize];
    for f in &files {
        for at in (0..FILE).step_by(chunk.len()) {
            f.write_at(&chunk, at)?;
        }
    }
    ours.prefault()?;
    let plain = [
        Mapping::anonymous(FILE as usize)?,
        Mapping::anonymous(FILE as usize)?,
    ];
    let overwrite = |which: usize, offset: u64, data: &[u8]| -> Result<()> {
        files[which].write_at(data, offset)?;
        Ok(())
    };
    let copy = |which: usize, offset: u64, data: &[u8]| -> Result<()> {
        plain[which].copy_in(offset as usize, data);
        Ok(())
    };
    let m = interleave(
        cx,
        Ops::Calibrated,
        &mut [
            Side::timed("two threads", |seed, ops| {
                on_threads(&cx.cpus[..2], seed, ops, &overwrite)
            }),
            Side::timed("one thread", |seed, ops| {
                on_threads(&cx.cpus[..1], seed, ops, &overwrite)
            }),
            Side::timed("two threads, memcpy", |seed, ops| {
                on_threads(&cx.cpus[..2], seed, ops, &copy)
            }),
            Side::timed("one thread, memcpy", |seed, ops| {
                on_threads(&cx.cpus[..1], seed, ops, &copy)
            }),
        ],
    )?;
    let note = format!(
        "the machine itself: memcpy into two private memories is {:.2} times as fast as into one",
        m.median_ns(3) / m.median_ns(2)
    );
    out.record(&ROWS[0], &m, (0, 1), &[note]);
    Ok(())
}

/// Runs `ops` random overwrites, divided among the threads, each with a file and a
/// processor of its own. Returns the time from the common start to the last end.
fn on_threads(
    cpus: &[usize],
    seed: u64,
    ops: u64,
    write: &(impl Fn(usize, u64, &[u8]) -> Result<()> + Sync),
) -> Result<Duration> {
    let barrier = Barrier::new(cpus.len());
    let share = ops.div_ceil(cpus.len() as u64);
    let run = |which: usize| -> Result<(Instant, Instant)> {
        sys::pin_to_cpu(cpus[which])?;
        let data = Aligned::filled(PAGE, 0xa5)?;
        let mut rng = Rng::new(seed + which as u64);
        barrier.wait();
        let start = Instant::now();
        for _ in 0..share {
            write(
                which,
                random_page(&mut rng, FILE / PAGE as u64),
                data.bytes(),
            )?;
        }
        Ok((start, Instant::now()))
    };
    let times = std::thread::scope(|s| {
        let handles: Vec<_> = (0..cpus.len()).map(|t| s.spawn(move || run(t))).collect();
        handles
            .into_iter()
            .map(|h| h.join().map_err(|_| anyhow!("a thread panicked"))?)
            .collect::<Result<Vec<_>>>()
    })?;
    let start = times.iter().map(|t| t.0).min();
    let end = times.iter().map(|t| t.1).max();
    match (start, end) {
        (Some(s), Some(e)) => Ok(e - s),
        _ => Err(anyhow!("no thread ran")),
    }
}
