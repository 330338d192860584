//! The privileges of the server: docs/security.md, sections 2 and 5. The other tests show
//! that a mount by root works with the kept privileges, because all their mounts use them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use pramfs_fuse::privileges::KEPT;
use pramfs_tests::mounted::{Mounted, copy_program, wait_until};
use pramfs_tests::skip::skipped;
use rustix::process::Signal;

use crate::{mounted, namespaces, unmounted};

/// A user without a name.
const SOMEBODY: u32 = 4242;

type Status = BTreeMap<String, String>;

fn status(text: &str) -> Status {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect()
}

/// Returns the `/proc` status of each thread of the server.
fn threads(mount: &Mounted) -> Vec<Status> {
    let tasks = format!("/proc/{}/task", mount.process().as_raw_nonzero());
    fs::read_dir(tasks)
        .unwrap()
        .map(|task| status(&fs::read_to_string(task.unwrap().path().join("status")).unwrap()))
        .collect()
}

fn set(status: &Status, name: &str) -> u64 {
    u64::from_str_radix(&status[name], 16).unwrap()
}

fn ours() -> Status {
    status(&fs::read_to_string("/proc/self/status").unwrap())
}

#[test]
fn root_server_keeps_three_capabilities() {
    let Some((mount, _dog)) = mounted("capabilities", "transport=fuser,threads=4") else {
        return;
    };
    fs::write(mount.at("file"), "x").unwrap();
    let kept = KEPT.iter().fold(0, |all, kept| all | kept.set.bits());
    assert_eq!(kept, 1 << 21 | 1 << 19 | 1 << 2);
    let had = ours();
    let threads = threads(&mount);
    assert!(threads.len() > 4, "{threads:?}");
    for thread in threads {
        assert_eq!(
            set(&thread, "CapPrm"),
            set(&had, "CapPrm") & kept,
            "{thread:?}"
        );
        assert_eq!(
            set(&thread, "CapEff"),
            set(&had, "CapEff") & kept,
            "{thread:?}"
        );
        assert_eq!(
            set(&thread, "CapBnd"),
            set(&had, "CapBnd") & kept,
            "{thread:?}"
        );
        assert_eq!(set(&thread, "CapInh"), 0, "{thread:?}");
        assert_eq!(set(&thread, "CapAmb"), 0, "{thread:?}");
    }
}

#[test]
fn root_server_filters_syscalls_on_all_threads() {
    let Some((mount, _dog)) = mounted("filter", "threads=4") else {
        return;
    };
    fs::write(mount.at("file"), "x").unwrap();
    let threads = threads(&mount);
    assert!(threads.len() > 4, "{threads:?}");
    for thread in threads {
        assert_eq!(thread["Seccomp"], "2", "{thread:?}");
        assert_eq!(thread["NoNewPrivs"], "1", "{thread:?}");
    }
}

/// The kernel gives the `/proc` files of such a process to root's group.
#[test]
fn root_server_is_not_dumpable() {
    let Some((mount, _dog)) = unmounted("core dump") else {
        return;
    };
    for (options, group) in [("sandbox=on", 0), ("sandbox=off", SOMEBODY)] {
        let out = mount.command().args(["-o", options]).gid(SOMEBODY).output();
        assert!(out.unwrap().status.success());
        let about = format!("/proc/{}/status", mount.process().as_raw_nonzero());
        assert_eq!(fs::metadata(about).unwrap().gid(), group, "{options}");
        mount.unmount();
    }
}

/// For debugging.
#[test]
fn sandbox_off_keeps_root_privileges() {
    let Some((mount, _dog)) = mounted("sandbox=off", "sandbox=off") else {
        return;
    };
    let had = ours();
    for thread in threads(&mount) {
        for name in ["CapPrm", "CapEff", "CapBnd", "Seccomp", "NoNewPrivs"] {
            assert_eq!(thread[name], had[name], "{name}");
        }
    }
}

#[test]
fn server_clears_caller_environment() {
    let Some((mount, _dog)) = unmounted("environment") else {
        return;
    };
    let environment = || {
        let path = format!("/proc/{}/environ", mount.process().as_raw_nonzero());
        String::from_utf8(fs::read(path).unwrap()).unwrap()
    };
    let with = |command: &mut Command| {
        command.env_clear();
        command.env("SECRET", "of the caller");
        command.env("PMEM_NO_FLUSH", "1");
        command.env("PRAMFS_LOG", "info");
    };
    let mut command = mount.command();
    with(&mut command);
    assert!(command.output().unwrap().status.success());
    assert_eq!(environment(), "PRAMFS_LOG=info\0");
    mount.unmount();
    let mut command = mount.command();
    with(command.arg("-f").stderr(Stdio::piped()));
    let server = command.spawn().unwrap();
    assert!(wait_until(|| mount.is_mounted()));
    assert_eq!(environment(), "PRAMFS_LOG=info\0");
    // It is visible before the server has negotiated, and this waits for that.
    fs::read_dir(mount.path()).unwrap();
    mount.unmount();
    let out = server.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{}: {said}", out.status);
}

