//! The scripts that the units of systemd start. `make test-vm` starts the units.

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::*;

fn script(name: &str) -> Command {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/systemd/");
    Command::new(format!("{path}{name}"))
}

fn names(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn collect_pstore_moves_records_to_directory_of_their_own() {
    let dir = scratch();
    let (from, to) = (dir.path().join("pstore"), dir.path().join("kept"));
    fs::create_dir(&from).unwrap();
    let collect = || {
        let mut script = script("collect-pstore");
        let done = script.arg(&to).env("PSTORE", &from).status().unwrap();
        assert!(done.success());
    };
    // Without a record nothing is made.
    collect();
    assert!(!to.exists());
    fs::write(from.join("dmesg-ramoops-0"), "panic").unwrap();
    fs::write(from.join("console-ramoops-0"), "console").unwrap();
    collect();
    assert_eq!(names(&from), [""; 0]);
    let [one] = &names(&to)[..] else {
        panic!("{:?}", names(&to))
    };
    let kept = to.join(one);
    assert_eq!(fs::read(kept.join("dmesg-ramoops-0")).unwrap(), b"panic");
    assert_eq!(
        fs::read(kept.join("console-ramoops-0")).unwrap(),
        b"console"
    );
    collect();
    assert_eq!(names(&to).len(), 1);
}

#[test]
fn collect_pstore_without_room_keeps_records() {
    let dir = scratch();
    let from = dir.path().join("pstore");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("dmesg-ramoops-0"), "panic").unwrap();
    // No directory can be made there.
    let to = dir.path().join("file");
    fs::write(&to, "").unwrap();
    let mut script = script("collect-pstore");
    let done = script.arg(&to).env("PSTORE", &from).output().unwrap();
    assert!(!done.status.success());
    assert_eq!(names(&from), ["dmesg-ramoops-0"]);
}

/// A program that stands before the system's in PATH.
fn fake(bin: &Path, name: &str, body: &str) {
    fs::create_dir_all(bin).unwrap();
    let draft = bin.join("draft");
    fs::write(&draft, format!("#!/bin/sh\n{body}\n")).unwrap();
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)).unwrap();
    copy_program(draft.to_str().unwrap(), &bin.join(name));
}

#[test]
fn collect_pstore_without_sound_durable_copies_keeps_records() {
    let dir = scratch();
    let (from, to) = (dir.path().join("pstore"), dir.path().join("kept"));
    fs::create_dir(&from).unwrap();
    for name in ["dmesg-ramoops-0", "dmesg-ramoops-1"] {
        fs::write(from.join(name), name).unwrap();
    }
    let bin = dir.path().join("bin");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let collect = || {
        let mut script = script("collect-pstore");
        let script = script.arg(&to).env("PSTORE", &from).env("PATH", &path);
        script.output().unwrap()
    };
    // A disk that fails when the copies are written out, and copies that are wrong.
    let wrong = "/bin/cp \"$@\"; for to; do :; done; echo x >\"$to/dmesg-ramoops-1\"";
    for (program, body) in [("sync", "exit 1"), ("cp", wrong)] {
        fake(&bin, program, body);
        assert!(!collect().status.success(), "{program}");
        assert_eq!(names(&from).len(), 2, "{program}");
        // No copies that the next boot would make again.
        assert_eq!(names(&to), [""; 0], "{program}");
        fs::remove_file(bin.join(program)).unwrap();
    }
    // Each record and each directory is written out, by its name: syncfs reaches no FUSE server.
    let log = dir.path().join("log");
    fake(&bin, "sync", &format!("echo \"$@\" >{}", log.display()));
    assert!(collect().status.success());
    let log = fs::read_to_string(log).unwrap();
    let into = to.join(&names(&to)[0]);
    for synced in [
        &into.join("dmesg-ramoops-0"),
        &into.join("dmesg-ramoops-1"),
        &into,
        &to,
    ] {
        let is_named = log.split(' ').any(|name| Path::new(name.trim()) == synced);
        assert!(is_named, "{}: {log}", synced.display());
    }
    assert!(!log.contains("-f"), "{log}");
}

/// The unit files, by name.
fn units() -> Vec<(String, String)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/systemd/");
    let is_unit = |name: &String| name.ends_with(".service") || name.ends_with(".timer");
    let names = names(Path::new(path)).into_iter().filter(is_unit);
    names
        .map(|name| {
            let text = fs::read_to_string(format!("{path}{name}")).unwrap();
            (name, text)
        })
        .collect()
}

