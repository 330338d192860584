//! Unmodified programs with the preload library, on real mounts. They need root, /dev/fuse
//! and a C compiler; elsewhere every test reports that it was skipped.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use pramfs_tests::mounted::{self, Mounted, copy_program, wait_until};
use pramfs_tests::skip::skipped;
use pramfs_tests::watchdog::Watchdog;
use support::{Share, best_share, built, end, is_there, library, preloaded, probe, text};

const REGION: u64 = 128 << 20;

/// What the library says of its data calls: served, and all, of all processes.
fn share(out: &Output) -> f64 {
    Share::of(&String::from_utf8_lossy(&out.stderr)).percent()
}

fn mount(test: &str, programs: &[&str]) -> Option<(Mounted, Watchdog)> {
    support::mount(test, programs, REGION)
}

/// Scenarios in which files grow without the kernel.
const GROWING: [&str; 3] = ["extends", "limits_size", "extends_in_handler"];

/// Runs a scenario on a mount with the library, and on tmpfs without: it must see the same.
/// At least this share of its data calls must be served, in percent.
fn same(scenario: &str, least: f64) {
    let Some((mount, _dog)) = mount(scenario, &["cc"]) else {
        return;
    };
    let plain = tempfile::tempdir_in("/dev/shm").unwrap();
    let on_tmpfs = Command::new(probe("probe"))
        .arg(scenario)
        .arg(plain.path().join("file"))
        .output()
        .unwrap();
    // A file may be found busy, on a machine under load. It must never look different.
    let mut shares = (0..3).map(|_| {
        let mut on_mount = preloaded(probe("probe"));
        if scenario == "cannot_open_again" {
            // The filter of the scenario allows what the library calls.
            on_mount.env("PRAMFS_PRELOAD_FILTERED", "1");
        }
        if GROWING.contains(&scenario) {
            on_mount.env("PRAMFS_PRELOAD_APPEND", "1");
        }
        let on_mount = on_mount
            .arg(scenario)
            .arg(mount.at("file"))
            .output()
            .unwrap();
        assert_eq!(text(&on_mount), text(&on_tmpfs));
        share(&on_mount)
    });
    for line in text(&on_tmpfs).lines() {
        if let Some(why) = line.strip_prefix("skipped: ") {
            skipped(format_args!("{scenario}: {why}"));
        }
    }
    let enough = shares.any(|share| share >= least);
    drop(shares);
    assert!(enough, "{scenario}: less than {least:.1} % served");
    end(&mount);
}

macro_rules! scenarios {
    ($($test:ident: $name:literal $least:literal)*) => {
        $(
            #[test]
            fn $test() {
                same($name, $least);
            }
        )*
    };
}

