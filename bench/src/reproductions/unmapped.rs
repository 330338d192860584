//! "Unmapped I/O" (2012): system time and page faults of a program that reads a large
//! file once and computes a checksum over it, like `sha1`.
//!
//! In the original, the gain came from not mapping each buffer into the kernel. Here it
//! comes from mapping the file once and keeping the mapping. The checksum is CRC32C; its
//! cost is user time and the same for all contenders.
//!
//! A file of a live mount is also mapped by a lease of the client library, and read and mapped
//! by the same program as for the other contenders under the preload library.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use pramfs::Access;
use pramfs_client::File as Leased;
use serde::{Deserialize, Serialize};

use super::part::{self, under_library};
use super::sites::{self, LEASES, PRAMFS, Site, TMPFS};
use crate::fixture::{Direct, MIB, open_rw};
use crate::harness::{Context, Huge, Table};
use crate::sys::{Aligned, Mapping, Usage, Words};

/// Options of the experiment.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// File size in MiB (original: 5 GB, 5120)
    #[arg(long, default_value_t = 1024)]
    pub size: u64,
    /// Passes of each contender; the median counts
    #[arg(long, default_value_t = 5)]
    pub repeat: usize,
}

/// Bytes of each read of `sha1sum`.
const SHA1SUM_READ_BYTES: usize = 32 << 10;

/// One pass over the file.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Run {
    wall: Duration,
    usage: Usage,
    server: Duration,
    sum: u32,
}

/// Runs the experiment.
///
/// # Errors
/// When interrupted, or if the setup fails.
pub fn run(cx: &Context, args: &Args, json: &Path) -> Result<()> {
    let size = args.size * MIB;
    println!(
        "one pass over {} MiB with a checksum; median of {}\n",
        args.size, args.repeat
    );
    let mut t = Table::new(
        46,
        &[
            "way",
            "real s",
            "user s",
            "system s",
            "server s",
            "minor faults",
            "major",
            "sys+server",
        ],
    );
    let mut base = None;
    for kind in [TMPFS, PRAMFS] {
        let site = match kind.with_files(cx, 1, size) {
            Ok(s) => s,
            Err(e) => {
                t.cannot(kind.name, &format!("{e:#}"));
                continue;
            }
        };
        let mounted = kind.name != TMPFS.name;
        let methods: &[(&str, ReadMethod)] = if mounted {
            &[
                (
                    "read(2), cache dropped",
                    ReadMethod::Read {
                        block: SHA1SUM_READ_BYTES,
                        direct: false,
                        forget: true,
                    },
                ),
                (
                    "read(2), cached",
                    ReadMethod::Read {
                        block: SHA1SUM_READ_BYTES,
                        direct: false,
                        forget: false,
                    },
                ),
                (
                    "read(2), O_DIRECT, 1 MiB",
                    ReadMethod::Read {
                        block: MIB as usize,
                        direct: true,
                        forget: false,
                    },
                ),
                ("mmap, cached", ReadMethod::Mmap),
            ]
        } else {
            &[
                (
                    "read(2)",
                    ReadMethod::Read {
                        block: SHA1SUM_READ_BYTES,
                        direct: false,
                        forget: false,
                    },
                ),
                ("mmap", ReadMethod::Mmap),
            ]
        };
        for (name, method) in methods {
            let name = format!("{}: {name}", kind.name);
            let r = times(cx, args, || on_site(&site, size, *method));
            row_or_reason(&mut t, &name, r, &mut base);
        }
    }
    match LEASES.with_files(cx, 1, size) {
        Ok(site) => beside_mount(cx, args, &site, size, &mut t, &mut base)?,
        Err(e) => t.cannot("pramfs, mounted, with leases", &format!("{e:#}")),
    }
    for (huge, kind) in [(Huge::Never, "4 KiB pages"), (Huge::Always, "huge pages")] {
        let ours = Direct::new(cx, "direct", size + size / 16 + 64 * MIB, 0, huge)?;
        let file = ours.create("big")?;
        let chunk = vec![0x5au8; 2 * MIB as usize];
        for at in (0..size).step_by(chunk.len()) {
            file.write_at(&chunk[..chunk.len().min((size - at) as usize)], at)?;
        }
        let fresh = times(cx, args, || {
            measured(None, || {
                let map = file.map(0..size, Access::Read)?;
                Ok(checksum(Words::of_map(&map)))
            })
        })?;
        row(
            &mut t,
            &format!("pramfs: map(), made for it, {kind}"),
            &fresh,
            &mut base,
        );
        let map = file.map(0..size, Access::Read)?;
        checksum(Words::of_map(&map));
        let kept = times(cx, args, || {
            measured(None, || Ok(checksum(Words::of_map(&map))))
        })?;
        row(
            &mut t,
            &format!("pramfs: map(), kept mapped, {kind}"),
            &kept,
            &mut base,
        );
    }
    t.write_json(json)
}

/// What a process under the preload library does.
#[derive(Debug, Serialize, Deserialize)]
pub struct Part {
    directory: PathBuf,
    server: u32,
    method: ReadMethod,
    size: u64,
    repeat: usize,
}

impl Part {
    /// Reads the file several times.
    ///
    /// # Errors
    /// Those of the file.
    pub fn run(&self) -> Result<Vec<Run>> {
        let site = Site::of_other(&self.directory, self.server);
        (0..self.repeat)
            .map(|_| on_site(&site, self.size, self.method))
            .collect()
    }
}