/// systemd ignores what it does not understand, with a warning.
#[test]
fn units_are_accepted_by_systemd_without_warning() {
    if Command::new("systemd-analyze")
        .arg("--version")
        .output()
        .is_err()
    {
        println!("\n*** SKIPPED: systemd-analyze is not installed (scripts/deps.sh --vm) ***\n");
        assert!(
            std::env::var_os("CI").is_none(),
            "systemd-analyze is missing"
        );
        return;
    }
    let dir = scratch();
    let verify = |name: &str, text: &str| {
        // The programs need not be installed.
        let lines = text.lines().map(|line| match line.split_once('=') {
            Some((key, command)) if key.starts_with("Exec") && command.contains('@') => {
                format!("{key}=/bin/true {}", command.replace('@', ""))
            }
            _ => line.to_owned(),
        });
        let text: Vec<_> = lines.collect();
        fs::write(dir.path().join(name), text.join("\n")).unwrap();
        let instance = name.replace('@', "@srv-x");
        let mut command = Command::new("systemd-analyze");
        command.args(["--man=no", "verify", &format!("./{instance}")]);
        let out = command.current_dir(dir.path()).output().unwrap();
        (out.status.success(), String::from_utf8(out.stderr).unwrap())
    };
    let units = units();
    assert!(units.len() >= 6, "{units:?}");
    // The timer names its service.
    for round in 0..2 {
        for (name, text) in &units {
            let (accepted, says) = verify(name, text);
            if round == 1 {
                assert!(accepted && says.is_empty(), "{name}: {says}");
            }
        }
    }
    let (_, says) = verify(
        "wrong@.service",
        "[Service]\nExecStart=/bin/true\nRestrictRealTime=yes\n",
    );
    assert!(
        says.contains("RestrictRealTime"),
        "a wrong key is not noticed: {says}"
    );
}

/// Each unit names a manual page, and only pages that are installed.
#[test]
fn documentation_of_units_names_pages_that_exist() {
    let pages = concat!(env!("CARGO_MANIFEST_DIR"), "/../manuals/pages");
    let pages = names(Path::new(pages));
    for (name, text) in units() {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("Documentation="));
        let line = line.unwrap_or_else(|| panic!("{name} names no page"));
        for page in line.split(' ') {
            let page = page.strip_prefix("man:").unwrap();
            let page = page.replace('(', ".").replace(')', ".md");
            assert!(pages.contains(&page), "{name}: {page}");
        }
    }
}

/// The Debian package leaves no link to a unit that it has taken away.
#[test]
fn purge_removes_links_to_units_of_the_package_only() {
    let dir = scratch();
    let wants = dir
        .path()
        .join("etc/systemd/system/multi-user.target.wants");
    fs::create_dir_all(&wants).unwrap();
    let units = "/usr/lib/systemd/system";
    for (name, target) in [
        ("pramfs@srv-fast.service", "pramfs@.service"),
        ("pramfs-metrics.service", "pramfs-metrics.service"),
        ("pramfs-kept.service", "pramfs-kept.service"),
        ("other.service", "other.service"),
    ] {
        symlink(format!("{units}/{target}"), wants.join(name)).unwrap();
    }
    // The administrator's own unit of that name.
    let own = "/etc/systemd/system/pramfs@.service";
    symlink(own, wants.join("pramfs@srv-own.service")).unwrap();
    let below = dir.path().join(units.trim_start_matches('/'));
    fs::create_dir_all(&below).unwrap();
    fs::write(below.join("pramfs-kept.service"), "").unwrap();
    for (when, left) in [("remove", 5), ("purge", 3)] {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../debian/pramfs.postrm");
        let mut script = run_script(script, when);
        let done = script.env("DPKG_ROOT", dir.path()).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        assert_eq!(names(&wants).len(), left, "{when}: {:?}", names(&wants));
    }
    let left = [
        "other.service",
        "pramfs-kept.service",
        "pramfs@srv-own.service",
    ];
    assert_eq!(names(&wants), left);
}

fn run_script(path: &str, argument: &str) -> Command {
    let mut command = Command::new("sh");
    command.args([path, argument]);
    command
}

/// A mount in a namespace of the unit would be seen by nobody else.
#[test]
fn unit_of_mount_makes_no_namespace() {
    let units = units();
    let (_, text) = units
        .iter()
        .find(|(name, _)| name == "pramfs@.service")
        .unwrap();
    let directives: Vec<_> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| Some(line.split_once('=')?.0))
        .collect();
    for namespace in [
        "BindPaths",
        "InaccessiblePaths",
        "MountAPIVFS",
        "MountFlags",
        "PrivateDevices",
        "PrivateMounts",
        "PrivateTmp",
        "PrivateUsers",
        "ProcSubset",
        "ProtectControlGroups",
        "ProtectHome",
        "ProtectKernelLogs",
        "ProtectKernelModules",
        "ProtectKernelTunables",
        "ProtectProc",
        "ProtectSystem",
        "ReadOnlyPaths",
        "ReadWritePaths",
        "RootDirectory",
        "RootImage",
        "TemporaryFileSystem",
        "DynamicUser",
        "StateDirectory",
        "ProtectClock",
    ] {
        assert!(!directives.contains(&namespace), "{namespace}");
    }
    for needed in ["Type", "Restart", "OOMScoreAdjust", "NoNewPrivileges"] {
        assert!(directives.contains(&needed), "{needed}");
    }
}

