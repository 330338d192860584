//! `mkfs.pramfs -d`: from a directory and from tar archives, compared with what tar(1) and cp see.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use common::*;

fn s(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn tree(at: &Path) {
    fs::create_dir_all(at.join("d/empty")).unwrap();
    fs::write(at.join("hello"), "hello, world\n").unwrap();
    fs::write(
        at.join(format!("d/{}", "long".repeat(50))),
        "of a long name",
    )
    .unwrap();
    let big: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7 / 3) as u8).collect();
    fs::write(at.join("d/big"), &big).unwrap();
    symlink("../hello", at.join("d/link")).unwrap();
    fs::hard_link(at.join("hello"), at.join("d/same")).unwrap();
    let sparse = fs::File::create(at.join("sparse")).unwrap();
    sparse.set_len(32 << 20).unwrap();
    sparse.write_all_at(b"middle", 16 << 20).unwrap();
    fs::set_permissions(at.join("hello"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::set_permissions(at.join("d"), fs::Permissions::from_mode(0o1711)).unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    let hello = fs::File::options()
        .write(true)
        .open(at.join("hello"))
        .unwrap();
    hello.set_modified(old).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, at.join("fifo"), fifo, mode, 0).unwrap();
}

/// Names, types, modes, owners, numbers of names and link targets of a tree, and sums of its files.
fn listed(tree: &Path) -> String {
    let script = r#"cd "$1" && find . -mindepth 1 -printf '%p %y %m %U %G %l ' \
        \( -type d -printf '\n' -o -printf '%n %s\n' \) | sort; find . -type f -exec sha256sum {} + | sort"#;
    let out = Command::new("sh")
        .args(["-c", script, "sh", s(tree)])
        .output()
        .unwrap();
    let says = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && says.is_empty(), "{says}");
    String::from_utf8(out.stdout).unwrap()
}

/// The tree that comes out of a region.
fn got(region: &str, to: &Path) -> String {
    run(FSCK, ["-n", region]).ok();
    fs::create_dir(to).unwrap();
    pramfs(["get", "-r", region, "/.", s(to)]).ok();
    listed(to)
}

#[test]
fn mkfs_from_directory_or_archive_has_its_tree() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    tree(&at("tree"));
    let expected = listed(&at("tree"));
    let from_directory = at("of directory");
    mkfs(["-q", "-d", s(&at("tree")), s(&from_directory), "64M"]).ok();
    assert_eq!(got(s(&from_directory), &at("got")), expected);
    for format in ["gnu", "pax", "ustar"] {
        let archive = at(format);
        let mut tar = Command::new("tar");
        // The others have no sparse files, or none that can be read; ustar no long names either.
        tar.args((format == "gnu").then_some("--sparse"));
        tar.args((format == "ustar").then_some("--exclude=longlong*"));
        tar.args([
            "--format",
            format,
            "-C",
            s(&at("tree")),
            "-cf",
            s(&archive),
            ".",
        ]);
        assert!(tar.status().unwrap().success());
        let region = at(&format!("of {format}"));
        mkfs(["-q", "-d", s(&archive), s(&region), "64M"]).ok();
        let is_there = |line: &&str| format != "ustar" || !line.contains("longlong");
        let expected: Vec<_> = expected.lines().filter(is_there).collect();
        let got = got(s(&region), &at(&format!("got {format}")));
        assert_eq!(got.lines().collect::<Vec<_>>(), expected, "{format}");
        let stat = pramfs(["stat", "--json", s(&region), "/hello"]).ok().json();
        assert_eq!(
            stat["mtime"].as_str().map(|t| &t[..19]),
            Some("2001-09-09T01:46:40"),
            "{stat}"
        );
        // Zeros take no blocks.
        let stat = pramfs(["stat", "--json", s(&region), "/sparse"])
            .ok()
            .json();
        assert!(stat["blocks"].as_u64().unwrap() < 8192, "{stat}");
    }
    // From standard input.
    let region = at("of input");
    let archive = fs::read(at("gnu")).unwrap();
    run_with_input(MKFS, ["-q", "-d", "-", s(&region), "64M"], &archive).ok();
    assert_eq!(got(s(&region), &at("got input")), expected);
}

