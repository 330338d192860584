//! Programs where the library gets no lease, or a part of one: containers, setuid programs, other
//! libraries beside it, failed pages, small blocks, files in many pieces. What they see is what they
//! see without it. They need root, `/dev/fuse` and a C compiler.

mod support;

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use pramfs_medium::format::FormatOptions;
use pramfs_tests::mounted::{self, Mounted, copy_program};
use pramfs_tests::skip::skipped;
use pramfs_tests::watchdog::Watchdog;
use support::{Share, end, is_there, library, probe, text};

const REGION: u64 = 64 << 20;
const BLOCK: usize = 4096;
/// A file that is long enough for every kind of lease.
const BLOCKS: u64 = 300;

fn block(index: u64) -> [u8; BLOCK] {
    [b'a' + (index % 26) as u8; BLOCK]
}

fn make(path: &Path, blocks: u64) {
    let file = File::create(path).unwrap();
    for index in 0..blocks {
        let at = index * BLOCK as u64;
        file.write_all_at(&block(index), at).unwrap();
    }
}

/// A run of a program, with these libraries loaded before the C library.
fn with(libraries: &[&Path], program: &Path, scenario: &str, file: &Path) -> Command {
    let names: Vec<_> = libraries
        .iter()
        .map(|path| path.to_str().unwrap())
        .collect();
    let mut command = Command::new(program);
    command.args([scenario.as_ref(), file.as_os_str()]);
    if !names.is_empty() {
        command.env("LD_PRELOAD", names.join(" "));
    }
    command.env("PRAMFS_PRELOAD_STATS", "1");
    command
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

fn served(out: &Output) -> u64 {
    Share::of(&said(out)).served()
}

fn mount(test: &str, programs: &[&str]) -> Option<(Mounted, Watchdog)> {
    support::mount(test, programs, REGION)
}

/// Runs a scenario with the library and without it, each on a new file: it must see the same. Returns
/// the most calls that were served, of some runs: a file may be found busy, on a machine under load.
#[track_caller]
fn same(mount: &Mounted, scenario: &str, blocks: u64) -> u64 {
    let places = probe("places");
    let run = |libraries: &[&Path]| {
        make(&mount.at("file"), blocks);
        let mut command = with(libraries, &places, scenario, &mount.at("file"));
        command.output().unwrap()
    };
    let expected = text(&run(&[]));
    let library = library();
    let served = (0..3).map(|_| {
        let out = run(&[&library]);
        assert_eq!(text(&out), expected, "{scenario}");
        assert!(said(&out).contains("library: 1\n"), "{}", said(&out));
        served(&out)
    });
    served.max().unwrap_or(0)
}

#[test]
fn file_with_lease_is_used_as_without_library() {
    let Some((mount, _dog)) = mount("leases", &["cc"]) else {
        return;
    };
    assert!(same(&mount, "use", BLOCKS) > 300);
    end(&mount);
}

#[test]
fn program_in_chroot_without_socket_uses_mount() {
    let Some((mount, _dog)) = mount("chroot", &["cc"]) else {
        return;
    };
    assert_eq!(same(&mount, "in_chroot", BLOCKS), 0);
    end(&mount);
}

#[test]
fn container_without_run_uses_mount() {
    let Some((mount, _dog)) = mount("container", &["cc"]) else {
        return;
    };
    assert_eq!(same(&mount, "without_run", BLOCKS), 0);
    end(&mount);
}

/// The loader leaves the library out, because the variable is another user's.
#[test]
fn setuid_program_runs_without_library() {
    let Some((mount, _dog)) = mount("setuid", &["cc"]) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let (program, copy) = (
        directory.path().join("setuid"),
        directory.path().join("lib.so"),
    );
    copy_program(probe("places"), &program);
    fs::copy(library(), &copy).unwrap();
    let mode = |path: &Path, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode));
    mode(directory.path(), 0o755).unwrap();
    mode(&copy, 0o755).unwrap();
    mode(&program, 0o4755).unwrap();
    make(&mount.at("file"), BLOCKS);
    let run = |libraries: &[&Path]| {
        let mut command = with(libraries, &program, "setuid_program", &mount.at("file"));
        command.uid(12345).gid(12345).output().unwrap()
    };
    let plain = run(&[]);
    if !plain.stdout.starts_with(b"0\n") {
        skipped(format_args!(
            "no setuid programs in {}",
            directory.path().display()
        ));
        return;
    }
    make(&mount.at("file"), BLOCKS);
    let out = run(&[&copy]);
    assert_eq!(text(&out), text(&plain));
    assert!(!said(&out).contains("pramfs-preload"), "{}", said(&out));
    // The same file is loaded where the variable counts.
    chown(&program, Some(0), Some(0)).unwrap();
    mode(&program, 0o755).unwrap();
    make(&mount.at("file"), BLOCKS);
    let out = with(&[&copy], &program, "use", &mount.at("file"))
        .output()
        .unwrap();
    assert!(said(&out).contains("pramfs-preload"), "{}", said(&out));
    end(&mount);
}

/// Builds the other library.
fn beside() -> PathBuf {
    let to = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("beside.so");
    let from = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/beside.c");
    let mut cc = Command::new("cc");
    let done = cc
        .args(["-O2", "-shared", "-fPIC", "-o"])
        .arg(&to)
        .arg(from)
        .status();
    assert!(done.unwrap().success());
    to
}

