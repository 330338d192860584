//! Takeover: the server dies, and the next one goes on (`takeover=on`).

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pramfs_tests::mounted::{Mounted, is_unlocked, unmount_when_free, wait_until};
use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process};

use crate::{mounted, unmounted};

/// Whatever options the environment adds.
pub(super) const ON: &str = "transport=dev,cache=auto,direct=off,takeover=on";

pub(super) fn many_deaths() -> String {
    format!("{ON},takeover-deaths=1000000")
}

/// Kills the server.
pub(super) fn kill(mount: &Mounted) -> Pid {
    let server = mount.process();
    kill_process(server, Signal::KILL).expect("kill");
    server
}

/// Waits until a server serves that is not `before`.
pub(super) fn other_server(mount: &Mounted, before: Pid) -> Pid {
    // An answer that the kernel does not have.
    statvfs(mount).expect("an answer");
    let mut now = before;
    assert!(wait_until(|| match mount.serving()[..] {
        [one] => {
            now = one;
            one != before
        }
        _ => false,
    }));
    now
}

fn statvfs(mount: &Mounted) -> rustix::io::Result<()> {
    rustix::fs::statvfs(mount.path()).map(drop)
}

fn exists(pid: Pid) -> bool {
    let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
    line.is_ok_and(|line| !line.is_empty())
}

/// Waits until the connection has ended, and all processes with it.
fn assert_ended(mount: &Mounted, open: &File) {
    mount.wait_for_end();
    let error = statvfs(mount).unwrap_err();
    assert_eq!(error, rustix::io::Errno::NOTCONN);
    let error = open.set_len(1).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
    assert!(is_unlocked(&mount.region()));
    mount.detach();
}

/// A file whose reads reach the server.
fn direct(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    options.custom_flags(libc::O_DIRECT).open(path)
}

#[repr(align(4096))]
struct Block([u8; 4096]);

#[test]
fn killed_server_is_replaced_and_open_files_go_on() {
    let Some((mount, _dog)) = mounted("takeover", ON) else {
        return;
    };
    let (server, supervisor) = (mount.process(), mount.supervisor());
    assert_ne!(server, supervisor);
    let path = mount.at("file");
    let mut file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .open(&path)
        .unwrap();
    file.write_all(b"before\n").unwrap();
    for n in 0..300 {
        fs::write(mount.at(format!("other{n}")), "").unwrap();
    }
    let mut list = fs::read_dir(mount.path()).unwrap();
    let first = list.next().unwrap().unwrap();
    kill(&mount);
    file.write_all(b"after\n").unwrap();
    let next = other_server(&mount, server);
    assert_eq!(mount.supervisor(), supervisor);
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "before\nafter\n");
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    let names: BTreeMap<_, _> = list
        .chain([Ok(first)])
        .map(|entry| (entry.unwrap().file_name(), ()))
        .collect();
    assert_eq!(names.len(), 301);
    // And once more.
    kill(&mount);
    fs::rename(&path, mount.at("renamed")).unwrap();
    other_server(&mount, next);
    file.write_all(b"end\n").unwrap();
    drop(file);
    let text = fs::read_to_string(mount.at("renamed")).unwrap();
    assert_eq!(text, "before\nafter\nend\n");
    mount.unmount();
    mount.mount("");
    assert_eq!(fs::read_to_string(mount.at("renamed")).unwrap(), text);
    mount.unmount();
}

