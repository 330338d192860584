//! "True Zero-Copy with XIP vs PRAMFS" (2010): 4 KiB random reads by ten jobs, each with
//! a file of its own, by fio itself, with the command line of the original. A file of a live
//! mount of pramfs is read through the mount, by fio unchanged under the preload library, by
//! the client library, and by the library in the server's own process, to answer the question
//! of the original: can mapping a file be truly zero-copy, and is it faster?
//!
//! In the original, ext2 + direct_access (XIP) crashed, and reached a third of the rate
//! of a regular mapped file. Today's kernels contain neither XIP nor the kernel's PRAMFS;
//! the table lists them as not measured.
//!
//! fio maps the files of the mount without `--direct=1`: a shared mapping of a file that is open
//! with O_DIRECT is ENODEV there. Under the preload library it keeps that argument.
//!
//! fio cannot call a library, so a loop of this program does. It reads the mapped files of the
//! kernel, too: each contender is compared with ext4 mapped in the same tool. fio's own work
//! for each read takes longer than that of the loop.

mod loops;

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use pramfs::{Access, File as DirectFile, MappedFile};

use super::sites::{EXT4, LEASES, Site, TMPFS};
use crate::fio::{Counted, Fio, make_files, preload_library};
use crate::fixture::{Direct, MIB};
use crate::harness::compare::quantile;
use crate::harness::machine::available_memory;
use crate::harness::report::duration;
use crate::harness::scratch::MountDir;
use crate::harness::{Context, Huge, Table};
use crate::sys::PAGE;
use loops::{Engine, jobs, of_kernel, of_library, of_mount};

/// Options of the experiment.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Jobs, each with its own file
    #[arg(long, default_value_t = 10)]
    pub jobs: usize,
    /// Size of each file in MiB (original: 180)
    #[arg(long, default_value_t = 90)]
    pub size: u64,
    /// Seconds of each run (original: 60)
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Rounds, in each of which every contender runs once; the median counts
    #[arg(long, default_value_t = 3)]
    pub repeat: usize,
}

impl Args {
    /// Returns the duration of a run.
    fn length(&self, cx: &Context) -> Duration {
        Duration::from_secs_f64(if cx.quick {
            self.seconds / 10.0
        } else {
            self.seconds
        })
    }

    /// Returns the size of a file.
    fn bytes(&self) -> u64 {
        self.size * MIB
    }

    fn total(&self) -> u64 {
        self.bytes() * self.jobs as u64
    }
}

/// A line of the table.
struct Contender<'a> {
    name: &'static str,
    engine: String,
    in_2010: &'static str,
    /// The number of its reference: ext4 mapped, in the same tool.
    base: usize,
    #[allow(
        clippy::type_complexity,
        reason = "named by the field, used nowhere else"
    )]
    run: Box<dyn Fn(Duration) -> Result<Counted> + 'a>,
    /// The rounds, or why it could not be measured.
    rounds: Result<Vec<Counted>>,
}

/// All contenders, in the order of the table.
#[derive(Default)]
struct Plan<'a>(Vec<Contender<'a>>);