scenarios! {
    reads_and_writes_of_all_kinds_are_those_of_tmpfs: "data" 80.0
    errors_are_those_of_tmpfs: "errors" 0.0
    mappings_are_shared_cut_moved_and_inherited: "maps" 0.0
    forked_children_share_position_and_mount: "forks" 0.0
    copies_and_streams_of_descriptors_are_followed: "descriptors" 0.0
    program_that_closes_everything_leaves_leases_working: "closes_all" 0.0
    threads_and_processes_share_position: "threads" 95.0
    record_locks_survive_second_open: "locks" 0.0
    appends_of_many_processes_are_whole: "appends" 0.0
    signal_handlers_read_and_write: "signals" 95.0
    descriptor_passed_over_socket_shares_position: "passes" 0.0
    descriptors_up_to_limit_are_the_programs: "limits" 0.0
    new_file_that_is_overwritten_keeps_description: "grows" 30.0
    cancelled_threads_end: "cancels" 0.0
    threads_open_while_process_forks: "churns" 0.0
    sandboxed_program_is_not_killed: "filters" 0.0
    inherited_descriptor_is_read_and_mapped: "executes" 0.0
    mapping_that_grows_shows_its_file_only: "stretches" 0.0
    rest_of_last_page_is_zeros: "ends_in_page" 0.0
    mapping_past_end_shows_growth: "maps_ahead" 20.0
    program_without_room_to_map_gets_enomem: "no_room_to_map" 0.0
    children_of_raw_forks_use_their_own_files: "forks_raw" 0.0
    locks_of_all_kinds_survive_library: "keeps_locks" 0.0
    handler_reads_while_blocks_change: "handlers_while_layout_changes" 0.0
    sync_works_after_refused_filter: "syncs_after_refused_filter" 0.0
    children_of_raw_forks_map_files: "forks_raw_and_maps" 0.0
    handlers_of_forks_use_files: "forks_with_handlers" 0.0
    file_that_is_only_read_keeps_mtime: "reads_keep_mtime" 0.0
    writes_at_the_end_are_those_of_tmpfs: "extends" 80.0
    file_size_limit_holds_at_the_end: "limits_size" 0.0
    handler_writes_at_the_end_meanwhile: "extends_in_handler" 0.0
    mapping_of_copied_descriptor_keeps_positions: "maps_with_copies" 0.0
    handler_that_interrupted_malloc_reads: "handler_in_malloc" 40.0
    handler_that_interrupted_malloc_opens: "handler_that_opens_in_malloc" 30.0
    program_started_with_filter_is_not_killed: "starts_with_filter" 0.0
    append_mode_of_one_open_leaves_others: "sets_append" 0.0
    file_that_cannot_be_opened_again_hides_flag: "cannot_open_again" 0.0
    msync_of_other_memory_keeps_mtime: "other_memory_keeps_mtime" 0.0
    children_of_raw_forks_open_files: "forks_raw_and_opens" 0.0
    vfork_under_filter_leaves_files_of_parent: "vforks_under_filter" 0.0
    file_is_mapped_after_filter_was_set: "maps_under_filter" 80.0
}

#[test]
fn file_open_through_page_cache_stays_with_mount() {
    let Some((mount, _dog)) = mount("busy file", &["cc"]) else {
        return;
    };
    let path = mount.at("file");
    fs::write(&path, [1; 4096]).unwrap();
    let cached = fs::File::options().read(true).write(true).open(&path);
    let out = preloaded(probe("probe"))
        .arg("data")
        .arg(&path)
        .output()
        .unwrap();
    let plain = tempfile::tempdir_in("/dev/shm").unwrap();
    let on_tmpfs = Command::new(probe("probe"))
        .arg("data")
        .arg(plain.path().join("file"))
        .output()
        .unwrap();
    assert_eq!(text(&out), text(&on_tmpfs));
    assert!(share(&out) < 5.0);
    drop(cached);
    end(&mount);
}

/// Without a key, `pkey` leaves every file with the mount. `auto` serves it.
#[test]
fn file_without_key_is_served_unprotected_or_not_at_all() {
    let Some((mount, _dog)) = mount("protected files", &["cc"]) else {
        return;
    };
    let plain = tempfile::tempdir_in("/dev/shm").unwrap();
    let on_tmpfs = Command::new(probe("probe"))
        .arg("data")
        .arg(plain.path().join("file"))
        .output()
        .unwrap();
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap();
    let has_keys = processor.split_whitespace().any(|flag| flag == "pku");
    for (value, is_served) in [("auto", true), ("pkey", has_keys), ("mistyped", has_keys)] {
        // A file may be found busy, on a machine under load.
        let mut served = (0..3).map(|_| {
            let out = preloaded(probe("probe"))
                .env("PRAMFS_PRELOAD_PROTECT", value)
                .arg("data")
                .arg(mount.at(value))
                .output()
                .unwrap();
            assert_eq!(text(&out), text(&on_tmpfs), "{value}");
            Share::of(&String::from_utf8_lossy(&out.stderr)).served()
        });
        match is_served {
            true => assert!(served.any(|n| n > 0), "{value}: no call is served"),
            false => assert!(served.all(|n| n == 0), "{value}: calls are served"),
        }
    }
    end(&mount);
}

