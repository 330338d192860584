//! Rows: reading and writing through the mount, against the minimal server
//! and, for hot cached reads, tmpfs.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::fixture::{MIB, Mounted, fill, filled_file, open_rw, random_page};
use crate::harness::daemon::Daemon;
use crate::harness::{Context, Group, Huge, Ops, Report, Rng, Row, Side, interleave};
use crate::minimal::DATA;
use crate::sys::{Aligned, PAGE};

const ROWS: &[Row] = &[
    Row {
        id: "mount-read-4k",
        work: "mount, O_DIRECT 4 KiB random read",
        against: "minimal fuser server",
        floor: 0.9,
        strictly: false,
    },
    Row {
        id: "mount-hot-4k",
        work: "mount, cached hot 4 KiB read",
        against: "pread on tmpfs",
        floor: 0.85,
        strictly: false,
    },
    Row {
        id: "mount-seq-read",
        work: "mount, 1 MiB sequential read, O_DIRECT",
        against: "minimal fuser server",
        floor: 0.9,
        strictly: false,
    },
    Row {
        id: "mount-seq-write",
        work: "mount, 1 MiB sequential write, O_DIRECT",
        against: "minimal fuser server",
        floor: 0.9,
        strictly: false,
    },
    Row {
        id: "mount-seq-read-buffered",
        work: "mount, 1 MiB sequential read, cache dropped",
        against: "minimal fuser server",
        floor: 0.9,
        strictly: false,
    },
    Row {
        id: "mount-seq-write-buffered",
        work: "mount, 1 MiB sequential write, buffered",
        against: "minimal fuser server",
        floor: 0.9,
        strictly: false,
    },
];

/// The group.
pub const GROUP: Group = Group {
    rows: ROWS,
    measure,
};

const FILE: u64 = 512 * MIB;
const HOT: u64 = 16 * MIB;

fn measure(cx: &Context, out: &mut Report) -> Result<()> {
    let [ours, theirs] = Mounted::pair(cx, 1024 * MIB, FILE)?;
    let paths = [ours.daemon.join(DATA), theirs.daemon.join(DATA)];
    let daemons = [&ours.daemon, &theirs.daemon];
    for p in &paths {
        let f = open_rw(p, true)?;
        fill(&f, 0, FILE)?;
        read_through(&f, FILE)?;
    }
    let direct = [open_rw(&paths[0], true)?, open_rw(&paths[1], true)?];
    if out.wants(ROWS[0].id) {
        random(cx, out, &direct, daemons)?;
    }
    if out.wants(ROWS[1].id) {
        hot(cx, out, &ours)?;
    }
    if out.wants(ROWS[2].id) {
        sequential(
            cx,
            out,
            &ROWS[2],
            &direct,
            daemons,
            Way {
                write: false,
                drop: false,
            },
        )?;
    }
    if out.wants(ROWS[3].id) {
        sequential(
            cx,
            out,
            &ROWS[3],
            &direct,
            daemons,
            Way {
                write: true,
                drop: false,
            },
        )?;
    }
    drop(direct);
    let buffered = [open_rw(&paths[0], false)?, open_rw(&paths[1], false)?];
    if out.wants(ROWS[4].id) {
        sequential(
            cx,
            out,
            &ROWS[4],
            &buffered,
            daemons,
            Way {
                write: false,
                drop: true,
            },
        )?;
    }
    if out.wants(ROWS[5].id) {
        sequential(
            cx,
            out,
            &ROWS[5],
            &buffered,
            daemons,
            Way {
                write: true,
                drop: false,
            },
        )?;
    }
    Ok(())
}

fn read_through(file: &File, len: u64) -> Result<()> {
    let mut b = Aligned::filled(MIB as usize, 0)?;
    for at in (0..len).step_by(MIB as usize) {
        file.read_exact_at(b.bytes_mut(), at)?;
    }
    Ok(())
}

/// Counts the requests that a server has had while operations ran.
#[derive(Debug, Default)]
struct Requests {
    requests: Cell<u64>,
    ops: Cell<u64>,
}

impl Requests {
    fn around<T>(&self, daemon: &Daemon, ops: u64, f: impl FnOnce() -> Result<T>) -> Result<T> {
        let before = daemon.reads()?;
        let r = f()?;
        self.requests
            .set(self.requests.get() + daemon.reads()? - before);
        self.ops.set(self.ops.get() + ops);
        Ok(r)
    }

    fn each(&self) -> f64 {
        self.requests.get() as f64 / self.ops.get().max(1) as f64
    }
}

fn requests_note(counts: &[Requests; 2]) -> String {
    format!(
        "requests for each: ours {:.2}, minimal server {:.2}",
        counts[0].each(),
        counts[1].each()
    )
}

