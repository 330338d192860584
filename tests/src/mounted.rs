//! Real mounts for tests: a fresh region, `mount.pramfs`, and an end to both
//! whatever the test did.
//!
//! A [`Mounted`] knows its process by the unique path of its region, so that
//! nothing is ever unmounted or killed that the test did not start.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use pramfs::format::{FormatOptions, format};
use pramfs::pmem::RegionOptions;
use rustix::fs::FlockOperation;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal};
use tempfile::TempDir;

/// How long anything may take that ought to take milliseconds: so long that only
/// what will never be done takes longer, on a machine with whatever load.
const TIMEOUT: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(5);

/// Whether a file system can be mounted here. Says loudly if it cannot.
pub fn available(test: &str) -> bool {
    let missing = if !Path::new("/dev/fuse").exists() {
        "no /dev/fuse"
    } else if !rustix::process::geteuid().is_root() {
        "not root"
    } else {
        return true;
    };
    crate::skip::skipped(format_args!("{missing}: {test} has not been run"));
    false
}

/// Where cargo has put `mount.pramfs`, for tests of other packages than its
/// own; `PRAMFS_MOUNT` names another one.
///
/// # Panics
/// If it has not been built, or was built together with the test hooks.
pub fn program() -> PathBuf {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    let find = || {
        let path = built();
        let version = version_of(&path);
        assert!(
            !version.contains("+testing"),
            "{} is {version}: it was built together with pramfs-tests; type: cargo build --bins",
            path.display()
        );
        path
    };
    FOUND.get_or_init(find).clone()
}

/// What a program says to `--version`.
///
/// # Panics
/// Where it cannot be run.
pub fn version_of(program: &Path) -> String {
    let said = Command::new(program).arg("--version").output();
    let said = said.unwrap_or_else(|e| panic!("{}: {e}", program.display()));
    String::from_utf8_lossy(&said.stdout).trim().to_owned()
}

/// Whether nobody has the lock of a region. It is given back at once and not by
/// closing: a child that is being started has a copy of the descriptor.
pub fn is_unlocked(region: &Path) -> bool {
    let Ok(file) = fs::File::open(region) else {
        return false;
    };
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        && rustix::fs::flock(&file, FlockOperation::Unlock).is_ok()
}

/// Returns the options that the environment adds to every mount of this test.
fn added() -> Option<String> {
    if let Ok(options) = std::env::var("PRAMFS_TEST_OPTIONS") {
        return Some(options);
    }
    std::env::var_os("PRAMFS_TEST_SHARE_TRANSPORTS")?;
    // A test runs in a thread of its name.
    let thread = std::thread::current();
    Some(shared_with(thread.name()).to_owned())
}

/// The value that an option has in the last list that gives it.
fn last<'a>(lists: &[&'a str], option: &str) -> Option<&'a str> {
    let all = lists.iter().flat_map(|list| list.split(','));
    all.filter_map(|one| one.strip_prefix(option)?.strip_prefix('='))
        .next_back()
}

/// Whether the environment asks for `opens=kernel`: files are opened without a request then,
/// except in mounts with `cache=none`, `cache=writeback` or `direct=`, and those of tests that say `opens=`.
pub fn kernel_opens() -> bool {
    added().is_some_and(|options| last(&[&options], "opens") == Some("kernel"))
}

/// Whether options exclude `opens=kernel`, and do not say it themselves.
fn excludes_kernel_opens(options: &[&str]) -> bool {
    let direct = last(options, "direct").is_some_and(|who| who != "off");
    let cache = matches!(last(options, "cache"), Some("none" | "writeback"));
    last(options, "opens").is_none() && (direct || cache)
}

/// Returns the options that a test has, with its transport.
fn shared_with(test: Option<&str>) -> &'static str {
    const ALL: [&str; 4] = [
        "transport=fuser",
        "transport=dev",
        "transport=auto",
        "transport=dev,opens=kernel",
    ];
    let test = test.unwrap_or_default();
    if let Some((_, options)) = LONG_RUNS.iter().find(|(name, _)| test.ends_with(name)) {
        return options;
    }
    let sum = test.bytes().fold(0, |sum, byte| sum + usize::from(byte));
    ALL[sum % ALL.len()]
}

