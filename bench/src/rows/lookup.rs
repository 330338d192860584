//! Row: direct lookup + getattr in a directory of 200,000 files.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::AsFd;

use anyhow::{Result, ensure};

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
            cx.check_stop()?;
        }
        ours.fs.create(&ours.cx, home, n.as_bytes(), 0o644)?;
        sys::create_at(d, n)?;
    }
    // Look up every name once before the clock starts, on both sides.
    for n in &list {
        ours.fs.lookup(home, n.as_bytes())?;
        sys::stat_at(d, n)?;
    }
    // Pack the names in the order of their look-ups: fetching scattered names
    // would cost as much as finding them.
    let list = Packed::new(list)?;
    let m = interleave(
        cx,
        Ops::Calibrated,
        &mut [
            Side::whole("direct lookup + getattr", |seed, ops| {
                for name in list.from(seed).take(ops as usize) {
                    let found = ours.fs.lookup(home, name.to_bytes())?;
                    std::hint::black_box(ours.fs.getattr(found.ino)?);
                }
                Ok(())
            }),
            Side::whole("stat on tmpfs", |seed, ops| {
                for name in list.from(seed).take(ops as usize) {
                    std::hint::black_box(sys::stat_at(d, name)?);
                }
                Ok(())
            }),
            Side::whole("direct lookup", |seed, ops| {
                for name in list.from(seed).take(ops as usize) {
                    std::hint::black_box(ours.fs.lookup(home, name.to_bytes())?);
                }
                Ok(())
            }),
        ],
    )?;
    let notes = [
        format!(
            "lookup alone, which already returns the attributes: {}, {:.2} times as fast as stat",
            duration(m.median_ns(2)),
            m.median_ns(1) / m.median_ns(2)
        ),
        format!("memory: {:?}", ours.fs.memory()),
    ];
    out.record(&ROWS[0], &m, (0, 1), &notes);
    Ok(())
}

/// Names of equal length in random order, each with its NUL.
struct Packed {
    bytes: Vec<u8>,
    stride: usize,
}

impl Packed {
    fn new(mut names: Vec<CString>) -> Result<Packed> {
        Rng::new(17).shuffle(&mut names);
        let stride = names.first().map_or(1, |n| n.as_bytes_with_nul().len());
        let bytes: Vec<u8> = names
            .iter()
            .flat_map(|n| n.as_bytes_with_nul().iter().copied())
            .collect();
        ensure!(
            bytes.len() == stride * names.len(),
            "names of different lengths"
        );
        Ok(Packed { bytes, stride })
    }

    /// Iterates over all the names repeatedly, from a random one on.
    fn from(&self, seed: u64) -> impl Iterator<Item = &CStr> {
        let count = self.bytes.len() / self.stride;
        let first = Rng::new(seed).below(count as u64) as usize;
        let rest = self.bytes[first * self.stride..].chunks_exact(self.stride);
        rest.chain(self.bytes.chunks_exact(self.stride).cycle())
            .filter_map(|b| CStr::from_bytes_with_nul(b).ok())
    }
}