fn random(cx: &Context, out: &mut Report, files: &[File; 2], daemons: [&Daemon; 2]) -> Result<()> {
    let counts: [Requests; 2] = Default::default();
    let buffer = RefCell::new(Aligned::filled(PAGE, 0)?);
    let side = |at: usize, name: &str| {
        let (counts, buffer) = (&counts, &buffer);
        Side::timed(name, move |seed, ops| {
            counts[at].around(daemons[at], ops, || {
                let (mut rng, mut b) = (Rng::new(seed), buffer.borrow_mut());
                let start = Instant::now();
                for _ in 0..ops {
                    files[at]
                        .read_exact_at(b.bytes_mut(), random_page(&mut rng, FILE / PAGE as u64))?;
                }
                Ok(start.elapsed())
            })
        })
    };
    let m = interleave(
        cx,
        Ops::Calibrated,
        &mut [
            side(0, "O_DIRECT read through the mount"),
            side(1, "the same, minimal server"),
        ],
    )?;
    out.record(&ROWS[0], &m, (0, 1), &[requests_note(&counts)]);
    Ok(())
}

fn hot(cx: &Context, out: &mut Report, ours: &Mounted) -> Result<()> {
    let tmpfs = cx.scratch.tmpfs("hot", 2 * HOT, Huge::Never)?;
    let files = [
        filled_file(&ours.daemon.join("hot"), HOT)?,
        filled_file(&tmpfs.join("hot"), HOT)?,
    ];
    let counts = Requests::default();
    let buffer = RefCell::new(Aligned::filled(PAGE, 0)?);
    for f in &files {
        read_through(f, HOT)?;
    }
    let side = |at: usize, name: &str| {
        let (counts, buffer, files) = (&counts, &buffer, &files);
        Side::timed(name, move |seed, ops| {
            let work = || {
                let (mut rng, mut b) = (Rng::new(seed), buffer.borrow_mut());
                let start = Instant::now();
                for _ in 0..ops {
                    files[at]
                        .read_exact_at(b.bytes_mut(), random_page(&mut rng, HOT / PAGE as u64))?;
                }
                Ok(start.elapsed())
            };
            if at == 0 {
                counts.around(&ours.daemon, ops, work)
            } else {
                work()
            }
        })
    };
    let m = interleave(
        cx,
        Ops::Calibrated,
        &mut [
            side(0, "cached read through the mount"),
            side(1, "pread on tmpfs"),
        ],
    )?;
    let note = format!(
        "file of {} MiB, requests for each: {:.4}",
        HOT / MIB,
        counts.each()
    );
    out.record(&ROWS[1], &m, (0, 1), &[note]);
    Ok(())
}

/// How a file is gone through.
#[derive(Debug, Clone, Copy)]
struct Way {
    write: bool,
    /// The page cache forgets the file before each round.
    drop: bool,
}

fn sequential(
    cx: &Context,
    out: &mut Report,
    row: &Row,
    files: &[File; 2],
    daemons: [&Daemon; 2],
    way: Way,
) -> Result<()> {
    let counts: [Requests; 2] = Default::default();
    let buffer = RefCell::new(Aligned::filled(MIB as usize, 0xa5)?);
    let whole = cx.scaled(FILE / MIB);
    let side = |at: usize, name: &str| {
        let (counts, buffer) = (&counts, &buffer);
        Side::timed(name, move |_, ops| {
            if way.drop {
                rustix::fs::fadvise(&files[at], 0, None, rustix::fs::Advice::DontNeed)?;
            }
            counts[at].around(daemons[at], ops, || -> Result<Duration> {
                let mut b = buffer.borrow_mut();
                let start = Instant::now();
                for i in 0..ops {
                    let offset = i * MIB % FILE;
                    if way.write {
                        files[at].write_all_at(b.bytes(), offset)?;
                    } else {
                        files[at].read_exact_at(b.bytes_mut(), offset)?;
                    }
                }
                Ok(start.elapsed())
            })
        })
    };
    ensure!(whole > 0, "nothing to do");
    let m = interleave(
        cx,
        Ops::Fixed(whole),
        &mut [
            side(0, "through the mount"),
            side(1, "the same, minimal server"),
        ],
    )?;
    let rate = |at: usize| MIB as f64 / m.median_ns(at) * 1e9 / 1e6;
    let rates = format!(
        "ours {:.0} MB/s, minimal server {:.0} MB/s",
        rate(0),
        rate(1)
    );
    out.record(row, &m, (0, 1), &[rates, requests_note(&counts)]);
    Ok(())
}
