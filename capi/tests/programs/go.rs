//! The example in Go, which cgo links with the installed library.

use std::process::{Command, Output};

use pramfs_tests::skip::skipped;

use crate::installed::installed;
use crate::{example, scratch};

/// Whether there is a compiler of Go. It is large, so nothing installs it for this test alone.
fn has_go() -> bool {
    let there = Command::new("go").arg("version").output().is_ok();
    if !there {
        skipped("go is missing: the example in Go has not been built (apt-get install golang-go)");
    }
    there
}

fn printed(output: &Output, what: &str) -> String {
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success(),
        "{what}: {}\n{out}{err}",
        output.status
    );
    out.into_owned()
}

#[test]
fn go_example_counts_runs_of_goroutines() {
    if !has_go() {
        return;
    }
    let dir = scratch();
    let program = dir.path().join("counters");
    // Nothing is downloaded: the example has no other modules.
    let output = Command::new("go")
        .args(["build", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(example("go"))
        .env("GOFLAGS", "-mod=mod -buildvcs=false")
        .env("GOPROXY", "off")
        .env("GOTOOLCHAIN", "local")
        .env("GOCACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/go"))
        .env("CGO_ENABLED", "1")
        .env("PKG_CONFIG_PATH", installed().lib("pkgconfig"))
        .env("PKG_CONFIG_SYSROOT_DIR", installed().tree())
        .output()
        .unwrap();
    printed(&output, "go build");
    let run = |region: &std::path::Path| {
        Command::new(&program)
            .arg(region)
            .env("LD_LIBRARY_PATH", installed().lib(""))
            .output()
            .unwrap()
    };
    let region = dir.path().join("region");
    let first = "run 1: 8000 visits\n";
    assert_eq!(printed(&run(&region), "the program"), first);
    let both = format!("{first}run 2: 16000 visits\n");
    assert_eq!(printed(&run(&region), "the program"), both);
    // What it says of a region that it cannot make.
    let refused = run(&dir.path().join("no/region"));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.starts_with("counters: cannot "), "{said}");
}