/// What the longest runs of others' programs have: mostly what a mount has that nobody chooses for,
/// and each transport at least once. A name of a test says nothing about its weight.
const LONG_RUNS: [(&str, &str); 8] = [
    ("pjdfstest_matches_expected_results", "transport=auto"),
    ("stress_ng_filesystem_class_runs", "transport=auto"),
    ("dbench_runs_with_four_clients", "transport=dev"),
    ("fsx_runs_with_page_cache", "transport=auto"),
    ("fsx_runs_with_cache_none", "transport=dev"),
    ("fio_verifies_with_page_cache", "transport=fuser"),
    ("fio_verifies_with_cache_none", "transport=auto"),
    (
        "load_of_24_writers_and_readers_keeps_data",
        "transport=auto",
    ),
];

fn built() -> PathBuf {
    if let Some(path) = std::env::var_os("PRAMFS_MOUNT") {
        return path.into();
    }
    let test = std::env::current_exe().expect("the path of the test program");
    let program = test
        .ancestors()
        .skip(1)
        .take(3)
        .map(|dir| dir.join("mount-pramfs"))
        .find(|path| path.is_file());
    program.expect("mount-pramfs is not built; type: cargo build --bins")
}

/// A region in a directory of its own, and a directory to mount it on.
#[derive(Debug)]
pub struct Mounted {
    program: PathBuf,
    /// Removed at the end, with the region.
    dir: TempDir,
}

impl Mounted {
    /// A fresh region of `len` bytes in memory, not mounted yet.
    ///
    /// # Panics
    /// Where it cannot be made.
    pub fn unmounted(program: &Path, len: u64) -> Mounted {
        Mounted::formatted(program, len, &FormatOptions::default())
    }

    /// As [`unmounted`](Self::unmounted), formatted so.
    ///
    /// # Panics
    /// Where it cannot be made.
    pub fn formatted(program: &Path, len: u64, options: &FormatOptions) -> Mounted {
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() {
            shm.to_owned()
        } else {
            std::env::temp_dir()
        };
        Mounted::formatted_in(&base, program, len, options)
    }

    /// As [`formatted`](Self::formatted), with region and mount point in a
    /// directory of their own in `base`.
    ///
    /// # Panics
    /// Where it cannot be made.
    pub fn formatted_in(base: &Path, program: &Path, len: u64, options: &FormatOptions) -> Mounted {
        let dir = tempfile::Builder::new()
            .prefix("pramfs-test-")
            .tempdir_in(base)
            .expect("a directory for the test");
        fs::create_dir(dir.path().join("mnt")).expect("a mount point");
        let mounted = Mounted {
            program: program.to_owned(),
            dir,
        };
        let region = RegionOptions::new()
            .create(mounted.region(), len)
            .expect("a region");
        format(&region, options).expect("formatting");
        mounted
    }

    /// A fresh region of `len` bytes, mounted with `options` (as after `-o`).
    ///
    /// # Panics
    /// Where it cannot be mounted.
    pub fn new(program: &Path, len: u64, options: &str) -> Mounted {
        let mounted = Mounted::unmounted(program, len);
        mounted.mount(options);
        mounted
    }

    /// The region's file.
    pub fn region(&self) -> PathBuf {
        self.dir.path().join("region")
    }

