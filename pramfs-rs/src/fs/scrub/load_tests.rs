//! Scrubs beside changes, and their thread.

use super::run::{Order, ScrubOptions};
use super::support_tests::*;
use super::verify::Checksums;
use pramfs_medium::error::{Damage, Error};
use pramfs_medium::format::{FormatOptions, format};
use pramfs_medium::media::scrub::{CANCELLED, FINISHED, NEVER, UNDER_WAY};
use pramfs_medium::pmem::{Region, SimBackend};
use pramfs_medium::types::{Ino, XattrMode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
fn limit_is_kept_by_waiting() {
    let p = planted();
    let host = Host::new();
    let limit = 64 << 10;
    let options = ScrubOptions {
        limit: Some(limit),
        resume: false,
    };
    let record = p.fs.run_scrub(options, &Checksums, &host).unwrap();
    let wanted = Duration::from_secs_f64(record.done as f64 / limit as f64);
    let took = host.time.get();
    assert!(
        took + Duration::from_millis(50) >= wanted,
        "{took:?} of {wanted:?}"
    );
    assert!(took <= wanted.mul_f64(1.05), "{took:?} of {wanted:?}");
    // And the record was kept meanwhile.
    assert!(record.sequence >= took.as_secs() / 6, "{record:?}");
    p.fs.close().unwrap();
}

/// Threads change everything while scrubs run: nothing may seem wrong.
#[test]
fn scrub_under_load_finds_nothing() {
    let p = planted();
    let (fs, file, dir) = (&p.fs, p.file, p.dir);
    let stop = AtomicBool::new(false);
    let go = || !stop.load(Ordering::Relaxed);
    std::thread::scope(|s| {
        s.spawn(|| {
            for i in 0u64.. {
                if !go() {
                    break;
                }
                let at = i * 7919 % (3 << 20);
                fs.write(&ROOT, file, at, &[7; 3000]).unwrap();
                if i % 50 == 0 {
                    let size = pramfs_medium::types::SetAttr {
                        size: Some(i % 97 * 1000),
                        ..Default::default()
                    };
                    fs.setattr(&ROOT, file, &size).unwrap();
                }
            }
        });
        s.spawn(|| {
            for i in 0u64.. {
                if !go() {
                    break;
                }
                let name = |i: u64| format!("another name of some length {}", i % 700);
                match fs.create(&ROOT, dir, name(i).as_bytes(), 0o644) {
                    Ok(_) | Err(Error::Exists) => {}
                    Err(e) => panic!("{e}"),
                }
                match fs.unlink(dir, name(i.wrapping_mul(31)).as_bytes()) {
                    Ok(()) | Err(Error::NotFound) => {}
                    Err(e) => panic!("{e}"),
                }
            }
        });
        s.spawn(|| {
            for i in 0usize.. {
                if !go() {
                    break;
                }
                let value = vec![i as u8; i * 37 % 9000];
                let name = format!("user.{}", i % 9);
                fs.setxattr(&ROOT, file, name.as_bytes(), &value, XattrMode::Set)
                    .unwrap();
                let sub = format!("sub {}", i % 5);
                match fs.mkdir(&ROOT, Ino::ROOT, sub.as_bytes(), 0o755) {
                    Ok(_) | Err(Error::Exists) => {}
                    Err(e) => panic!("{e}"),
                }
                match fs.rmdir(Ino::ROOT, format!("sub {}", i % 3).as_bytes()) {
                    Ok(()) | Err(Error::NotFound) => {}
                    Err(e) => panic!("{e}"),
                }
            }
        });
        for _ in 0..30 {
            let (record, found) = scrub(fs);
            if !found.is_empty() || record.state != FINISHED {
                stop.store(true, Ordering::Relaxed);
            }
            assert_eq!(found, []);
        }
        stop.store(true, Ordering::Relaxed);
    });
    p.fs.close().unwrap();
}

#[test]
fn scrub_runs_on_while_the_file_system_grows() {
    let sim = SimBackend::new(LEN).unwrap();
    let region = Region::new("scrub", Box::new(sim.clone()));
    let options = FormatOptions {
        size: Some(8 << 20),
        ..FormatOptions::default()
    };
    format(&region, &options).unwrap();
    drop(region);
    let fs = open(&sim);
    let file = fs.create(&ROOT, Ino::ROOT, b"file", 0o644).unwrap().ino;
    fs.write(&ROOT, file, 0, &vec![7; 4 << 20]).unwrap();
    scrub_with(&fs, &Host::stopping(20, Order::Interrupt), false);
    let host = Host::stopping(20, Order::Interrupt);
    assert_eq!(scrub_with(&fs, &host, true).state, UNDER_WAY);
    let grown = fs.grow(None).unwrap();
    assert!(grown.to > grown.from);
    fs.write(&ROOT, file, 8 << 20, &vec![8; 6 << 20]).unwrap();
    let host = Host::new();
    let record = scrub_with(&fs, &host, true);
    assert_eq!((record.state, host.kinds().len()), (FINISHED, 0));
    assert!(record.done > 10 << 20, "{record:?}");
    fs.close().unwrap();
}

#[test]
fn thread_is_interrupted_by_the_unmount_and_goes_on_later() {
    let p = planted();
    assert!(!p.fs.cancel_scrub(), "nothing runs");
    let status = p.fs.scrub_status();
    assert!(!status.running && status.state == NEVER && status.kept);
    // So slow that it would take hours.
    let options = ScrubOptions {
        limit: Some(100),
        resume: false,
    };
    p.fs.start_scrub(options).unwrap();
    let second = p.fs.start_scrub(options).unwrap_err();
    assert_eq!(second.errno(), libc::EBUSY);
    while p.fs.scrub_status().done == 0 {
        std::thread::yield_now();
    }
    assert!(p.fs.scrub_status().running);
    p.fs.close().unwrap();
    let fs = open(&p.sim);
    let status = fs.scrub_status();
    assert!(!status.running && status.done > 0);
    assert_eq!(status.state, UNDER_WAY);
    let options = ScrubOptions {
        limit: None,
        resume: true,
    };
    fs.start_scrub(options).unwrap();
    while fs.wait_for_scrub(Duration::from_secs(5)).running {}
    let status = fs.scrub_status();
    assert_eq!((status.state, status.errno), (FINISHED, 0));
    assert!(status.run_done < status.done);
    // Cancelled at once, however slow it is.
    let slow = ScrubOptions {
        limit: Some(1),
        resume: false,
    };
    fs.start_scrub(slow).unwrap();
    assert!(fs.cancel_scrub());
    while fs.wait_for_scrub(Duration::from_secs(5)).running {}
    assert_eq!(fs.scrub_status().state, CANCELLED);
    fs.close().unwrap();
}

#[test]
fn findings_are_listed_and_counted_over_all_scrubs() {
    let p = planted();
    flip(&p.fs, 0x38);
    for round in 1..=2 {
        p.fs.start_scrub(ScrubOptions::default()).unwrap();
        while p.fs.wait_for_scrub(Duration::from_secs(5)).running {}
        let status = p.fs.scrub_status();
        assert_eq!((status.found, status.findings), (1, round));
        assert_eq!(&status.first.kind[..19], b"superblock-damaged\0");
        let found = p.fs.scrub_finding(0).unwrap();
        assert_eq!(found.kind, Damage::SuperblockDamaged);
        assert_eq!(p.fs.scrub_finding(1), None);
    }
    drop(p.fs);
}
