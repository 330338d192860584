//! `pramfs status`.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use pramfs_tests::mounted::{Mounted, wait_until};
use rustix::process::Signal;

use crate::common::{PRAMFS, copy_program, pramfs, run};
use crate::{live, work};

fn json(mount: &Mounted) -> serde_json::Value {
    pramfs([
        "status".as_ref(),
        mount.path().as_os_str(),
        "--json".as_ref(),
    ])
    .ok()
    .json()
}

fn operation(status: &serde_json::Value, name: &str) -> serde_json::Value {
    let all = status["operations"].as_array().unwrap();
    let found = all.iter().find(|one| one["name"] == name);
    found.unwrap_or_else(|| panic!("{name}: {status}")).clone()
}

#[test]
fn status_shows_options_space_requests_and_latencies() {
    let options = "cache=none,opens=server,noatime,slow=2s,metrics=on";
    let Some((mount, _dog)) = live("status", options) else {
        return;
    };
    work(&mount);
    let mut status = serde_json::Value::Null;
    // The server measures an operation after it has answered it.
    let is_measured = |status: &serde_json::Value| {
        let all = ["CREATE", "WRITE"].map(|name| operation(status, name));
        all.iter()
            .all(|one| one["latency"]["count"] == one["count"])
    };
    assert!(wait_until(|| {
        status = json(&mount);
        is_measured(&status)
    }));
    let shown = status["options"].as_str().unwrap();
    for option in [
        "cache=none",
        "noatime",
        "slow=2000000us",
        "metrics=on",
        "data=inplace",
    ] {
        assert!(
            shown.split(',').any(|one| one == option),
            "{option}: {shown}"
        );
    }
    assert_eq!(status["pid"], mount.process().as_raw_nonzero().get());
    assert_eq!(status["region"], mount.region().to_str().unwrap());
    assert_eq!(status["mount_point"], mount.path().to_str().unwrap());
    assert_eq!(status["medium"]["kind"], "tmpfs");
    assert!(["fuser", "dev", "uring"].contains(&status["transport"].as_str().unwrap()));
    assert!(status["writable"] == true && status["failed"] == false);
    assert_eq!(status["damage"]["errors"], 0);
    let space = &status["space"];
    let used = space["blocks"].as_u64().unwrap() - space["free"].as_u64().unwrap();
    assert!(
        used * space["block_size"].as_u64().unwrap() >= 100_000,
        "{space}"
    );
    assert!(status["journal"]["lanes"].as_u64().unwrap() >= 1);

    let write = operation(&status, "WRITE");
    assert!(write["latency"]["max_ns"].as_u64().unwrap() > 0);
    let medium = write["lines"].as_u64().unwrap() * 64 + write["streamed_bytes"].as_u64().unwrap();
    assert!(medium >= 100_000, "{write}");
    assert!(operation(&status, "CREATE")["fences"].as_u64().unwrap() >= 1);
    // A look-up of a missing name is answered, and no error.
    assert_eq!(operation(&status, "LOOKUP")["io_errors"], 0);
    let slowest = status["slowest"].as_array().unwrap();
    assert!(!slowest.is_empty() && slowest[0]["inode"].as_u64().unwrap() > 0);
    assert!(!status.to_string().contains("secret-name"));

    // By the region, as text, and as one of all.
    let text = pramfs(["status".as_ref(), mount.region().as_os_str()]).ok();
    for part in [
        "read-write",
        "durability:",
        "P99",
        "Slowest",
        "slow operations: 2.00 s",
    ] {
        assert!(text.out.contains(part), "{part}: {}", text.out);
    }
    let all = pramfs(["status", "--json"]);
    let ours = all.out.contains(mount.region().to_str().unwrap());
    assert!(ours, "{all:?}");
    // Asking stores nothing, and counts nothing.
    assert_eq!(operation(&json(&mount), "WRITE"), write);
}

#[test]
fn status_without_metrics_has_counts_and_no_latencies() {
    let Some((mount, _dog)) = live("status without metrics", "metrics=off") else {
        return;
    };
    work(&mount);
    let status = json(&mount);
    let create = operation(&status, "CREATE");
    assert!(
        create["count"] == 1 && create["latency"]["count"] == 0,
        "{create}"
    );
    assert!(status["slowest"].as_array().unwrap().is_empty() && status["metrics"] == false);
    let text = pramfs(["status".as_ref(), mount.path().as_os_str()]).ok();
    assert!(text.out.contains("metrics=off"), "{}", text.out);
}