/// Reads a file of a live mount by a lease of the client library and of the preload library.
fn beside_mount(
    cx: &Context,
    args: &Args,
    site: &Site,
    size: u64,
    t: &mut Table,
    base: &mut Option<f64>,
) -> Result<()> {
    let client = format!("{}, client library", LEASES.name);
    let fresh = times(cx, args, || {
        measured(Some(site), || {
            let view = Leased::open(site.file(0))?.map(0..size, Access::Read)?;
            Ok(checksum(Words::of_view(&view)))
        })
    });
    row_or_reason(t, &format!("{client}: map, made for it"), fresh, base);
    let kept = Leased::open(site.file(0)).and_then(|file| file.map(0..size, Access::Read));
    let kept = kept.map_err(anyhow::Error::from).and_then(|view| {
        checksum(Words::of_view(&view));
        times(cx, args, || {
            measured(Some(site), || Ok(checksum(Words::of_view(&view))))
        })
    });
    row_or_reason(t, &format!("{client}: map, kept mapped"), kept, base);
    let name = format!("{}, preload library", LEASES.name);
    let read = ReadMethod::Read {
        block: SHA1SUM_READ_BYTES,
        direct: false,
        forget: false,
    };
    for (way, method) in [("read(2)", read), ("mmap", ReadMethod::Mmap)] {
        cx.check_stop()?;
        let part = part::Part::Unmapped(Part {
            directory: site.dir.clone(),
            server: site.served_by()?,
            method,
            size,
            repeat: args.repeat.max(1),
        });
        let runs = under_library(cx, &part).and_then(median);
        row_or_reason(t, &format!("{name}: {way}"), runs, base);
    }
    cx.check_stop()
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum ReadMethod {
    Read {
        block: usize,
        direct: bool,
        forget: bool,
    },
    Mmap,
}

fn checksum(words: Words<'_>) -> u32 {
    let mut sum = 0;
    for at in (0..words.len()).step_by(SHA1SUM_READ_BYTES) {
        let end = words.len().min(at + SHA1SUM_READ_BYTES);
        sum = words.lend(at..end, |s| crc32c::crc32c_append(sum, s));
    }
    sum
}

fn on_site(site: &Site, size: u64, method: ReadMethod) -> Result<Run> {
    let path = site.file(0);
    match method {
        ReadMethod::Mmap => {
            let file = open_rw(&path, false)?;
            measured(Some(site), || {
                let map = Mapping::of_file(&file, size as usize, false, false)?;
                Ok(checksum(map.words()))
            })
        }
        ReadMethod::Read {
            block,
            direct,
            forget,
        } => {
            if forget {
                sites::forget(&open_rw(&path, false)?)?;
            }
            let file = open_rw(&path, direct)?;
            let mut b = Aligned::filled(block, 0)?;
            measured(Some(site), || {
                let mut sum = 0;
                for at in (0..size).step_by(block) {
                    let n = block.min((size - at) as usize);
                    file.read_exact_at(&mut b.bytes_mut()[..n], at)?;
                    sum = crc32c::crc32c_append(sum, &b.bytes()[..n]);
                }
                Ok(sum)
            })
        }
    }
}

fn measured(site: Option<&Site>, f: impl FnOnce() -> Result<u32>) -> Result<Run> {
    let server = || site.map_or(Ok(Duration::ZERO), Site::server_time);
    let (start, usage, before) = (Instant::now(), Usage::now(), server()?);
    let sum = f()?;
    let wall = start.elapsed();
    let usage = Usage::now().since(usage);
    Ok(Run {
        wall,
        usage,
        server: server()?.saturating_sub(before),
        sum,
    })
}

/// Runs the passes, and returns the one with the median system time.
fn times(cx: &Context, args: &Args, mut f: impl FnMut() -> Result<Run>) -> Result<Run> {
    let mut runs = Vec::new();
    for _ in 0..args.repeat.max(1) {
        cx.check_stop()?;
        runs.push(f()?);
    }
    median(runs)
}

/// Returns the pass with the median system time.
fn median(mut runs: Vec<Run>) -> Result<Run> {
    anyhow::ensure!(
        runs.iter().all(|r| r.sum == runs[0].sum),
        "the checksums differ"
    );
    runs.sort_by_key(|r| r.usage.system + r.server);
    Ok(runs[runs.len() / 2])
}

fn row_or_reason(t: &mut Table, name: &str, run: Result<Run>, base: &mut Option<f64>) {
    match run {
        Ok(r) => row(t, name, &r, base),
        Err(e) => t.cannot(name, &format!("{e:#}")),
    }
}

fn row(t: &mut Table, name: &str, r: &Run, base: &mut Option<f64>) {
    let system = (r.usage.system + r.server).as_secs_f64();
    let reference = *base.get_or_insert(system);
    let s = |d: Duration| format!("{:.3}", d.as_secs_f64());
    t.row(vec![
        name.to_owned(),
        s(r.wall),
        s(r.usage.user),
        s(r.usage.system),
        s(r.server),
        r.usage.minor_faults.to_string(),
        r.usage.major_faults.to_string(),
        format!("{:.2} x", system / reference),
    ]);
}
