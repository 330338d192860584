//! `pramfs-bench`: measures pramfs beside its competitors, in one run.
//!
//! `run` measures every row of the table of promises; see `bench/README.md`.

#![deny(unsafe_code)]

mod charts;
mod count;
mod fio;
mod fixture;
mod freeze;
mod harness;
mod minimal;
mod protect;
mod raw_medium;
mod reproductions;
mod requests;
mod rows;
mod scale;
mod settings;
#[allow(
    unsafe_code,
    reason = "mappings and raw system calls, each with its reason"
)]
mod sys;
mod tables;
mod takeover;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, Parser, Subcommand};

use harness::{Builds, Context, Group, Report, Scratch, machine};

/// Measures pramfs beside its competitors, in one run, interleaved.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    /// Default: `run`.
    #[command(subcommand)]
    command: Option<Cmd>,
}

#[derive(Debug, Subcommand)]
enum Cmd {
    /// Measure the rows of the table
    Run(RunArgs),
    /// Compare a build with an older one, interleaved, with the old build twice as a control
    Compare {
        /// Directory of the old build's programs (its `target/release`)
        old: PathBuf,
        /// Directory of the new build's programs [default: that of this program]
        new: Option<PathBuf>,
        #[command(flatten)]
        run: RunArgs,
    },
    /// Measure the rows of the transports of the mount alone, which run on any processor
    Transports(RunArgs),
    /// 4 KiB random reads by ten jobs: mmap, libaio, map(). ("True Zero-Copy
    /// with XIP vs PRAMFS", 2010)
    Xip(Reproduction<reproductions::xip::Args>),
    /// Sequential output, rewrite, input, cached and O_DIRECT, with %CPU.
    /// ("O_DIRECT zero-copy I/O", 2001)
    Odirect(Reproduction<reproductions::odirect::Args>),
    /// N threads read N files: base, nocopy, direct, raw, mmap, map.
    /// ("high-end i/o performance", 2002)
    Parallel(Reproduction<reproductions::parallel::Args>),
    /// System time and page faults of reading a large file. ("Unmapped I/O",
    /// 2012)
    Unmapped(Reproduction<reproductions::unmapped::Args>),
    /// Count the instructions of one operation of the engine, with valgrind
    Count(count::Args),
    /// Count the instructions of requests of a mount: without counts of them, and with metrics=off
    /// and metrics=on; with valgrind
    Requests(requests::Args),
    /// Measure what compiler settings are worth: build with each, compare instructions and time
    Settings(settings::Args),
    /// Measure the throughput of each operation with 1, 2, 4, ... threads, up to the processors
    Scale(Common),
    /// Kill servers of a mount with takeover=on, and measure the pause until the next one answers
    Takeover {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        own: takeover::Args,
    },
    /// Measure what protection against stray stores costs, in each way that the machine has
    Protect(Common),
    /// Measure how long programs wait when a live save begins, up to a region of 1 TiB
    Freeze(Common),
    /// Write existing results into the tables of docs/benchmarks.md, and draw its charts
    Report(Document),
    /// Draw the charts in docs/charts from the tables of docs/benchmarks.md
    Charts(Document),
    /// Run the minimal FUSE server that rows are compared with; runs start it
    /// themselves
    Minimal {
        /// Mount point
        mount_point: PathBuf,
        /// Memory of its one file: a file on tmpfs, mapped as a whole
        memory: PathBuf,
        /// Number of serving threads
        #[arg(long, default_value_t = 2)]
        threads: usize,
    },
    /// Open, map, read and close a file once, and print the nanoseconds; runs start it
    /// themselves
    MapOnce {
        /// The file
        file: PathBuf,
        /// By a lease of its mount
        #[arg(long)]
        lease: bool,
    },
    /// Read 4 KiB of a file at random offsets, and print the nanoseconds of one read; runs
    /// start it themselves
    PreadLoop {
        /// The file
        file: PathBuf,
        /// How long, milliseconds
        time: u64,
        /// Without the page cache
        #[arg(long)]
        direct: bool,
    },
    /// Open and close a file again and again; runs start it themselves
    OpenLoop {
        /// The file
        file: PathBuf,
        /// How often
        opens: u32,
    },
    /// Do a part of an experiment that needs a process of its own; runs start it themselves
    Part {
        /// What to do, as JSON
        work: String,
    },
}

#[derive(Debug, Default, Args)]
struct Common {
    /// Few and short rounds: a functional check, not for figures
    #[arg(long)]
    quick: bool,
    /// Counted rounds of each comparison [default: 21, quick: 5]
    #[arg(long)]
    rounds: Option<u32>,
}

#[derive(Debug, Default, Args)]
struct RunArgs {
    #[command(flatten)]
    common: Common,
    /// Measure only rows whose short name contains this
    #[arg(long)]
    filter: Option<String>,
    /// List the rows, and measure nothing
    #[arg(long)]
    list: bool,
    /// File for the results [default: latest.json or builds.json in bench/results;
    /// a partial or quick run writes partial.json there]
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Exit with status 2 if a row misses its floor or cannot be measured
    #[arg(long)]
    check: bool,
}

