//! `pramfs mkdir`, `rm`, `mv`, `ln`, `tune`, and `put` from standard input.

mod common;

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use common::*;

struct Region {
    _dir: tempfile::TempDir,
    path: String,
}

impl Region {
    fn new() -> Region {
        let dir = scratch();
        let path = dir.path().join("region").to_str().unwrap().to_owned();
        mkfs(["-q", "-L", "first", &path, "16M"]).ok();
        Region { _dir: dir, path }
    }

    fn run(&self, name: &str, arguments: &[&str]) -> Answer {
        pramfs([&[name, &self.path], arguments].concat())
    }

    fn ok(&self, name: &str, arguments: &[&str]) -> Answer {
        self.run(name, arguments).ok()
    }

    fn names(&self, dir: &str) -> Vec<String> {
        let listed = self.ok("ls", &[dir]).out;
        listed.lines().map(str::to_owned).collect()
    }

    fn put(&self, text: &str, arguments: &[&str]) -> Answer {
        let arguments = [&["put", &self.path], arguments].concat();
        run_with_input(PRAMFS, arguments, text.as_bytes())
    }
}

/// At the end, the region has no error.
impl Drop for Region {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            run(FSCK, ["-n", &self.path]).ok();
        }
    }
}

#[test]
fn put_from_standard_input_makes_file() {
    let region = Region::new();
    let long = "line\n".repeat(500_000);
    region.put(&long, &["-", "/log"]).ok();
    assert!(region.ok("cat", &["/log"]).out == long);
    region
        .put("", &["-", "/log"])
        .refused(&["/log exists", "-f"]);
    region.put("short", &["-f", "-", "/log"]).ok();
    assert_eq!(region.ok("cat", &["/log"]).out, "short");
    region.put("", &["-", "/"]).misused(&["is a directory"]);
    region.put("", &["-", "/no/file"]).refused(&["/no/file"]);
    region
        .put("", &["-", "/dev/null", "/x"])
        .misused(&["together"]);
    // A file of that name.
    region.put("", &["./-", "/x"]).refused(&["./-"]);
}

#[test]
fn put_from_standard_input_that_is_killed_leaves_old_file_and_no_other() {
    let region = Region::new();
    region.put("the old contents", &["-", "/file"]).ok();
    for name in ["/file", "/new"] {
        let mut put = Command::new(PRAMFS)
            .args(["put", "-f", &region.path, "-", name])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        // More than a pipe holds: some has been read when all is written.
        let mut input = put.stdin.take().unwrap();
        input.write_all(&[b'n'; 2 << 20]).unwrap();
        put.kill().unwrap();
        assert!(!put.wait().unwrap().success());
        drop(input);
    }
    assert_eq!(region.names("/"), ["file"]);
    assert_eq!(region.ok("cat", &["/file"]).out, "the old contents");
}

#[test]
fn mkdir_makes_directories_with_parents_and_mode() {
    let region = Region::new();
    region.ok("mkdir", &["-m", "1700", "/a", "/b"]);
    region.ok("mkdir", &["-p", "/a/b/c", "/a/b", "/"]);
    assert_eq!(region.names("/"), ["a", "b"]);
    assert_eq!(region.names("/a/b"), ["c"]);
    let stat = region.ok("stat", &["--json", "/a"]).out;
    assert!(stat.contains("1700"), "{stat}");
    region.run("mkdir", &["/a"]).refused(&["/a"]);
    region.run("mkdir", &["/x/y"]).refused(&["/x/y"]);
    region.put("", &["-", "/file"]).ok();
    region
        .run("mkdir", &["-p", "/file/x"])
        .refused(&["/file", "no directory"]);
    assert_eq!(region.run("mkdir", &["-m", "9", "/z"]).status, 2);
}

#[test]
fn rm_removes_files_and_trees() {
    let region = Region::new();
    let deep = format!("/t{}", "/d".repeat(300));
    region.ok("mkdir", &["-p", &deep, "/empty", "/t/e"]);
    for file in ["/t/d/file", "/t/e/file", "/file"] {
        region.put("x", &["-", file]).ok();
    }
    region
        .run("rm", &["/t"])
        .misused(&["/t is a directory", "-r"]);
    region.run("rm", &["-d", "/t"]).refused(&["/t"]);
    region.run("rm", &["/missing"]).refused(&["/missing"]);
    region.run("rm", &["-r", "/"]).refused(&["root"]);
    region.ok("rm", &["-f", "/missing", "/no/such/file"]);
    region.ok("rm", &["-d", "/empty"]);
    region.ok("rm", &["-r", "/t", "/file"]);
    assert_eq!(region.names("/"), [""; 0]);
}

