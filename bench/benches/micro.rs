//! Single operations of the engine under criterion: for finding what a change
//! has made slower, with criterion's own history and statistics.
//!
//! Nothing is compared with a competitor here; that is what `run` is for,
//! where both sides share every round. The region is a memfd of 512 MiB.

use std::hint::black_box;
use std::ops::ControlFlow;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use pramfs::format::{FormatOptions, format};
use pramfs::pmem::RegionOptions;
use pramfs::{
    MountOptions, RenameFlags, Result,
    inode::{Credentials, Fs, Ino, SetAttr},
};

const PAGE: usize = 4096;
const FILE: u64 = 256 << 20;

fn engine() -> Result<Fs> {
    let region = RegionOptions::new().memfd("pramfs-bench", 512 << 20)?;
    format(&region, &FormatOptions::default())?;
    Fs::open(region, MountOptions::default())
}

/// Pages of a file in an order that no prefetcher foresees.
fn pages() -> impl FnMut() -> u64 {
    let mut state = 1u64;
    move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % (FILE / PAGE as u64) * PAGE as u64
    }
}

fn data(c: &mut Criterion) -> Result<()> {
    let (fs, cx) = (engine()?, Credentials::ROOT);
    let ino = fs.create(&cx, Ino::ROOT, b"data", 0o644)?.ino;
    let chunk = vec![0x5au8; 2 << 20];
    for at in (0..FILE).step_by(chunk.len()) {
        fs.write(&Credentials::ROOT, ino, at, &chunk)?;
    }
    let log = fs.create(&cx, Ino::ROOT, b"log", 0o644)?.ino;
    let mut group = c.benchmark_group("data");
    group.throughput(Throughput::Bytes(PAGE as u64));
    let (mut next, mut buffer) = (pages(), vec![0u8; PAGE]);
    group.bench_function("read 4 KiB", |b| {
        b.iter(|| fs.read(ino, next(), &mut buffer))
    });
    group.bench_function("write 4 KiB", |b| {
        b.iter(|| fs.write(&Credentials::ROOT, ino, next(), &chunk[..PAGE]))
    });
    let mut appended = 0;
    group.bench_function("append 4 KiB", |b| {
        b.iter(|| {
            // Room for so many; then the file starts again.
            if appended == 16_384 {
                appended = 0;
                fs.setattr(
                    &Credentials::ROOT,
                    log,
                    &SetAttr {
                        size: Some(0),
                        ..SetAttr::default()
                    },
                )?;
            }
            appended += 1;
            fs.append(&Credentials::ROOT, log, &chunk[..PAGE])
        });
    });
    group.finish();
    Ok(())
}

fn names(c: &mut Criterion) -> Result<()> {
    let (fs, cx) = (engine()?, Credentials::ROOT);
    let home = fs.mkdir(&cx, Ino::ROOT, b"home", 0o755)?.ino;
    let list: Vec<Vec<u8>> = (0..10_000u32)
        .map(|i| format!("name {i}").into_bytes())
        .collect();
    for n in &list {
        fs.create(&cx, home, n, 0o644)?;
    }
    let mut group = c.benchmark_group("names, directory of 10,000");
    group.bench_function("create + unlink", |b| {
        b.iter(|| {
            fs.create(&cx, home, b"new", 0o644)?;
            fs.unlink(home, b"new")
        });
    });
    group.bench_function("rename and back", |b| {
        b.iter(|| {
            fs.rename(&cx, home, b"name 1", home, b"other", RenameFlags::default())?;
            fs.rename(&cx, home, b"other", home, b"name 1", RenameFlags::default())
        });
    });
    group.bench_function("mkdir", |b| {
        b.iter_batched(
            || fs.rmdir(home, b"dir").ok(),
            |_| fs.mkdir(&cx, home, b"dir", 0o755).map(black_box),
            BatchSize::PerIteration,
        );
    });
    let mut at = 0;
    group.bench_function("lookup", |b| {
        b.iter(|| {
            at = (at + 7919) % list.len();
            fs.lookup(home, &list[at])
        });
    });
    group.bench_function("readdir of all", |b| {
        b.iter(|| {
            let mut count = 0;
            fs.readdir(home, 0, &mut |e| {
                black_box(e.ino);
                count += 1;
                ControlFlow::Continue(())
            })?;
            Ok::<_, pramfs::Error>(count)
        });
    });
    group.finish();
    Ok(())
}

fn all(c: &mut Criterion) {
    for (what, group) in [
        ("data", data as fn(&mut Criterion) -> Result<()>),
        ("names", names),
    ] {
        if let Err(e) = group(c) {
            eprintln!("{what}: {e}");
            std::process::exit(1);
        }
    }
}

criterion_group!(benches, all);
criterion_main!(benches);
