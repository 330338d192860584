//! "high-end i/o performance" (2002): N threads read N files, in the modes of the
//! original and in `map`.
//!
//! * `base`: buffered reads of 8 KiB.
//! * `nocopy`: the data reaches the kernel and is not copied out (spliced to /dev/null).
//! * `direct`: O_DIRECT, 4 MiB.
//! * `raw`: O_DIRECT, 4 MiB, from the device or file below the file system.
//! * `mmap`: mapped 4 MiB at a time, copied out, unmapped.
//! * `map`: pramfs's direct mapping, made once, copied out 4 MiB at a time: of a region that
//!   this process serves, and by a lease of a live mount.
//! * `read_at`: of the client library, 4 MiB at a time, by a lease.
//!
//! `base`, `direct` and `mmap` also run in a process under the preload library.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use pramfs::Access;
use pramfs_client::File as Leased;
use serde::{Deserialize, Serialize};

use super::part::{self, under_library};
use super::sites::{self, EXT4, LEASES, PRAMFS, Site, TMPFS};
use crate::fixture::{Direct, MIB, open_rw};
use crate::harness::{Context, Huge, Table};
use crate::sys::{Aligned, Mapping, Usage, Words};

/// Options of the experiment.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of files, each with a thread of its own (original: 8 devices)
    #[arg(long, default_value_t = 8)]
    pub files: usize,
    /// Size of each file in MiB
    #[arg(long, default_value_t = 96)]
    pub size: u64,
    /// Also print a line for each file, as the original does
    #[arg(long)]
    pub each: bool,
}

const BASE: usize = 8 << 10;
const BIG: usize = 4 << 20;

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Mode {
    Base,
    NoCopy,
    Direct,
    Raw,
    Mmap,
}

impl Mode {
    const ALL: [Mode; 5] = [
        Mode::Base,
        Mode::NoCopy,
        Mode::Direct,
        Mode::Raw,
        Mode::Mmap,
    ];

    fn name(self) -> &'static str {
        match self {
            Mode::Base => "base",
            Mode::NoCopy => "nocopy",
            Mode::Direct => "direct",
            Mode::Raw => "raw",
            Mode::Mmap => "mmap",
        }
    }

    fn block(self) -> usize {
        match self {
            Mode::Base => BASE,
            Mode::NoCopy => BASE * 8,
            Mode::Direct | Mode::Raw | Mode::Mmap => BIG,
        }
    }
}

/// Runs the experiment.
///
/// # Errors
/// When interrupted, or if the setup fails.
pub fn run(cx: &Context, args: &Args, json: &Path) -> Result<()> {
    let size = args.size.next_multiple_of(4) * MIB;
    let total = size * args.files as u64;
    println!(
        "{} files of {} MiB, a thread for each, sequential, page cache dropped\n",
        args.files,
        size / MIB
    );
    let mut t = Table::new(
        30,
        &[
            "contender",
            "mode",
            "file",
            "MB",
            "seconds",
            "MB/s",
            "us a block",
            "CPU s",
            "to base",
        ],
    );
    // The last `base`, of the mount, is also the reference of the direct mapping.
    let mut base = None;
    for kind in [EXT4, TMPFS, PRAMFS] {
        cx.check_stop()?;
        base = None;
        let site = match kind.with_files(cx, args.files, size) {
            Ok(s) => s,
            Err(e) => {
                t.cannot(kind.name, &format!("{e:#}"));
                continue;
            }
        };
        for mode in Mode::ALL {
            cx.check_stop()?;
            match on_site(&site, mode, args.files, size) {
                Ok((got, cpu)) => report(
                    &mut t,
                    args,
                    kind.name,
                    mode.name(),
                    mode.block(),
                    size,
                    &got,
                    cpu,
                    &mut base,
                ),
                Err(e) => t.cannot(
                    &format!("{}, {}", kind.name, mode.name()),
                    &format!("{e:#}"),
                ),
            }
        }
    }
    match LEASES.with_files(cx, args.files, size) {
        Ok(site) => beside_mount(cx, args, &site, size, &mut t, &mut base)?,
        Err(e) => t.cannot("pramfs, mounted, with leases", &format!("{e:#}")),
    }
    cx.check_stop()?;
    let ours = Direct::new(cx, "direct", total + total / 16 + 64 * MIB, 0, Huge::Never)?;
    let chunk = vec![0x5au8; BIG];
    let mut files = Vec::new();
    for i in 0..args.files {
        let f = ours.create(&format!("file.{i}"))?;
        for at in (0..size).step_by(BIG) {
            f.write_at(&chunk, at)?;
        }
        files.push(f);
    }
    let before = Usage::now();
    let maps = files
        .iter()
        .map(|f| f.map(0..size, Access::Read))
        .collect::<Result<Vec<_>, _>>()?;
    let readers = maps
        .iter()
        .map(|m| copier(Words::of_map(m)))
        .collect::<Result<Vec<_>>>()?;
    let got = threads(readers, BIG, size)?;
    let u = Usage::now().since(before);
    report(
        &mut t,
        args,
        "pramfs, direct",
        "map",
        BIG,
        size,
        &got,
        u.user + u.system,
        &mut base,
    );
    t.write_json(json)
}

