//! Rows: dbench, the load of four clients of a file server, against fuse2fs and
//! bindfs; and with writes held back, against the durable mount, ext4 and bindfs.
//!
//! Clients and servers share all processors here, to show whether a server makes clients
//! wait for each other.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::peers;
use super::transports::{Switch, mount_with};
use crate::fixture::{MIB, Mounted, debian_program};
use crate::harness::{Context, Group, Ops, Report, Row, Side, interleave_rounds};
use crate::reproductions::sites::EXT4;
use crate::sys;

const ROWS: &[Row] = &[
    Row {
        id: "dbench-fuse2fs",
        work: "mount, dbench with 4 clients, a MB, durable",
        against: "fuse2fs on tmpfs (not durable)",
        floor: 8.0,
        strictly: false,
    },
    Row {
        id: "dbench-bindfs",
        work: "mount, dbench with 4 clients, a MB, durable",
        against: "bindfs over tmpfs (not durable)",
        floor: 1.2,
        strictly: false,
    },
];

/// The group.
pub const GROUP: Group = Group {
    rows: ROWS,
    measure,
};

const CLIENTS: &str = "4";
/// Space for the files of all clients.
pub(super) const SIZE: u64 = 1024 * MIB;
/// Few rounds, since dbench runs for whole seconds.
const ROUNDS: u32 = 7;
const SECONDS: u64 = 4;

/// Lets this thread and its children run on all processors while it lives.
pub(super) struct AllProcessors<'c>(&'c Context);

impl<'c> AllProcessors<'c> {
    pub(super) fn new(cx: &'c Context) -> Result<AllProcessors<'c>> {
        sys::pin_to_cpus(&cx.cpus)?;
        Ok(AllProcessors(cx))
    }
}

impl Drop for AllProcessors<'_> {
    fn drop(&mut self) {
        if let Some(cpu) = self.0.cpus.last()
            && let Err(e) = sys::pin_to_cpu(*cpu)
        {
            eprintln!("pramfs-bench: returning to one processor: {e}");
        }
    }
}

fn measure(cx: &Context, out: &mut Report) -> Result<()> {
    let _everywhere = AllProcessors::new(cx)?;
    let mut contenders = vec![("ours", Mounted::pramfs(cx, "ours", SIZE)?)];
    // One row for each competitor, measured or not.
    type Start = fn(&Context) -> Result<Mounted>;
    let others: [(&str, Start); 2] = [
        ("fuse2fs", |cx| peers::fuse2fs(cx, SIZE)),
        ("bindfs", |cx| peers::bindfs(cx, SIZE)),
    ];
    let mut at = [None; 2];
    for (i, (name, start)) in others.into_iter().enumerate() {
        match start(cx) {
            Ok(mounted) => {
                at[i] = Some(contenders.len());
                contenders.push((name, mounted));
            }
            Err(e) => out.cannot(&ROWS[i], &format!("{e:#}")),
        }
    }
    let (count, ops) = rounds(cx);
    let m = interleave_rounds(cx, count, ops, &mut sides(cx, &contenders)?)?;
    let rate_of = |side| 1e9 / m.median_ns(side);
    for (i, at) in at.into_iter().enumerate() {
        let Some(at) = at else { continue };
        let note = format!(
            "MB/s: ours {:.0}, {} {:.0}; {} s a round, all processors",
            rate_of(0),
            contenders[at].0,
            rate_of(at),
            seconds(cx)
        );
        out.record(&ROWS[i], &m, (0, at), &[note]);
    }
    Ok(())
}

/// Four clients whose writes the kernel holds back.
pub const HELD_BACK: Group = Group {
    rows: &[
        Row {
            id: "dbench-writeback-fuser",
            work: "cache=writeback, dbench with 4 clients, a MB",
            against: "our mount by fuser (durable)",
            floor: 1.4,
            strictly: false,
        },
        Row {
            id: "dbench-writeback-ext4",
            work: "cache=writeback, dbench with 4 clients, a MB",
            against: "ext4 on a RAM disk (not durable)",
            floor: 1.1,
            strictly: false,
        },
        Row {
            id: "dbench-writeback-bindfs",
            work: "cache=writeback, dbench with 4 clients, a MB",
            against: "bindfs over tmpfs (not durable)",
            floor: 4.0,
            strictly: false,
        },
    ],
    measure: measure_held_back,
};

