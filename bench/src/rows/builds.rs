//! Rows of `pramfs-bench compare`: a build against another one, whose programs are in a
//! directory of their own. They show the cost of a change in time; `count` shows it in
//! instructions, which hardly differ from run to run.
//!
//! Each round runs the old build twice: the difference between the two runs is noise.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::{dbench, mount_io, mount_names};
use crate::count;
use crate::fixture::{MIB, Mounted, filled_file};
use crate::harness::{
    Context, Group, Huge, Measured, NEW, OLD, Ops, Report, Row, Side, interleave_with_control,
};

const fn row(id: &'static str, work: &'static str) -> Row {
    Row {
        id,
        work,
        against: "the old build",
        floor: 0.98,
        strictly: false,
    }
}

/// In the same order as the operations of [`count`].
const DIRECT: &[Row] = &[
    row("read", "4 KiB random read"),
    row("write", "4 KiB random overwrite, durable"),
    row("append", "append 4 KiB, durable"),
    row("create", "create + unlink, durable"),
    row("rename", "rename, durable"),
    row("mkdir", "mkdir + rmdir, durable"),
    row("lookup", "lookup + getattr"),
];

/// Number of operations of each in a round.
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

/// All groups, in the order of the table.
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

/// Records a row of three sides, with the control in a note.
fn compare(
    cx: &Context,
    out: &mut Report,
    row: &Row,
    (rounds, ops): (u32, Ops),
    sides: Vec<Side<'_>>,
    mut notes: impl FnMut(&Measured) -> Vec<String>,
) -> Result<()> {
    let mut sides: [Side<'_>; 3] = sides.try_into().ok().context("a build is missing")?;
    let m = interleave_with_control(cx, rounds, ops, &mut sides)?;
    let control = format!("the old build against itself: {:.3}", m.control());
    let notes = [vec![control], notes(&m)].concat();
    out.record(row, &m, (NEW, OLD), &notes);
    Ok(())
}

const NAMES: [&str; 3] = ["new", "old", "control"];

fn direct(cx: &Context, out: &mut Report) -> Result<()> {
    let builds = cx.builds.as_ref().context("there are no two builds")?;
    let [new, old] = [&builds.new, &builds.old].map(|dir| dir.join(env!("CARGO_PKG_NAME")));
    // Use the same pages: which pages a file gets changes the speed by up to a third.
    let tmpfs = cx
        .scratch
        .tmpfs("builds", count::REGION + MIB, Huge::Never)?;
    let region = tmpfs.join("region");
    filled_file(&region, count::REGION)?;
    for (number, (row, ops)) in DIRECT.iter().zip(OPERATIONS).enumerate() {
        if !out.wants(row.id) {
            continue;
        }
        let region = &region;
        let side = |(name, program)| {
            Side::timed(name, move |_, ops| -> Result<Duration> {
                count::time_in(program, region, number, ops)
            })
        };
        let sides = NAMES.into_iter().zip([&*new, &*old, &*old]).map(side);
        let ops = Ops::Fixed(cx.scaled(ops));
        compare(cx, out, row, (cx.rounds, ops), sides.collect(), |_| vec![])?;
    }
    Ok(())
}

fn io(cx: &Context, out: &mut Report) -> Result<()> {
    let all = Mounted::builds(cx, 1024 * MIB)?;
    let io = mount_io::ServersIo::new(cx, &NAMES, &all)?;
    let [random, seq @ ..] = MOUNT_IO else {
        unreachable!("there are five rows");
    };
    if out.wants(random.id) {
        let rounds = (cx.rounds, Ops::Calibrated);
        compare(cx, out, random, rounds, io.random()?, |_| {
            vec![io.requests()]
        })?;
    }
    for (row, mode) in seq.iter().zip(mount_io::SEQUENTIAL) {
        if out.wants(row.id) {
            let (rounds, sides) = ((cx.rounds, io.whole()), io.sequential(mode)?);
            compare(cx, out, row, rounds, sides, |m| {
                vec![io.rates(m), io.requests()]
            })?;
        }
    }
    Ok(())
}

fn names(cx: &Context, out: &mut Report) -> Result<()> {
    let contenders = Mounted::builds(cx, 256 * MIB)?
        .into_iter()
        .zip(NAMES)
        .map(|(m, name)| mount_names::Contender::new(name, m.daemon, Some(m.tmpfs)))
        .collect::<Result<Vec<_>>>()?;
    let list = mount_names::list();
    let sides = mount_names::sides(&contenders, &list);
    let rounds = (cx.rounds, mount_names::round_of(cx));
    compare(cx, out, &MOUNT_NAMES[0], rounds, sides, |_| {
        let each = |c: &mount_names::Contender| format!("{:.2}", c.each());
        let all: Vec<_> = contenders.iter().map(each).collect();
        vec![format!(
            "requests for each: {} (new, old, control)",
            all.join(", ")
        )]
    })
}

fn load(cx: &Context, out: &mut Report) -> Result<()> {
    let _everywhere = dbench::AllProcessors::new(cx)?;
    let all: Vec<_> = NAMES
        .into_iter()
        .zip(Mounted::builds(cx, dbench::SIZE)?)
        .collect();
    let sides = dbench::sides(cx, &all)?;
    compare(
        cx,
        out,
        &MOUNT_LOAD[0],
        dbench::rounds(cx),
        sides,
        |_| vec![],
    )
}