/// CAP_DAC_READ_SEARCH: a mount by root in the home directory of another user.
#[test]
fn sigterm_unmounts_below_private_directory() {
    let Some((mount, _dog)) = unmounted("a private directory") else {
        return;
    };
    let home = mount.path().parent().unwrap().to_owned();
    chown(&home, Some(SOMEBODY), None).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
    mount.mount("");
    fs::write(mount.at("file"), "x").unwrap();
    mount.signal(Signal::TERM);
    assert!(wait_until(|| !mount.is_mounted()));
    mount.wait_for_end();
}

/// Runs a script in its own mount namespace, in which each process sees only the processes
/// of its user. (Members of one group would see all; that is root's group unless `gid=`
/// names another one.)
fn under_hidepid(script: &str) -> Output {
    let mut unshare = Command::new("unshare");
    unshare
        .args(["--mount", "--propagation", "private", "sh", "-ec"])
        .arg(format!(
            "mount -t proc -o hidepid=2,gid=12345 proc /proc\n{script}"
        ));
    namespaces::output(&mut unshare)
}

/// CAP_SYS_PTRACE: only a member of the file's group keeps its sgid bit, so the server reads
/// the groups of the caller.
#[test]
fn caller_groups_are_known_under_hidepid() {
    let Some((mount, _dog)) = unmounted("hidepid") else {
        return;
    };
    let script = |groups: &str| {
        format!(
            "{program} {region} {mnt}
             trap 'umount {mnt}' EXIT
             chmod 755 {mnt}
             : > {mnt}/file
             chown {SOMEBODY}:777 {mnt}/file
             chmod 660 {mnt}/file
             setpriv --reuid {SOMEBODY} --regid {SOMEBODY} {groups} chmod 2770 {mnt}/file
             stat -c %a {mnt}/file
             rm {mnt}/file",
            program = crate::program().display(),
            region = mount.region().display(),
            mnt = mount.path().display(),
        )
    };
    for (groups, mode) in [("--groups 777", "2770\n"), ("--clear-groups", "770\n")] {
        let out = under_hidepid(&script(groups));
        let said = String::from_utf8_lossy(&out.stdout);
        assert_eq!(said, mode, "{out:?}");
        mount.wait_for_end();
    }
}

/// As [`caller_groups_are_known_under_hidepid`], for capabilities, which
/// count only in the user namespace of the server.
#[test]
fn caller_capabilities_are_known_under_hidepid() {
    let Some((mount, _dog)) = unmounted("hidepid") else {
        return;
    };
    let out = under_hidepid(&format!(
        "{program} {region} {mnt}
         trap 'umount {mnt}' EXIT
         : > {mnt}/file
         chown {SOMEBODY} {mnt}/file
         chmod 755 {mnt}
         setpriv --reuid {SOMEBODY} --regid {SOMEBODY} --clear-groups chattr +i {mnt}/file && exit 3
         setpriv --reuid {SOMEBODY} --regid {SOMEBODY} --clear-groups --inh-caps +linux_immutable --ambient-caps +linux_immutable chattr +i {mnt}/file
         lsattr {mnt}/file
         chattr -i {mnt}/file",
        program = crate::program().display(),
        region = mount.region().display(),
        mnt = mount.path().display(),
    ));
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && said.contains("i---"), "{out:?}");
    mount.wait_for_end();
}

/// Covers the features with the most system calls besides requests: own descriptors of
/// threads, mappings, space of the host, xattrs, discarding, remounts, and a medium that
/// needs msync.
#[test]
fn mount_of_disk_file_works_under_filter() {
    let Some((_, _dog)) = unmounted("a file on a disk") else {
        return;
    };
    let base = std::env::temp_dir();
    let options = pramfs::format::FormatOptions::default();
    let mount = Mounted::formatted_in(&base, crate::program(), 64 << 20, &options);
    mount.mount("discard,threads=3");
    let path = mount.at("file");
    fs::write(&path, vec![7; 4 << 20]).unwrap();
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let flags = rustix::fs::FallocateFlags::empty();
    rustix::fs::fallocate(&file, flags, 4 << 20, 1 << 20).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::fsetxattr(&file, "user.name", b"value", flags).unwrap();
    file.sync_all().unwrap();
    drop(file);
    fs::remove_file(&path).unwrap();
    fs::write(&path, "new").unwrap();
    let trimmed = Command::new("fstrim").arg(mount.path()).status().unwrap();
    assert!(trimmed.success());
    for options in ["remount,ro", "remount,rw", "remount,noatime"] {
        let out = mount.run(["-o", options]);
        assert!(out.status.success(), "{options}: {out:?}");
    }
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(threads(&mount)[0]["Seccomp"], "2");
    mount.signal(Signal::TERM);
    mount.wait_for_end();
    assert!(!mount.is_mounted());
}

