//! Rows: the transports of the mount, against the minimal server, each other, and ext4.
//!
//! Clients and servers run on any processor here: what waking another processor costs is the
//! question. FUSE over io_uring is switched on for the rows and set back afterwards.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::dbench::AllProcessors;
use super::mount_io::{SEQUENTIAL, ServersIo};
use crate::fixture::{MIB, Mounted, debian_program, open_rw, random_page};
use crate::harness::{
    Context, Group, Huge, Ops, Report, Rng, Row, Side, interleave, interleave_rounds,
};
use crate::minimal::DATA;
use crate::reproductions::sites::EXT4;
use crate::sys::{Aligned, PAGE};

const fn row(id: &'static str, work: &'static str, against: &'static str, floor: f64) -> Row {
    Row {
        id,
        work,
        against,
        floor,
        strictly: false,
    }
}

const MINIMAL: &str = "minimal fuser server";
const BY_FUSER: &str = "our mount by fuser";
const BY_DEV: &str = "dev";
const ON_TMPFS: &str = "tmpfs";
const BY_SERVER: &str = "dev, opens=server";
const ON_EXT4: &str = "ext4 on a RAM disk (not durable)";

/// Reads and writes.
pub const IO: Group = Group {
    rows: &[
        row(
            "transport-uring-read",
            "uring, O_DIRECT 4 KiB random read, 1 client",
            MINIMAL,
            1.25,
        ),
        row(
            "transport-uring-read-2",
            "uring, O_DIRECT 4 KiB random read, 2 clients",
            MINIMAL,
            1.4,
        ),
        row(
            "transport-uring-p99",
            "uring, the same, 1 client, p99",
            MINIMAL,
            3.0,
        ),
        row(
            "transport-dev-read",
            "dev, O_DIRECT 4 KiB random read, 1 client",
            MINIMAL,
            1.0,
        ),
        row(
            "transport-poll-read",
            "dev, busy-poll=50, the same, 1 client",
            MINIMAL,
            1.25,
        ),
        row(
            "transport-poll-read-2",
            "dev, busy-poll=50, the same, 2 clients",
            MINIMAL,
            1.0,
        ),
        row(
            "transport-takeover-read",
            "dev, takeover=on, the same, 1 client",
            BY_DEV,
            0.98,
        ),
        row(
            "transport-uring-seq-read",
            "uring, 1 MiB read, O_DIRECT",
            MINIMAL,
            0.65,
        ),
        row(
            "transport-uring-seq-write",
            "uring, 1 MiB write, O_DIRECT",
            MINIMAL,
            0.65,
        ),
        row(
            "transport-uring-seq-read-buffered",
            "uring, 1 MiB read, cache dropped",
            MINIMAL,
            0.65,
        ),
        row(
            "transport-uring-seq-write-buffered",
            "uring, 1 MiB write, buffered",
            MINIMAL,
            0.65,
        ),
        row(
            "transport-dev-seq-read",
            "dev, 1 MiB read, O_DIRECT",
            MINIMAL,
            0.97,
        ),
        row(
            "transport-dev-seq-write",
            "dev, 1 MiB write, O_DIRECT",
            MINIMAL,
            0.97,
        ),
        row(
            "transport-dev-seq-read-buffered",
            "dev, 1 MiB read, cache dropped",
            MINIMAL,
            0.97,
        ),
        row(
            "transport-dev-seq-write-buffered",
            "dev, 1 MiB write, buffered",
            MINIMAL,
            0.97,
        ),
    ],
    measure: measure_io,
};

