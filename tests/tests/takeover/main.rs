//! Servers of a mount with `takeover=on` are killed, one after the other, while programs work on
//! it. No program sees an error, every byte is right, and fsck finds nothing.
//!
//! `PRAMFS_TAKEOVER_KILLS` sets how many die. With 1,000 of them (`make takeover`), at least 200
//! must die in a request on names.

mod killer;
mod names;
mod programs;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use killer::Killer;
use pramfs_tests::mounted::{Mounted, program, wait_until};
use pramfs_tests::random::Random;
use pramfs_tests::suite::{mount_for, number, say, unmount_and_check};

/// Any number of deaths a minute.
const OPTIONS: &str = "takeover=on,takeover-deaths=1000000,transport=dev,opens=server";

/// Threads that work on names.
const WRITERS: u64 = 24;

/// What the mount has counted.
fn counts(mount: &Mounted) -> BTreeMap<String, u64> {
    let pramfs = program().with_file_name("pramfs");
    let out = Command::new(pramfs)
        .args(["requests", "--json"])
        .arg(mount.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    let told: serde_json::Value = serde_json::from_str(&said)
        .unwrap_or_else(|e| panic!("{e}: {said}{}", String::from_utf8_lossy(&out.stderr)));
    let counts = told.get("requests").cloned().unwrap_or(told);
    serde_json::from_value(counts).unwrap()
}

#[test]
fn programs_notice_no_death_of_a_server() {
    let kills = number("PRAMFS_TAKEOVER_KILLS", 60);
    let test = format!("{kills} deaths of servers");
    let Some(mount) = mount_for(&test, &[], 1024, OPTIONS) else {
        return;
    };
    let seed = Random::seed_from_env("PRAMFS_TAKEOVER_SEED");
    let done = AtomicBool::new(false);
    let programs = programs::begin(&test, &mount);
    let killer = Killer::of(&mount);
    let writers = std::thread::scope(|scope| {
        let (mount, done) = (&mount, &done);
        let writers: Vec<_> = (0..WRITERS)
            .map(|nth| {
                scope.spawn(move || names::work(&mount.at(format!("names{nth}")), seed + nth, done))
            })
            .collect();
        let programs = programs.run(scope, done);
        let killed = killer.kill(kills, seed);
        done.store(true, Ordering::Relaxed);
        assert_eq!(killed, kills);
        programs.end();
        let changes: u64 = writers.into_iter().map(|one| one.join().unwrap()).sum();
        changes
    });
    let counted = counts(&mount);
    let (deaths, in_names, again, from_record) = (
        counted["takeovers"],
        counted["takeovers in requests on names"],
        counted["names asked again"],
        counted["answered from records"],
    );
    programs.check();
    let check = unmount_and_check(&mount);
    say(format_args!(
        "{test}, seed {seed}: {writers} changes of names; {in_names} deaths met {again} of them, and {from_record} of these were answered from the record of the dead server; fsck: {check}"
    ));
    assert!(deaths >= kills, "{deaths}");
    // Few deaths may happen to meet few of them.
    let floor = if kills >= 1000 { kills / 5 } else { kills / 20 };
    assert!(
        in_names >= floor,
        "{in_names} deaths met a request on names"
    );
    assert!(
        kills < 200 || from_record > 0,
        "none was answered from a record"
    );
}

/// Without a supervisor, the death of the server is what it is without takeover.
#[test]
fn death_of_supervisor_and_server_ends_the_mount() {
    let Some(mount) = mount_for("the death of the supervisor", &[], 64, OPTIONS) else {
        return;
    };
    std::fs::write(mount.at("file"), "contents").unwrap();
    let killer = Killer::of(&mount);
    killer.kill_supervisor();
    assert_eq!(std::fs::read(mount.at("file")).unwrap(), b"contents");
    std::fs::write(mount.at("another"), "contents").unwrap();
    for process in mount.processes() {
        rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    }
    mount.wait_for_end();
    let error = std::fs::read(mount.at("file")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN), "{error}");
    mount.detach();
    mount.mount("");
    assert_eq!(std::fs::read(mount.at("another")).unwrap(), b"contents");
    unmount_and_check(&mount);
}

/// Under a load as well: calls fail from then on, none hangs, and what had returned is there.
#[test]
fn death_of_supervisor_and_server_under_load_keeps_what_had_returned() {
    let Some(mount) = mount_for("the death of the supervisor, load", &[], 256, OPTIONS) else {
        return;
    };
    let killer = Killer::of(&mount);
    let counts: [AtomicU64; 8] = Default::default();
    let wait_for_more = |than: &[u64]| {
        let more = || counts.iter().map(|n| n.load(Ordering::Relaxed));
        assert!(wait_until(|| more()
            .zip(than)
            .all(|(n, than)| n > than + 20)));
        more().collect::<Vec<u64>>()
    };
    std::thread::scope(|scope| {
        for (nth, count) in counts.iter().enumerate() {
            let dir = mount.at(format!("dir{nth}"));
            std::fs::create_dir(&dir).unwrap();
            scope.spawn(move || {
                let part = dir.join("part");
                let write = |n: u64| {
                    std::fs::write(&part, n.to_string().repeat(1000))?;
                    std::fs::rename(&part, dir.join(n.to_string()))
                };
                let error = loop {
                    match write(count.load(Ordering::Relaxed)) {
                        Ok(()) => _ = count.fetch_add(1, Ordering::Relaxed),
                        Err(error) => break error,
                    }
                };
                let ends = [libc::ENOTCONN, libc::ECONNABORTED, libc::EIO];
                let errno = error.raw_os_error().unwrap_or_default();
                assert!(ends.contains(&errno), "{error}");
            });
        }
        let before = wait_for_more(&[0; 8]);
        killer.kill_supervisor();
        wait_for_more(&before);
        for process in mount.processes() {
            rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
        }
        mount.wait_for_end();
    });
    mount.detach();
    mount.mount("");
    for (nth, count) in counts.iter().enumerate() {
        for n in 0..count.load(Ordering::Relaxed) {
            let file = mount.at(format!("dir{nth}/{n}"));
            let contents = std::fs::read_to_string(&file).unwrap();
            assert!(contents == n.to_string().repeat(1000), "{}", file.display());
        }
    }
    unmount_and_check(&mount);
}

/// The directory of a load.
fn fresh(path: &Path) -> &Path {
    std::fs::create_dir(path).unwrap();
    path
}
