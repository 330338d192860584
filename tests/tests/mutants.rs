//! The mutation score of the crash tests. Each place in the engine that flushes, streams
//! or fences is broken, one at a time, and so are the places of known mistakes of other
//! file systems. The explorer must detect every mutant. `make mutants` runs it.
//!
//! Places are found by running. If a line of the engine flushes, streams or fences and no
//! run reaches it, the test fails too. `MUTANT=part-of-a-name,another` tries the matching
//! mutants only, and `MUTANT=known` the known mistakes. `MUTANT_TABLE=file` writes the table of a
//! complete run to that file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use pramfs_medium::journal::Rules;
use pramfs_medium::pmem::mutants::{Bug, CHOICE, Mutant, NOTES, Site, choose, listen, sites};
use pramfs_tests::crash::concurrent;
use pramfs_tests::crash::explorer::{Job, Settings, Stopped, run};
use pramfs_tests::crash::fixture::Fixture;
use pramfs_tests::crash::images::Limits;
use pramfs_tests::crash::known::Known;
use pramfs_tests::crash::machine::Torn;
use pramfs_tests::crash::operations::{Op, ops};
use pramfs_tests::crash::sample::sample;
use pramfs_tests::crash::workload::{Workload, sequences};

/// One part of the suite, in order of cost.
struct Stage {
    name: &'static str,
    fixture: Fixture,
    what: What,
}

enum What {
    /// Sequences of operations.
    Workloads(Vec<Workload>),
    /// Two operations in flight.
    InFlight,
}

fn settings() -> Settings {
    let limits = |lines, pairs, random| Limits {
        lines,
        pairs,
        random,
        torn: Torn::Edges,
    };
    Settings {
        limits: limits(6, 500, 16),
        recovery: Some(limits(3, 20, 4)),
        every_recovery: None,
        rules: Rules::default(),
        seed: 1,
        threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
    }
}

fn fixture(block_size: u32) -> Fixture {
    let len = if block_size > 1024 { 512 } else { 256 } << 10;
    Fixture::new(block_size, len).unwrap()
}

fn stages(ops: &[Op]) -> Vec<Stage> {
    let two = sequences(ops, 2, true, &|op| !op.map);
    let every = |n: usize| sample(two.clone(), n);
    let mut views = sequences(ops, 2, true, &|op| !op.lossy);
    views.retain(|w| w.steps.iter().any(|(op, _)| ops[*op].map));
    let stage = |name, block_size, workloads| Stage {
        name,
        fixture: fixture(block_size),
        what: What::Workloads(workloads),
    };
    let in_flight = Stage {
        name: "two in flight",
        fixture: fixture(512),
        what: What::InFlight,
    };
    vec![
        stage(
            "one operation",
            512,
            sequences(ops, 1, false, &|op| !op.map),
        ),
        stage("one, 4 KiB", 4096, sequences(ops, 1, false, &|_| true)),
        stage("two, a sample", 512, every(17)),
        stage("a view and another", 4096, views),
        in_flight,
        stage("two operations", 512, two.clone()),
    ]
}

fn explore(stage: &Stage, ops: &[Op]) -> Result<(), Stopped> {
    let (settings, known) = (settings(), Arc::new(Known::default()));
    match &stage.what {
        What::Workloads(workloads) => {
            let job = Job {
                fixture: &stage.fixture,
                ops,
                workloads,
            };
            run(&settings, &known, &job, &|_| ()).map(drop)
        }
        What::InFlight => {
            concurrent::run(&settings, &known, (&stage.fixture, ops), 1, &|_| ()).map(drop)
        }
    }
}

/// A test that runs as a separate process.
struct Finder {
    name: &'static str,
    package: &'static str,
    arguments: &'static [&'static str],
}

