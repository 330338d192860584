//! "O_DIRECT zero-copy I/O" (2001): sequential output, rewrite and input in chunks of a
//! MiB, buffered and past the page cache, with their processor time. Also tests whether
//! cached and direct readers of one file see the same bytes.
//!
//! In the original, the disk was the limit: the throughput stayed the same, and the
//! processor time fell from 12 to 1.5 %. In memory, nothing waits: processor time *is*
//! throughput. So it is given for each GB moved.
//!
//! Beside the contenders of the original, here also the two ways past the kernel to a file of
//! a live mount: a program that uses the client library, and the same program as for the others
//! under the preload library.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pramfs_client::OpenOptions;
use serde::{Deserialize, Serialize};

use super::part::{self, under_library};
use super::sites::{self, EXT4, LEASES, PRAMFS, Site, TMPFS};
use crate::fixture::{Direct, MIB, fill, filled_file, open_rw};
use crate::harness::{Context, Huge, Table};
use crate::sys::{Aligned, Usage};

/// Options of the experiment.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// File size in MiB (original: 400)
    #[arg(long, default_value_t = 400)]
    pub size: u64,
}

const CHUNK: usize = MIB as usize;

/// One pass over the file: elapsed time and processor time.
type Pass = (Duration, Duration);

/// Runs the experiment.
///
/// # Errors
/// When interrupted, or if the setup fails.
pub fn run(cx: &Context, args: &Args, json: &Path) -> Result<()> {
    let size = args.size * MIB;
    println!(
        "sequential, chunks of 1 MiB, {} MiB; %CPU counts the server too\n",
        args.size
    );
    let mut t = Table::new(
        30,
        &[
            "contender",
            "out K/s",
            "out %CPU",
            "out s/GB",
            "rewrite K/s",
            "rewrite %CPU",
            "rewrite s/GB",
            "in K/s",
            "in %CPU",
            "in s/GB",
            "coherent",
        ],
    );
    for kind in [TMPFS, EXT4, PRAMFS] {
        cx.check_stop()?;
        let site = match kind.with_files(cx, 1, size) {
            Ok(s) => s,
            Err(e) => {
                t.cannot(kind.name, &format!("{e:#}"));
                continue;
            }
        };
        for direct in [false, true] {
            let name = format!(
                "{}, {}",
                kind.name,
                if direct { "O_DIRECT" } else { "buffered" }
            );
            match passes(&site, size, direct).and_then(|p| Ok((p, coherent(&site)?))) {
                Ok((p, coherent)) => row(&mut t, &name, size, &p, coherent),
                Err(e) => t.cannot(&name, &format!("{e:#}")),
            }
        }
    }
    match LEASES.with_files(cx, 1, size) {
        Ok(site) => {
            let name = format!("{}, client library", LEASES.name);
            match client_passes(&site, size) {
                Ok((p, coherent)) => row(&mut t, &name, size, &p, coherent),
                Err(e) => t.cannot(&name, &format!("{e:#}")),
            }
            cx.check_stop()?;
            let name = format!("{}, preload library", LEASES.name);
            match preload_passes(cx, &site, size) {
                Ok((p, coherent)) => row(&mut t, &name, size, &p, coherent),
                Err(e) => t.cannot(&name, &format!("{e:#}")),
            }
        }
        Err(e) => t.cannot("pramfs, mounted, with leases", &format!("{e:#}")),
    }
    cx.check_stop()?;
    let ours = Direct::new(cx, "direct", size + size / 16 + 64 * MIB, 0, Huge::Never)?;
    row(
        &mut t,
        "pramfs, direct API",
        size,
        &direct_passes(&ours, size)?,
        "-",
    );
    t.write_json(json)
}

