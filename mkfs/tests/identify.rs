//! What other programs know of a region: `pramfs info --export`, the rule of udev, and the magic
//! of file(1). `make test-vm` boots with the rule.

mod common;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use common::*;

const UUID: &str = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";

fn region(dir: &Path, label: &str) -> String {
    let path = dir.join("region").to_str().unwrap().to_owned();
    mkfs(["-f", "-q", "-U", UUID, "-L", label, &path, "16M"]).ok();
    path
}

#[test]
fn export_prints_properties_of_blkid() {
    let dir = scratch();
    let path = region(dir.path(), "my disk");
    let expected = format!(
        "ID_FS_LABEL=my disk\nID_FS_LABEL_ENC=my\\x20disk\nID_FS_UUID={UUID}\n\
         ID_FS_UUID_ENC={UUID}\nID_FS_VERSION=1\nID_FS_BLOCKSIZE=4096\nID_FS_SIZE=16777216\n\
         ID_FS_TYPE=pramfs\nID_FS_USAGE=filesystem\n"
    );
    assert_eq!(pramfs(["info", "--export", &path]).ok().out, expected);
    // From the copy, of a region that another process has locked.
    let file = fs::File::options().write(true).open(&path).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    file.write_all_at(&[0; 4096], 0).unwrap();
    assert_eq!(pramfs(["info", "--export", &path]).ok().out, expected);
    file.write_all_at(&[0; 4096], 64 << 10).unwrap();
    let none = pramfs(["info", "--export", &path]);
    assert_eq!((none.status, &*none.out, &*none.err), (2, "", ""));
}

#[test]
fn export_of_hostile_label_adds_no_property() {
    let dir = scratch();
    let path = region(dir.path(), "a\nID_FS_TYPE=\"ext4\"\n../..");
    let out = pramfs(["info", "--export", &path]).ok().out;
    let of_type: Vec<_> = out
        .lines()
        .filter(|line| line.starts_with("ID_FS_TYPE="))
        .collect();
    assert_eq!(of_type, ["ID_FS_TYPE=pramfs"]);
    assert!(out.lines().all(|line| line.starts_with("ID_FS_")), "{out}");
    let link = out
        .lines()
        .find_map(|line| line.strip_prefix("ID_FS_LABEL_ENC="))
        .unwrap();
    assert!(!link.contains(['/', '"']), "{link}");
}

#[test]
fn export_of_other_contents_exits_2_in_silence() {
    let dir = scratch();
    let path = dir.path().join("other");
    for contents in [&b""[..], &[0; 200_000], b"PRAMFSrs", &[0xff; 200_000]] {
        fs::write(&path, contents).unwrap();
        let none = pramfs(["info", "--export", path.to_str().unwrap()]);
        assert_eq!((none.status, &*none.out, &*none.err), (2, "", ""));
    }
    // What cannot be read says so, with the same status.
    for missing in ["/nowhere/at/all", "/dev/null", "/dev"] {
        let none = pramfs(["info", "--export", missing]);
        assert_eq!((none.status, &*none.out), (2, ""));
        assert!(none.err.contains(missing), "{none:?}");
    }
    assert_eq!(
        pramfs(["info", "--export", "--json", "/dev/null"]).status,
        2
    );
}

fn rule() -> String {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../scripts/udev/60-pramfs.rules"
    );
    fs::read_to_string(path).unwrap()
}

/// Each jump has its target, and each line that does not jump has an effect.
#[test]
fn udev_rule_jumps_to_its_own_labels() {
    let text = rule();
    let lines: Vec<_> = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    let named = |key: &str| -> Vec<String> {
        let found = lines.iter().filter_map(|line| line.split_once(key));
        found
            .map(|(_, rest)| rest.split('"').next().unwrap().to_owned())
            .collect()
    };
    let labels: Vec<_> = lines
        .iter()
        .filter_map(|line| line.strip_prefix("LABEL=\"")?.strip_suffix('"'))
        .collect();
    for target in named("GOTO=\"") {
        assert!(labels.contains(&&*target), "{target}");
    }
    assert!(lines.last().unwrap().starts_with("LABEL="), "{text}");
    for property in named("$env{") {
        let name = property.split('}').next().unwrap();
        assert!(name.ends_with("_ENC"), "{name} is not escaped");
    }
}

/// `udevadm verify` came with systemd 254. Before it, the boots of `make test-vm` show that the
/// rule works.
#[test]
fn udev_rule_is_accepted_by_udevadm() {
    let version = Command::new("udevadm").arg("--version").output();
    let version = version.ok().and_then(|out| {
        let text = String::from_utf8(out.stdout).ok()?;
        text.trim().parse::<u32>().ok()
    });
    if version.is_none_or(|version| version < 254) {
        println!("udevadm {version:?} has no verify: only the test before has read the rule");
        return;
    }
    let dir = scratch();
    let path = dir.path().join("60-pramfs.rules");
    fs::write(&path, rule().replace("@BINDIR@", "/usr/bin")).unwrap();
    let verified = Command::new("udevadm")
        .arg("verify")
        .arg(&path)
        .output()
        .unwrap();
    assert!(verified.status.success(), "{verified:?}");
}

