//! The cost of each operation on the medium (fences, flushed lines, bytes), counted by
//! the sim backend and compared with the budgets of `docs/consistency.md`.
//!
//! For each row, one thread performs [`OPS`] operations of one kind; preparation between
//! them is not counted. The resulting table stands in the document; `PRAMFS_BLESS=1`
//! rewrites it there.

use std::fmt::Write as _;

use pramfs::{
    Fallocate, RenameFlags, XattrMode,
    inode::{Credentials, Fs, Ino, SetAttr},
};
use pramfs_medium::journal::set_thread_lane;
use pramfs_medium::pmem::{Counters, SimBackend};
use pramfs_tests::random::Random;
use pramfs_tests::region::fresh;
use pramfs_tests::watchdog::Watchdog;

/// Operations of a row.
const OPS: u64 = 100_000;
const BLOCK: u64 = 4096;
/// Size of the region of a row; only used pages take memory.
const REGION: usize = 1 << 30;

/// Cost of the operations of one row.
#[derive(Debug, Default, Clone, Copy)]
struct Cost {
    ops: u64,
    total: Counters,
    fences: u64,
    lines: u64,
    bytes: u64,
}

impl Cost {
    fn add(&mut self, c: Counters) {
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
struct Row {
    name: &'static str,
    cost: Cost,
    /// Highest mean number of fences.
    mean: f64,
    /// Highest number of fences of one operation.
    worst: u64,
}

impl Row {
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

const ACCESS: &[u8] = b"system.posix_acl_access";

/// An ACL that names user 9, with this mask.
fn list(mask: u8) -> Vec<u8> {
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
struct Bench {
    sim: SimBackend,
    fs: Fs,
    ctx: Credentials<'static>,
    dir: Ino,
    cost: Cost,
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

    fn count<T>(&mut self, op: impl FnOnce(&Fs) -> pramfs::Result<T>) -> T {
        let before = self.sim.counters();
        let done = op(&self.fs).unwrap();
        self.cost.add(self.sim.counters() - before);
        done
    }

    fn file(&self, name: &[u8]) -> Ino {
        self.fs
            .create(&self.ctx, self.dir, name, 0o644)
            .unwrap()
            .ino
    }

    fn size(&self, ino: Ino, size: u64) {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.fs.setattr(&Credentials::ROOT, ino, &set).unwrap();
    }
}

fn name(i: u64) -> Vec<u8> {
    format!("file-{i:06}").into_bytes()
}

/// Runs one row in its own file system.
fn row(name: &'static str, mean: f64, worst: u64, run: impl FnOnce(&mut Bench)) -> Row {
    let mut b = Bench::new();
    run(&mut b);
    Row {
        name,
        cost: b.cost,
        mean,
        worst,
    }
}

fn data_rows(rows: &mut Vec<Row>) {
    let page = [0x5au8; BLOCK as usize];
    rows.push(row("overwrite 4 KiB", 1.0, 1, |b| {
        let f = b.file(b"f");
        b.fs.write(&Credentials::ROOT, f, 0, &vec![1; 16 << 20])
            .unwrap();
        let mut random = Random::new(1);
        for _ in 0..OPS {
            let at = random.below(4096) * BLOCK;
            b.count(|fs| fs.write(&Credentials::ROOT, f, at, &page));
        }
    }));
    // A file of 64 MiB, over and over.
    let laps = |b: &mut Bench, prepare: &dyn Fn(&Bench, Ino)| {
        let f = b.file(b"f");
        for i in 0..OPS {
            if i.is_multiple_of(16_384) {
                b.size(f, 0);
                prepare(b, f);
            }
            b.count(|fs| fs.append(&Credentials::ROOT, f, &page));
        }
    };
    rows.push(row("append 4 KiB, preallocated", 2.0, 2, |b| {
        let keep = Fallocate::Allocate { keep_size: true };
        // Without 2 MiB leaves: such a leaf becomes written as a whole, see below.
        laps(b, &|b, f| {
            for at in (0..64 << 20).step_by(1 << 20) {
                b.fs.fallocate(&Credentials::ROOT, f, keep, at, 1 << 20)
                    .unwrap();
            }
        });
    }));
    rows.push(row(
        "append 4 KiB, preallocated in 2 MiB leaves",
        2.0,
        2,
        |b| {
            let keep = Fallocate::Allocate { keep_size: true };
            laps(b, &|b, f| {
                b.fs.fallocate(&Credentials::ROOT, f, keep, 0, 64 << 20)
                    .unwrap()
            });
        },
    ));
    rows.push(row("append 4 KiB, allocating", 2.0, 3, |b| {
        laps(b, &|_, _| ())
    }));
    rows.push(row("truncate to a shorter size", 1.05, 2, |b| {
        let f = b.file(b"f");
        for i in 0..OPS {
            let left = 4096 - i % 4096;
            if left == 4096 {
                b.fs.write(&Credentials::ROOT, f, 0, &vec![1; 16 << 20])
                    .unwrap();
            }
            b.count(|fs| {
                let set = SetAttr {
                    size: Some((left - 1) * BLOCK),
                    ..SetAttr::default()
                };
                fs.setattr(&Credentials::ROOT, f, &set)
            });
        }
    }));
    rows.push(row("fallocate 64 KiB", 1.1, 3, |b| {
        let f = b.file(b"f");
        for i in 0..OPS {
            if i.is_multiple_of(4096) {
                b.size(f, 0);
            }
            let what = Fallocate::Allocate { keep_size: false };
            b.count(|fs| fs.fallocate(&Credentials::ROOT, f, what, (i % 4096) << 16, 1 << 16));
        }
    }));
}

fn make_rows(rows: &mut Vec<Row>) {
    let ctx = Credentials::ROOT;
    rows.push(row("create", 1.05, 3, |b| {
        let d = b.dir;
        for i in 0..OPS {
            b.count(|fs| fs.create(&ctx, d, &name(i), 0o644));
        }
    }));
    rows.push(row("mkdir", 1.05, 3, |b| {
        let d = b.dir;
        for i in 0..OPS {
            b.count(|fs| fs.mkdir(&ctx, d, &name(i), 0o755));
        }
    }));
    rows.push(row("mknod", 1.05, 3, |b| {
        let d = b.dir;
        for i in 0..OPS {
            b.count(|fs| fs.mknod(&ctx, d, &name(i), libc::S_IFIFO | 0o600, 0));
        }
    }));
    rows.push(row("symlink, target of 12 bytes", 1.05, 3, |b| {
        let d = b.dir;
        for i in 0..OPS {
            b.count(|fs| fs.symlink(&ctx, d, &name(i), b"../elsewhere"));
        }
    }));
    rows.push(row("symlink, target of 200 bytes", 2.05, 4, |b| {
        let d = b.dir;
        for i in 0..OPS {
            b.count(|fs| fs.symlink(&ctx, d, &name(i), &[b'x'; 200]));
        }
    }));
    rows.push(row("link", 1.05, 2, |b| {
        let (d, f) = (b.dir, b.file(b"f"));
        for i in 0..OPS {
            b.count(|fs| fs.link(f, d, &name(i)));
        }
    }));
}

/// Files of a directory that renames move about.
const SET: u64 = 1000;

fn name_rows(rows: &mut Vec<Row>) {
    let ctx = Credentials::ROOT;
    let plain = RenameFlags::default();
    rows.push(row("rename in a directory", 1.05, 2, |b| {
        let d = b.dir;
        (0..SET).for_each(|i| {
            b.file(&name(i));
        });
        for i in 0..OPS {
            b.count(|fs| fs.rename(&ctx, d, &name(i), d, &name(i + SET), plain));
        }
    }));
    rows.push(row("rename across directories", 1.05, 2, |b| {
        let mut ends = [b.dir, b.fs.mkdir(&ctx, Ino::ROOT, b"e", 0o755).unwrap().ino];
        (0..SET).for_each(|i| {
            b.file(&name(i));
        });
        for i in 0..OPS {
            if i > 0 && i.is_multiple_of(SET) {
                ends.swap(0, 1);
            }
            let n = name(i % SET);
            b.count(|fs| fs.rename(&ctx, ends[0], &n, ends[1], &n, plain));
        }
    }));
    rows.push(row("rename over a file of 4 KiB", 1.05, 2, |b| {
        let d = b.dir;
        for i in 0..OPS {
            let (old, new) = (b.file(b"new"), name(i % SET));
            b.fs.write(&Credentials::ROOT, old, 0, &[7; BLOCK as usize])
                .unwrap();
            if i < SET {
                let there = b.file(&new);
                b.fs.write(&Credentials::ROOT, there, 0, &[7; BLOCK as usize])
                    .unwrap();
            }
            b.count(|fs| fs.rename(&ctx, d, b"new", d, &new, plain));
        }
    }));
    rows.push(row("unlink, empty file", 1.05, 2, |b| {
        let d = b.dir;
        (0..OPS).for_each(|i| {
            b.file(&name(i));
        });
        for i in 0..OPS {
            b.count(|fs| fs.unlink(d, &name(i)));
        }
    }));
    rows.push(row("unlink, file of 64 KiB", 1.05, 2, |b| {
        let d = b.dir;
        for i in 0..OPS {
            let f = b.file(&name(i));
            b.fs.write(&Credentials::ROOT, f, 0, &[7; 64 << 10])
                .unwrap();
            b.count(|fs| fs.unlink(d, &name(i)));
        }
    }));
    rows.push(row("forget of an unlinked empty file", 0.07, 2, |b| {
        let d = b.dir;
        let files: Vec<Ino> = (0..OPS)
            .map(|i| {
                let f = b.file(&name(i));
                b.fs.hold(f).into_count();
                b.fs.unlink(d, &name(i)).unwrap();
                f
            })
            .collect();
        for f in files {
            b.count(|fs| {
                fs.forget(f, 1);
                Ok(())
            });
        }
    }));
    rows.push(row("rmdir", 1.05, 2, |b| {
        let d = b.dir;
        (0..OPS).for_each(|i| {
            b.fs.mkdir(&ctx, d, &name(i), 0o755).unwrap();
        });
        for i in 0..OPS {
            b.count(|fs| fs.rmdir(d, &name(i)));
        }
    }));
}

fn attribute_rows(rows: &mut Vec<Row>) {
    let ctx = Credentials::ROOT;
    rows.push(row("setxattr, a new name", 1.1, 2, |b| {
        let f = b.file(b"f");
        for i in 0..OPS {
            if i.is_multiple_of(SET) && i > 0 {
                for j in 0..SET {
                    let n = [b"user.", &name(j)[..]].concat();
                    b.fs.removexattr(f, &n).unwrap();
                }
            }
            let n = [b"user.", &name(i % SET)[..]].concat();
            b.count(|fs| {
                fs.setxattr(
                    &Credentials::ROOT,
                    f,
                    &n,
                    b"sixteen bytes...",
                    XattrMode::Create,
                )
            });
        }
    }));
    rows.push(row("setxattr, a new value", 1.0, 1, |b| {
        let f = b.file(b"f");
        b.fs.setxattr(&Credentials::ROOT, f, b"user.a", &[0; 16], XattrMode::Set)
            .unwrap();
        for i in 0..OPS {
            let value = [i, i].map(u64::to_le_bytes).concat();
            b.count(|fs| fs.setxattr(&Credentials::ROOT, f, b"user.a", &value, XattrMode::Set));
        }
    }));
    rows.push(row("chmod", 1.0, 1, |b| {
        let f = b.file(b"f");
        for i in 0..OPS {
            let set = SetAttr {
                perm: Some(0o600 | (i & 0o77) as u32),
                ..SetAttr::default()
            };
            b.count(|fs| fs.setattr(&Credentials::ROOT, f, &set));
        }
    }));
    rows.push(row("chmod of a file with an ACL", 1.0, 1, |b| {
        let f = b.file(b"f");
        b.fs.setxattr(&Credentials::ROOT, f, ACCESS, &list(0), XattrMode::Set)
            .unwrap();
        for i in 0..OPS {
            let set = SetAttr {
                perm: Some(0o600 | (i & 0o77) as u32),
                ..SetAttr::default()
            };
            b.count(|fs| fs.setattr(&Credentials::ROOT, f, &set));
        }
    }));
    rows.push(row("an ACL over another", 1.0, 1, |b| {
        let f = b.file(b"f");
        b.fs.setxattr(&Credentials::ROOT, f, ACCESS, &list(0), XattrMode::Set)
            .unwrap();
        for i in 0..OPS {
            let value = list(i as u8 & 7);
            b.count(|fs| fs.setxattr(&Credentials::ROOT, f, ACCESS, &value, XattrMode::Set));
        }
    }));
    // The attributes of each file have their own leaf: new data.
    rows.push(row("create under a default ACL", 2.05, 4, |b| {
        let d = b.dir;
        let name_of = b"system.posix_acl_default";
        b.fs.setxattr(&Credentials::ROOT, d, name_of, &list(5), XattrMode::Set)
            .unwrap();
        for i in 0..OPS {
            b.count(|fs| fs.create(&ctx, d, &name(i), 0o666));
        }
    }));
    rows.push(row("chattr", 1.0, 1, |b| {
        let f = b.file(b"f");
        for i in 0..OPS {
            let set = SetAttr {
                flags: Some([0x40, 0x80][i as usize & 1]),
                ..SetAttr::default()
            };
            b.count(|fs| fs.setattr(&Credentials::ROOT, f, &set));
        }
    }));
    rows.push(row("a new label", 2.0, 2, |b| {
        for i in 0..OPS {
            let label = format!("label {i}");
            b.count(|fs| fs.set_label(&label));
        }
    }));
    rows.push(row("chown", 1.0, 1, |b| {
        let f = b.file(b"f");
        for i in 0..OPS {
            let set = SetAttr {
                uid: Some(i as u32),
                gid: Some(i as u32),
                ..SetAttr::default()
            };
            b.count(|fs| fs.setattr(&Credentials::ROOT, f, &set));
        }
    }));
}

/// Two threads that alternate on one inode: each on a fixed lane, or like threads of a
/// server.
fn turns_row(rows: &mut Vec<Row>, name: &'static str, fences: u64, lanes: Option<[u32; 2]>) {
    let mut row = row(name, fences as f64, fences, |b| {
        let f = b.file(b"f");
        let (fs, sim, cost) = (&b.fs, &b.sim, &mut b.cost);
        let (to_second, second) = std::sync::mpsc::sync_channel::<u32>(0);
        let (to_first, first) = std::sync::mpsc::sync_channel::<()>(0);
        let chmod = |perm: u32| {
            let set = SetAttr {
                perm: Some(perm),
                ..SetAttr::default()
            };
            fs.setattr(&Credentials::ROOT, f, &set).unwrap();
        };
        let choose = move |who: usize| {
            if let Some(lanes) = lanes {
                set_thread_lane(lanes[who]);
            }
        };
        std::thread::scope(|s| {
            s.spawn(move || {
                choose(1);
                for perm in second {
                    chmod(perm);
                    to_first.send(()).unwrap();
                }
            });
            // In a new thread, since the lane of this one is already chosen.
            s.spawn(move || {
                choose(0);
                chmod(0);
                for i in 0..OPS / 2 {
                    let before = sim.counters();
                    to_second.send((i & 0o777) as u32).unwrap();
                    first.recv().unwrap();
                    cost.add(sim.counters() - before);
                    let before = sim.counters();
                    chmod((i & 0o777) as u32);
                    cost.add(sim.counters() - before);
                }
                drop(to_second);
            });
        });
    });
    // The counter does not see that the other thread has changed the line.
    row.cost.total.redundant_flushes = 0;
    rows.push(row);
}

const DOC: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/consistency.md");
const BEGIN: &str = "<!-- the table of tests/tests/budget.rs -->";
const END: &str = "<!-- end of the table -->";

/// Writes the table into the document, or reports the differences.
fn hold_against_document(table: &str) {
    let text = std::fs::read_to_string(DOC).unwrap();
    let (head, rest) = text.split_once(BEGIN).unwrap();
    let (there, tail) = rest.split_once(END).unwrap();
    if there.trim() == table.trim() {
        return;
    }
    if std::env::var_os("PRAMFS_BLESS").is_some() {
        let text = format!("{head}{BEGIN}\n{table}{END}{tail}");
        std::fs::write(DOC, text).unwrap();
        return;
    }
    // Only fences have a budget; lines and bytes are information.
    let fences = |t: &str| -> Vec<String> {
        let row = |l: &str| l.split('|').skip(1).take(3).collect::<String>();
        t.trim().lines().map(row).collect()
    };
    assert_eq!(
        fences(there),
        fences(table),
        "the fences in docs/consistency.md are not those measured: run this test with PRAMFS_BLESS=1"
    );
}

#[test]
fn operations_stay_within_fence_budget() {
    let _watchdog = Watchdog::new("the fence budgets", std::time::Duration::from_secs(1200));
    let mut rows = Vec::new();
    data_rows(&mut rows);
    make_rows(&mut rows);
    name_rows(&mut rows);
    attribute_rows(&mut rows);
    turns_row(
        &mut rows,
        "chmod of one inode by two threads in turn",
        1,
        None,
    );
    turns_row(
        &mut rows,
        "the same, each on a lane of its own",
        3,
        Some([0, 1]),
    );
    let mut table = format!("{HEAD}\n");
    for r in &rows {
        writeln!(table, "{}", r.markdown()).unwrap();
    }
    println!("{OPS} operations a row\n{table}");
    for r in &rows {
        assert_eq!(r.cost.ops, OPS, "{}", r.name);
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
    hold_against_document(&table);
}
