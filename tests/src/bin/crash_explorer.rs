//! `make crash`: the crash explorer as far as there is time for.
//!
//! Runs, one after the other: all sequences of one operation, of two, and of
//! three operations that change metadata, with more lines combined than the
//! tests have time for. Progress is kept in a file, so that a run that was
//! interrupted goes on where it was.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use pramfs_medium::journal::Rules;
use pramfs_tests::crash::atomic::{atomic_ops, changes_bytes, range_ops};
use pramfs_tests::crash::concurrent;
use pramfs_tests::crash::explorer::{Job, Settings, Stopped, run};
use pramfs_tests::crash::fixture::Fixture;
use pramfs_tests::crash::images::Limits;
use pramfs_tests::crash::known::Known;
use pramfs_tests::crash::leased::{grants_or_ends, lease_ops, matters_beside_leases};
use pramfs_tests::crash::machine::Torn;
use pramfs_tests::crash::operations::{Op, ops};
use pramfs_tests::crash::report::Summary;
use pramfs_tests::crash::setup::Setup;
use pramfs_tests::crash::workload::{Workload, sequences};
use pramfs_tests::random::Random;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

/// Crashes pramfs everywhere and looks at what is left.
///
/// Exit status: 0 where every image is explained, 1 where one is not (it is
/// told), 2 for anything else.
#[derive(Debug, Parser)]
#[command(name = "crash-explorer", version)]
struct Args {
    /// A sample that takes a few minutes.
    #[arg(long)]
    quick: bool,
    /// Longest sequences.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=3))]
    length: u8,
    /// Uncertain lines up to which all subsets are looked at [default: 12, or 6
    /// with --quick]. Up to 6, the rest is as in `make test`, too: tears, pairs,
    /// and crashes in recoveries.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=20))]
    lines: Option<u32>,
    /// Any subset of the words stored to a line, in whichever order they were
    /// stored: stricter than the processor.
    #[arg(long)]
    strict: bool,
    /// Crashes the recovery of every distinct image. Otherwise this is done for
    /// sequences of one operation, and of two with more than 6 lines; of the
    /// others, recoveries that make the same stores on the way to the same medium
    /// are crashed once.
    #[arg(long)]
    every_recovery: bool,
    /// Only the parts of the run whose name in the table contains this.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Seed of random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Workers [default: one for each processor].
    #[arg(long)]
    threads: Option<usize>,
    /// File in which progress is kept; a run with the same options goes on
    /// there.
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// Ends by SIGKILL when progress has been kept so many times, for the test of
    /// --resume.
    #[arg(long, value_name = "TIMES", hide = true, requires = "resume")]
    die_after: Option<u32>,
    /// This workload alone, by the name that a report gives it.
    #[arg(long, value_name = "NAME")]
    workload: Option<String>,
    #[command(flatten)]
    setup: Setup,
    /// Lists the operations and ends.
    #[arg(long)]
    list: bool,
}

/// What is kept between runs.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Progress {
    /// Options that the counts are for.
    options: String,
    /// Phases that are done, by name, and the workloads done of the last one.
    done: Vec<(String, usize, Summary)>,
}

