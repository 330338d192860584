//! RocksDB: db_bench with its kinds of I/O, and writes that were acknowledged before SIGKILL.
//! The contents are those of a database on tmpfs.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

use pramfs_tests::suite::say;

use crate::support::best_share;
use crate::{Both, Place, full, same};

/// How db_bench reads and writes its files. By its default it uses pread and write.
const KINDS: [(&str, &[&str]); 3] = [
    ("plain", &["--sync=1"]),
    ("mapped", &["--mmap_read=1", "--mmap_write=1"]),
    (
        "direct",
        &[
            "--use_direct_reads=1",
            "--use_direct_io_for_flush_and_compaction=1",
        ],
    ),
];

fn db_bench(place: &Place<'_>, benchmarks: &str, more: &[&str]) {
    let num = if full() { "200000" } else { "5000" };
    let out = place
        .run("db_bench", "db_bench")
        .args(["--db=db", "--seed=7", "--threads=1", "--value_size=200"])
        .args(["--compression_type=none", "--write_buffer_size=1000000"])
        .args(["--target_file_size_base=500000", "--cache_size=100000"])
        .args(["--max_background_jobs=2", "--verify_checksum=1"])
        .arg(format!("--num={num}"))
        .arg(format!("--benchmarks={benchmarks}"))
        .args(more)
        .succeed();
    let bad = ["Corruption", "IO error", "put error", "failed"];
    assert!(
        !bad.iter().any(|word| out.text.contains(word)),
        "{}",
        out.text
    );
}

/// All keys and values, of the database in `db`.
fn contents(place: &Place<'_>) -> String {
    place
        .script("ldb scan", "ldb --db=db scan --hex")
        .succeed()
        .text
}

/// Puts key after key into a database, and kills the program. Returns how many it had
/// acknowledged, and how many there are.
fn life(place: &Place<'_>, least: u64) -> (u64, u64) {
    place
        .script("ldb put", "ldb --db=killed --create_if_missing put a first")
        .succeed();
    let mut child = place
        .command("ldb")
        .args(["--db=killed", "--write_buffer_size=1000000", "query"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut commands = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        for n in 0_u64.. {
            let value = "v".repeat(100 + n as usize % 300);
            // The program dies.
            if writeln!(commands, "put k{n:08} {n}{value}").is_err() {
                return;
            }
        }
    });
    let answers = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut acknowledged = 0;
    for line in answers.map_while(Result::ok) {
        acknowledged += u64::from(line.starts_with("Successfully put"));
        if acknowledged == least {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    writer.join().unwrap();
    let kept = place
        .script(
            "ldb scan",
            "ldb --db=killed scan; ldb --db=killed checkconsistency > /dev/null",
        )
        .succeed()
        .text;
    let mut there = 0;
    for line in kept.lines().filter(|line| line.starts_with('k')) {
        let value = "v".repeat(100 + there as usize % 300);
        let mut should = String::new();
        write!(should, "k{there:08} : {there}{value}").unwrap();
        assert_eq!(line, should);
        there += 1;
    }
    (acknowledged, there)
}

#[test]
fn rocksdb_contents_are_those_of_tmpfs() {
    let test = "RocksDB with the preload library";
    let Some(both) = Both::new(test, &["db_bench", "ldb", "sst_dump"], 1024) else {
        return;
    };
    let (write, read) = (
        "fillrandom,overwrite,deleterandom,compact,overwrite",
        "readrandom,readseq,readreverse,seekrandom,verifychecksum",
    );
    let on_tmpfs = both.on_tmpfs("db");
    db_bench(&on_tmpfs, write, &[]);
    let should = contents(&on_tmpfs);
    assert!(should.lines().count() > 1000, "{should}");
    for (kind, options) in KINDS {
        let place = both.on_mount(kind);
        db_bench(&place, write, options);
        let changes = both.library.share();
        same(kind, &contents(&place), &should);
        let again = [options, &["--use_existing_db=1"]].concat();
        let _other = both.library.share();
        // The library leaves short maps for reading to the page cache, and the tables are short.
        let least = if kind == "mapped" { 0.0 } else { 90.0 };
        let reads = best_share(least, || {
            db_bench(&place, read, &again);
            both.library.share().percent()
        });
        assert!(reads >= least, "{kind}: {reads:.1} % of reads served");
        let script = "sst_dump --file=db --command=verify";
        let out = place.script("sst_dump", script).succeed();
        assert!(!out.text.contains("orruption"), "{}", out.text);
        say(format_args!(
            "{test}, {kind}: served: changes {changes}, reads {reads:.1} %"
        ));
        let _other = both.library.share();
    }
    let least = if full() { 100_000 } else { 5000 };
    let (acknowledged, kept) = life(&both.on_mount("killed"), least);
    assert!(
        acknowledged >= least && kept >= acknowledged,
        "{kept} of {acknowledged}"
    );
    let check = both.end();
    say(format_args!(
        "{test}: {kept} writes kept over SIGKILL, {acknowledged} acknowledged; fsck: {check}"
    ));
}