#[test]
fn programs_with_and_without_library_see_the_same() {
    let Some((mount, _dog)) = mount("coherence", &["python3"]) else {
        return;
    };
    for seed in ["1", "2", "3"] {
        let share = best_share(50.0, || {
            let out = Command::new("python3")
                .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/coherence.py"))
                .arg(mount.at(seed))
                .arg(library())
                .arg(seed)
                .output()
                .unwrap();
            text(&out);
            share(&out)
        });
        println!("coherence {seed}: {share:.1} % served");
        assert!(share >= 50.0, "{share:.1} % served");
    }
    end(&mount);
}

/// The policy grants both users their leases. The server compares the user of the connection.
#[test]
fn program_that_changes_its_user_gets_leases() {
    let mount = support::mount_for("all", "change of the user", &["cc"], REGION);
    let Some((mount, _dog)) = mount else {
        return;
    };
    let others = PermissionsExt::from_mode(0o755);
    fs::set_permissions(mount.path().parent().unwrap(), others).unwrap();
    let run = || {
        let out = preloaded(probe("probe"))
            .arg("changes_user")
            .arg(mount.at("file"))
            .output();
        let out = out.unwrap();
        assert_eq!(text(&out), "a a\n");
        share(&out)
    };
    // Other users than root need Linux 6.16, by which the server says so.
    let alone = preloaded(probe("probe"))
        .arg("changes_user")
        .arg(mount.at("file"))
        .env("PROBE_LATE", "1")
        .output()
        .unwrap();
    if share(&alone) < 80.0 {
        skipped("other users get no leases here: the change of the user has not been tried");
        return;
    }
    assert!((0..3).any(|_| run() >= 80.0), "no lease after the change");
    end(&mount);
}

