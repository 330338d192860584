//! What a live server logs: its level, slow operations, its state at SIGUSR1, fields in the
//! journal.

use std::fs::{self, File};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pramfs_tests::mounted::{self, Mounted, wait_until};
use pramfs_tests::watchdog::Watchdog;
use rustix::process::{Pid, Signal};

use crate::common::{PRAMFS, pramfs};
use crate::work;

/// A mount in the foreground, whose log goes to a file.
struct Foreground {
    mount: Mounted,
    child: Child,
    log: tempfile::NamedTempFile,
}

fn foreground(test: &str, options: &str) -> Option<Foreground> {
    if !mounted::available(test) {
        return None;
    }
    let mount = Mounted::unmounted(&mounted::program(), 64 << 20);
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut command = mount.command();
    command
        .args(["-f", "-o", options])
        .env_remove("PRAMFS_LOG")
        .stderr(log.reopen().unwrap());
    let child = command.spawn().unwrap();
    assert!(wait_until(|| mount.is_mounted()), "not mounted");
    Some(Foreground { mount, child, log })
}

impl Foreground {
    fn log(&self) -> String {
        fs::read_to_string(self.log.path()).unwrap()
    }

    /// Waits for a line with this.
    fn says(&self, what: &str) {
        assert!(
            wait_until(|| self.log().contains(what)),
            "{what}: {}",
            self.log()
        );
    }

    fn end(mut self) {
        self.mount.unmount();
        assert!(self.child.wait().unwrap().success());
    }
}

#[test]
fn log_level_and_slow_log_change_at_run_time() {
    let Some(server) = foreground("log level", "metrics=off,cache=none") else {
        return;
    };
    let at = server.mount.path();
    let at = at.to_str().unwrap();
    let shown = pramfs(["log-level", at]).ok();
    assert!(
        shown.out.contains("info") && shown.out.contains("slow operations: off"),
        "{shown:?}"
    );
    work(&server.mount);
    assert!(!server.log().contains("slow operation:") && !server.log().contains(" of node "));

    let set = pramfs(["log-level", at, "debug", "--slow", "1us", "--json"])
        .ok()
        .json();
    assert_eq!(set["slow_us"], 1);
    assert!(set["filter"].as_str().unwrap().contains("debug"), "{set}");
    let dir = server.mount.at("dir");
    fs::create_dir_all(dir.join("inner")).unwrap();
    assert!(fs::remove_dir(&dir).is_err(), "it is not empty");
    server.says("slow operation: ");
    server.says("rmdir of node");
    assert!(!server.log().contains("secret-name"), "{}", server.log());

    pramfs(["log-level", at, "error", "--slow", "off"]).ok();
    // Nothing of this is an error. What was done before may be logged a little later.
    let is_silent = || {
        let before = server.log();
        work(&server.mount);
        server.log() == before
    };
    assert!(wait_until(is_silent), "{}", server.log());
    pramfs(["log-level", at, "loud"])
        .err
        .contains("one of error")
        .then_some(())
        .unwrap();
    server.end();
}

#[test]
fn sigusr1_writes_state_to_log() {
    let Some(server) = foreground("SIGUSR1", "metrics=on") else {
        return;
    };
    work(&server.mount);
    server.mount.signal(Signal::USR1);
    for what in ["server:", "space:", "damage:", "none found", "CREATE"] {
        server.says(what);
    }
    assert!(server.mount.is_mounted());
    server.end();
}

#[test]
fn sigusr1_to_supervisor_makes_server_write_its_state() {
    if !mounted::available("SIGUSR1 with takeover=on") {
        return;
    }
    let Some(mut server) = foreground("SIGUSR1", "takeover=on,metrics=on") else {
        return;
    };
    work(&server.mount);
    let supervisor = Pid::from_child(&server.child);
    assert_ne!(supervisor, server.mount.process(), "another process serves");
    rustix::process::kill_process(supervisor, Signal::USR1).unwrap();
    for what in ["server:", "takeover:", "CREATE"] {
        server.says(what);
    }
    assert!(server.child.try_wait().unwrap().is_none() && server.mount.is_mounted());
    server.end();
}

/// As [`SCRIPT`], with a journal that nobody reads, and more lines than any queue holds.
const UNREAD: &str = r#"
    mkdir -p /run/systemd/journal 2>/dev/null || exit 77
    mount --bind "$DIR/journal" /run/systemd/journal || exit 77
    exec 2>"$DIR/stream"
    export JOURNAL_STREAM="$(stat -L -c %d:%i "$DIR/stream")" PRAMFS_LOG=debug
    "$PROGRAM" "$REGION" "$MNT" -f &
    for nth in $(seq 3000); do mountpoint -q "$MNT" && break; sleep 0.1; done
    mkdir -p "$MNT/full/of" || exit 1
    yes "$MNT/full" | head -n 20000 | xargs -d '\n' rmdir >/dev/null 2>&1
    rmdir "$MNT/full/of" || exit 2
    "$PRAMFS" status --json "$MNT" >"$DIR/status.json" || exit 3
    "$PRAMFS" status "$MNT" >"$DIR/status" || exit 4
    umount "$MNT" && wait
