//! "True Zero-Copy with XIP vs PRAMFS" (2010): 4 KiB random reads by ten jobs, each with
//! a file of its own, through mmap and through asynchronous O_DIRECT reads. Here also
//! through `map()` and `read_at`, to answer the question of the original: can mapping a
//! file be truly zero-copy, and is it faster?
//!
//! In the original, ext2 + direct_access (XIP) crashed, and reached a third of the rate
//! of a regular mapped file. Today's kernels contain neither XIP nor the kernel's PRAMFS;
//! the table lists them as not measured.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use pramfs::Access;

use super::sites::{EXT4, Kind, PRAMFS, Site, TMPFS};
use crate::fixture::{Direct, MIB, open_rw, random_page};
use crate::harness::report::duration;
use crate::harness::{Context, Huge, Rng, Table};
use crate::sys::{Aio, Aligned, Mapping, PAGE, Words};

/// Options of the experiment.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Threads, each with its own file
    #[arg(long, default_value_t = 10)]
    pub jobs: usize,
    /// Size of each file in MiB (original: 180)
    #[arg(long, default_value_t = 90)]
    pub size: u64,
    /// Seconds for each line of the table (original: 60)
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
}

impl Args {
    /// Returns the duration of a line.
    fn line(&self, cx: &Context) -> Duration {
        Duration::from_secs_f64(if cx.quick {
            self.seconds / 10.0
        } else {
            self.seconds
        })
    }
}

/// How the jobs read a page.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Engine {
    /// Copy it out of a mapping, like fio's mmap engine.
    Mmap,
    /// Use it in place: one load from each cache line.
    InPlace,
    /// O_DIRECT through io_submit.
    Libaio,
}

impl Engine {
    fn name(self) -> &'static str {
        match self {
            Engine::Mmap => "mmap, copied",
            Engine::InPlace => "mmap, in place",
            Engine::Libaio => "libaio, O_DIRECT",
        }
    }
}

/// Reads the page at an offset.
type Op<'a> = Box<dyn FnMut(u64) -> Result<()> + 'a>;

/// Runs the experiment.
///
/// # Errors
/// When interrupted, or if the setup fails.
pub fn run(cx: &Context, args: &Args, json: &Path) -> Result<()> {
    let size = args.size * MIB;
    let total = size * args.jobs as u64;
    println!(
        "4 KiB random read, {} jobs, {} MiB each, {:?} a line\n",
        args.jobs,
        args.size,
        args.line(cx)
    );
    let mut t = Table::new(
        44,
        &[
            "contender",
            "engine",
            "MB/s",
            "IOPS",
            "mean clat",
            "p99",
            "to ext4 mmap",
            "in 2010",
        ],
    );
    t.cannot(
        "ext2 + direct_access (XIP)",
        "left the kernel in Linux 4.0; 2010: mmap 2108 MB/s",
    );
    t.cannot(
        "PRAMFS (kernel module)",
        "never merged, last for Linux 3; 2010: mmap 6367 MB/s",
    );
    let mut reference = None;
    let mut line = |t: &mut Table, name: &str, engine: &str, in_2010: &str, got: &Got| {
        let rate = got.iops * PAGE as f64 / 1e6;
        let base = *reference.get_or_insert(rate);
        t.row(vec![
            name.into(),
            engine.into(),
            format!("{rate:.0}"),
            format!("{:.0} K", got.iops / 1e3),
            duration(got.mean_ns),
            duration(got.p99_ns),
            format!("{:.2}", rate / base),
            in_2010.into(),
        ]);
    };
    // The first measured line is the reference of the others.
    let plan: [(Kind, [(Engine, &str); 3]); 3] = [
        (
            EXT4,
            [
                (Engine::Mmap, "1.00"),
                (Engine::InPlace, ""),
                (Engine::Libaio, "0.67"),
            ],
        ),
        (
            TMPFS,
            [
                (Engine::Mmap, ""),
                (Engine::InPlace, ""),
                (Engine::Libaio, ""),
            ],
        ),
        (
            PRAMFS,
            [
                (Engine::Mmap, "0.97"),
                (Engine::InPlace, ""),
                (Engine::Libaio, "0.13"),
            ],
        ),
    ];
    for (kind, engines) in plan {
        cx.check_stop()?;
        let site = match kind.with_files(cx, args.jobs, size) {
            Ok(s) => s,
            Err(e) => {
                t.cannot(kind.name, &format!("{e:#}"));
                continue;
            }
        };
        for (engine, in_2010) in engines {
            match jobs(cx, args, size, |i| on_site(&site, i, size, engine)) {
                Ok(got) => line(&mut t, kind.name, engine.name(), in_2010, &got),
                Err(e) => t.cannot(
                    &format!("{}, {}", kind.name, engine.name()),
                    &format!("{e:#}"),
                ),
            }
        }
    }
    for (huge, name) in [
        (Huge::Never, "pramfs, direct"),
        (Huge::Always, "pramfs, direct, huge pages"),
    ] {
        cx.check_stop()?;
        let ours = Direct::new(cx, "direct", total + total / 16 + 64 * MIB, 0, huge)?;
        let chunk = vec![0x5au8; 2 * MIB as usize];
        let mut files = Vec::new();
        for i in 0..args.jobs {
            let f = ours.create(&format!("job.{i}"))?;
            for at in (0..size).step_by(chunk.len()) {
                f.write_at(&chunk[..chunk.len().min((size - at) as usize)], at)?;
            }
            files.push(f);
        }
        let maps = files
            .iter()
            .map(|f| f.map(0..size, Access::Read))
            .collect::<Result<Vec<_>, _>>()?;
        for engine in [Engine::Mmap, Engine::InPlace] {
            let got = jobs(cx, args, size, |i| {
                on_words(Words::of_map(&maps[i]), engine)
            })?;
            line(
                &mut t,
                name,
                &engine.name().replace("mmap", "map()"),
                "",
                &got,
            );
        }
        let got = jobs(cx, args, size, |i| {
            let (file, mut b) = (&files[i], Aligned::filled(PAGE, 0)?);
            Ok(Box::new(move |at| {
                ensure!(file.read_at(b.bytes_mut(), at)? == PAGE, "short read");
                Ok(())
            }))
        })?;
        line(&mut t, name, "read_at", "", &got);
    }
    t.write_json(json)
}

