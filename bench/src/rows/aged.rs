//! Row: leaves of 2 MiB in a region that has aged, before and after `pramfs defrag`.
//!
//! Files of random sizes are written, two at a time, and removed at random, with the region three
//! quarters full, until ten times its size has been written. Then large files are written.
//! Nothing is timed: the row counts what of the large files lies outside of leaves.

use anyhow::{Result, ensure};
use pramfs::MountOptions;
use pramfs::format::{FormatOptions, format};
use pramfs::inode::{Credentials, Fs, Gathered, Ino};
use pramfs::pmem::RegionOptions;

use super::preload::row;
use crate::fixture::MIB;
use crate::harness::{Context, Group, Report, Rng, Row};

const ROWS: &[Row] = &[row(
    "aged-defrag",
    "large files outside of leaves, aged region, after defrag",
    "the same before",
    1.0,
)];

/// The group.
pub const GROUP: Group = Group {
    rows: ROWS,
    measure,
};

const REGION: u64 = 256 * MIB;
/// Bytes that are written while it ages.
const WRITTEN: u64 = 10 * REGION;
/// Bytes of each write.
const PIECE: u64 = 16 << 10;
/// Large files, and their size.
const LARGE: u64 = 6;
const LARGE_SIZE: u64 = 4 * MIB;

/// A file, and its size.
type Sized = (Vec<u8>, u64);

struct Aging {
    fs: Fs,
    rng: Rng,
    files: Vec<Sized>,
    used: u64,
    made: u64,
}

impl Aging {
    fn new() -> Result<Aging> {
        let region = RegionOptions::new().memfd("aged", REGION)?;
        format(&region, &FormatOptions::default())?;
        let options = MountOptions {
            background: false,
            ..MountOptions::default()
        };
        Ok(Aging {
            fs: Fs::open(region, options)?,
            rng: Rng::new(7),
            files: Vec::new(),
            used: 0,
            made: 0,
        })
    }

    fn create(&mut self) -> Result<(Vec<u8>, Ino)> {
        self.made += 1;
        let name = format!("file {}", self.made).into_bytes();
        let made = self
            .fs
            .create(&Credentials::ROOT, Ino::ROOT, &name, 0o644)?;
        Ok((name, made.ino))
    }

    /// Writes two files of random sizes, piece by piece in turn.
    fn add(&mut self) -> Result<u64> {
        let bytes = vec![0x5a; PIECE as usize];
        let mut two = Vec::new();
        for _ in 0..2 {
            let size = PIECE << self.rng.below(7);
            let (name, ino) = self.create()?;
            two.push((name, ino, size));
        }
        let longest = two.iter().map(|file| file.2).max().unwrap_or(0);
        for at in (0..longest).step_by(PIECE as usize) {
            for (_, ino, size) in &two {
                if at < *size {
                    self.fs.write(&Credentials::ROOT, *ino, at, &bytes)?;
                }
            }
        }
        let written = two.iter().map(|file| file.2).sum();
        self.used += written;
        self.files
            .extend(two.into_iter().map(|(name, _, size)| (name, size)));
        Ok(written)
    }

    /// Removes random files until the region is three quarters full.
    fn remove(&mut self) -> Result<()> {
        while self.used > REGION * 3 / 4 {
            let n = self.rng.below(self.files.len() as u64) as usize;
            let (name, size) = self.files.swap_remove(n);
            self.fs.unlink(Ino::ROOT, &name)?;
            self.used -= size;
        }
        Ok(())
    }

    fn large(&mut self) -> Result<Vec<Ino>> {
        let bytes = vec![0xa5; 4 * PIECE as usize];
        let mut large = Vec::new();
        for _ in 0..LARGE {
            let (_, ino) = self.create()?;
            for at in (0..LARGE_SIZE).step_by(bytes.len()) {
                self.fs.write(&Credentials::ROOT, ino, at, &bytes)?;
            }
            large.push(ino);
        }
        Ok(large)
    }

    /// MiB of files that are not in leaves.
    fn outside(&self, files: &[Ino]) -> Result<f64> {
        let leaf = self.fs.gather_unit();
        let mut outside = 0;
        for ino in files {
            let extents = self.fs.file_extents(*ino, 0, u64::MAX)?;
            let is_leaf = |at: u64| {
                extents.iter().any(|e| {
                    let within = at.checked_sub(e.file_offset);
                    let place = e
                        .region_offset
                        .zip(within)
                        .map(|(place, within)| place + within);
                    place.is_some_and(|place| place % leaf == 0)
                        && e.file_offset + e.len >= at + leaf
                })
            };
            let parts = (0..LARGE_SIZE).step_by(leaf as usize);
            outside += parts.filter(|at| !is_leaf(*at)).count() as u64 * leaf;
        }
        Ok(outside as f64 / MIB as f64)
    }

    /// Moves what it can. Returns the parts that were moved.
    fn defrag(&self, files: &[Ino]) -> Result<u64> {
        let mut moved = 0;
        for ino in files {
            for at in (0..LARGE_SIZE).step_by(self.fs.gather_unit() as usize) {
                moved += u64::from(self.fs.gather(*ino, at)? == Gathered::Moved);
            }
        }
        Ok(moved)
    }
}

fn measure(_: &Context, out: &mut Report) -> Result<()> {
    let mut aging = Aging::new()?;
    let mut written = 0;
    while written < WRITTEN {
        written += aging.add()?;
        aging.remove()?;
    }
    let free = aging.fs.free_space()?;
    let large = aging.large()?;
    let before = aging.outside(&large)?;
    let moved = aging.defrag(&large)?;
    let after = aging.outside(&large)?;
    ensure!(after <= before, "defrag scattered files");
    let all = (LARGE * LARGE_SIZE) as f64 / MIB as f64;
    let share = |outside: f64| (all - outside) * 100.0 / all;
    let notes = format!(
        "{:.0} % of the large files in leaves before, {:.0} % after; {moved} parts moved; {} free leaves before the large files",
        share(before),
        share(after),
        free.leaves.unwrap_or_default()
    );
    // One more, so that none outside is no division by zero.
    out.record_count(&ROWS[0], (after + 1.0, before + 1.0), "MiB", &[notes]);
    Ok(())
}
