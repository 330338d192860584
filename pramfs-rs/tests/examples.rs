//! The examples do what they say: they are compiled in here and run, and the
//! log is killed on the way.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[path = "../examples/counters.rs"]
#[expect(dead_code, reason = "its main takes an argument")]
mod counters;
#[path = "../examples/key_value.rs"]
mod key_value;
#[path = "../examples/log_and_counters.rs"]
#[expect(dead_code, reason = "its main is not called")]
mod log_and_counters;
#[path = "../examples/log_reader.rs"]
mod log_reader;
#[path = "../examples/ported.rs"]
mod ported;
#[path = "../examples/send_mapped.rs"]
#[expect(dead_code, reason = "its main is not called")]
mod send_mapped;
#[path = "../examples/twenty_lines.rs"]
mod twenty_lines;

const SIZE: u64 = 32 << 20;

/// A process that is being started holds our descriptors for a moment, and
/// with them the lock of a region that we have just closed.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn place() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() {
        tempfile::tempdir_in(shm)
    } else {
        tempfile::tempdir()
    }
    .unwrap()
}

#[test]
fn counts_continue_between_runs() {
    let _one = one_at_a_time();
    let dir = place();
    let path = dir.path().join("region");
    let first = log_and_counters::run(&path, SIZE, 100).unwrap();
    assert_eq!((first.runs, first.before.records, first.counted), (1, 0, 0));
    let second = log_and_counters::run(&path, SIZE, 0).unwrap();
    assert_eq!(
        (second.runs, second.before.records, second.counted),
        (2, 100, 100)
    );
    assert_eq!(second.before.torn, 0);
}

const CHILD: &str = "PRAMFS_TEST_EXAMPLE_REGION";

/// Not a test of its own: what the next one kills.
#[test]
fn appending_child_runs_until_killed() {
    if let Some(path) = std::env::var_os(CHILD) {
        log_and_counters::run(Path::new(&path), SIZE, u64::MAX).unwrap();
    }
}

fn start(path: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "appending_child_runs_until_killed",
            "--nocapture",
        ])
        .env(CHILD, path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Killed again and again: the log only grows, and a count is at most the one
/// record behind that the kill came between.
#[test]
fn log_survives_kill_and_rerun() {
    let _one = one_at_a_time();
    let dir = place();
    let path: PathBuf = dir.path().join("region");
    let mut records = 0;
    for round in 1..=5u64 {
        let mut child = start(&path);
        let out = BufReader::new(child.stdout.take().unwrap());
        let began = out
            .lines()
            .map_while(Result::ok)
            .any(|l| l.ends_with("the first record is in the log"));
        std::thread::sleep(Duration::from_millis(20 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(began, "round {round}: the child has appended nothing");

        let found = log_and_counters::run(&path, SIZE, 0).unwrap();
        let now = found.before;
        assert_eq!(found.runs, 2 * round);
        assert_eq!(now.torn, 0);
        assert!(
            now.records > records,
            "round {round}: {} after {records}",
            now.records
        );
        let behind = now.records - found.counted;
        assert!(behind <= 1, "round {round}: {behind} records not counted");
        records = now.records;
    }
}

#[test]
fn mapped_bytes_go_to_sockets() {
    let _one = one_at_a_time();
    send_mapped::run(None).unwrap();
    let dir = place();
    let path = dir.path().join("region");
    log_and_counters::run(&path, SIZE, 1).unwrap();
    // Twice: the file exists the second time.
    for _ in 0..2 {
        send_mapped::run(Some(&path)).unwrap();
    }
}

#[test]
fn twenty_lines_example_runs() {
    twenty_lines::main().unwrap();
}

fn file_system() -> pramfs::FileSystem {
    let region = pramfs::pmem::RegionOptions::new()
        .memfd("examples", 16 << 20)
        .unwrap();
    pramfs::format::format(&region, &pramfs::format::FormatOptions::default()).unwrap();
    pramfs::FileSystem::mount(region, pramfs::MountOptions::default()).unwrap()
}

#[test]
fn key_value_keeps_last_value_of_each_key() {
    key_value::main().unwrap();
    let fs = file_system();
    let mut store = key_value::Store::open(&fs, "/store", 40).unwrap();
    for round in 0..10 {
        for key in 0..30 {
            assert!(store.put(key, [round * 8 + key as u8 % 8; 112]).unwrap());
        }
    }
    drop(store);
    let mut store = key_value::Store::open(&fs, "/store", 40).unwrap();
    for key in 0..30 {
        let found = store.get(key).unwrap();
        assert_eq!(found, Some([72 + key as u8 % 8; 112]));
    }
    assert_eq!(store.get(99).unwrap(), None);
    assert!((30..40).all(|key| store.put(key, [0; 112]).unwrap()));
    assert!(!store.put(40, [0; 112]).unwrap());
}

#[test]
fn log_reader_sees_each_whole_line_once() {
    log_reader::main().unwrap();
    let seen = log_reader::run(&file_system(), 5000).unwrap();
    let expected: Vec<_> = (0..5000).map(|i| format!("event {i}\n")).collect();
    assert_eq!(seen, expected);
}

#[test]
fn counters_continue_from_earlier_sums() {
    let _one = one_at_a_time();
    let dir = place();
    let path = dir.path().join("region");
    assert_eq!(counters::run(&path, 4, 1000).unwrap(), [1000; 4]);
    assert_eq!(counters::run(&path, 4, 500).unwrap(), [1500; 4]);
}

#[test]
fn ported_program_behaves_as_on_std_fs() {
    ported::main().unwrap();
    let fs = file_system();
    fs.create_dir_all("/logs/dir").unwrap();
    for i in 0..5u64 {
        let path = format!("/logs/{i}");
        fs.write(&path, "line\n".repeat(i as usize)).unwrap();
        let time = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(100 - i);
        let times = pramfs::FileTimes::new().set_modified(time);
        fs.set_times(&path, times).unwrap();
    }
    let kept = ported::rotate(&fs, Path::new("/logs"), 2).unwrap();
    assert_eq!(kept, [PathBuf::from("/logs/1"), PathBuf::from("/logs/0")]);
    ported::index(&fs, &kept, Path::new("/logs/dir/index")).unwrap();
    assert_eq!(
        fs.read_to_string("/logs/dir/index").unwrap(),
        "/logs/1 1\n/logs/0 0\n"
    );
    assert!(!fs.exists("/logs/dir/index.tmp").unwrap() && !fs.exists("/logs/4").unwrap());
}

/// What a newcomer reads in one go.
#[test]
fn documented_examples_fit_in_80_lines() {
    for name in [
        "twenty_lines",
        "key_value",
        "log_reader",
        "counters",
        "ported",
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("examples/{name}.rs"));
        let lines = std::fs::read_to_string(path).unwrap().lines().count();
        assert!(lines <= 80, "{name} has {lines} lines");
    }
}