#[test]
fn mkfs_from_what_cannot_be_copied_makes_nothing() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    let region = at("region");
    let refuse = |from: &str, words: &[&str]| {
        mkfs(["-q", "-d", from, s(&region), "16M"]).refused(words);
        assert!(!region.exists(), "{from}");
    };
    refuse("/nowhere/at/all", &["/nowhere/at/all"]);
    fs::write(at("text"), "no archive\n".repeat(1000)).unwrap();
    refuse(
        s(&at("text")),
        &["not filled", "is no tar archive", "zstd -dc"],
    );
    fs::write(at("empty"), "").unwrap();
    refuse(s(&at("empty")), &["not filled", "no entries"]);
    // One that is cut off.
    tree(&at("tree"));
    let archive = at("archive");
    let tar = |arguments: &[&str]| {
        let mut command = Command::new("tar");
        command
            .args(["-C", s(&at("tree")), "-cf", s(&archive)])
            .args(arguments);
        assert!(command.status().unwrap().success());
    };
    tar(&["d"]);
    fs::File::options()
        .write(true)
        .open(&archive)
        .unwrap()
        .set_len(1_000_000)
        .unwrap();
    refuse(s(&archive), &["not filled"]);
    // One that does not fit.
    fs::write(at("tree/huge"), vec![7; 20 << 20]).unwrap();
    tar(&["huge"]);
    refuse(s(&archive), &["not filled", "huge"]);
    // Sparse files whose entries do not have their bytes.
    tar(&["--sparse", "--format=pax", "sparse"]);
    refuse(s(&archive), &["not filled", "sparse", "--format=gnu"]);
    // One that leads out of itself, or through a link.
    tar(&["-P", "--transform=s|^hello|../hello|", "hello"]);
    refuse(s(&archive), &["not filled", "leads out of it"]);
    symlink("/etc", at("tree/out")).unwrap();
    tar(&["out", "hello", "--transform=s|^hello|out/hello|"]);
    refuse(s(&archive), &["not filled", "out"]);
}

/// An entry of an archive: its type, name, link target and contents.
type Entry<'a> = (tar::EntryType, &'a str, &'a str, &'a [u8]);

fn archive_of(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (kind, name, target, contents) in entries {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(*kind);
        header.set_path(name).unwrap();
        if !target.is_empty() {
            header.set_link_name(target).unwrap();
        }
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_000_000_000);
        header.set_size(contents.len() as u64);
        header.set_cksum();
        archive.append(&header, *contents).unwrap();
    }
    archive.into_inner().unwrap()
}

#[test]
fn mkfs_from_archive_keeps_nanoseconds_of_extended_header() {
    let dir = scratch();
    let region = dir.path().join("region");
    let record = b"30 mtime=1700000000.123456789\n";
    let archive = archive_of(&[
        (tar::EntryType::XHeader, "PaxHeaders/f", "", record),
        (tar::EntryType::Regular, "f", "", b"x"),
        (tar::EntryType::Regular, "g", "", b"x"),
    ]);
    run_with_input(MKFS, ["-q", "-d", "-", s(&region), "8M"], &archive).ok();
    let mtime = |name: &str| {
        let stat = pramfs(["stat", "--json", s(&region), name]).ok().json();
        stat["mtime"].as_str().unwrap().to_owned()
    };
    assert!(mtime("/f").starts_with("2023-11-14T22:13:20.123456789"));
    assert!(mtime("/g").starts_with("2001-09-09T01:46:40"));
}

#[test]
fn mkfs_from_archive_with_link_to_itself_keeps_file() {
    let dir = scratch();
    let region = dir.path().join("region");
    let archive = archive_of(&[
        (tar::EntryType::Regular, "f", "", b"contents"),
        (tar::EntryType::Link, "f", "f", b""),
        (tar::EntryType::Link, "g", "f", b""),
        // The last entry of a name counts, also where it is a link.
        (tar::EntryType::Regular, "h", "", b"old"),
        (tar::EntryType::Link, "h", "g", b""),
    ]);
    run_with_input(MKFS, ["-q", "-d", "-", s(&region), "8M"], &archive).ok();
    for name in ["/f", "/g", "/h"] {
        assert_eq!(pramfs(["cat", s(&region), name]).ok().out, "contents");
    }
    let stat = pramfs(["stat", "--json", s(&region), "/f"]).ok().json();
    assert_eq!(stat["links"], 3, "{stat}");
    run(FSCK, ["-n", s(&region)]).ok();
}

#[test]
fn mkfs_from_archive_that_is_cut_between_entries_fails() {
    let dir = scratch();
    let region = dir.path().join("region");
    let archive = archive_of(&[
        // Its last block is no end marker.
        (tar::EntryType::Regular, "zeros", "", &[0; 1024]),
    ]);
    assert_eq!(archive.len(), 512 + 1024 + 1024);
    let fill = |archive: &[u8]| run_with_input(MKFS, ["-q", "-d", "-", s(&region), "8M"], archive);
    fill(&archive[..512 + 1024]).refused(&["not filled", "without its end marker"]);
    assert!(!region.exists());
    // Of the marker one block is enough: nothing that follows is missing.
    fill(&archive[..512 + 1024 + 512]).ok();
}

#[test]
fn mkfs_from_archive_with_endless_header_fails() {
    let dir = scratch();
    let region = dir.path().join("region");
    let (endless, long) = (vec![b'x'; 65 << 20], vec![b'x'; 2 << 20]);
    for kind in [tar::EntryType::XHeader, tar::EntryType::GNULongName] {
        let archive = archive_of(&[
            (kind, "PaxHeaders/f", "", &endless),
            (tar::EntryType::Regular, "f", "", b"x"),
        ]);
        let answer = run_with_input(MKFS, ["-q", "-d", "-", s(&region), "8M"], &archive);
        answer.refused(&["not filled", "more than 67108864 bytes"]);
    }
    // Large contents are no header.
    let archive = archive_of(&[
        (tar::EntryType::XGlobalHeader, "global", "", &long),
        (tar::EntryType::Regular, "f", "", &long),
        (tar::EntryType::Regular, "g", "", &long),
    ]);
    run_with_input(MKFS, ["-q", "-d", "-", s(&region), "16M"], &archive).ok();
}

