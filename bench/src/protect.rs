//! What protection against stray stores costs: an opening with its closing, and operations
//! on a region that is protected in each way.

use std::time::Instant;

use anyhow::Result;
use pramfs::MountOptions;
use pramfs::format::{FormatOptions, format};
use pramfs::inode::{Credentials, Fs, Ino};
use pramfs::pmem::{Protect, Region, RegionOptions, free_protection_keys};
use pramfs_medium::pmem::RegionAccess;

use crate::fixture::MIB;

const SIZE: u64 = 64 * MIB;
const CTX: Credentials<'static> = Credentials::ROOT;

/// Prints a line for each way: median nanoseconds of `rounds` rounds.
///
/// # Errors
/// Those of the region and the file system in it.
pub fn run(quick: bool, rounds: u32) -> Result<()> {
    println!(
        "{:<10} {:>16} {:>22} {:>10}   ns, a memfd of {} MiB, populated",
        "protect",
        "open and close",
        "overwrite 4 KiB",
        "create",
        SIZE / MIB
    );
    for way in [Protect::Off, Protect::Pkey, Protect::Mprotect] {
        if way == Protect::Pkey
            && let Err(why) = free_protection_keys()
        {
            println!("{way:<10} SKIPPED: {why}");
            continue;
        }
        let ops = match (way, quick) {
            (Protect::Mprotect, true) => 100,
            (Protect::Mprotect, false) => 2000,
            (_, true) => 2000,
            (_, false) => 100_000,
        };
        let [window, write, create] = measure(way, ops, rounds)?;
        println!(
            "{:<10} {window:>16.1} {write:>22.1} {create:>10.1}",
            way.name()
        );
    }
    Ok(())
}

fn measure(way: Protect, ops: u64, rounds: u32) -> Result<[f64; 3]> {
    let region = RegionOptions::new().protect(way).memfd("protect", SIZE)?;
    region.populate(0, SIZE)?;
    let window = median(rounds, ops, |ops, _| {
        for _ in 0..ops {
            std::hint::black_box(region.window());
        }
        Ok(())
    })?;
    let [write, create] = operations(region, ops, rounds)?;
    Ok([window, write, create])
}

fn operations(region: Region, ops: u64, rounds: u32) -> Result<[f64; 2]> {
    format(&region, &FormatOptions::default())?;
    let fs = Fs::open(region, MountOptions::default())?;
    let file = fs.create(&CTX, Ino::ROOT, b"file", 0o644)?.ino;
    let page = [0x5a; 4096];
    for at in 0..256 {
        fs.write(&CTX, file, at * 4096, &page)?;
    }
    let write = median(rounds, ops, |ops, _| {
        for i in 0..ops {
            fs.write(&CTX, file, i % 256 * 4096, &page)?;
        }
        Ok(())
    })?;
    let create = median(rounds, ops.min(5000), |ops, round| {
        let dir = format!("dir-{round}");
        let dir = fs.mkdir(&CTX, Ino::ROOT, dir.as_bytes(), 0o755)?.ino;
        for i in 0..ops {
            fs.create(&CTX, dir, format!("file-{i}").as_bytes(), 0o644)?;
        }
        Ok(())
    })?;
    Ok([write, create])
}

/// Nanoseconds of one operation: the median of the rounds.
fn median(rounds: u32, ops: u64, mut round: impl FnMut(u64, u32) -> Result<()>) -> Result<f64> {
    let mut took = Vec::new();
    for nth in 0..rounds {
        let start = Instant::now();
        round(ops, nth)?;
        took.push(start.elapsed().as_secs_f64() * 1e9 / ops as f64);
    }
    took.sort_by(f64::total_cmp);
    Ok(took[took.len() / 2])
}
