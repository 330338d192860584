//! Rows: direct append and create in a region that was never written.
//!
//! A region fresh from `mkfs.pramfs` is sparse: the host allocates each page at its
//! first store. pramfs takes that space before it promises an allocation
//! (`docs/semantics.md`, "A full host"). So these rows compare the allocation, the first
//! touch, and the operation itself. Every round has a new region and a new file, made
//! outside the clock.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::Result;
use pramfs::format::{FormatOptions, format};
use pramfs::inode::{Credentials, Ino};
use pramfs::pmem::RegionOptions;
use pramfs::{MountOptions, inode::Fs};

use crate::fixture::{MIB, names};
use crate::harness::scratch::MountDir;
use crate::harness::{Context, Group, Huge, Ops, Report, Row, Side, interleave};
use crate::sys::{self, Aligned, PAGE};

const ROWS: &[Row] = &[
    Row {
        id: "untouched-append",
        work: "direct append 4 KiB, sparse region, durable",
        against: "append on tmpfs (not durable)",
        floor: 1.0,
        strictly: false,
    },
    Row {
        id: "untouched-create",
        work: "direct create, sparse region, durable",
        against: "open(O_CREAT), close on tmpfs",
        floor: 1.0,
        strictly: false,
    },
];

/// The group.
pub const GROUP: Group = Group {
    rows: ROWS,
    measure,
};

const REGION: u64 = 256 * MIB;

fn measure(cx: &Context, out: &mut Report) -> Result<()> {
    let tmpfs = cx.scratch.tmpfs("untouched", 3 * REGION, Huge::Never)?;
    // Use pages that the host of a virtual machine has allocated already.
    drop(crate::fixture::filled_file(
        &tmpfs.join("used"),
        2 * REGION,
    )?);
    std::fs::remove_file(tmpfs.join("used"))?;
    if out.wants(ROWS[0].id) {
        append(cx, out, &tmpfs)?;
    }
    if out.wants(ROWS[1].id) {
        create(cx, out, &tmpfs)?;
    }
    Ok(())
}

/// Times `work` on a new file system in a sparse region.
fn on_new_region(tmpfs: &MountDir, work: impl FnOnce(&Fs) -> Result<Duration>) -> Result<Duration> {
    let path = tmpfs.join("region");
    File::create_new(&path)?.set_len(REGION)?;
    let region = RegionOptions::new().open(&path)?;
    format(&region, &FormatOptions::default())?;
    let fs = Fs::open(region, MountOptions::default())?;
    let took = work(&fs);
    drop(fs);
    std::fs::remove_file(&path)?;
    took
}

fn append(cx: &Context, out: &mut Report, tmpfs: &MountDir) -> Result<()> {
    let data = Aligned::filled(PAGE, 0xa5)?;
    let data = data.bytes();
    let ours = |_: u64, ops: u64| {
        on_new_region(tmpfs, |fs| {
            let made = fs.create(&Credentials::ROOT, Ino::ROOT, b"log", 0o644)?;
            let file = fs.open_file(made.ino)?;
            let start = Instant::now();
            for _ in 0..ops {
                file.append(data)?;
            }
            Ok(start.elapsed())
        })
    };
    let theirs = |_: u64, ops: u64| {
        let path = tmpfs.join("log");
        let mut file = File::options().append(true).create_new(true).open(&path)?;
        let start = Instant::now();
        for _ in 0..ops {
            file.write_all(data)?;
        }
        let took = start.elapsed();
        std::fs::remove_file(&path)?;
        Ok(took)
    };
    let m = interleave(
        cx,
        Ops::Fixed(cx.scaled(16 * 1024)),
        &mut [
            Side::timed("append, sparse region", ours),
            Side::timed("append on tmpfs", theirs),
        ],
    )?;
    out.record(&ROWS[0], &m, (0, 1), &[]);
    Ok(())
}

fn create(cx: &Context, out: &mut Report, tmpfs: &MountDir) -> Result<()> {
    let list = names(7, cx.scaled(10_000) as usize);
    let ours = |_: u64, _: u64| {
        on_new_region(tmpfs, |fs| {
            let start = Instant::now();
            for name in &list {
                fs.create(&Credentials::ROOT, Ino::ROOT, name.as_bytes(), 0o644)?;
            }
            Ok(start.elapsed())
        })
    };
    let path = tmpfs.join("dir");
    let theirs = |_: u64, _: u64| {
        std::fs::create_dir(&path)?;
        let dir = File::open(&path)?;
        let start = Instant::now();
        for name in &list {
            sys::create_at(dir.as_fd(), name)?;
        }
        let took = start.elapsed();
        std::fs::remove_dir_all(&path)?;
        Ok(took)
    };
    let m = interleave(
        cx,
        Ops::Fixed(list.len() as u64),
        &mut [
            Side::timed("create, sparse region", ours),
            Side::timed("create on tmpfs", theirs),
        ],
    )?;
    out.record(&ROWS[1], &m, (0, 1), &[]);
    Ok(())
}
