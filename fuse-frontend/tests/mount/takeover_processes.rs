//! The processes of `takeover=on`: how they start, what they hold, and how one replaces another.

use std::fs::{self, File};
use std::io::{self, Write};
use std::time::Duration;

use pramfs_tests::mounted::{copy_program, wait_until};
use rustix::process::{Pid, Signal, kill_process};

use crate::takeover::{ON, kill, many_deaths, other_server};
use crate::{mounted, unmounted};

#[test]
fn takeover_with_excluded_options_is_refused() {
    let Some((mount, _dog)) = unmounted("refused options") else {
        return;
    };
    for other in [
        "transport=uring",
        "transport=fuser",
        "direct=owner",
        "cache=writeback",
    ] {
        let options = format!("{ON},{other}");
        let out = mount.run(["-o", &options]);
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(1), "{said}");
        let pair = format!("takeover=on cannot be combined with {other}: ");
        assert!(said.contains(&pair), "{said}");
    }
    mount.mount("transport=auto,cache=auto,direct=off,takeover=on");
    let serving = |task: io::Result<fs::DirEntry>| {
        let name = fs::read_to_string(task.unwrap().path().join("comm"));
        name.is_ok_and(|name| name.starts_with("fuse-dev-"))
    };
    let tasks = format!("/proc/{}/task", mount.process().as_raw_nonzero());
    assert!(wait_until(|| fs::read_dir(&tasks).unwrap().any(serving)));
    mount.unmount();
}

#[test]
fn failed_first_mount_is_reported_as_without_takeover() {
    let Some((mount, _dog)) = unmounted("failed mount") else {
        return;
    };
    let fails = |options: &str, foreground: bool| {
        let mut args = vec!["-o", options];
        if foreground {
            args.push("-f");
        }
        let out = mount.run(args);
        assert!(mount.processes().is_empty() && !mount.is_mounted());
        let said = String::from_utf8(out.stderr).unwrap();
        let lines = said
            .lines()
            .filter(|line| line.starts_with("mount.pramfs:"));
        (
            out.status.code(),
            lines.map(str::to_owned).collect::<Vec<_>>(),
        )
    };
    let same = || {
        for foreground in [false, true] {
            let without = fails("transport=dev,cache=auto,direct=off", foreground);
            assert_eq!(fails(ON, foreground), without);
            assert!(without.0 == Some(32) && without.1.len() == 1, "{without:?}");
        }
    };
    let blocked = mount.at("entry");
    fs::write(&blocked, "").unwrap();
    same();
    fs::remove_file(&blocked).unwrap();
    let held = File::open(mount.region()).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    same();
    // A child that is being started has a copy of the descriptor.
    rustix::fs::flock(&held, rustix::fs::FlockOperation::Unlock).unwrap();
    drop(held);
    fs::write(mount.region(), vec![7; 1 << 20]).unwrap();
    same();
    fs::remove_file(mount.region()).unwrap();
    same();
}

fn descriptors(pid: Pid) -> Vec<String> {
    let path = format!("/proc/{}/fd", pid.as_raw_nonzero());
    let target = |entry: io::Result<fs::DirEntry>| fs::read_link(entry.unwrap().path());
    let mut all: Vec<_> = fs::read_dir(path)
        .unwrap()
        .filter_map(|entry| Some(target(entry).ok()?.to_string_lossy().into_owned()))
        // A socket has another number in each process.
        .map(|target| target.split(":[").next().unwrap_or_default().to_owned())
        .collect();
    all.sort();
    all
}

/// A fault of a server that is being killed would make EIO of a request that it reads.
#[test]
fn requests_are_read_into_locked_memory_by_each_server() {
    let Some((mount, _dog)) = mounted("locked memory", ON) else {
        return;
    };
    let threads = |server: Pid| {
        let tasks = fs::read_dir(format!("/proc/{}/task", server.as_raw_nonzero()));
        let is_serving = |task: &io::Result<fs::DirEntry>| {
            let name = fs::read_to_string(task.as_ref().unwrap().path().join("comm"));
            name.is_ok_and(|name| name.starts_with("fuse-dev-"))
        };
        tasks.unwrap().filter(is_serving).count() as u64
    };
    let locked = |server: Pid| {
        let status = fs::read_to_string(format!("/proc/{}/status", server.as_raw_nonzero()));
        let status = status.unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
        let kib = line.unwrap().trim_end_matches("kB").trim();
        kib.parse::<u64>().unwrap() << 10
    };
    let mut server = mount.process();
    for _ in 0..2 {
        assert!(wait_until(|| threads(server) > 0));
        // A request of 1 MiB for each.
        let (locked, threads) = (locked(server), threads(server));
        assert!(locked >= threads << 20, "{locked} bytes, {threads} threads");
        kill(&mount);
        server = other_server(&mount, server);
    }
    mount.unmount();
}

