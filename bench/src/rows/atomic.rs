//! Row: direct atomic overwrite of 4 KiB at random places, against the same in place.

use anyhow::Result;

use crate::fixture::{Direct, MIB, random_page};
use crate::harness::{Context, Group, Huge, Ops, Report, Rng, Row, Side, interleave};
use crate::raw_medium::{self, RawMedium};
use crate::sys::{Aligned, PAGE};

const FILE: u64 = 256 * MIB;

const ROWS: &[Row] = &[Row {
    id: "write-atomic",
    work: "direct atomic 4 KiB random overwrite, durable",
    against: "the same in place",
    // At most 2.2 times the time.
    floor: 0.455,
    strictly: false,
}];

/// The group.
pub const GROUP: Group = Group {
    rows: ROWS,
    measure,
};

fn measure(cx: &Context, out: &mut Report) -> Result<()> {
    let ours = Direct::new(cx, "atomic", 1024 * MIB, MIB, Huge::Never)?;
    let chunk = vec![0x5au8; 2 * MIB as usize];
    // A file each: after an atomic write, the first one in place costs more.
    let (atomic, in_place) = (ours.create("atomic")?, ours.create("in-place")?);
    for file in [&atomic, &in_place] {
        for at in (0..FILE).step_by(chunk.len()) {
            file.write_at(&chunk, at)?;
        }
    }
    ours.prefault()?;
    let raw = RawMedium::new(&ours.tmpfs)?;
    let data = Aligned::filled(PAGE, 0xa5)?;
    let (data, pages) = (data.bytes(), FILE / PAGE as u64);
    let m = interleave(
        cx,
        Ops::Calibrated,
        &mut [
            Side::whole("write_atomic", |seed, ops| {
                let mut rng = Rng::new(seed);
                for _ in 0..ops {
                    atomic.write_atomic(data, random_page(&mut rng, pages))?;
                }
                Ok(())
            }),
            Side::whole("write_at in place", |seed, ops| {
                let mut rng = Rng::new(seed);
                for _ in 0..ops {
                    in_place.write_at(data, random_page(&mut rng, pages))?;
                }
                Ok(())
            }),
            raw.side(&raw_medium::ATOMIC),
        ],
    )?;
    let bound = raw_medium::note(&m, 2, 1, &raw_medium::ATOMIC);
    let leaves = atomic.extents(0..FILE)?;
    let huge = leaves.iter().filter(|e| e.len >= 2 * MIB).count();
    let note = format!("{huge} of {} extents of the file have 2 MiB", leaves.len());
    out.record(&ROWS[0], &m, (0, 1), &[ours.describe(), note, bound]);
    Ok(())
}