impl Progress {
    fn load(path: &Path, options: &str) -> Result<Progress> {
        let fresh = || Progress {
            options: options.into(),
            done: Vec::new(),
        };
        let text = match std::fs::read_to_string(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(fresh()),
            other => other.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let found: Progress = serde_json::from_str(&text)
            .with_context(|| format!("{} is no progress of a run; remove it", path.display()))?;
        if found.options != options {
            return Err(anyhow!(
                "{} is of a run with other options ({}); remove it, or name another file",
                path.display(),
                found.options
            ));
        }
        Ok(found)
    }

    /// Replaces the file whole, so that an interruption leaves the old or the
    /// new one.
    fn save(&self, path: &Path) -> Result<()> {
        let new = path.with_extension("new");
        let text = serde_json::to_string(self)?;
        std::fs::write(&new, text).with_context(|| format!("cannot write {}", new.display()))?;
        std::fs::rename(&new, path).with_context(|| format!("cannot replace {}", path.display()))
    }
}

/// One part of the run.
struct Phase {
    name: String,
    fixture: Fixture,
    workloads: Vec<Workload>,
    settings: Settings,
}

/// As far as `make test` goes, rather than as far as there is time.
fn briefly(args: &Args) -> bool {
    args.quick || args.lines.is_some_and(|lines| lines <= 6)
}

fn limits(args: &Args) -> Limits {
    let brief = briefly(args);
    Limits {
        lines: args.lines.unwrap_or(if brief { 6 } else { 12 }),
        pairs: if brief { 2000 } else { 10_000 },
        random: if brief { 32 } else { 200 },
        torn: match (args.strict, brief) {
            (true, _) => Torn::Strict,
            (_, true) => Torn::Edges,
            _ => Torn::Words,
        },
    }
}

fn fixture(block_size: u32, leased: bool) -> Result<Fixture> {
    let len = if block_size > 1024 { 512 } else { 256 } << 10;
    let made = match leased {
        false => Fixture::new(block_size, len),
        true => Fixture::leased(block_size, len, None),
    };
    made.map_err(|e| anyhow!("the first tree cannot be made: {e}"))
}

/// The same with checksums of file data.
fn summed(block_size: u32, leased: bool) -> Result<Fixture> {
    let len = if block_size > 1024 { 1024 } else { 384 } << 10;
    let made = match leased {
        false => Fixture::summed(block_size, len),
        true => Fixture::summed_and_leased(block_size, len, None),
    };
    made.map_err(|e| anyhow!("the first tree with sums cannot be made: {e}"))
}

/// The one of --workload.
fn chosen_fixture(setup: &Setup) -> Result<Fixture> {
    let made = setup.fixture();
    made.map_err(|e| anyhow!("the first tree cannot be made: {e}"))
}

fn settings(args: &Args, limits: Limits, recovery: Option<Limits>) -> Settings {
    let processors = || std::thread::available_parallelism().map_or(1, |n| n.get());
    Settings {
        limits,
        recovery,
        every_recovery: recovery.filter(|_| args.every_recovery),
        rules: Rules::default(),
        seed: args.seed,
        threads: args.threads.unwrap_or_else(processors),
    }
}

/// `every_op` is `ops`, then the operations of leases, then more that change bytes, and then views
/// of ranges.
fn phases(args: &Args, ops: &[Op], every_op: &[Op]) -> Result<Vec<Phase>> {
    let all_ops = &every_op[..lease_ops().len()];
    let summed_ops = &every_op[..atomic_ops().len()];
    let all = limits(args);
    let again = match briefly(args) {
        true => Limits {
            lines: 3,
            pairs: 10,
            random: 4,
            torn: Torn::Half,
        },
        false => Limits {
            lines: 4,
            pairs: 100,
            random: 8,
            torn: Torn::Edges,
        },
    };
    let settings = |limits, recovery| settings(args, limits, Some(recovery));
    // A sample has the same share of each length.
    let mut random = Random::new(args.seed);
    let mut sample = |mut w: Vec<Workload>, most: usize| {
        if args.quick && w.len() > most {
            random.shuffle(&mut w);
            w.truncate(most);
        }
        w
    };
    if let Some(name) = &args.workload {
        let w = Workload::parse(name, every_op).map_err(|e| anyhow!(e))?;
        return Ok(vec![Phase {
            name: name.clone(),
            fixture: chosen_fixture(&args.setup)?,
            workloads: vec![w],
            settings: args.setup.settings(settings(all, all)),
        }]);
    }
    let mut phases = Vec::new();
    for block_size in [512, 1024, 2048, 4096] {
        phases.push(Phase {
            name: format!("one operation, blocks of {block_size}"),
            fixture: fixture(block_size, false)?,
            workloads: sequences(ops, 1, false, &|op| !op.map || block_size == 4096),
            settings: Settings {
                every_recovery: Some(again),
                ..settings(all, if args.quick { again } else { all })
            },
        });
    }
    for free in 0..6 {
        let fixture = Fixture::full(512, 256 << 10, free);
        phases.push(Phase {
            name: format!("one operation, {free} blocks left"),
            fixture: fixture.map_err(|e| anyhow!("a full region cannot be made: {e}"))?,
            workloads: sequences(ops, 1, false, &|op| !op.map),
            settings: settings(all, again),
        });
    }
    if args.length >= 2 {
        for block_size in [512, 4096] {
            let w = sequences(ops, 2, true, &|op| !op.map || block_size == 4096);
            phases.push(Phase {
                name: format!("two operations, blocks of {block_size}"),
                fixture: fixture(block_size, false)?,
                workloads: sample(w, 300),
                settings: Settings {
                    every_recovery: Some(again).filter(|_| !briefly(args) || args.every_recovery),
                    ..settings(all, again)
                },
            });
        }
    }
    for block_size in [512, 4096] {
        phases.push(Phase {
            name: format!("one operation beside leases, blocks of {block_size}"),
            fixture: fixture(block_size, true)?,
            workloads: sequences(all_ops, 1, false, &|op| !op.map || block_size == 4096),
            settings: settings(all, again),
        });
    }
    if args.length >= 2 {
        let w = sequences(all_ops, 2, true, &matters_beside_leases);
        phases.push(Phase {
            name: "two operations beside leases".into(),
            fixture: fixture(512, true)?,
            workloads: sample(w, 300),
            settings: settings(all, again),
        });
    }
    if args.length >= 3 {
        let w = [1, 2, 3].map(|length| sequences(all_ops, length, true, &grants_or_ends));
        phases.push(Phase {
            name: "grant and end of leases".into(),
            fixture: fixture(512, false)?,
            workloads: sample(w.concat(), 300),
            settings: settings(all, again),
        });
        phases.push(Phase {
            name: "three operations on metadata".into(),
            fixture: fixture(512, false)?,
            workloads: sample(sequences(ops, 3, true, &|op| op.metadata), 1000),
            settings: settings(all, again),
        });
    }
    for leased in [false, true] {
        let beside = if leased { " beside leases" } else { "" };
        let one = sequences(summed_ops, 1, false, &|op| !op.map);
        phases.push(Phase {
            name: format!("one operation with sums{beside}"),
            fixture: summed(512, leased)?,
            workloads: one,
            settings: settings(all, again),
        });
        if args.length >= 2 {
            let matters = |op: &Op| changes_bytes(op) || leased && matters_beside_leases(op);
            phases.push(Phase {
                name: format!("two operations with sums{beside}"),
                fixture: summed(512, leased)?,
                workloads: sample(sequences(summed_ops, 2, true, &matters), 300),
                settings: settings(all, again),
            });
        }
    }
    for free in 0..6 {
        let fixture = Fixture::summed_and_full(512, 320 << 10, free);
        phases.push(Phase {
            name: format!("one operation with sums, {free} blocks left"),
            fixture: fixture.map_err(|e| anyhow!("a full region cannot be made: {e}"))?,
            workloads: sequences(summed_ops, 1, false, &changes_bytes),
            settings: settings(all, again),
        });
    }
    Ok(phases)
}

/// Those of all tests.
fn all_ops() -> Vec<Op> {
    let mut all = atomic_ops();
    all.extend(range_ops());
    all
}

/// Workloads between two savings of the progress. At the end of a chunk, threads wait for the last
/// one.
const CHUNK: usize = 200;
/// The same with `--quick`, whose parts have fewer workloads.
const QUICK_CHUNK: usize = 50;

fn phase(
    p: &Phase,
    chunk: usize,
    ops: &[Op],
    (mut done, mut total): (usize, Summary),
    save: &mut dyn FnMut(usize, &Summary) -> Result<()>,
) -> Result<Result<Summary, Stopped>> {
    let bar = ProgressBar::new(p.workloads.len() as u64);
    bar.set_style(ProgressStyle::with_template(
        "{prefix}: {bar:30} {pos}/{len} workloads, {msg}, {eta} left",
    )?);
    bar.set_prefix(p.name.clone());
    bar.enable_steady_tick(Duration::from_millis(200));
    let known = Arc::new(Known::default());
    while done < p.workloads.len() {
        let chunk = &p.workloads[done..(done + chunk).min(p.workloads.len())];
        let job = Job {
            fixture: &p.fixture,
            ops,
            workloads: chunk,
        };
        let shown = |s: &Summary| {
            bar.set_position((done as u64) + s.workloads + s.left_out);
            let images = total.images + s.images + total.recovery_images + s.recovery_images;
            bar.set_message(format!("{images} images"));
        };
        match run(&p.settings, &known, &job, &shown) {
            Ok(s) => total += s,
            Err(e) => {
                bar.abandon();
                return Ok(Err(e));
            }
        }
        done += chunk.len();
        save(done, &total)?;
    }
    bar.finish_and_clear();
    Ok(Ok(total))
}

/// Name of the part that [`in_flight`] is.
const IN_FLIGHT: &str = "two operations in flight";

/// Pairs of operations on two threads. Short enough to be begun again.
fn in_flight(args: &Args, ops: &[Op]) -> Result<Result<Summary, Stopped>> {
    let settings = settings(args, limits(args), None);
    if let Some(name) = &args.workload {
        let settings = args.setup.settings(settings);
        let fixture = chosen_fixture(&args.setup)?;
        return concurrent::again(&settings, (&fixture, ops), name).map_err(|e| anyhow!(e));
    }
    let fixture = fixture(512, false)?;
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("{spinner} {msg}")?);
    bar.enable_steady_tick(Duration::from_millis(200));
    let shown = |s: &Summary| {
        bar.set_message(format!(
            "two operations in flight: {} runs, {} images",
            s.workloads, s.images
        ));
    };
    let runs = if args.quick { 1 } else { 20 };
    let found = concurrent::run(&settings, &Arc::default(), (&fixture, ops), runs, &shown);
    bar.finish_and_clear();
    Ok(found)
}

