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
    let pair = Mounted::pair(cx, 1024 * MIB, FILE)?;
    let [random, hot_row, seq @ ..] = ROWS else {
        unreachable!("there are six rows");
    };
    if out.wants(hot_row.id) {
        hot(cx, out, hot_row, &pair[0])?;
    }
    compare(cx, out, random, seq, &pair, "minimal server")
}

/// Two servers with a file each: `random` reads of it, and then from end to end in
/// the ways of [`WAYS`], each a row of `seq`.
pub(super) fn compare(
    cx: &Context,
    out: &mut Report,
    random_row: &Row,
    seq: &[Row],
    [ours, theirs]: &[Mounted; 2],
    name: &str,
) -> Result<()> {
    let paths = [ours.daemon.join(DATA), theirs.daemon.join(DATA)];
    for p in &paths {
        let f = open_rw(p, true)?;
        fill(&f, 0, FILE)?;
        read_through(&f, FILE)?;
    }
    let pair = Pair {
        name,
        daemons: [&ours.daemon, &theirs.daemon],
    };
    let open = |direct| -> Result<[File; 2]> {
        Ok([open_rw(&paths[0], direct)?, open_rw(&paths[1], direct)?])
    };
    if out.wants(random_row.id) {
        random(cx, out, random_row, &open(true)?, pair)?;
    }
    for (row, way) in seq.iter().zip(WAYS) {
        if out.wants(row.id) {
            sequential(cx, out, row, &open(way.direct)?, pair, way)?;
        }
    }
    Ok(())
}

/// Two servers; the name of the second.
#[derive(Debug, Clone, Copy)]
struct Pair<'a> {
    name: &'a str,
    daemons: [&'a Daemon; 2],
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

fn requests_note(counts: &[Requests; 2], name: &str) -> String {
    format!(
        "requests for each: ours {:.2}, {name} {:.2}",
        counts[0].each(),
        counts[1].each()
    )
}

fn random(
    cx: &Context,
    out: &mut Report,
    row: &Row,
    files: &[File; 2],
    pair: Pair<'_>,
) -> Result<()> {
    let counts: [Requests; 2] = Default::default();
    let buffer = RefCell::new(Aligned::filled(PAGE, 0)?);
    let side = |at: usize, name: &str| {
        let (counts, buffer) = (&counts, &buffer);
        Side::timed(name, move |seed, ops| {
            counts[at].around(pair.daemons[at], ops, || {
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
            side(1, pair.name),
        ],
    )?;
    out.record(row, &m, (0, 1), &[requests_note(&counts, pair.name)]);
    Ok(())
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

/// How a file is gone through.
#[derive(Debug, Clone, Copy)]
struct Way {
    write: bool,
    /// Past the page cache.
    direct: bool,
    /// The page cache forgets the file before each round.
    drop: bool,
}

const WAYS: [Way; 4] = {
    let way = Way {
        write: false,
        direct: true,
        drop: false,
    };
    [
        way,
        Way { write: true, ..way },
        Way {
            direct: false,
            drop: true,
            ..way
        },
        Way {
            write: true,
            direct: false,
            ..way
        },
    ]
};

fn sequential(
    cx: &Context,
    out: &mut Report,
    row: &Row,
    files: &[File; 2],
    pair: Pair<'_>,
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
            counts[at].around(pair.daemons[at], ops, || -> Result<Duration> {
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
        &mut [side(0, "through the mount"), side(1, pair.name)],
    )?;
    let rate = |at: usize| MIB as f64 / m.median_ns(at) * 1e9 / 1e6;
    let rates = format!(
        "ours {:.0} MB/s, {} {:.0} MB/s",
        rate(0),
        pair.name,
        rate(1)
    );
    let requests = requests_note(&counts, pair.name);
    out.record(row, &m, (0, 1), &[rates, requests]);
    Ok(())
}