/// A real tree of files.
pub const TREES: Group = Group {
    rows: &[
        row("tree-untar-uring", "uring, untar of a tree", BY_FUSER, 2.0),
        row("tree-copy-uring", "uring, cp -a of a tree", BY_FUSER, 2.0),
        row(
            "tree-remove-uring",
            "uring, rm -rf of a tree",
            BY_FUSER,
            2.0,
        ),
        row(
            "tree-git-uring",
            "uring, git add, commit, status",
            BY_FUSER,
            1.5,
        ),
        row("tree-untar-dev", "dev, untar of a tree", BY_FUSER, 1.0),
        row("tree-copy-dev", "dev, cp -a of a tree", BY_FUSER, 1.0),
        row("tree-remove-dev", "dev, rm -rf of a tree", BY_FUSER, 1.0),
        row(
            "tree-git-dev",
            "dev, git add, commit, status",
            BY_FUSER,
            1.0,
        ),
        row("tree-untar-ext4", "uring, untar of a tree", ON_EXT4, 0.25),
        row(
            "tree-git-ext4",
            "uring, git add, commit, status",
            ON_EXT4,
            0.6,
        ),
        row(
            "tree-grep-uring",
            "uring, opens=kernel, grep -r of a cached tree",
            ON_TMPFS,
            0.5,
        ),
        row(
            "tree-grep-dev",
            "dev, opens=kernel, grep -r of a cached tree",
            ON_TMPFS,
            0.5,
        ),
        row(
            "tree-grep-dev-server",
            "dev, the same against opens=server",
            BY_SERVER,
            1.0,
        ),
    ],
    measure: measure_trees,
};

const FILE: u64 = 512 * MIB;
const REGION: u64 = 1024 * MIB;
/// A round of a tree takes seconds.
const ROUNDS: u32 = 7;
/// The tree: the headers that a C compiler needs.
const TREE: &str = "/usr/include";

/// FUSE over io_uring, switched on for new mounts.
pub(super) struct Switch {
    before: String,
}

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

impl Switch {
    pub(super) fn on() -> Result<Switch> {
        let before = fs::read_to_string(SWITCH)
            .with_context(|| format!("SKIPPED, this kernel has no FUSE over io_uring: {SWITCH}"))?;
        fs::write(SWITCH, "Y").with_context(|| {
            format!("SKIPPED, FUSE over io_uring cannot be switched on: {SWITCH}")
        })?;
        Ok(Switch { before })
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if let Err(e) = fs::write(SWITCH, self.before.trim()) {
            eprintln!("pramfs-bench: {SWITCH} stays switched on: {e}");
        }
    }
}

/// Mounts with one transport, and checks that it serves.
fn mount(cx: &Context, name: &str) -> Result<Mounted> {
    mount_with(cx, name, name, "")
}

/// As [`mount`], with more options.
pub(super) fn mount_with(cx: &Context, name: &str, transport: &str, more: &str) -> Result<Mounted> {
    let options = format!(",transport={transport}{more}");
    let mounted = Mounted::with_options(cx, name, REGION, &options)?;
    if transport == "uring" {
        let tasks = fs::read_dir(format!("/proc/{}/task", mounted.daemon.pid()))?;
        let rings = tasks.flatten().filter(|task| {
            let name = fs::read_to_string(task.path().join("comm"));
            name.is_ok_and(|name| name.trim() == "fuse-0" || name.trim() == "fuse-others")
        });
        ensure!(rings.count() > 1, "SKIPPED, io_uring is not used here");
    }
    Ok(mounted)
}