"#;

#[test]
fn journal_that_nobody_reads_does_not_stop_mount() {
    let test = "a journal that nobody reads";
    if !mounted::available(test) {
        return;
    }
    // It waits for ten minutes. A server that waited for each line, 100 ms each, would need half an
    // hour.
    let _dog = Watchdog::new(test, Duration::from_secs(60));
    let mount = Mounted::unmounted(&mounted::program(), 64 << 20);
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("journal")).unwrap();
    File::create(dir.path().join("stream")).unwrap();
    let journal = UnixDatagram::bind(dir.path().join("journal/socket")).unwrap();
    let status = Command::new("unshare")
        .args(["-m", "--propagation=private", "sh", "-c", UNREAD])
        .env("DIR", dir.path())
        .env("PROGRAM", mounted::program())
        .env("PRAMFS", PRAMFS)
        .env("REGION", mount.region())
        .env("MNT", mount.path())
        .stdin(Stdio::null())
        .status()
        .unwrap();
    drop(journal);
    if status.code() == Some(77) {
        return pramfs_tests::skip::skipped("no /run/systemd/journal of its own can be made here");
    }
    let said = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
    assert!(status.success(), "{status}: {}", said("stream"));
    let json: serde_json::Value = serde_json::from_str(&said("status.json")).unwrap();
    let lost = json["logging"]["lost_lines"].as_u64().unwrap();
    // All but those that the queue of the socket holds.
    assert!(lost >= 10_000, "{json}");
    assert!(
        said("status").contains(" LINES LOST: "),
        "{}",
        said("status")
    );
}

/// Runs the server in the foreground, with standard error a "stream to the journal", and a
/// journal of our own.
const SCRIPT: &str = r#"
    mkdir -p /run/systemd/journal 2>/dev/null || exit 77
    mount --bind "$DIR/journal" /run/systemd/journal || exit 77
    exec 2>"$DIR/stream"
    export JOURNAL_STREAM="$(stat -L -c %d:%i "$DIR/stream")"
    "$PROGRAM" "$REGION" "$MNT" -f -o slow=1us &
    for nth in $(seq 3000); do mountpoint -q "$MNT" && break; sleep 0.1; done
    stat "$MNT/missing" >/dev/null 2>&1
    umount "$MNT" && wait
"#;

#[test]
fn server_of_systemd_logs_fields_to_journal() {
    let test = "fields in the journal";
    if !mounted::available(test) {
        return;
    }
    let mount = Mounted::unmounted(&mounted::program(), 64 << 20);
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("journal")).unwrap();
    File::create(dir.path().join("stream")).unwrap();
    let journal = UnixDatagram::bind(dir.path().join("journal/socket")).unwrap();
    journal
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    let mut script = Command::new("unshare")
        .args(["-m", "--propagation=private", "sh", "-c", SCRIPT])
        .env("DIR", dir.path())
        .env("PROGRAM", mounted::program())
        .env("REGION", mount.region())
        .env("MNT", mount.path())
        .env_remove("PRAMFS_LOG")
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let (mut entries, mut bytes, mut status) = (Vec::new(), vec![0; 1 << 16], None);
    // Its queue holds few entries, so it is read while the script runs.
    let said_all = wait_until(|| {
        while let Ok(len) = journal.recv(&mut bytes) {
            entries.push(String::from_utf8_lossy(&bytes[..len]).into_owned());
        }
        status = status.or_else(|| script.try_wait().unwrap());
        status.is_some()
    });
    let status = status.expect("the script has ended");
    if status.code() == Some(77) {
        return pramfs_tests::skip::skipped("no /run/systemd/journal of its own can be made here");
    }
    while let Ok(len) = journal.recv(&mut bytes) {
        entries.push(String::from_utf8_lossy(&bytes[..len]).into_owned());
    }
    assert!(said_all && status.success(), "{status}: {entries:#?}");
    let stream = fs::read_to_string(dir.path().join("stream")).unwrap();
    let slow = entries
        .iter()
        .find(|entry| entry.contains("slow operation: "));
    let slow = slow.unwrap_or_else(|| panic!("{entries:#?} {stream}"));
    for field in [
        "PRIORITY=4",
        "SYSLOG_IDENTIFIER=mount.pramfs",
        &format!("PRAMFS_REGION={}", mount.region().display()),
        &format!("PRAMFS_MOUNT_POINT={}", mount.path().display()),
        "PRAMFS_OPERATION=",
        "PRAMFS_INODE=",
        "PRAMFS_DURATION_US=",
    ] {
        // A value with a line feed has another form, and none has one.
        let has = slow.lines().any(|line| line.starts_with(field));
        let name = field.split('=').next().unwrap();
        assert!(
            has || slow.lines().any(|line| line == name),
            "{field}: {slow}"
        );
    }
}
