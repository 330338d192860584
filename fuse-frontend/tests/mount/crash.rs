//! SIGKILL at any moment: completed operations survive until the next mount.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::mounted;

#[test]
fn completed_ops_survive_server_kill() {
    let Some((mount, _dog)) = mounted("SIGKILL", "") else {
        return;
    };
    for round in 0..5 {
        let dir = mount.at(format!("round{round}"));
        fs::create_dir(&dir).unwrap();
        let done = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                for n in 0.. {
                    let path = dir.join(format!("file{n}"));
                    let made = fs::write(&path, format!("contents of {n}"))
                        .and_then(|()| fs::rename(&path, dir.join(format!("done{n}"))));
                    if made.is_err() {
                        return;
                    }
                    done.store(n + 1, Ordering::Release);
                }
            });
            while done.load(Ordering::Acquire) < 20 * (round + 1) {
                std::thread::sleep(Duration::from_millis(1));
            }
            mount.crash();
            worker.join().unwrap();
        });
        mount.mount("");
        for n in 0..done.load(Ordering::Acquire) {
            let got = fs::read_to_string(dir.join(format!("done{n}"))).unwrap();
            assert_eq!(got, format!("contents of {n}"));
        }
    }
    mount.unmount();
}

/// In place, a kill in the middle of a copy would leave a part of it.
#[test]
fn overwrites_of_atomic_mount_are_whole_after_server_kill() {
    const PIECE: usize = 64 << 10;
    const PIECES: usize = 32;
    let Some((mount, _dog)) = mounted("atomic overwrites", "data=atomic") else {
        return;
    };
    fs::write(mount.at("file"), vec![0; PIECES * PIECE]).unwrap();
    let mut last = vec![0_u8; PIECES];
    for round in 0..8_u8 {
        let file = File::options().write(true).open(mount.at("file")).unwrap();
        let done = AtomicUsize::new(0);
        let (returned, pending) = std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let mut returned = last.clone();
                for n in 0.. {
                    let piece = (n * 7) % PIECES;
                    let value = (n % 250) as u8 + 1;
                    let bytes = vec![value; PIECE];
                    if file.write_all_at(&bytes, (piece * PIECE) as u64).is_err() {
                        return (returned, (piece, value));
                    }
                    returned[piece] = value;
                    done.store(n + 1, Ordering::Release);
                }
                unreachable!("the server is killed")
            });
            while done.load(Ordering::Acquire) < 30 + 11 * usize::from(round) {
                std::thread::sleep(Duration::from_millis(1));
            }
            mount.crash();
            worker.join().unwrap()
        });
        drop(file);
        mount.mount("data=atomic");
        let bytes = fs::read(mount.at("file")).unwrap();
        for (piece, bytes) in bytes.chunks(PIECE).enumerate() {
            let value = bytes[0];
            assert!(bytes.iter().all(|b| *b == value), "piece {piece} is torn");
            let is_pending = pending == (piece, value);
            assert!(
                value == returned[piece] || is_pending,
                "piece {piece} is lost"
            );
            last[piece] = value;
        }
        assert_eq!(bytes.len(), PIECES * PIECE);
    }
    mount.unmount();
}

#[test]
fn orphan_is_freed_by_next_mount() {
    let Some((mount, _dog)) = mounted("orphans", "") else {
        return;
    };
    let stat = || rustix::fs::statvfs(mount.path()).unwrap();
    fs::write(mount.at("keep"), "").unwrap();
    let before = stat();
    let mut file = File::create_new(mount.at("orphan")).unwrap();
    file.write_all(&vec![1; 4 << 20]).unwrap();
    fs::remove_file(mount.at("orphan")).unwrap();
    assert!(before.f_bfree - stat().f_bfree >= 1024);
    mount.crash();
    drop(file);
    mount.mount("");
    let back = || before.f_bfree - stat().f_bfree < 64 && before.f_ffree - stat().f_ffree < 8;
    assert!(pramfs_tests::mounted::wait_until(back));
    assert!(!mount.at("orphan").exists() && mount.at("keep").exists());
}
