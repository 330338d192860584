//! Rows: the database redb on a file of a region, against its own file backend on tmpfs and on
//! ext4.
//!
//! The same program, with the same cache, on three storages. A commit is one transaction that
//! replaces one value of a table, and is durable: on tmpfs, the fsync of redb does nothing; on
//! ext4 it writes the journal.

use std::time::Duration;

use anyhow::{Context as _, Result};
use pramfs::FileSystem;
use redb::{Builder, Database, ReadableDatabase, TableDefinition};

use crate::fixture::{Direct, MIB};
use crate::harness::{Context, Group, Huge, Ops, Report, Rng, Row, Side, interleave};
use crate::reproductions::sites::{EXT4, TMPFS};

/// Of each storage.
const SIZE: u64 = 256 * MIB;
const KEYS: u64 = 50_000;
const VALUE: usize = 200;
/// Of redb. The table is larger: reads reach the storage.
const CACHE: usize = 2 << 20;
const TABLE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("values");

const ROWS: &[Row] = &[
    Row {
        id: "redb-commit",
        work: "redb on a region, transaction of one value, durable",
        against: "redb on tmpfs (not durable)",
        floor: 0.9,
        strictly: false,
    },
    Row {
        id: "redb-commit-ext4",
        work: "redb on a region, transaction of one value, durable",
        against: "redb on ext4 on a RAM disk",
        floor: 1.5,
        strictly: false,
    },
    Row {
        id: "redb-get",
        work: "redb on a region, random reads",
        against: "redb on tmpfs",
        floor: 1.0,
        strictly: false,
    },
];

/// The group.
pub const GROUP: Group = Group {
    rows: ROWS,
    measure,
};

fn builder() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE);
    builder
}

/// Fills the table.
fn filled(db: Database) -> Result<Database> {
    let change = db.begin_write()?;
    {
        let mut table = change.open_table(TABLE)?;
        for key in 0..KEYS {
            table.insert(key, [0x5a; VALUE].as_slice())?;
        }
    }
    change.commit()?;
    Ok(db)
}

fn commits(db: &Database, seed: u64, ops: u64) -> Result<()> {
    let mut rng = Rng::new(seed);
    for op in 0..ops {
        let change = db.begin_write()?;
        change
            .open_table(TABLE)?
            .insert(rng.below(KEYS), [op as u8; VALUE].as_slice())?;
        change.commit()?;
    }
    Ok(())
}

fn gets(db: &Database, seed: u64, ops: u64) -> Result<()> {
    let mut rng = Rng::new(seed);
    let table = db.begin_read()?.open_table(TABLE)?;
    for _ in 0..ops {
        let found = table.get(rng.below(KEYS))?.context("a key is missing")?;
        std::hint::black_box(found.value());
    }
    Ok(())
}

fn measure(cx: &Context, out: &mut Report) -> Result<()> {
    let [commit, commit_ext4, get] = ROWS else {
        unreachable!("there are three rows");
    };
    if !ROWS.iter().any(|row| out.wants(row.id)) {
        return Ok(());
    }
    let region = Direct::new(cx, "redb", SIZE, MIB, Huge::Never)?;
    let described = region.describe();
    let Direct { fs, tmpfs, .. } = region;
    let fs = FileSystem::from(fs);
    let storage = pramfs_redb::Storage::create(&fs, "/db")?;
    let ours = filled(builder().create_with_backend(storage)?)?;

    let site = |kind: crate::reproductions::sites::Kind| {
        // The file makes it large enough, and its pages exist.
        kind.with_files(cx, 1, SIZE).and_then(|site| {
            std::fs::remove_file(site.file(0))?;
            let db = filled(builder().create(site.join("db"))?)?;
            Ok((db, site))
        })
    };
    let (theirs, _theirs_site) = site(TMPFS)?;
    let disk = site(EXT4);

    let mut sides = vec![
        Side::whole("redb on a region", |seed, ops| commits(&ours, seed, ops)),
        Side::whole("redb on tmpfs", |seed, ops| commits(&theirs, seed, ops)),
    ];
    match &disk {
        Ok((db, _)) => {
            sides.push(Side::whole("redb on ext4", |seed, ops| {
                commits(db, seed, ops)
            }));
        }
        Err(e) => out.cannot(commit_ext4, &format!("{e:#}")),
    }
    let m = interleave(cx, Ops::Calibrated, &mut sides)?;
    drop(sides);
    let us = |side| Duration::from_nanos(m.median_ns(side) as u64);
    out.record(commit, &m, (0, 1), std::slice::from_ref(&described));
    if disk.is_ok() {
        let note = format!("a transaction on tmpfs: {:?}", us(1));
        out.record(commit_ext4, &m, (0, 2), &[described.clone(), note]);
    }
    let m = interleave(
        cx,
        Ops::Calibrated,
        &mut [
            Side::whole("redb on a region", |seed, ops| gets(&ours, seed, ops)),
            Side::whole("redb on tmpfs", |seed, ops| gets(&theirs, seed, ops)),
        ],
    )?;
    out.record(get, &m, (0, 1), &[described]);
    drop(ours);
    fs.unmount()?;
    drop(tmpfs);
    Ok(())
}
