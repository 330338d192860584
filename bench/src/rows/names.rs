//! Rows: direct create + unlink, rename, mkdir.
//!
//! The competitor uses the cheapest form: names relative to an open directory, as C
//! strings that were made beforehand. The directory holds 1,000 files.

use std::cell::Cell;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::Result;
use pramfs::RenameFlags;

use crate::fixture::{Direct, MIB, names};
use crate::harness::report::duration;
use crate::harness::{Context, Group, Huge, Ops, Report, Row, Side, interleave};
use crate::raw_medium::{self, RawMedium};
use crate::sys;

const ROWS: &[Row] = &[
    Row {
        id: "create-unlink",
        work: "direct create + unlink, durable",
        against: "open(O_CREAT), close, unlink on tmpfs",
        floor: 2.0,
        strictly: false,
    },
    Row {
        id: "rename",
        work: "direct rename, durable",
        against: "rename on tmpfs",
        floor: 2.0,
        strictly: false,
    },
    Row {
        id: "mkdir",
        work: "direct mkdir, durable",
        against: "mkdir on tmpfs",
        floor: 1.2,
        strictly: false,
    },
];

/// The group.
pub const GROUP: Group = Group {
    rows: ROWS,
    measure,
};

const BATCH: usize = 1000;

fn measure(cx: &Context, out: &mut Report) -> Result<()> {
    let ours = Direct::new(cx, "names", 1024 * MIB, 64 * MIB, Huge::Never)?;
    let raw = RawMedium::new(&ours.tmpfs)?;
    std::fs::create_dir(ours.tmpfs.join("dir"))?;
    let dir = File::open(ours.tmpfs.join("dir"))?;
    let (list, others) = (names(7, BATCH), names(8, BATCH));
    if out.wants(ROWS[0].id) {
        create_unlink(cx, out, (&ours, &raw), &dir, &list)?;
    }
    if out.wants(ROWS[1].id) {
        rename(cx, out, (&ours, &raw), &dir, &list, &others)?;
    }
    if out.wants(ROWS[2].id) {
        mkdir(cx, out, (&ours, &raw), &dir, &list)?;
    }
    Ok(())
}

/// Runs `first` and then `second` over all names, until `ops` are done; returns the
/// two times.
fn in_batches(
    ops: u64,
    list: &[CString],
    mut first: impl FnMut(&CString) -> Result<()>,
    mut second: impl FnMut(&CString) -> Result<()>,
) -> Result<(Duration, Duration)> {
    let (mut one, mut two) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..ops / list.len() as u64 {
        let start = Instant::now();
        list.iter().try_for_each(&mut first)?;
        let middle = Instant::now();
        list.iter().try_for_each(&mut second)?;
        one += middle - start;
        two += middle.elapsed();
    }
    Ok((one, two))
}

fn create_unlink(
    cx: &Context,
    out: &mut Report,
    (ours, raw): (&Direct, &RawMedium),
    dir: &File,
    list: &[CString],
) -> Result<()> {
    let ops = cx.scaled(10) * BATCH as u64;
    let (d, home) = (dir.as_fd(), ours.directory("create-unlink")?);
    let parts: [Cell<(Duration, Duration)>; 3] = Default::default();
    let add = |at: usize, (one, two): (Duration, Duration)| {
        let (a, b) = parts[at].get();
        parts[at].set((a + one, b + two));
        Ok(one + two)
    };
    let m = interleave(
        cx,
        Ops::Fixed(ops),
        &mut [
            Side::timed("direct create + unlink", |_, ops| {
                add(
                    0,
                    in_batches(
                        ops,
                        list,
                        |n| {
                            ours.fs.create(&ours.cx, home, n.as_bytes(), 0o644)?;
                            Ok(())
                        },
                        |n| Ok(ours.fs.unlink(home, n.as_bytes())?),
                    )?,
                )
            }),
            Side::timed("create + unlink on tmpfs", |_, ops| {
                add(
                    1,
                    in_batches(
                        ops,
                        list,
                        |n| Ok(sys::create_at(d, n)?),
                        |n| Ok(sys::unlink_at(d, n, false)?),
                    )?,
                )
            }),
            Side::timed("mknod + unlink on tmpfs", |_, ops| {
                add(
                    2,
                    in_batches(
                        ops,
                        list,
                        |n| Ok(sys::mknod_at(d, n)?),
                        |n| Ok(sys::unlink_at(d, n, false)?),
                    )?,
                )
            }),
            raw.side(&[raw_medium::CREATE, raw_medium::UNLINK]),
        ],
    )?;
    let share = |at: usize| {
        let (one, two) = parts[at].get();
        let f = one.as_secs_f64() / (one + two).as_secs_f64();
        let ns = m.median_ns(at);
        format!("{} + {}", duration(ns * f), duration(ns * (1.0 - f)))
    };
    let notes = [
        format!("create + unlink: ours {}, tmpfs {}", share(0), share(1)),
        format!(
            "mknod + unlink on tmpfs, which opens nothing: {}; ours is {:.2} times as fast",
            share(2),
            m.median_ns(2) / m.median_ns(0)
        ),
        raw_medium::note(&m, 3, 1, &[raw_medium::CREATE, raw_medium::UNLINK]),
    ];
    out.record(&ROWS[0], &m, (0, 1), &notes);
    Ok(())
}

