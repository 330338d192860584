//! Row: direct `append` of 4 KiB, durable.
//!
//! Both sides use warm pages. pramfs appends into free blocks whose memory exists. tmpfs
//! appends into pages that `fallocate` with `FALLOC_FL_KEEP_SIZE` allocated past the end
//! of the file; a plain append must allocate and zero a page each time, which a second
//! side shows. Between rounds both files are truncated, outside the clock.

use std::io::Write;
use std::os::fd::AsFd;
use std::time::Instant;

use anyhow::Result;
use rustix::fs::{FallocateFlags, fallocate};

use crate::fixture::{Direct, MIB, filled_file};
use crate::harness::report::duration;
use crate::harness::{Context, Group, Huge, Ops, Report, Row, Side, interleave};
use crate::raw_medium::{self, RawMedium};
use crate::sys::{Aligned, PAGE};

const ROWS: &[Row] = &[Row {
    id: "append",
    work: "direct append 4 KiB, durable",
    against: "append on tmpfs, pages warm (not durable)",
    floor: 1.1,
    strictly: false,
}];

/// The group.
pub const GROUP: Group = Group {
    rows: ROWS,
    measure,
};

fn measure(cx: &Context, out: &mut Report) -> Result<()> {
    let ops = cx.scaled(16 * 1024);
    let bytes = ops * PAGE as u64;
    let ours = Direct::new(
        cx,
        "append",
        1024 * MIB,
        4 * bytes + raw_medium::SIZE,
        Huge::Never,
    )?;
    // Use pages that were touched before: in a virtual machine, the host has
    // allocated those already.
    drop(filled_file(&ours.tmpfs.join("used"), 2 * bytes)?);
    std::fs::remove_file(ours.tmpfs.join("used"))?;
    let file = ours.create("log")?;
    let open = |name: &str| {
        std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(ours.tmpfs.join(name))
    };
    let (warm, cold) = (open("warm")?, open("cold")?);
    let data = Aligned::filled(PAGE, 0xa5)?;
    let data = data.bytes();
    let append = |mut f: &std::fs::File, ops: u64| -> Result<_> {
        let start = Instant::now();
        for _ in 0..ops {
            f.write_all(data)?;
        }
        let took = start.elapsed();
        f.set_len(0)?;
        Ok(took)
    };
    let raw = RawMedium::new(&ours.tmpfs)?;
    let m = interleave(
        cx,
        Ops::Fixed(ops),
        &mut [
            Side::timed("direct append", |_, ops| {
                ours.prefault()?;
                let start = Instant::now();
                for _ in 0..ops {
                    file.append(data)?;
                }
                let took = start.elapsed();
                file.set_len(0)?;
                Ok(took)
            }),
            Side::timed("append on tmpfs, warm", |_, ops| {
                fallocate(
                    warm.as_fd(),
                    FallocateFlags::KEEP_SIZE,
                    0,
                    ops * PAGE as u64,
                )?;
                append(&warm, ops)
            }),
            Side::timed("append on tmpfs, cold", |_, ops| append(&cold, ops)),
            raw.side(&[raw_medium::APPEND]),
        ],
    )?;
    let note = format!(
        "on tmpfs without prepared pages: {} an append, ours is {:.2} times as fast",
        duration(m.median_ns(2)),
        m.median_ns(2) / m.median_ns(0)
    );
    let bound = raw_medium::note(&m, 3, 1, &[raw_medium::APPEND]);
    out.record(&ROWS[0], &m, (0, 1), &[ours.describe(), note, bound]);
    Ok(())
}