fn measure_io(cx: &Context, out: &mut Report) -> Result<()> {
    let _everywhere = AllProcessors::new(cx)?;
    let _on = Switch::on()?;
    let all = [
        mount(cx, "uring")?,
        mount(cx, "dev")?,
        Mounted::minimal(cx, "minimal", FILE)?,
        mount_with(cx, "poll", "dev", ",busy-poll=50")?,
        mount_with(cx, "takeover", "dev", ",takeover=on")?,
    ];
    let names = [
        "uring",
        "dev",
        "minimal server",
        "dev, busy-poll",
        "dev, takeover",
    ];
    let io = ServersIo::new(cx, &names, &all)?;
    let [read, two, p99, dev, poll, poll_two, takeover, seq @ ..] = IO.rows else {
        unreachable!("there are fifteen rows");
    };
    if [read, dev, poll, takeover]
        .iter()
        .any(|row| out.wants(row.id))
    {
        let m = interleave(cx, Ops::Calibrated, &mut io.random()?)?;
        out.record(read, &m, (0, 2), &[]);
        out.record(dev, &m, (1, 2), &[]);
        out.record(poll, &m, (3, 2), &[]);
        out.record(takeover, &m, (4, 1), &[]);
    }
    let files: Vec<PathBuf> = all.iter().map(|m| m.daemon.join(DATA)).collect();
    if out.wants(two.id) || out.wants(poll_two.id) {
        let sides = files.iter().zip(names);
        let mut sides: Vec<_> = sides
            .map(|(file, name)| Side::timed(name, move |seed, ops| read_by_two(file, seed, ops)))
            .collect();
        let m = interleave(cx, Ops::Calibrated, &mut sides)?;
        out.record(two, &m, (0, 2), &[]);
        out.record(poll_two, &m, (3, 2), &[]);
    }
    if out.wants(p99.id) {
        let sides = files.iter().zip(names);
        let mut sides: Vec<_> = sides
            .map(|(file, name)| Side::timed(name, move |seed, ops| slow_read(file, seed, ops)))
            .collect();
        let m = interleave(cx, Ops::Fixed(cx.scaled(5000)), &mut sides)?;
        out.record(p99, &m, (0, 2), &[]);
    }
    let (by_uring, by_dev) = seq.split_at(SEQUENTIAL.len());
    for (at, mode) in SEQUENTIAL.into_iter().enumerate() {
        if out.wants(by_uring[at].id) || out.wants(by_dev[at].id) {
            let m = interleave(cx, io.whole(), &mut io.sequential(mode)?)?;
            out.record(&by_uring[at], &m, (0, 2), &[io.rates(&m)]);
            out.record(&by_dev[at], &m, (1, 2), &[io.rates(&m)]);
        }
    }
    Ok(())
}

fn read_random(file: &Path, seed: u64, ops: u64, mut each: impl FnMut(Duration)) -> Result<()> {
    let file = open_rw(file, true)?;
    let (mut rng, mut buffer) = (Rng::new(seed), Aligned::filled(PAGE, 0)?);
    for _ in 0..ops {
        let page = random_page(&mut rng, FILE / PAGE as u64);
        let start = Instant::now();
        file.read_exact_at(buffer.bytes_mut(), page)?;
        each(start.elapsed());
    }
    Ok(())
}

/// Two clients share the reads. Returns the time until both are done.
fn read_by_two(file: &Path, seed: u64, ops: u64) -> Result<Duration> {
    let start = Instant::now();
    std::thread::scope(|scope| {
        let clients = [0, 1]
            .map(|n| scope.spawn(move || read_random(file, seed + n, ops.div_ceil(2), |_| {})));
        clients.into_iter().try_for_each(|client| {
            client
                .join()
                .unwrap_or_else(|_| Err(anyhow::anyhow!("a client panicked")))
        })
    })?;
    Ok(start.elapsed())
}

/// Returns the 99th percentile of the reads, as if each had taken that long.
fn slow_read(file: &Path, seed: u64, ops: u64) -> Result<Duration> {
    let mut all = Vec::with_capacity(ops as usize);
    read_random(file, seed, ops, |took| all.push(took))?;
    all.sort();
    let at = (all.len() * 99 / 100).min(all.len().saturating_sub(1));
    let slow = all.get(at).context("no reads")?;
    Ok(*slow * u32::try_from(ops)?)
}

/// Programs, and the tree as an archive.
struct Trees {
    archive: PathBuf,
    tar: PathBuf,
    git: PathBuf,
}