fn row(t: &mut Table, name: &str, size: u64, passes: &[Pass; 3], coherent: &str) {
    let mut cells = vec![name.to_owned()];
    for (wall, cpu) in passes {
        cells.push(format!("{:.0}", size as f64 / 1024.0 / wall.as_secs_f64()));
        cells.push(format!(
            "{:.0}",
            100.0 * cpu.as_secs_f64() / wall.as_secs_f64()
        ));
        cells.push(format!("{:.3}", cpu.as_secs_f64() * 1e9 / size as f64));
    }
    cells.push(coherent.to_owned());
    t.row(cells);
}

/// Calls `f` for each chunk, and times the whole.
fn pass(
    size: u64,
    cpu: impl Fn() -> Result<Duration>,
    mut f: impl FnMut(u64) -> Result<()>,
) -> Result<Pass> {
    let (start, before) = (Instant::now(), cpu()?);
    for at in (0..size).step_by(CHUNK) {
        f(at)?;
    }
    let wall = start.elapsed();
    Ok((wall, cpu()?.saturating_sub(before)))
}

fn passes(site: &Site, size: u64, direct: bool) -> Result<[Pass; 3]> {
    // Allocate the pages beforehand: the experiment compares the path of the bytes,
    // not the first touch of the pages.
    let file = open_rw(&site.file(0), direct)?;
    let mut b = Aligned::filled(CHUNK, 0x11)?;
    let cpu = || site.all_time();
    let finish = |file: &File, at: u64| -> Result<()> {
        if at + CHUNK as u64 >= size {
            file.sync_data()?;
        }
        Ok(())
    };
    let out = pass(size, cpu, |at| {
        file.write_all_at(b.bytes(), at)?;
        finish(&file, at)
    })?;
    let rewrite = pass(size, cpu, |at| {
        file.read_exact_at(b.bytes_mut(), at)?;
        b.bytes_mut()[0] ^= 1;
        file.write_all_at(b.bytes(), at)?;
        finish(&file, at)
    })?;
    sites::forget(&file)?;
    let input = pass(size, cpu, |at| Ok(file.read_exact_at(b.bytes_mut(), at)?))?;
    Ok([out, rewrite, input])
}

fn direct_passes(ours: &Direct, size: u64) -> Result<[Pass; 3]> {
    let file = ours.create("bonnie")?;
    let mut b = Aligned::filled(CHUNK, 0x11)?;
    for at in (0..size).step_by(CHUNK) {
        file.write_at(b.bytes(), at)?;
    }
    let cpu = || {
        let u = Usage::now();
        Ok(u.user + u.system)
    };
    let out = pass(size, cpu, |at| {
        file.write_at(b.bytes(), at)?;
        Ok(())
    })?;
    let rewrite = pass(size, cpu, |at| {
        file.read_at(b.bytes_mut(), at)?;
        b.bytes_mut()[0] ^= 1;
        file.write_at(b.bytes(), at)?;
        Ok(())
    })?;
    let input = pass(size, cpu, |at| {
        ensure!(file.read_at(b.bytes_mut(), at)? == CHUNK, "short read");
        Ok(())
    })?;
    Ok([out, rewrite, input])
}

/// The passes of a program that uses the client library.
fn client_passes(site: &Site, size: u64) -> Result<([Pass; 3], &'static str)> {
    // What other programs see is in the page cache before, too.
    checksum(&site.file(0), size)?;
    let file = OpenOptions::new().write(true).open(site.file(0))?;
    let mut b = Aligned::filled(CHUNK, 0x11)?;
    // Fills the page tables.
    for at in (0..size).step_by(CHUNK) {
        file.read_exact_at(b.bytes_mut(), at)?;
    }
    let found = b.bytes().iter().all(|byte| *byte == 0x5a);
    b.bytes_mut().fill(0x11);
    let cpu = || site.all_time();
    let out = pass(size, cpu, |at| Ok(file.write_all_at(b.bytes(), at)?))?;
    let rewrite = pass(size, cpu, |at| {
        file.read_exact_at(b.bytes_mut(), at)?;
        b.bytes_mut()[0] ^= 1;
        Ok(file.write_all_at(b.bytes(), at)?)
    })?;
    let mut sum = 0;
    let input = pass(size, cpu, |at| Ok(file.read_exact_at(b.bytes_mut(), at)?))?;
    for at in (0..size).step_by(CHUNK) {
        file.read_exact_at(b.bytes_mut(), at)?;
        sum = crc32c::crc32c_append(sum, b.bytes());
    }
    drop(file);
    let same = found && sum == checksum(&site.file(0), size)?;
    Ok(([out, rewrite, input], yes(same)))
}