#[test]
fn ten_deaths_leak_no_descriptor() {
    let Some((mount, _dog)) = mounted("descriptors", &many_deaths()) else {
        return;
    };
    let supervisor = mount.supervisor();
    let mut after_first = None;
    for _ in 0..10 {
        let server = kill(&mount);
        let server = other_server(&mount, server);
        let both = || (descriptors(supervisor), descriptors(server));
        let first = after_first.get_or_insert_with(|| {
            // The standby, and the end of what was begun before.
            assert!(wait_until(
                || mount.supervised().len() == 2 && mount.serving() == [server]
            ));
            let mut last = both();
            assert!(wait_until(|| {
                std::thread::sleep(Duration::from_millis(300));
                let before = std::mem::replace(&mut last, both());
                last == before
            }));
            last
        });
        assert!(wait_until(|| both() == *first), "{first:?} {:?}", both());
    }
    let (of_supervisor, _) = after_first.unwrap();
    for descriptor in &of_supervisor {
        let known = [
            "/dev/null",
            "/dev/fuse",
            "/memfd:",
            "socket",
            "anon_inode",
            "pipe",
        ];
        let is_program = descriptor.ends_with("/mount-pramfs");
        let is_known_too = is_program || *descriptor == mount.region().to_string_lossy();
        let is_known = known.iter().any(|name| descriptor.starts_with(name));
        assert!(
            is_known || is_known_too,
            "{descriptor} in {of_supervisor:?}"
        );
    }
    mount.unmount();
}

#[test]
fn later_server_is_confined_as_the_first() {
    let Some((mount, _dog)) = mounted("confined servers", ON) else {
        return;
    };
    let status = |pid: Pid| {
        let text = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap();
        let shown = ["Cap", "NoNewPrivs", "Seccomp"];
        let lines = text
            .lines()
            .filter(|line| shown.iter().any(|s| line.starts_with(s)));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let first = status(mount.process());
    assert!(
        first.iter().any(|line| line.contains("Seccomp:\t2")),
        "{first:?}"
    );
    let server = kill(&mount);
    let server = other_server(&mount, server);
    assert_eq!(status(server), first);
    let score =
        |pid: Pid| fs::read_to_string(format!("/proc/{}/oom_score_adj", pid.as_raw_nonzero()));
    assert_eq!(score(server).unwrap(), score(mount.supervisor()).unwrap());
    mount.unmount();
}

#[test]
fn sighup_replaces_server_by_program_of_same_path() {
    let Some((mount, _dog)) = unmounted("upgrade") else {
        return;
    };
    let program = mount.region().with_file_name("mount-pramfs-copy");
    copy_program(crate::program(), &program);
    let log = mount.region().with_file_name("log");
    let mut supervisor = std::process::Command::new(&program)
        .arg(mount.region())
        .arg(mount.path())
        .args(["-f", "-o", ON])
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    assert!(wait_until(
        || mount.is_mounted() && !mount.supervised().is_empty()
    ));
    let mut file = File::create_new(mount.at("file")).unwrap();
    let hup = || kill_process(mount.supervisor(), Signal::HUP).unwrap();
    let said = |what: &str| wait_until(|| fs::read_to_string(&log).unwrap().contains(what));

    let server = mount.process();
    hup();
    assert!(said("has taken over"));
    let server = other_server(&mount, server);
    file.write_all(b"after an upgrade").unwrap();

    // A program that does not know what to do.
    let (draft, new) = (
        program.with_extension("draft"),
        program.with_extension("new"),
    );
    fs::write(&draft, "#!/bin/sh\nexit 3\n").unwrap();
    fs::set_permissions(&draft, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    copy_program(&draft, &new);
    fs::rename(&new, &program).unwrap();
    hup();
    assert!(said("ended with status 3"));
    assert!(wait_until(|| mount.serving() == [server]));
    // The old program serves after a death, although its name leads elsewhere.
    kill(&mount);
    let server = other_server(&mount, server);
    file.write_all(b", a death").unwrap();
    fs::remove_file(&program).unwrap();
    hup();
    assert!(said("cannot be started"));
    assert!(wait_until(|| mount.serving() == [server]));

    copy_program(crate::program(), &program);
    hup();
    other_server(&mount, server);
    file.write_all(b" and another one").unwrap();
    let text = fs::read_to_string(mount.at("file")).unwrap();
    assert_eq!(text, "after an upgrade, a death and another one");
    drop(file);
    mount.unmount();
    assert!(supervisor.wait().unwrap().success());
}

#[test]
fn standby_ignores_sigterm_and_stranger_cannot_start_server() {
    let Some((mount, _dog)) = mounted("standby", ON) else {
        return;
    };
    assert!(wait_until(
        || mount.supervised().len() == 2 && mount.serving().len() == 1
    ));
    let server = mount.process();
    for standby in mount.supervised() {
        if standby != server {
            kill_process(standby, Signal::TERM).unwrap();
        }
    }
    kill(&mount);
    other_server(&mount, server);
    std::thread::sleep(Duration::from_millis(200));
    fs::write(mount.at("file"), "still mounted").unwrap();
    let out = mount.run(["--serve-for-supervisor"]);
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("not the socket of a supervisor"), "{said}");
    mount.unmount();
}
