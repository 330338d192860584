//! Rows: files of a live mount, read directly by a lease. The client is this process, the
//! server another one.
//!
//! All memory lies on tmpfs with huge pages, except that of the competitor of the last row.

use std::cell::RefCell;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pramfs::Access;
use pramfs::File as DirectFile;
use pramfs::pmem::RegionOptions;
use pramfs_client::{File as Leased, MappedFile as View, OpenOptions};
use pramfs_medium::pmem::{LINE, RegionAccess as _};

use crate::fixture::{Direct, MIB, Mounted, fill, filled_file, open_rw, random_page};
use crate::harness::machine::smaps_sum;
use crate::harness::report::duration;
use crate::harness::{Context, Group, Huge, Ops, Report, Rng, Row, Side, interleave};
use crate::sys::{Aligned, Mapping, PAGE, Words};

const ROWS: &[Row] = &[
    Row {
        id: "lease-read-4k",
        work: "leased read_at 4 KiB random, 2 MiB leaves",
        against: "read_at in the server's process",
        floor: 0.95,
        strictly: false,
    },
    Row {
        id: "lease-write-4k",
        work: "leased write_at 4 KiB random, 2 MiB leaves",
        against: "write_at in the server's process",
        floor: 0.95,
        strictly: false,
    },
    Row {
        id: "lease-load",
        work: "8-byte load, random page of 512 MiB View, huge",
        against: "plain mapping of tmpfs, huge",
        floor: 0.97,
        strictly: false,
    },
    Row {
        id: "lease-open",
        work: "lease: open, map 64 MiB, load each page, close",
        against: "the same on tmpfs (4 KiB pages)",
        floor: 2.0,
        strictly: false,
    },
    Row {
        id: "lease-append-4k",
        work: "leased append 4 KiB, durable, to new files",
        against: "append in the server's process",
        floor: 1.3,
        strictly: false,
    },
    Row {
        id: "lease-append-bare",
        work: "leased append 4 KiB, durable, to new files",
        against: "two fences and the copy alone",
        floor: 0.8,
        strictly: false,
    },
];

/// The group.
pub const GROUP: Group = Group {
    rows: ROWS,
    measure,
};

/// Bytes of the file that is read at random.
const FILE: u64 = 512 * MIB;
/// Bytes of the file that is opened again and again.
const SMALL: u64 = 64 * MIB;
const LEAF: u64 = 2 * MIB;

fn measure(cx: &Context, out: &mut Report) -> Result<()> {
    let [
        read_row,
        write_row,
        load_row,
        open_row,
        append_row,
        bare_row,
    ] = ROWS
    else {
        unreachable!("there are six rows");
    };
    if [append_row, bare_row].iter().any(|row| out.wants(row.id)) {
        append(cx, out, append_row, bare_row)?;
    }
    let others = [read_row, write_row, load_row, open_row];
    if !others.iter().any(|row| out.wants(row.id)) {
        return Ok(());
    }
    let region = FILE + 256 * MIB;
    let (mount, in_process, theirs) = Mounted::beside_direct(cx, region, FILE)?;
    if [read_row, write_row, load_row]
        .iter()
        .any(|row| out.wants(row.id))
    {
        fill(&open_rw(&mount.daemon.join("large"), true)?, 0, FILE)?;
        let files = Files {
            leased: OpenOptions::new()
                .write(true)
                .open(mount.daemon.join("large"))?,
            direct: in_process.create("large")?,
            plain: Mapping::of_file(&theirs, FILE as usize, false, true)?,
        };
        files.prepare(&in_process, &theirs)?;
        files.huge_pages()?;
        if out.wants(read_row.id) {
            files.read(cx, out, read_row)?;
        }
        if out.wants(write_row.id) {
            files.write(cx, out, write_row)?;
        }
        if out.wants(load_row.id) {
            files.load(cx, out, load_row)?;
        }
    }
    if out.wants(open_row.id) {
        open(cx, out, open_row, &mount)?;
    }
    Ok(())
}

/// The same bytes three times.
struct Files {
    /// Through the lease.
    leased: Leased,
    /// In another region, which this process serves.
    direct: DirectFile,
    /// A file without a file system of ours.
    plain: Mapping,
}

impl Files {
    /// Fills what is not filled yet, and fills all page tables.
    fn prepare(&self, region: &Direct, theirs: &File) -> Result<()> {
        fill(theirs, 0, FILE)?;
        let mut buffer = Aligned::filled(LEAF as usize, 0x5a)?;
        for at in (0..FILE).step_by(LEAF as usize) {
            self.direct.write_at(buffer.bytes(), at)?;
        }
        region.prefault()?;
        for at in (0..FILE).step_by(LEAF as usize) {
            self.leased.read_exact_at(buffer.bytes_mut(), at)?;
            ensure!(buffer.bytes().iter().all(|b| *b == 0x5a), "other bytes");
        }
        let extents = self.direct.extents(0..FILE)?;
        ensure!(
            extents.iter().all(|e| e.len % LEAF == 0),
            "the file does not consist of 2 MiB leaves: {extents:?}"
        );
        Ok(())
    }