#[test]
fn mount_with_number_of_another_gets_leases_after_a_while() {
    let mount = support::mount_for("off", "numbers of mounts", &["cc"], REGION);
    let Some((mount, _dog)) = mount else {
        return;
    };
    let share = best_share(90.0, || {
        mount.unmount();
        mount.mount("direct=off");
        let mut child = preloaded(probe("probe"))
            .arg("waits_for_mount")
            .arg(mount.at("file"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        mount.unmount();
        mount.mount("direct=owner");
        std::thread::sleep(Duration::from_secs(11));
        child.stdin.take().unwrap().write_all(b"x").unwrap();
        let out = child.wait_with_output().unwrap();
        text(&out);
        share(&out)
    });
    assert!(share >= 90.0, "{share:.1} % served");
    end(&mount);
}

#[test]
fn capability_of_program_stays_until_it_is_written() {
    let Some((mount, _dog)) = mount("capability", &["setcap", "getcap", "python3"]) else {
        return;
    };
    let path = mount.at("program");
    copy_program("/bin/true", &path);
    let mut setcap = Command::new("setcap");
    let done = setcap.arg("cap_net_raw+ep").arg(&path).status().unwrap();
    if !done.success() {
        skipped("setcap fails: the test of capabilities has not been run");
        return;
    }
    let script = "import os, sys; os.pread(os.open(sys.argv[1], os.O_RDWR), 4, 0)";
    let out = preloaded("python3")
        .args(["-c", script])
        .arg(&path)
        .output();
    text(&out.unwrap());
    let kept = Command::new("getcap").arg(&path).output().unwrap();
    assert!(text(&kept).contains("cap_net_raw"), "{kept:?}");
    end(&mount);
}

#[test]
fn death_of_server_is_an_error_to_program() {
    let Some((mount, _dog)) = mount("death of the server", &["cc"]) else {
        return;
    };
    let mut child = preloaded(probe("probe"))
        .arg("survives")
        .arg(mount.at("file"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    std::thread::sleep(Duration::from_millis(100));
    mount.crash();
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert!(child.wait().unwrap().success());
    let rounds = rest.strip_prefix("1\n1\n").map(|n| n.trim().parse());
    let Some(Ok(last)) = rounds else {
        panic!("{rest}");
    };
    assert!(wait_until(|| mounted::is_unlocked(&mount.region())));
    mount.mount("direct=owner");
    let found = fs::read(mount.at("file")).unwrap();
    assert!(found.len() == 64 * 4096 || found.len() == 65 * 4096);
    for block in 0..64 {
        // The round that failed may have written its block, or a part of it.
        let before = (block..last).step_by(64).next_back();
        let expected = before.map_or(b'a' + (block % 26) as u8, |round| round as u8);
        let is_right = |byte: &u8| *byte == expected || last % 64 == block && *byte == last as u8;
        let bytes = &found[block * 4096..(block + 1) * 4096];
        assert!(bytes.iter().all(is_right), "block {block}, round {last}");
    }
    end(&mount);
}

#[test]
fn program_without_files_of_mount_prints_nothing() {
    let out = preloaded("ls").arg("/").output().unwrap();
    assert_eq!(out.stderr, b"");
    assert_eq!(
        text(&out),
        text(&Command::new("ls").arg("/").output().unwrap())
    );
}

#[test]
fn tool_runs_program_with_library() {
    let tool = built().join("pramfs");
    if !tool.is_file() {
        skipped("pramfs is not built: the test of pramfs run has not been run");
        return;
    }
    let run = |args: &[&str]| {
        let mut command = Command::new(&tool);
        command.arg("run").args(args);
        command
    };
    let library = library();
    let out = run(&["--", "sh", "-c", "echo $LD_PRELOAD; exit 7"])
        .env("LD_PRELOAD", "")
        .env("PRAMFS_PRELOAD_LIBRARY", &library)
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(7));
    assert_eq!(out.stdout, format!("{}\n", library.display()).as_bytes());
    let out = run(&["true"])
        .env("PRAMFS_PRELOAD_LIBRARY", "/nonexistent/lib.so")
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(1));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("/nonexistent/lib.so"), "{said}");
}

// ---- files of other file systems

/// How often a program makes each system call.
type SystemCalls = BTreeMap<String, i64>;

/// Counts the system calls of the probe, which opens something so often.
fn system_calls(kind: &str, opens: u32, directory: &Path, preload: bool) -> SystemCalls {
    let counted = directory.join("counted");
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-c", "-U", "name,calls", "-o"])
        .arg(&counted)
        .env("PROBE_KIND", kind)
        .env("PROBE_OPENS", opens.to_string());
    if preload {
        // Into the probe alone.
        strace.args(["-E", &format!("LD_PRELOAD={}", library().display())]);
    }
    let out = strace
        .arg(probe("probe"))
        .arg("opens")
        .arg(directory.join("file"))
        .output()
        .unwrap();
    text(&out);
    let counted = fs::read_to_string(counted).unwrap();
    let row = |line: &str| {
        let (name, calls) = line.trim().split_once(' ')?;
        Some((name.to_owned(), calls.trim().parse().ok()?))
    };
    counted.lines().filter_map(row).collect()
}

/// The system calls that `opens` opens make, whatever start and end of the program make.
fn calls_of_opens(kind: &str, opens: u32, directory: &Path, preload: bool) -> SystemCalls {
    // The first open may ask for the kind of the file system.
    let mut calls = system_calls(kind, opens + 1, directory, preload);
    for (name, number) in system_calls(kind, 1, directory, preload) {
        *calls.entry(name).or_default() -= number;
    }
    calls.remove("total");
    calls.retain(|_, number| *number != 0);
    calls
}

#[test]
fn open_of_foreign_file_costs_one_fstat_more() {
    const OPENS: u32 = 100;
    if !is_there("strace") || !is_there("cc") {
        skipped("no strace or no cc: the system calls of an open have not been counted");
        return;
    }
    let on_disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let on_tmpfs = tempfile::tempdir_in("/dev/shm").unwrap();
    for directory in [on_disk.path(), on_tmpfs.path()] {
        for (kind, more) in [
            ("file", 1),
            // Whether it is a file is not known before.
            ("device", 1),
            ("handle", 0),
            ("directory", 0),
            ("missing", 0),
        ] {
            let mut expected = calls_of_opens(kind, OPENS, directory, false);
            let found = calls_of_opens(kind, OPENS, directory, true);
            let opened = expected.get("openat").copied();
            assert_eq!(opened, Some(i64::from(OPENS)), "{kind}: {expected:?}");
            // fstat(2) is this call in some versions of the C library, and that in others.
            let name = match found.contains_key("newfstatat") {
                true => "newfstatat",
                false => "fstat",
            };
            if more > 0 {
                *expected.entry(name.into()).or_default() += more * i64::from(OPENS);
            }
            assert_eq!(found, expected, "{kind} in {}", directory.display());
        }
    }
}

// ---- programs

fn fio(engine: &str, mount: &Mounted, more: &[&str]) -> f64 {
    let out = preloaded("fio")
        .args(["--name=job", "--size=16M", "--bs=4k", "--verify=crc32c"])
        .args([
            "--rw=randrw",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--output-format=terse",
        ])
        .arg(format!("--ioengine={engine}"))
        // It leaves files in its directory.
        .current_dir(mount.region().parent().unwrap())
        .arg(format!("--filename={}", mount.at("fio").display()))
        .args(more)
        .output()
        .unwrap();
    text(&out);
    share(&out)
}

#[test]
fn fio_is_served() {
    let Some((mount, _dog)) = mount("fio", &["fio"]) else {
        return;
    };
    // The first run makes the file.
    fs::write(mount.at("fio"), vec![0; 16 << 20]).unwrap();
    for (engine, more) in [
        ("psync", vec!["--loops=2", "--fsync=16"]),
        (
            "psync",
            vec![
                "--thread",
                "--numjobs=2",
                "--offset_increment=8M",
                "--size=8M",
            ],
        ),
        ("pvsync", vec![]),
        ("pvsync2", vec![]),
        ("sync", vec![]),
        ("mmap", vec![]),
        ("mmap", vec!["--readonly", "--rw=randread", "--verify=0"]),
    ] {
        // Threads that open a file at the same time may find it busy, on a machine under load.
        let mut attempts = (0..5).map(|_| fio(engine, &mount, &more));
        let share = attempts.find(|share| *share >= 95.0).unwrap_or(0.0);
        println!("fio {engine} {more:?}: {share:.1} % served");
        assert!(share >= 95.0, "fio {engine} {more:?}: {share:.1} %");
    }
    end(&mount);
}

/// What the library does not see goes through the mount, beside a program whose lease keeps
/// the file out of the page cache.
#[test]
fn asynchronous_engines_of_fio_verify_beside_lease() {
    let Some((mount, _dog)) = mount("asynchronous fio", &["fio", "cc"]) else {
        return;
    };
    let share = best_share(80.0, || {
        let mut holder = preloaded(probe("probe"))
            .arg("holds_lease")
            .arg(mount.at("held"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(holder.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        for engine in ["libaio", "io_uring"] {
            for (name, size) in [("fio", "4M"), ("held", "248k")] {
                let out = preloaded("fio")
                    .args(["--name=job", "--bs=4k", "--verify=crc32c", "--rw=randrw"])
                    .args(["--verify_fatal=1", "--verify_state_save=0", "--iodepth=8"])
                    .arg(format!("--ioengine={engine}"))
                    .arg(format!("--size={size}"))
                    .arg(format!("--filename={}", mount.at(name).display()))
                    .current_dir(mount.region().parent().unwrap())
                    .output()
                    .unwrap();
                let said = String::from_utf8_lossy(&out.stderr);
                // Some systems forbid io_uring.
                if said.contains("Operation not permitted") || said.contains("not implemented") {
                    skipped(format_args!("fio {engine} does not run here: {said}"));
                    break;
                }
                text(&out);
            }
        }
        drop(holder.stdin.take());
        let out = holder.wait_with_output().unwrap();
        text(&out);
        share(&out)
    });
    assert!(share >= 80.0, "{share:.1} % served");
    end(&mount);
}

fn sqlite(database: &Path, sql: &str) -> Output {
    preloaded("sqlite3")
        .arg(database)
        .arg(sql)
        .output()
        .unwrap()
}

#[test]
fn sqlite_is_served() {
    let Some((mount, _dog)) = mount("sqlite", &["sqlite3"]) else {
        return;
    };
    for mode in ["persist", "delete", "wal"] {
        let database = mount.at(mode);
        let make = format!(
            "PRAGMA journal_mode={mode}; CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT);
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
             INSERT INTO t SELECT i, hex(randomblob(100)) FROM n;"
        );
        text(&sqlite(&database, &make));
        let query = "PRAGMA cache_size=10; PRAGMA mmap_size=0;
             SELECT count(*), sum(length(b)) FROM t; SELECT count(*) FROM t x JOIN t y ON y.a = (x.a * 37) % 5000;
             PRAGMA integrity_check;";
        let reads = best_share(95.0, || {
            let out = sqlite(&database, query);
            assert!(text(&out).contains("5000|1000000") && text(&out).ends_with("ok\n"));
            share(&out)
        });
        let change = format!(
            "PRAGMA journal_mode={mode}; PRAGMA cache_size=10;
             UPDATE t SET b = hex(randomblob(100)) WHERE a % 3 = 0; PRAGMA integrity_check;"
        );
        let out = sqlite(&database, &change);
        assert!(text(&out).ends_with("ok\n"));
        println!(
            "sqlite {mode}: {reads:.1} % of reads served, {:.1} % of changes",
            share(&out)
        );
        assert!(reads >= 95.0, "sqlite {mode}: {reads:.1} % of reads");
        if mode == "persist" {
            // From now on, the journal is overwritten in place.
            let share = best_share(95.0, || share(&sqlite(&database, &change)));
            println!("sqlite {mode}, journal in place: {share:.1} % of changes");
            assert!(share >= 95.0, "{share:.1} %");
        }
        // Another program sees the same.
        let seen = Command::new("sqlite3")
            .arg(&database)
            .arg("PRAGMA integrity_check")
            .output()
            .unwrap();
        assert_eq!(text(&seen), "ok\n");
    }
    end(&mount);
}

#[test]
fn python_maps_file() {
    let Some((mount, _dog)) = mount("python", &["python3"]) else {
        return;
    };
    fs::write(mount.at("file"), [b'a'; 8192]).unwrap();
    let script = "import mmap, os, sys
f = open(sys.argv[1], 'r+b')
m = mmap.mmap(f.fileno(), 0)
m[4096:4101] = b'hello'
m.flush()
assert os.pread(f.fileno(), 5, 4096) == b'hello'
os.pwrite(f.fileno(), b'there', 0)
assert m[:5] == b'there'
m.close()
f.seek(4096)
assert f.read(5) == b'hello'
f.truncate(4098)
f.close()
";
    let out = preloaded("python3")
        .args(["-c", script])
        .arg(mount.at("file"))
        .output()
        .unwrap();
    text(&out);
    let mut expected = vec![b'a'; 4096];
    expected[..5].copy_from_slice(b"there");
    expected.extend(b"he");
    assert_eq!(fs::read(mount.at("file")).unwrap(), expected);
    end(&mount);
}
