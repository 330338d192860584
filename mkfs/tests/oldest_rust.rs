//! The oldest Rust that `Cargo.toml` states, against what the crates of `Cargo.lock` state.
//! `make check-msrv` compiles with it.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// `1.89` and `1.89.0` are the same.
fn version(text: &str) -> [u64; 3] {
    let mut numbers = text.split('.').map(|number| number.parse().unwrap());
    std::array::from_fn(|_| numbers.next().unwrap_or(0))
}

fn text<'v>(of: &'v Value, key: &str) -> &'v str {
    of[key].as_str().unwrap()
}

/// No crate that is compiled with the stated Rust needs a newer one: a later `cargo update` may
/// bring one, and on a newer Rust nothing would show it.
#[test]
fn locked_crates_need_no_newer_rust_than_stated() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let listed = Command::new(cargo)
        .args(["metadata", "--locked", "--format-version", "1"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&listed.stderr);
    assert!(listed.status.success(), "cargo metadata: {said}");
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let packages = listed["packages"].as_array().unwrap();
    let packages: BTreeMap<_, _> = packages.iter().map(|one| (text(one, "id"), one)).collect();
    let nodes = listed["resolve"]["nodes"].as_array().unwrap();
    let nodes: BTreeMap<_, _> = nodes.iter().map(|one| (text(one, "id"), one)).collect();

    let stated = env!("CARGO_PKG_RUST_VERSION");
    // The models of loom state a newer one for themselves.
    let members = listed["workspace_members"].as_array().unwrap().iter();
    let members = members.map(|id| id.as_str().unwrap());
    let mut open: Vec<_> = members
        .filter(|id| packages[id]["rust_version"] == stated)
        .collect();
    assert!(open.len() >= 15, "{open:?}");
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        if seen.insert(id) {
            let uses = nodes[id]["dependencies"].as_array().unwrap().iter();
            open.extend(uses.map(|id| id.as_str().unwrap()));
        }
    }
    assert!(seen.len() > 150, "{} crates", seen.len());
    let newer: Vec<_> = seen
        .iter()
        .filter_map(|id| Some((*id, packages[id]["rust_version"].as_str()?)))
        .filter(|(_, needs)| version(needs) > version(stated))
        .collect();
    assert!(newer.is_empty(), "newer than Rust {stated}: {newer:?}");
}