impl<'a> Plan<'a> {
    fn add(
        &mut self,
        (name, engine): (&'static str, &str),
        base: usize,
        in_2010: &'static str,
        run: impl Fn(Duration) -> Result<Counted> + 'a,
    ) {
        self.0.push(Contender {
            name,
            engine: engine.to_owned(),
            in_2010,
            base,
            run: Box::new(run),
            rounds: Ok(Vec::new()),
        });
    }

    /// Runs all contenders in turn: first a round that is not counted, then the counted ones.
    /// One that fails is left out from then on.
    ///
    /// # Errors
    /// When interrupted.
    fn run(&mut self, cx: &Context, rounds: usize, length: Duration) -> Result<()> {
        for round in 0..=rounds.max(1) {
            let count = self.0.len();
            for turn in 0..count {
                // Alternate the order, so that none always goes first.
                let at = if round % 2 == 0 {
                    turn
                } else {
                    count - 1 - turn
                };
                let contender = &mut self.0[at];
                let Ok(done) = &mut contender.rounds else {
                    continue;
                };
                let time = if round == 0 { length / 5 } else { length };
                match (contender.run)(time) {
                    Ok(counted) if round > 0 => done.push(counted),
                    Ok(_) => {}
                    Err(e) => contender.rounds = Err(e),
                }
                cx.check_stop()?;
            }
            eprintln!("xip: round {round} of {rounds}");
        }
        Ok(())
    }

    fn tabulate(&self, t: &mut Table) {
        for contender in &self.0 {
            match &contender.rounds {
                Ok(rounds) => t.row(contender.cells(rounds, &self.0[contender.base].rounds)),
                Err(e) => t.cannot(
                    &format!("{}, {}", contender.name, contender.engine),
                    &format!("{e:#}"),
                ),
            }
        }
    }
}

impl Contender<'_> {
    fn cells(&self, rounds: &[Counted], base: &Result<Vec<Counted>>) -> Vec<String> {
        let median = |f: fn(&Counted) -> f64| {
            let values: Vec<f64> = rounds.iter().map(f).collect();
            quantile(&values, 0.5)
        };
        let iops = median(|c| c.iops);
        // Of the same round: drift of the machine affects both.
        let ratios: Option<Vec<f64>> = base.as_ref().ok().map(|base| {
            let pairs = rounds.iter().zip(base);
            pairs.map(|(ours, base)| ours.iops / base.iops).collect()
        });
        let (ratio, spread) = ratios.map_or(("-".into(), "-".into()), |ratios| {
            let at = |q| format!("{:.2}", quantile(&ratios, q));
            (at(0.5), format!("{} to {}", at(0.0), at(1.0)))
        });
        let shares = rounds.iter().filter_map(|c| c.served);
        let served = shares.fold(None, |least: Option<f64>, share| {
            Some(least.map_or(share, |least| least.min(share)))
        });
        vec![
            self.name.into(),
            self.engine.clone(),
            format!("{:.0}", iops * PAGE as f64 / 1e6),
            format!("{:.0} K", iops / 1e3),
            duration(median(|c| c.mean_ns)),
            duration(median(|c| c.p99_ns)),
            ratio,
            spread,
            served.map_or(String::new(), |share| format!("{share:.1} %")),
            self.in_2010.into(),
        ]
    }
}

/// Runs the experiment.
///
/// # Errors
/// When interrupted, or if the setup fails.
pub fn run(cx: &Context, args: &Args, json: &Path) -> Result<()> {
    // Six file systems, and the page cache of two.
    let needed = 9 * args.total() + 512 * MIB;
    ensure!(
        available_memory() >= needed,
        "{} MiB of memory are available, {} are needed; choose a smaller --size or --jobs",
        available_memory() / MIB,
        needed / MIB
    );
    println!(
        "4 KiB random read, {} jobs, {} MiB each, {} rounds of {:?} each\n",
        args.jobs,
        args.size,
        args.repeat,
        args.length(cx)
    );
    let kernel = Kernel::new(cx, args)?;
    let small = InProcess::new(cx, args, "direct", Huge::Never)?;
    let huge = InProcess::new(cx, args, "direct-huge", Huge::Always)?;
    let mut plan = Plan::default();
    kernel.with_fio(cx, args, &mut plan)?;
    let base = plan.0.len();
    kernel.with_loop(cx, args, &mut plan, base);
    small.add(cx, args, &mut plan, "pramfs, direct", base);
    huge.add(cx, args, &mut plan, "pramfs, direct, huge pages", base);
    plan.run(cx, args.repeat, args.length(cx))?;
    let mut t = Table::new(
        34,
        &[
            "contender",
            "engine",
            "MB/s",
            "IOPS",
            "mean latency",
            "p99",
            "to ext4 mmap",
            "spread",
            "served",
            "in 2010",
        ],
    );
    t.cannot(
        "ext2 + direct_access (XIP)",
        "left the kernel in Linux 4.0; 2010: mmap 2108 MB/s",
    );
    t.cannot(
        "PRAMFS (kernel module)",
        "never merged, last for Linux 3; 2010: mmap 6367 MB/s, libaio 841",
    );
    plan.tabulate(&mut t);
    t.write_json(json)
}

