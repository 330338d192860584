//! The cost of an operation on the medium (fences, flushed lines, bytes), counted by the
//! sim backend and compared with the budgets of `docs/consistency.md`.
//!
//! For each row, one thread performs [`OPS`] operations of one kind, or fewer; preparation between
//! them is not counted. The resulting table stands in the document; `PRAMFS_BLESS=1`
//! rewrites the rows of the tests that run.

use std::sync::{Mutex, PoisonError};

use pramfs::inode::{Credentials, Fs, Ino, SetAttr};
use pramfs_medium::journal::set_thread_lane;
use pramfs_medium::pmem::{Counters, SimBackend};
use pramfs_tests::region::fresh;
use pramfs_tests::watchdog::Watchdog;

/// Operations of a row.
pub const OPS: u64 = 100_000;
/// Size of a block.
pub const BLOCK: u64 = 4096;
/// Size of the region of a row; only used pages take memory.
const REGION: usize = 1 << 30;
/// Files of a directory that renames move about.
pub const SET: u64 = 1000;

/// Cost of the operations of one row.
#[derive(Debug, Default, Clone, Copy)]
pub struct Cost {
    pub ops: u64,
    pub total: Counters,
    pub fences: u64,
    pub lines: u64,
    pub bytes: u64,
}

impl Cost {
    pub fn add(&mut self, c: Counters) {
        self.ops += 1;
        self.fences = self.fences.max(c.fences);
        self.lines = self.lines.max(c.flushes);
        self.bytes = self.bytes.max(c.bytes());
        let t = &mut self.total;
        t.fences += c.fences;
        t.flushes += c.flushes;
        t.redundant_flushes += c.redundant_flushes;
        t.stored_bytes += c.stored_bytes;
        t.nt_bytes += c.nt_bytes;
    }

    fn mean(&self, sum: u64) -> f64 {
        sum as f64 / self.ops.max(1) as f64
    }

    fn fences_mean(&self) -> f64 {
        self.mean(self.total.fences)
    }
}

/// One row of the table, and its budget.
pub struct Row {
    pub name: &'static str,
    pub cost: Cost,
    /// Highest mean number of fences.
    pub mean: f64,
    /// Highest number of fences of one operation.
    pub worst: u64,
    /// Operations that it counts.
    ops: u64,
}

impl Row {
    /// A row of so many operations.
    pub fn of(self, ops: u64) -> Row {
        Row { ops, ..self }
    }

    fn markdown(&self) -> String {
        let c = &self.cost;
        format!(
            "| {} | {:.3} | {} | {:.2} | {} | {:.0} | {} | {} |",
            self.name,
            c.fences_mean(),
            c.fences,
            c.mean(c.total.flushes),
            c.lines,
            c.mean(c.total.bytes()),
            c.bytes,
            c.total.redundant_flushes,
        )
    }
}

/// The attribute with the ACL of a file.
pub const ACCESS: &[u8] = b"system.posix_acl_access";

/// An ACL that names user 9, with this mask.
pub fn acl(mask: u8) -> Vec<u8> {
    let entries = [
        (1, 7, !0),
        (2, 7, 9),
        (4, 5, !0),
        (16, mask, !0),
        (32, 0, !0u32),
    ];
    let mut value = vec![2, 0, 0, 0];
    for (tag, perm, id) in entries {
        value.extend([tag, 0, perm, 0]);
        value.extend(id.to_le_bytes());
    }
    value
}

const HEAD: &str = "| operation | fences, mean | worst | lines flushed, mean | worst | bytes written, mean | worst | flushed twice |\n\
                    |---|---|---|---|---|---|---|---|";

/// A file system and its counters.
pub struct Bench {
    pub sim: SimBackend,
    pub fs: Fs,
    pub ctx: Credentials<'static>,
    pub dir: Ino,
    pub cost: Cost,
}

impl Bench {
    fn new() -> Bench {
        set_thread_lane(0);
        let (sim, fs) = fresh(REGION, BLOCK as u32).unwrap();
        let ctx = Credentials::ROOT;
        let dir = fs.mkdir(&ctx, Ino::ROOT, b"d", 0o755).unwrap().ino;
        Bench {
            sim,
            fs,
            ctx,
            dir,
            cost: Cost::default(),
        }
    }

