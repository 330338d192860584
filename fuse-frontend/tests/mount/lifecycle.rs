//! The start and the end of a mount.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use pramfs::format::FormatOptions;
use pramfs::pmem::{Persistence, RegionOptions, SourceKind};
use pramfs_tests::mounted::{Mounted, kernel_opens, unmount_when_free, wait_until};
use pramfs_tests::watchdog::Watchdog;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use rustix::mount::MountFlags;
use rustix::process::Signal;

use crate::{mounted, unmounted};

#[test]
fn background_mount_is_live_when_command_returns() {
    let Some((mount, _dog)) = unmounted("background") else {
        return;
    };
    let out = mount.run(["-v"]);
    assert!(out.status.success());
    assert!(out.stdout.is_empty());
    fs::write(mount.at("file"), "at once").unwrap();

    let said = String::from_utf8(out.stderr).unwrap();
    for part in [
        "medium: tmpfs",
        "VOLATILE",
        "durability: power",
        "recovery: none needed",
    ] {
        assert!(said.contains(part), "{part} in: {said}");
    }
    let line = mount.mounts_line().unwrap();
    let fields: Vec<&str> = line.split(' ').collect();
    assert_eq!(fields[0], mount.region().to_str().unwrap());
    assert_eq!(fields[2], "fuse.pramfs");
    for option in ["rw", "default_permissions", "allow_other"] {
        assert!(
            fields[3].split(',').any(|o| o == option),
            "{option} in {line}"
        );
    }
    mount.process();
}

/// Without `-v`, one line warns that the medium is volatile.
#[test]
fn mount_without_verbose_prints_only_warnings() {
    let Some((mount, _dog)) = unmounted("quiet") else {
        return;
    };
    let out = mount.run::<&str>([]);
    assert!(out.status.success() && out.stdout.is_empty());
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.starts_with("mount.pramfs: tmpfs is volatile memory"),
        "{said}"
    );
}

#[test]
fn server_detaches_from_terminal() {
    let Some((mount, _dog)) = mounted("terminal", "") else {
        return;
    };
    let pid = mount.process().as_raw_nonzero();
    for fd in 0..3 {
        let target = fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap();
        assert_eq!(target.to_str(), Some("/dev/null"), "descriptor {fd}");
    }
    assert_eq!(
        fs::read_link(format!("/proc/{pid}/cwd")).unwrap().to_str(),
        Some("/")
    );
    assert_eq!(
        rustix::process::getsid(Some(mount.process())).unwrap(),
        mount.process()
    );
}