#[test]
fn file_names_region_by_installed_magic() {
    let Some(version) = program_version("file") else {
        skip("file(1) is not installed (scripts/deps.sh --test installs it)");
        return;
    };
    let dir = scratch();
    let path = region(dir.path(), "data");
    let magic = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/file/magic");
    let file = |arguments: &[&str]| {
        let run = Command::new("file")
            .args(["-b", "-m", magic])
            .args(arguments)
            .output();
        let run = run.unwrap();
        let warnings = String::from_utf8(run.stderr).unwrap();
        assert!(
            run.status.success() && warnings.is_empty(),
            "{version}: {warnings}"
        );
        String::from_utf8(run.stdout).unwrap().trim().to_owned()
    };
    let uuid = format!("UUID {UUID}");
    let whole = format!("pramfs file system, version 1, label \"data\", {uuid}, 16777216 bytes");
    assert_eq!(file(&[&path]), whole);
    assert_eq!(file(&["-i", &path]), "application/x-pramfs; charset=binary");
    let region = fs::File::options().write(true).open(&path).unwrap();
    region.write_all_at(&[0; 4096], 0).unwrap();
    let copy = "pramfs file system, first superblock damaged, version 1, label \"data\"";
    assert_eq!(file(&[&path]), copy);
    region.write_all_at(&[0; 4096], 64 << 10).unwrap();
    assert_eq!(file(&[&path]), "data");
}

/// What a program says of itself, if it is installed.
fn program_version(program: &str) -> Option<String> {
    let out = Command::new(program).arg("--version").output().ok()?;
    Some(
        String::from_utf8_lossy(&out.stdout)
            .lines()
            .next()?
            .to_owned(),
    )
}

fn skip(why: &str) {
    println!("\n*** SKIPPED: {why} ***\n");
    assert!(std::env::var_os("CI").is_none(), "{why}");
}

/// A loop device, detached at the end.
struct Loop(String);

impl Loop {
    fn of(file: &str) -> Option<Loop> {
        let made = Command::new("losetup")
            .args(["--find", "--show", file])
            .output();
        let made = made.ok().filter(|made| made.status.success())?;
        Some(Loop(String::from_utf8(made.stdout).ok()?.trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = Command::new("losetup").args(["--detach", &self.0]).status();
        assert!(detached.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

/// udev applies the rule to a block device that a rule of the administrator names. All that it
/// changes is in a mount namespace of its own.
#[test]
fn udev_rule_gives_properties_and_links() {
    let dir = scratch();
    let path = region(dir.path(), "my disk");
    let is_root = rustix::process::geteuid().is_root();
    let Some(device) = is_root.then(|| Loop::of(&path)).flatten() else {
        return skip("no loop device, or not root: the rule of udev has not been run");
    };
    if program_version("udevadm").is_none() {
        return skip("udevadm is not installed: the rule of udev has not been run");
    }
    let tools = Path::new(PRAMFS).parent().unwrap().to_str().unwrap();
    let rules = dir.path().join("rules");
    fs::create_dir(&rules).unwrap();
    fs::write(
        rules.join("60-pramfs.rules"),
        rule().replace("@BINDIR@", tools),
    )
    .unwrap();
    let own = "KERNEL==\"loop*\", ENV{PRAMFS_READ}=\"1\"\n";
    let number = fs::metadata(&device.0).unwrap().rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    // The rules are read before their directory is hidden.
    let script = "set -e; mount -t tmpfs none /run; mkdir -p /etc/udev; mount -t tmpfs none /etc/udev; \
        mkdir /etc/udev/rules.d; cp \"$1\"/* /etc/udev/rules.d; mount -t tmpfs none /dev; \
        mknod /dev/null c 1 3; mknod \"$2\" b $3 $4; \
        exec udevadm test \"/sys/class/block/${2##*/}\" 2>&1";
    let test = || {
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "sh",
            "-c",
            script,
            "sh",
            rules.to_str().unwrap(),
            &device.0,
        ]);
        command.args([major.to_string(), minor.to_string()]);
        let out = command.output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{said}");
        said
    };
    // Not a device of persistent memory: left alone.
    assert!(!test().contains("ID_FS_TYPE=pramfs"));
    fs::write(rules.join("59-local.rules"), own).unwrap();
    let said = test();
    for line in [
        "ID_FS_TYPE=pramfs",
        "ID_FS_USAGE=filesystem",
        "ID_FS_LABEL=my disk",
        &format!("ID_FS_UUID={UUID}"),
    ] {
        assert!(said.lines().any(|one| one == line), "{line}: {said}");
    }
    let links = said
        .lines()
        .find_map(|line| line.strip_prefix("DEVLINKS="))
        .unwrap();
    for link in [
        format!("/dev/disk/by-uuid/{UUID}"),
        r"/dev/disk/by-label/my\x20disk".to_owned(),
    ] {
        assert!(links.split(' ').any(|one| one == link), "{link}: {links}");
    }
    assert!(
        !said.contains("60-pramfs.rules:") || !said.contains("Invalid"),
        "{said}"
    );
    // A device that it does not know, and one whose superblocks are lost: nothing, and no error.
    for byte in [0xff, 0] {
        let contents = [byte; 128 << 10];
        let region = fs::File::options().write(true).open(&device.0).unwrap();
        region.write_all_at(&contents, 0).unwrap();
        drop(region);
        let said = test();
        assert!(
            !said.contains("ID_FS_TYPE=pramfs") && !said.contains("/dev/disk/by-uuid/0f1e"),
            "{byte}: {said}"
        );
    }
    // A rule whose program is gone.
    let gone = rule().replace("@BINDIR@", "/nowhere");
    fs::write(rules.join("60-pramfs.rules"), gone).unwrap();
    let said = test();
    assert!(!said.contains("ID_FS_TYPE=pramfs"), "{said}");
    assert!(said.contains("/nowhere/pramfs"), "{said}");
}
