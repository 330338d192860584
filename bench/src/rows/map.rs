//! Row: one 8-byte load from a random page of a 1 GiB `map()` with huge pages.
//!
//! The address of each load depends on the value of the previous one, so each load is
//! waited for, as in a pointer chase. A note gives loads that may overlap.

use anyhow::{Result, ensure};
use pramfs::Access;

use crate::fixture::{Direct, MIB, filled_file};
use crate::harness::machine::smaps_sum;
use crate::harness::report::duration;
use crate::harness::{Context, Group, Huge, Ops, Report, Rng, Row, Side, interleave};
use crate::sys::{Mapping, PAGE, Words};

const ROWS: &[Row] = &[Row {
    id: "map-load",
    work: "8-byte load, random page of 1 GiB map(), huge",
    against: "mmap on tmpfs with 4 KiB pages",
    floor: 1.3,
    strictly: false,
}];

/// The group.
pub const GROUP: Group = Group {
    rows: ROWS,
    measure,
};

const FILE: u64 = 1024 * MIB;

fn measure(cx: &Context, out: &mut Report) -> Result<()> {
    let ours = Direct::new(cx, "map", FILE + 256 * MIB, 0, Huge::Always)?;
    let file = ours.create("mapped")?;
    let chunk = vec![0u8; 2 * MIB as usize];
    for at in (0..FILE).step_by(chunk.len()) {
        file.write_at(&chunk, at)?;
    }
    let mapped = file.map(0..FILE, Access::Read)?;
    let tmpfs = cx
        .scratch
        .tmpfs("map-theirs", FILE + 64 * MIB, Huge::Never)?;
    let theirs = filled_file(&tmpfs.join("theirs"), FILE)?;
    let plain = Mapping::of_file(&theirs, FILE as usize, false, true)?;
    // The worth of huge pages on this machine, without a file system.
    let huge_tmpfs = cx
        .scratch
        .tmpfs("map-plain-huge", FILE + 64 * MIB, Huge::Always)?;
    let plain_huge = filled_file(&huge_tmpfs.join("plain-huge"), FILE)?;
    let plain_huge = Mapping::of_file(&plain_huge, FILE as usize, false, true)?;
    let (a, b, c) = (Words::of_map(&mapped), plain.words(), plain_huge.words());
    // Touch all of it before looking for huge pages.
    for at in (0..FILE as usize).step_by(PAGE) {
        std::hint::black_box(a.load(at) ^ b.load(at) ^ c.load(at));
    }
    let huge = |w: Words<'_>| {
        smaps_sum(w.range(), "ShmemPmdMapped") + smaps_sum(w.range(), "FilePmdMapped")
    };
    let shown = format!(
        "smaps: {} MiB of our {} in huge pages, {} MiB of theirs",
        huge(a) / MIB,
        FILE / MIB,
        huge(b) / MIB
    );
    ensure!(huge(a) >= FILE / 10 * 9 && huge(b) == 0, "{shown}");
    let m = interleave(
        cx,
        Ops::Calibrated,
        &mut [
            side("load from map()", a, true),
            side("load from mmap on tmpfs", b, true),
            side("loads from map(), overlapping", a, false),
            side("loads from mmap on tmpfs, overlapping", b, false),
            side("load from mmap on tmpfs with huge pages", c, true),
        ],
    )?;
    let overlapping = format!(
        "independent loads, which may overlap: ours {}, theirs {}, {:.2} times as fast",
        duration(m.median_ns(2)),
        duration(m.median_ns(3)),
        m.median_ns(3) / m.median_ns(2)
    );
    let plain_huge = format!(
        "a plain mapping of tmpfs with huge pages ({} MiB of it): {}, so a ratio of at most {:.2}",
        huge(c) / MIB,
        duration(m.median_ns(4)),
        m.median_ns(1) / m.median_ns(4)
    );
    out.record(&ROWS[0], &m, (0, 1), &[shown, overlapping, plain_huge]);
    Ok(())
}

/// Loads a random word of a random page, `ops` times. With `wait`, the next address
/// depends on the value of the previous load.
fn loads(words: Words<'_>, seed: u64, ops: u64, wait: bool) -> u64 {
    let mut rng = Rng::new(seed);
    let mut last = 0;
    for _ in 0..ops {
        let r = rng.below(FILE / 8) ^ if wait { last & 1 } else { 0 };
        last = words.load(r as usize * 8);
        if !wait {
            std::hint::black_box(last);
        }
    }
    last
}

fn side<'a>(name: &str, words: Words<'a>, wait: bool) -> Side<'a> {
    Side::whole(name, move |seed, ops| {
        std::hint::black_box(loads(words, seed, ops, wait));
        Ok(())
    })
}
