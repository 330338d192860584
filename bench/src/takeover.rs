//! The pause of a mount with `takeover=on` when its server is killed: from SIGKILL to the first
//! answer of the next server, with a load running.
//!
//! Two threads ask for what only a server can answer: attributes of the file system, and reads of
//! 4 KiB past the page cache. A pause ends with the last operation that was under way when the
//! server was killed, or began before the next one served: for one of the threads, and for both.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args as ClapArgs;

use crate::fixture::{MIB, Mounted, filled_file, open_rw, random_page};
use crate::harness::{Context, Rng, machine};
use crate::sys::{self, Aligned};

const PAGE: usize = 4096;
/// Bytes of the file that is read.
const FILE: u64 = 64 * MIB;
/// What an installation of this size needs beside its region.
const SPARE: u64 = 3 << 30;

/// What to measure.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Kills for each size
    #[arg(long, default_value_t = 1000)]
    kills: usize,
    /// Sizes of regions in GiB
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16])]
    gib: Vec<u64>,
    /// Kills of servers that have touched a file of most of the region
    #[arg(long, default_value_t = 10)]
    aged: usize,
}

/// One operation of the load.
#[derive(Debug, Clone, Copy)]
struct Done {
    from: Instant,
    to: Instant,
}

type Log = Mutex<Vec<Done>>;

/// Measures and prints.
///
/// # Errors
/// An operation of the load failed; a server is not replaced.
pub fn run(cx: &Context, args: &Args) -> Result<()> {
    println!(
        "{:>8} | {:22} | {:>5} | {:>8} | {:>8} | {:>8} | answer of",
        "region", "server", "kills", "median", "p99", "worst"
    );
    for gib in &args.gib {
        let region = gib << 30;
        let mib = region / MIB;
        let available = machine::available_memory();
        if available < region + SPARE {
            println!(
                "{mib:>4} MiB | SKIPPED: {} MiB of memory are available, and {} are needed",
                available / MIB,
                (region + SPARE) / MIB
            );
            continue;
        }
        let options = ",takeover=on,takeover-deaths=1000000";
        let mounted = Mounted::with_options(cx, "takeover", region, options)?;
        drop(filled_file(&mounted.daemon.join("file"), FILE)?);
        let kills = if cx.quick { 20 } else { args.kills };
        let pauses = measure(cx, &mounted, kills, || Ok(()))?;
        print(mib, "serves for 20 ms", &pauses);
        let large = mounted.daemon.join("large");
        let aged = if cx.quick { 1 } else { args.aged };
        if aged > 0 {
            drop(filled_file(&large, region / 4 * 3)?);
            let pauses = measure(cx, &mounted, aged, || read_all(&large))?;
            print(mib, "has touched the region", &pauses);
        }
    }
    Ok(())
}

fn print(mib: u64, server: &str, pauses: &[[f64; 2]]) {
    for (side, what) in ["one thread", "both"].iter().enumerate() {
        let mut values: Vec<f64> = pauses.iter().map(|pause| pause[side]).collect();
        values.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let last = values.len().saturating_sub(1);
            values
                .get((last as f64 * share).ceil() as usize)
                .copied()
                .unwrap_or_default()
        };
        println!(
            "{mib:>4} MiB | {server:22} | {:>5} | {:>5.1} ms | {:>5.1} ms | {:>5.1} ms | {what}",
            values.len(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
}

fn read_all(path: &Path) -> Result<()> {
    let file = open_rw(path, true)?;
    let mut room = Aligned::filled(MIB as usize, 0)?;
    let len = file.metadata()?.len();
    for at in (0..len).step_by(MIB as usize) {
        file.read_at(room.bytes_mut(), at)?;
    }
    Ok(())
}

/// Returns the server of a supervisor that serves: its oldest child.
fn server_of(supervisor: u32) -> Option<u32> {
    let path = format!("/proc/{supervisor}/task/{supervisor}/children");
    let text = fs::read_to_string(path).ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// Kills servers, and returns for each the pause in milliseconds: of the thread that is served
/// first, and of the other one.
fn measure(
    cx: &Context,
    mounted: &Mounted,
    kills: usize,
    mut before: impl FnMut() -> Result<()>,
) -> Result<Vec<[f64; 2]>> {
    let logs: [Log; 2] = Default::default();
    let stop = AtomicBool::new(false);
    let path = mounted.daemon.path();
    let file = mounted.daemon.join("file");
    let (logs, stop) = (&logs, &stop);
    std::thread::scope(|scope| {
        let attributes = scope.spawn(move || {
            load(&logs[0], stop, || {
                rustix::fs::statvfs(path).map(drop).context("statvfs")
            })
        });
        let reads = scope.spawn(move || -> Result<()> {
            let file = open_rw(&file, true)?;
            let mut page = Aligned::filled(PAGE, 0)?;
            let mut rng = Rng::new(7);
            load(&logs[1], stop, || {
                let at = random_page(&mut rng, FILE / PAGE as u64);
                file.read_exact_at(page.bytes_mut(), at).context("a read")
            })
        });
        let mut rng = Rng::new(11);
        let mut kill = || -> Result<Vec<[f64; 2]>> {
            let mut pauses = Vec::with_capacity(kills);
            for _ in 0..kills {
                cx.check_stop()?;
                before()?;
                std::thread::sleep(Duration::from_micros(15_000 + rng.below(10_000)));
                pauses.push(one(mounted.daemon.pid(), logs)?);
            }
            Ok(pauses)
        };
        let pauses = kill();
        stop.store(true, Ordering::Relaxed);
        for thread in [attributes, reads] {
            thread.join().map_err(|_| anyhow::anyhow!("a panic"))??;
        }
        pauses
    })
}

fn load(log: &Log, stop: &AtomicBool, mut work: impl FnMut() -> Result<()>) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        let from = Instant::now();
        work()?;
        let to = Instant::now();
        log.lock().expect("no panic").push(Done { from, to });
    }
    Ok(())
}

/// Kills the server once.
fn one(supervisor: u32, logs: &[Log; 2]) -> Result<[f64; 2]> {
    let server = server_of(supervisor).context("there is no server")?;
    for log in logs {
        log.lock().expect("no panic").clear();
    }
    let killed = Instant::now();
    sys::kill(server, libc::SIGKILL);
    let is_next = || server_of(supervisor).is_some_and(|next| next != server);
    while !is_next() {
        ensure!(
            killed.elapsed() < Duration::from_secs(20),
            "the server is not replaced"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    // Several answers of the next one.
    let replaced = Instant::now();
    let served = |log: &Log| {
        let log = log.lock().expect("no panic");
        log.iter().filter(|done| done.from > replaced).count() > 3
    };
    while !logs.iter().all(served) {
        ensure!(
            killed.elapsed() < Duration::from_secs(20),
            "the next server does not answer"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    // The operation that has waited longest since.
    let pause = |log: &Log| {
        let log = log.lock().expect("no panic");
        let waited = |done: &&Done| done.to - done.from.max(killed);
        let longest = log
            .iter()
            .filter(|done| done.to > killed)
            .max_by_key(waited);
        longest.map_or(0.0, |done| (done.to - killed).as_secs_f64() * 1e3)
    };
    let [a, b] = logs.each_ref().map(pause);
    Ok([a.min(b), a.max(b)])
}
