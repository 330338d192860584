//! The loop of this program: jobs that read random pages of their files, with the time of
//! each read. It can also use pages in place, and the libraries, which fio cannot.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use pramfs::{Access, File as DirectFile, MappedFile};
use pramfs_client::File as Leased;

use crate::fio::Counted;
use crate::fixture::{open_rw, random_page};
use crate::harness::{Context, Rng};
use crate::sys::{Aligned, Mapping, PAGE, Words};

/// How the jobs read a page.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Engine {
    /// Copy it out of a mapping, like fio's mmap engine.
    Copied,
    /// Use it in place: one load from each cache line.
    InPlace,
    /// Copy it by `read_at`.
    ReadAt,
}

/// Reads the page at an offset.
type Op<'a> = Box<dyn FnMut(u64) -> Result<()> + 'a>;

/// Reads a mapped file of the kernel.
pub fn of_kernel(path: &Path, size: u64, engine: Engine) -> Result<Op<'static>> {
    let map = Mapping::of_file(&open_rw(path, false)?, size as usize, false, false)?;
    let mut b = Aligned::filled(PAGE, 0)?;
    Ok(Box::new(move |at| {
        use_page(map.words(), at, engine, &mut b);
        Ok(())
    }))
}

/// Reads a file of a live mount by a lease.
pub fn of_mount(path: &Path, size: u64, engine: Engine) -> Result<Op<'static>> {
    let file = Leased::open(path)?;
    let mut b = Aligned::filled(PAGE, 0)?;
    if engine == Engine::ReadAt {
        return Ok(Box::new(move |at| {
            ensure!(file.read_at(b.bytes_mut(), at)? == PAGE, "short read");
            Ok(())
        }));
    }
    let view = file.map(0..size, Access::Read)?;
    Ok(Box::new(move |at| {
        use_page(Words::of_view(&view), at, engine, &mut b);
        Ok(())
    }))
}

/// Reads a file of a region that this process serves.
pub fn of_library<'a>(file: &'a DirectFile, map: &'a MappedFile, engine: Engine) -> Result<Op<'a>> {
    let mut b = Aligned::filled(PAGE, 0)?;
    Ok(Box::new(move |at| {
        if engine == Engine::ReadAt {
            ensure!(file.read_at(b.bytes_mut(), at)? == PAGE, "short read");
        } else {
            use_page(Words::of_map(map), at, engine, &mut b);
        }
        Ok(())
    }))
}

fn use_page(words: Words<'_>, at: u64, engine: Engine, b: &mut Aligned) {
    let start = at as usize;
    if engine == Engine::InPlace {
        let sum = (0..PAGE)
            .step_by(64)
            .fold(0u64, |s, o| s.wrapping_add(words.load(start + o)));
        std::hint::black_box(sum);
    } else {
        words.lend(start..start + PAGE, |s| b.bytes_mut().copy_from_slice(s));
    }
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
            if seen > 0 && seen as f64 >= q * all as f64 {
                return (1u64 << (class / 16)) as f64 * (1.0 + (class % 16) as f64 / 16.0);
            }
        }
        0.0
    }
}

/// Runs the jobs concurrently for the given time.
pub fn jobs<'a>(
    cx: &Context,
    count: usize,
    size: u64,
    length: Duration,
    make: impl Fn(usize) -> Result<Op<'a>> + Sync,
) -> Result<Counted> {
    cx.check_stop()?;
    let ready = std::sync::Barrier::new(count);
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
        let handles: Vec<_> = (0..count).map(|i| s.spawn(move || job(i))).collect();
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
    Ok(Counted {
        iops: ops as f64 / length.as_secs_f64(),
        mean_ns: busy as f64 / ops.max(1) as f64,
        p99_ns: sum.quantile(0.99),
        served: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_of_histogram_is_within_a_sixteenth() {
        let mut counts = Histogram(vec![0; 64 * 16]);
        (1..=1000).for_each(|n| counts.add(n * 100));
        for (q, ns) in [(0.5, 50_000.0), (0.99, 99_000.0)] {
            let found = counts.quantile(q);
            assert!(found <= ns && found >= ns * 15.0 / 16.0, "{q}: {found}");
        }
        assert_eq!(Histogram(vec![0; 64 * 16]).quantile(0.5), 0.0);
    }

    #[test]
    fn jobs_that_fail_to_open_end_all_jobs() {
        let cx = Context::for_tests(1);
        let got = jobs(&cx, 2, 4 * PAGE as u64, Duration::from_millis(20), |_| {
            Ok(Box::new(|at| {
                ensure!(
                    at.is_multiple_of(PAGE as u64) && at < 4 * PAGE as u64,
                    "{at}"
                );
                Ok(())
            }))
        });
        let got = got.unwrap();
        assert!(got.iops > 0.0 && got.mean_ns > 0.0, "{got:?}");
        let failed = jobs(&cx, 2, 4 * PAGE as u64, Duration::from_secs(3600), |i| {
            ensure!(i == 0, "no file");
            Ok(Box::new(|_| Ok(())))
        });
        assert_eq!(failed.unwrap_err().to_string(), "no file");
    }
}
