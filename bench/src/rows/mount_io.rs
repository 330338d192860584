//! Rows: reading and writing through the mount, against the minimal server
//! and, for hot cached reads, tmpfs.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::fixture::{MIB, Mounted, fill, filled_file, open_rw, random_page};
use crate::harness::daemon::Daemon;
use crate::harness::{Context, Group, Huge, Measured, Ops, Report, Rng, Row, Side, interleave};
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
    let pair = Mounted::pair(cx, 1024 * MIB, FILE)?;
    let [random, hot_row, seq @ ..] = ROWS else {
        unreachable!("there are six rows");
    };
    if out.wants(hot_row.id) {
        hot(cx, out, hot_row, &pair[0])?;
    }
    let io = ServersIo::new(cx, &["ours", "minimal server"], &pair)?;
    let (io, pair) = (&io, (0, 1));
    if out.wants(random.id) {
        let m = interleave(cx, Ops::Calibrated, &mut io.random()?)?;
        out.record(random, &m, pair, &[io.requests()]);
    }
    for (row, mode) in seq.iter().zip(SEQUENTIAL) {
        if out.wants(row.id) {
            let m = interleave(cx, io.whole(), &mut io.sequential(mode)?)?;
            out.record(row, &m, pair, &[io.rates(&m), io.requests()]);
        }
    }
    Ok(())
}

/// Servers with one test file each.
pub(super) struct ServersIo<'a> {
    scale: u64,
    names: &'a [&'a str],
    daemons: Vec<&'a Daemon>,
    paths: Vec<PathBuf>,
    /// Requests of the last work.
    counts: Vec<Requests>,
}

impl<'a> ServersIo<'a> {
    /// Makes the files.
    ///
    /// # Errors
    /// File system errors.
    pub fn new(cx: &Context, names: &'a [&'a str], all: &'a [Mounted]) -> Result<ServersIo<'a>> {
        let daemons: Vec<_> = all.iter().map(|m| &m.daemon).collect();
        let paths: Vec<_> = daemons.iter().map(|d| d.join(DATA)).collect();
        for p in &paths {
            let f = open_rw(p, true)?;
            fill(&f, 0, FILE)?;
            read_through(&f, FILE)?;
        }
        Ok(ServersIo {
            scale: cx.scaled(FILE / MIB),
            names,
            counts: all.iter().map(|_| Requests::default()).collect(),
            daemons,
            paths,
        })
    }

    fn open(&self, direct: bool) -> Result<Vec<File>> {
        self.counts.iter().for_each(Requests::reset);
        self.paths.iter().map(|p| open_rw(p, direct)).collect()
    }

    /// Reads 4 KiB at random pages with O_DIRECT.
    ///
    /// # Errors
    /// If a file cannot be opened.
    pub fn random(&self) -> Result<Vec<Side<'_>>> {
        let sides = self.open(true)?.into_iter().enumerate();
        Ok(sides
            .map(|(at, file)| {
                Side::timed(self.names[at], move |seed, ops| {
                    let (mut rng, mut b) = (Rng::new(seed), Aligned::filled(PAGE, 0)?);
                    self.counts[at].around(self.daemons[at], ops, || {
                        let start = Instant::now();
                        for _ in 0..ops {
                            let page = random_page(&mut rng, FILE / PAGE as u64);
                            file.read_exact_at(b.bytes_mut(), page)?;
                        }
                        Ok(start.elapsed())
                    })
                })
            })
            .collect())
    }

    /// Reads or writes the file from end to end, a MiB at a time.
    ///
    /// # Errors
    /// If a file cannot be opened.
    pub fn sequential(&self, mode: Sequential) -> Result<Vec<Side<'_>>> {
        let sides = self.open(mode.direct)?.into_iter().enumerate();
        Ok(sides
            .map(|(at, file)| {
                Side::timed(self.names[at], move |_, ops| {
                    if mode.drop {
                        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
                    }
                    let mut b = Aligned::filled(MIB as usize, 0xa5)?;
                    self.counts[at].around(self.daemons[at], ops, || -> Result<Duration> {
                        let start = Instant::now();
                        for i in 0..ops {
                            let offset = i * MIB % FILE;
                            if mode.write {
                                file.write_all_at(b.bytes(), offset)?;
                            } else {
                                file.read_exact_at(b.bytes_mut(), offset)?;
                            }
                        }
                        Ok(start.elapsed())
                    })
                })
            })
            .collect())
    }

    /// Returns the operations in a round of [`sequential`](Self::sequential).
    pub fn whole(&self) -> Ops {
        Ops::Fixed(self.scale)
    }

    /// Returns the requests, for a note.
    pub fn requests(&self) -> String {
        let each = |(name, count): (&&str, &Requests)| format!("{name} {:.2}", count.each());
        let all: Vec<_> = self.names.iter().zip(&self.counts).map(each).collect();
        format!("requests for each: {}", all.join(", "))
    }

    /// Returns the rates of work done a MiB at a time, for a note.
    pub fn rates(&self, m: &Measured) -> String {
        let rate = |at: usize| MIB as f64 / m.median_ns(at) * 1e9 / 1e6;
        let each = |(at, name): (usize, &&str)| format!("{name} {:.0} MB/s", rate(at));
        let all: Vec<_> = self.names.iter().enumerate().map(each).collect();
        all.join(", ")
    }
}

fn read_through(file: &File, len: u64) -> Result<()> {
    let mut b = Aligned::filled(MIB as usize, 0)?;
    for at in (0..len).step_by(MIB as usize) {
        file.read_exact_at(b.bytes_mut(), at)?;
    }
    Ok(())
}

/// Counts a server's requests during operations.
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

    fn reset(&self) {
        self.requests.set(0);
        self.ops.set(0);
    }

    fn each(&self) -> f64 {
        self.requests.get() as f64 / self.ops.get().max(1) as f64
    }
}

fn hot(cx: &Context, out: &mut Report, row: &Row, ours: &Mounted) -> Result<()> {
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
    out.record(row, &m, (0, 1), &[note]);
    Ok(())
}

/// A kind of sequential access.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sequential {
    write: bool,
    /// Bypass the page cache.
    direct: bool,
    /// Drop the file from the page cache before each round.
    drop: bool,
}

/// In the order of the rows.
pub(super) const SEQUENTIAL: [Sequential; 4] = {
    let mode = Sequential {
        write: false,
        direct: true,
        drop: false,
    };
    [
        mode,
        Sequential {
            write: true,
            ..mode
        },
        Sequential {
            direct: false,
            drop: true,
            ..mode
        },
        Sequential {
            write: true,
            direct: false,
            ..mode
        },
    ]
};
