//! Rows of `pramfs-bench versions`: this build against another one, whose programs
//! lie in a directory of their own. What a change costs in time is seen here; in
//! instructions, which hardly differ from run to run, `count` shows it.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::{dbench, mount_io, mount_names};
use crate::count;
use crate::fixture::{MIB, Mounted, filled_file};
use crate::harness::{Context, Group, Huge, Ops, Report, Row, Side, interleave};

const fn row(id: &'static str, work: &'static str) -> Row {
    Row {
        id,
        work,
        against: "the other build",
        floor: 0.98,
        strictly: false,
    }
}

/// In the order of the operations of [`count`].
const DIRECT: &[Row] = &[
    row("read", "4 KiB random read"),
    row("write", "4 KiB random overwrite, durable"),
    row("append", "append 4 KiB, durable"),
    row("create", "create + unlink, durable"),
    row("rename", "rename, durable"),
    row("mkdir", "mkdir + rmdir, durable"),
    row("lookup", "lookup + getattr"),
];

/// How many of each make a round.
const OPERATIONS: [u64; DIRECT.len()] =
    [400_000, 400_000, 80_000, 60_000, 100_000, 50_000, 300_000];

const MOUNT_IO: &[Row] = &[
    row("mount-read-4k", "mount, O_DIRECT 4 KiB random read"),
    row("mount-seq-read", "mount, 1 MiB sequential read, O_DIRECT"),
    row("mount-seq-write", "mount, 1 MiB sequential write, O_DIRECT"),
    row(
        "mount-seq-read-buffered",
        "mount, 1 MiB sequential read, cache dropped",
    ),
    row(
        "mount-seq-write-buffered",
        "mount, 1 MiB sequential write, buffered",
    ),
];

const MOUNT_NAMES: &[Row] = &[row(
    "mount-create",
    "mount, create + unlink of empty files, durable",
)];

const MOUNT_LOAD: &[Row] = &[row("mount-dbench", "mount, dbench with 4 clients, a MB")];

/// Every group, in the order of the table.
pub const GROUPS: &[&Group] = &[
    &Group {
        rows: DIRECT,
        measure: direct,
    },
    &Group {
        rows: MOUNT_IO,
        measure: io,
    },
    &Group {
        rows: MOUNT_NAMES,
        measure: names,
    },
    &Group {
        rows: MOUNT_LOAD,
        measure: load,
    },
];

fn direct(cx: &Context, out: &mut Report) -> Result<()> {
    let other = cx.other.as_ref().context("there is no other build")?;
    let (ours, theirs) = (std::env::current_exe()?, other.join(env!("CARGO_PKG_NAME")));
    // In the same pages: which ones a file gets makes up to a third of the speed.
    let tmpfs = cx
        .scratch
        .tmpfs("versions", count::REGION + MIB, Huge::Never)?;
    let region = tmpfs.join("region");
    filled_file(&region, count::REGION)?;
    for (number, (row, ops)) in DIRECT.iter().zip(OPERATIONS).enumerate() {
        if !out.wants(row.id) {
            continue;
        }
        let region = &region;
        let side = |name, program| {
            Side::timed(name, move |_, ops| -> Result<Duration> {
                count::time_in(program, region, number, ops)
            })
        };
        let mut sides = [side("ours", &ours), side("theirs", &theirs)];
        let m = interleave(cx, Ops::Fixed(cx.scaled(ops)), &mut sides)?;
        out.record(row, &m, (0, 1), &[]);
    }
    Ok(())
}

fn mounts(cx: &Context, region: u64) -> Result<[Mounted; 2]> {
    let other = cx.other.as_ref().context("there is no other build")?;
    Mounted::builds(cx, other, region)
}

fn io(cx: &Context, out: &mut Report) -> Result<()> {
    let pair = mounts(cx, 1024 * MIB)?;
    let [random, seq @ ..] = MOUNT_IO else {
        unreachable!("there are five rows");
    };
    mount_io::compare(cx, out, random, seq, &pair, "the other build")
}

fn names(cx: &Context, out: &mut Report) -> Result<()> {
    let [ours, theirs] = mounts(cx, 256 * MIB)?;
    let contender = |name, m: Mounted| mount_names::Contender::new(name, m.daemon, Some(m.tmpfs));
    let contenders = [contender("ours", ours)?, contender("theirs", theirs)?];
    let m = mount_names::rounds(cx, &contenders)?;
    let [ours, theirs] = contenders.each_ref().map(mount_names::Contender::each);
    let note = format!("requests for each: ours {ours:.2}, the other build {theirs:.2}");
    out.record(&MOUNT_NAMES[0], &m, (0, 1), &[note]);
    Ok(())
}

fn load(cx: &Context, out: &mut Report) -> Result<()> {
    let _everywhere = dbench::Everywhere::new(cx)?;
    let [ours, theirs] = mounts(cx, dbench::SIZE)?;
    let m = dbench::rounds(cx, &[("ours", ours), ("theirs", theirs)])?;
    out.record(&MOUNT_LOAD[0], &m, (0, 1), &[]);
    Ok(())
}