fn explore(args: &Args) -> Result<bool> {
    let (ops, all_ops) = (ops(), all_ops());
    let options = format!(
        "quick {} length {} {:?} seed {} workload {:?} {} only {:?} every {}",
        args.quick,
        args.length,
        limits(args),
        args.seed,
        args.workload,
        args.setup,
        args.only,
        args.every_recovery
    );
    let mut progress = match &args.resume {
        Some(path) => Progress::load(path, &options)?,
        None => Progress::default(),
    };
    println!("{}", Summary::HEAD);
    let mut total = Summary::default();
    let mut saved = 0;
    let pair = args.workload.as_ref().is_some_and(|w| w.contains('|'));
    let chosen = |name: &str| args.only.as_ref().is_none_or(|o| name.contains(o.as_str()));
    let mut phases = if pair {
        Vec::new()
    } else {
        phases(args, &ops, &all_ops)?
    };
    phases.retain(|p| chosen(&p.name));
    for p in phases {
        let at = match progress.done.iter().position(|d| d.0 == p.name) {
            Some(at) => at,
            None => {
                let fresh = (p.name.clone(), 0, Summary::default());
                progress.done.push(fresh);
                progress.done.len() - 1
            }
        };
        let chunk = if args.quick { QUICK_CHUNK } else { CHUNK };
        let from = (progress.done[at].1, progress.done[at].2);
        let mut save = |done: usize, s: &Summary| {
            (progress.done[at].1, progress.done[at].2) = (done, *s);
            let Some(path) = &args.resume else {
                return Ok(());
            };
            progress.save(path)?;
            saved += 1;
            if args.die_after == Some(saved) {
                rustix::process::kill_process(rustix::process::getpid(), Signal::KILL)?;
            }
            Ok(())
        };
        match phase(&p, chunk, &all_ops, from, &mut save)? {
            Ok(s) => {
                println!("{}", s.row(&p.name));
                total += s;
            }
            Err(e) => {
                println!("\nAn image that nothing explains:\n\n{e}");
                return Ok(false);
            }
        }
    }
    if pair || args.workload.is_none() && chosen(IN_FLIGHT) {
        match in_flight(args, &ops)? {
            Ok(s) => {
                println!("{}", s.row(IN_FLIGHT));
                total += s;
            }
            Err(e) => {
                println!("\nAn image that no order explains:\n\n{e}");
                return Ok(false);
            }
        }
    }
    println!("{}\n\n{total}\nno image is unexplained", total.row("all"));
    Ok(true)
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.list {
        all_ops().iter().for_each(|op| println!("{}", op.name));
        return ExitCode::SUCCESS;
    }
    match explore(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(e) => {
            eprintln!("crash-explorer: {e:#}");
            ExitCode::from(2)
        }
    }
}
