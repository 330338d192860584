//! `pramfs ls`, `stat`, `cat`, `get`, `put`, `extents`: files without a mount.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use common::*;
use pramfs::pmem::RegionOptions;
use pramfs::{
    MountOptions, XattrMode,
    inode::{Credentials, Fs, Ino},
};

fn s(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A tree with everything that a copy must keep.
fn tree(at: &Path) {
    fs::create_dir_all(at.join("d/empty")).unwrap();
    fs::write(at.join("hello"), "hello, world\n").unwrap();
    fs::write(at.join("d/empty file"), "").unwrap();
    let big: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7 / 3) as u8).collect();
    fs::write(at.join("d/big"), &big).unwrap();
    symlink("hello", at.join("link")).unwrap();
    symlink(
        "/no/where/".to_owned() + &"x".repeat(300),
        at.join("long link"),
    )
    .unwrap();
    fs::hard_link(at.join("hello"), at.join("d/same")).unwrap();
    let sparse = fs::File::create(at.join("sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    sparse.write_all_at(b"middle", 32 << 20).unwrap();
    fs::set_permissions(at.join("hello"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::set_permissions(at.join("d"), fs::Permissions::from_mode(0o1711)).unwrap();
    let old =
        std::time::SystemTime::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    fs::File::options()
        .write(true)
        .open(at.join("hello"))
        .unwrap()
        .set_modified(old)
        .unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        at.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
}

#[test]
fn put_and_get_preserve_tree() {
    let dir = scratch();
    let region = made(dir.path(), "64M");
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    tree(&from);
    pramfs(["put", "-r", s(&region), s(&from), "/"]).ok();
    pramfs(["get", "-r", s(&region), "/from", s(&to)]).ok();
    let a = run("diff", ["-r", "--no-dereference", s(&from), s(&to)]);
    // diff cannot compare fifos and says so.
    assert!(a.out.lines().all(|l| l.contains("is a fifo")), "{a:?}");

    let (x, y) = (
        from.join("hello").metadata().unwrap(),
        to.join("hello").metadata().unwrap(),
    );
    assert_eq!(
        (x.mode(), x.uid(), x.gid(), x.mtime(), x.mtime_nsec()),
        (y.mode(), y.uid(), y.gid(), y.mtime(), y.mtime_nsec())
    );
    assert_eq!(to.join("d").metadata().unwrap().mode() & 0o7777, 0o1711);
    assert_eq!(y.nlink(), 2);
    assert_eq!(y.ino(), to.join("d/same").metadata().unwrap().ino());
    assert!(to.join("sparse").metadata().unwrap().blocks() < 1000);
    assert_eq!(
        fs::symlink_metadata(to.join("fifo")).unwrap().mode(),
        0o010600
    );
    // And every block in the region has an owner.
    let a = pramfs(["dump", "--json", s(&region)]).ok().json();
    assert_eq!(a["used"], a["accounted"], "{a}");
    assert_eq!(a["damage"].as_array().unwrap().len(), 0, "{a}");
}

#[test]
fn get_copies_root_directory() {
    let dir = scratch();
    let region = made(dir.path(), "16M");
    let (a, to) = (dir.path().join("a"), dir.path().join("to"));
    fs::write(&a, "a").unwrap();
    fs::create_dir(&to).unwrap();
    pramfs(["put", s(&region), s(&a), "/"]).ok();
    pramfs(["get", "-r", s(&region), "/", s(&to)]).ok();
    assert_eq!(fs::read_to_string(to.join("a")).unwrap(), "a");
}

#[test]
fn put_and_get_preserve_xattrs() {
    let dir = scratch();
    let region = made(dir.path(), "4M");
    let file = dir.path().join("f");
    fs::write(&file, "x").unwrap();
    let set = rustix::fs::setxattr(
        &file,
        "user.colour",
        b"blue",
        rustix::fs::XattrFlags::empty(),
    );
    if let Err(e) = set {
        skipped(format_args!("no extended attributes here: {e}"));
        return;
    }
    pramfs(["put", s(&region), s(&file), "/"]).ok();
    let a = pramfs(["stat", "--json", s(&region), "/f"]).ok().json();
    assert_eq!(a["xattrs"][0], "user.colour");
    let out = dir.path().join("out");
    pramfs(["get", s(&region), "/f", s(&out)]).ok();
    let mut value = [0; 16];
    let n = rustix::fs::getxattr(&out, "user.colour", &mut value).unwrap();
    assert_eq!(&value[..n], b"blue");
}

#[test]
fn put_and_get_overwrite_only_with_force() {
    let dir = scratch();
    let region = made(dir.path(), "4M");
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    fs::write(&one, "1").unwrap();
    fs::write(&two, "2").unwrap();
    pramfs(["put", s(&region), s(&one), "/f"]).ok();
    pramfs(["put", s(&region), s(&two), "/f"]).refused(&["/f exists", "-f"]);
    assert_eq!(pramfs(["cat", s(&region), "/f"]).ok().out, "1");
    pramfs(["put", "-f", s(&region), s(&two), "/f"]).ok();
    assert_eq!(pramfs(["cat", s(&region), "/f"]).ok().out, "2");
    pramfs(["get", s(&region), "/f", s(&one)]).refused(&[s(&one), "exists", "-f"]);
    assert_eq!(fs::read_to_string(&one).unwrap(), "1");
    pramfs(["get", "-f", s(&region), "/f", s(&one)]).ok();
    assert_eq!(fs::read_to_string(&one).unwrap(), "2");
    // What is named in an error cannot move the cursor.
    let odd = dir.path().join("o\x1bdd");
    fs::write(&odd, "3").unwrap();
    pramfs(["get", s(&region), "/f", s(&odd)]).refused(&["o\\u{1b}dd exists"]);
}

#[test]
fn wrong_paths_are_named_in_error() {
    let dir = scratch();
    let region = made(dir.path(), "4M");
    let r = s(&region);
    pramfs(["cat", r, "/nothing"]).refused(&["/nothing", "no such file"]);
    pramfs(["cat", r, "/"]).refused(&["/", "directory"]);
    pramfs(["stat", r, "/a/b"]).refused(&["/a/b", "no such file"]);
    pramfs(["get", r, "/", s(dir.path())]).misused(&["-r"]);
    pramfs(["put", r, s(dir.path()), "/"]).misused(&["-r"]);
    pramfs(["put", r, "/nonexistent", "/"]).refused(&["/nonexistent"]);
    pramfs(["put", r, "/etc/hostname", "/no/such/dir/x"]).refused(&["/no/such/dir/x"]);
    pramfs(["ls", "/nonexistent"]).refused(&["/nonexistent", "no such file"]);
    pramfs(["ls", "/dev/null"]).refused(&["/dev/null"]);
    let a = pramfs(["stat", "--json", r, "/nothing"]).refused(&[]);
    assert_eq!(a.json()["error"]["reason"], "not-found");
    let blank = dir.path().join("blank");
    fs::File::create(&blank).unwrap().set_len(1 << 20).unwrap();
    pramfs(["ls", s(&blank)]).refused(&[s(&blank), "mkfs.pramfs"]);
}

#[test]
fn ls_prints_short_long_and_json() {
    let dir = scratch();
    let region = made(dir.path(), "64M");
    let from = dir.path().join("t");
    tree(&from);
    let r = s(&region);
    pramfs(["put", "-r", r, s(&from), "/"]).ok();
    assert_eq!(pramfs(["ls", r]).ok().out, "t\n");
    let a = pramfs(["ls", r, "/t"]).ok();
    assert_eq!(a.out, "d\nfifo\nhello\nlink\nlong link\nsparse\n");
    let a = pramfs(["ls", "-l", r, "/t"]).ok();
    assert!(a.out.contains("drwx--x--t"), "{}", a.out);
    assert!(
        a.out.contains("lrwxrwxrwx") && a.out.contains(" link -> hello\n"),
        "{}",
        a.out
    );
    assert!(
        a.out.contains("13 2001-09-09 01:46:40 hello\n"),
        "{}",
        a.out
    );
    let a = pramfs(["ls", "-R", r]).ok();
    assert!(
        a.out.contains("/t/d:\nbig\nempty\nempty file\nsame\n\n"),
        "{}",
        a.out
    );
    let a = pramfs(["ls", "--json", "-R", r]).ok();
    let rows: Vec<serde_json::Value> = a
        .out
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(rows.len(), 11);
    assert!(
        rows.iter()
            .any(|r| r["path"] == "/t/d/big" && r["size"] == 3_000_000)
    );
    let a = pramfs(["stat", r, "/t/link"]).ok();
    assert!(
        a.out.contains("/t/link -> hello") && a.out.contains("symbolic link"),
        "{}",
        a.out
    );
    let a = pramfs(["stat", "-L", "--json", r, "/t/link"]).ok().json();
    assert_eq!(
        (&a["kind"], &a["links"], &a["size"]),
        (&"regular file".into(), &2.into(), &13.into())
    );
    assert_eq!(a["mtime"], "2001-09-09T01:46:40.123456789Z");
}

#[test]
fn extents_match_byte_offsets() {
    let dir = scratch();
    let region = made(dir.path(), "16M");
    let file = dir.path().join("f");
    fs::write(&file, "start").unwrap();
    let f = fs::File::options().write(true).open(&file).unwrap();
    f.write_all_at(b"end", 1 << 20).unwrap();
    pramfs(["put", s(&region), s(&file), "/f"]).ok();
    let rows = pramfs(["extents", "--json", s(&region), "/f"]).ok().json();
    let rows = rows.as_array().unwrap();
    assert_eq!(
        rows.iter().map(|r| r["len"].as_u64().unwrap()).sum::<u64>(),
        (1 << 20) + 3
    );
    assert!(
        rows.iter().any(|r| r["region_offset"].is_null()),
        "{rows:?}"
    );
    let raw = fs::read(&region).unwrap();
    let mut rebuilt = vec![0u8; (1 << 20) + 3];
    for r in rows {
        let (at, len) = (
            r["file_offset"].as_u64().unwrap() as usize,
            r["len"].as_u64().unwrap() as usize,
        );
        if let Some(place) = r["region_offset"].as_u64() {
            rebuilt[at..at + len].copy_from_slice(&raw[place as usize..place as usize + len]);
        }
    }
    assert!(rebuilt == fs::read(&file).unwrap());
    let a = pramfs(["extents", s(&region), "/f"]).ok();
    assert!(
        a.out.contains("hole") && a.out.contains("of 1048579 bytes in the region"),
        "{}",
        a.out
    );
    let small = dir.path().join("small");
    fs::write(&small, [1; 10]).unwrap();
    pramfs(["put", s(&region), s(&small), "/small"]).ok();
    let a = pramfs(["extents", s(&region), "/small"]).ok();
    assert!(
        a.out
            .ends_with("\n1 extent, 10 of 10 bytes in the region\n"),
        "{}",
        a.out
    );
}

#[test]
fn region_in_use_error_names_holder() {
    let dir = scratch();
    let region = made(dir.path(), "4M");
    let held = RegionOptions::new().open(&region).unwrap();
    let me = std::process::id().to_string();
    let r = s(&region);
    for args in [
        vec!["ls", r],
        vec!["cat", r, "/x"],
        vec!["info", r],
        vec!["dump", r],
        vec!["stat", r, "/"],
        vec!["extents", r, "/x"],
        vec!["put", r, "/etc/hostname", "/"],
        vec!["get", r, "/x", "/tmp"],
    ] {
        pramfs(&args).refused(&["in use", &me]);
    }
    pramfs(["info", "--in-use", r]).ok();
    drop(held);
    // Those who only look do not keep each other out. A program that another
    // thread is just starting holds our descriptors for a moment, and with
    // them the lock.
    let look = || RegionOptions::new().read_only(true).open(&region);
    let started = std::time::Instant::now();
    let reader = loop {
        match look() {
            Err(e) if started.elapsed() > std::time::Duration::from_secs(300) => panic!("{e}"),
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(5)),
            Ok(reader) => break reader,
        }
    };
    pramfs(["ls", r]).ok();
    drop(reader);
}

#[test]
fn read_commands_change_no_byte() {
    let dir = scratch();
    let region = made(dir.path(), "4M");
    let r = s(&region);
    pramfs(["put", r, "/etc/passwd", "/f"]).ok();
    // As a crash leaves it: mounted, with records to replay.
    let fs = Fs::open(
        RegionOptions::new().open(&region).unwrap(),
        MountOptions::default(),
    )
    .unwrap();
    let made = fs
        .create(&Credentials::ROOT, Ino::ROOT, b"new", 0o644)
        .unwrap();
    fs.setxattr(
        &Credentials::ROOT,
        made.ino,
        b"user.x",
        b"y",
        XattrMode::Set,
    )
    .unwrap();
    let crashed = fs::read(&region).unwrap();
    drop(fs);
    fs::write(&region, &crashed).unwrap();
    assert!(pramfs(["ls", r]).ok().out.contains("new"));
    for args in [
        vec!["info", r],
        vec!["dump", r],
        vec!["cat", r, "/f"],
        vec!["stat", r, "/new"],
        vec!["extents", r, "/f"],
    ] {
        pramfs(&args).ok();
    }
    assert!(fs::read(&region).unwrap() == crashed);
    let a = pramfs(["info", "--json", r]).ok().json();
    assert_eq!(a["clean"], false);
}

#[test]
fn output_to_closed_pipe_ends_quietly() {
    let dir = scratch();
    let region = made(dir.path(), "16M");
    let big = dir.path().join("big");
    fs::write(&big, vec![b'x'; 4 << 20]).unwrap();
    pramfs(["put", s(&region), s(&big), "/"]).ok();
    let script = "\"$1\" cat \"$2\" /big | head -c 1 >/dev/null; echo ${PIPESTATUS[0]}";
    let a = run("bash", ["-c", script, "bash", PRAMFS, s(&region)]).ok();
    assert_eq!((a.out.as_str(), a.err.as_str()), ("141\n", ""));
}

#[test]
fn trim_frees_host_memory() {
    let dir = scratch();
    let region = made(dir.path(), "64M");
    let big = dir.path().join("big");
    let bytes: Vec<u8> = (0..16u32 << 20).map(|i| (i / 4096) as u8).collect();
    fs::write(&big, &bytes).unwrap();
    pramfs(["put", s(&region), s(&big), "/goes"]).ok();
    pramfs(["put", s(&region), s(&big), "/stays"]).ok();
    let used = || fs::metadata(&region).unwrap().blocks() * 512;
    let before = used();
    assert!(before >= 32 << 20, "{before}");
    let open = RegionOptions::new().open(&region).unwrap();
    let engine = Fs::open(open, MountOptions::default()).unwrap();
    engine.unlink(Ino::ROOT, b"goes").unwrap();
    engine.close().unwrap();
    let said = pramfs(["trim", s(&region)]).ok().out;
    assert!(
        said.contains("bytes of free blocks returned to the host"),
        "{said}"
    );
    assert!(used() + (14 << 20) <= before, "{} of {before}", used());
    pramfs(["check", s(&region)]).ok();
    pramfs(["get", s(&region), "/stays", s(&dir.path().join("back"))]).ok();
    assert!(fs::read(dir.path().join("back")).unwrap() == bytes);
}

/// Damages a line of the pointers of a file with 20 blocks, found by what is in its second block.
/// Returns the first block of the file.
fn lose_line(region: &Path, path: &OsStr) -> u64 {
    let rows = [
        "extents".as_ref(),
        "--json".as_ref(),
        region.as_os_str(),
        path,
    ];
    let rows = pramfs(rows).ok().json();
    let first = rows[0]["region_offset"].as_u64().unwrap() >> 12;
    let mut raw = fs::read(region).unwrap();
    let points_to = |at: usize, block: u64| {
        let word = u64::from_le_bytes(raw[at..at + 8].try_into().unwrap());
        word & ((1 << 40) - 1) == block && word >> 48 != 0
    };
    let table = (0..raw.len() / 4096).map(|b| b * 4096);
    let table = table
        .into_iter()
        .find(|at| (0..20).all(|i| points_to(at + i * 8, first + i as u64)));
    let table = table.expect("a block of pointers");
    raw[table + 64..table + 128].fill(0x35);
    fs::write(region, &raw).unwrap();
    first
}

#[test]
fn names_of_ls_stat_owner_and_check_are_the_same_in_json() {
    let dir = scratch();
    let region = made(dir.path(), "16M");
    let tree = dir.path().join("t");
    let names = [&b"a\xff"[..], b"a\xfe", b"a\\xff", b"a\n", b"a\\n"];
    let expected = ["/a\\xff", "/a\\xfe", "/a\\x5cxff", "/a\n", "/a\\x5cn"];
    fs::create_dir(&tree).unwrap();
    for name in names {
        fs::write(tree.join(OsStr::from_bytes(name)), vec![7; 20 * 4096]).unwrap();
    }
    pramfs(["put", "-r", s(&region), s(&tree), "/"]).ok();
    let strings = |rows: &str, key: &str| -> Vec<String> {
        let rows = rows.lines().map(|line| serde_json::from_str(line).unwrap());
        let text = |row: serde_json::Value| row[key].as_str().unwrap().to_owned();
        rows.map(text).collect()
    };
    let mut sorted = expected.map(|name| format!("/t{name}"));
    sorted.sort();
    let mut listed = strings(&pramfs(["ls", "--json", s(&region), "/t"]).ok().out, "path");
    listed.sort();
    assert_eq!(listed, sorted);
    for (name, expected) in names.iter().zip(expected) {
        let path = OsStr::from_bytes(&[b"/t/", *name].concat()).to_owned();
        let expected = format!("/t{expected}");
        let stat = [
            "stat".as_ref(),
            "--json".as_ref(),
            region.as_os_str(),
            &path,
        ];
        assert_eq!(strings(&pramfs(stat).ok().out, "path"), [&*expected]);
        let first = lose_line(&region, &path).to_string();
        assert_eq!(run(FSCK, ["-y", s(&region)]).status, 1);
        let owner = pramfs(["owner", "--json", s(&region), &first]).ok().json();
        assert_eq!(owner[0]["paths"][0], expected);
        let check = pramfs(["check", "--json", s(&region)]).ok().json();
        let marked = check["marked"].as_array().unwrap();
        assert!(
            marked.iter().any(|mark| mark["path"] == expected),
            "{check}"
        );
    }
}

/// What `fsck.pramfs` could not bring back, as `stat`, `extents`, `check` and each
/// fsck show it.
#[test]
fn stat_lists_lost_ranges() {
    let dir = scratch();
    let region = made(dir.path(), "16M");
    let file = dir.path().join("f");
    fs::write(&file, vec![7; 20 * 4096]).unwrap();
    pramfs(["put", s(&region), s(&file), "/f"]).ok();
    let whole = pramfs(["stat", s(&region), "/f"]).ok();
    assert!(!whole.out.contains("Lost:"), "{}", whole.out);
    lose_line(&region, "/f".as_ref());
    let repaired = run(FSCK, ["-y", s(&region)]);
    assert_eq!(repaired.status, 1, "{repaired:?}");
    assert!(repaired.out.contains("marked as lost"), "{}", repaired.out);
    assert!(repaired.out.contains("lost: /f: "), "{}", repaired.out);
    let note = "note: /f: 32768 bytes at offset 32768 are lost; reads fail with EIO";
    assert!(repaired.out.contains(note), "{}", repaired.out);
    // From then on it is no damage.
    let clean = run(FSCK, ["-n", s(&region)]).ok();
    assert!(
        clean.out.contains(note) && clean.out.contains("clean"),
        "{}",
        clean.out
    );
    let json = run(FSCK, ["-n", "--json", s(&region)]).ok().json();
    assert_eq!(json["marked"][0]["path"], "/f", "{json}");
    assert_eq!(
        (&json["sound"], &json["left"]),
        (&true.into(), &0.into()),
        "{json}"
    );
    let checked = pramfs(["check", s(&region)]).ok();
    assert!(checked.out.contains(note), "{}", checked.out);

    let text = pramfs(["stat", s(&region), "/f"]).ok().out;
    assert!(text.contains("Lost: 32768 bytes at offset 32768"), "{text}");
    assert!(text.contains("Xattr: system.pramfs.lost"), "{text}");
    let json = pramfs(["stat", "--json", s(&region), "/f"]).ok().json();
    assert_eq!(json["lost"][0]["offset"], 32768, "{json}");
    let rows = pramfs(["extents", s(&region), "/f"]).ok().out;
    assert!(rows.contains("lost"), "{rows}");
    let got = pramfs(["get", s(&region), "/f", s(&dir.path().join("g"))]);
    assert!(got.status != 0 && got.err.contains("lost"), "{got:?}");
}