fn measure_held_back(cx: &Context, out: &mut Report) -> Result<()> {
    let [fuser, ext4, bindfs] = HELD_BACK.rows else {
        unreachable!("there are three rows");
    };
    if !HELD_BACK.rows.iter().any(|row| out.wants(row.id)) {
        return Ok(());
    }
    let _everywhere = AllProcessors::new(cx)?;
    let _on = Switch::on()?;
    let held_back = mount_with(cx, "writeback", "uring", ",cache=writeback")?;
    let durable = mount_with(cx, "durable", "fuser", "")?;
    let mut places = vec![
        ("writeback", held_back.daemon.path().to_owned()),
        ("fuser", durable.daemon.path().to_owned()),
    ];
    let mut compared = vec![(fuser, 1)];
    // The file makes it large enough.
    let on_ext4 = EXT4.with_files(cx, 1, SIZE).and_then(|site| {
        std::fs::remove_file(site.file(0))?;
        Ok(site)
    });
    match &on_ext4 {
        Ok(site) => {
            compared.push((ext4, places.len()));
            places.push(("ext4", site.dir.clone()));
        }
        Err(e) => out.cannot(ext4, &format!("{e:#}")),
    }
    let on_bindfs = peers::bindfs(cx, SIZE);
    match &on_bindfs {
        Ok(mounted) => {
            compared.push((bindfs, places.len()));
            places.push(("bindfs", mounted.daemon.path().to_owned()));
        }
        Err(e) => out.cannot(bindfs, &format!("{e:#}")),
    }
    let (count, ops) = rounds(cx);
    let at = places.iter().map(|(name, at)| (*name, at.as_path()));
    let m = interleave_rounds(cx, count, ops, &mut sides_at(cx, at)?)?;
    for (row, at) in compared {
        let rate_of = |side| 1e9 / m.median_ns(side);
        let note = format!(
            "MB/s: ours {:.0}, {} {:.0}; {} s a round, all processors, by io_uring",
            rate_of(0),
            places[at].0,
            rate_of(at),
            seconds(cx)
        );
        out.record(row, &m, (0, at), &[note]);
    }
    Ok(())
}

fn seconds(cx: &Context) -> u64 {
    if cx.quick { 2 } else { SECONDS }
}

/// Returns a side for each of them that runs dbench.
///
/// # Errors
/// If dbench is not installed.
pub(super) fn sides<'a>(
    cx: &'a Context,
    contenders: &'a [(&str, Mounted)],
) -> Result<Vec<Side<'a>>> {
    let places = contenders.iter();
    sides_at(
        cx,
        places.map(|(name, mounted)| (*name, mounted.daemon.path())),
    )
}

/// As [`sides`], in these directories.
fn sides_at<'a>(
    cx: &'a Context,
    places: impl IntoIterator<Item = (&'a str, &'a Path)>,
) -> Result<Vec<Side<'a>>> {
    let program = debian_program("dbench", "dbench")?;
    let side = |(name, at)| {
        let program = program.clone();
        Side::timed(name, move |_, megabytes| {
            let mut command = Command::new(&program);
            command.arg("-D").arg(at);
            command.args(["-t", &seconds(cx).to_string(), CLIENTS]);
            Ok(time_of(megabytes, rate(command)?))
        })
    };
    Ok(places.into_iter().map(side).collect())
}

/// Returns the number of rounds, and the megabytes of one.
pub(super) fn rounds(cx: &Context) -> (u32, Ops) {
    (cx.rounds.min(ROUNDS), Ops::Fixed(1000))
}

/// Returns the final MB/s of dbench, over all its clients.
fn rate(mut command: Command) -> Result<f64> {
    sys::kill_with_parent(&mut command);
    let out = command.output().context("starting dbench")?;
    let said = String::from_utf8_lossy(&out.stdout);
    ensure!(
        out.status.success(),
        "dbench: {}: {}{}",
        out.status,
        said.lines().last().unwrap_or_default(),
        String::from_utf8_lossy(&out.stderr).trim()
    );
    parse(&said).with_context(|| format!("dbench printed no throughput: {said}"))
}

fn parse(said: &str) -> Option<f64> {
    let line = said.lines().find_map(|l| l.strip_prefix("Throughput "))?;
    line.split(' ')
        .next()?
        .parse()
        .ok()
        .filter(|rate| *rate > 0.0)
}

/// Returns the time that `megabytes` take at that rate.
fn time_of(megabytes: u64, rate: f64) -> Duration {
    Duration::from_secs_f64(megabytes as f64 / rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dbench_closing_line_is_parsed() {
        let said = "\n Flush 2642 0.043 5.385\n\nThroughput 225.323 MB/sec  4 clients  4 procs  max_latency=74.647 ms\n";
        assert_eq!(parse(said), Some(225.323));
        assert_eq!(parse("Throughput 0 MB/sec"), None);
        assert_eq!(parse("no clients"), None);
        assert_eq!(time_of(1000, 250.0), Duration::from_secs(4));
    }
}
