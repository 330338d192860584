//! `xfstests-config/run` with a made-up tree of xfstests: what is left when it is ended,
//! and that a mount of the machine does not hold it up.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use pramfs_tests::mounted::{self, Mounted, wait_until};
use pramfs_tests::skip;
use rustix::process::{Pid, Signal};
use tempfile::TempDir;

const RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../xfstests-config/run");

/// Looks at all mounts, as tests do. Then, if the test wants that, starts a process that
/// lasts until it is killed, and has the path `lasts` among its arguments.
const CHECK: &str = r#"#!/bin/bash
df >/dev/null
cat /sys/block/"${TEST_DEV##*/}"/loop/backing_file >"$RESULT_BASE/device"
grep -c ' fuse[. ]' /proc/self/mounts >"$RESULT_BASE/mounts"
echo "${TMPDIR-none}" >"$RESULT_BASE/temporary"
[[ -z $FAKE_LASTS ]] || bash -c 'while sleep 1000; do :; done' "$RUN_OUTPUT/lasts"
echo 'Ran: generic/001'
echo 'Passed all 1 tests'
"#;

/// The accounts that xfstests needs, which this tree does not.
const GETENT: &str = "#!/bin/sh\nexit 0\n";

/// A machine without procps.
const MISSING: &str = "#!/bin/sh\nexit 127\n";

fn missing() -> Option<&'static str> {
    let has = |path: &str| Path::new(path).exists();
    if !rustix::process::geteuid().is_root() {
        Some("not root")
    } else if !has("/dev/loop-control") || !has("/dev/fuse") {
        Some("no loop devices or no FUSE")
    } else if !has("/sbin/mkfs.ext4") {
        Some("no mkfs.ext4")
    } else {
        None
    }
}

fn available(test: &str) -> bool {
    let missing = missing();
    if let Some(missing) = missing {
        skip::skipped(format_args!("{missing}: {test} has not been run"));
    }
    missing.is_none()
}

struct Run {
    dir: TempDir,
    child: Child,
}

impl Run {
    /// Starts a run. It needs nothing of pramfs: its file system is ext4.
    fn start(lasts: bool) -> Run {
        Run::start_by(Command::new(RUN), lasts)
    }

    /// Starts a run in a mount namespace of its own, after these commands there.
    fn start_after(mounts: &str) -> Run {
        let mut shell = Command::new("unshare");
        shell.args(["--mount", "--propagation", "private", "bash", "-ec"]);
        shell.arg(format!("{mounts}\nexec \"$@\"")).args(["", RUN]);
        Run::start_by(shell, false)
    }

    fn start_by(mut command: Command, lasts: bool) -> Run {
        let dir = tempfile::tempdir().unwrap();
        let program = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        };
        program("xfstests/check", CHECK);
        program("xfstests/ltp/fsstress", GETENT);
        program("bin/getent", GETENT);
        program("bin/pkill", MISSING);
        let path = std::env::var("PATH").unwrap_or_default();
        let child = command
            .args(["--config", "ext4", "--size", "64M", "--output"])
            .arg(dir.path().join("results"))
            .arg("generic/001")
            .env(
                "PATH",
                format!("{}:{path}", dir.path().join("bin").display()),
            )
            .env("XFSTESTS_DIR", dir.path().join("xfstests"))
            .env("PRAMFS_BIN", dir.path())
            .env("TMPDIR", dir.path())
            .env("FAKE_LASTS", if lasts { "yes" } else { "" })
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Run { dir, child }
    }

    fn results(&self) -> PathBuf {
        self.dir.path().join("results")
    }

    /// What `check` has written about itself.
    fn said(&self, name: &str) -> String {
        fs::read_to_string(self.results().join("results").join(name)).unwrap_or_default()
    }

    fn processes(&self) -> Vec<Pid> {
        Mounted::processes_of(&self.results().join("lasts"))
    }

    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for the end. What it said is on both streams.
    fn end(&mut self) -> (ExitStatus, String) {
        assert!(wait_until(|| self.has_ended()), "the run does not end");
        let status = self.child.wait().unwrap();
        let mut said = String::new();
        let (out, err) = (self.child.stdout.take(), self.child.stderr.take());
        out.unwrap().read_to_string(&mut said).unwrap();
        err.unwrap().read_to_string(&mut said).unwrap();
        (status, said)
    }

    /// Whether neither a process nor a loop device is left.
    fn has_left_nothing(&self) -> bool {
        let device = self.said("device");
        let devices = fs::read_dir("/sys/block").unwrap().flatten();
        let mut files = devices
            .filter_map(|block| fs::read_to_string(block.path().join("loop/backing_file")).ok());
        self.processes().is_empty() && !files.any(|file| file == device)
    }
}

