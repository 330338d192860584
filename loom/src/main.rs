//! The lock-free protocols of pramfs under the memory model of Rust.
//!
//! Compiles the sources of the protocols, unchanged, with the atomics and locks of
//! [loom](https://docs.rs/loom), and runs the models of [`models`] on them. Processors of
//! x86 order nearly all loads and stores, so tests that run on them cannot show a missing
//! fence.
//!
//! Without arguments, it runs every model unchanged, which must pass, and once for each
//! ordering that the model needs, weakened, which must fail. Each run is a process.
//! `pramfs-loom MODEL [ORDERING]` is one run. `pramfs-loom --only PART` runs the models
//! whose name contains `PART`. `pramfs-loom --orderings` lists the orderings that some model
//! needs, and `--models` the models; `scripts/loom.sh` compares them with the sources and
//! with `docs/development.md`.

#![allow(dead_code, missing_docs)]
// Links of the included sources lead to modules that are not included.
#![allow(rustdoc::broken_intra_doc_links)]

// The sources of `pramfs` refer to the medium crate by this name.
extern crate self as pramfs_medium;

mod fs;
mod models;
mod stand_in;
pub mod sync;

// The protocols of the medium. They are modules of the root because some of their items are
// visible one module up, and the models must see them.
#[path = "../../medium/src/journal/dead.rs"]
mod dead;
#[path = "../../medium/src/pmem/fault_range.rs"]
mod fault_range;
#[path = "../../medium/src/pmem/known_room.rs"]
mod known_room;
#[path = "../../medium/src/pmem/once_bits.rs"]
mod once_bits;
#[path = "../../medium/src/alloc/pins.rs"]
mod pins;
// With few slots, there is only one set.
#[allow(clippy::modulo_one, reason = "the models have one place")]
#[path = "../../medium/src/volume/verified.rs"]
mod verified;

// What another process does with the words of a lease.
#[path = "../../client/src/handover.rs"]
mod handover;
#[allow(clippy::modulo_one, reason = "the models have one place")]
#[path = "../../client/src/places.rs"]
mod places;
#[path = "../../client/src/snapshot.rs"]
mod snapshot;

use std::collections::BTreeSet;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use models::{Model, VIOLATED};
pub use stand_in::{error, map, media, pmem, types, volume};

/// Executions of the model so far.
static RUNS: AtomicU64 = AtomicU64::new(0);

/// Time limit of one run in seconds. The slowest run takes a fifth of it.
const LIMIT: u64 = 300;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [] => run_all(""),
        ["--only", part] => run_all(part),
        ["--models"] => {
            models::all().for_each(|m| println!("{}", m.name));
            ExitCode::SUCCESS
        }
        ["--orderings"] => {
            let all: BTreeSet<_> = (models::all().flat_map(|m| m.needs))
                .filter(|name| !name.contains('+'))
                .collect();
            all.iter().for_each(|name| println!("{name}"));
            ExitCode::SUCCESS
        }
        [model] => run_one(model, None),
        [model, ordering] => run_one(model, Some(ordering)),
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: pramfs-loom [--models | --orderings | --only PART | MODEL [ORDERING]]");
    models::all().for_each(|m| eprintln!("  {}", m.name));
    ExitCode::from(2)
}

fn run_one(name: &str, weak: Option<&str>) -> ExitCode {
    let Some(model) = models::all().find(|m| m.name == name) else {
        return usage();
    };
    if let Some(weak) = weak {
        sync::order::weaken(weak);
    }
    (model.run)();
    println!("{} executions", RUNS.load(Ordering::Relaxed));
    ExitCode::SUCCESS
}

/// How a run ended.
#[derive(PartialEq)]
enum End {
    /// No execution breaks a promise.
    Holds,
    /// An execution breaks a promise.
    Violated,
    /// Neither: another panic, or a timeout.
    Broken,
}

fn run_apart(model: &Model, weak: Option<&str>) -> (End, String) {
    let program = std::env::current_exe().expect("this program");
    let out = Command::new("timeout")
        .arg(LIMIT.to_string())
        .arg(program)
        .arg(model.name)
        .args(weak)
        .stdin(Stdio::null())
        .output()
        .expect("timeout(1)");
    let error = String::from_utf8_lossy(&out.stderr);
    let says = |line: &&str| line.contains(VIOLATED);
    match error.lines().find(says) {
        Some(line) => (End::Violated, line.trim().to_owned()),
        None if out.status.success() => {
            let said = String::from_utf8_lossy(&out.stdout);
            (End::Holds, said.trim().to_owned())
        }
        None => (End::Broken, format!("{}: {}", out.status, error.trim())),
    }
}

fn run_all(part: &str) -> ExitCode {
    let (mut models, mut runs, mut wrong) = (0, 0, 0);
    for model in models::all().filter(|m| m.name.contains(part)) {
        models += 1;
        println!("{}", model.name);
        for weak in std::iter::once(None).chain(model.needs.iter().copied().map(Some)) {
            let start = Instant::now();
            let (end, said) = run_apart(model, weak);
            let right = match weak {
                None => end == End::Holds,
                Some(_) => end == End::Violated,
            };
            runs += 1;
            wrong += u32::from(!right);
            let verdict = match (&end, right) {
                (End::Holds, true) => "holds",
                (End::Violated, true) => "fails, as it must",
                (End::Holds, false) => "WRONG: holds",
                (End::Violated, false) => "WRONG: fails",
                (End::Broken, _) => "WRONG: no result",
            };
            println!(
                "  {:<28} {verdict:<18} {:6.1} s  {said}",
                weak.map_or("unchanged".into(), |w| format!("without {w}")),
                start.elapsed().as_secs_f32()
            );
        }
    }
    println!("\nloom: {models} models, {runs} runs, {wrong} wrong");
    if wrong == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