#[test]
fn server_inherits_no_descriptors() {
    let Some((mount, _dog)) = unmounted("descriptors") else {
        return;
    };
    let lock = mount.path().with_file_name("lock");
    let status = Command::new("sh")
        .args(["-c", r#"exec 7>"$0" 9>"$0" && exec "$@""#])
        .arg(&lock)
        .arg(crate::program())
        .args([mount.region(), mount.path()])
        .stderr(Stdio::null())
        .status();
    assert!(status.unwrap().success());
    let pid = mount.process().as_raw_nonzero();
    for fd in fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let fd = fd.unwrap().path();
        // Some are closed meanwhile.
        if let Ok(target) = fs::read_link(&fd) {
            assert_ne!(target, lock, "{}", fd.display());
        }
    }
}

/// The parent exits before the server reports.
#[test]
fn server_detaches_when_parent_is_gone() {
    let Some((mount, _dog)) = unmounted("no listener") else {
        return;
    };
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut server = Command::new(crate::program())
        .arg("--serve-in-background")
        .args([mount.region(), mount.path()])
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let null = |fd| {
        fs::read_link(format!("/proc/{}/fd/{fd}", server.id()))
            .is_ok_and(|target| target.to_str() == Some("/dev/null"))
    };
    assert!(wait_until(|| mount.is_mounted() && null(1) && null(2)));
    fs::write(mount.at("file"), "x").unwrap();
    mount.unmount();
    server.wait().unwrap();
}

#[test]
fn umount_then_mount_succeeds_at_once() {
    let Some((mount, _dog)) = mounted("umount", "") else {
        return;
    };
    for round in 0..5 {
        fs::write(mount.at(format!("file{round}")), round.to_string()).unwrap();
        unmount_when_free(&mount.path());
        // Does not wait for the server; the next mount does.
        mount.mount("");
    }
    for round in 0..5 {
        assert_eq!(
            fs::read(mount.at(format!("file{round}"))).unwrap(),
            round.to_string().as_bytes()
        );
    }
    mount.unmount();
    let out = mount.run(["-v"]);
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(said.contains("the last unmount was clean"), "{said}");
}

#[test]
fn fusermount_unmounts_region() {
    let Some((mount, _dog)) = mounted("fusermount3 -u", "") else {
        return;
    };
    let Ok(status) = Command::new("fusermount3")
        .arg("-u")
        .arg(mount.path())
        .status()
    else {
        pramfs_tests::skip::skipped("no fusermount3");
        return;
    };
    assert!(status.success());
    assert!(!mount.is_mounted());
    mount.wait_for_end();
}

#[test]
fn sigterm_and_sigint_unmount_cleanly() {
    let Some((mount, _dog)) = unmounted("SIGTERM") else {
        return;
    };
    for signal in [Signal::TERM, Signal::INT] {
        mount.mount("");
        fs::write(mount.at("file"), "kept").unwrap();
        mount.signal(signal);
        mount.wait_for_end();
        assert!(!mount.is_mounted());
        let said = String::from_utf8(mount.run(["-v"]).stderr).unwrap();
        assert!(
            said.contains("the last unmount was clean"),
            "{signal:?}: {said}"
        );
        assert_eq!(fs::read(mount.at("file")).unwrap(), b"kept");
        mount.unmount();
    }
}

#[test]
fn sigterm_ends_busy_mount() {
    let Some((mount, _dog)) = mounted("SIGTERM while in use", "") else {
        return;
    };
    let mut file = File::create_new(mount.at("file")).unwrap();
    file.write_all(b"kept").unwrap();
    mount.signal(Signal::TERM);
    mount.wait_for_end();
    assert!(!mount.is_mounted());
    assert!(
        file.write_all(b"lost").is_err(),
        "the connection is aborted"
    );
    drop(file);
    mount.mount("");
    assert_eq!(fs::read(mount.at("file")).unwrap(), b"kept");
}

#[test]
fn server_ignores_sighup() {
    let Some((mount, _dog)) = mounted("SIGHUP", "") else {
        return;
    };
    mount.signal(Signal::HUP);
    std::thread::sleep(std::time::Duration::from_millis(50));
    fs::write(mount.at("file"), "still there").unwrap();
}

/// The default action of each of these signals ends a process.
#[test]
fn server_ignores_other_signals() {
    let Some((mount, _dog)) = mounted("ignored signals", "") else {
        return;
    };
    let server = mount.process();
    for signal in [
        Signal::USR1,
        Signal::USR2,
        Signal::ALARM,
        Signal::QUIT,
        Signal::VTALARM,
        Signal::PROF,
        Signal::IO,
        Signal::POWER,
        Signal::XCPU,
        Signal::XFSZ,
        Signal::STKFLT,
    ] {
        mount.signal(signal);
        // A process with a fatal signal pending would not answer.
        fs::write(mount.at("file"), format!("{signal:?}")).unwrap();
        assert_eq!(mount.process(), server, "{signal:?}");
    }
}

/// -999 is the lowest safe score: at -1000 a memory cgroup with only the server would hang.
#[test]
fn server_lowers_its_oom_score() {
    let score = |process: &str| {
        let path = format!("/proc/{process}/oom_score_adj");
        fs::read_to_string(path).unwrap().trim().to_owned()
    };
    let Some((mount, _dog)) = mounted("oom_score_adj", "") else {
        return;
    };
    // This needs CAP_SYS_RESOURCE, which a container may lack.
    let may = Command::new("sh")
        .args(["-c", "echo -999 >/proc/self/oom_score_adj"])
        .stderr(Stdio::null())
        .status()
        .unwrap();
    let expected = match &*score("self") {
        "0" if may.success() => "-999".to_owned(),
        settled => {
            pramfs_tests::skip::skipped("the OOM score cannot be lowered, or is already set");
            settled.to_owned()
        }
    };
    let server = mount.process().as_raw_nonzero().to_string();
    assert_eq!(score(&server), expected);
    mount.unmount();
    // A score that is already set stays.
    let status = Command::new("choom")
        .args(["-n", "300", "--"])
        .arg(crate::program())
        .args([mount.region(), mount.path()])
        .stderr(Stdio::null())
        .status();
    match status {
        Ok(status) => assert!(status.success()),
        Err(_) => return pramfs_tests::skip::skipped("no choom"),
    }
    let server = mount.process().as_raw_nonzero().to_string();
    assert_eq!(score(&server), "300");
}

/// These lines are logged by default, without `-v`.
#[test]
fn unmounts_and_recoveries_are_logged() {
    let Some((mount, _dog)) = mounted("log", "") else {
        return;
    };
    fs::write(mount.at("file"), "x").unwrap();
    mount.crash();
    mount.detach();
    let mut command = mount.command();
    command.env_remove("PRAMFS_LOG");
    let child = command.arg("-f").stderr(Stdio::piped()).spawn().unwrap();
    assert!(wait_until(|| mount.is_mounted()));
    assert_eq!(fs::read(mount.at("file")).unwrap(), b"x");
    mount.unmount();
    let out = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    let region = mount.region();
    for part in [
        format!(
            "{}: the last mount did not end with an unmount",
            region.display()
        ),
        format!(
            "{}: unmounted from {}",
            region.display(),
            mount.path().display()
        ),
    ] {
        assert!(said.contains(&part), "{part} in: {said}");
    }
}

#[test]
fn foreground_mount_serves_until_unmounted() {
    let Some((mount, _dog)) = unmounted("foreground") else {
        return;
    };
    let child = mount
        .command()
        .arg("-f")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    assert!(wait_until(|| mount.is_mounted()));
    fs::write(mount.at("file"), "x").unwrap();
    mount.signal(Signal::TERM);
    let out = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{}: {said}", out.status);
    assert!(
        said.contains("read-write") && said.contains("VOLATILE"),
        "{said}"
    );
    assert!(!mount.is_mounted());
}

#[test]
fn read_only_mount_refuses_changes() {
    let Some((mount, _dog)) = mounted("ro", "") else {
        return;
    };
    fs::write(mount.at("file"), "kept").unwrap();
    mount.unmount();
    let before = fs::read(mount.region()).unwrap();
    mount.mount("ro");
    assert!(mount.mounts_line().unwrap().contains(" ro,"));
    assert_eq!(fs::read(mount.at("file")).unwrap(), b"kept");
    for failed in [
        fs::write(mount.at("file"), "x"),
        fs::write(mount.at("other"), "x"),
        fs::remove_file(mount.at("file")),
        fs::create_dir(mount.at("dir")),
    ] {
        assert_eq!(failed.unwrap_err().raw_os_error(), Some(libc::EROFS));
    }
    mount.unmount();
    assert!(
        before == fs::read(mount.region()).unwrap(),
        "not one byte of the region has changed"
    );
}

#[test]
fn remount_changes_only_named_flags() {
    let Some((mount, _dog)) = mounted("remount", "nosuid") else {
        return;
    };
    assert!(mount.run(["-o", "remount,ro,cache=none"]).status.success());
    let line = mount.mounts_line().unwrap();
    assert!(line.contains(" ro,nosuid,"), "{line}");
    let error = fs::write(mount.at("file"), "x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    assert!(mount.run(["-o", "remount,rw,suid"]).status.success());
    assert!(!mount.mounts_line().unwrap().contains("nosuid"));
    fs::write(mount.at("file"), "x").unwrap();
    mount.unmount();
    let out = mount.run(["-o", "remount,ro"]);
    assert_eq!(out.status.code(), Some(32));
    assert!(String::from_utf8_lossy(&out.stderr).contains("nothing to remount"));
}

#[test]
fn remount_changes_atime_policy() {
    let Some((mount, _dog)) = mounted("access times", "relatime") else {
        return;
    };
    let (file, dir) = (mount.at("file"), mount.at("dir"));
    fs::write(&file, "x").unwrap();
    fs::create_dir(&dir).unwrap();
    // Tells whether a read sets the atime: when it is due, and a second time.
    let set = |path: &Path, is_dir: bool| {
        let old = Timespec {
            tv_sec: 1_000_000_000,
            tv_nsec: 0,
        };
        let times = Timestamps {
            last_access: old,
            last_modification: old,
        };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::empty()).unwrap();
        [(); 2].map(|()| {
            let atime = || {
                let stat = rustix::fs::stat(path).unwrap();
                (stat.st_atime, stat.st_atime_nsec)
            };
            let before = atime();
            // Longer than a clock tick; within one tick no second update is due.
            std::thread::sleep(Duration::from_millis(30));
            if is_dir {
                assert_eq!(fs::read_dir(path).unwrap().count(), 0);
            } else {
                assert_eq!(fs::read(path).unwrap(), b"x");
            }
            atime() != before
        })
    };
    const NEVER: [bool; 2] = [false, false];
    const ONCE: [bool; 2] = [true, false];
    // A remount drops unused inodes and their pages. Without an open, the server does not see a
    // read from the page cache.
    let each = [true, !kernel_opens()];
    for (options, shown, of_file, of_dir) in [
        ("noatime", "rw,noatime,", NEVER, NEVER),
        ("ro", "ro,noatime,", NEVER, NEVER),
        ("rw,relatime", "rw,relatime,", ONCE, ONCE),
        ("nodiratime", "rw,nodiratime,relatime,", ONCE, NEVER),
        ("strictatime", "rw,nodiratime,", each, NEVER),
        ("ro,noatime,diratime", "ro,noatime,", NEVER, NEVER),
        // While the mount is read-only, the server cannot be told the policy.
        ("relatime", "ro,relatime,", NEVER, NEVER),
        ("rw", "rw,relatime,", ONCE, ONCE),
    ] {
        let out = mount.run(["-o", &format!("remount,{options}")]);
        assert!(out.status.success(), "{options}: {out:?}");
        let line = mount.mounts_line().unwrap();
        assert!(line.contains(&format!(" {shown}")), "{options}: {line}");
        if shown.starts_with("rw") {
            assert_eq!(set(&file, false), of_file, "{options}: the file");
            assert_eq!(set(&dir, true), of_dir, "{options}: the directory");
        }
    }
}

#[test]
fn remount_changes_nosymfollow() {
    let Some((mount, _dog)) = mounted("nosymfollow", "nosymfollow") else {
        return;
    };
    fs::write(mount.at("file"), "x").unwrap();
    std::os::unix::fs::symlink("file", mount.at("link")).unwrap();
    let follow = || fs::read(mount.at("link")).map_err(|e| e.raw_os_error());
    assert_eq!(follow(), Err(Some(libc::ELOOP)));
    // Unnamed flags stay.
    assert!(mount.run(["-o", "remount,noatime"]).status.success());
    assert_eq!(follow(), Err(Some(libc::ELOOP)));
    assert!(mount.run(["-o", "remount,symfollow"]).status.success());
    assert_eq!(follow(), Ok(b"x".to_vec()));
}

/// The kernel answers syncfs(2) itself and reports success.
#[test]
fn fsync_reaches_server_but_syncfs_does_not() {
    if !pramfs_tests::mounted::available("syncfs") {
        return;
    }
    let disk = Path::new(env!("CARGO_TARGET_TMPDIR"));
    if pramfs_medium::pmem::probe(disk).unwrap().kind != Some(SourceKind::File) {
        pramfs_tests::skip::skipped(format_args!("{} is no disk: syncfs", disk.display()));
        return;
    }
    let _dog = Watchdog::new("syncfs", Duration::from_secs(60));
    let mount = Mounted::formatted_in(disk, crate::program(), 64 << 20, &FormatOptions::default());
    mount.mount("durability=process");
    // Data stored by the server but not yet on the disk.
    let dirty = || {
        let path = format!("/proc/{}/smaps", mount.process().as_raw_nonzero());
        let region = mount.region();
        let mut of_region = false;
        let mut kib = 0;
        for line in fs::read_to_string(path).unwrap().lines() {
            let mut words = line.split_whitespace();
            let first = words.next().unwrap_or_default();
            if !first.ends_with(':') {
                of_region = line.ends_with(region.to_str().unwrap());
            } else if of_region && first.ends_with("_Dirty:") {
                kib += words.next().unwrap().parse::<u64>().unwrap();
            }
        }
        kib
    };
    let file = File::create(mount.at("file")).unwrap();
    // The kernel may write it back by itself: of three rounds, one is left alone.
    let rounds = [0, 1, 2].map(|round| {
        file.write_all_at(&vec![0x5a + round; 4 << 20], 0).unwrap();
        let written = dirty();
        rustix::fs::syncfs(File::open(mount.path()).unwrap()).unwrap();
        (written, dirty())
    });
    assert!(
        rounds.iter().any(|(written, _)| *written >= 4 << 10),
        "{rounds:?} KiB"
    );
    assert!(
        rounds.iter().any(|(_, left)| *left >= 4 << 10),
        "syncfs now reaches the server: update the documentation"
    );
    file.sync_all().unwrap();
    assert!(dirty() < 1 << 10, "{} KiB", dirty());
}

/// A region is only as durable as the medium below its file system.
#[test]
fn nested_region_inherits_volatility_of_medium() {
    let Some((mount, _dog)) = mounted("volatile below", "") else {
        return;
    };
    let inner = mount.at("region");
    drop(RegionOptions::new().create(&inner, 1 << 20).unwrap());
    let report = pramfs_medium::pmem::probe(&inner).unwrap();
    assert_eq!(report.kind, Some(SourceKind::File));
    assert_eq!(report.persistence, Some(Persistence::Machine));
    // The same for the file behind a loop device.
    let device = Command::new("losetup")
        .args(["--find", "--show"])
        .arg(&inner)
        .output()
        .unwrap();
    assert!(device.status.success(), "{device:?}");
    let device = String::from_utf8(device.stdout).unwrap();
    let device = device.trim();
    let report = pramfs_medium::pmem::probe(device);
    let detached = Command::new("losetup").args(["-d", device]).status();
    assert!(detached.unwrap().success());
    assert_eq!(report.unwrap().persistence, Some(Persistence::Machine));
}

/// Type `fuse` without subtype, for programs that know no other type.
#[test]
fn remount_of_plain_fuse_type_succeeds() {
    let Some((mount, _dog)) = mounted("plain type", "subtype=") else {
        return;
    };
    assert!(mount.mounts_line().unwrap().contains(" fuse rw,"));
    let out = mount.run(["-o", "subtype=,remount,ro"]);
    assert!(out.status.success(), "{out:?}");
    assert!(mount.mounts_line().unwrap().contains(" ro,"));
    assert!(mount.run(["-o", "subtype=,remount,rw"]).status.success());
    fs::write(mount.at("file"), "x").unwrap();
    let second = mount.path().with_file_name("second");
    fs::create_dir(&second).unwrap();
    let out = Command::new(crate::program())
        .args(["-o", "subtype="])
        .args([mount.region(), second.clone()])
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
    assert_eq!(fs::read(second.join("file")).unwrap(), b"x");
    unmount_when_free(&second);
}

/// A mount, even a read-only one, recovers the medium after a crash. A mount that becomes
/// writable works like one mounted read-write.
#[test]
fn remount_rw_makes_read_only_mount_writable() {
    let Some((mount, _dog)) = mounted("ro, then rw", "") else {
        return;
    };
    fs::write(mount.at("kept"), "before").unwrap();
    let open = fs::File::create(mount.at("gone")).unwrap();
    open.set_len(1 << 20).unwrap();
    fs::remove_file(mount.at("gone")).unwrap();
    mount.crash();
    drop(open);
    mount.mount("ro");
    assert_eq!(fs::read(mount.at("kept")).unwrap(), b"before");
    let error = fs::write(mount.at("kept"), "x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    // A file opened before the remount stays valid.
    let kept = fs::File::open(mount.at("kept")).unwrap();
    let out = mount.run(["-o", "remount,rw"]);
    assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
    assert!(mount.mounts_line().unwrap().contains(" rw,"));
    fs::write(mount.at("kept"), "behind").unwrap();
    fs::write(mount.at("new"), "made").unwrap();
    assert_eq!(std::io::read_to_string(kept).unwrap(), "behind");
    mount.crash();
    mount.mount("ro,norecovery");
    assert_eq!(fs::read(mount.at("new")).unwrap(), b"made");
    mount.unmount();
    let region = RegionOptions::new().open(mount.region()).unwrap();
    let fs = pramfs::inode::Fs::open(region, pramfs::MountOptions::default()).unwrap();
    assert!(
        !fs.recovery().was_clean,
        "norecovery has changed the medium"
    );
    fs.close().unwrap();
    let region = RegionOptions::new().open(mount.region()).unwrap();
    let report = pramfs_fsck::check(&region, &Default::default());
    assert!(report.is_clean(), "{report}");
}

/// Other processes may read a region that is mounted read-only. It can become writable when
/// they have closed it.
#[test]
fn remount_rw_fails_while_region_has_readers() {
    let Some((mount, _dog)) = mounted("rw beside a reader", "ro") else {
        return;
    };
    let reader = RegionOptions::new()
        .read_only(true)
        .open(mount.region())
        .unwrap();
    let out = mount.run(["-o", "remount,rw"]);
    assert_eq!(out.status.code(), Some(32));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("open for reading"), "{said}");
    assert!(mount.mounts_line().unwrap().contains(" ro,"));
    drop(reader);
    // A child that is being started has a copy of the descriptor.
    assert!(wait_until(|| {
        mount.run(["-o", "remount,rw"]).status.success()
    }));
    fs::write(mount.at("file"), "x").unwrap();
    assert!(
        RegionOptions::new()
            .read_only(true)
            .open(mount.region())
            .is_err(),
        "a read-write mount holds the region exclusively"
    );
}

/// With norecovery the server has opened the region read-only.
#[test]
fn remount_rw_of_norecovery_mount_fails() {
    let Some((mount, _dog)) = mounted("remount,rw of ro", "ro,norecovery") else {
        return;
    };
    let before = fs::metadata(mount.path()).unwrap().ctime_nsec();
    let out = mount.run(["-o", "remount,rw"]);
    assert_eq!(out.status.code(), Some(32));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("mount it again"), "{said}");
    assert!(mount.mounts_line().unwrap().contains(" ro,"));
    mount.unmount();
    // On a writable mount, the remount changes nothing.
    mount.mount("");
    assert!(mount.run(["-o", "remount,rw"]).status.success());
    assert_eq!(fs::metadata(mount.path()).unwrap().ctime_nsec(), before);
}