/// Tests that crash operations which the explorer does not cover: mkfs, unmount, repairs,
/// large directories and files, growth, leases and windows, marks, lanes that retire.
const OTHERS: [Finder; 11] = [
    Finder {
        name: "rules_recovery.rs",
        package: "pramfs-tests",
        arguments: &["--test", "rules_recovery"],
    },
    Finder {
        name: "fsck_repair.rs",
        package: "pramfs-tests",
        arguments: &["--test", "fsck_repair"],
    },
    Finder {
        name: "crash_growth.rs",
        package: "pramfs-tests",
        arguments: &["--test", "crash_growth"],
    },
    Finder {
        name: "htree/tests/durable.rs",
        package: "pramfs-medium",
        arguments: &["--lib", "htree::tests::durable"],
    },
    Finder {
        name: "crash_sweep.rs",
        package: "pramfs-tests",
        arguments: &["--test", "crash_sweep"],
    },
    Finder {
        name: "crash_grow.rs",
        package: "pramfs-tests",
        arguments: &["--test", "crash_grow"],
    },
    Finder {
        name: "crash_windows.rs",
        package: "pramfs-tests",
        arguments: &["--test", "crash_windows"],
    },
    Finder {
        name: "append_windows.rs",
        package: "pramfs-tests",
        arguments: &["--test", "append_windows"],
    },
    Finder {
        name: "write_leases.rs",
        package: "pramfs-tests",
        arguments: &["--test", "write_leases"],
    },
    Finder {
        name: "ranged_marks.rs",
        package: "pramfs-tests",
        arguments: &["--test", "ranged_marks"],
    },
    Finder {
        name: "bad_retired.rs",
        package: "pramfs-tests",
        arguments: &["--test", "bad_retired"],
    },
];

impl Finder {
    /// Whether the test passes.
    fn run(&self, variable: &str, value: &str) -> bool {
        let done = Command::new(env!("CARGO"))
            .args(["test", "-q", "--features", "mutants", "-p", self.package])
            .args(self.arguments)
            .env(variable, value)
            .stdin(Stdio::null())
            .output();
        done.expect("cargo can be run").status.success()
    }
}

/// A mutant: a place in the code, or a known mistake.
enum Who {
    Known(Bug),
    /// The explorer reaches it.
    Explored(Site),
    /// Only these other tests reach it; by name.
    Elsewhere(String, Vec<&'static Finder>),
}

/// The first of some tests that fails with a mutant.
fn by_others<'a>(
    mut tests: impl Iterator<Item = &'a Finder>,
    mutant: &str,
) -> Option<(String, String)> {
    let found = tests.find(|test| !test.run(CHOICE, mutant))?;
    Some((format!("`{}`", found.name), "the test fails".into()))
}

impl Who {
    fn name(&self) -> String {
        match self {
            Who::Known(bug) => format!("{bug:?}"),
            Who::Explored(site) => site.to_string(),
            Who::Elsewhere(name, _) => name.clone(),
        }
    }

    /// The stage that detected it, and the failure in short.
    fn hunt(&self, stages: &[Stage], ops: &[Op]) -> Option<(String, String)> {
        let mutant = match self {
            Who::Known(bug) => Mutant::Bug(*bug),
            Who::Explored(site) => Mutant::At(*site),
            Who::Elsewhere(name, tests) => return by_others(tests.iter().copied(), name),
        };
        let explored = |stages: &[Stage]| {
            choose(Some(mutant));
            let found = stages.iter().find_map(|stage| {
                let story = explore(stage, ops).err()?;
                let problem = story.problem.lines().find(|l| !l.trim().is_empty());
                let short: String = problem.unwrap_or("").chars().take(70).collect();
                let text = format!("{}: {short}", story.workload).replace('|', "&");
                Some((stage.name.to_string(), text))
            });
            choose(None);
            found
        };
        // In order of cost.
        let (cheap, dear) = stages.split_at(2);
        explored(cheap)
            .or_else(|| by_others(OTHERS.iter(), &self.name()))
            .or_else(|| explored(dear))
    }
}

