//! Rows: fio, unchanged, on files of a live mount under the preload library.
//!
//! A side is one run of fio for a fixed time. Its result is the mean time of an operation, as
//! fio counts them. A run under the library fails unless the library serves nearly all of its
//! data calls.

use std::time::Duration;

use anyhow::Result;

use crate::fio::{Fio, make_files, preload_library};
use crate::fixture::{MIB, Mounted};
use crate::harness::{Context, Group, Huge, Ops, Report, Row, Side, interleave_rounds};
use crate::reproductions::sites::{EXT4, TMPFS};

const ROWS: &[Row] = &[
    row(
        "preload-mmap-huge",
        "fio randread, mmap, preload, 10 jobs",
        "tmpfs, huge pages",
        0.97,
    ),
    row(
        "preload-mmap-ext4",
        "fio randread, mmap, preload, 10 jobs",
        "ext4 on a RAM disk",
        1.0,
    ),
    row(
        "preload-mmap-tmpfs",
        "fio randread, mmap, preload, 10 jobs",
        "tmpfs (4 KiB pages)",
        1.0,
    ),
    row(
        "preload-read-tmpfs",
        "fio randread, psync, preload",
        "tmpfs (not durable)",
        1.15,
    ),
    row(
        "preload-write-tmpfs",
        "fio randwrite, psync, preload",
        "tmpfs (not durable)",
        1.25,
    ),
    row(
        "preload-read-cached",
        "fio randread, psync, preload",
        "the mount without, cached",
        1.15,
    ),
    row(
        "preload-read-direct",
        "fio randread, psync, preload",
        "the mount without, O_DIRECT",
        4.0,
    ),
];

/// Makes a row that is met at its floor.
pub(super) const fn row(
    id: &'static str,
    work: &'static str,
    against: &'static str,
    floor: f64,
) -> Row {
    Row {
        id,
        work,
        against,
        floor,
        strictly: false,
    }
}

/// The group.
pub const GROUP: Group = Group {
    rows: ROWS,
    measure,
};

/// Files, one for each job.
const JOBS: usize = 10;
/// Bytes of each.
const FILE: u64 = 32 * MIB;
const ROUNDS: u32 = 7;

fn side(fio: Fio, time: Duration, name: &str) -> Side<'static> {
    Side::timed(name, move |_, _| Ok(fio.run(time)?.each()))
}

fn measure(cx: &Context, out: &mut Report) -> Result<()> {
    let library = preload_library(cx)?;
    let mount = Mounted::for_clients(cx, JOBS as u64 * FILE + 128 * MIB)?;
    let ours = mount.daemon.path().to_owned();
    make_files(&ours, JOBS, FILE)?;
    let fio = Fio::new(&ours, FILE)?.with(&["--name=file"]);
    let time = Duration::from_millis(if cx.quick { 200 } else { 1000 });
    let tmpfs = TMPFS.with_files(cx, JOBS, FILE)?;
    let [huge, ext4, small, read, write, cached, direct] = ROWS else {
        unreachable!("there are seven rows");
    };
    if [huge, ext4, small].iter().any(|row| out.wants(row.id)) {
        let mmap = fio.with(&[
            "--rw=randread",
            "--ioengine=mmap",
            &format!("--numjobs={JOBS}"),
        ]);
        let space = JOBS as u64 * FILE + 64 * MIB;
        let huge_tmpfs = cx.scratch.tmpfs("preload-huge", space, Huge::Always)?;
        make_files(huge_tmpfs.path(), JOBS, FILE)?;
        let disk = EXT4.with_files(cx, JOBS, FILE)?;
        let m = interleave_rounds(
            cx,
            ROUNDS,
            Ops::Fixed(1),
            &mut [
                side(mmap.under(&library), time, "preload"),
                side(mmap.on(huge_tmpfs.path()), time, "tmpfs, huge pages"),
                side(mmap.on(&disk.dir), time, "ext4"),
                side(mmap.on(&tmpfs.dir), time, "tmpfs"),
            ],
        )?;
        for (theirs, row) in [(1, huge), (2, ext4), (3, small)] {
            out.record(row, &m, (0, theirs), &[]);
        }
    }
    let null = fio
        .on(&tmpfs.dir)
        .with(&["--rw=randread", "--ioengine=null"])
        .run(time)?;
    let null = format!("fio alone (ioengine=null): {} ns", null.each().as_nanos());
    if [read, cached, direct].iter().any(|row| out.wants(row.id)) {
        let psync = fio.with(&["--rw=randread", "--ioengine=psync"]);
        let m = interleave_rounds(
            cx,
            ROUNDS,
            Ops::Fixed(1),
            &mut [
                side(psync.under(&library), time, "preload"),
                side(psync.on(&tmpfs.dir), time, "tmpfs"),
                side(psync.clone(), time, "the mount, cached"),
                side(psync.with(&["--direct=1"]), time, "the mount, O_DIRECT"),
            ],
        )?;
        for (theirs, row) in [(1, read), (2, cached), (3, direct)] {
            out.record(row, &m, (0, theirs), std::slice::from_ref(&null));
        }
    }
    if out.wants(write.id) {
        let psync = fio.with(&["--rw=randwrite", "--ioengine=psync"]);
        let m = interleave_rounds(
            cx,
            ROUNDS,
            Ops::Fixed(1),
            &mut [
                side(psync.under(&library), time, "preload"),
                side(psync.on(&tmpfs.dir), time, "tmpfs"),
            ],
        )?;
        out.record(write, &m, (0, 1), &[null]);
    }
    Ok(())
}