    /// Fails unless all lie in huge pages, which the kernel gives only while it finds free
    /// memory in large pieces.
    fn huge_pages(&self) -> Result<String> {
        let view = self.leased.map(0..FILE, Access::Read)?;
        let mapped = self.direct.map(0..FILE, Access::Read)?;
        let all = [
            ("ours", Loads::View(&view)),
            ("map()", Loads::Words(Words::of_map(&mapped))),
            ("theirs", Loads::Words(self.plain.words())),
        ];
        let mut shown = format!("in huge pages, of {} MiB:", FILE / MIB);
        let mut least = FILE;
        for (name, loads) in all {
            loads.touch()?;
            let huge = loads.in_huge_pages();
            shown += &format!(" {name} {} MiB", huge / MIB);
            least = least.min(huge);
        }
        ensure!(
            least >= FILE / 10 * 9,
            "{shown}; free memory in large pieces with \
             `sync; echo 3 > /proc/sys/vm/drop_caches; echo 1 > /proc/sys/vm/compact_memory`"
        );
        Ok(shown)
    }

    fn read(&self, cx: &Context, out: &mut Report, row: &Row) -> Result<()> {
        let pages = FILE / PAGE as u64;
        // One buffer for all, so that all have the same address.
        let buffer = RefCell::new(Aligned::filled(PAGE, 0)?);
        let m = interleave(
            cx,
            Ops::Calibrated,
            &mut [
                Side::whole("leased read_at", |seed, ops| {
                    let (mut rng, mut b) = (Rng::new(seed), buffer.borrow_mut());
                    for _ in 0..ops {
                        let page = random_page(&mut rng, pages);
                        let n = self.leased.read_at(b.bytes_mut(), page)?;
                        ensure!(n == PAGE, "short read");
                        std::hint::black_box(b.bytes()[0]);
                    }
                    Ok(())
                }),
                Side::whole("read_at in the server's process", |seed, ops| {
                    let (mut rng, mut b) = (Rng::new(seed), buffer.borrow_mut());
                    for _ in 0..ops {
                        let page = random_page(&mut rng, pages);
                        let n = self.direct.read_at(b.bytes_mut(), page)?;
                        ensure!(n == PAGE, "short read");
                        std::hint::black_box(b.bytes()[0]);
                    }
                    Ok(())
                }),
                Side::whole("copy from a plain mapping", |seed, ops| {
                    let (mut rng, mut b) = (Rng::new(seed), buffer.borrow_mut());
                    for _ in 0..ops {
                        let page = random_page(&mut rng, pages);
                        self.plain.copy_out(page as usize, b.bytes_mut());
                        std::hint::black_box(b.bytes()[0]);
                    }
                    Ok(())
                }),
            ],
        )?;
        let plain = format!(
            "a copy from a plain mapping: {}; ours {:.2} times as fast",
            duration(m.median_ns(2)),
            m.median_ns(2) / m.median_ns(0)
        );
        out.record(row, &m, (0, 1), &[plain]);
        Ok(())
    }

    fn write(&self, cx: &Context, out: &mut Report, row: &Row) -> Result<()> {
        let pages = FILE / PAGE as u64;
        let buffer = Aligned::filled(PAGE, 0x5a)?;
        let from = buffer.bytes();
        let m = interleave(
            cx,
            Ops::Calibrated,
            &mut [
                Side::whole("leased write_at", |seed, ops| {
                    let mut rng = Rng::new(seed);
                    for _ in 0..ops {
                        let n = self.leased.write_at(from, random_page(&mut rng, pages))?;
                        ensure!(n == PAGE, "short write");
                    }
                    Ok(())
                }),
                Side::whole("write_at in the server's process", |seed, ops| {
                    let mut rng = Rng::new(seed);
                    for _ in 0..ops {
                        let n = self.direct.write_at(from, random_page(&mut rng, pages))?;
                        ensure!(n == PAGE, "short write");
                    }
                    Ok(())
                }),
            ],
        )?;
        out.record(row, &m, (0, 1), &[]);
        Ok(())
    }