fn on_site(site: &Site, job: usize, size: u64, engine: Engine) -> Result<Op<'static>> {
    let file = open_rw(&site.file(job), engine == Engine::Libaio)?;
    if engine == Engine::Libaio {
        let (aio, mut b) = (Aio::new()?, Aligned::filled(PAGE, 0)?);
        return Ok(Box::new(move |at| {
            ensure!(aio.read(&file, b.bytes_mut(), at)? == PAGE, "short read");
            Ok(())
        }));
    }
    let map = Mapping::of_file(&file, size as usize, false, false)?;
    if engine == Engine::InPlace {
        return Ok(Box::new(move |at| {
            in_place(map.words(), at);
            Ok(())
        }));
    }
    let mut b = Aligned::filled(PAGE, 0)?;
    Ok(Box::new(move |at| {
        map.copy_out(at as usize, b.bytes_mut());
        Ok(())
    }))
}

fn on_words(words: Words<'_>, engine: Engine) -> Result<Op<'_>> {
    let mut b = Aligned::filled(PAGE, 0)?;
    Ok(Box::new(move |at| {
        if engine == Engine::InPlace {
            in_place(words, at);
        } else {
            let start = at as usize;
            words.lend(start..start + PAGE, |s| b.bytes_mut().copy_from_slice(s));
        }
        Ok(())
    }))
}

fn in_place(words: Words<'_>, at: u64) {
    let sum = (0..PAGE)
        .step_by(64)
        .fold(0u64, |s, o| s.wrapping_add(words.load(at as usize + o)));
    std::hint::black_box(sum);
}

/// A line of the table.
#[derive(Debug)]
struct Got {
    iops: f64,
    mean_ns: f64,
    p99_ns: f64,
}

/// Counts latencies by size, with 16 classes for each power of two.
struct Histogram(Vec<u64>);

impl Histogram {
    fn add(&mut self, ns: u64) {
        let n = ns.max(16);
        let top = 63 - n.leading_zeros();
        let class = (top as usize) * 16 + ((n >> (top - 4)) & 15) as usize;
        self.0[class] += 1;
    }

    fn quantile(&self, q: f64) -> f64 {
        let all: u64 = self.0.iter().sum();
        let mut seen = 0;
        for (class, n) in self.0.iter().enumerate() {
            seen += n;
            if seen as f64 >= q * all as f64 {
                return (1u64 << (class / 16)) as f64 * (1.0 + (class % 16) as f64 / 16.0);
            }
        }
        0.0
    }
}

/// Runs the jobs concurrently for the given time.
fn jobs<'a>(
    cx: &Context,
    args: &Args,
    size: u64,
    make: impl Fn(usize) -> Result<Op<'a>> + Sync,
) -> Result<Got> {
    cx.check_stop()?;
    let length = args.line(cx);
    let ready = std::sync::Barrier::new(args.jobs);
    let failed = AtomicBool::new(false);
    let job = |i: usize| -> Result<(u64, u64, Histogram)> {
        let op = make(i);
        failed.fetch_or(op.is_err(), Ordering::Relaxed);
        ready.wait();
        let mut op = op?;
        let mut rng = Rng::new(i as u64);
        let mut counts = Histogram(vec![0; 64 * 16]);
        let (mut ops, mut busy) = (0, 0);
        let start = Instant::now();
        let mut last = start;
        while last - start < length && !failed.load(Ordering::Relaxed) {
            op(random_page(&mut rng, size / PAGE as u64))?;
            let now = Instant::now();
            let ns = (now - last).as_nanos() as u64;
            counts.add(ns);
            busy += ns;
            ops += 1;
            last = now;
            if ops % 4096 == 0 {
                cx.check_stop()?;
            }
        }
        Ok((ops, busy, counts))
    };
    let parts = std::thread::scope(|s| {
        let handles: Vec<_> = (0..args.jobs).map(|i| s.spawn(move || job(i))).collect();
        handles
            .into_iter()
            .map(|h| h.join().map_err(|_| anyhow!("a job panicked"))?)
            .collect::<Result<Vec<_>>>()
    })?;
    let mut sum = Histogram(vec![0; 64 * 16]);
    let (mut ops, mut busy) = (0, 0);
    for (n, ns, h) in &parts {
        ops += n;
        busy += ns;
        sum.0.iter_mut().zip(&h.0).for_each(|(a, b)| *a += b);
    }
    Ok(Got {
        iops: ops as f64 / length.as_secs_f64(),
        mean_ns: busy as f64 / ops.max(1) as f64,
        p99_ns: sum.quantile(0.99),
    })
}