#[derive(Debug, Args)]
struct Document {
    /// The document [default: docs/benchmarks.md of the repository]
    document: Option<PathBuf>,
}

impl Document {
    fn path(self) -> PathBuf {
        self.document
            .unwrap_or_else(|| results_dir().join("../../docs/benchmarks.md"))
    }
}

#[derive(Debug, Args)]
struct Reproduction<T: Args> {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    own: T,
}

fn main() -> ExitCode {
    match real_main() {
        Ok(code) => code,
        Err(e) => {
            eprintln!("pramfs-bench: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn real_main() -> Result<ExitCode> {
    match Cli::parse().command.unwrap_or(Cmd::Run(RunArgs::default())) {
        Cmd::Run(args) => run(rows::GROUPS, "latest.json", None, &args),
        Cmd::Transports(args) => run(rows::TRANSPORTS, "transports.json", None, &args),
        Cmd::Compare {
            old,
            new,
            run: args,
        } => run(rows::builds::GROUPS, "builds.json", Some((old, new)), &args),
        Cmd::Xip(a) => seed("xip", &a.common, |cx, json| {
            reproductions::xip::run(cx, &a.own, json)
        }),
        Cmd::Odirect(a) => seed("odirect", &a.common, |cx, json| {
            reproductions::odirect::run(cx, &a.own, json)
        }),
        Cmd::Parallel(a) => seed("parallel", &a.common, |cx, json| {
            reproductions::parallel::run(cx, &a.own, json)
        }),
        Cmd::Unmapped(a) => seed("unmapped", &a.common, |cx, json| {
            reproductions::unmapped::run(cx, &a.own, json)
        }),
        Cmd::Count(args) => {
            count::run(&args, &results_dir().join("instructions.json"))?;
            Ok(ExitCode::SUCCESS)
        }
        Cmd::Requests(args) => {
            requests::run(&args, &results_dir().join("requests.json"))?;
            Ok(ExitCode::SUCCESS)
        }
        Cmd::Settings(args) => {
            settings::run(&args, &results_dir())?;
            Ok(ExitCode::SUCCESS)
        }
        Cmd::Scale(common) => {
            scale::run(&set_up(&common)?, &results_dir().join("scale.json"))?;
            Ok(ExitCode::SUCCESS)
        }
        Cmd::Takeover { common, own } => {
            takeover::run(&set_up(&common)?, &own)?;
            Ok(ExitCode::SUCCESS)
        }
        Cmd::Freeze(common) => {
            let rounds = common.rounds.unwrap_or(if common.quick { 5 } else { 21 });
            freeze::run(common.quick, rounds)?;
            Ok(ExitCode::SUCCESS)
        }
        Cmd::Protect(common) => {
            let rounds = common.rounds.unwrap_or(if common.quick { 3 } else { 11 });
            protect::run(common.quick, rounds.max(1))?;
            Ok(ExitCode::SUCCESS)
        }
        Cmd::Report(document) => {
            let document = document.path();
            tables::renew(&document, &results_dir())?;
            charts::renew(&document)?;
            Ok(ExitCode::SUCCESS)
        }
        Cmd::Charts(document) => {
            charts::renew(&document.path())?;
            Ok(ExitCode::SUCCESS)
        }
        Cmd::Minimal {
            mount_point,
            memory,
            threads,
        } => {
            minimal::serve(&mount_point, &memory, threads)?;
            Ok(ExitCode::SUCCESS)
        }
        Cmd::PreadLoop { file, time, direct } => {
            rows::programs::pread_loop(&file, Duration::from_millis(time), direct)?;
            Ok(ExitCode::SUCCESS)
        }
        Cmd::OpenLoop { file, opens } => {
            rows::programs::open_loop(&file, opens)?;
            Ok(ExitCode::SUCCESS)
        }
        Cmd::Part { work } => {
            reproductions::part::child(&work)?;
            Ok(ExitCode::SUCCESS)
        }
        Cmd::MapOnce { file, lease } => {
            rows::leases::map_once(&file, lease)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Prepares what every measuring command needs: private mounts, signals, the programs
/// under test.
fn set_up(common: &Common) -> Result<Context> {
    ensure!(
        pramfs::VERSION == env!("CARGO_PKG_VERSION"),
        "this program was built with test hooks ({}): cargo build --release --bins",
        pramfs::VERSION
    );
    sys::private_mounts()
        .context("making a private mount namespace (the benchmarks mount, so run them as root)")?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // A second signal ends the program at once; its mounts go with it.
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let watched = Arc::clone(&stop);
    std::thread::Builder::new()
        .name("watchdog".into())
        .spawn(move || watchdog(&watched))?;
    Ok(Context {
        quick: common.quick,
        rounds: common
            .rounds
            .unwrap_or(if common.quick { 5 } else { 21 })
            .max(1),
        scratch: Scratch::new()?,
        stop,
        programs: programs()?,
        builds: None,
        cpus: sys::cpus()?,
    })
}

/// Exits if the program was told to stop but hangs, because a server leaves a request
/// unanswered. Its servers and mounts disappear with it.
fn watchdog(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(200));
    }
    std::thread::sleep(Duration::from_secs(15));
    eprintln!("pramfs-bench: a server does not answer; giving up");
    std::process::exit(130);
}

/// Returns the directory of the programs under test: that of this program. Under
/// cargo, builds them first.
fn programs() -> Result<PathBuf> {
    let dir = std::env::current_exe()?
        .parent()
        .map(PathBuf::from)
        .unwrap_or_default();
    if let (Some(cargo), Some(here)) = (
        std::env::var_os("CARGO"),
        std::env::var_os("CARGO_MANIFEST_DIR"),
    ) {
        let mut build = Command::new(cargo);
        build
            .args([
                "build",
                "--quiet",
                "-p",
                "pramfs-fuse",
                "--bin",
                fixture::SERVER,
                "-p",
                "pramfs-tools",
                "--bin",
                fixture::MKFS,
            ])
            .current_dir(here);
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        ensure!(
            build.status()?.success(),
            "building {} and {} failed",
            fixture::SERVER,
            fixture::MKFS
        );
    }
    Ok(dir)
}

/// Bytes of memory that must be available: a region, the competitor's files, and some
/// spare.
const NEEDED: u64 = 5 << 30;

fn run(
    groups: &[&Group],
    whole: &str,
    builds: Option<(PathBuf, Option<PathBuf>)>,
    args: &RunArgs,
) -> Result<ExitCode> {
    if args.list {
        for row in groups.iter().flat_map(|g| g.rows) {
            println!(
                "{:26} {} | {} | {}",
                row.id, row.work, row.against, row.floor
            );
        }
        return Ok(ExitCode::SUCCESS);
    }
    let machine = machine::describe();
    let mut report = Report::new(machine.clone(), args.filter.clone());
    if !groups
        .iter()
        .flat_map(|g| g.rows)
        .any(|r| report.wants(r.id))
    {
        bail!("no row matches; see --list");
    }
    let available = machine::available_memory();
    ensure!(
        available >= NEEDED,
        "{} MiB of memory are available, {} are needed",
        available >> 20,
        NEEDED >> 20
    );
    let mut cx = set_up(&args.common)?;
    cx.builds = builds.map(|(old, new)| Builds {
        new: new.unwrap_or_else(|| cx.programs.clone()),
        old,
    });
    // Use one processor for this thread and for every server that it starts. The
    // scheduler's placement is the largest source of noise, several times the
    // difference between two servers.
    if let Some(cpu) = cx.cpus.last() {
        sys::pin_to_cpu(*cpu)?;
    }
    println!("{machine}; load {:.2}", machine::load());
    println!(
        "{} rounds, sides interleaved; ratio = rate of ours / rate of theirs, median of the rounds; spread = 10th to 90th percentile",
        cx.rounds
    );
    if cfg!(debug_assertions) {
        println!("BUILT WITHOUT OPTIMISATION: these figures mean nothing (use --release)");
    }
    // A virtual machine gets a page from its host at the first touch. Touch as much
    // memory as the run uses, once.
    drop(sys::Mapping::anonymous(NEEDED as usize)?);
    report.print_head();
    let mut interrupted = false;
    for group in groups {
        if let Err(e) = report.run_group(&cx, group) {
            println!("stopped: {e:#}");
            interrupted = true;
            break;
        }
    }
    let (met, missed, unmeasured) = report.tally();
    println!("{met} met, {missed} missed, {unmeasured} not measured");
    let partial =
        interrupted || args.common.quick || args.filter.is_some() || cfg!(debug_assertions);
    let path = args
        .json
        .clone()
        .unwrap_or_else(|| results_dir().join(if partial { "partial.json" } else { whole }));
    report.write_json(&path)?;
    println!("results: {}", path.display());
    Ok(if interrupted {
        ExitCode::from(130)
    } else if args.check && missed + unmeasured > 0 {
        ExitCode::from(2)
    } else {
        ExitCode::SUCCESS
    })
}

fn seed(
    name: &str,
    common: &Common,
    run: impl FnOnce(&Context, &std::path::Path) -> Result<()>,
) -> Result<ExitCode> {
    let cx = set_up(common)?;
    println!("{}; load {:.2}", machine::describe(), machine::load());
    let file = if common.quick || cfg!(debug_assertions) {
        "partial.json".to_owned()
    } else {
        format!("{name}.json")
    };
    run(&cx, &results_dir().join(file))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns `bench/results` of the repository under cargo, else of the current
/// directory.
fn results_dir() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from("bench"), PathBuf::from)
        .join("results")
}