const HUGE_TMPFS: &str = "tmpfs, huge pages";
const PRELOAD: &str = "pramfs, mounted, preload library";
const CLIENT: &str = "pramfs, mounted, client library";

/// The mounted file systems, each with the files of all jobs.
struct Kernel {
    ext4: Site,
    tmpfs: Site,
    huge_tmpfs: MountDir,
    mount: Site,
}

impl Kernel {
    fn new(cx: &Context, args: &Args) -> Result<Kernel> {
        let huge_tmpfs = cx
            .scratch
            .tmpfs("tmpfs-huge", args.total() + 64 * MIB, Huge::Always)?;
        make_files(huge_tmpfs.path(), args.jobs, args.bytes())?;
        Ok(Kernel {
            ext4: EXT4.with_files(cx, args.jobs, args.bytes())?,
            tmpfs: TMPFS.with_files(cx, args.jobs, args.bytes())?,
            huge_tmpfs,
            mount: LEASES.with_files(cx, args.jobs, args.bytes())?,
        })
    }

    fn with_fio(&self, cx: &Context, args: &Args, plan: &mut Plan<'_>) -> Result<()> {
        let library = preload_library(cx)?;
        let jobs = format!("--numjobs={}", args.jobs);
        let fio = Fio::new(&self.ext4.dir, args.bytes())?.with(&[
            "--name=rand-read",
            "--rw=randread",
            "--iodepth=1",
            &jobs,
        ]);
        let cached = |name: &str| fio.with(&[&format!("--ioengine={name}")]);
        let engine = |name: &str| cached(name).with(&["--direct=1"]);
        let (mmap, libaio, psync) = (engine("mmap"), engine("libaio"), engine("psync"));
        let mut add = |contender, in_2010, fio: Fio| {
            plan.add(contender, 0, in_2010, move |time| fio.run(time));
        };
        for (name, dir, [mmap_2010, libaio_2010]) in [
            (
                EXT4.name,
                self.ext4.dir.as_path(),
                ["6549 MB/s, 1.00", "4410 MB/s, 0.67"],
            ),
            (TMPFS.name, &self.tmpfs.dir, ["", ""]),
            (HUGE_TMPFS, self.huge_tmpfs.path(), ["", ""]),
        ] {
            add((name, MMAP), mmap_2010, mmap.on(dir));
            add((name, LIBAIO), libaio_2010, libaio.on(dir));
            add((name, PSYNC), "", psync.on(dir));
        }
        let dir = &self.mount.dir;
        let mount = LEASES.name;
        add((mount, MMAP), "6367 MB/s, 0.97", cached("mmap").on(dir));
        add((mount, LIBAIO), "841 MB/s, 0.13", libaio.on(dir));
        add((mount, PSYNC), "", psync.on(dir));
        add((PRELOAD, MMAP), "", mmap.on(dir).under(&library));
        let passing = libaio.on(dir).passing_under(&library);
        add((PRELOAD, "fio libaio (passes to the mount)"), "", passing);
        add((PRELOAD, PSYNC), "", psync.on(dir).under(&library));
        add(("fio alone", "fio null (ceiling)"), "", engine("null"));
        Ok(())
    }

