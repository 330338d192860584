//! `pramfs-bench requests`: what it costs to count and to time the requests of a mount.
//!
//! The handlers of the server are called here without a kernel, in three ways: without a count
//! (`uncounted`), counted (`metrics=off`), counted and timed (`metrics=on`). Valgrind counts the
//! instructions of each, as for `count`; they are the same in every run of one build. Valgrind has
//! no clock that is read without a system call, so the time of a request is measured as well, in
//! turns, and the smallest of them stands in the table.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pramfs::inode::Fs;
use pramfs_fuse::adapter::{Adapter, Answer, CacheMode, Counts, Notifier, OpenedBy, Reply};
use pramfs_fuse_protocol::wire::{GetattrIn, InHeader, MknodIn, ReadIn, WriteIn};
use pramfs_fuse_protocol::{Data, Extensions, Operation, numbers};

use crate::count;
use crate::harness::Table;

/// Requests of the shorter run.
const BASE_COUNT: u64 = 1024;
/// How often each time is measured, and requests of each measurement.
const ROUNDS: usize = 21;
const TIMED: u64 = 20_000;
const FILE: u64 = 4 << 20;
const PAGE: u64 = 4096;

const WAYS: [&str; 3] = ["uncounted", "metrics=off", "metrics=on"];

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Repeat the request with this number in the way with that number, count nothing, and print
    /// the nanoseconds taken
    #[arg(long, hide = true, num_args = 3, value_names = ["NUMBER", "WAY", "TIMES"])]
    only: Vec<u64>,
}

/// A server without a kernel.
struct Server {
    adapter: Adapter,
    counted: bool,
    file: u64,
    page: Vec<u8>,
}

/// Keeps the node of an answer, and whether it was a refusal.
#[derive(Default)]
struct Heard(RefCell<Option<Result<u64, i32>>>);

impl Reply for &Heard {
    fn send(self, answer: Answer<'_>) {
        let heard = match answer {
            Answer::Refused(errno) => Err(errno.number()),
            Answer::Entry(entry) => Ok(entry.nodeid),
            Answer::Data(bytes) => {
                // As a transport does, look at what is sent.
                std::hint::black_box(bytes);
                Ok(0)
            }
            _ => Ok(0),
        };
        self.0.replace(Some(heard));
    }

    fn dismiss(self) {}
}

impl Server {
    fn new(way: usize) -> Result<Server> {
        let fs: Arc<Fs> = Arc::new(count::engine(false)?);
        let counts = Arc::new(Counts::new(way == 2, None));
        let adapter = Adapter::new(fs, CacheMode::Auto, Notifier::of_guest())
            .with_counts(counts)
            .with_files_opened_by(OpenedBy::Kernel);
        let mut server = Server {
            adapter,
            counted: way > 0,
            file: 0,
            page: vec![0xa5; PAGE as usize],
        };
        server.file = server
            .make(b"file")
            .map_err(|e| anyhow::anyhow!("errno {e}"))?;
        for at in (0..FILE).step_by(PAGE as usize) {
            server.write(at)?;
        }
        Ok(server)
    }

    fn ask(&self, node: u64, operation: Operation<'_>) -> Result<u64, i32> {
        let header = InHeader {
            nodeid: node,
            ..InHeader::default()
        };
        let heard = Heard::default();
        if self.counted {
            self.adapter.serve_request(&header, operation, &heard);
        } else {
            self.adapter.serve_uncounted(&header, operation, &heard);
        }
        heard.0.into_inner().unwrap_or(Err(0))
    }

    fn make(&self, name: &[u8]) -> Result<u64, i32> {
        let arg = MknodIn {
            mode: 0o100_644,
            ..MknodIn::default()
        };
        let mknod = Operation::Mknod {
            arg,
            name,
            extensions: Extensions::default(),
        };
        self.ask(numbers::ROOT_ID, mknod)
    }

    fn write(&self, offset: u64) -> Result<()> {
        let arg = WriteIn {
            offset,
            size: PAGE as u32,
            ..WriteIn::default()
        };
        let data = Data::from(&self.page[..]);
        let written = self.ask(self.file, Operation::Write { arg, data });
        ensure!(written.is_ok(), "write: {written:?}");
        Ok(())
    }
}

