//! Rows: reads of a file with checksums of its data, against the same without, and what the
//! checksum alone takes.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use pramfs::File as DirectFile;
use pramfs_medium::media::sums::data_crc;

use crate::fixture::{Direct, MIB, random_page};
use crate::harness::{Context, Group, Huge, Ops, Report, Rng, Row, Side, interleave};
use crate::sys::{Aligned, PAGE};

const FILE: u64 = 256 * MIB;

const ROWS: &[Row] = &[
    Row {
        id: "read-4k-summed",
        work: "direct read_at 4 KiB random, compared with its checksum",
        against: "the same without checksums",
        // At most 1.5 times the time.
        floor: 0.666,
        strictly: false,
    },
    Row {
        id: "read-1m-summed",
        work: "direct read_at 1 MiB sequential, compared with its checksums",
        against: "the same without checksums",
        // At most 1.35 times the time.
        floor: 0.74,
        strictly: false,
    },
];

/// The group.
pub const GROUP: Group = Group {
    rows: ROWS,
    measure,
};

fn measure(cx: &Context, out: &mut Report) -> Result<()> {
    let plain_fs = Direct::new(cx, "plain", 512 * MIB, MIB, Huge::Never)?;
    let summed_fs = Direct::with_features(
        cx,
        "summed",
        512 * MIB,
        MIB,
        Huge::Never,
        &["data_checksums"],
    )?;
    let (summed, plain) = (summed_fs.create("summed")?, plain_fs.create("plain")?);
    let chunk: Vec<u8> = (0..2 * MIB).map(|i| (i * 7 % 251) as u8).collect();
    for file in [&summed, &plain] {
        for at in (0..FILE).step_by(chunk.len()) {
            file.write_at(&chunk, at)?;
        }
    }
    for fs in [&plain_fs, &summed_fs] {
        fs.prefault()?;
    }
    if out.wants(ROWS[0].id) {
        let m = interleave(
            cx,
            Ops::Calibrated,
            &mut [
                Side::whole("with checksums", |seed, ops| random(&summed, seed, ops)),
                Side::whole("without", |seed, ops| random(&plain, seed, ops)),
            ],
        )?;
        out.record(&ROWS[0], &m, (0, 1), &[summed_fs.describe(), alone(PAGE)]);
    }
    if out.wants(ROWS[1].id) {
        let m = interleave(
            cx,
            Ops::Calibrated,
            &mut [
                Side::whole("with checksums", |_, ops| sequential(&summed, ops)),
                Side::whole("without", |_, ops| sequential(&plain, ops)),
            ],
        )?;
        out.record(&ROWS[1], &m, (0, 1), &[alone(MIB as usize)]);
    }
    Ok(())
}

fn random(file: &DirectFile, seed: u64, ops: u64) -> Result<()> {
    let mut into = Aligned::filled(PAGE, 0)?;
    let mut rng = Rng::new(seed);
    for _ in 0..ops {
        file.read_at(into.bytes_mut(), random_page(&mut rng, FILE / PAGE as u64))?;
    }
    Ok(())
}

fn sequential(file: &DirectFile, ops: u64) -> Result<()> {
    let mut into = Aligned::filled(MIB as usize, 0)?;
    for i in 0..ops {
        file.read_at(into.bytes_mut(), i % (FILE / MIB) * MIB)?;
    }
    Ok(())
}

/// Says how long the checksums of so many bytes, in blocks of 4 KiB, take alone.
fn alone(len: usize) -> String {
    let bytes: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
    let rounds = ((256 * MIB as usize) / len).max(1);
    let start = Instant::now();
    for _ in 0..rounds {
        for block in black_box(&bytes).chunks(PAGE) {
            black_box(data_crc(block));
        }
    }
    let each = start.elapsed().as_nanos() as f64 / rounds as f64;
    format!(
        "the checksum of {} KiB alone takes {each:.0} ns ({:.1} GB/s)",
        len >> 10,
        len as f64 / each
    )
}