/// Reads the block at an offset.
type Reader<'a> = Box<dyn FnMut(u64) -> Result<()> + Send + 'a>;

/// Times of the threads, and processor time of all.
type Times = (Vec<Duration>, Duration);

fn copier(words: Words<'_>) -> Result<Reader<'_>> {
    let mut b = Aligned::filled(BIG, 0)?;
    Ok(Box::new(move |at| {
        let at = at as usize;
        words.lend(at..at + BIG, |s| b.bytes_mut().copy_from_slice(s));
        Ok(())
    }))
}

/// Reads all files of a file system.
fn on_site(site: &Site, mode: Mode, files: usize, size: u64) -> Result<Times> {
    let before = site.all_time()?;
    let readers = (0..files)
        .map(|i| open(site, mode, i, files, size))
        .collect::<Result<Vec<_>>>()?;
    let got = threads(readers, mode.block(), size)?;
    Ok((got, site.all_time()?.saturating_sub(before)))
}

/// What a process under the preload library does.
#[derive(Debug, Serialize, Deserialize)]
pub struct Part {
    directory: PathBuf,
    server: u32,
    mode: Mode,
    files: usize,
    size: u64,
}

impl Part {
    /// Reads all files.
    ///
    /// # Errors
    /// Those of the files.
    pub fn run(&self) -> Result<Times> {
        let site = Site::of_other(&self.directory, self.server);
        on_site(&site, self.mode, self.files, self.size)
    }
}

/// Reads files of a live mount by leases, of the client library and of the preload library.
fn beside_mount(
    cx: &Context,
    args: &Args,
    site: &Site,
    size: u64,
    t: &mut Table,
    base: &mut Option<f64>,
) -> Result<()> {
    let client = format!("{}, client library", LEASES.name);
    for (mode, read) in [
        ("map", by_map as fn(&Site, usize, u64) -> Result<Times>),
        ("read_at", by_read_at),
    ] {
        cx.check_stop()?;
        match read(site, args.files, size) {
            Ok((got, cpu)) => report(t, args, &client, mode, BIG, size, &got, cpu, base),
            Err(e) => t.cannot(&format!("{client}, {mode}"), &format!("{e:#}")),
        }
    }
    let name = format!("{}, preload library", LEASES.name);
    for mode in [Mode::Base, Mode::Direct, Mode::Mmap] {
        cx.check_stop()?;
        let part = part::Part::Parallel(Part {
            directory: site.dir.clone(),
            server: site.served_by()?,
            mode,
            files: args.files,
            size,
        });
        match under_library::<Times>(cx, &part) {
            Ok((got, cpu)) => {
                let block = mode.block();
                report(t, args, &name, mode.name(), block, size, &got, cpu, base);
            }
            Err(e) => t.cannot(&format!("{name}, {}", mode.name()), &format!("{e:#}")),
        }
    }
    Ok(())
}

fn leased(site: &Site, files: usize) -> Result<Vec<Leased>> {
    let open = |i| Ok(Leased::open(site.file(i))?);
    (0..files).map(open).collect()
}

fn by_map(site: &Site, files: usize, size: u64) -> Result<Times> {
    let before = site.all_time()?;
    let views = leased(site, files)?
        .iter()
        .map(|file| file.map(0..size, Access::Read))
        .collect::<Result<Vec<_>, _>>()?;
    let readers = views
        .iter()
        .map(|view| copier(Words::of_view(view)))
        .collect::<Result<Vec<_>>>()?;
    let got = threads(readers, BIG, size)?;
    Ok((got, site.all_time()?.saturating_sub(before)))
}

fn by_read_at(site: &Site, files: usize, size: u64) -> Result<Times> {
    let before = site.all_time()?;
    let readers = leased(site, files)?
        .into_iter()
        .map(|file| -> Result<Reader<'static>> {
            let mut b = Aligned::filled(BIG, 0)?;
            Ok(Box::new(move |at| {
                Ok(file.read_exact_at(b.bytes_mut(), at)?)
            }))
        })
        .collect::<Result<Vec<_>>>()?;
    let got = threads(readers, BIG, size)?;
    Ok((got, site.all_time()?.saturating_sub(before)))
}

