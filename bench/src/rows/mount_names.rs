//! Rows: create + unlink of empty files through the mount, against the
//! minimal server, fuse2fs and bindfs.

use std::cell::Cell;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsFd;
use std::time::Instant;

use anyhow::{Context as _, Result};

use super::peers;
use crate::fixture::{MIB, Mounted, names};
use crate::harness::daemon::Daemon;
use crate::harness::scratch::MountDir;
use crate::harness::{Context, Group, Ops, Report, Row, Side, interleave};
use crate::sys;

const ROWS: &[Row] = &[
    Row {
        id: "mount-create-minimal",
        work: "mount, create + unlink of empty files, durable",
        against: "minimal fuser server, hash map",
        floor: 0.8,
        strictly: false,
    },
    Row {
        id: "mount-create-fuse2fs",
        work: "mount, create + unlink of empty files, durable",
        against: "fuse2fs on tmpfs (not durable)",
        floor: 1.0,
        strictly: true,
    },
    Row {
        id: "mount-create-bindfs",
        work: "mount, create + unlink of empty files, durable",
        against: "bindfs over tmpfs (not durable)",
        floor: 1.0,
        strictly: true,
    },
];

/// The group.
pub const GROUP: Group = Group {
    rows: ROWS,
    measure,
};

const BATCH: usize = 250;

/// A contender: its server, its working directory, its counter.
pub(super) struct Contender {
    name: &'static str,
    dir: File,
    requests: Cell<u64>,
    ops: Cell<u64>,
    daemon: Daemon,
    /// The file system below the server; dropped after it.
    _under: Option<MountDir>,
}

impl Contender {
    pub(super) fn new(
        name: &'static str,
        daemon: Daemon,
        under: Option<MountDir>,
    ) -> Result<Contender> {
        let dir = File::open(daemon.path()).with_context(|| name.to_owned())?;
        let (requests, ops) = (Cell::new(0), Cell::new(0));
        Ok(Contender {
            name,
            dir,
            requests,
            ops,
            daemon,
            _under: under,
        })
    }

    /// Returns the requests for each create + unlink.
    pub(super) fn each(&self) -> f64 {
        self.requests.get() as f64 / self.ops.get().max(1) as f64
    }
}

fn measure(cx: &Context, out: &mut Report) -> Result<()> {
    let ours = Mounted::pramfs(cx, "ours", 1024 * MIB)?;
    let mut contenders = vec![Contender::new("ours", ours.daemon, Some(ours.tmpfs))?];
    // One row for each competitor, measured or not.
    let mut at = [None; 3];
    type Start = fn(&Context) -> Result<Contender>;
    let others: [Start; 3] = [
        |cx| {
            let m = Mounted::minimal(cx, "theirs", MIB)?;
            Contender::new("minimal server", m.daemon, Some(m.tmpfs))
        },
        |cx| {
            let m = peers::fuse2fs(cx, 256 * MIB)?;
            Contender::new("fuse2fs", m.daemon, Some(m.tmpfs))
        },
        |cx| {
            let m = peers::bindfs(cx, 64 * MIB)?;
            Contender::new("bindfs", m.daemon, Some(m.tmpfs))
        },
    ];
    for (i, start) in others.into_iter().enumerate() {
        match start(cx) {
            Ok(c) => {
                at[i] = Some(contenders.len());
                contenders.push(c);
            }
            Err(e) => out.cannot(&ROWS[i], &format!("{e:#}")),
        }
    }
    let list = list();
    let m = interleave(cx, round_of(cx), &mut sides(&contenders, &list))?;
    for (i, at) in at.into_iter().enumerate() {
        let Some(at) = at else { continue };
        let (a, b) = (&contenders[0], &contenders[at]);
        let note = format!(
            "requests for each create + unlink: ours {:.2}, {} {:.2}{}",
            a.each(),
            b.name,
            b.each(),
            if i == 1 {
                " (including its reads of the image)"
            } else {
                ""
            }
        );
        out.record(&ROWS[i], &m, (0, at), &[note]);
    }
    Ok(())
}

/// Returns the names for [`sides`].
pub(super) fn list() -> Vec<CString> {
    names(11, BATCH)
}

/// Returns a side for each contender that creates and unlinks.
pub(super) fn sides<'a>(contenders: &'a [Contender], list: &'a [CString]) -> Vec<Side<'a>> {
    let side = |c: &'a Contender| Side::timed(c.name, |_, ops| round(c, list, ops));
    contenders.iter().map(side).collect()
}

/// Returns the number of operations in a round.
pub(super) fn round_of(cx: &Context) -> Ops {
    Ops::Fixed(cx.scaled(10) * BATCH as u64)
}

fn round(c: &Contender, list: &[CString], ops: u64) -> Result<std::time::Duration> {
    let d = c.dir.as_fd();
    let before = c.daemon.reads()?;
    let start = Instant::now();
    for _ in 0..ops / list.len() as u64 {
        list.iter().try_for_each(|n| sys::create_at(d, n))?;
        list.iter().try_for_each(|n| sys::unlink_at(d, n, false))?;
    }
    let took = start.elapsed();
    c.requests
        .set(c.requests.get() + c.daemon.reads()? - before);
    c.ops.set(c.ops.get() + ops);
    Ok(took)
}
