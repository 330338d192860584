//! `pramfs info`, `dump`, `doctor`, `completions`, and the tool as a whole.

mod common;

use std::fs;
use std::os::unix::net::UnixListener;

use common::*;
use pramfs::pmem::{RegionOptions, free_protection_keys};
use pramfs::{
    MountOptions,
    inode::{Credentials, Fs, Ino},
};

#[test]
fn help_lists_every_subcommand() {
    let a = pramfs(["--help"]).ok();
    for name in [
        "doctor",
        "info",
        "ls",
        "stat",
        "cat",
        "get",
        "put",
        "extents",
        "owner",
        "frag",
        "defrag",
        "dump",
        "set",
        "trim",
        "grow",
        "bench",
        "tune",
        "mkdir",
        "rm",
        "mv",
        "ln",
        "check",
        "leases",
        "requests",
        "completions",
        "help",
    ]
    .into_iter()
    .chain(
        cfg!(feature = "save")
            .then_some(["save", "restore", "image"])
            .into_iter()
            .flatten(),
    ) {
        assert!(a.out.contains(&format!("\n  {name} ")), "{name}: {}", a.out);
        assert!(pramfs([name, "--help"]).ok().out.contains("Usage: pramfs"));
    }
    for wrong in [&["frobnicate"][..], &["ls"], &["ls", "--frobnicate", "x"]] {
        assert_eq!(pramfs(wrong).status, 2, "{wrong:?}");
    }
    assert_eq!(
        pramfs(["--version"]).ok().out.trim(),
        format!("pramfs {}", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn help_of_command_is_what_its_option_prints() {
    assert_eq!(pramfs(["help"]).ok().out, pramfs(["--help"]).ok().out);
    for name in ["ls", "scrub", "help"] {
        assert_eq!(
            pramfs(["help", name]).ok().out,
            pramfs([name, "--help"]).ok().out
        );
    }
    let a = pramfs(["help", "frobnicate"]);
    assert_eq!(a.status, 2, "{a:?}");
    assert!(a.err.contains("frobnicate is not a command"), "{a:?}");
}

#[test]
fn one_program_serves_every_name() {
    let dir = scratch();
    let link = |name: &str, to: &str| {
        let path = dir.path().join(name);
        std::os::unix::fs::symlink(to, &path).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let a = run(&link("mkfs.fuse.pramfs", PRAMFS), ["-V"]).ok();
    assert!(a.out.starts_with("mkfs.pramfs "), "{a:?}");
    let a = run(&link("mkfs.pramfs", MKFS), ["-V"]).ok();
    assert!(a.out.starts_with("mkfs.pramfs "), "{a:?}");
    let a = run(&link("pramfs", MKFS), ["--version"]).ok();
    assert!(a.out.starts_with("pramfs "), "{a:?}");
}

#[test]
fn completions_exist_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let a = pramfs(["completions", shell]).ok();
        assert!(
            a.out.contains("pramfs") && a.out.contains("doctor"),
            "{shell}"
        );
    }
    assert_eq!(pramfs(["completions", "nosuchshell"]).status, 2);
}

#[test]
fn info_matches_mkfs_options() {
    let dir = scratch();
    let region = dir.path().join("r");
    let r = region.to_str().unwrap();
    let made = mkfs(["--json", "-L", "some label", "-b", "1024", r, "8M"])
        .ok()
        .json();
    let info = pramfs(["info", "--json", r]).ok().json();
    for key in [
        "uuid",
        "label",
        "block_size",
        "blocks",
        "inodes",
        "lanes",
        "features",
        "superblock_copy",
        "bytes",
    ] {
        assert_eq!(made[key], info[key], "{key}");
    }
    assert_eq!(info["clean"], true);
    assert_eq!(info["mounts"], 0);
    assert!(info["last_mount"].is_null() && info["first_error"].is_null());
    let a = pramfs(["info", r]).ok();
    for line in [
        "label            some label",
        "state            clean",
        "last error       none",
    ] {
        assert!(a.out.contains(line), "{line}: {}", a.out);
    }
}

#[test]
fn info_reads_superblock_copy() {
    let dir = scratch();
    let region = made(dir.path(), "1M");
    let mut bytes = fs::read(&region).unwrap();
    bytes[..512].fill(0);
    fs::write(&region, bytes).unwrap();
    let info = pramfs(["info", "--json", region.to_str().unwrap()])
        .ok()
        .json();
    assert_eq!(info["read_from_copy"], true);

    // The other way round nothing is amiss but that there is no copy.
    let dir = scratch();
    let region = made(dir.path(), "1M");
    let r = region.to_str().unwrap();
    let sound = pramfs(["info", r]).ok().out;
    assert!(!sound.contains("damaged"), "{sound}");
    let mut bytes = fs::read(&region).unwrap();
    bytes[65536..65536 + 512].fill(0);
    fs::write(&region, bytes).unwrap();
    let info = pramfs(["info", "--json", r]).ok().json();
    assert_eq!(info["read_from_copy"], false);
    assert_eq!(info["copy_damaged"], true);
    let text = pramfs(["info", r]).ok().out;
    assert!(text.contains("at byte 65536, damaged"), "{text}");
}

#[test]
fn dump_accounts_for_every_block_at_every_block_size() {
    let dir = scratch();
    for block in ["512", "1024", "2048", "4096"] {
        let region = dir.path().join(block);
        let r = region.to_str().unwrap();
        mkfs(["-q", "-b", block, r, "8M"]).ok();
        for step in 0..3 {
            let a = pramfs(["dump", "--json", r]).ok().json();
            assert_eq!(a["used"], a["accounted"], "{block}, step {step}: {a}");
            assert_eq!(a["damage"].as_array().unwrap().len(), 0, "{a}");
            let blocks = a["blocks"].as_u64().unwrap();
            assert_eq!(
                a["used"].as_u64().unwrap() + a["free"].as_u64().unwrap(),
                blocks
            );
            pramfs([
                "put",
                "-rf",
                r,
                concat!(env!("CARGO_MANIFEST_DIR"), "/src"),
                "/",
            ])
            .ok();
        }
    }
}

#[test]
fn dump_lists_are_bounded() {
    let dir = scratch();
    let region = made(dir.path(), "64M");
    let r = region.to_str().unwrap();
    pramfs([
        "put",
        "-r",
        r,
        concat!(env!("CARGO_MANIFEST_DIR"), "/src"),
        "/",
    ])
    .ok();
    let a = pramfs([
        "dump", "--json", "--lanes", "--groups", "--inodes", "--limit", "3", r,
    ])
    .ok()
    .json();
    assert_eq!(a["inodes"]["rows"].as_array().unwrap().len(), 3);
    assert!(a["inodes"]["left_out"].as_u64().unwrap() > 3);
    assert_eq!(a["lanes"]["rows"].as_array().unwrap().len(), 3);
    let all = pramfs(["dump", "--inodes", "--limit", "0", r]).ok();
    assert!(!all.out.contains("more; see --limit"));
    let few = pramfs(["dump", "--inodes", "--limit", "3", r]).ok();
    assert!(few.out.contains("more; see --limit"), "{}", few.out);
    assert!(
        few.out.contains("every block in use has an owner"),
        "{}",
        few.out
    );
}

#[test]
fn dump_names_damage() {
    let dir = scratch();
    let region = made(dir.path(), "4M");
    let r = region.to_str().unwrap();
    pramfs(["put", r, "/etc/passwd", "/f"]).ok();
    let stat = pramfs(["stat", "--json", r, "/f"]).ok().json();
    let inode = stat["inode"].as_u64().unwrap();
    let list = pramfs(["dump", "--json", "--inodes", r]).ok().json();
    let row = list["inodes"]["rows"]
        .as_array()
        .unwrap()
        .iter()
        .find(|i| i["inode"] == inode)
        .unwrap();
    let at = row["offset"].as_u64().unwrap() as usize;
    let mut bytes = fs::read(&region).unwrap();
    bytes[at + 100] ^= 4;
    fs::write(&region, bytes).unwrap();
    let a = pramfs(["dump", "--json", r]).ok().json();
    assert!(
        a["damage"][0]
            .as_str()
            .unwrap()
            .contains(&format!("inode {inode}")),
        "{a}"
    );
    assert_ne!(a["used"], a["accounted"]);
}

#[test]
fn check_of_clean_image_finds_nothing() {
    let dir = scratch();
    let region = made(dir.path(), "16M");
    let r = region.to_str().unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    pramfs(["put", "-r", r, source, "/"]).ok();
    let a = pramfs(["check", "--json", r]).ok().json();
    assert_eq!(
        (&a["sound"], &a["complete"], &a["replayed"]),
        (&true.into(), &true.into(), &0.into()),
        "{a}"
    );
    assert_eq!(a["findings"].as_array().unwrap().len(), 0, "{a}");
    assert!(a["files"].as_u64().unwrap() > 20, "{a}");
    let a = pramfs(["check", r]).ok();
    assert!(
        a.out.contains("clean") && a.out.lines().count() == 1,
        "{}",
        a.out
    );
    assert_eq!(pramfs(["check", "-q", r]).ok().out, "");
}

#[test]
fn check_replays_in_private_memory() {
    let dir = scratch();
    let region = made(dir.path(), "4M");
    let r = region.to_str().unwrap();
    let open = RegionOptions::new().open(&region).unwrap();
    let fs = Fs::open(open, MountOptions::default()).unwrap();
    fs.create(&Credentials::ROOT, Ino::ROOT, b"a", 0o644)
        .unwrap();
    fs.create(&Credentials::ROOT, Ino::ROOT, b"b", 0o644)
        .unwrap();
    let crashed = fs::read(&region).unwrap();
    drop(fs);
    fs::write(&region, &crashed).unwrap();
    let a = pramfs(["check", "--json", r]).ok().json();
    assert_eq!((&a["sound"], &a["files"]), (&true.into(), &2.into()), "{a}");
    assert!(a["replayed"].as_u64().unwrap() > 0, "{a}");
    assert!(fs::read(&region).unwrap() == crashed);
}

#[test]
fn check_reports_damage_as_fsck_does() {
    let dir = scratch();
    let region = made(dir.path(), "4M");
    let r = region.to_str().unwrap();
    pramfs(["put", r, "/etc/passwd", "/f"]).ok();
    let inode = pramfs(["stat", "--json", r, "/f"]).ok().json()["inode"]
        .as_u64()
        .unwrap();
    let list = pramfs(["dump", "--json", "--inodes", r]).ok().json();
    let rows = list["inodes"]["rows"].as_array().unwrap();
    let row = rows.iter().find(|i| i["inode"] == inode).unwrap();
    let at = row["offset"].as_u64().unwrap() as usize;
    let mut bytes = fs::read(&region).unwrap();
    bytes[at + 100] ^= 4;
    fs::write(&region, bytes).unwrap();
    let a = pramfs(["check", "--json", r]);
    assert_eq!(a.status, 4, "{a:?}");
    let a = a.json();
    assert_eq!(a["sound"], false);
    assert!(
        a["findings"]
            .as_array()
            .unwrap()
            .iter()
            .any(|f| f["inode"] == inode),
        "{a}"
    );
    let a = pramfs(["check", r]);
    assert!(
        a.status == 4 && a.out.contains(&format!("inode {inode}")),
        "{a:?}"
    );
    // No file system, and none that can be opened.
    let blank = dir.path().join("blank");
    fs::File::create(&blank).unwrap().set_len(1 << 20).unwrap();
    assert_eq!(pramfs(["check", blank.to_str().unwrap()]).status, 4);
    assert_eq!(pramfs(["check", "/nonexistent"]).status, 8);
}

#[test]
fn doctor_reports_tmpfs() {
    let dir = scratch();
    if !dir.path().starts_with("/dev/shm") {
        skipped("there is no /dev/shm");
        return;
    }
    let region = made(dir.path(), "1M");
    let r = region.to_str().unwrap();
    let a = pramfs(["doctor", "--json", r]).ok().json();
    assert_eq!(
        (&a["kind"], &a["usable"], &a["persistent_memory"]),
        (&"tmpfs".into(), &true.into(), &false.into())
    );
    assert_eq!(a["size"], 1 << 20);
    assert_eq!(a["survives"], "the death of processes, but not a reboot");
    // The library is loaded at run time: its backend is listed first, or why it is not there.
    let first = &a["backends"][0];
    let has_libpmem2 = a["without_libpmem2"].is_null();
    assert_eq!(
        first,
        if has_libpmem2 { "libpmem2" } else { "native" },
        "{a}"
    );
    let a = pramfs(["doctor", r]).ok();
    assert!(
        a.out.contains("tmpfs, 1 MiB") && a.out.contains("survives"),
        "{}",
        a.out
    );
    // A name that does not exist yet, and a directory.
    let b = pramfs(["doctor", "--json", dir.path().join("new").to_str().unwrap()])
        .ok()
        .json();
    assert_eq!((&b["exists"], &b["kind"]), (&false.into(), &"tmpfs".into()));
    pramfs(["doctor", dir.path().to_str().unwrap()]).ok();
}

/// On this machine; `commands/transports.rs` has the others.
#[test]
fn doctor_advises_on_transports() {
    let dir = scratch();
    let path = dir.path().to_str().unwrap();
    let a = pramfs(["doctor", "--json", path]).ok().json();
    let found = &a["transports"];
    let setting = |path: &str| {
        fs::read_to_string(path)
            .ok()
            .map(|text| text.trim().to_owned())
    };
    assert_eq!(found["dev_fuse"], fs::exists("/dev/fuse").unwrap());
    let is_on = setting("/sys/module/fuse/parameters/enable_uring").map(|value| value == "Y");
    let allowed = setting("/proc/sys/kernel/io_uring_disabled").is_none_or(|value| value != "2");
    assert_eq!(
        found["enable_uring"] == "on",
        is_on == Some(true),
        "{found}"
    );
    assert_eq!(found["io_uring"] != "nobody", allowed, "{found}");
    let usable = found["usable"].as_array().unwrap();
    let has = |name: &str| usable.iter().any(|one| one == name);
    assert_eq!(has("dev"), fs::exists("/dev/fuse").unwrap(), "{found}");
    assert_eq!(has("uring"), has("dev") && is_on == Some(true) && allowed);
    let said = pramfs(["doctor", path]).ok().out;
    let row = said.lines().find(|line| line.starts_with("  transports"));
    assert_eq!(row.unwrap().contains("uring"), has("uring"), "{said}");
    // Not for what can be no region.
    assert!(!pramfs(["doctor", "/dev/null"]).out.contains("transport"));
}

/// The row names the best way that this machine has. `protect=auto` takes it if it is not slow.
#[test]
fn doctor_names_protection_that_machine_has() {
    let dir = scratch();
    let path = dir.path().to_str().unwrap();
    let json = pramfs(["doctor", "--json", path]).ok().json();
    let found = &json["protection"];
    let said = pramfs(["doctor", path]).ok().out;
    let row = said.lines().find(|line| line.starts_with("  protection"));
    let row = row.expect(&said);
    match free_protection_keys() {
        Ok(free) => {
            assert!(row.contains(&format!("protect=pkey: {free} key")), "{row}");
            assert_eq!(found["free_keys"], free);
            assert!(found["no_keys"].is_null(), "{found}");
            // Linux sets this flag if processor and kernel have keys.
            if cfg!(target_arch = "x86_64") {
                let flags = fs::read_to_string("/proc/cpuinfo").unwrap();
                assert!(
                    flags.split_whitespace().any(|flag| flag == "ospke"),
                    "{row}"
                );
            }
        }
        Err(why) => {
            let slow = format!("protect=mprotect only, which is slow: {why}");
            assert!(row.contains(&slow), "{row}");
            assert!(found["free_keys"].is_null(), "{found}");
            assert_eq!(found["no_keys"], why);
        }
    }
    // A region that cannot be used is not protected.
    assert!(!pramfs(["doctor", "/dev/null"]).out.contains("protect="));
}

#[test]
fn doctor_reports_unusable_objects() {
    let dir = scratch();
    let socket = dir.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    pramfs(["doctor", socket.to_str().unwrap()]).refused(&["socket"]);
    pramfs(["doctor", "/dev/null"]).refused(&["/dev/null", "character device"]);
    let a = pramfs(["doctor", "--json", "/dev/null"]);
    assert_eq!((a.status, &a.json()["usable"]), (1, &false.into()));
    let missing = "/dev/pmem-that-is-not-there";
    pramfs(["doctor", missing]).refused(&[missing, "no such device"]);
    pramfs(["doctor", "/no/such/directory/x"]).refused(&["/no/such/directory"]);
}

#[test]
fn doctor_of_directory_describes_new_region() {
    let dir = scratch();
    let path = dir.path().to_str().unwrap();
    let a = pramfs(["doctor", path]).ok();
    assert!(a.out.contains("would be"), "{a:?}");
    assert!(a.out.contains("in this directory"), "{a:?}");
    assert!(!a.out.contains("mount.pramfs "), "{a:?}");
    let b = pramfs(["doctor", "--json", path]).ok().json();
    assert_eq!(b["directory"], true);
}

#[test]
fn doctor_names_foreign_fs_and_advises_no_mount() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let image = fs::File::create(&path).unwrap();
    image.set_len(16 << 20).unwrap();
    drop(image);
    let made = std::process::Command::new("mkfs.ext4")
        .args(["-q", "-F"])
        .arg(&path)
        .status();
    if !made.is_ok_and(|status| status.success()) {
        skipped("no mkfs.ext4: what doctor says of ext4 has not been tested");
        return;
    }
    let a = pramfs(["doctor", path.to_str().unwrap()]).ok();
    assert!(a.out.contains("holds"), "{a:?}");
    assert!(a.out.contains("an ext4 file system"), "{a:?}");
    assert!(!a.out.contains("mount.pramfs "), "{a:?}");
    let missing = dir.path().join("missing");
    let a = pramfs(["doctor", missing.to_str().unwrap()]).ok();
    assert!(!a.out.contains("mount.pramfs "), "{a:?}");
}

#[test]
fn json_times_are_rfc_3339() {
    let dir = scratch();
    let region = dir.path().join("region");
    let r = region.to_str().unwrap();
    run(MKFS, [r, "4M"]).ok();
    let is_rfc_3339 = |time: &serde_json::Value| {
        let time = time.as_str().unwrap();
        let (date, rest) = time.split_once('T').unwrap_or_default();
        date.len() == 10 && rest.ends_with('Z') && !time.contains(' ')
    };
    let stat = pramfs(["stat", "--json", r, "/"]).ok().json();
    let times = ["atime", "mtime", "ctime", "btime"];
    assert!(times.iter().all(|t| is_rfc_3339(&stat[t])), "{stat}");
    let info = pramfs(["info", "--json", r]).ok().json();
    assert!(is_rfc_3339(&info["created"]), "{info}");
    assert_eq!(info["last_mount"], serde_json::Value::Null);
}

/// The help promises 2, also where the command finds it itself and not its parser.
#[test]
fn wrong_usage_that_a_command_finds_ends_with_2() {
    let dir = scratch();
    let region = made(dir.path(), "1M");
    let region = region.to_str().unwrap();
    let uuid = "0a1b2c3d-4e5f-4071-8293-a4b5c6d7e8f9";
    pramfs(["tune", "-U", uuid, region]).misused(&["the uuid cannot be changed"]);
    pramfs(["tune", "-o", "frobnicate", region]).misused(&["frobnicate"]);
    pramfs(["metrics", "--listen", "0.0.0.0:1"]).misused(&["--allow-remote"]);
    let answer = pramfs(["owner", "--json", region, "9-7"]).misused(&["ends before"]);
    assert_eq!(answer.json()["error"]["reason"], "usage");
    // mkfs(8) knows only 0 and 1.
    mkfs(["-f", "-U", "x", region]).refused(&["not a uuid"]);
}

/// Commands are pasted into a shell.
#[test]
fn commands_in_messages_quote_names_with_blanks() {
    let dir = scratch();
    let region = dir.path().join("a region");
    mkfs([region.to_str().unwrap(), "1M"]).ok();
    let answer = run(FSCK, [region.to_str().unwrap()]);
    assert_eq!(answer.status, 16, "{answer:?}");
    let words = format!("fsck.pramfs -n '{}' to check", region.display());
    assert!(answer.err.contains(&words), "{answer:?}");
}