/// The places that are reached, known mistakes excluded.
fn passed(stages: &[Stage], ops: &[Op]) -> Vec<Who> {
    listen(true);
    for stage in &stages[..5] {
        explore(stage, ops).unwrap_or_else(|e| panic!("no mistake, and yet:\n{e}"));
    }
    listen(false);
    let mut all: Vec<Who> = sites().into_iter().map(Who::Explored).collect();
    let explored: BTreeSet<String> = all.iter().map(Who::name).collect();
    let dir = tempfile::tempdir().unwrap();
    let mut others: BTreeMap<String, Vec<&'static Finder>> = BTreeMap::new();
    for test in &OTHERS {
        let notes = dir.path().join("notes");
        assert!(
            test.run(NOTES, notes.to_str().unwrap()),
            "no mistake, and yet {} fails",
            test.name
        );
        let noted = std::fs::read_to_string(&notes);
        let noted = noted.unwrap_or_else(|e| panic!("{} runs no test: {e}", test.name));
        for line in noted.lines() {
            if !explored.contains(line) {
                others.entry(line.into()).or_default().push(test);
            }
        }
        std::fs::remove_file(notes).unwrap();
    }
    all.extend(
        others
            .into_iter()
            .map(|(name, tests)| Who::Elsewhere(name, tests)),
    );
    all
}

/// Folders of the engine's sources. The name of a mutant is relative to one of them.
fn roots() -> impl Iterator<Item = PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    ["pramfs-rs/src", "medium/src", "fsck/src"]
        .map(|folder| root.join(folder))
        .into_iter()
}

/// Lines of the engine that flush, stream or fence, and that no run reaches.
fn never_passed(mutants: &[Who]) -> Vec<String> {
    let names: Vec<String> = mutants.iter().map(Who::name).collect();
    let calls = [
        ".fence(",
        ".nt_store(",
        ".nt_zero(",
        ".publish_u64(",
        "window().flush(",
        "(w.flush(",
        "(w.store(",
        ".write_new(",
        ".zero_new(",
    ];
    // Its callers are counted instead.
    let passes_on = ["volume/record.rs", "fs/ops/write_source.rs"];
    let mut missed = Vec::new();
    let mut folders: Vec<_> = roots().map(|root| (root.clone(), root)).collect();
    while let Some((root, folder)) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let below = path.strip_prefix(&root).unwrap().display().to_string();
            // Below the window, and outside of the engine.
            if passes_on.contains(&&*below)
                || below.contains("test")
                || below.starts_with("pmem/") && below != "pmem/stitch.rs"
            {
                continue;
            }
            if path.is_dir() {
                folders.push((root.clone(), path));
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            for (i, line) in code.lines().enumerate() {
                let call = calls.iter().any(|c| line.contains(c));
                let at = format!("{below}:{}:", i + 1);
                if call
                    && !line.trim_start().starts_with("//")
                    && !names.iter().any(|n| n.starts_with(&at))
                {
                    missed.push(format!("{at} {}", line.trim()));
                }
            }
        }
    }
    missed
}

/// Equivalent mutants: file, code of the line, the mutation, and the reason.
const EQUIVALENT: [(&str, &str, &str, &str); 1] = [(
    "journal/lane.rs",
    "let fenced = w.fence(homes);",
    "fence after the next store",
    "the next store is the first of the two retired words, and the lower word counts",
)];

/// File, line and mutation from a mutant's name, and the text of the file.
fn parts(name: &str) -> Option<(&str, usize, &str, String)> {
    let (at, what) = name.split_once(": ")?;
    let (file, line) = at.split_once(':')?;
    let text = roots().find_map(|root| std::fs::read_to_string(root.join(file)).ok())?;
    Some((file, line.parse().ok()?, what, text))
}

/// The function that contains a line.
fn function(text: &str, line: usize) -> Option<&str> {
    let above: Vec<&str> = text.lines().take(line).collect();
    above.iter().rev().find_map(|l| {
        let l = l.trim_start();
        let (head, rest) = l.split_once("fn ")?;
        let words = ["", "pub ", "unsafe ", "const ", "async "];
        let head = head.split_inclusive(' ');
        let mut modifiers = head.map(|w| if w.starts_with("pub(") { "pub " } else { w });
        let name = rest.split(['(', '<']).next()?;
        modifiers.all(|w| words.contains(&w)).then_some(name)
    })
}

