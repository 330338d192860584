//! `scale`: measures the throughput of each operation against the number of threads.
//!
//! Each round measures every number of threads once, so that drift of the machine affects
//! all of them. Every thread has a processor of its own.

use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use pramfs::inode::Ino;

use crate::fixture::{Direct, MIB, random_page};
use crate::harness::compare::quantile;
use crate::harness::{Context, Huge, Rng, Table};
use crate::sys::{self, Aligned, Mapping, PAGE};

/// File size of each thread in bytes.
const FILE: u64 = 64 * MIB;
/// Number of existing names for the look-ups.
const NAMES: u64 = 10_000;

/// Runs `count` operations in one thread.
type Run<'a> = Box<dyn Fn(usize, u64, &mut Rng) -> Result<()> + Sync + 'a>;

/// One operation: its name, and a function that repeats it in one thread.
struct Operation<'a> {
    name: &'static str,
    count: u64,
    run: Run<'a>,
    /// Runs after each measurement, not timed.
    reset: Box<dyn Fn() -> Result<()> + Sync + 'a>,
}

/// Returns 1, 2, 4, ... and the number of processors.
fn thread_counts(cpus: usize) -> Vec<usize> {
    let mut counts: Vec<_> = std::iter::successors(Some(1), |n| Some(n * 2))
        .take_while(|n| *n < cpus)
        .collect();
    counts.push(cpus);
    counts
}

/// Measures and prints the curves. A run that is not quick writes them to `json`.
///
/// # Errors
/// Engine and system errors.
pub fn run(cx: &Context, json: &Path) -> Result<()> {
    let counts = thread_counts(cx.cpus.len());
    let most = cx.cpus.len() as u64;
    let ours = Direct::new(
        cx,
        "scale",
        (512 + 3 * most * FILE / MIB) * MIB,
        0,
        Huge::Never,
    )?;
    let fs = &ours.fs;
    let mut dirs = Vec::new();
    let mut files = Vec::new();
    let mut logs = Vec::new();
    let mut plain = Vec::new();
    let chunk = vec![0x5au8; MIB as usize];
    for thread in 0..most {
        dirs.push(ours.directory(&format!("own {thread}"))?);
        let file = ours.create(&format!("file {thread}"))?;
        for at in (0..FILE).step_by(chunk.len()) {
            file.write_at(&chunk, at)?;
        }
        files.push(file);
        logs.push(ours.create(&format!("log {thread}"))?);
        plain.push(Mapping::anonymous(FILE as usize)?);
    }
    let shared = ours.directory("shared")?;
    let found = ours.directory("names")?;
    // Made before the loops: making a name takes as long as looking it up.
    let created: Vec<Vec<String>> = (0..most)
        .map(|thread| (0..64).map(|i| format!("{thread} {i}")).collect())
        .collect();
    let present: Vec<_> = (0..NAMES).map(|i| format!("name {i}")).collect();
    for name in &present {
        fs.create(&ours.cx, found, name.as_bytes(), 0o644)?;
    }
    let data = Aligned::filled(PAGE, 0xa5)?;
    let data = data.bytes();
    let scale = if cx.quick { 10 } else { 1 };
    let in_dir = |dir: Ino, thread: usize, count: u64| -> Result<()> {
        for i in 0..count {
            let name = created[thread][i as usize % 64].as_bytes();
            fs.create(&ours.cx, dir, name, 0o644)?;
            fs.unlink(dir, name)?;
        }
        Ok(())
    };
    let nothing = || Ok(());
    let operations = [
        Operation {
            name: "memcpy of 4 KiB, private memory (the machine itself)",
            count: 200_000 / scale,
            run: Box::new(|thread, count, rng| {
                for _ in 0..count {
                    let at = random_page(rng, FILE / PAGE as u64);
                    plain[thread].copy_in(at as usize, data);
                }
                Ok(())
            }),
            reset: Box::new(nothing),
        },
        Operation {
            name: "overwrite 4 KiB, a file each",
            count: 100_000 / scale,
            run: Box::new(|thread, count, rng| {
                for _ in 0..count {
                    files[thread].write_at(data, random_page(rng, FILE / PAGE as u64))?;
                }
                Ok(())
            }),
            reset: Box::new(nothing),
        },
        Operation {
            name: "append 4 KiB, a file each",
            count: (FILE / PAGE as u64) / scale,
            run: Box::new(|thread, count, _| {
                for _ in 0..count {
                    logs[thread].append(data)?;
                }
                Ok(())
            }),
            reset: Box::new(|| {
                for log in &logs {
                    log.set_len(0)?;
                }
                Ok(fs.sync()?)
            }),
        },
        Operation {
            name: "create + unlink, a directory each",
            count: 20_000 / scale,
            run: Box::new(|thread, count, _| in_dir(dirs[thread], thread, count)),
            reset: Box::new(nothing),
        },
        Operation {
            name: "create + unlink, the same directory",
            count: 20_000 / scale,
            run: Box::new(|thread, count, _| in_dir(shared, thread, count)),
            reset: Box::new(nothing),
        },
        Operation {
            name: "lookup + getattr, the same directory",
            count: 200_000 / scale,
            run: Box::new(|_, count, rng| {
                for _ in 0..count {
                    let name = &present[rng.below(NAMES) as usize];
                    let attr = fs.lookup(found, name.as_bytes())?;
                    fs.getattr(attr.ino)?;
                }
                Ok(())
            }),
            reset: Box::new(nothing),
        },
    ];
    let mut table = Table::new(
        52,
        &["operation", "threads", "ns", "throughput", "10 % to 90 %"],
    );
    for op in &operations {
        let mut times = vec![Vec::new(); counts.len()];
        // The first round is a warm-up.
        for round in 0..=cx.rounds {
            for (i, &threads) in counts.iter().enumerate() {
                cx.check_stop()?;
                let time = on_threads(&cx.cpus[..threads], u64::from(round), op)?;
                (op.reset)()?;
                if round > 0 {
                    let ops = op.count * threads as u64;
                    times[i].push(time.as_nanos() as f64 / ops as f64);
                }
            }
        }
        for (threads, some) in counts.iter().zip(&times) {
            let ratios: Vec<_> = times[0].iter().zip(some).map(|(one, n)| one / n).collect();
            let (low, high) = (quantile(&ratios, 0.1), quantile(&ratios, 0.9));
            table.row(vec![
                op.name.to_owned(),
                threads.to_string(),
                // A thread's own time for one operation.
                format!("{:.0}", quantile(some, 0.5) * *threads as f64),
                format!("{:.2}", quantile(&ratios, 0.5)),
                format!("{low:.2} to {high:.2}"),
            ]);
        }
    }
    println!("{}; {} rounds", ours.describe(), cx.rounds);
    if cx.quick {
        return Ok(());
    }
    table.write_json(json)
}

