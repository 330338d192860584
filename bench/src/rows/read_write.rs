//! Rows: direct `read_at` and `write_at` of 4 KiB at random places.

use std::os::unix::fs::FileExt;

use anyhow::{Result, ensure};
use pramfs::File as DirectFile;

use crate::fixture::{Direct, MIB, random_page};
use crate::harness::{Context, Group, Measured, Ops, Report, Rng, Row, Side, interleave};
use crate::raw_medium::{self, RawMedium};
use crate::sys::{Aligned, Mapping, PAGE};

const HUGE_FILE: u64 = 512 * MIB;
const SMALL_FILE: u64 = 160 * MIB;

const ROWS: &[Row] = &[
    Row {
        id: "read-2m-copy",
        work: "direct read_at 4 KiB random, 2 MiB leaves",
        against: "copy from a plain mapping",
        floor: 0.85,
        strictly: false,
    },
    Row {
        id: "read-4k-copy",
        work: "direct read_at 4 KiB random, 4 KiB leaves",
        against: "copy from a plain mapping",
        floor: 0.75,
        strictly: false,
    },
    Row {
        id: "read-2m-pread",
        work: "direct read_at 4 KiB random, 2 MiB leaves",
        against: "pread on tmpfs (4 KiB pages)",
        floor: 2.0,
        strictly: false,
    },
    Row {
        id: "write-pwrite",
        work: "direct write_at 4 KiB random, durable",
        against: "pwrite on tmpfs (not durable)",
        floor: 2.0,
        strictly: false,
    },
];

/// The group.
pub const GROUP: Group = Group {
    rows: ROWS,
    measure,
};

fn measure(cx: &Context, out: &mut Report) -> Result<()> {
    let region = 1024 * MIB;
    let (ours, theirs) = Direct::beside(cx, "rw", region, HUGE_FILE)?;
    let (huge, small) = make_files(&ours)?;
    let plain = Mapping::of_file(&theirs, HUGE_FILE as usize, false, true)?;
    ours.prefault()?;
    let about = ours.describe();

    if ROWS[..3].iter().any(|r| out.wants(r.id)) {
        let m = read(cx, &huge, &theirs, &plain, HUGE_FILE)?;
        let notes = [about.clone(), extents(&huge, HUGE_FILE)?];
        out.record(&ROWS[0], &m, (0, 1), &notes);
        let m4 = read(cx, &small, &theirs, &plain, SMALL_FILE)?;
        out.record(&ROWS[1], &m4, (0, 1), &[extents(&small, SMALL_FILE)?]);
        let bound = format!(
            "a plain copy is {:.2} times as fast as pread",
            m.median_ns(2) / m.median_ns(1)
        );
        out.record(&ROWS[2], &m, (0, 2), &[bound]);
    }
    if out.wants(ROWS[3].id) {
        let raw = RawMedium::new(&ours.tmpfs)?;
        let data = Aligned::filled(PAGE, 0xa5)?;
        let (data, pages) = (data.bytes(), HUGE_FILE / PAGE as u64);
        let m = interleave(
            cx,
            Ops::Calibrated,
            &mut [
                Side::whole("direct write_at", |seed, ops| {
                    let mut rng = Rng::new(seed);
                    for _ in 0..ops {
                        huge.write_at(data, random_page(&mut rng, pages))?;
                    }
                    Ok(())
                }),
                Side::whole("pwrite on tmpfs", |seed, ops| {
                    let mut rng = Rng::new(seed);
                    for _ in 0..ops {
                        theirs.write_all_at(data, random_page(&mut rng, pages))?;
                    }
                    Ok(())
                }),
                raw.side(&[raw_medium::OVERWRITE]),
            ],
        )?;
        let bound = raw_medium::note(&m, 2, 1, &[raw_medium::OVERWRITE]);
        out.record(&ROWS[3], &m, (0, 1), &[about, bound]);
    }
    Ok(())
}

/// Makes a file of 2 MiB leaves, and one whose blocks alternate with those of a
/// neighbour, so that no 2 MiB of it are contiguous.
fn make_files(ours: &Direct) -> Result<(DirectFile, DirectFile)> {
    let huge = ours.create("huge")?;
    let chunk = vec![0x5au8; 2 * MIB as usize];
    for at in (0..HUGE_FILE).step_by(chunk.len()) {
        huge.write_at(&chunk, at)?;
    }
    let (small, neighbour) = (ours.create("small")?, ours.create("neighbour")?);
    for at in (0..SMALL_FILE).step_by(PAGE) {
        small.write_at(&chunk[..PAGE], at)?;
        neighbour.write_at(&chunk[..PAGE], at)?;
    }
    let list = small.extents(0..SMALL_FILE)?;
    ensure!(
        list.iter().all(|e| e.len < 2 * MIB),
        "the small file has extents of 2 MiB and more"
    );
    let list = huge.extents(0..HUGE_FILE)?;
    let aligned = |at: Option<u64>| at.is_some_and(|o| o % (2 * MIB) == 0);
    ensure!(
        list.iter()
            .all(|e| aligned(e.region_offset) && e.len % (2 * MIB) == 0),
        "the huge file does not consist of 2 MiB leaves: {list:?}"
    );
    Ok((huge, small))
}

fn extents(file: &DirectFile, len: u64) -> Result<String> {
    let n = file.extents(0..len)?.len();
    Ok(format!(
        "file of {} MiB in {n} extents, mean {} KiB",
        len / MIB,
        len / 1024 / n.max(1) as u64
    ))
}

fn read(
    cx: &Context,
    ours: &DirectFile,
    theirs: &std::fs::File,
    plain: &Mapping,
    len: u64,
) -> Result<Measured> {
    let pages = len / PAGE as u64;
    // One buffer for all three, so that all have the same address.
    let buffer = std::cell::RefCell::new(Aligned::filled(PAGE, 0)?);
    interleave(
        cx,
        Ops::Calibrated,
        &mut [
            Side::whole("direct read_at", |seed, ops| {
                let (mut rng, mut b) = (Rng::new(seed), buffer.borrow_mut());
                for _ in 0..ops {
                    let n = ours.read_at(b.bytes_mut(), random_page(&mut rng, pages))?;
                    ensure!(n == PAGE, "short read");
                    std::hint::black_box(b.bytes()[0]);
                }
                Ok(())
            }),
            Side::whole("copy from a mapping", |seed, ops| {
                let (mut rng, mut b) = (Rng::new(seed), buffer.borrow_mut());
                for _ in 0..ops {
                    plain.copy_out(random_page(&mut rng, pages) as usize, b.bytes_mut());
                    std::hint::black_box(b.bytes()[0]);
                }
                Ok(())
            }),
            Side::whole("pread on tmpfs", |seed, ops| {
                let (mut rng, mut b) = (Rng::new(seed), buffer.borrow_mut());
                for _ in 0..ops {
                    theirs.read_exact_at(b.bytes_mut(), random_page(&mut rng, pages))?;
                    std::hint::black_box(b.bytes()[0]);
                }
                Ok(())
            }),
        ],
    )
}