#[test]
fn mv_and_ln_give_names() {
    let region = Region::new();
    region.ok("mkdir", &["/d", "/e"]);
    region.put("one", &["-", "/one"]).ok();
    region.put("two", &["-", "/two"]).ok();
    region.ok("mv", &["/one", "/two", "/d"]);
    assert_eq!(region.names("/d"), ["one", "two"]);
    region
        .run("mv", &["-n", "/d/one", "/d/two"])
        .refused(&["/d/two"]);
    region.ok("mv", &["/d/one", "/d/two"]);
    assert_eq!(region.ok("cat", &["/d/two"]).out, "one");
    region
        .run("mv", &["/d", "/d/inside"])
        .refused(&["/d/inside"]);
    region.run("mv", &["/missing", "/x"]).refused(&["/missing"]);
    region
        .run("mv", &["/d/two", "/e", "/new"])
        .misused(&["/new", "not a directory"]);
    region.ok("ln", &["/d/two", "/e"]);
    region.ok("ln", &["-s", "../d/two", "/e/link"]);
    assert_eq!(region.ok("cat", &["/e/link"]).out, "one");
    let stat = region.ok("stat", &["--json", "/e/two"]).json();
    assert_eq!(stat["links"], 2, "{stat}");
    region
        .run("ln", &["/d", "/e/dir"])
        .misused(&["/d is a directory", "-s"]);
    region
        .run("ln", &["/d/two", "/e/link"])
        .refused(&["/e/link"]);
    region.run("ln", &["/missing", "/x"]).refused(&["/missing"]);
}

#[test]
fn tune_changes_label_in_both_superblocks() {
    let region = Region::new();
    let label = || {
        let info = pramfs(["info", "--json", &region.path]).ok().json();
        info["label"].as_str().unwrap().to_owned()
    };
    region.ok("tune", &["-L", "second name"]);
    assert_eq!(label(), "second name");
    let bytes = fs::read(&region.path).unwrap();
    for page in [0, 64 << 10] {
        assert_eq!(&bytes[page + 0x38..][..12], b"second name\0");
    }
    region.ok("tune", &["-L", ""]);
    assert_eq!(label(), "");
    let long = "x".repeat(64);
    region
        .run("tune", &["-L", &long])
        .refused(&["63 bytes", "64"]);
    region
        .run("tune", &["-U", "random"])
        .misused(&["checksum", "mkfs.pramfs -U"]);
    assert_eq!(region.run("tune", &[]).status, 2);
}

#[test]
fn tune_changes_default_options_and_reserve() {
    let region = Region::new();
    let info = || pramfs(["info", "--json", &region.path]).ok().json();
    assert_eq!(info()["default_options"], serde_json::json!([]));
    let said = region.ok(
        "tune",
        &["-o", "noatime,nosuid,nodev", "-r", "9", "-L", "tuned"],
    );
    assert!(said.out.contains("noatime,nosuid,nodev"), "{}", said.out);
    assert!(said.out.contains("9 blocks"), "{}", said.out);
    region.ok("tune", &["-o", "^nosuid,strictatime"]);
    let after = info();
    assert_eq!(
        after["default_options"],
        serde_json::json!(["strictatime", "nodev"])
    );
    assert_eq!(
        (&after["reserved_blocks"], &after["label"]),
        (&9.into(), &"tuned".into())
    );
    for wrong in ["allow_other", "nodev,", "", "suid"] {
        region
            .run("tune", &["-o", wrong, "-L", "lost"])
            .misused(&["cannot be a default option", "noatime"]);
    }
    for wrong in ["0", "1", "100000"] {
        region
            .run("tune", &["-r", wrong, "-o", "noexec", "-L", "lost"])
            .refused(&["at least 2 blocks"]);
    }
    let now = info();
    for name in ["default_options", "reserved_blocks", "label"] {
        assert_eq!(now[name], after[name], "{name}");
    }
    // Both superblock pages have it, and a check finds nothing.
    let bytes = fs::read(&region.path).unwrap();
    assert_eq!(bytes[..512], bytes[64 << 10..][..512]);
    pramfs(["check", &region.path]).ok();
}

#[test]
fn tools_say_what_a_foreign_file_system_is() {
    let dir = scratch();
    let path = dir.path().join("ext4").to_str().unwrap().to_owned();
    fs::File::create(&path).unwrap().set_len(8 << 20).unwrap();
    let made = Command::new("mkfs.ext4")
        .args(["-q", "-L", "photos", &path])
        .status();
    assert!(
        made.expect("e2fsprogs, which scripts/deps.sh --test installs")
            .success()
    );
    for arguments in [
        &["info"][..],
        &["ls"],
        &["dump"],
        &["mkdir", "/x"],
        &["tune", "-L", "x"],
    ] {
        let arguments = [&[arguments[0], &path], &arguments[1..]].concat();
        let says = ["this is an ext4 file system", "label \"photos\""];
        pramfs(arguments).refused(&says);
    }
    let json = pramfs(["info", "--json", &path]).json();
    assert_eq!(json["error"]["found"][0]["type"], "ext4", "{json}");
}
