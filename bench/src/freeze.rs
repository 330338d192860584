//! How long programs wait when a live save begins, by the size of the region, with a tenth of it in
//! use.
//!
//! The region is a sparse memfd, and blocks that are allocated take memory. A tenth of 1 TiB has no
//! place in most machines. The begin of a save looks at each block group, so what counts is their
//! number: 64 GiB in blocks of 1 KiB have as many as 1 TiB in blocks of 4 KiB. The last line is
//! 1 TiB itself, with 1 GiB in use.
//!
//! Another thread overwrites a block all the time. What it waits at most contains the wait for the
//! processor, so the median of the calls that begin the snapshot is the better figure.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pramfs::format::{FormatOptions, format};
use pramfs::inode::{Credentials, Fs, Ino};
use pramfs::pmem::RegionOptions;
use pramfs::{Fallocate, MountOptions};

use crate::fixture::MIB;

const CTX: Credentials<'static> = Credentials::ROOT;
const GIB: u64 = 1024 * MIB;
/// Memory for copies.
const COPIES: u64 = 16 * MIB;

/// Prints a line for each size: microseconds, median and maximum of `rounds` rounds.
///
/// # Errors
/// Those of the region and the file system in it.
pub fn run(quick: bool, rounds: u32) -> Result<()> {
    println!(
        "{:<9} {:>6} {:>7} {:>8} {:>14} {:>12} {:>22}   us, {rounds} rounds, a sparse memfd",
        "region",
        "block",
        "groups",
        "in use",
        "begin, median",
        "begin, most",
        "an overwrite, at most"
    );
    // GiB, bytes of a block, MiB in use.
    let regions: &[(u64, u32, u64)] = match quick {
        true => &[(1, 4096, 102), (2, 1024, 205)],
        false => &[
            (1, 4096, 102),
            (16, 4096, 1638),
            (8, 1024, 819),
            (64, 1024, 6554),
            (1024, 4096, 1024),
        ],
    };
    for (gib, block, in_use) in regions {
        let [median, most, overwrite, used] = measure(gib * GIB, *block, in_use * MIB, rounds)?;
        let groups = gib * GIB / u64::from(*block) / (8 * u64::from(*block));
        println!(
            "{:<9} {block:>6} {groups:>7} {used:>6.1} % {median:>14.1} {most:>12.1} {overwrite:>22.1}",
            format!("{gib} GiB")
        );
    }
    Ok(())
}

/// Returns the median and the maximum of the begin, the longest overwrite, and the share of blocks
/// in use in percent.
fn measure(size: u64, block: u32, in_use: u64, rounds: u32) -> Result<[f64; 4]> {
    let region = RegionOptions::new().memfd("freeze", size)?;
    let options = FormatOptions {
        block_size: block,
        ..FormatOptions::default()
    };
    format(&region, &options)?;
    let fs = Fs::open(region, MountOptions::default())?;
    let large = fs.create(&CTX, Ino::ROOT, b"large", 0o644)?.ino;
    let kind = Fallocate::Allocate { keep_size: false };
    fs.fallocate(&CTX, large, kind, 0, in_use)?;
    let small = fs.create(&CTX, Ino::ROOT, b"small", 0o644)?.ino;
    let page = [0x5a; 4096];
    fs.write(&CTX, small, 0, &page)?;
    let (done, longest) = (AtomicBool::new(false), AtomicU64::new(0));
    let begun = std::thread::scope(|scope| {
        let writer = scope.spawn(|| -> Result<()> {
            while !done.load(Ordering::Relaxed) {
                let start = Instant::now();
                fs.write(&CTX, small, 0, &page)?;
                longest.fetch_max(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
            }
            Ok(())
        });
        let begun: Result<Vec<Duration>> = (0..rounds.max(1))
            .map(|_| {
                std::thread::sleep(Duration::from_millis(5));
                let start = Instant::now();
                let snapshot = fs.snapshot(COPIES)?;
                let took = start.elapsed();
                drop(snapshot);
                Ok(took)
            })
            .collect();
        done.store(true, Ordering::Relaxed);
        match writer.join() {
            Ok(written) => written.and(begun),
            Err(_) => anyhow::bail!("the writer panicked"),
        }
    });
    let mut begun = begun?;
    begun.sort_unstable();
    let stat = fs.statfs()?;
    ensure!(stat.blocks > 0, "the region has no blocks");
    let used = 100.0 * (stat.blocks - stat.free) as f64 / stat.blocks as f64;
    fs.close()?;
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    Ok([
        micros(begun[begun.len() / 2]),
        micros(begun[begun.len() - 1]),
        longest.into_inner() as f64 / 1e3,
        used,
    ])
}