#[test]
fn kills_under_load_lose_nothing_and_fail_nothing() {
    let Some((mount, _dog)) = mounted("takeover under load", &many_deaths()) else {
        return;
    };
    const BLOCKS: u64 = 64;
    let kills = std::env::var("PRAMFS_TEST_KILLS").map_or(30, |n| n.parse().unwrap());
    let stop = AtomicBool::new(false);
    let rounds = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (mount, stop, rounds) = (&mount, &stop, &rounds);
            scope.spawn(move || {
                let path = mount.at(format!("file{thread}"));
                // Two past the page cache, two through it.
                let file = match thread % 2 {
                    0 => direct(&path).unwrap(),
                    _ => OpenOptions::new()
                        .read(true)
                        .write(true)
                        .create(true)
                        .truncate(false)
                        .open(&path)
                        .unwrap(),
                };
                let mut written = BTreeMap::new();
                let mut block = Block([0; 4096]);
                for round in 0_u64.. {
                    let at = (round * 7 + thread) % BLOCKS;
                    let byte = (round % 251) as u8;
                    block.0.fill(byte);
                    file.write_all_at(&block.0, at * 4096).unwrap();
                    written.insert(at, byte);
                    let again = (round * 13) % BLOCKS;
                    if let Some(byte) = written.get(&again) {
                        file.read_exact_at(&mut block.0, again * 4096).unwrap();
                        assert!(block.0.iter().all(|b| b == byte), "{thread} {round}");
                    }
                    let len = file.metadata().unwrap().len();
                    assert!(len > at * 4096);
                    rounds.fetch_add(1, Ordering::Relaxed);
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
                for (at, byte) in written {
                    file.read_exact_at(&mut block.0, at * 4096).unwrap();
                    assert!(block.0.iter().all(|b| *b == byte), "{thread} {at}");
                }
            });
        }
        let mut before = 0;
        for _ in 0..kills {
            assert!(wait_until(|| rounds.load(Ordering::Relaxed) > before + 20));
            before = rounds.load(Ordering::Relaxed);
            let server = kill(&mount);
            other_server(&mount, server);
        }
        stop.store(true, Ordering::Relaxed);
    });
    mount.unmount();
}

#[test]
fn unmount_without_server_ends_supervisor() {
    let Some((mount, _dog)) = mounted("unmount without a server", ON) else {
        return;
    };
    fs::write(mount.at("file"), "contents").unwrap();
    without_server(&mount, || {
        unmount_when_free(&mount.path());
    });
    mount.wait_for_end();
    mount.mount("");
    assert_eq!(fs::read_to_string(mount.at("file")).unwrap(), "contents");
    mount.unmount();
}

/// Kills the server, and does something while there is none.
fn without_server(mount: &Mounted, work: impl FnOnce()) {
    let supervisor = mount.supervisor();
    kill_process(supervisor, Signal::STOP).unwrap();
    let server = kill(mount);
    assert!(wait_until(|| !exists(server)));
    work();
    kill_process(supervisor, Signal::CONT).unwrap();
}

#[test]
fn region_stays_locked_and_known_without_server() {
    let Some((mount, _dog)) = mounted("the lock between servers", ON) else {
        return;
    };
    fs::write(mount.at("file"), "contents").unwrap();
    let elsewhere = mount.region().with_extension("moved");
    without_server(&mount, || {
        assert!(!is_unlocked(&mount.region()));
        fs::rename(mount.region(), &elsewhere).unwrap();
    });
    fs::write(mount.at("other"), "contents").unwrap();
    fs::rename(&elsewhere, mount.region()).unwrap();
    // Who has it is still known.
    let server = mount.process();
    let said = pramfs::pmem::RegionOptions::new().open(mount.region());
    let said = said.err().unwrap().to_string();
    let names = |pid: &Pid| said.contains(&format!("in use by process {} ", pid.as_raw_nonzero()));
    assert!(mount.processes().iter().any(names), "{said}");
    assert_eq!(mount.process(), server);
    mount.unmount();
    mount.mount("");
    assert_eq!(fs::read_to_string(mount.at("other")).unwrap(), "contents");
    mount.unmount();
}

#[test]
fn lock_never_changes_over_takeovers() {
    for (options, kills) in [(many_deaths(), 50), (format!("{},ro", many_deaths()), 10)] {
        let Some((mount, _dog)) = mounted("the lock over takeovers", &options) else {
            return;
        };
        let read_only = options.ends_with(",ro");
        // Whoever may read the region can try this.
        let wanted = match read_only {
            false => FlockOperation::NonBlockingLockShared,
            true => FlockOperation::NonBlockingLockExclusive,
        };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (mount, stop) = (&mount, &stop);
            let tries = scope.spawn(move || {
                let region = File::open(mount.region()).unwrap();
                let mut taken = 0;
                while !stop.load(Ordering::Relaxed) {
                    if rustix::fs::flock(&region, wanted).is_ok() {
                        taken += 1;
                        rustix::fs::flock(&region, FlockOperation::Unlock).unwrap();
                    }
                }
                taken
            });
            for _ in 0..kills {
                let server = kill(mount);
                other_server(mount, server);
            }
            stop.store(true, Ordering::Relaxed);
            assert_eq!(tries.join().unwrap(), 0, "{options}");
        });
        if read_only {
            let out = mount.run(["-o", "remount,rw"]);
            assert!(out.status.success(), "{out:?}");
        }
        fs::write(mount.at("file"), "contents").unwrap();
        mount.unmount();
        assert!(is_unlocked(&mount.region()));
    }
}

