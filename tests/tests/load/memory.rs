//! Anonymous memory of a process over the time of a test.

use std::fmt;
use std::time::{Duration, Instant};

use rustix::process::Pid;

/// Anonymous memory of a process, in bytes. A region is shared memory and does not count.
fn anonymous(pid: Pid) -> u64 {
    let path = format!("/proc/{}/status", pid.as_raw_nonzero());
    let status = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let line = status.lines().find(|l| l.starts_with("RssAnon:"));
    let kib: Option<u64> = line.and_then(|l| l.split_whitespace().nth(1)?.parse().ok());
    kib.unwrap_or_else(|| panic!("{path}: no RssAnon")) << 10
}

/// Readings, in order of time.
#[derive(Debug)]
pub struct Readings {
    pid: Pid,
    started: Instant,
    all: Vec<(Duration, u64)>,
}

impl Readings {
    pub fn of(pid: Pid) -> Readings {
        let mut readings = Readings {
            pid,
            started: Instant::now(),
            all: Vec::new(),
        };
        readings.take();
        readings
    }

    pub fn take(&mut self) {
        self.all.push((self.started.elapsed(), anonymous(self.pid)));
    }

    pub fn most(&self) -> u64 {
        self.all.iter().map(|r| r.1).max().unwrap_or(0)
    }

    /// The maximum of a quarter of the time: 0 to 3.
    pub fn most_of_quarter(&self, quarter: usize) -> u64 {
        let of = |i: usize| self.all.len() * i / 4;
        let part = &self.all[of(quarter)..of(quarter + 1)];
        part.iter().map(|r| r.1).max().unwrap_or(0)
    }
}

/// The first reading, the maximum of each quarter, the last reading; KiB.
impl fmt::Display for Readings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kib = |bytes: u64| bytes >> 10;
        let (first, last) = (self.all[0], self.all[self.all.len() - 1]);
        write!(f, "{} KiB at first, at most", kib(first.1))?;
        for quarter in 0..4 {
            write!(f, " {}", kib(self.most_of_quarter(quarter)))?;
        }
        write!(
            f,
            " KiB in each quarter of {:.0} s, {} KiB at the end",
            last.0.as_secs_f64(),
            kib(last.1)
        )
    }
}