fn expose(mount: &Mounted, owner: u32, mode: u32) {
    chown(mount.region(), Some(owner), None).unwrap();
    fs::set_permissions(mount.region(), fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn region_writable_by_others_mounts_nosuid_nodev() {
    let Some((mount, _dog)) = unmounted("a region of others") else {
        return;
    };
    for (owner, mode, says) in [
        (SOMEBODY, 0o600, "belongs to user 4242"),
        (0, 0o660, "its group"),
        (0, 0o666, "everybody"),
    ] {
        expose(&mount, owner, mode);
        let out = mount.run(["-o", "defaults"]);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{out:?}");
        assert!(
            said.contains(says) && said.contains("nosuid,nodev"),
            "{said}"
        );
        let line = mount.mounts_line().unwrap();
        assert!(line.contains("nosuid") && line.contains("nodev"), "{line}");
        mount.unmount();
        // If the options are given, no message is needed.
        let out = mount.run(["-o", "nosuid,nodev"]);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && !said.contains("nosuid"), "{out:?}");
        mount.unmount();
    }
    expose(&mount, 0, 0o644);
    mount.mount("");
    let line = mount.mounts_line().unwrap();
    assert!(
        !line.contains("nosuid") && !line.contains("nodev"),
        "{line}"
    );
}

#[test]
fn suid_or_dev_on_region_writable_by_others_fails() {
    let Some((mount, _dog)) = unmounted("suid of a region of others") else {
        return;
    };
    expose(&mount, SOMEBODY, 0o600);
    for options in ["suid", "dev", "rw,suid,dev"] {
        let out = mount.run(["-o", options]);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(32), "{out:?}");
        assert!(said.contains("belongs to user 4242"), "{said}");
        assert!(said.contains("leave the option out"), "{said}");
        assert!(!mount.is_mounted());
    }
}

/// The attack: another user creates the region's file first, and writes a set-user-ID
/// program of root into it.
#[test]
fn suid_program_in_foreign_region_runs_without_root() {
    let Some((mount, _dog)) = unmounted("the attack") else {
        return;
    };
    expose(&mount, SOMEBODY, 0o600);
    mount.mount("");
    let tool = mount.at("id");
    copy_program("/usr/bin/id", &tool);
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o4755)).unwrap();
    fs::set_permissions(mount.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let parent = mount.path().parent().unwrap().to_owned();
    fs::set_permissions(parent, fs::Permissions::from_mode(0o755)).unwrap();
    let run = || {
        let mut command = Command::new(&tool);
        let out = command.arg("-u").uid(SOMEBODY).gid(SOMEBODY).output();
        String::from_utf8(out.unwrap().stdout).unwrap()
    };
    assert_eq!(run(), "4242\n");
    mount.unmount();
    // In a region that only root may write, the program runs as root.
    expose(&mount, 0, 0o600);
    mount.mount("");
    assert_eq!(run(), "0\n");
}

/// The server of an ordinary user drops no privileges, because fusermount3 unmounts for it.
/// But it has a clean environment and does not search PATH for fusermount3.
#[test]
fn user_server_unmounts_without_searching_path() {
    let Some((mount, _dog)) = unmounted("an ordinary user") else {
        return;
    };
    if !Path::new("/usr/bin/fusermount3").exists() {
        return skipped("no fusermount3");
    }
    // A user with a name, which fusermount3 needs.
    const NOBODY: u32 = 65_534;
    let dir = mount.path().parent().unwrap().to_owned();
    for path in [&dir, &mount.path(), &mount.region()] {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let at = |name: &str| dir.join(name);
    copy_program(crate::program(), at("mount.pramfs"));
    fs::write(
        at("fusermount3"),
        format!("#!/bin/sh\n: > {}\n", at("called").display()),
    )
    .unwrap();
    for program in ["mount.pramfs", "fusermount3"] {
        fs::set_permissions(at(program), fs::Permissions::from_mode(0o755)).unwrap();
    }
    // /dev/fuse accessible to all users, as on other machines.
    let script = format!(
        "mount -t tmpfs none /mnt
         mknod /mnt/fuse c 10 229
         chmod 666 /mnt/fuse
         mount --bind /mnt/fuse /dev/fuse
         export PATH={dir}:$PATH SECRET=x
         setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups {dir}/mount.pramfs {dir}/region {dir}/mnt
         pid=$(pgrep -f -x '{dir}/mount.pramfs --serve-in-background {dir}/region {dir}/mnt')
         tr '\\0' '\\n' < /proc/$pid/environ
         grep -E 'NoNewPrivs|Seccomp:' /proc/$pid/status
         kill -TERM $pid
         for i in $(seq 500); do kill -0 $pid 2>/dev/null || break; sleep 0.01; done
         ! grep {dir}/mnt /proc/self/mountinfo",
        dir = dir.display(),
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--propagation", "private", "sh", "-ec", &script]);
    let out = namespaces::output(&mut unshare);
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{out:?}");
    assert!(!said.contains("SECRET") && !said.contains("PATH"), "{said}");
    assert!(
        said.contains("NoNewPrivs:\t0") && said.contains("Seccomp:\t0"),
        "{said}"
    );
    assert!(!at("called").exists(), "PATH was searched");
}