fn rename(
    cx: &Context,
    out: &mut Report,
    (ours, raw): (&Direct, &RawMedium),
    dir: &File,
    list: &[CString],
    others: &[CString],
) -> Result<()> {
    let ops = cx.scaled(20) * BATCH as u64;
    let (d, home) = (dir.as_fd(), ours.directory("rename")?);
    for n in list {
        ours.fs.create(&ours.cx, home, n.as_bytes(), 0o644)?;
        sys::create_at(d, n)?;
    }
    // Rename there and back, so that each round starts from the same state.
    let there_and_back = |ops: u64, one: &mut dyn FnMut(&CString, &CString) -> Result<()>| {
        let start = Instant::now();
        for _ in 0..ops / (2 * BATCH as u64) {
            list.iter().zip(others).try_for_each(|(a, b)| one(a, b))?;
            list.iter().zip(others).try_for_each(|(a, b)| one(b, a))?;
        }
        Ok(start.elapsed())
    };
    let m = interleave(
        cx,
        Ops::Fixed(ops),
        &mut [
            Side::timed("direct rename", |_, ops| {
                there_and_back(ops, &mut |a, b| {
                    let (a, b) = (a.as_bytes(), b.as_bytes());
                    Ok(ours
                        .fs
                        .rename(&ours.cx, home, a, home, b, RenameFlags::default())?)
                })
            }),
            Side::timed("rename on tmpfs", |_, ops| {
                there_and_back(ops, &mut |a, b| Ok(sys::rename_at(d, a, b)?))
            }),
            raw.side(&[raw_medium::RENAME]),
        ],
    )?;
    let bound = raw_medium::note(&m, 2, 1, &[raw_medium::RENAME]);
    out.record(&ROWS[1], &m, (0, 1), &[bound]);
    for n in list {
        sys::unlink_at(d, n, false)?;
    }
    Ok(())
}

fn mkdir(
    cx: &Context,
    out: &mut Report,
    (ours, raw): (&Direct, &RawMedium),
    dir: &File,
    list: &[CString],
) -> Result<()> {
    let ops = cx.scaled(20) * BATCH as u64;
    let (d, home) = (dir.as_fd(), ours.directory("mkdir")?);
    let m = interleave(
        cx,
        Ops::Fixed(ops),
        &mut [
            Side::timed("direct mkdir", |_, ops| {
                let (made, _) = in_batches(
                    ops,
                    list,
                    |n| {
                        ours.fs.mkdir(&ours.cx, home, n.as_bytes(), 0o755)?;
                        Ok(())
                    },
                    |n| Ok(ours.fs.rmdir(home, n.as_bytes())?),
                )?;
                Ok(made)
            }),
            Side::timed("mkdir on tmpfs", |_, ops| {
                let (made, _) = in_batches(
                    ops,
                    list,
                    |n| Ok(sys::mkdir_at(d, n)?),
                    |n| Ok(sys::unlink_at(d, n, true)?),
                )?;
                Ok(made)
            }),
            raw.side(&[raw_medium::CREATE]),
        ],
    )?;
    let bound = raw_medium::note(&m, 2, 1, &[raw_medium::CREATE]);
    out.record(&ROWS[2], &m, (0, 1), &[bound]);
    Ok(())
}