type Work = fn(&Server, u64) -> Result<()>;

const REQUESTS: &[(&str, Work)] = &[
    ("LOOKUP, no such name", |server, _| {
        let found = server.ask(numbers::ROOT_ID, Operation::Lookup { name: b"missing" });
        ensure!(
            found.is_ok_and(|node| node == 0) || found == Err(2),
            "{found:?}"
        );
        Ok(())
    }),
    ("GETATTR", |server, _| {
        let got = server.ask(server.file, Operation::Getattr(GetattrIn::default()));
        ensure!(got.is_ok(), "{got:?}");
        Ok(())
    }),
    ("READ 4 KiB", |server, n| {
        let arg = ReadIn {
            offset: n % (FILE / PAGE) * PAGE,
            size: PAGE as u32,
            ..ReadIn::default()
        };
        let got = server.ask(server.file, Operation::Read(arg));
        ensure!(got.is_ok(), "{got:?}");
        Ok(())
    }),
    ("WRITE 4 KiB", |server, n| {
        server.write(n % (FILE / PAGE) * PAGE)
    }),
    ("MKNOD, FORGET and UNLINK", |server, _| {
        let made = server.make(b"made");
        let Ok(node) = made else {
            anyhow::bail!("mknod: {made:?}");
        };
        let _no_answer = server.ask(node, Operation::Forget { nlookup: 1 });
        let gone = server.ask(numbers::ROOT_ID, Operation::Unlink { name: b"made" });
        ensure!(gone.is_ok(), "unlink: {gone:?}");
        Ok(())
    }),
];

fn repeat(server: &Server, number: usize, times: u64) -> Result<Duration> {
    let (_, work) = REQUESTS[number];
    let start = Instant::now();
    for n in 0..times {
        work(server, n)?;
    }
    Ok(start.elapsed())
}

/// Counts and times all requests, or repeats one of them.
///
/// # Errors
/// If valgrind is missing or fails; a request that is refused.
pub fn run(args: &Args, json: &Path) -> Result<()> {
    if let [number, way, times] = args.only[..] {
        ensure!(
            (number as usize) < REQUESTS.len(),
            "there is no request with this number"
        );
        let took = repeat(&Server::new(way as usize)?, number as usize, times)?;
        println!("{}", took.as_nanos());
        return Ok(());
    }
    let mut table = Table::new(
        26,
        &[
            "request", WAYS[0], WAYS[1], WAYS[2], "off +", "on +", "ns", "off ns", "on ns",
        ],
    );
    let program = std::env::current_exe().context("this program")?;
    let servers = [Server::new(0)?, Server::new(1)?, Server::new(2)?];
    for (number, (name, _)) in REQUESTS.iter().enumerate() {
        let mut instructions = [0.0; WAYS.len()];
        for (way, each) in instructions.iter_mut().enumerate() {
            let counted = |times: u64| {
                let only = [number.to_string(), way.to_string(), times.to_string()];
                count::instructions_of(
                    &program,
                    &["requests", "--only", &only[0], &only[1], &only[2]],
                )
            };
            let (some, more) = (counted(BASE_COUNT)?, counted(3 * BASE_COUNT)?);
            *each = more.saturating_sub(some) as f64 / (2 * BASE_COUNT) as f64;
        }
        let mut least = [f64::INFINITY; WAYS.len()];
        for _ in 0..ROUNDS {
            for (server, least) in servers.iter().zip(&mut least) {
                let took = repeat(server, number, TIMED)?.as_nanos() as f64 / TIMED as f64;
                *least = least.min(took);
            }
        }
        let mut cells = vec![(*name).to_owned()];
        cells.extend(instructions.map(|each| format!("{each:.0}")));
        cells.extend([1, 2].map(|way| format!("{:.0}", instructions[way] - instructions[0])));
        cells.extend(least.map(|each| format!("{each:.0}")));
        table.row(cells);
    }
    table.write_json(json)
}
