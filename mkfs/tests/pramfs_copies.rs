//! `pramfs get` and `put`, and `mkfs.pramfs -d`: what a copy replaces, and what it must keep.

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use common::*;
use rustix::fs::XattrFlags;

fn s(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Files `x/a` and `y/a`, two names of one file, and `z/a`, another one.
fn names(at: &Path) {
    for dir in ["x", "y", "z"] {
        fs::create_dir_all(at.join(dir)).unwrap();
    }
    fs::write(at.join("x/a"), "two names").unwrap();
    fs::hard_link(at.join("x/a"), at.join("y/a")).unwrap();
    fs::hard_link(at.join("x/a"), at.join("y/b")).unwrap();
    fs::write(at.join("z/a"), "another file").unwrap();
}

#[test]
fn put_of_directory_onto_file_is_refused_and_changes_nothing() {
    let dir = scratch();
    let region = made(dir.path(), "8M");
    let (file, tree) = (dir.path().join("file"), dir.path().join("tree"));
    fs::write(&file, "x").unwrap();
    fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    fs::create_dir(&tree).unwrap();
    pramfs(["put", s(&region), s(&file), "/tree"]).ok();
    let stat = || pramfs(["stat", "--json", s(&region), "/tree"]).ok().json();
    let before = stat();
    for force in [&["put", "-r"][..], &["put", "-rf"]] {
        let more = [s(&region), s(&tree), "/"];
        let answer = pramfs(force.iter().copied().chain(more));
        answer.refused(&["/tree exists and is not a directory"]);
    }
    assert_eq!(stat(), before);
}

#[test]
fn put_of_two_names_to_one_destination_keeps_file() {
    let dir = scratch();
    let region = made(dir.path(), "8M");
    names(dir.path());
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    for _ in 0..2 {
        pramfs(["put", "-f", s(&region), &at("x/a"), &at("y/a"), "/"]).ok();
        assert_eq!(pramfs(["cat", s(&region), "/a"]).ok().out, "two names");
    }
    // The first copy is replaced before its second name comes.
    let sources = [&at("x/a"), &at("z/a"), &at("y/b")];
    pramfs([
        "put",
        "-f",
        s(&region),
        sources[0],
        sources[1],
        sources[2],
        "/",
    ])
    .ok();
    assert_eq!(pramfs(["cat", s(&region), "/a"]).ok().out, "another file");
    assert_eq!(pramfs(["cat", s(&region), "/b"]).ok().out, "two names");
    let names = pramfs(["ls", s(&region)]).ok().out;
    assert_eq!(names, "a\nb\n");
    run(FSCK, ["-n", s(&region)]).ok();
}

#[test]
fn get_of_two_names_to_one_destination_keeps_file() {
    let dir = scratch();
    let region = made(dir.path(), "8M");
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    names(&from);
    fs::create_dir(&to).unwrap();
    pramfs(["put", "-r", s(&region), s(&from), "/"]).ok();
    let get = |paths: &[&str]| {
        let fixed = ["get", "-f", s(&region)];
        pramfs(fixed.iter().chain(paths).chain(&[s(&to)])).ok();
    };
    for _ in 0..2 {
        get(&["/from/x/a", "/from/y/a"]);
        assert_eq!(fs::read_to_string(to.join("a")).unwrap(), "two names");
    }
    get(&["/from/x/a", "/from/z/a", "/from/y/b"]);
    assert_eq!(fs::read_to_string(to.join("a")).unwrap(), "another file");
    assert_eq!(fs::read_to_string(to.join("b")).unwrap(), "two names");
}

#[test]
fn put_with_force_that_fails_leaves_old_object() {
    let dir = scratch();
    let region = made(dir.path(), "8M");
    let (old, link) = (dir.path().join("old"), dir.path().join("link"));
    fs::write(&old, "the old contents").unwrap();
    symlink("to", &link).unwrap();
    pramfs(["put", s(&region), s(&old), "/f"]).ok();
    // Reading at its beginning fails.
    let unreadable = ["put", "-f", s(&region), "/proc/self/mem", "/f"];
    pramfs(unreadable).refused(&["cannot read /proc/self/mem"]);
    assert_eq!(
        pramfs(["cat", s(&region), "/f"]).ok().out,
        "the old contents"
    );
    // Larger than the region.
    let large = dir.path().join("large");
    fs::write(&large, vec![1; 16 << 20]).unwrap();
    pramfs(["put", "-f", s(&region), s(&large), "/f"]).refused(&["/f", "space"]);
    assert_eq!(
        pramfs(["cat", s(&region), "/f"]).ok().out,
        "the old contents"
    );
    // Other kinds replace it, and it replaces them.
    for (source, kind) in [(&link, "symbolic link"), (&old, "regular file")] {
        pramfs(["put", "-f", s(&region), s(source), "/f"]).ok();
        let stat = pramfs(["stat", "--json", s(&region), "/f"]).ok().json();
        assert_eq!(stat["kind"], kind);
    }
    assert_eq!(pramfs(["ls", s(&region)]).ok().out, "f\n");
    run(FSCK, ["-n", s(&region)]).ok();
}

#[test]
fn get_by_root_keeps_capabilities_of_files_of_others() {
    if !root_or_skip("capabilities of files") {
        return;
    }
    const NAME: &str = "security.capability";
    let dir = scratch();
    let region = made(dir.path(), "8M");
    let (file, out) = (dir.path().join("file"), dir.path().join("out"));
    fs::write(&file, "x").unwrap();
    std::os::unix::fs::chown(&file, Some(1234), Some(1234)).unwrap();
    // Version 2, effective: CAP_NET_RAW.
    let mut value = [0u8; 20];
    (value[0], value[3], value[5]) = (1, 2, 0x20);
    if let Err(e) = rustix::fs::setxattr(&file, NAME, &value, XattrFlags::empty()) {
        skipped(format_args!("no capabilities of files here: {e}"));
        return;
    }
    pramfs(["put", s(&region), s(&file), "/f"]).ok();
    pramfs(["get", s(&region), "/f", s(&out)]).ok();
    assert_eq!(fs::metadata(&out).unwrap().uid(), 1234);
    let mut found = [0u8; 32];
    let n = rustix::fs::getxattr(&out, NAME, &mut found).unwrap();
    assert_eq!(found[..n], value);
}

#[test]
fn get_of_pipe_keeps_mode_whatever_the_umask() {
    let dir = scratch();
    let region = made(dir.path(), "8M");
    let (pipe, out) = (dir.path().join("pipe"), dir.path().join("out"));
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    fs::set_permissions(&pipe, PermissionsExt::from_mode(0o666)).unwrap();
    pramfs(["put", s(&region), s(&pipe), "/pipe"]).ok();
    let script = "umask 077; exec \"$@\"";
    let get = [PRAMFS, "get", s(&region), "/pipe", s(&out)];
    run("sh", ["-c", script, "sh"].iter().chain(&get)).ok();
    assert_eq!(fs::symlink_metadata(&out).unwrap().mode(), 0o010666);
}

#[test]
fn put_and_get_keep_attributes_of_links_or_say_so() {
    if !root_or_skip("attributes of symbolic links") {
        return;
    }
    const NAME: &str = "trusted.colour";
    let dir = scratch();
    let region = made(dir.path(), "8M");
    let (link, out) = (dir.path().join("link"), dir.path().join("out"));
    symlink("nowhere", &link).unwrap();
    if let Err(e) = rustix::fs::lsetxattr(&link, NAME, b"blue", XattrFlags::empty()) {
        skipped(format_args!("no attributes of links here: {e}"));
        return;
    }
    pramfs(["put", s(&region), s(&link), "/link"]).ok();
    pramfs(["get", s(&region), "/link", s(&out)]).ok();
    let mut found = [0u8; 32];
    let n = rustix::fs::lgetxattr(&out, NAME, &mut found).unwrap();
    assert_eq!(&found[..n], b"blue");
    // Where it cannot be set.
    let target = dir.path().join("other");
    let get = [PRAMFS, "get", s(&region), "/link", s(&target)];
    let user = ["--bounding-set=-all", "--inh-caps=-all"];
    let answer = run("setpriv", user.iter().chain(&get)).ok();
    assert!(
        answer.err.contains("attribute trusted.colour not set"),
        "{answer:?}"
    );
    assert_eq!(fs::read_link(&target).unwrap(), Path::new("nowhere"));
}

#[test]
fn get_of_socket_with_two_names_skips_both() {
    let dir = scratch();
    let region = made(dir.path(), "8M");
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir(&from).unwrap();
    let _socket = UnixListener::bind(from.join("a")).unwrap();
    fs::hard_link(from.join("a"), from.join("b")).unwrap();
    fs::write(from.join("c"), "c").unwrap();
    pramfs(["put", "-r", s(&region), s(&from), "/"]).ok();
    let answer = pramfs(["get", "-r", s(&region), "/from", s(&to)]).ok();
    assert_eq!(answer.err.matches("because it is a socket").count(), 2);
    let names: Vec<_> = fs::read_dir(&to)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, ["c"]);
}

#[test]
fn copy_of_directory_with_region_leaves_region_out() {
    let dir = scratch();
    let region = dir.path().join("region");
    fs::write(dir.path().join("file"), "x").unwrap();
    let note = "because it is the region itself";
    let answer = mkfs(["-d", s(dir.path()), s(&region), "8M"]).ok();
    assert!(answer.err.contains(note), "{answer:?}");
    assert_eq!(pramfs(["ls", s(&region)]).ok().out, "file\n");
    let source = format!("{}/.", s(dir.path()));
    let answer = pramfs(["put", "-rf", s(&region), &source, "/copy"]).ok();
    assert!(answer.err.contains(note), "{answer:?}");
    pramfs(["put", s(&region), s(&region), "/"]).refused(&["is the region itself"]);
    assert!(!pramfs(["ls", "-R", s(&region)]).ok().out.contains("region"));
}
