//! Unmodified programs with the preload library on a mount, and without it on tmpfs: they
//! must do and see the same. Each test prints the share of data calls that was served.
//!
//! They need root and `/dev/fuse`. `PRAMFS_PROGRAMS=full` makes them longer.

#[path = "../support/mod.rs"]
mod support;

mod copies;
mod git;
mod lmdb;
mod postgres;
mod python;
mod redis;
mod rocksdb;
mod sqlite;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pramfs_tests::mounted::Mounted;
use pramfs_tests::suite::{self, Run};
use support::Share;
use tempfile::TempDir;

/// Debian's Python, with all modules; another may come first in the path.
const PYTHON: &str = "/usr/bin/python3";
/// Time limit of a step.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Whether the full run was requested.
fn full() -> bool {
    match std::env::var("PRAMFS_PROGRAMS").as_deref() {
        Ok("full") => true,
        Ok("") | Err(_) => false,
        Ok(other) => panic!("PRAMFS_PROGRAMS={other}: full, or nothing"),
    }
}

/// The library where every user can load it, and what it says.
struct Loaded {
    dir: TempDir,
}

impl Loaded {
    fn new() -> Loaded {
        let dir = tempfile::tempdir().unwrap();
        fs::copy(support::library(), dir.path().join("lib.so")).unwrap();
        let loaded = Loaded { dir };
        fs::write(loaded.said(), "").unwrap();
        for (path, mode) in [(loaded.dir.path(), 0o755), (&loaded.said(), 0o666)] {
            fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        }
        loaded
    }

    /// Not standard error: programs read that of others.
    fn said(&self) -> PathBuf {
        self.dir.path().join("said")
    }

    /// The variables of a program that loads it.
    fn variables(&self) -> [(&'static str, PathBuf); 2] {
        [
            ("LD_PRELOAD", self.dir.path().join("lib.so")),
            ("PRAMFS_PRELOAD_STATS", self.said()),
        ]
    }

    /// The share of all processes that have ended since the last call. A killed process says
    /// nothing.
    fn share(&self) -> Share {
        let said = fs::read_to_string(self.said()).unwrap();
        fs::write(self.said(), "").unwrap();
        Share::of(&said)
    }
}

/// A directory for programs, and the library that they load, if any.
struct Place<'a> {
    dir: PathBuf,
    library: Option<&'a Loaded>,
}

impl Place<'_> {
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.dir);
        command.envs(self.library.iter().flat_map(|l| l.variables()));
        command
    }

    fn run(&self, name: &str, program: impl AsRef<OsStr>) -> Run {
        self.with_library(Run::new(name, program, TIMEOUT).dir(&self.dir))
    }

    /// A script whose steps must all succeed.
    fn script(&self, name: &str, script: &str) -> Run {
        self.with_library(Run::script(name, script, TIMEOUT).dir(&self.dir))
    }

    fn with_library(&self, mut run: Run) -> Run {
        run.command
            .envs(self.library.iter().flat_map(|l| l.variables()));
        run
    }
}

/// A mount for programs with the library, and a directory on tmpfs for those without.
struct Both {
    mount: Mounted,
    tmpfs: TempDir,
    library: Loaded,
    /// One test at a time: they rely on time limits, and a program started by one test holds
    /// all descriptors of another for a moment.
    _alone: MutexGuard<'static, ()>,
}

impl Both {
    /// `None` if it cannot be mounted here, or a program is missing, which is printed.
    fn new(test: &str, programs: &[&str], mib: u64) -> Option<Both> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mount = suite::mount_for(test, programs, mib, "direct=owner")?;
        let tmpfs = tempfile::Builder::new()
            .prefix("pramfs-test-")
            .tempdir_in("/dev/shm")
            .unwrap();
        Some(Both {
            mount,
            tmpfs,
            library: Loaded::new(),
            _alone: alone,
        })
    }

    /// A directory on the mount.
    fn on_mount(&self, name: &str) -> Place<'_> {
        make(&self.mount.at(name), Some(&self.library))
    }

    /// A directory on tmpfs.
    fn on_tmpfs(&self, name: &str) -> Place<'_> {
        make(&self.tmpfs.path().join(name), None)
    }

    /// Unmounts and checks the file system.
    fn end(&self) -> String {
        suite::unmount_and_check(&self.mount)
    }
}

fn make<'a>(dir: &Path, library: Option<&'a Loaded>) -> Place<'a> {
    fs::create_dir(dir).unwrap();
    Place {
        dir: dir.to_owned(),
        library,
    }
}

/// Lists a tree: kinds, modes, names and links, and the bytes of all files.
fn list(dir: &Path) -> String {
    let script = r#"
find . -printf '%P\t%y\t%m\t%n\t%l\n' | sed -E 's/\td\t([0-7]+)\t[0-9]+\t/\td\t\1\t-\t/' | LC_ALL=C sort
find . -type f -print0 | LC_ALL=C sort -z | xargs -0 --no-run-if-empty sha256sum
"#;
    let run = Run::script("list of a tree", script, TIMEOUT);
    run.dir(dir).succeed().text
}

/// Compares what two runs have left or said, line by line.
#[track_caller]
fn same(what: &str, on_mount: &str, on_tmpfs: &str) {
    if on_mount == on_tmpfs {
        return;
    }
    let pairs = on_mount.lines().zip(on_tmpfs.lines());
    let differ: Vec<_> = pairs.filter(|(a, b)| a != b).take(5).collect();
    panic!(
        "{what}: {} lines on the mount, {} on tmpfs; on the mount, and on tmpfs: {differ:#?}",
        on_mount.lines().count(),
        on_tmpfs.lines().count()
    );
}

#[test]
fn share_of_processes_is_written_to_file() {
    let test = "the file of PRAMFS_PRELOAD_STATS";
    let Some(both) = Both::new(test, &["python3"], 64) else {
        return;
    };
    let place = both.on_mount("place");
    fs::write(place.dir.join("file"), [1; 8192]).unwrap();
    let script = r#"
import os, sys
fd = os.open("file", os.O_RDWR)
# Some programs write over their variables.
os.environ["PRAMFS_PRELOAD_STATS"] = "/nonexistent/file"
assert os.pread(fd, 4096, 0) == bytes([1]) * 4096
sys.stderr.write("own")
"#;
    let share = support::best_share(100.0, || {
        for _ in 0..2 {
            let out = place.run(test, PYTHON).args(["-c", script]).succeed();
            assert_eq!(out.text, "own");
        }
        let share = both.library.share();
        assert!(share.to_string().ends_with(" % of 2"), "{share}");
        share.percent()
    });
    assert_eq!(share, 100.0);
    both.end();
}