    fn with_loop<'a>(&'a self, cx: &'a Context, args: &'a Args, plan: &mut Plan<'a>, base: usize) {
        let size = args.bytes();
        let file = |dir: &Path, job: usize| dir.join(format!("file.{job}"));
        for (name, dir) in [
            (EXT4.name, self.ext4.dir.as_path()),
            (TMPFS.name, &self.tmpfs.dir),
            (HUGE_TMPFS, self.huge_tmpfs.path()),
        ] {
            for (engine, shown) in [
                (Engine::Copied, "loop: map, copied"),
                (Engine::InPlace, "loop: map, in place"),
            ] {
                plan.add((name, shown), base, "", move |time| {
                    jobs(cx, args.jobs, size, time, |job| {
                        of_kernel(&file(dir, job), size, engine)
                    })
                });
            }
        }
        let dir = &self.mount.dir;
        for (engine, shown) in ENGINES {
            plan.add((CLIENT, shown), base, "", move |time| {
                jobs(cx, args.jobs, size, time, |job| {
                    of_mount(&file(dir, job), size, engine)
                })
            });
        }
    }
}

const MMAP: &str = "fio mmap";
const LIBAIO: &str = "fio libaio, O_DIRECT";
const PSYNC: &str = "fio psync, O_DIRECT";

const ENGINES: [(Engine, &str); 3] = [
    (Engine::Copied, "loop: map, copied"),
    (Engine::InPlace, "loop: map, in place"),
    (Engine::ReadAt, "loop: read_at"),
];

/// Files of a region that this process serves.
struct InProcess {
    files: Vec<(DirectFile, MappedFile)>,
    _region: Direct,
}

impl InProcess {
    fn new(cx: &Context, args: &Args, name: &str, huge: Huge) -> Result<InProcess> {
        let (size, total) = (args.bytes(), args.total());
        let region = Direct::new(cx, name, total + total / 16 + 64 * MIB, 0, huge)?;
        let chunk = vec![0x5au8; 2 * MIB as usize];
        let mut files = Vec::new();
        for job in 0..args.jobs {
            let file = region.create(&format!("file.{job}"))?;
            for at in (0..size).step_by(chunk.len()) {
                file.write_at(&chunk[..chunk.len().min((size - at) as usize)], at)?;
            }
            let map = file.map(0..size, Access::Read)?;
            files.push((file, map));
        }
        Ok(InProcess {
            files,
            _region: region,
        })
    }

    fn add<'a>(
        &'a self,
        cx: &'a Context,
        args: &'a Args,
        plan: &mut Plan<'a>,
        name: &'static str,
        base: usize,
    ) {
        for (engine, shown) in ENGINES {
            plan.add((name, shown), base, "", move |time| {
                jobs(cx, args.jobs, args.bytes(), time, |job| {
                    let (file, map) = &self.files[job];
                    of_library(file, map, engine)
                })
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(iops: f64, served: Option<f64>) -> Counted {
        Counted {
            iops,
            mean_ns: 1e9 / iops,
            p99_ns: 2e9 / iops,
            served,
        }
    }

    #[test]
    fn contenders_that_fail_stay_in_table_with_reason() {
        let cx = Context::for_tests(1);
        let runs = std::cell::Cell::new(0);
        let length = Duration::from_secs(5);
        let mut plan = Plan::default();
        plan.add(("ext4", "fio mmap"), 0, "1.00", |time| {
            runs.set(runs.get() + 1);
            // The first round is shorter, and does not count.
            let rate = if time < length { 1.0 } else { 1e6 };
            Ok(counted(rate, None))
        });
        plan.add(("ours", "fio mmap"), 0, "", |_| {
            Ok(counted(2e6, Some(100.0 - f64::from(runs.get()))))
        });
        plan.add(("theirs", "fio mmap"), 0, "", |_| anyhow::bail!("gone"));
        plan.run(&cx, 3, length).unwrap();
        let mut t = Table::new(9, &["contender"]);
        plan.tabulate(&mut t);
        let rows = t.rows();
        assert_eq!(runs.get(), 4);
        let ext4 = ["4096", "1000 K", "1.00 us", "2.00 us", "1.00"];
        assert_eq!(rows[0][2..7], ext4);
        let ours = ["2.00", "2.00 to 2.00", "97.0 %", ""];
        assert_eq!(rows[1][6..], ours);
        assert_eq!(rows[2], ["theirs, fio mmap", "cannot measure: gone"]);
    }
}
