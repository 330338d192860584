//! Shared code of the tests that run programs with the preload library.
#![allow(dead_code, reason = "each test uses its part of this")]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::ops::Add;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pramfs_tests::mounted::{self, Mounted};
use pramfs_tests::skip::skipped;
use pramfs_tests::watchdog::Watchdog;

/// The directory of what cargo has built.
pub fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().to_owned()
}

/// The library. Cargo does not build it for tests: nothing links it.
pub fn library() -> PathBuf {
    let path = built().join("libpramfs_preload.so");
    let changed = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let newest = ["src", "src/calls", "core/src"]
        .iter()
        .flat_map(|dir| fs::read_dir(source.join(dir)).unwrap().flatten())
        .filter_map(|entry| changed(&entry.path()))
        .max();
    assert!(
        changed(&path) >= newest,
        "{} is missing or old; type: cargo build -p pramfs-preload",
        path.display()
    );
    path
}

/// A C program of these tests that uses files.
pub fn probe(name: &str) -> PathBuf {
    static BUILT: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let to = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("preload-{name}"));
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if built.contains(name) {
        return to;
    }
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{name}.c"));
    // Under a name of its own: another test program may be running the one of before.
    let new = to.with_extension(std::process::id().to_string());
    // Fortified, as distributions build.
    let done = Command::new("cc")
        .args(["-O2", "-D_FORTIFY_SOURCE=2", "-pthread", "-o"])
        .arg(&new)
        .arg(from)
        .status();
    assert!(done.unwrap().success());
    fs::rename(&new, &to).unwrap();
    built.insert(name.into());
    to
}

/// Whether a program is in the search path.
pub fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Whether a test can run.
fn available(test: &str, programs: &[&str]) -> bool {
    if let Some(missing) = programs.iter().find(|program| !is_there(program)) {
        skipped(format_args!("no {missing}: {test} has not been run"));
        return false;
    }
    mounted::available(test)
}

/// A mount whose owner, and root, get leases.
pub fn mount(test: &str, programs: &[&str], region: u64) -> Option<(Mounted, Watchdog)> {
    mount_for("owner", test, programs, region)
}

/// A mount with this policy.
pub fn mount_for(
    policy: &str,
    test: &str,
    programs: &[&str],
    region: u64,
) -> Option<(Mounted, Watchdog)> {
    if !available(test, programs) {
        return None;
    }
    let dog = Watchdog::new(test, Duration::from_secs(120));
    let options = format!("direct={policy}");
    let mount = Mounted::new(&mounted::program(), region, &options);
    Some((mount, dog))
}

pub fn preloaded(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command
        .env("LD_PRELOAD", library())
        .env("PRAMFS_PRELOAD_STATS", "1");
    command
}

/// How many of the data calls of some processes were served.
#[derive(Debug, Clone, Copy, Default)]
pub struct Share {
    served: u64,
    all: u64,
}

impl Share {
    /// The sum of what the library says at the end of each process.
    pub fn of(text: &str) -> Share {
        let mut sum = Share::default();
        for line in text.lines().filter(|l| l.starts_with("pramfs-preload:")) {
            let numbers: Vec<u64> = line.split(' ').filter_map(|w| w.parse().ok()).collect();
            sum.served += numbers[0];
            sum.all += numbers[1];
        }
        sum
    }

    pub fn served(self) -> u64 {
        self.served
    }

    /// # Panics
    /// If there were no data calls: then the library was not loaded.
    #[track_caller]
    pub fn percent(self) -> f64 {
        assert!(self.all > 0, "no data calls");
        100.0 * self.served as f64 / self.all as f64
    }
}

impl Add for Share {
    type Output = Share;

    fn add(self, other: Share) -> Share {
        Share {
            served: self.served + other.served,
            all: self.all + other.all,
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.all {
            0 => write!(f, "(no data calls)"),
            all => write!(f, "{:.1} % of {all}", self.percent()),
        }
    }
}

/// The greatest of three shares, in percent; it asks for no more once one is enough. A file may be
/// found busy, on a machine under load.
pub fn best_share(least: f64, mut run: impl FnMut() -> f64) -> f64 {
    let mut best = 0.0_f64;
    for _ in 0..3 {
        best = best.max(run());
        if best >= least {
            break;
        }
    }
    best
}

#[track_caller]
pub fn text(out: &Output) -> String {
    let (stdout, stderr) = (
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr),
    );
    assert!(out.status.success(), "{}: {stdout}{stderr}", out.status);
    stdout.into_owned()
}

/// Unmounts, and checks the file system.
pub fn end(mount: &Mounted) {
    mount.unmount();
    let fsck = built().join("fsck-pramfs");
    if fsck.is_file() {
        let out = Command::new(fsck).arg("-n").arg(mount.region()).output();
        text(&out.unwrap());
    }
}