/// Returns the time from the first start to the last end.
fn on_threads(cpus: &[usize], seed: u64, op: &Operation<'_>) -> Result<Duration> {
    let barrier = Barrier::new(cpus.len());
    let one = |which: usize| -> Result<(Instant, Instant)> {
        sys::pin_to_cpu(cpus[which])?;
        let mut rng = Rng::new(seed * 1000 + which as u64);
        barrier.wait();
        let start = Instant::now();
        (op.run)(which, op.count, &mut rng)?;
        Ok((start, Instant::now()))
    };
    let times = std::thread::scope(|s| {
        let one = &one;
        let handles: Vec<_> = (0..cpus.len()).map(|t| s.spawn(move || one(t))).collect();
        handles
            .into_iter()
            .map(|h| h.join().map_err(|_| anyhow!("a thread panicked"))?)
            .collect::<Result<Vec<_>>>()
    })?;
    let start = times.iter().map(|t| t.0).min();
    let end = times.iter().map(|t| t.1).max();
    match (start, end) {
        (Some(start), Some(end)) => Ok(end - start),
        _ => Err(anyhow!("no thread ran")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_counts_double_up_to_cpu_count() {
        assert_eq!(thread_counts(1), [1]);
        assert_eq!(thread_counts(2), [1, 2]);
        assert_eq!(thread_counts(12), [1, 2, 4, 8, 12]);
        assert_eq!(thread_counts(16), [1, 2, 4, 8, 16]);
    }
}
