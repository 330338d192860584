//! `make install` into the tree of a package.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::*;

/// Runs make with programs that are built already, in the place of a release
/// build; the one that mounts and the preload library are not looked at, and any program
/// stands for them.
fn install(built: &Path, arguments: &[String]) -> Answer {
    let programs = built.join("release");
    fs::create_dir_all(&programs).unwrap();
    for (from, to) in [
        (PRAMFS, "pramfs"),
        (MKFS, "mkfs-pramfs"),
        (FSCK, "fsck-pramfs"),
        (FSCK, "mount-pramfs"),
        (FSCK, "libpramfs_preload.so"),
    ] {
        fs::copy(from, programs.join(to)).unwrap();
    }
    let output = Command::new("make")
        .args(["--no-print-directory", "install", "CARGO=no-such-cargo"])
        .arg(format!("CARGO_TARGET_DIR={}", built.display()))
        .args(arguments)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("MAKEFLAGS")
        .output()
        .unwrap();
    Answer {
        status: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

fn links_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_symlink() {
            found.push(path);
        } else if path.is_dir() {
            links_below(&path, found);
        }
    }
}

fn check(prefix: &str, helpers: &str) {
    let (built, tree) = (scratch(), scratch());
    let root = tree.path();
    let arguments = [
        format!("DESTDIR={}", root.display()),
        format!("PREFIX={prefix}"),
        format!("HELPERDIR={helpers}"),
    ];
    install(built.path(), &arguments).ok();
    let at = |path: String| root.join(path.trim_start_matches('/'));
    for tool in ["mkfs", "fsck", "mount"] {
        for name in [format!("{tool}.pramfs"), format!("{tool}.fuse.pramfs")] {
            let helper = at(format!("{helpers}/{name}"));
            let program = at(format!("{prefix}/sbin/{tool}.pramfs"));
            assert_eq!(
                helper.canonicalize().unwrap(),
                program.canonicalize().unwrap(),
                "{name}"
            );
        }
    }
    // What is unpacked elsewhere leads to itself, and not to the builder's system.
    let mut links = Vec::new();
    links_below(root, &mut links);
    assert!(!links.is_empty());
    for link in links {
        assert!(fs::read_link(&link).unwrap().is_relative(), "{link:?}");
        let end = link.canonicalize().unwrap();
        assert!(end.starts_with(root.canonicalize().unwrap()), "{link:?}");
    }
    let installed = fs::metadata(at(format!("{prefix}/bin/pramfs"))).unwrap();
    let unstripped = fs::metadata(PRAMFS).unwrap();
    assert!(installed.len() < unstripped.len(), "symbols are left");
    // The tool finds the library from its own place.
    let library = at(format!("{prefix}/lib/pramfs/libpramfs_preload.so"));
    assert!(library.is_file());
    let run = Command::new(at(format!("{prefix}/bin/pramfs")))
        .args(["run", "/usr/bin/env"])
        .env_remove("LD_PRELOAD")
        .output()
        .unwrap();
    let shown = String::from_utf8(run.stdout).unwrap();
    assert!(
        shown.contains(&format!("LD_PRELOAD={}\n", library.display())),
        "{shown}"
    );
    // What is not the helpers' directory got no file there.
    if helpers != "/sbin" {
        assert!(!root.join("sbin").exists());
    }
}

#[test]
fn install_with_merged_usr_makes_relative_links() {
    check("/usr", "/usr/sbin");
}

#[test]
fn install_in_usr_local_links_helpers_relatively() {
    check("/usr/local", "/usr/sbin");
    check("/usr/local", "/sbin");
}
