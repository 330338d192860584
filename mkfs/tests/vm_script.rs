//! How `make test-vm` ends where something cannot run: it says so, and fails where `CI` is set.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use common::*;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Runs a script without `CI` and with it.
fn both(script: &str) -> [Output; 2] {
    ["", "true"].map(|ci| {
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", script]).env("CI", ci);
        bash.current_dir(ROOT).output().unwrap()
    })
}

#[test]
fn vm_script_that_cannot_run_fails_in_ci() {
    let dir = scratch();
    let uname = dir.path().join("uname");
    fs::write(&uname, "#!/bin/sh\necho another\n").unwrap();
    fs::set_permissions(&uname, PermissionsExt::from_mode(0o755)).unwrap();
    let path = dir.path().display();
    let ended = both(&format!("PATH={path}:$PATH scripts/test-vm.sh"));
    for out in &ended {
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(
            said.contains("*** SKIPPED: this machine is not x86_64"),
            "{said}"
        );
    }
    assert_eq!(ended.map(|out| out.status.code()), [Some(0), Some(1)]);
}

#[test]
fn vm_run_with_part_that_cannot_run_names_it_at_the_end_and_fails_in_ci() {
    let begin = "say() { printf 'vm: %s\\n' \"$*\"; }; . tests/vm/skips.sh";
    let last = |out: &Output| {
        let said = String::from_utf8_lossy(&out.stdout);
        said.lines().last().unwrap_or_default().to_owned()
    };
    let ended = both(&format!(
        "{begin}; skip 'no systemd: no boot'; skip 'no guest'; summary 3 boots"
    ));
    assert_eq!(
        ended.each_ref().map(last),
        [
            "vm: passed: 3 boots; SKIPPED: no systemd: no boot; no guest",
            "vm: FAILED: SKIPPED where CI is set: no systemd: no boot; no guest (passed: 3 boots)",
        ]
    );
    assert_eq!(ended.map(|out| out.status.code()), [Some(0), Some(1)]);
    let all = both(&format!("{begin}; summary 3 boots"));
    assert_eq!(all.each_ref().map(last), ["vm: passed: 3 boots"; 2]);
    assert!(all.iter().all(|out| out.status.success()));
}