    fn load(&self, cx: &Context, out: &mut Report, row: &Row) -> Result<()> {
        let view = self.leased.map(0..FILE, Access::Read)?;
        let mapped = self.direct.map(0..FILE, Access::Read)?;
        let (view, mapped, plain) = (
            Loads::View(&view),
            Loads::Words(Words::of_map(&mapped)),
            Loads::Words(self.plain.words()),
        );
        for loads in [view, mapped, plain] {
            loads.touch()?;
        }
        let m = interleave(
            cx,
            Ops::Calibrated,
            &mut [
                side("load from a View", view, true),
                side("load from a plain mapping", plain, true),
                side("load from map() in the server's process", mapped, true),
                side("loads from a View, overlapping", view, false),
                side("loads from a plain mapping, overlapping", plain, false),
            ],
        )?;
        let own = format!(
            "map() in the server's process: {}",
            duration(m.median_ns(2))
        );
        let overlapping = format!(
            "independent loads, which may overlap: ours {}, theirs {}, {:.2} times as fast",
            duration(m.median_ns(3)),
            duration(m.median_ns(4)),
            m.median_ns(4) / m.median_ns(3)
        );
        out.record(row, &m, (0, 1), &[self.huge_pages()?, own, overlapping]);
        Ok(())
    }
}

/// Memory for loads, and the way that its user loads from it.
#[derive(Debug, Clone, Copy)]
enum Loads<'a> {
    View(&'a View),
    Words(Words<'a>),
}

impl Loads<'_> {
    fn len(self) -> u64 {
        match self {
            Loads::View(view) => view.len(),
            Loads::Words(words) => words.len() as u64,
        }
    }

    /// Loads a word of each page.
    fn touch(self) -> Result<()> {
        let mut sum = 0u64;
        for at in (0..self.len()).step_by(PAGE) {
            sum ^= match self {
                Loads::View(view) => view.load::<u64>(at)?,
                Loads::Words(words) => words.load(at as usize),
            };
        }
        std::hint::black_box(sum);
        Ok(())
    }

    fn in_huge_pages(self) -> u64 {
        let range = match self {
            Loads::View(view) => {
                let base = view.as_ptr() as usize;
                base..base + view.len() as usize
            }
            Loads::Words(words) => words.range(),
        };
        smaps_sum(range.clone(), "ShmemPmdMapped") + smaps_sum(range, "FilePmdMapped")
    }
}

/// Loads a random word of a random page. With `wait`, the next address depends on the value
/// of the previous load.
fn side<'a>(name: &str, memory: Loads<'a>, wait: bool) -> Side<'a> {
    Side::whole(name, move |seed, ops| {
        let last = match memory {
            Loads::View(view) => loads(|at| Ok(view.load::<u64>(at)?), seed, ops, wait)?,
            Loads::Words(words) => loads(|at| Ok(words.load(at as usize)), seed, ops, wait)?,
        };
        std::hint::black_box(last);
        Ok(())
    })
}

fn loads(load: impl Fn(u64) -> Result<u64>, seed: u64, ops: u64, wait: bool) -> Result<u64> {
    let mut rng = Rng::new(seed);
    let mut last = 0;
    for _ in 0..ops {
        let r = rng.below(FILE / 8) ^ if wait { last & 1 } else { 0 };
        last = load(r * 8)?;
        if !wait {
            std::hint::black_box(last);
        }
    }
    Ok(last)
}

/// Appends to a new file in each round. The windows are part of the work: their requests, and
/// the blocks that the server allocates. The lease is not.
fn append(cx: &Context, out: &mut Report, of_process: &Row, of_medium: &Row) -> Result<()> {
    let ops = cx.scaled(16 * 1024);
    let bytes = ops * PAGE as u64;
    let bare_size = 64 * MIB;
    let (mount, in_process, _theirs) = Mounted::beside_direct(cx, 4 * bytes + 64 * MIB, bare_size)?;
    let bare = RegionOptions::new().open(&in_process.tmpfs.join("theirs"))?;
    bare.populate(0, bare_size)?;
    let direct = in_process.create("log")?;
    let path = mount.daemon.join("log");
    let buffer = Aligned::filled(PAGE, 0xa5)?;
    let from = buffer.bytes();
    let m = interleave(
        cx,
        Ops::Fixed(ops),
        &mut [
            Side::timed("leased append", |_, ops| {
                drop(File::create_new(&path)?);
                let log = OpenOptions::new().write(true).open(&path)?;
                let start = Instant::now();
                for _ in 0..ops {
                    log.append(from)?;
                }
                let took = start.elapsed();
                ensure!(log.len()? == ops * PAGE as u64, "another size");
                drop(log);
                std::fs::remove_file(&path)?;
                Ok(took)
            }),
            Side::timed("append in the server's process", |_, ops| {
                in_process.prefault()?;
                let start = Instant::now();
                for _ in 0..ops {
                    direct.append(from)?;
                }
                let took = start.elapsed();
                direct.set_len(0)?;
                Ok(took)
            }),
            Side::whole("two fences and the copy", |_, ops| {
                let (w, pages) = (bare.window(), bare_size / PAGE as u64);
                for turn in 0..ops {
                    // The first page has the word.
                    let at = (1 + turn % (pages - 1)) * PAGE as u64;
                    w.fence(w.nt_store(at, from)?);
                    w.store_u64_unflushed(LINE, turn)?;
                    w.fence(w.flush(LINE, 8)?);
                }
                Ok(())
            }),
        ],
    )?;
    let times = format!(
        "leased {}, in process {}, the medium alone {}: {:.2} times its time",
        duration(m.median_ns(0)),
        duration(m.median_ns(1)),
        duration(m.median_ns(2)),
        m.median_ns(0) / m.median_ns(2)
    );
    for (row, theirs) in [(of_process, 1), (of_medium, 2)] {
        if out.wants(row.id) {
            out.record(row, &m, (0, theirs), std::slice::from_ref(&times));
        }
    }
    Ok(())
}

