//! What the tests of the tools share: running them, and a directory on tmpfs.
#![allow(dead_code)] // Each test binary uses its part of this.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Path of `mkfs.pramfs`.
pub const MKFS: &str = env!("CARGO_BIN_EXE_mkfs-pramfs");
/// Path of `fsck.pramfs`.
pub const FSCK: &str = env!("CARGO_BIN_EXE_fsck-pramfs");
/// Path of `pramfs`.
pub const PRAMFS: &str = env!("CARGO_BIN_EXE_pramfs");

/// What a tool answered.
#[derive(Debug)]
pub struct Answer {
    pub status: i32,
    pub out: String,
    pub err: String,
}

impl Answer {
    /// The answer of a run that must succeed.
    pub fn ok(self) -> Answer {
        assert_eq!(self.status, 0, "{self:?}");
        self
    }

    /// The answer of a run that must fail with status 1 and say all of this.
    pub fn refused(self, words: &[&str]) -> Answer {
        self.failed(1, words)
    }

    /// The answer of a run that must find wrong usage and say all of this.
    pub fn misused(self, words: &[&str]) -> Answer {
        self.failed(2, words)
    }

    fn failed(self, status: i32, words: &[&str]) -> Answer {
        assert_eq!(self.status, status, "{self:?}");
        for w in words {
            assert!(self.err.contains(w), "{w:?} is missing in {self:?}");
        }
        self
    }

    /// Standard output as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

/// Runs a program with nothing to read.
pub fn run<A: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = A>) -> Answer {
    run_with_input(program, args, b"")
}

/// Runs a program that reads `input`.
pub fn run_with_input<A: AsRef<OsStr>>(
    program: &str,
    args: impl IntoIterator<Item = A>,
    input: &[u8],
) -> Answer {
    let mut child = start(program, args, Stdio::piped());
    // It may end without reading.
    let _ = child.stdin.take().unwrap().write_all(input);
    answer(child)
}

/// Runs a program at a terminal, where somebody types `input`.
pub fn run_at_terminal<A: AsRef<OsStr>>(
    program: &str,
    args: impl IntoIterator<Item = A>,
    input: &[u8],
) -> Answer {
    let (keys, name) = terminal();
    File::from(keys.try_clone().unwrap())
        .write_all(input)
        .unwrap();
    let mut line = File::options();
    line.read(true).write(true).custom_flags(libc::O_NOCTTY);
    let answer = answer(start(program, args, line.open(name).unwrap().into()));
    drop(keys);
    answer
}

/// A terminal: the end where keys are typed, and the name of the other.
pub fn terminal() -> (OwnedFd, String) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&keys).unwrap();
    unlockpt(&keys).unwrap();
    let name = ptsname(&keys, Vec::new()).unwrap();
    (keys, name.into_string().unwrap())
}

fn start<A: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = A>, stdin: Stdio) -> Child {
    Command::new(program)
        .args(args)
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{program}: {e}"))
}

fn answer(child: Child) -> Answer {
    let out = child.wait_with_output().unwrap();
    Answer {
        status: out.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&out.stdout).into_owned(),
        err: String::from_utf8_lossy(&out.stderr).into_owned(),
    }
}

/// Runs `mkfs.pramfs`.
pub fn mkfs<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Answer {
    run(MKFS, args)
}

/// Runs `pramfs`.
pub fn pramfs<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Answer {
    run(PRAMFS, args)
}

/// A directory, on tmpfs where there is one.
pub fn scratch() -> tempfile::TempDir {
    let dir = if Path::new("/dev/shm").is_dir() {
        PathBuf::from("/dev/shm")
    } else {
        std::env::temp_dir()
    };
    tempfile::Builder::new()
        .prefix("pramfs-tools-")
        .tempdir_in(dir)
        .unwrap()
}

/// A region with an empty file system.
pub fn made(dir: &Path, size: &str) -> PathBuf {
    let region = dir.join("region");
    mkfs([region.as_os_str(), OsStr::new(size)]).ok();
    region
}

/// Copies a program that is to be run. By another one: a descriptor for writing of
/// ours would be inherited by what other threads start meanwhile, and who is open
/// for writing cannot be run ("Text file busy").
pub fn copy_program(from: &str, to: &Path) {
    run("cp", [from, to.to_str().unwrap()]).ok();
}

/// Says loudly that something is not tested: past the harness, which keeps what
/// `eprintln!` says of a test that passes to itself.
pub fn skipped(what: impl std::fmt::Display) {
    use std::io::Write;
    let line = format!("\n*** SKIPPED: {what} ***\n\n");
    // Nobody listens: then there is nobody to be told so.
    let _unheard = std::io::stderr().write_all(line.as_bytes());
}

/// Whether we are root; says loudly what is skipped if not.
pub fn root_or_skip(what: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skipped(format_args!("needs root: {what}"));
    }
    root
}

/// A program of the system, or a loud word about what is skipped without it.
pub fn find_or_skip(program: &str) -> Option<String> {
    let path = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"]
        .iter()
        .map(|d| format!("{d}/{program}"));
    let found = path.into_iter().find(|p| Path::new(p).exists());
    if found.is_none() {
        skipped(format_args!("{program} is not installed"));
    }
    found
}