#[test]
fn other_library_before_and_after_sees_its_calls() {
    let Some((mount, _dog)) = mount("other libraries", &["cc"]) else {
        return;
    };
    let (other, ours, places) = (beside(), library(), probe("places"));
    let run = |libraries: &[&Path]| {
        make(&mount.at("file"), BLOCKS);
        let mut command = with(libraries, &places, "use", &mount.at("file"));
        let out = command.output().unwrap();
        let counts = said(&out).lines().find_map(|line| {
            let numbers = line.strip_prefix("beside: ")?.split(' ');
            Some(
                numbers
                    .filter_map(|word| word.parse().ok())
                    .collect::<Vec<u64>>(),
            )
        });
        (text(&out), served(&out), counts.unwrap_or_default())
    };
    let (expected, _, all) = run(&[&other]);
    assert!(all[0] >= 2 && all[1] > 400, "{all:?}");
    let mut most = [0, 0];
    for _ in 0..3 {
        // Before: it sees all calls of the program, and opens of the library.
        let (said, served, before) = run(&[&other, &ours]);
        assert_eq!((said, before[1]), (expected.clone(), all[1]));
        assert!(before[0] >= all[0], "{before:?}");
        most[0] = served.max(most[0]);
        // After: it sees those that are passed on.
        let (said, served, after) = run(&[&ours, &other]);
        assert_eq!(said, expected);
        // A file may be found busy, on a machine under load: then all are passed on.
        assert!(after[0] >= 2, "{after:?}");
        assert!(served == 0 || after[1] < all[1], "{served}, {after:?}");
        most[1] = served.max(most[1]);
    }
    assert!(most.iter().all(|served| *served > 300), "{most:?} served");
    end(&mount);
}

/// The region is cut under the program, as by a host that has lost a part of it.
#[test]
fn failed_page_is_the_error_of_the_mount() {
    let run = |libraries: &[&Path]| {
        let (mount, _dog) = mount("failed pages", &["cc"])?;
        make(&mount.at("file"), 8000);
        let mut command = with(
            libraries,
            &probe("places"),
            "failed_page",
            &mount.at("file"),
        );
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let region = File::options().write(true).open(mount.region()).unwrap();
        region.set_len(4 << 20).unwrap();
        child.stdin.take().unwrap().write_all(b"x").unwrap();
        let mut rest = String::new();
        lines.read_to_string(&mut rest).unwrap();
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "{}: {rest}{}", out.status, said(&out));
        mount.crash();
        Some((rest, served(&out)))
    };
    let (Some((with, served)), Some((without, _))) = (run(&[&library()]), run(&[])) else {
        return;
    };
    assert!(
        with.contains(&format!("read: -1, errno {}\n", libc::EIO)),
        "{with}"
    );
    assert!(with.contains("first block: 4096\n"), "{with}");
    // Without the library, the first read may find the page in the kernel's cache.
    let after_first = |said: &str| said.split_once('\n').unwrap().1.to_owned();
    let (with, without) = (after_first(&with), after_first(&without));
    assert_eq!(with, without, "{served} calls were served");
}

fn formatted(test: &str, len: u64, options: &FormatOptions) -> Option<(Mounted, Watchdog)> {
    if !is_there("cc") || !mounted::available(test) {
        return None;
    }
    let dog = Watchdog::new(test, Duration::from_secs(120));
    let mount = Mounted::formatted(&mounted::program(), len, options);
    mount.mount("direct=owner");
    Some((mount, dog))
}

#[test]
fn blocks_smaller_than_page_are_used_as_without_library() {
    for block_size in [512, 2048] {
        let options = FormatOptions {
            block_size,
            ..FormatOptions::default()
        };
        let test = format!("blocks of {block_size} bytes");
        let Some((mount, _dog)) = formatted(&test, REGION, &options) else {
            return;
        };
        let served = same(&mount, "use", BLOCKS);
        assert!(served > 300, "{test}: {served} calls are served");
        end(&mount);
    }
}

#[test]
fn file_of_ten_thousand_extents_is_used_as_without_library() {
    const EXTENTS: u64 = 10_000;
    let options = FormatOptions::default();
    let Some((mount, _dog)) = formatted("many extents", 160 << 20, &options) else {
        return;
    };
    let places = probe("places");
    let run = |libraries: &[&Path]| {
        let _gone = fs::remove_file(mount.at("file"));
        let files = ["file", "other"].map(|name| File::create(mount.at(name)).unwrap());
        for index in 0..EXTENTS {
            for file in &files {
                file.write_all_at(&block(index), index * BLOCK as u64)
                    .unwrap();
            }
        }
        drop(files);
        let mut command = with(libraries, &places, "use", &mount.at("file"));
        let out = command.output().unwrap();
        (text(&out), served(&out))
    };
    let (expected, _) = run(&[]);
    let library = library();
    let mut served = (0..3).map(|_| {
        let (said, served) = run(&[&library]);
        assert_eq!(said, expected);
        served
    });
    assert!(served.any(|served| served > 3000), "too few calls served");
    drop(served);
    end(&mount);
}
