//! The log of a background server: datagrams to `/dev/log`, as syslog(3) sends them. The
//! test has its own `/dev/log` in a mount namespace.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use pramfs_tests::mounted::Mounted;

use crate::damage::hurt;
use crate::namespaces;

/// Mounts in a namespace whose `/dev` has few devices and the optional socket. Then looks
/// up the damaged file, unmounts, and waits for the end of the server.
const SCRIPT: &str = r#"
    mkdir "$DIR/dev" && mount -t tmpfs -o mode=755 none "$DIR/dev" || exit 77
    for device in fuse null zero random urandom; do
        cp -a "/dev/$device" "$DIR/dev/$device" || exit 77
    done
    ln -s /proc/self/fd "$DIR/dev/fd"
    mkdir "$DIR/dev/shm" && mount --bind /dev/shm "$DIR/dev/shm" || exit 77
    if [ -e "$DIR/socket" ]; then
        touch "$DIR/dev/log" && mount --bind "$DIR/socket" "$DIR/dev/log" || exit 77
    fi
    mount --rbind "$DIR/dev" /dev || exit 77
    "$PROGRAM" "$REGION" "$MNT" -o errors=continue || exit 1
    stat "$MNT/dir/hurt" 2>/dev/null && exit 2
    umount "$MNT" && flock -w 20 "$REGION" true
"#;

fn in_namespace(mount: &Mounted, dir: &Path) -> Command {
    let mut script = Command::new("unshare");
    script
        .args(["-m", "--propagation=private", "sh", "-c", SCRIPT])
        .env("DIR", dir)
        .env("PROGRAM", crate::program())
        .env("REGION", mount.region())
        .env("MNT", mount.path())
        .env_remove("PRAMFS_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    script
}

#[test]
fn background_server_logs_each_line_to_syslog() {
    let Some((mount, _dog, ino)) = hurt("the system log") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let socket = UnixDatagram::bind(dir.path().join("socket")).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    let mut script = namespaces::spawn(&mut in_namespace(&mount, dir.path()));
    let patience = Instant::now() + Duration::from_secs(30);
    // The queue of the socket holds ten lines, so it is read while the script runs.
    let (mut lines, mut bytes, mut status) = (Vec::new(), vec![0; 1 << 16], None);
    loop {
        match socket.recv(&mut bytes) {
            Ok(n) => lines.push(String::from_utf8(bytes[..n].to_vec()).unwrap()),
            Err(e) => {
                assert!(matches!(
                    e.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut
                ));
                // The last line arrives after the region is free.
                let said_all = lines.last().is_some_and(|l| l.contains("unmounted"));
                let failed = status.is_some_and(|s: ExitStatus| !s.success());
                if status.is_some() && said_all || failed || Instant::now() > patience {
                    break;
                }
                status = status.or_else(|| script.try_wait().unwrap());
            }
        }
    }
    let status = status.expect("the script has ended");
    if status.code() == Some(77) {
        return pramfs_tests::skip::skipped("no /dev of its own can be made here");
    }
    assert!(status.success(), "{status}: {lines:#?}");

    // "<facility and severity>program[process]: text", one line each.
    let parts = lines.iter().map(|line| {
        let (head, text) = line.split_once(": ").unwrap();
        let (priority, who) = head.strip_prefix('<').unwrap().split_once('>').unwrap();
        let pid = who.strip_prefix("mount.pramfs[").unwrap();
        let pid: u32 = pid.strip_suffix(']').unwrap().parse().unwrap();
        assert!(
            !text.is_empty() && !text.contains(['\n', '\x1b']),
            "{line:?}"
        );
        (priority, pid, text)
    });
    let parts: Vec<(&str, u32, &str)> = parts.collect();
    assert!(
        parts.iter().all(|(_, pid, _)| *pid == parts[0].1),
        "{lines:#?}"
    );
    let told = |severity: &str, what: &str| {
        let of =
            |(priority, _, text): &&(&str, u32, &str)| *priority == severity && text.contains(what);
        parts.iter().filter(of).count()
    };
    let name = mount.region();
    let name = name.display();
    let damage = format!("{name}: damage: \"/dir/hurt\" (inode {ino})");
    assert_eq!(told("27", &damage), 1, "{lines:#?}");
    let place = mount.path();
    let place = place.display();
    for what in [
        format!("{name} on {place} (read-write"),
        format!("{name}: unmounted from {place}"),
    ] {
        assert_eq!(told("30", &what), 1, "{what}: {lines:#?}");
    }
}

/// Without `/dev/log`, log lines are lost and the mount still works.
#[test]
fn background_server_without_syslog_serves() {
    let Some((mount, _dog, _)) = hurt("no system log") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut script = namespaces::spawn(&mut in_namespace(&mount, dir.path()));
    let status = script.wait().unwrap();
    if status.code() == Some(77) {
        return pramfs_tests::skip::skipped("no /dev of its own can be made here");
    }
    assert!(status.success(), "{status}");
}
