//! Scrubbing a mounted file system, by the ioctls.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pramfs_client::Access;
use pramfs_medium::media::scrub::{CANCELLED, FINISHED, NEVER, UNDER_WAY};
use pramfs_medium::pmem::{ScrubRequest, ScrubStatus, ask_for_scrub_finding, ask_to_scrub};
use pramfs_tests::mounted::{Mounted, wait_until};

use crate::direct::{BLOCK, OPTIONS, assert_checked, file, leases};
use crate::direct_client::start;
use crate::direct_write::opened;
use crate::takeover::{ON, kill, other_server};
use crate::{MIB, mounted};

const B: u64 = BLOCK as u64;
const START: ScrubRequest = ScrubRequest::Start {
    resume: false,
    limit: None,
};
/// Takes hours.
const SLOW: ScrubRequest = ScrubRequest::Start {
    resume: false,
    limit: Some(1000),
};

pub(super) fn ask(path: &Path, request: ScrubRequest) -> io::Result<ScrubStatus> {
    ask_to_scrub(File::open(path)?.as_fd(), request)
}

fn status(mount: &Mounted) -> ScrubStatus {
    ask(&mount.path(), ScrubRequest::Status).unwrap()
}

fn errno(asked: io::Result<ScrubStatus>) -> i32 {
    asked.unwrap_err().raw_os_error().unwrap()
}

/// Waits for the end of the scrub.
fn ended(mount: &Mounted) -> ScrubStatus {
    assert!(wait_until(|| !status(mount).running));
    status(mount)
}

#[test]
fn scrub_of_mount_runs_beside_requests_and_ends() {
    let Some((mount, _dog)) = mounted("scrub", "direct=off") else {
        return;
    };
    assert_eq!(
        (status(&mount).state, status(&mount).running),
        (NEVER, false)
    );
    assert_eq!(
        errno(ask(&mount.path(), ScrubRequest::Cancel)),
        libc::ENOENT
    );
    fs::write(mount.at("file"), vec![7; 16 << 20]).unwrap();
    ask(&mount.path(), START).unwrap();
    let done = ended(&mount);
    assert_eq!((done.state, done.found, done.errno), (FINISHED, 0, 0));
    assert!(done.done > 16 << 20 && done.kept && done.completed == 1);
    // A slow one keeps no request from its answer, and a second one is refused.
    ask(&mount.path(), SLOW).unwrap();
    assert_eq!(errno(ask(&mount.path(), START)), libc::EBUSY);
    fs::write(mount.at("other"), vec![8; 1 << 20]).unwrap();
    assert!(status(&mount).running);
    ask(&mount.at("file"), ScrubRequest::Cancel).unwrap();
    assert_eq!(ended(&mount).state, CANCELLED);
    let found = ask_for_scrub_finding(File::open(mount.path()).unwrap().as_fd(), 0);
    assert_eq!(found.unwrap(), None);
    mount.unmount();
    assert_checked(&mount);
}

#[test]
fn unmount_interrupts_scrub_and_next_mount_resumes_it() {
    let Some((mount, _dog)) = mounted("scrub and unmount", "direct=off") else {
        return;
    };
    fs::write(mount.at("file"), vec![7; 16 << 20]).unwrap();
    ask(&mount.path(), SLOW).unwrap();
    assert!(wait_until(|| status(&mount).done > 0));
    mount.unmount();
    assert_checked(&mount);
    mount.mount("direct=off");
    let kept = status(&mount);
    assert_eq!((kept.state, kept.running), (UNDER_WAY, false));
    assert!(kept.done > 0);
    let resume = ScrubRequest::Start {
        resume: true,
        limit: None,
    };
    ask(&mount.path(), resume).unwrap();
    let done = ended(&mount);
    assert_eq!((done.state, done.found), (FINISHED, 0));
    assert!(done.run_done < done.done && done.started_sec == kept.started_sec);
    mount.unmount();
}

#[test]
fn scrub_by_other_user_is_refused() {
    let Some((mount, _dog)) = mounted("scrub by others", "direct=off,allow_other") else {
        return;
    };
    let path = mount.path().display().to_string();
    let said = start(Some(4242), &mount, "scrub", std::slice::from_ref(&path));
    assert_eq!(said.said, format!("errno {}", libc::EPERM));
    assert_eq!(status(&mount).state, NEVER);
    let said = start(None, &mount, "scrub", &[path]);
    assert_eq!(said.said, "started");
    drop(said);
    ended(&mount);
    mount.unmount();
}

#[test]
fn scrub_of_read_only_mount_keeps_nothing() {
    let Some((mount, _dog)) = mounted("scrub of ro", "ro") else {
        return;
    };
    ask(&mount.path(), START).unwrap();
    let done = ended(&mount);
    assert_eq!((done.state, done.found, done.kept), (FINISHED, 0, false));
    mount.unmount();
    mount.mount("ro");
    assert_eq!(status(&mount).state, NEVER);
    mount.unmount();
}

/// The row of the scrub in docs/leases.md.
#[test]
fn scrub_beside_direct_stores_and_appends_finds_nothing_and_recalls_nothing() {
    let Some((mount, _dog)) = mounted("scrub beside leases", OPTIONS) else {
        return;
    };
    drop((file(&mount, "file", 4), file(&mount, "log", 1)));
    let (writer, log) = (opened(&mount, "file"), opened(&mount, "log"));
    let view = writer.map(0..4 * B, Access::Write).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            for i in 0u64.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                view.write(i * 97 % (3 * B), &[i as u8; 100]).unwrap();
                if i < 20_000 {
                    log.append(&[i as u8; 300]).unwrap();
                }
            }
        });
        for _ in 0..20 {
            ask(&mount.path(), START).unwrap();
            let done = ended(&mount);
            let right = (done.state, done.found) == (FINISHED, 0);
            stop.store(!right, Ordering::Relaxed);
            assert!(right, "{done:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(leases(&mount).len(), 2);
    view.write(0, &[9; 10]).unwrap();
    let through = File::open(mount.at("file")).unwrap();
    let mut bytes = [0; 10];
    through.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, [9; 10]);
    drop((view, writer, log, through));
    assert!(wait_until(|| leases(&mount).is_empty()));
    mount.unmount();
    assert_checked(&mount);
}

/// The server dies in the middle: the next one knows where it was.
#[test]
fn next_server_resumes_scrub_of_one_that_died() {
    let Some((mount, _dog)) = mounted("scrub and takeover", ON) else {
        return;
    };
    fs::write(mount.at("file"), vec![7; 16 << 20]).unwrap();
    ask(&mount.path(), SLOW).unwrap();
    // It has stored its record by its first step.
    assert!(wait_until(|| status(&mount).done > 0));
    let server = kill(&mount);
    other_server(&mount, server);
    let kept = status(&mount);
    assert_eq!((kept.state, kept.running), (UNDER_WAY, false));
    let resume = ScrubRequest::Start {
        resume: true,
        limit: None,
    };
    ask(&mount.path(), resume).unwrap();
    let done = ended(&mount);
    assert_eq!((done.state, done.found), (FINISHED, 0));
    assert!(done.done > 16 * MIB);
    mount.unmount();
}