/// stat(2) of a dead mount fails, so such a condition would keep the unit from restarting.
#[test]
fn unit_of_mount_has_no_condition_on_its_mount_point() {
    let units = units();
    let (_, text) = units
        .iter()
        .find(|(name, _)| name == "pramfs@.service")
        .unwrap();
    let conditions: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("Condition") || line.starts_with("Assert"))
        .filter(|line| line.contains("%f"))
        .collect();
    assert!(conditions.is_empty(), "{conditions:?}");
}

/// The lines that decide when a unit starts.
#[test]
fn units_delay_no_boot() {
    for name in [
        "pramfs-mkfs@.service",
        "pramfs-pstore@.service",
        "pramfs-keep@.service",
    ] {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/systemd/");
        let unit = fs::read_to_string(format!("{path}{name}")).unwrap();
        for line in unit.lines().filter(|line| line.starts_with("Before=")) {
            assert_eq!(line, "Before=shutdown.target", "{name}");
        }
    }
}

#[cfg(feature = "save")]
struct Kept {
    dir: tempfile::TempDir,
    bin: PathBuf,
    region: PathBuf,
    file: PathBuf,
}

#[cfg(feature = "save")]
impl Kept {
    fn new() -> Kept {
        let dir = scratch();
        let bin = dir.path().join("bin");
        fs::create_dir(&bin).unwrap();
        symlink(PRAMFS, bin.join("pramfs")).unwrap();
        symlink(MKFS, bin.join("mkfs.pramfs")).unwrap();
        let (region, file) = (
            dir.path().join("memory/region"),
            dir.path().join("disk/saved"),
        );
        Kept {
            dir,
            bin,
            region,
            file,
        }
    }

    fn keep(&self, what: &str) -> std::process::Output {
        let mut script = script("keep-region");
        script
            .arg(what)
            .env("PRAMFS_BIN", &self.bin)
            .env("PRAMFS_SBIN", &self.bin)
            .env("PRAMFS_SAVES", self.dir.path().join("disk"))
            .env("REGION", &self.region)
            .env("FILE", &self.file)
            .env("SIZE", "16M");
        script.output().unwrap()
    }

    fn succeeds(&self, what: &str) {
        let done = self.keep(what);
        let says = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "{what}: {says}");
    }

    fn fails(&self, what: &str, says: &str) {
        let done = self.keep(what);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && said.contains(says), "{said}");
    }

    fn put(&self, name: &str) {
        let region = self.region.to_str().unwrap();
        pramfs(["put", region, "/proc/version", name]).ok();
    }

    fn has(&self, name: &str) -> bool {
        pramfs(["cat", self.region.to_str().unwrap(), name]).status == 0
    }
}

/// A start that is killed leaves no region that the next start takes for one.
#[cfg(feature = "save")]
#[test]
fn keep_region_after_interrupted_start_begins_anew() {
    let kept = Kept::new();
    kept.succeeds("start");
    kept.put("/version");
    kept.succeeds("stop");
    for interrupted in ["pramfs", "mkfs.pramfs"] {
        fs::remove_file(&kept.region).unwrap();
        let file = fs::read(&kept.file).unwrap();
        if interrupted == "mkfs.pramfs" {
            fs::remove_file(&kept.file).unwrap();
        }
        // The machine stops when the region has its length and no contents.
        let program = kept.bin.join(interrupted);
        let real = fs::read_link(&program).unwrap();
        fs::remove_file(&program).unwrap();
        let at = if interrupted == "pramfs" { "$3" } else { "$1" };
        let body = format!("truncate -s 16M \"{at}\"; kill -KILL $PPID");
        fake(&kept.bin, interrupted, &body);
        assert!(!kept.keep("start").status.success());
        assert!(!kept.region.exists());
        fs::remove_file(&program).unwrap();
        symlink(real, &program).unwrap();
        fs::write(&kept.file, file).unwrap();
        kept.succeeds("start");
        assert!(kept.has("/version"));
        assert_eq!(names(kept.region.parent().unwrap()), ["region"]);
    }
}