#[test]
fn mount_options_reach_kernel() {
    let Some((mount, _dog)) = mounted(
        "options",
        "nodev,nosuid,noexec,nosymfollow,noatime,sync,dirsync,noallow_other,fsname=a pool",
    ) else {
        return;
    };
    let line = mount.mounts_line().unwrap();
    assert!(line.starts_with("a\\040pool "), "{line}");
    for option in [
        "nodev",
        "nosuid",
        "noexec",
        "nosymfollow",
        "noatime",
        "sync",
        "dirsync",
    ] {
        assert!(
            line.split([' ', ',']).any(|o| o == option),
            "{option} in {line}"
        );
    }
    assert!(!line.contains("allow_other"));
}

#[test]
fn help_version_and_fake_do_not_mount() {
    let Some((mount, _dog)) = unmounted("help") else {
        return;
    };
    let help = Command::new(crate::program())
        .arg("--help")
        .output()
        .unwrap();
    assert!(help.status.success());
    assert!(String::from_utf8_lossy(&help.stdout).contains("cache=auto|writeback|none"));
    assert!(mount.run(["--fake"]).status.success());
    assert!(!mount.is_mounted());
}

#[test]
fn unmount_leaves_stacked_mounts_alone() {
    let Some((mount, _dog)) = unmounted("stacked mounts") else {
        return;
    };
    let tmpfs = || {
        let flags = MountFlags::empty();
        rustix::mount::mount("under", mount.path(), "tmpfs", flags, None).unwrap();
    };
    let top = || mount.mounts_line().unwrap();
    tmpfs();
    mount.mount("");
    mount.unmount();
    assert!(top().starts_with("under "), "{}", top());

    mount.mount("");
    let pid = mount.process();
    tmpfs();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    mount.wait_for_end();
    assert!(top().starts_with("under "), "{}", top());
    unmount_when_free(&mount.path());
    // The covered mount could only be aborted; the next mount clears it.
    assert!(top().contains(" fuse.pramfs "), "{}", top());
    mount.mount("");
    fs::write(mount.at("file"), "").unwrap();
}
