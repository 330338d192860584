//! Row: direct lookup + getattr in a directory of 200,000 files.

use std::fs::File;
use std::os::fd::AsFd;

use anyhow::Result;

use crate::fixture::{Direct, MIB, names};
use crate::harness::report::duration;
use crate::harness::{Context, Group, Huge, Ops, Report, Rng, Row, Side, interleave};
use crate::sys;

const ROWS: &[Row] = &[Row {
    id: "lookup",
    work: "direct lookup + getattr, 200,000 entries",
    against: "stat on tmpfs",
    floor: 2.0,
    strictly: false,
}];

/// The group.
pub const GROUP: Group = Group {
    rows: ROWS,
    measure,
};

const ENTRIES: usize = 200_000;

fn measure(cx: &Context, out: &mut Report) -> Result<()> {
    let ours = Direct::new(cx, "lookup", 1024 * MIB, 256 * MIB, Huge::Never)?;
    let home = ours.directory("many")?;
    std::fs::create_dir(ours.tmpfs.join("many"))?;
    let dir = File::open(ours.tmpfs.join("many"))?;
    let d = dir.as_fd();
    let list = names(9, ENTRIES);
    for (i, n) in list.iter().enumerate() {
        if i % 4096 == 0 {
            cx.go_on()?;
        }
        ours.fs.create(&ours.cx, home, n.as_bytes(), 0o644)?;
        sys::create_at(d, n)?;
    }
    let some = |rng: &mut Rng| &list[rng.below(ENTRIES as u64) as usize];
    let m = interleave(
        cx,
        Ops::Calibrated,
        &mut [
            Side::whole("direct lookup + getattr", |seed, ops| {
                let mut rng = Rng::new(seed);
                for _ in 0..ops {
                    let found = ours.fs.lookup(home, some(&mut rng).as_bytes())?;
                    std::hint::black_box(ours.fs.getattr(found.ino)?);
                }
                Ok(())
            }),
            Side::whole("stat on tmpfs", |seed, ops| {
                let mut rng = Rng::new(seed);
                for _ in 0..ops {
                    std::hint::black_box(sys::stat_at(d, some(&mut rng))?);
                }
                Ok(())
            }),
            Side::whole("direct lookup", |seed, ops| {
                let mut rng = Rng::new(seed);
                for _ in 0..ops {
                    std::hint::black_box(ours.fs.lookup(home, some(&mut rng).as_bytes())?);
                }
                Ok(())
            }),
        ],
    )?;
    let notes = [
        format!(
            "lookup alone, which gives the attributes already: {}, {:.2} times as fast as stat",
            duration(m.median_ns(2)),
            m.median_ns(1) / m.median_ns(2)
        ),
        format!("memory: {:?}", ours.fs.memory()),
    ];
    out.record(&ROWS[0], &m, (0, 1), &notes);
    Ok(())
}