fn run(command: &mut Command) -> Result<Duration> {
    let start = Instant::now();
    let out = command.stdin(Stdio::null()).output()?;
    let took = start.elapsed();
    let errors = String::from_utf8_lossy(&out.stderr);
    ensure!(
        out.status.success(),
        "{command:?}: {}: {errors}",
        out.status
    );
    Ok(took)
}

impl Trees {
    fn remove(&self, dir: &Path) -> Result<Duration> {
        run(Command::new("rm").arg("-rf").arg(dir))
    }

    fn untar(&self, at: &Path) -> Result<Duration> {
        let (tree, tar) = (at.join("tree"), &self.tar);
        self.remove(&tree)?;
        fs::create_dir(&tree)?;
        run(Command::new(tar)
            .arg("-C")
            .arg(&tree)
            .arg("-xf")
            .arg(&self.archive))
    }

    fn copy(&self, at: &Path) -> Result<Duration> {
        let copy = at.join("copy");
        self.remove(&copy)?;
        run(Command::new("cp").arg("-a").arg(at.join("tree")).arg(copy))
    }

    fn remove_copy(&self, at: &Path) -> Result<Duration> {
        self.copy(at)?;
        self.remove(&at.join("copy"))
    }

    /// Searches all files of the tree, which the page cache has after the first time.
    fn grep(&self, at: &Path) -> Result<Duration> {
        let tree = at.join("tree");
        // Finds nothing: the pattern stands in this program alone.
        let absent = ["pramfs-bench", "finds", "nothing"].join("-");
        let start = Instant::now();
        let out = Command::new("grep")
            .args(["-r", "-F", &absent])
            .arg(&tree)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .output()?;
        let took = start.elapsed();
        ensure!(
            out.status.code() == Some(1),
            "grep -r: {}: {}",
            out.status,
            String::from_utf8_lossy(&out.stderr)
        );
        Ok(took)
    }

    fn commit(&self, at: &Path) -> Result<Duration> {
        let tree = at.join("tree");
        self.remove(&tree.join(".git"))?;
        let git = |arguments: &[&str]| {
            let mut command = Command::new(&self.git);
            let who = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"];
            // Nothing goes on in the background while the next round removes the repository.
            let quiet = ["-c", "gc.auto=0", "-c", "maintenance.auto=false"];
            command
                .arg("-C")
                .arg(&tree)
                .args(who)
                .args(quiet)
                .args(arguments);
            // The settings of this machine do not count.
            command.env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", at);
            run(&mut command)
        };
        git(&["init", "-q"])?;
        Ok(git(&["add", "."])? + git(&["commit", "-q", "-m", "tree"])? + git(&["status"])?)
    }
}

fn measure_trees(cx: &Context, out: &mut Report) -> Result<()> {
    let _everywhere = AllProcessors::new(cx)?;
    let _on = Switch::on()?;
    let scratch = cx.scratch.tmpfs("archive", 256 * MIB, Huge::Never)?;
    let trees = Trees {
        archive: scratch.join("tree.tar"),
        tar: debian_program("tar", "tar")?,
        git: debian_program("git", "git")?,
    };
    let source = Path::new(TREE);
    run(Command::new(&trees.tar)
        .arg("-C")
        .arg(source)
        .arg("-cf")
        .arg(&trees.archive)
        .arg("."))?;
    measure_changes(cx, out, &trees)?;
    measure_grep(cx, out, &trees)
}