/// Opens a region and returns an attribute of a file in it.
fn attribute(region: &Path, file: &str, name: &[u8]) -> Option<Vec<u8>> {
    let region = pramfs::pmem::RegionOptions::new().open(region).unwrap();
    let fs = pramfs::inode::Fs::open(region, pramfs::MountOptions::default()).unwrap();
    let found = fs.resolve(file).unwrap();
    let value = fs.getxattr(found.ino, name).ok();
    fs.close().unwrap();
    value
}

/// An archive with a directory and a file in it, with their lists.
fn archive_with_lists(at: &Path, lists: &[(&str, &str)]) {
    let mut archive = tar::Builder::new(fs::File::create(at).unwrap());
    for (name, kind) in [
        ("d/", tar::EntryType::Directory),
        ("d/f", tar::EntryType::Regular),
    ] {
        let lists = lists
            .iter()
            .filter(|(key, _)| kind == tar::EntryType::Directory || !key.ends_with("default"));
        let lists = lists.map(|(key, text)| (*key, text.as_bytes()));
        archive.append_pax_extensions(lists).unwrap();
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(0o770);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(0);
        archive.append_data(&mut header, name, &b""[..]).unwrap();
    }
    archive.finish().unwrap();
}

#[test]
fn mkfs_from_archive_keeps_access_control_lists_or_refuses_them() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    let (archive, region) = (at("archive"), at("region"));
    let access = "user::rwx,user:1000:rwx,group::---,mask::rwx,other::---";
    let inherited = "user::rwx,user:x:rwx:7,group::r-x,mask::rwx,other::---";
    archive_with_lists(
        &archive,
        &[
            ("SCHILY.acl.access", access),
            ("SCHILY.acl.default", inherited),
        ],
    );
    mkfs(["-q", "-d", s(&archive), s(&region), "16M"]).ok();
    let list = |file: &str, name: &str| {
        let name = format!("system.posix_acl_{name}");
        attribute(&region, file, name.as_bytes())
    };
    let entry = |tag: u8, perm: u8, id: u32| {
        let id = id.to_le_bytes();
        [tag, 0, perm, 0, id[0], id[1], id[2], id[3]]
    };
    let none = u32::MAX;
    let expected = |entries: &[[u8; 8]]| Some([&[2, 0, 0, 0][..], &entries.concat()].concat());
    // That of the file, and not what it would inherit.
    for file in ["/d", "/d/f"] {
        let entries = [
            entry(1, 7, none),
            entry(2, 7, 1000),
            entry(4, 0, none),
            entry(0x10, 7, none),
            entry(0x20, 0, none),
        ];
        assert_eq!(list(file, "access"), expected(&entries), "{file}");
    }
    let entries = [
        entry(1, 7, none),
        entry(2, 7, 7),
        entry(4, 5, none),
        entry(0x10, 7, none),
        entry(0x20, 0, none),
    ];
    assert_eq!(list("/d", "default"), expected(&entries));
    run(FSCK, ["-n", s(&region)]).ok();

    let refused = at("refused");
    for (key, text, why) in [
        ("SCHILY.acl.access", "user::rwx,user:lisa:r--", "lisa"),
        ("SCHILY.acl.ace", "owner@:rw:allow", "ace"),
    ] {
        archive_with_lists(&archive, &[(key, text)]);
        mkfs(["-q", "-d", s(&archive), s(&refused), "16M"]).refused(&[
            "access control list of d",
            why,
            "--numeric-owner",
        ]);
        assert!(!refused.exists());
    }
}

#[test]
fn mkfs_ended_by_signal_leaves_no_file_system() {
    let dir = scratch();
    let (new, old) = (dir.path().join("new"), dir.path().join("old"));
    mkfs([s(&old), "64M"]).ok();
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.set_mode(0o600);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(32 << 20);
    let empty = std::io::repeat(1);
    archive
        .append_data(&mut header, "f", empty.take(32 << 20))
        .unwrap();
    let bytes = archive.into_inner().unwrap();
    for (region, size) in [(&new, &["64M"][..]), (&old, &[])] {
        let mut mkfs = Command::new(MKFS)
            .args(["-q", "-f", "-d", "-", s(region)])
            .args(size)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // More than a pipe takes: it is reading when this is done, and waits for the rest.
        let mut input = mkfs.stdin.take().unwrap();
        input.write_all(&bytes[..16 << 20]).unwrap();
        let pid = rustix::process::Pid::from_child(&mkfs);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let ended = mkfs.wait_with_output().unwrap();
        assert_eq!(ended.status.signal(), Some(15), "{ended:?}");
        let says = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(says.contains("a signal has ended it"), "{says}");
        drop(input);
    }
    assert!(!new.exists());
    let answer = pramfs(["ls", s(&old)]);
    assert_ne!(answer.status, 0, "{answer:?}");
}
