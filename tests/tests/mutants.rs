//! The mutation score of the crash tests: each place in the engine that
//! flushes, streams or fences is broken, one at a time, and so are the places
//! where other file systems had their mistakes; the explorer must find every
//! one. `make mutants` runs it.
//!
//! Places are found by running: what the stages below never pass is not in the
//! table, and `every_place_in_the_code_is_passed` says so.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use pramfs::journal::Rules;
use pramfs::pmem::mutants::{Bug, Kind, Mutant, Site, choose, listen, sites};
use pramfs_tests::crash::explorer::{Job, Settings, Stopped, run};
use pramfs_tests::crash::images::Limits;
use pramfs_tests::crash::machine::Torn;
use pramfs_tests::crash::oracle::Known;
use pramfs_tests::crash::workload::{Bed, Op, Workload, ops, sequences};

/// One part of the suite, from the cheapest to the dearest.
struct Stage {
    name: &'static str,
    bed: Bed,
    workloads: Vec<Workload>,
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
        rules: Rules::default(),
        seed: 1,
        threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
    }
}

fn bed(block_size: u32) -> Bed {
    let len = if block_size > 1024 { 512 } else { 256 } << 10;
    Bed::new(block_size, len).unwrap()
}

fn stages(ops: &[Op]) -> Vec<Stage> {
    let two = sequences(ops, 2, true, &|op| !op.map);
    let every = |n: usize| two.iter().step_by(n).cloned().collect();
    let mut views = sequences(ops, 2, true, &|op| !op.lossy);
    views.retain(|w| w.steps.iter().any(|(op, _)| ops[*op].map));
    let stage = |name, block_size, workloads| Stage {
        name,
        bed: bed(block_size),
        workloads,
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
        stage("two operations", 512, two.clone()),
    ]
}

fn explore(stage: &Stage, ops: &[Op]) -> Result<(), Stopped> {
    let job = Job {
        bed: &stage.bed,
        ops,
        workloads: &stage.workloads,
    };
    run(&settings(), &Arc::new(Known::default()), &job, &|_| ()).map(drop)
}

/// What found a mutant: the stage, and the story in short.
fn hunt(mutant: Mutant, stages: &[Stage], ops: &[Op]) -> Option<(&'static str, String)> {
    choose(Some(mutant));
    let found = stages.iter().find_map(|stage| {
        let story = explore(stage, ops).err()?;
        let problem = story.problem.lines().find(|l| !l.trim().is_empty());
        let short: String = problem.unwrap_or("").chars().take(70).collect();
        Some((stage.name, format!("{}: {short}", story.workload)))
    });
    choose(None);
    found
}

/// The places that the stages pass, without the mistakes.
fn passed(stages: &[Stage], ops: &[Op]) -> BTreeSet<Site> {
    listen(true);
    for stage in &stages[..4] {
        explore(stage, ops).unwrap_or_else(|e| panic!("no mistake, and yet:\n{e}"));
    }
    listen(false);
    sites().into_iter().map(|(site, _)| site).collect()
}

/// What cannot be told from no mistake, and why.
const EQUIVALENT: &[(&str, &str, Kind, &str)] = &[];

#[test]
fn every_mutant_is_found() {
    let ops = ops();
    let stages = stages(&ops);
    let mut mutants: Vec<(String, Mutant)> = Bug::ALL
        .iter()
        .map(|b| (format!("{b:?}"), Mutant::Bug(*b)))
        .collect();
    let places = passed(&stages, &ops);
    mutants.extend(places.iter().map(|s| (s.to_string(), Mutant::At(*s))));
    let only = std::env::var("PRAMFS_MUTANT").ok();
    let mut table = String::from("| mutant | found in | by |\n|---|---|---|\n");
    let (mut found, mut left) = (0, Vec::new());
    let start = Instant::now();
    for (name, mutant) in &mutants {
        if only.as_ref().is_some_and(|o| !name.contains(o.as_str())) {
            continue;
        }
        let from = Instant::now();
        match hunt(*mutant, &stages, &ops) {
            Some((stage, story)) => {
                found += 1;
                writeln!(table, "| {name} | {stage} | {story} |").unwrap();
                eprintln!("{name}: found in {:.1?} ({stage})", from.elapsed());
            }
            None => {
                eprintln!("{name}: NOT FOUND in {:.1?}", from.elapsed());
                left.push(name.clone());
            }
        }
    }
    println!("{table}");
    println!(
        "{found} of {} mutants found in {:.0?}",
        found + left.len(),
        start.elapsed()
    );
    assert!(left.is_empty(), "not found: {left:#?}");
    let _ = (EQUIVALENT, Path::new(""));
}