/// The name of a mutant, stable while lines are added elsewhere: file, function, and
/// index among its kind in that function.
fn lasting(name: &str, all: &[String]) -> String {
    let Some((file, line, what, text)) = parts(name) else {
        return name.into();
    };
    let Some(within) = function(&text, line) else {
        return name.into();
    };
    let mut beside: Vec<usize> = all
        .iter()
        .filter_map(|other| {
            let (f, l, w, _) = parts(other)?;
            (f == file && w == what && function(&text, l) == Some(within)).then_some(l)
        })
        .collect();
    beside.sort_unstable();
    beside.dedup();
    let which = beside.iter().position(|l| *l == line).unwrap_or(0) + 1;
    match beside.len() {
        0 | 1 => format!("{file}, `{within}`: {what}"),
        n => format!("{file}, `{within}`, {which} of {n}: {what}"),
    }
}

/// The reason why a mutant is equivalent, if it is.
fn equivalent(name: &str) -> Option<&'static str> {
    let (file, line, what, text) = parts(name)?;
    let code = text.lines().nth(line - 1)?.trim();
    let same = |e: &&(&str, &str, &str, &str)| e.0 == file && e.1 == code && e.2 == what;
    EQUIVALENT.iter().find(same).map(|e| e.3)
}

/// Start of the document that holds the table.
const HEAD: &str = "# Mutants\n\
    \n\
    `make mutants` writes this file: do not edit it.\n\
    [crash-testing.md](crash-testing.md#does-it-notice) says what a mutant is and how the\n\
    tests look for it. *found by* names either a part of the explorer's run or another test.\n\
    For the explorer, *with* gives the workload and the problem. Another test reports the\n\
    mutant by failing. Places are named by file and function, not by line.\n\n";

#[test]
fn every_mutant_is_detected() {
    let ops = ops();
    let stages = stages(&ops);
    let mut mutants: Vec<Who> = Bug::ALL.map(Who::Known).into();
    let only = std::env::var("MUTANT").ok();
    let (known, only) = match only {
        Some(o) if o == "known" => (true, None),
        only => (false, only),
    };
    let mut missed = Vec::new();
    if !known {
        mutants.extend(passed(&stages, &ops));
        missed = never_passed(&mutants);
    }
    let mut table = String::from("| mutant | found by | with |\n|---|---|---|\n");
    let (mut found, mut equal, mut left) = (0, 0, Vec::new());
    let start = Instant::now();
    let names: Vec<String> = mutants.iter().map(Who::name).collect();
    for who in &mutants {
        let name = who.name();
        let matches = |only: &String| only.split(',').any(|part| name.contains(part));
        if only.as_ref().is_some_and(|only| !matches(only)) {
            continue;
        }
        let lasts = lasting(&name, &names);
        if let Some(why) = equivalent(&name) {
            writeln!(table, "| {lasts} | none | equivalent: {why} |").unwrap();
            equal += 1;
            continue;
        }
        let from = Instant::now();
        match who.hunt(&stages, &ops) {
            Some((stage, story)) => {
                found += 1;
                writeln!(table, "| {lasts} | {stage} | {story} |").unwrap();
                eprintln!("{name}: found in {:.1?} ({stage})", from.elapsed());
            }
            None => {
                writeln!(table, "| {lasts} | **nothing** | |").unwrap();
                eprintln!("{name}: NOT FOUND in {:.1?}", from.elapsed());
                left.push(name.clone());
            }
        }
    }
    println!("{table}");
    let score = format!(
        "{found} of {} mutants are found; {equal} more {} equivalent to the correct code.",
        found + left.len(),
        if equal == 1 { "is" } else { "are" }
    );
    println!(
        "{score} {:.0?}; places that nothing passes: {missed:#?}",
        start.elapsed()
    );
    if let Some(path) = std::env::var_os("MUTANT_TABLE").filter(|_| only.is_none() && !known) {
        let text = format!("{HEAD}{score}\n\n{table}");
        std::fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
    assert!(left.is_empty(), "not found: {left:#?}");
    assert!(missed.is_empty(), "never passed: {missed:#?}");
}