/// Makes, copies and removes trees, and commits one.
fn measure_changes(cx: &Context, out: &mut Report, trees: &Trees) -> Result<()> {
    let [changes @ .., _, _, _] = TREES.rows else {
        unreachable!("there are thirteen rows");
    };
    if !changes.iter().any(|row| out.wants(row.id)) {
        return Ok(());
    }
    let ours = [mount(cx, "uring")?, mount(cx, "dev")?, mount(cx, "fuser")?];
    // The file makes it large enough.
    let ext4 = EXT4.with_files(cx, 1, REGION).and_then(|site| {
        fs::remove_file(site.file(0))?;
        Ok(site)
    });
    let mut places: Vec<(&str, PathBuf)> = ["uring", "dev", "fuser"]
        .into_iter()
        .zip(ours.iter().map(|m| m.daemon.path().to_owned()))
        .collect();
    if let Ok(ext4) = &ext4 {
        places.push(("ext4", ext4.dir.clone()));
    }
    type Work = fn(&Trees, &Path) -> Result<Duration>;
    // The row, and its two sides.
    type Compared = (usize, (usize, usize));
    let works: [(Work, &[Compared]); 4] = [
        (Trees::untar, &[(0, (0, 2)), (4, (1, 2)), (8, (0, 3))]),
        (Trees::copy, &[(1, (0, 2)), (5, (1, 2))]),
        (Trees::remove_copy, &[(2, (0, 2)), (6, (1, 2))]),
        (Trees::commit, &[(3, (0, 2)), (7, (1, 2)), (9, (0, 3))]),
    ];
    let rounds = if cx.quick { 2 } else { ROUNDS };
    for (work, rows) in works {
        let wanted = rows.iter().any(|(row, _)| out.wants(TREES.rows[*row].id));
        // The other works need the tree.
        let first = rows[0].0 == 0;
        if !wanted && !first {
            continue;
        }
        let sides = places.iter();
        let mut sides: Vec<_> = sides
            .map(|(name, at)| Side::timed(*name, move |_, _| work(trees, at)))
            .collect();
        let rounds = if wanted { rounds } else { 1 };
        let m = interleave_rounds(cx, rounds, Ops::Fixed(1), &mut sides)?;
        for (row, pair) in rows {
            let row = &TREES.rows[*row];
            match (&ext4, pair.1) {
                (Err(why), 3) => out.cannot(row, &format!("{why:#}")),
                _ if out.wants(row.id) => out.record(row, &m, *pair, &[]),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Searches a tree that is cached: by `opens=kernel` without a request.
fn measure_grep(cx: &Context, out: &mut Report, trees: &Trees) -> Result<()> {
    let [.., by_uring, by_dev, against_server] = TREES.rows else {
        unreachable!("there are thirteen rows");
    };
    if ![by_uring, by_dev, against_server]
        .iter()
        .any(|row| out.wants(row.id))
    {
        return Ok(());
    }
    let ours = [
        mount_with(cx, "grep-uring", "uring", ",opens=kernel")?,
        mount_with(cx, "grep-dev", "dev", ",opens=kernel")?,
        mount_with(cx, "grep-server", "dev", ",opens=server")?,
    ];
    let names = ["uring, opens=kernel", "dev, opens=kernel", BY_SERVER];
    let tmpfs = cx.scratch.tmpfs("grep", REGION, Huge::Never)?;
    let mut places: Vec<(&str, PathBuf)> = names
        .into_iter()
        .zip(ours.iter().map(|m| m.daemon.path().to_owned()))
        .collect();
    places.push((ON_TMPFS, tmpfs.path().to_owned()));
    for (_, at) in &places {
        trees.untar(at)?;
        // The first time sets due access times.
        trees.grep(at)?;
        trees.grep(at)?;
    }
    let sides = places.iter();
    let mut sides: Vec<_> = sides
        .map(|(name, at)| Side::timed(*name, move |_, _| trees.grep(at)))
        .collect();
    // A round takes a tenth of a second.
    let rounds = if cx.quick { 2 } else { 3 * ROUNDS };
    let m = interleave_rounds(cx, rounds, Ops::Fixed(1), &mut sides)?;
    for (row, pair) in [
        (by_uring, (0, 3)),
        (by_dev, (1, 3)),
        (against_server, (1, 2)),
    ] {
        if out.wants(row.id) {
            out.record(row, &m, pair, &[]);
        }
    }
    Ok(())
}