/// The disk with the save appears after the start has made an empty region.
#[cfg(feature = "save")]
#[test]
fn keep_region_overwrites_no_save_of_another_file_system() {
    let kept = Kept::new();
    kept.succeeds("start");
    kept.put("/precious");
    kept.succeeds("stop");
    let hidden = kept.dir.path().join("hidden");
    fs::rename(&kept.file, &hidden).unwrap();
    fs::remove_file(&kept.region).unwrap();
    kept.succeeds("start");
    fs::rename(&hidden, &kept.file).unwrap();
    let before = fs::read(&kept.file).unwrap();
    kept.fails("stop", "is the save of the file system");
    assert!(fs::read(&kept.file).unwrap() == before);
    // The next boot has everything.
    fs::remove_file(&kept.region).unwrap();
    kept.succeeds("start");
    assert!(kept.has("/precious"));
    // The save before is kept.
    kept.put("/later");
    kept.succeeds("stop");
    assert!(fs::read(kept.file.with_extension("old")).unwrap() == before);
    // Without the file, the older one is no reason for an empty region.
    fs::remove_file(&kept.region).unwrap();
    fs::remove_file(&kept.file).unwrap();
    kept.fails("start", "saved.old does");
    assert!(!kept.region.exists());
}

#[cfg(feature = "save")]
#[test]
fn keep_region_of_other_places_is_refused() {
    let mut kept = Kept::new();
    for (region, file, says) in [
        ("physaddr:1G+16M", "disk/saved", "not the absolute path"),
        ("/dev/null", "disk/saved", "not a regular file"),
        ("memory/region", "elsewhere/saved", "is not below"),
        ("memory/region", "disk/../saved", "'..'"),
    ] {
        kept.region = match region.contains(':') {
            true => region.into(),
            false => kept.dir.path().join(region),
        };
        kept.file = kept.dir.path().join(file);
        kept.fails("start", says);
        kept.fails("stop", says);
        assert_eq!(names(kept.dir.path()), ["bin"]);
    }
}

#[cfg(feature = "save")]
#[test]
fn keep_region_brings_region_over_loss_of_its_memory() {
    let kept = Kept::new();
    // The first boot makes a file system.
    kept.succeeds("start");
    kept.put("/version");
    kept.succeeds("stop");
    // A region that is there stays as it is.
    kept.put("/later");
    kept.succeeds("start");
    assert!(kept.has("/later"));
    // The next boot.
    fs::remove_file(&kept.region).unwrap();
    kept.succeeds("start");
    assert!(kept.has("/version") && !kept.has("/later"));
    // A damaged file is no reason for an empty file system.
    fs::remove_file(&kept.region).unwrap();
    fs::write(&kept.file, "damaged").unwrap();
    kept.fails("start", "too short");
    assert!(!kept.region.exists());
    assert!(!kept.keep("other").status.success());
}

/// The first line of the fstab of docs/mounting.md, as systemd reads it at boot.
#[test]
fn boot_without_device_goes_on_with_nofail_and_fails_without() {
    let generator = "/lib/systemd/system-generators/systemd-fstab-generator";
    if !Path::new(generator).exists() {
        println!("\n*** SKIPPED: {generator} is missing: no line of fstab has been read ***\n");
        assert!(std::env::var_os("CI").is_none(), "{generator} is missing");
        return;
    }
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/mounting.md");
    let page = fs::read_to_string(page).unwrap();
    let line = page
        .lines()
        .find(|line| line.starts_with("UUID=") && line.contains("fuse.pramfs"))
        .unwrap();
    assert!(line.contains(",nofail"), "{line}");
    let place = line.split_whitespace().nth(1).unwrap();
    let unit = format!("{}.mount", place.trim_start_matches('/').replace('/', "-"));
    let uuid = line.split(['=', ' ']).nth(1).unwrap();
    for (line, required) in [
        (line.to_owned(), false),
        (line.replace(",nofail", ""), true),
    ] {
        let dir = scratch();
        let fstab = dir.path().join("fstab");
        fs::write(&fstab, format!("{line}\n")).unwrap();
        let outs = ["normal", "early", "late"].map(|name| dir.path().join(name));
        for out in &outs {
            fs::create_dir(out).unwrap();
        }
        let made = Command::new(generator)
            .args(&outs)
            .env("SYSTEMD_FSTAB", &fstab)
            .output();
        let made = made.unwrap();
        assert!(made.status.success(), "{made:?}");
        let text = fs::read_to_string(outs[0].join(&unit)).unwrap();
        // systemd waits for the device of this name, which the rule of udev gives.
        let what = format!("What=/dev/disk/by-uuid/{uuid}");
        assert!(text.lines().any(|line| line == what), "{text}");
        // Without nofail, the boot waits for the mount, and ends in an emergency shell if it fails.
        let linked = |how: &str| {
            let link = outs[0].join(format!("local-fs.target.{how}")).join(&unit);
            link.symlink_metadata().is_ok()
        };
        assert_eq!((linked("requires"), linked("wants")), (required, !required));
        let before = text.lines().any(|line| line == "Before=local-fs.target");
        assert_eq!(before, required, "{text}");
    }
}