/// Mounts in the foreground, with the log in a file.
fn in_foreground(mount: &Mounted, options: &str, log: &Path) -> Child {
    let mut command = mount.command();
    let child = command
        .args(["-f", "-o", options])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(log).unwrap())
        .spawn()
        .unwrap();
    assert!(wait_until(
        || mount.is_mounted() && !mount.supervised().is_empty()
    ));
    statvfs(mount).unwrap();
    child
}

#[test]
fn five_deaths_in_a_minute_end_the_connection() {
    let Some((mount, _dog)) = unmounted("five deaths") else {
        return;
    };
    let log = mount.region().with_file_name("log");
    let mut supervisor = in_foreground(&mount, ON, &log);
    let open = File::create_new(mount.at("file")).unwrap();
    for _ in 0..4 {
        let server = kill(&mount);
        other_server(&mount, server);
    }
    kill(&mount);
    assert_eq!(supervisor.wait().unwrap().code(), Some(2));
    assert_ended(&mount, &open);
    let said = fs::read_to_string(&log).unwrap();
    for part in [
        "was killed by signal 9",
        "has taken over",
        "5 servers have died within a minute",
        "ENOTCONN",
        "fsck.pramfs",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

#[test]
fn region_that_cannot_be_opened_ends_the_connection() {
    let Some((mount, _dog)) = unmounted("no region") else {
        return;
    };
    let log = mount.region().with_file_name("log");
    let mut supervisor = in_foreground(&mount, ON, &log);
    let open = File::create_new(mount.at("file")).unwrap();
    without_server(&mount, || {
        let region = OpenOptions::new().write(true).open(mount.region());
        region.unwrap().write_all_at(&[0; 1 << 20], 0).unwrap();
    });
    assert_eq!(supervisor.wait().unwrap().code(), Some(2));
    assert_ended(&mount, &open);
    let said = fs::read_to_string(&log).unwrap();
    assert!(said.contains("cannot go on: "), "{said}");
    assert!(said.contains("no pramfs superblock"), "{said}");
}

#[test]
fn other_file_system_in_region_ends_the_connection() {
    let Some((mount, _dog)) = unmounted("another file system") else {
        return;
    };
    let log = mount.region().with_file_name("log");
    let mut supervisor = in_foreground(&mount, ON, &log);
    let open = File::create_new(mount.at("file")).unwrap();
    without_server(&mount, || {
        let region = pramfs::pmem::RegionOptions::new().lock(false);
        let region = region.open(mount.region()).unwrap();
        pramfs::format::format(&region, &pramfs::format::FormatOptions::default()).unwrap();
    });
    assert_eq!(supervisor.wait().unwrap().code(), Some(2));
    assert_ended(&mount, &open);
    let said = fs::read_to_string(&log).unwrap();
    assert!(said.contains("it holds another file system"), "{said}");
    // Nothing was done to it.
    mount.mount("");
    mount.unmount();
}

#[test]
fn hanging_server_ends_the_connection_after_ten_seconds() {
    let Some((mount, _dog)) = unmounted("no server in time") else {
        return;
    };
    let log = mount.region().with_file_name("log");
    let mut supervisor = in_foreground(&mount, ON, &log);
    let open = File::create_new(mount.at("file")).unwrap();
    let server = mount.process();
    assert!(wait_until(
        || mount.supervised().len() == 2 && mount.serving() == [server]
    ));
    for standby in mount.supervised() {
        if standby != server {
            kill_process(standby, Signal::STOP).unwrap();
        }
    }
    let begun = std::time::Instant::now();
    kill(&mount);
    assert_eq!(supervisor.wait().unwrap().code(), Some(2));
    let took = begun.elapsed();
    // Much later only on a machine under load.
    assert!((9..40).contains(&took.as_secs()), "{took:?}");
    assert_ended(&mount, &open);
    let said = fs::read_to_string(&log).unwrap();
    assert!(
        said.contains("no server was ready within 10 seconds"),
        "{said}"
    );
}

#[test]
fn killed_supervisor_leaves_server_without_takeover() {
    let Some((mount, _dog)) = unmounted("killed supervisor") else {
        return;
    };
    let log = mount.region().with_file_name("log");
    let mut supervisor = in_foreground(&mount, ON, &log);
    let server = mount.process();
    supervisor.kill().unwrap();
    supervisor.wait().unwrap();
    let open = File::create_new(mount.at("file")).unwrap();
    assert!(wait_until(|| mount.processes() == [server]));
    let warned = || {
        fs::read_to_string(&log)
            .unwrap()
            .contains("the supervisor has ended")
    };
    assert!(wait_until(warned));
    kill(&mount);
    assert_ended(&mount, &open);
    // Without being killed, the server ends with the mount.
    let mut supervisor = in_foreground(&mount, ON, &log);
    supervisor.kill().unwrap();
    supervisor.wait().unwrap();
    mount.unmount();
}

#[test]
fn sigterm_to_either_process_unmounts() {
    let Some((mount, _dog)) = unmounted("SIGTERM") else {
        return;
    };
    for to_server in [false, true] {
        for signal in [Signal::TERM, Signal::INT] {
            mount.mount(ON);
            let process = match to_server {
                true => mount.process(),
                false => mount.supervisor(),
            };
            kill_process(process, signal).unwrap();
            mount.wait_for_end();
            assert!(!mount.is_mounted());
        }
    }
    // While no server lives: the next one unmounts.
    mount.mount(ON);
    let supervisor = mount.supervisor();
    without_server(&mount, || kill_process(supervisor, Signal::TERM).unwrap());
    mount.wait_for_end();
    assert!(!mount.is_mounted());
}

#[test]
fn sigterm_with_open_file_ends_mount() {
    let Some((mount, _dog)) = mounted("SIGTERM in use", ON) else {
        return;
    };
    let server = kill(&mount);
    other_server(&mount, server);
    let open = File::create_new(mount.at("file")).unwrap();
    kill_process(mount.supervisor(), Signal::TERM).unwrap();
    mount.wait_for_end();
    assert!(!mount.is_mounted());
    open.set_len(1).unwrap_err();
}

/// The same messages and statuses as without takeover.
#[test]
fn remounted_flags_outlive_server() {
    let Some((mount, _dog)) = mounted("remounted flags", &many_deaths()) else {
        return;
    };
    fs::write(mount.at("file"), "contents").unwrap();
    let remount = |options: &str| {
        let out = mount.run(["-o", &format!("remount,{options}")]);
        assert!(out.status.success(), "{out:?}");
    };
    remount("ro,noatime");
    let server = kill(&mount);
    let server = other_server(&mount, server);
    assert_eq!(fs::read_to_string(mount.at("file")).unwrap(), "contents");
    let error = fs::write(mount.at("file"), "changed").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    remount("rw,strictatime");
    fs::write(mount.at("file"), "changed").unwrap();
    kill(&mount);
    let server = other_server(&mount, server);
    fs::write(mount.at("file"), "again").unwrap();
    let before = fs::metadata(mount.at("file")).unwrap().accessed().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let file = direct(&mount.at("file")).unwrap();
    let mut block = Block([0; 4096]);
    file.read_at(&mut block.0, 0).unwrap();
    assert!(fs::metadata(mount.at("file")).unwrap().accessed().unwrap() > before);
    drop(file);
    // A second mount comes over the control socket of the next server.
    kill(&mount);
    other_server(&mount, server);
    let beside = mount.region().with_file_name("beside");
    fs::create_dir(&beside).unwrap();
    let out = std::process::Command::new(crate::program())
        .arg(mount.region())
        .arg(&beside)
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
    assert_eq!(fs::read_to_string(beside.join("file")).unwrap(), "again");
    pramfs_tests::mounted::unmount_when_free(&beside);
    mount.unmount();
}