fn open(site: &Site, mode: Mode, i: usize, files: usize, size: u64) -> Result<Reader<'static>> {
    let path = site.file(i);
    let block = mode.block();
    let buffered = open_rw(&path, false)?;
    sites::forget(&buffered)?;
    let mut b = Aligned::filled(block, 0)?;
    Ok(match mode {
        Mode::Base => Box::new(move |at| Ok(buffered.read_exact_at(b.bytes_mut(), at)?)),
        Mode::Direct => {
            let f = open_rw(&path, true)?;
            Box::new(move |at| Ok(f.read_exact_at(b.bytes_mut(), at)?))
        }
        Mode::Raw => {
            let Some(raw) = &site.raw else {
                bail!("tmpfs lies on nothing")
            };
            let f = open_rw(raw, true)?;
            let room = (f.metadata()?.len() / files as u64).min(size) / BIG as u64 * BIG as u64;
            ensure!(room > 0, "the device is too small");
            let start = room * i as u64;
            Box::new(move |at| Ok(f.read_exact_at(b.bytes_mut(), start + at % room)?))
        }
        Mode::Mmap => Box::new(move |at| {
            let m = Mapping::window(&buffered, at, block)?;
            m.copy_out(0, b.bytes_mut());
            Ok(())
        }),
        Mode::NoCopy => {
            let (r, w) = rustix::pipe::pipe()?;
            rustix::pipe::fcntl_setpipe_size(&w, block)?;
            let null = File::options().write(true).open("/dev/null")?;
            Box::new(move |at| {
                let (mut from, end) = (at, at + block as u64);
                while from < end {
                    let flags = rustix::pipe::SpliceFlags::MOVE;
                    let want = (end - from) as usize;
                    let n =
                        rustix::pipe::splice(&buffered, Some(&mut from), &w, None, want, flags)?;
                    ensure!(n > 0, "the file is too short");
                    let mut left = n;
                    while left > 0 {
                        left -= rustix::pipe::splice(&r, None, &null, None, left, flags)?;
                    }
                }
                Ok(())
            })
        }
    })
}

/// Runs each reader on a thread; they start together.
fn threads(readers: Vec<Reader<'_>>, block: usize, size: u64) -> Result<Vec<Duration>> {
    let ready = std::sync::Barrier::new(readers.len());
    let one = |mut read: Reader<'_>| -> Result<Duration> {
        ready.wait();
        let start = Instant::now();
        for at in (0..size).step_by(block) {
            read(at)?;
        }
        Ok(start.elapsed())
    };
    std::thread::scope(|s| {
        let one = &one;
        let handles: Vec<_> = readers
            .into_iter()
            .map(|r| s.spawn(move || one(r)))
            .collect();
        handles
            .into_iter()
            .map(|h| h.join().map_err(|_| anyhow!("a thread panicked"))?)
            .collect::<Result<Vec<_>>>()
    })
    .context("reading")
}

#[allow(clippy::too_many_arguments, reason = "the columns of one line")]
fn report(
    t: &mut Table,
    args: &Args,
    name: &str,
    mode: &str,
    block: usize,
    size: u64,
    times: &[Duration],
    cpu: Duration,
    base: &mut Option<f64>,
) {
    let blocks = size as f64 / block as f64;
    let mut row = |file: &str, bytes: f64, wall: Duration, cpu: &str, ratio: &str| {
        let s = wall.as_secs_f64();
        t.row(vec![
            name.into(),
            mode.into(),
            file.into(),
            format!("{:.0}", bytes / 1e6),
            format!("{s:.3}"),
            format!("{:.0}", bytes / 1e6 / s),
            format!("{:.1}", s * 1e6 / blocks),
            cpu.into(),
            ratio.into(),
        ]);
    };
    if args.each {
        for (i, time) in times.iter().enumerate() {
            row(&i.to_string(), size as f64, *time, "", "");
        }
    }
    let wall = times.iter().max().copied().unwrap_or_default();
    let bytes = size as f64 * times.len() as f64;
    let rate = bytes / wall.as_secs_f64();
    let reference = *base.get_or_insert(rate);
    let ratio = format!("{:.2}", rate / reference);
    row(
        "all",
        bytes,
        wall,
        &format!("{:.3}", cpu.as_secs_f64()),
        &ratio,
    );
}