/// A file that is opened, mapped, read and closed in each operation.
fn open(cx: &Context, out: &mut Report, row: &Row, mount: &Mounted) -> Result<()> {
    let ours = mount.daemon.join("small");
    fill(&open_rw(&ours, true)?, 0, SMALL)?;
    let leaves = {
        let file = Leased::open(&ours)?;
        let view = file.map(0..SMALL, Access::Read)?;
        Loads::View(&view).touch()?;
        Loads::View(&view).in_huge_pages()
    };
    ensure!(
        leaves == SMALL,
        "only {} MiB lie in 2 MiB leaves",
        leaves / MIB
    );
    let space = SMALL + 64 * MIB;
    let tmpfs = cx.scratch.tmpfs("lease-theirs", space, Huge::Never)?;
    let theirs = tmpfs.join("small");
    drop(filled_file(&theirs, SMALL)?);
    let huge_tmpfs = cx.scratch.tmpfs("lease-plain", space, Huge::Always)?;
    let huge = huge_tmpfs.join("small");
    drop(filled_file(&huge, SMALL)?);
    let whole = |name, path: &Path, once: fn(&Path) -> Result<()>| {
        let path = path.to_owned();
        Side::whole(name, move |_, ops| (0..ops).try_for_each(|_| once(&path)))
    };
    let m = interleave(
        cx,
        Ops::Calibrated,
        &mut [
            whole("by a lease", &ours, by_lease),
            whole("tmpfs", &theirs, by_mmap),
            whole("tmpfs with huge pages", &huge, by_mmap),
            in_new_process("by a lease, not connected", ours, true),
            in_new_process("tmpfs, in a new process", theirs, false),
        ],
    )?;
    let plain = format!(
        "a plain mapping of tmpfs with huge pages: {}, so a ratio of at most {:.2}",
        duration(m.median_ns(2)),
        m.median_ns(1) / m.median_ns(2)
    );
    let new = format!(
        "the first file of a new process, not connected: ours {}, theirs {}, {:.2} times as fast",
        duration(m.median_ns(3)),
        duration(m.median_ns(4)),
        m.median_ns(4) / m.median_ns(3)
    );
    out.record(row, &m, (0, 1), &[plain, new]);
    Ok(())
}

fn by_lease(path: &Path) -> Result<()> {
    let file = Leased::open(path)?;
    let view = file.map(0..SMALL, Access::Read)?;
    Loads::View(&view).touch()
}

fn by_mmap(path: &Path) -> Result<()> {
    let file = File::open(path)?;
    let plain = Mapping::of_file(&file, SMALL as usize, false, false)?;
    Loads::Words(plain.words()).touch()
}

/// Times what a new process measures itself, by [`map_once`].
fn in_new_process(name: &str, file: PathBuf, lease: bool) -> Side<'_> {
    Side::timed(name, move |_, ops| {
        let mut total = 0;
        for _ in 0..ops {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("map-once").arg(&file);
            if lease {
                command.arg("--lease");
            }
            let done = command.output()?;
            ensure!(
                done.status.success(),
                "{}",
                String::from_utf8_lossy(&done.stderr)
            );
            let ns = String::from_utf8(done.stdout)?;
            total += ns.trim().parse::<u64>().context(ns)?;
        }
        Ok(Duration::from_nanos(total))
    })
}

/// Opens, maps, reads and closes a file once, and prints how many nanoseconds that took.
///
/// # Errors
/// If it cannot be opened or mapped.
pub fn map_once(path: &Path, lease: bool) -> Result<()> {
    let start = Instant::now();
    match lease {
        true => by_lease(path)?,
        false => by_mmap(path)?,
    }
    let took = start.elapsed();
    writeln!(std::io::stdout(), "{}", took.as_nanos())?;
    Ok(())
}