#[test]
fn status_of_stopped_server_names_its_process_and_remedy() {
    let Some((mount, _dog)) = live("status of a stopped server", "") else {
        return;
    };
    let pid = mount.process().as_raw_nonzero();
    mount.stop();
    let (path, region) = (mount.path(), mount.region());
    // The only wait that runs out is named with its limit. With those that could run out before, it
    // is a second at most: a constant in `live.rs`.
    let words = [
        &*format!("no answer within 400 ms: the server, process {pid}, is stopped"),
        &*format!("kill -CONT {pid}"),
    ];
    for place in [&path, &region] {
        pramfs(["status", place.to_str().unwrap()]).refused(&words);
        pramfs(["log-level", place.to_str().unwrap(), "info"]).refused(&words);
    }
    let all = pramfs(["status"]);
    assert!(all.status == 1 && all.err.contains(words[0]), "{all:?}");
    // One document, with each failure in it. In a watch, failures are said to people only.
    let all = pramfs(["status", "--json"]);
    let failures = all.json();
    let is_ours = |entry: &serde_json::Value| {
        entry["error"]["reason"] == "no-answer"
            && entry["error"]["message"]
                .as_str()
                .unwrap()
                .contains(words[0])
    };
    assert!(failures.as_array().unwrap().iter().any(is_ours), "{all:?}");
    assert!(all.status == 1 && all.err.contains(words[0]), "{all:?}");
    let mut watch = Command::new("timeout")
        .args(["60", PRAMFS, "status", "--json", "--watch=1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut states = BufReader::new(watch.stdout.take().unwrap());
    states.read_line(&mut line).unwrap();
    let said = BufReader::new(watch.stderr.take().unwrap()).lines();
    let is_said = said
        .map_while(Result::ok)
        .any(|line| line.contains(words[0]));
    watch.kill().unwrap();
    watch.wait().unwrap();
    assert!(is_said, "the watch has ended: {line}");
    let states: serde_json::Value = serde_json::from_str(&line).unwrap();
    let mut states = states.as_array().unwrap().iter();
    assert!(states.all(|state| state.get("error").is_none()), "{line}");
    let inside = mount.at("missing");
    pramfs(["status", inside.to_str().unwrap()]).refused(&words);
    mount.signal(Signal::CONT);
    pramfs(["status".as_ref(), path.as_os_str()]).ok();
}

/// Its source does not lead to its socket, so each server is asked what it serves.
#[test]
fn status_of_mount_without_source_is_found_beside_stopped_servers() {
    let Some((mount, _dog)) = live("status among stopped servers", "fsname=other") else {
        return;
    };
    let stopped: Vec<_> = (0..3)
        .map(|_| {
            let (mount, dog) = live("a stopped server", "").unwrap();
            mount.stop();
            (mount, dog)
        })
        .collect();
    // Each server is asked for a moment only: on a machine under load, ours may answer too late.
    let path = mount.path();
    let mut answer = pramfs(["status", "--json", path.to_str().unwrap()]);
    wait_until(|| {
        if answer.status != 0 {
            answer = pramfs(["status", "--json", path.to_str().unwrap()]);
        }
        answer.status == 0
    });
    let status = answer.ok().json();
    assert_eq!(status["region"], mount.region().to_str().unwrap());
    for (mount, _dog) in &stopped {
        mount.signal(Signal::CONT);
    }
}

#[test]
fn status_of_dead_server_says_so_and_what_to_do() {
    let Some((mount, _dog)) = live("status of a dead server", "takeover=off") else {
        return;
    };
    mount.crash();
    let path = mount.path();
    let words = ["its server has died", "umount", "ENOTCONN"];
    pramfs(["status", path.to_str().unwrap()]).refused(&words);
    pramfs(["status", mount.region().to_str().unwrap()]).refused(&words);
    let all = pramfs(["status"]);
    assert!(all.err.contains("its server has died"), "{all:?}");
}

#[test]
fn commands_that_ask_servers_tell_other_users_who_may() {
    let Some((mount, _dog)) = live("status of another user", "") else {
        return;
    };
    let dir = crate::common::scratch();
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), everybody).unwrap();
    let program = dir.path().join("pramfs");
    copy_program(PRAMFS, &program);
    let (program, place) = (program.to_str().unwrap(), mount.path());
    let place = place.to_str().unwrap();
    for arguments in [
        &["status"][..],
        &["status", place],
        &["leases", place],
        &["requests", place],
        &["log-level", place],
    ] {
        let user = ["--reuid=65534", "--regid=65534", "--clear-groups", program];
        let arguments = user.iter().chain(arguments).chain(&["--json"]);
        let answer = run("setpriv", arguments);
        let says = answer.json();
        assert_eq!(says["error"]["reason"], "permission", "{answer:?}");
        answer.refused(&["only root may ask", "docs/status.md"]);
    }
}

#[test]
fn status_of_what_is_not_mounted_is_refused() {
    let dir = crate::common::scratch();
    pramfs(["status".as_ref(), dir.path().as_os_str()]).refused(&["no server of root"]);
    let region = crate::common::made(dir.path(), "8M");
    pramfs(["status".as_ref(), region.as_os_str()]).refused(&["no server of root"]);
    let missing = dir.path().join("missing");
    pramfs(["status".as_ref(), missing.as_os_str()]).refused(&["cannot find"]);
    for wrong in ["0", "x", "-1", "1e9"] {
        let answer = pramfs(["status", &format!("--watch={wrong}")]);
        assert_eq!(answer.status, 2, "{answer:?}");
    }
}

#[test]
fn server_of_other_options_is_refused_by_name() {
    let Some((mount, _dog)) = live("wrong values", "") else {
        return;
    };
    mount.unmount();
    for (option, why) in [
        ("metrics=maybe", "metrics=on"),
        ("slow=5", "slow=5 is not a time"),
    ] {
        let said = mount.run(["-o", option]);
        let words = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(!said.status.success() && words.contains(why), "{words}");
    }
}
