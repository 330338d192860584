//! Rows: a mount that records latencies, against the same mount without (`metrics=`).

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use anyhow::{Context as _, Result};

use super::mount_names::list;
use crate::fixture::{MIB, Mounted, filled_file, open_rw, random_page};
use crate::harness::{Context, Group, Ops, Report, Rng, Row, Side, interleave};
use crate::sys;

/// At most 1 % slower.
const FLOOR: f64 = 0.99;

const ROWS: &[Row] = &[
    Row {
        id: "metrics-create",
        work: "mount with metrics=on, create + unlink of empty files",
        against: "the same with metrics=off",
        floor: FLOOR,
        strictly: false,
    },
    Row {
        id: "metrics-stat",
        work: "mount with metrics=on, stat of missing names",
        against: "the same with metrics=off",
        floor: FLOOR,
        strictly: false,
    },
    Row {
        id: "metrics-read",
        work: "mount with metrics=on, 4 KiB random read, O_DIRECT",
        against: "the same with metrics=off",
        floor: FLOOR,
        strictly: false,
    },
    Row {
        id: "metrics-write",
        work: "mount with metrics=on, 4 KiB random write, O_DIRECT",
        against: "the same with metrics=off",
        floor: FLOOR,
        strictly: false,
    },
];

/// The group.
pub const GROUP: Group = Group {
    rows: ROWS,
    measure,
};

const FILE: u64 = 64 * MIB;

/// A mount, with a directory and a file.
struct Contender {
    name: &'static str,
    dir: File,
    file: File,
    mount: Mounted,
}

fn contender(cx: &Context, name: &'static str, option: &str) -> Result<Contender> {
    let mount = Mounted::with_options(cx, name, 256 * MIB, option)?;
    let path = mount.daemon.join("file");
    drop(filled_file(&path, FILE)?);
    Ok(Contender {
        name,
        dir: File::open(mount.daemon.path()).context(name)?,
        file: open_rw(&path, true)?,
        mount,
    })
}

fn measure(cx: &Context, out: &mut Report) -> Result<()> {
    let both = [
        contender(cx, "metrics-on", ",metrics=on")?,
        contender(cx, "metrics-off", ",metrics=off")?,
    ];
    let names = list();
    let rounds = Ops::Fixed(cx.scaled(10) * names.len() as u64);

    let create = |c: &Contender, ops: u64| -> Result<()> {
        for _ in 0..ops / names.len() as u64 {
            names
                .iter()
                .try_for_each(|n| sys::create_at(c.dir.as_fd(), n))?;
            names
                .iter()
                .try_for_each(|n| sys::unlink_at(c.dir.as_fd(), n, false))?;
        }
        Ok(())
    };
    record(cx, out, &ROWS[0], rounds, &both, |c, _, ops| create(c, ops))?;

    record(cx, out, &ROWS[1], Ops::Calibrated, &both, |c, seed, ops| {
        let mut rng = Rng::new(seed);
        for _ in 0..ops {
            // Negative answers are cached, so each name is new.
            let name = format!("missing-{}", rng.next());
            let found = c.mount.daemon.join(&name).symlink_metadata();
            anyhow::ensure!(found.is_err(), "{name} exists");
        }
        Ok(())
    })?;

    let page = sys::Aligned::filled(sys::PAGE, 0xa5)?;
    let pages = FILE / sys::PAGE as u64;
    record(cx, out, &ROWS[2], Ops::Calibrated, &both, |c, seed, ops| {
        let (mut rng, mut room) = (Rng::new(seed), sys::Aligned::filled(sys::PAGE, 0)?);
        for _ in 0..ops {
            c.file
                .read_exact_at(room.bytes_mut(), random_page(&mut rng, pages))?;
        }
        Ok(())
    })?;
    record(cx, out, &ROWS[3], Ops::Calibrated, &both, |c, seed, ops| {
        let mut rng = Rng::new(seed);
        for _ in 0..ops {
            c.file
                .write_all_at(page.bytes(), random_page(&mut rng, pages))?;
        }
        Ok(())
    })
}

/// Runs the same work on both mounts, by turns.
fn record(
    cx: &Context,
    out: &mut Report,
    row: &Row,
    ops: Ops,
    both: &[Contender; 2],
    work: impl Fn(&Contender, u64, u64) -> Result<()>,
) -> Result<()> {
    if !out.wants(row.id) {
        return Ok(());
    }
    let work = &work;
    let side =
        |c: &'static str, of: usize| Side::whole(c, move |seed, ops| work(&both[of], seed, ops));
    let mut sides = [side(both[0].name, 0), side(both[1].name, 1)];
    let m = interleave(cx, ops, &mut sides)?;
    out.record(row, &m, (0, 1), &[]);
    Ok(())
}