    /// The mount point.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    /// A path in the mounted file system.
    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }

    /// A command that mounts the region, to be changed and run.
    ///
    /// `PRAMFS_TEST_OPTIONS` adds options to every mount. With `PRAMFS_TEST_SHARE_TRANSPORTS`,
    /// each test has one of the transports, by its name, some with `opens=kernel`, so that all
    /// tests together try all of them.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(self.region()).arg(self.path());
        if let Some(options) = added() {
            command.arg("-o").arg(options);
        }
        command
    }

    /// Runs the program with these arguments after region and mount point. An `opens=kernel` of
    /// the environment gives way to options that exclude it.
    ///
    /// # Panics
    /// Where it cannot be started.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Output {
        let mut command = self.command();
        command.args(args);
        let given: Vec<&str> = command.get_args().filter_map(OsStr::to_str).collect();
        // Without those that the environment adds.
        let own = &given[given.len().min(if added().is_some() { 4 } else { 2 })..];
        if kernel_opens() && excludes_kernel_opens(own) {
            command.args(["-o", "opens=server"]);
        }
        command.output().expect("start mount.pramfs")
    }

    /// Mounts the region.
    ///
    /// # Panics
    /// Where that fails.
    pub fn mount(&self, options: &str) {
        let out = if options.is_empty() {
            self.run::<&str>([])
        } else {
            self.run(["-o", options])
        };
        assert!(
            out.status.success(),
            "mount -o {options}: {}: {}",
            out.status,
            String::from_utf8_lossy(&out.stderr)
        );
    }

    /// The line of `/proc/self/mounts` about the mount point, if there is one.
    pub fn mounts_line(&self) -> Option<String> {
        let path = self.path();
        let wanted = path.to_string_lossy();
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        mounts
            .lines()
            .rev()
            .find(|line| line.split(' ').nth(1) == Some(&wanted))
            .map(str::to_owned)
    }

    /// Whether something is mounted on the mount point.
    pub fn is_mounted(&self) -> bool {
        self.mounts_line().is_some()
    }

    /// The processes that have the region's path among their arguments.
    pub fn processes(&self) -> Vec<Pid> {
        Mounted::processes_of(&self.region())
    }

    /// The processes that have a path among their arguments.
    pub fn processes_of(region: &Path) -> Vec<Pid> {
        let Ok(entries) = fs::read_dir("/proc") else {
            return Vec::new();
        };
        entries
            .flatten()
            .filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
            .filter(|pid| {
                let line =
                    fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
                line.split(|byte| *byte == 0)
                    .any(|arg| arg == region.as_os_str().as_encoded_bytes())
            })
            .collect()
    }

    /// The processes that a supervisor has started to serve the mount (`takeover=on`).
    pub fn supervised(&self) -> Vec<Pid> {
        let all = Mounted::processes_of(Path::new("--serve-for-supervisor"));
        let ours = self.processes();
        all.into_iter().filter(|pid| ours.contains(pid)).collect()
    }

    /// Those of them that serve, and do not stand by.
    pub fn serving(&self) -> Vec<Pid> {
        let stands_by = |pid: &Pid| {
            let name = fs::read(format!("/proc/{}/comm", pid.as_raw_nonzero()));
            name.is_ok_and(|name| name == b"pramfs-standby\n")
        };
        let mut all = self.supervised();
        all.retain(|pid| !stands_by(pid));
        all
    }

    /// The supervisor of a mount with `takeover=on`.
    ///
    /// # Panics
    /// Where there is none, or more than one.
    pub fn supervisor(&self) -> Pid {
        let mut others = Vec::new();
        // A server that is being started still has the arguments of its supervisor.
        wait_until(|| {
            others = self.processes();
            let servers = self.supervised();
            others.retain(|pid| !servers.contains(pid));
            others.len() == 1
        });
        match others[..] {
            [one] => one,
            ref all => panic!("one process is to supervise the mount, there are {all:?}"),
        }
    }

    /// The process that serves the mount. With `takeover=on` that is not the supervisor.
    ///
    /// # Panics
    /// Where there is none, or more than one.
    pub fn process(&self) -> Pid {
        // One that was just started does not stand by yet.
        if !self.supervised().is_empty() {
            let mut serving = Vec::new();
            let found = wait_until(|| {
                serving = self.serving();
                serving.len() == 1
            });
            assert!(
                found,
                "one process is to serve the mount, there are {serving:?}"
            );
            return serving[0];
        }
        match self.processes()[..] {
            [one] => one,
            ref all => panic!("one process is to serve the mount, there are {all:?}"),
        }
    }

    /// Sends a signal to the process that serves the mount.
    ///
    /// # Panics
    /// Where there is none.
    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.process(), signal).expect("kill");
    }

    /// Stops the process that serves the mount, and waits until each of its
    /// threads stands still: what is asked from now on is not answered.
    ///
    /// # Panics
    /// Where there is none, or it goes on.
    pub fn stop(&self) {
        let process = self.process();
        rustix::process::kill_process(process, Signal::STOP).expect("kill");
        let tasks = format!("/proc/{}/task", process.as_raw_nonzero());
        let stands = |task: io::Result<fs::DirEntry>| {
            let stat = fs::read_to_string(task?.path().join("stat"))?;
            // The name, in parentheses, may have any characters.
            Ok::<bool, io::Error>(
                stat.rsplit_once(") ")
                    .is_some_and(|(_, rest)| rest.starts_with('T')),
            )
        };
        assert!(
            wait_until(|| fs::read_dir(&tasks)
                .expect("the threads of the process")
                .all(|task| stands(task).unwrap_or(false))),
            "{process:?} does not stop"
        );
    }

    /// Waits until no process serves the region any more.
    ///
    /// # Panics
    /// Where that takes too long.
    pub fn wait_for_end(&self) {
        assert!(
            wait_until(|| self.processes().is_empty() && self.is_unlocked()),
            "the process that serves {} does not end; mounted for the processes {:?}, one of which may have copied the mount into a mount namespace of its own",
            self.path().display(),
            self.holders()
        );
    }

    /// The processes that see the mount: those of a mount namespace that was
    /// made while it was there keep it, whoever unmounts it elsewhere.
    fn holders(&self) -> Vec<String> {
        let path = format!(" {} ", self.path().display());
        let sees = |entry: &fs::DirEntry| {
            fs::read_to_string(entry.path().join("mountinfo"))
                .is_ok_and(|text| text.contains(&path))
        };
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let names = entries.filter(sees).map(|entry| entry.file_name());
        names.filter_map(|name| name.into_string().ok()).collect()
    }

    /// Kills the process that serves the mount, as a crash would.
    ///
    /// # Panics
    /// Where there is none.
    pub fn crash(&self) {
        self.signal(Signal::KILL);
        self.wait_for_end();
    }

    /// Unmounts, as umount(8) does, and waits for the process to end.
    ///
    /// # Panics
    /// Where that fails.
    pub fn unmount(&self) {
        self.try_unmount(UnmountFlags::empty()).expect("umount");
        self.wait_for_end();
    }

    /// Takes a mount whose server has died away.
    ///
    /// # Panics
    /// Where that fails.
    pub fn detach(&self) {
        self.try_unmount(UnmountFlags::DETACH).expect("umount");
    }

    /// A process that ends loses its arguments before it lets go of its lock.
    fn is_unlocked(&self) -> bool {
        !self.region().exists() || is_unlocked(&self.region())
    }

    fn try_unmount(&self, flags: UnmountFlags) -> io::Result<()> {
        try_unmount(&self.path(), flags)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A test that fails may leave files open, or several mounts.
        while self.is_mounted() && self.try_unmount(UnmountFlags::DETACH).is_ok() {}
        if !wait_until(|| self.processes().is_empty()) {
            for pid in self.processes() {
                eprintln!("killing {pid:?}, which did not end by itself");
                // It may have ended just now.
                let _gone = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// Unmounts a directory that nobody uses.
///
/// # Panics
/// Where that fails.
pub fn unmount_when_free(path: &Path) {
    try_unmount(path, UnmountFlags::empty()).expect("umount");
}

/// Another thread of the test that starts a program holds our descriptors for a
/// moment, and with them the mount.
fn try_unmount(path: &Path, flags: UnmountFlags) -> io::Result<()> {
    let mut result = Ok(());
    wait_until(|| {
        result = rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW);
        result != Err(rustix::io::Errno::BUSY)
    });
    result.map_err(io::Error::from)
}

/// Waits until `done` is true; tells whether it became so in time.
pub fn wait_until(mut done: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while !done() {
        if started.elapsed() > TIMEOUT {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
    true
}

/// Copies a program that is to be executed. By another process: a child that another thread
/// forks meanwhile would inherit a descriptor that is open for writing, and the copy could not
/// be executed (ETXTBSY).
///
/// # Panics
/// Where that fails.
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let mut cp = Command::new("cp");
    let copied = cp.arg(from.as_ref()).arg(to.as_ref()).status();
    assert!(copied.expect("cp").success(), "cp");
}
