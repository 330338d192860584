//! Rows: a scrub of everything against one thread that loads as many bytes, and an overwrite
//! beside a scrub with the limit of a live mount.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pramfs::inode::ScrubOptions;

use crate::fixture::{Direct, MIB, fill, open_rw, random_page};
use crate::harness::{Context, Group, Huge, Ops, Report, Rng, Row, Side, interleave};
use crate::sys::{Aligned, Mapping, PAGE};

const FILE: u64 = 768 * MIB;
/// The limit of `pramfs scrub` on a live mount.
const LIVE: u64 = 100 << 20;

const ROWS: &[Row] = &[
    Row {
        id: "scrub",
        work: "scrub of 768 MiB in one file, one thread",
        against: "loads of as many bytes, one thread",
        floor: 0.5,
        strictly: false,
    },
    Row {
        id: "scrub-beside",
        work: "direct 4 KiB random overwrite beside a scrub of 100 MiB/s, 99th percentile",
        against: "the same without a scrub",
        // At most 1.2 times the time.
        floor: 0.833,
        strictly: false,
    },
];

/// The group.
pub const GROUP: Group = Group {
    rows: ROWS,
    measure,
};

fn measure(cx: &Context, out: &mut Report) -> Result<()> {
    let ours = Direct::new(cx, "scrub", 1024 * MIB, FILE, Huge::Never)?;
    let file = ours.create("file")?;
    let chunk = vec![0x5au8; 2 * MIB as usize];
    for at in (0..FILE).step_by(chunk.len()) {
        file.write_at(&chunk, at)?;
    }
    ours.prefault()?;
    if out.wants(ROWS[0].id) {
        speed(cx, out, &ours)?;
    }
    if out.wants(ROWS[1].id) {
        let data = Aligned::filled(PAGE, 0xa5)?;
        let write = |at| Ok(file.write_at(data.bytes(), at).map(drop)?);
        beside(cx, out, &ours, &write)?;
    }
    Ok(())
}

fn speed(cx: &Context, out: &mut Report, ours: &Direct) -> Result<()> {
    let path = ours.tmpfs.join("theirs");
    drop(std::fs::File::create_new(&path)?);
    let theirs = open_rw(&path, false)?;
    fill(&theirs, 0, FILE)?;
    let map = Mapping::of_file(&theirs, FILE as usize, false, true)?;
    let m = interleave(
        cx,
        Ops::Fixed(2),
        &mut [
            Side::whole("scrub", |_, ops| {
                for _ in 0..ops {
                    ours.fs.start_scrub(ScrubOptions::default())?;
                    while ours.fs.wait_for_scrub(Duration::from_secs(1)).running {}
                    let done = ours.fs.scrub_status();
                    ensure!(done.done >= FILE && done.found == 0, "{done:?}");
                }
                Ok(())
            }),
            Side::whole("loads", |_, ops| {
                for _ in 0..ops {
                    let sum = map.lend(0..FILE as usize, |bytes| {
                        let words = bytes.as_chunks::<8>().0.iter();
                        words.fold(0u64, |sum, word| {
                            sum.wrapping_add(u64::from_ne_bytes(*word))
                        })
                    });
                    std::hint::black_box(sum);
                }
                Ok(())
            }),
        ],
    )?;
    out.record(&ROWS[0], &m, (0, 1), &[ours.describe()]);
    Ok(())
}

/// Times each operation, and reports the 99th percentile as the time of all.
fn percentile(seed: u64, ops: u64, write: &dyn Fn(u64) -> Result<()>) -> Result<Duration> {
    let (mut rng, mut took) = (Rng::new(seed), Vec::new());
    for _ in 0..ops {
        let at = random_page(&mut rng, FILE / PAGE as u64);
        let start = Instant::now();
        write(at)?;
        took.push(start.elapsed());
    }
    took.sort_unstable();
    let at = took.len().saturating_sub(1) * 99 / 100;
    let p99 = took.get(at).copied().unwrap_or_default();
    Ok(p99 * u32::try_from(ops)?)
}

fn beside(
    cx: &Context,
    out: &mut Report,
    ours: &Direct,
    write: &dyn Fn(u64) -> Result<()>,
) -> Result<()> {
    let m = interleave(
        cx,
        Ops::Fixed(100_000),
        &mut [
            Side::timed("beside a scrub", |seed, ops| {
                ours.fs.start_scrub(ScrubOptions {
                    limit: Some(LIVE),
                    resume: false,
                })?;
                let took = percentile(seed, ops, write);
                let ran = ours.fs.cancel_scrub();
                while ours.fs.wait_for_scrub(Duration::from_secs(1)).running {}
                ensure!(ran, "the scrub ended before the operations did");
                took
            }),
            Side::timed("without", |seed, ops| percentile(seed, ops, write)),
        ],
    )?;
    out.record(&ROWS[1], &m, (0, 1), &[ours.describe()]);
    Ok(())
}