impl Drop for Run {
    /// Ends what a failed test has left.
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            self.signal(Signal::KILL);
            let _status = self.child.wait();
        }
    }
}

#[test]
fn signal_ends_run_and_leaves_nothing() {
    if !available("signal_ends_run_and_leaves_nothing") {
        return;
    }
    for signal in [Signal::TERM, Signal::INT, Signal::KILL] {
        let mut run = Run::start(true);
        let lasts = wait_until(|| run.has_ended() || !run.processes().is_empty());
        assert!(lasts && !run.has_ended(), "{:?}", run.end());
        assert!(run.said("device").contains("/pramfs-xfstests."));
        run.signal(signal);
        let (status, said) = run.end();
        if signal == Signal::KILL {
            assert_eq!(status.code(), None, "{said}");
        } else {
            assert_eq!(status.code(), Some(2), "{said}");
            assert!(said.contains("run: interrupted; "), "{said}");
        }
        assert!(wait_until(|| run.has_left_nothing()), "{signal:?}");
    }
}

#[test]
fn stopped_server_of_other_mount_does_not_hold_up_run() {
    let test = "stopped_server_of_other_mount_does_not_hold_up_run";
    if !available(test) {
        return;
    }
    let other = Mounted::new(&mounted::program(), 16 << 20, "");
    other.stop();
    let mut run = Run::start(false);
    let ended = wait_until(|| run.has_ended());
    // Otherwise neither the run nor the mount could be ended.
    other.signal(Signal::CONT);
    assert!(ended);
    let (status, said) = run.end();
    assert!(
        said.contains("\nall: passed 1, failed 0, not run 0\n"),
        "{said}"
    );
    // No such outcome is recorded.
    assert_eq!(status.code(), Some(1), "{said}");
    assert_eq!(run.said("mounts"), "0\n");
    // Temporary files of tests belong into the /tmp that ends with the run.
    assert_eq!(run.said("temporary"), "none\n");
    assert!(run.has_left_nothing());
    assert!(other.is_mounted());
    fs::write(other.at("file"), "still there").unwrap();
}

#[test]
fn run_with_mounts_at_its_stage_and_under_others_drops_them() {
    let test = "run_with_mounts_at_its_stage_and_under_others_drops_them";
    if !available(test) {
        return;
    }
    let other = Mounted::new(&mounted::program(), 16 << 20, "");
    let point = other.at("").display().to_string();
    let elsewhere = tempfile::tempdir().unwrap();
    for stage in ["/mnt", "/mnt/below"] {
        let mut run = Run::start_after(&format!(
            "mount -t tmpfs none /mnt
            mkdir /mnt/below
            mount --bind {point} {stage}
            mount -t tmpfs none {stage}
            mount --bind {point} {elsewhere}
            mount -t tmpfs none {elsewhere}
            mount -t tmpfs none {point}",
            elsewhere = elsewhere.path().display(),
        ));
        let (_, said) = run.end();
        assert!(
            said.contains("\nall: passed 1, failed 0, not run 0\n"),
            "{said}"
        );
        assert_eq!(run.said("mounts"), "0\n");
        assert!(run.has_left_nothing());
    }
    assert!(other.is_mounted());
}