    pub fn count<T>(&mut self, op: impl FnOnce(&Fs) -> pramfs::Result<T>) -> T {
        let before = self.sim.counters();
        let done = op(&self.fs).unwrap();
        self.cost.add(self.sim.counters() - before);
        done
    }

    pub fn file(&self, name: &[u8]) -> Ino {
        self.fs
            .create(&self.ctx, self.dir, name, 0o644)
            .unwrap()
            .ino
    }

    pub fn size(&self, ino: Ino, size: u64) {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.fs.setattr(&Credentials::ROOT, ino, &set).unwrap();
    }
}

/// The name of a file.
pub fn name(i: u64) -> Vec<u8> {
    format!("file-{i:06}").into_bytes()
}

/// Runs one row in its own file system.
pub fn row(name: &'static str, mean: f64, worst: u64, run: impl FnOnce(&mut Bench)) -> Row {
    let mut b = Bench::new();
    run(&mut b);
    Row {
        name,
        cost: b.cost,
        mean,
        worst,
        ops: OPS,
    }
}

const DOC: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/consistency.md");
const BEGIN: &str = "<!-- the table of tests/ops/*/cost.rs -->";
const END: &str = "<!-- end of the table -->";

/// The document, up to the table, the table, and what follows.
fn document() -> (String, Vec<String>, String) {
    let text = std::fs::read_to_string(DOC).unwrap();
    let (head, rest) = text.split_once(BEGIN).unwrap();
    let (table, tail) = rest.split_once(END).unwrap();
    let table = table.trim().lines().map(str::to_owned).collect();
    (head.to_owned(), table, tail.to_owned())
}

/// A column of a row of the table.
fn column(line: &str, at: usize) -> &str {
    line.split('|').nth(at + 1).unwrap_or("").trim()
}

/// Writes a row into the document, or reports the difference.
fn hold_against_document(row: &Row) {
    // Tests of several operations may write.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (head, mut table, tail) = document();
    let line = row.markdown();
    let there = table.iter().position(|l| column(l, 0) == row.name);
    if there.is_some_and(|at| table[at] == line) {
        return;
    }
    if std::env::var_os("PRAMFS_BLESS").is_some() {
        match there {
            Some(at) => table[at] = line,
            None => table.push(line),
        }
        let table = table.join("\n");
        std::fs::write(DOC, format!("{head}{BEGIN}\n{table}\n{END}{tail}")).unwrap();
        return;
    }
    let there = there.map_or("", |at| &table[at]);
    // Only fences have a budget; lines and bytes are information.
    let fences = |line: &str| [0, 1, 2].map(|at| column(line, at).to_owned());
    assert_eq!(
        fences(there),
        fences(&line),
        "the fences in docs/consistency.md are not those measured: run this test with PRAMFS_BLESS=1"
    );
}

/// Checks the budgets of the rows of an operation, and compares them with the document.
pub fn hold(rows: &[Row]) {
    let _watchdog = Watchdog::new("the fence budgets", std::time::Duration::from_secs(1200));
    println!("{HEAD}");
    for r in rows {
        println!("{}", r.markdown());
    }
    for r in rows {
        assert_eq!(r.cost.ops, r.ops, "{}", r.name);
        assert!(
            r.cost.fences_mean() <= r.mean && r.cost.fences <= r.worst,
            "{}: {:.3} fences as the mean and {} at worst; the budget is {} and {}",
            r.name,
            r.cost.fences_mean(),
            r.cost.fences,
            r.mean,
            r.worst
        );
        assert_eq!(
            r.cost.total.redundant_flushes, 0,
            "{}: a line was flushed twice for one fence",
            r.name
        );
    }
    rows.iter().for_each(hold_against_document);
}

/// No row of the document is left over from an earlier test.
#[test]
fn cost_table_has_only_measured_rows() {
    let (_, table, _) = document();
    let (head, rows) = table.split_at(2);
    assert_eq!(head.join("\n"), HEAD);
    let ops = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("ops");
    let sources: Vec<String> = std::fs::read_dir(ops)
        .unwrap()
        .filter_map(|entry| std::fs::read_to_string(entry.unwrap().path().join("cost.rs")).ok())
        .collect();
    assert!(sources.len() >= 15, "{} files", sources.len());
    for name in rows.iter().map(|line| column(line, 0)) {
        let quoted = format!("\"{name}\"");
        let measured = sources.iter().any(|text| text.contains(&quoted));
        assert!(measured, "no test measures the row {name}");
    }
}