/// What a process under the preload library does.
#[derive(Debug, Serialize, Deserialize)]
pub struct Part {
    directory: PathBuf,
    server: u32,
    size: u64,
}

/// What it found.
#[derive(Debug, Serialize, Deserialize)]
pub struct Found {
    passes: [Pass; 3],
    /// Checksums of the file before and after the passes.
    before: u32,
    after: u32,
}

impl Part {
    /// Writes, rewrites and reads the file.
    ///
    /// # Errors
    /// Those of the file.
    pub fn run(&self) -> Result<Found> {
        let site = Site::of_other(&self.directory, self.server);
        let before = checksum(&site.file(0), self.size)?;
        let passes = passes(&site, self.size, false)?;
        Ok(Found {
            passes,
            before,
            after: checksum(&site.file(0), self.size)?,
        })
    }
}

/// The passes of a program under the preload library. Also tests whether it sees what this
/// program, without the library, has written through the page cache, and vice versa.
fn preload_passes(cx: &Context, site: &Site, size: u64) -> Result<([Pass; 3], &'static str)> {
    fill(&open_rw(&site.file(0), false)?, 0, size)?;
    let before = checksum(&site.file(0), size)?;
    let part = part::Part::Odirect(Part {
        directory: site.dir.clone(),
        server: site.served_by()?,
        size,
    });
    let found: Found = under_library(cx, &part)?;
    let same = found.before == before
        && found.after != before
        && found.after == checksum(&site.file(0), size)?;
    Ok((found.passes, yes(same)))
}

/// Reads a file, and returns its checksum.
fn checksum(path: &Path, size: u64) -> Result<u32> {
    let (file, mut b) = (open_rw(path, false)?, Aligned::filled(CHUNK, 0)?);
    let mut sum = 0;
    for at in (0..size).step_by(CHUNK) {
        file.read_exact_at(b.bytes_mut(), at)?;
        sum = crc32c::crc32c_append(sum, b.bytes());
    }
    Ok(sum)
}

fn yes(same: bool) -> &'static str {
    if same { "yes" } else { "NO" }
}

/// Tests whether a cached reader sees the bytes of an O_DIRECT writer, and vice
/// versa, with the file open in both throughout.
fn coherent(site: &Site) -> Result<&'static str> {
    let path = site.join("coherent");
    drop(filled_file(&path, MIB)?);
    let (cached, direct) = (
        open_rw(&path, false)?,
        match open_rw(&path, true) {
            Ok(f) => f,
            Err(_) => return Ok("-"),
        },
    );
    let (mut a, mut b) = (Aligned::filled(4096, 0)?, Aligned::filled(4096, 0)?);
    let mut same = true;
    for i in 0..100u64 {
        let at = i * 7 % 256 * 4096;
        cached.read_exact_at(b.bytes_mut(), at)?;
        let (writer, reader) = if i % 2 == 0 {
            (&direct, &cached)
        } else {
            (&cached, &direct)
        };
        a.bytes_mut().fill(i as u8);
        writer.write_all_at(a.bytes(), at)?;
        reader.read_exact_at(b.bytes_mut(), at)?;
        same &= a.bytes() == b.bytes();
    }
    std::fs::remove_file(&path)?;
    Ok(yes(same))
}
