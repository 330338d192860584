//! Direct appends beside a mount: what others see of them, who takes the window away, and what
//! is left after the deaths of client and server.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

use pramfs_client::{Access, Error};
use pramfs_tests::mounted::{Mounted, wait_until};
use rustix::fs::FallocateFlags;

use crate::direct::{BLOCK, OPTIONS, assert_checked, contents, file, kills, leases};
use crate::direct_client::{Client, start};
use crate::direct_write::opened;
use crate::mounted;

const B: u64 = BLOCK as u64;
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Opens a file through the mount.
fn through(mount: &Mounted, flags: i32) -> File {
    let mut how = File::options();
    how.read(true).write(true).custom_flags(flags);
    how.open(mount.at("file")).unwrap()
}

/// Makes a call through the mount. It fails with EBUSY if the holder of the window is amid an append
/// for long, as on a machine under load; then it is made again.
fn until_free<T>(mut call: impl FnMut() -> io::Result<T>) -> T {
    let mut done = None;
    assert!(wait_until(|| match call() {
        Err(busy) if busy.raw_os_error() == Some(libc::EBUSY) => false,
        result => {
            done = Some(result.unwrap());
            true
        }
    }));
    done.unwrap()
}

pub(super) fn end(mount: &Mounted) {
    assert!(wait_until(|| leases(mount).is_empty()));
    mount.unmount();
    assert_checked(mount);
}

/// Bytes that no other append has.
pub(super) fn bytes(n: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(n).collect()
}

// ---- what others see

#[test]
fn append_by_lease_is_seen_by_stat_and_read_of_other_process() {
    for (options, flags) in [("", 0), ("", libc::O_DIRECT), (",cache=none", 0)] {
        let Some((mount, _dog)) = mounted("append", &format!("{OPTIONS}{options}")) else {
            return;
        };
        drop(file(&mount, "file", 1));
        let direct = opened(&mount, "file");
        let other = through(&mount, flags);
        let mut expect = fs::read(mount.at("file")).unwrap();
        for (round, len) in [1, 7, 4096, 100, 5000, 70_000]
            .into_iter()
            .cycle()
            .take(60)
            .enumerate()
        {
            let more = bytes(len, round as u64);
            assert_eq!(direct.append(&more).unwrap(), expect.len() as u64);
            expect.extend(&more);
            let size = expect.len() as u64;
            assert_eq!(direct.len().unwrap(), size);
            assert_eq!(other.metadata().unwrap().len(), size, "{options} {flags}");
            assert_eq!(fs::metadata(mount.at("file")).unwrap().len(), size);
            assert_eq!((&other).seek(SeekFrom::End(0)).unwrap(), size);
            let mut last = vec![0; len];
            other.read_exact_at(&mut last, size - len as u64).unwrap();
            assert!(last == more, "{options} {flags}, round {round}");
            // What this process has appended, without a stat before.
            last.fill(0);
            direct.read_exact_at(&mut last, size - len as u64).unwrap();
            assert!(last == more);
        }
        assert!(fs::read(mount.at("file")).unwrap() == expect);
        assert!(contents(&direct) == expect);
        let mut read = Vec::new();
        through(&mount, flags).read_to_end(&mut read).unwrap();
        assert!(read == expect);
        drop((direct, other));
        end(&mount);
    }
}

#[test]
fn appends_fill_many_windows_and_leave_nothing_else() {
    let Some((mount, _dog)) = mounted("windows", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 1));
    let direct = opened(&mount, "file");
    let mut expect = contents(&direct);
    // 24 MiB: windows of 256 KiB to 16 MiB, which appends of this size do not fill up.
    for round in 0..240 {
        let more = bytes(100_003, round);
        direct.append(&more).unwrap();
        expect.extend(&more);
    }
    assert!(contents(&direct) == expect);
    assert!(fs::read(mount.at("file")).unwrap() == expect);
    let blocks = |mount: &Mounted| {
        let stat = fs::metadata(mount.at("file")).unwrap();
        std::os::unix::fs::MetadataExt::blocks(&stat) * 512
    };
    drop(direct);
    assert!(wait_until(|| leases(&mount).is_empty()));
    // Besides the data there are blocks of pointers.
    let kept = blocks(&mount) - expect.len() as u64;
    assert!(kept < 64 * 1024, "{kept} bytes past the end are not freed");
    end(&mount);
}

#[test]
fn write_past_end_by_lease_is_an_append() {
    let Some((mount, _dog)) = mounted("write", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 2));
    let direct = opened(&mount, "file");
    let mut expect = contents(&direct);
    // At the end, and across it.
    for (back, len) in [(0, 100), (50, 5000), (5000, 5001), (0, 300 * KIB), (1, 2)] {
        let (at, more) = (expect.len() - back, bytes(len, len as u64));
        assert_eq!(direct.write_at(&more, at as u64).unwrap(), len);
        expect.truncate(at);
        expect.extend(&more);
        assert!(
            fs::read(mount.at("file")).unwrap() == expect,
            "{back} {len}"
        );
    }
    // A gap: through the mount. The blocks of the window are there, and read as zeros.
    let at = expect.len() + 10_000;
    direct.write_all_at(b"past a gap", at as u64).unwrap();
    expect.resize(at, 0);
    expect.extend(b"past a gap");
    assert!(fs::read(mount.at("file")).unwrap() == expect);
    let at = direct.append(b"and on").unwrap();
    assert_eq!(at, expect.len() as u64);
    expect.extend(b"and on");
    assert!(contents(&direct) == expect);
    let view = direct.map(0..direct.len().unwrap(), Access::Read).unwrap();
    assert!(crate::direct::view_contents(&view) == expect);
    drop((view, direct));
    end(&mount);
}

#[test]
fn append_longer_than_window_goes_through_mount() {
    let Some((mount, _dog)) = mounted("long", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 1));
    let direct = opened(&mount, "file");
    let mut expect = contents(&direct);
    for len in [10, 17 * MIB, 10, 5 * MIB, 10] {
        let more = bytes(len, len as u64);
        assert_eq!(direct.append(&more).unwrap(), expect.len() as u64);
        expect.extend(&more);
    }
    assert!(fs::read(mount.at("file")).unwrap() == expect);
    drop(direct);
    end(&mount);
}

#[test]
fn appends_set_mtime_of_file() {
    let Some((mount, _dog)) = mounted("mtime", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 1));
    let direct = opened(&mount, "file");
    direct.append(b"opens the window").unwrap();
    for _ in 0..3 {
        through(&mount, 0)
            .set_modified(SystemTime::UNIX_EPOCH)
            .unwrap();
        direct.append(b"x").unwrap();
        let now = fs::metadata(mount.at("file")).unwrap().modified().unwrap();
        assert_ne!(now, SystemTime::UNIX_EPOCH);
    }
    drop(direct);
    end(&mount);
}

#[test]
fn full_region_refuses_append_without_a_part() {
    let Some((mount, _dog)) = mounted("full", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 1));
    let direct = opened(&mount, "file");
    let (block, mut size) = (bytes(64 * KIB, 5), B);
    let failed = loop {
        match direct.append(&block) {
            Ok(at) => {
                assert_eq!(at, size);
                size += block.len() as u64;
            }
            Err(error) => break error,
        }
    };
    assert_eq!(failed.errno(), libc::ENOSPC, "{failed}");
    assert!(
        size > 32 << 20,
        "the windows take {size} bytes of 64 MiB only"
    );
    assert_eq!(direct.len().unwrap(), size);
    assert_eq!(fs::metadata(mount.at("file")).unwrap().len(), size);
    // Room again.
    through(&mount, 0).set_len(B).unwrap();
    assert_eq!(direct.len().unwrap(), B);
    drop(direct);
    assert!(wait_until(|| leases(&mount).is_empty()));
    let direct = opened(&mount, "file");
    assert_eq!(direct.append(&block).unwrap(), B);
    drop(direct);
    end(&mount);
}

// ---- others change the size

/// A record of one appender: its number, a count, and a fill that follows from both.
fn record(appender: u8, count: u32) -> Vec<u8> {
    let len = 16 + (count as usize * 37 + usize::from(appender) * 11) % 700;
    let mut record = vec![appender; len];
    record[1..5].copy_from_slice(&count.to_le_bytes());
    record[5..9].copy_from_slice(&(len as u32).to_le_bytes());
    for (i, byte) in record[9..].iter_mut().enumerate() {
        *byte = (count as usize + i) as u8 ^ appender;
    }
    record
}

/// Checks that a log consists of whole records, and returns how many each appender has.
fn records(log: &[u8]) -> [u32; 4] {
    let (mut counts, mut at) = ([0; 4], 0);
    while at < log.len() {
        let appender = log[at];
        let len = u32::from_le_bytes(log[at + 5..at + 9].try_into().unwrap()) as usize;
        let count = &mut counts[usize::from(appender)];
        assert!(
            log.get(at..at + len) == Some(&record(appender, *count)[..]),
            "record {count} of {appender} at {at} of {}",
            log.len()
        );
        *count += 1;
        at += len;
    }
    counts
}

#[test]
fn append_while_others_append_through_mount_loses_nothing() {
    let Some((mount, _dog)) = mounted("mixed", OPTIONS) else {
        return;
    };
    drop(File::create(mount.at("file")).unwrap());
    let direct = opened(&mount, "file");
    let (stop, done) = (AtomicBool::new(false), AtomicU32::new(0));
    let counts: Vec<u32> = std::thread::scope(|scope| {
        let (direct, stop, done, mount) = (&direct, &stop, &done, &mount);
        let direct_appender = scope.spawn(move || {
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                direct.append(&record(0, count)).unwrap();
                count += 1;
                // It would fill the region before the others are done.
                while count > 1000 + 40 * done.load(Ordering::Relaxed)
                    && !stop.load(Ordering::Relaxed)
                {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
            count
        });
        let others: Vec<_> = (1..4u8)
            .map(|appender| {
                scope.spawn(move || {
                    let flags = if appender == 2 { libc::O_DIRECT } else { 0 };
                    let mut how = OpenOptions::new();
                    how.append(true).custom_flags(flags);
                    let mut log = until_free(|| how.open(mount.at("file")));
                    // With pauses, so that windows live for a while in between.
                    for count in 0..400 {
                        let record = record(appender, count);
                        until_free(|| log.write_all(&record));
                        done.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(Duration::from_micros(u64::from(count % 8) * 100));
                    }
                    400
                })
            })
            .collect();
        let others: Vec<u32> = others.into_iter().map(|o| o.join().unwrap()).collect();
        stop.store(true, Ordering::Relaxed);
        let first = direct_appender.join().unwrap();
        std::iter::once(first).chain(others).collect()
    });
    let log = fs::read(mount.at("file")).unwrap();
    assert!(contents(&direct) == log);
    assert_eq!(records(&log)[..], counts[..]);
    drop(direct);
    end(&mount);
}

#[test]
fn threads_of_one_client_append_whole_records() {
    let Some((mount, _dog)) = mounted("threads", OPTIONS) else {
        return;
    };
    drop(File::create(mount.at("file")).unwrap());
    let direct = opened(&mount, "file");
    std::thread::scope(|scope| {
        for appender in 0..4 {
            let direct = &direct;
            scope.spawn(move || {
                for count in 0..2000 {
                    let record = record(appender, count);
                    let at = direct.append(&record).unwrap();
                    let mut back = vec![0; record.len()];
                    direct.read_exact_at(&mut back, at).unwrap();
                    assert!(back == record);
                }
            });
        }
    });
    assert_eq!(records(&fs::read(mount.at("file")).unwrap()), [2000; 4]);
    drop(direct);
    end(&mount);
}

#[test]
fn truncate_through_mount_during_appends_leaves_whole_records() {
    let Some((mount, _dog)) = mounted("truncate", OPTIONS) else {
        return;
    };
    drop(File::create(mount.at("file")).unwrap());
    let direct = opened(&mount, "file");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                // Records of one length, so that a truncation can cut between two.
                let mut record = [0u8; 64];
                record[..4].copy_from_slice(&u32::to_le_bytes(count));
                record[60..].copy_from_slice(&u32::to_le_bytes(count));
                let at = direct.append(&record).unwrap();
                assert_eq!(at % 64, 0);
                count += 1;
                // The longer the file, the longer the reads, and the longer the file then.
                while at > 4 << 20 && !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_micros(50));
                    if direct.len().unwrap() < 4 << 20 {
                        break;
                    }
                }
            }
        });
        let file = through(&mount, 0);
        for round in 0..200 {
            std::thread::sleep(Duration::from_micros(500));
            let size = file.metadata().unwrap().len();
            let cut = size / 64 * (round % 3) / 3 * 64;
            until_free(|| file.set_len(cut));
            let now = fs::read(mount.at("file")).unwrap();
            assert!(now.len() as u64 >= cut && now.len() % 64 == 0);
            for (i, record) in now.chunks(64).enumerate() {
                assert_eq!(
                    record[..4],
                    record[60..],
                    "record {i} of {} bytes",
                    now.len()
                );
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let shown = fs::read(mount.at("file")).unwrap();
    assert_eq!(direct.len().unwrap(), shown.len() as u64);
    assert!(contents(&direct) == shown);
    // Without an append since.
    through(&mount, 0).set_len(10).unwrap();
    assert_eq!(direct.len().unwrap(), 10);
    assert_eq!(direct.append(b"x").unwrap(), 10);
    through(&mount, 0).set_len(3 * B).unwrap();
    assert_eq!(direct.append(b"y").unwrap(), 3 * B);
    let shown = fs::read(mount.at("file")).unwrap();
    assert!(shown[11..3 * BLOCK].iter().all(|byte| *byte == 0));
    drop(direct);
    end(&mount);
}

#[test]
fn each_change_of_size_through_mount_is_seen_by_appender() {
    let Some((mount, _dog)) = mounted("changes", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 2));
    let direct = opened(&mount, "file");
    let keep = FallocateFlags::KEEP_SIZE;
    type Change<'a> = (&'a str, &'a dyn Fn(&File, u64));
    let changes: [Change<'_>; 8] = [
        ("write at the end", &|f, size| {
            f.write_all_at(b"other", size).unwrap()
        }),
        ("write past the end", &|f, size| {
            f.write_all_at(b"other", size + 9000).unwrap()
        }),
        ("overwrite", &|f, size| {
            f.write_all_at(b"other", size - 3).unwrap()
        }),
        ("fallocate", &|f, size| {
            rustix::fs::fallocate(f, FallocateFlags::empty(), size, 100).unwrap();
        }),
        ("preallocate", &|f, size| {
            rustix::fs::fallocate(f, keep, size, 1 << 20).unwrap()
        }),
        ("punch past the end", &|f, size| {
            let punch = FallocateFlags::PUNCH_HOLE | keep;
            rustix::fs::fallocate(f, punch, size / B * B, 1 << 20).unwrap();
        }),
        ("copy_file_range", &|f, size| {
            let (mut from, mut to) = (0, size);
            let n = rustix::fs::copy_file_range(f, Some(&mut from), f, Some(&mut to), 1000);
            assert_eq!(n.unwrap(), 1000);
        }),
        ("truncate", &|f, size| f.set_len(size / 2).unwrap()),
    ];
    for (what, change) in changes {
        let at = direct.append(&bytes(300, 1)).unwrap();
        let other = through(&mount, 0);
        change(&other, at + 300);
        let size = other.metadata().unwrap().len();
        assert_eq!(direct.len().unwrap(), size, "{what}");
        assert_eq!(direct.append(b"after").unwrap(), size, "{what}");
        let shown = fs::read(mount.at("file")).unwrap();
        assert!(
            shown.ends_with(b"after") && shown.len() as u64 == size + 5,
            "{what}"
        );
        assert!(contents(&direct) == shown, "{what}");
    }
    drop(direct);
    end(&mount);
}

#[test]
fn o_append_through_mount_goes_to_end_of_direct_appends() {
    for flags in [0, libc::O_DIRECT] {
        let Some((mount, _dog)) = mounted("O_APPEND", OPTIONS) else {
            return;
        };
        drop(file(&mount, "file", 1));
        let direct = opened(&mount, "file");
        let mut log = OpenOptions::new();
        log.append(true).custom_flags(flags);
        // Opened before the appends: its kernel knows the old size.
        let mut log = log.open(mount.at("file")).unwrap();
        let mut expect = contents(&direct);
        for round in 0..20 {
            for (seed, len) in [(1, 100), (2, 2 * MIB + 17)] {
                let (ours, theirs) = (bytes(len / 2, seed), bytes(len, seed + round));
                direct.append(&ours).unwrap();
                expect.extend(&ours);
                if round < 3 || len < MIB {
                    log.write_all(&theirs).unwrap();
                    expect.extend(&theirs);
                }
            }
            if expect.len() > 20 * MIB {
                break;
            }
        }
        // The kernel has the old size after the lease too, until somebody asks.
        direct.append(b"last of the lease").unwrap();
        drop(direct);
        assert!(wait_until(|| leases(&mount).is_empty()));
        for more in [&b"after it"[..], b"and after that"] {
            log.write_all(more).unwrap();
        }
        expect.extend(b"last of the leaseafter itand after that");
        assert!(fs::read(mount.at("file")).unwrap() == expect, "{flags}");
        drop(log);
        end(&mount);
    }
}

#[test]
fn leased_file_serves_program_that_knows_trait() {
    let Some((mount, _dog)) = mounted("trait", OPTIONS) else {
        return;
    };
    File::create(mount.at("any")).unwrap();
    let direct = opened(&mount, "any");
    pramfs_tests::any_file::count_records(&direct, 50).unwrap();
    drop(direct);
    end(&mount);
}

/// `copy_file_range` ends at the kernel's size of the file, and asks nobody.
#[test]
fn open_by_other_closes_window_and_has_size_of_direct_appends() {
    for flags in [0, libc::O_DIRECT] {
        let Some((mount, _dog)) = mounted("open", OPTIONS) else {
            return;
        };
        drop(file(&mount, "file", 1));
        let direct = opened(&mount, "file");
        let mut expect = contents(&direct);
        for round in 0..5 {
            // More than the client appends through the mount after a refusal.
            for i in 0..100 {
                let more = bytes(5000, round * 100 + i);
                assert_eq!(direct.append(&more).unwrap(), expect.len() as u64);
                expect.extend(&more);
            }
            let mut options = OpenOptions::new();
            let other = options
                .read(true)
                .custom_flags(flags)
                .open(mount.at("file"));
            let (other, name) = (other.unwrap(), format!("copy-{round}"));
            let copy = File::create(mount.at(&name)).unwrap();
            let copied = || rustix::fs::copy_file_range(&other, None, &copy, None, 8 << 20);
            let mut all = 0;
            loop {
                match copied().unwrap() {
                    0 => break,
                    n => all += n,
                }
            }
            assert_eq!(all, expect.len(), "round {round}, flags {flags:#o}");
            assert!(fs::read(mount.at(&name)).unwrap() == expect);
            // While it is open, appends go through the mount.
            let more = bytes(100, round);
            assert_eq!(direct.append(&more).unwrap(), expect.len() as u64);
            expect.extend(&more);
        }
        drop(direct);
        end(&mount);
    }
}

#[test]
fn second_lease_closes_window_and_appends_go_through_mount() {
    let Some((mount, _dog)) = mounted("second", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 1));
    let direct = opened(&mount, "file");
    direct.append(b"alone").unwrap();
    let reader = pramfs_client::File::open(mount.at("file")).unwrap();
    let mut expect = contents(&direct);
    for round in 0..100 {
        let more = bytes(200, round);
        assert_eq!(direct.append(&more).unwrap(), expect.len() as u64);
        expect.extend(&more);
        // The reader has no idea of windows.
        assert!(contents(&reader) == expect, "round {round}");
    }
    // A second writer: both append through the mount.
    let other = opened(&mount, "file");
    for round in 0..100 {
        let appender = [&direct, &other][round % 2];
        let more = bytes(100, round as u64);
        assert_eq!(appender.append(&more).unwrap(), expect.len() as u64);
        expect.extend(&more);
    }
    assert!(contents(&other) == expect && contents(&direct) == expect);
    drop((reader, other));
    assert!(wait_until(|| leases(&mount).len() == 1));
    // Alone again: after a while in windows.
    for round in 0..200 {
        let more = bytes(100, round);
        direct.append(&more).unwrap();
        expect.extend(&more);
    }
    assert!(fs::read(mount.at("file")).unwrap() == expect);
    drop(direct);
    end(&mount);
}

#[test]
fn unlinked_file_is_appended_to_as_before() {
    let Some((mount, _dog)) = mounted("unlink", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 1));
    let direct = opened(&mount, "file");
    direct.append(b"before").unwrap();
    fs::remove_file(mount.at("file")).unwrap();
    let mut expect = contents(&direct);
    for len in [100, 300 * KIB, 17 * MIB, 10] {
        let more = bytes(len, len as u64);
        assert_eq!(direct.append(&more).unwrap(), expect.len() as u64);
        expect.extend(&more);
    }
    assert!(contents(&direct) == expect);
    fs::write(mount.at("filler"), vec![9; 20 << 20]).unwrap();
    direct.append(&[0x42; BLOCK]).unwrap();
    let filler = fs::read(mount.at("filler")).unwrap();
    assert!(filler.iter().all(|byte| *byte == 9), "another file is hit");
    drop(direct);
    end(&mount);
}

#[test]
fn lease_for_reading_does_not_append() {
    let Some((mount, _dog)) = mounted("reader", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 1));
    let direct = pramfs_client::File::open(mount.at("file")).unwrap();
    assert!(matches!(direct.append(b"x"), Err(Error::NotWritable)));
    assert!(
        crate::direct::connection(&mount)
            .window(leases(&mount)[0].lease, 1, 1)
            .is_err()
    );
    drop(direct);
    end(&mount);
}

// ---- deaths

#[test]
fn client_appends_on_after_death_of_server_until_window_is_full() {
    let Some((mount, _dog)) = mounted("killed server", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 1));
    let direct = opened(&mount, "file");
    let mut expect = contents(&direct);
    direct.append(b"opens the window").unwrap();
    expect.extend(b"opens the window");
    mount.crash();
    let gone = loop {
        match direct.append(&[0x61; 1000]) {
            Ok(at) => {
                assert_eq!(at, expect.len() as u64);
                expect.extend([0x61; 1000]);
            }
            Err(error) => break error,
        }
    };
    assert!(gone.is_server_gone(), "{gone}");
    assert!(expect.len() > 200_000 && contents(&direct) == expect);
    mount.mount(OPTIONS);
    assert!(fs::read(mount.at("file")).unwrap() == expect);
    assert_eq!(direct.len().unwrap(), expect.len() as u64);
    // At the new server. The old lease lives no longer than its last user.
    assert_eq!(direct.append(b"on").unwrap(), expect.len() as u64);
    expect.extend(b"on");
    for _ in 0..100 {
        direct.append(&[0x62; 100]).unwrap();
        expect.extend([0x62; 100]);
    }
    assert!(fs::read(mount.at("file")).unwrap() == expect);
    drop(direct);
    end(&mount);
}

#[test]
fn appends_of_killed_client_that_returned_are_there() {
    let Some((mount, _dog)) = mounted("killed appender", OPTIONS) else {
        return;
    };
    drop(File::create(mount.at("file")).unwrap());
    for round in 0..kills(20) {
        let mut appender = Appender::start(&mount, round % 7 * 30);
        appender.client.child.kill().unwrap();
        appender.assert_appended(&mount);
    }
    end(&mount);
}

#[test]
fn appends_that_returned_are_there_after_both_deaths() {
    let Some((mount, _dog)) = mounted("both killed", OPTIONS) else {
        return;
    };
    drop(File::create(mount.at("file")).unwrap());
    for round in 0..kills(6) {
        let mut appender = Appender::start(&mount, round % 5 * 40);
        match round % 3 {
            0 => {
                appender.client.child.kill().unwrap();
                mount.crash();
            }
            1 => {
                mount.crash();
                appender.client.child.kill().unwrap();
            }
            // It appends on for a while without a server.
            _ => {
                mount.crash();
                (0..20).for_each(|_| appender.one_more());
                appender.client.child.kill().unwrap();
            }
        }
        mount.mount(OPTIONS);
        appender.assert_appended(&mount);
    }
    end(&mount);
}

/// A process that appends records, and says the number of each afterwards.
struct Appender {
    client: Client,
    last: u32,
}

impl Appender {
    fn start(mount: &Mounted, appends: u64) -> Appender {
        let client = start(None, mount, "append", &[]);
        let mut appender = Appender {
            last: client.said.parse().unwrap(),
            client,
        };
        (0..appends).for_each(|_| appender.one_more());
        appender
    }

    fn one_more(&mut self) {
        self.last = self.client.says().unwrap().parse().unwrap();
    }

    /// It is dead. What it has said is in the file, whole, and nothing is torn. The file is
    /// then empty again.
    fn assert_appended(mut self, mount: &Mounted) {
        self.client.child.wait().unwrap();
        while let Some(said) = self.client.says() {
            self.last = said.parse().unwrap();
        }
        let begun = Instant::now();
        let log = fs::read(mount.at("file")).unwrap();
        let found = records(&log)[0];
        // The next one may have been appended, and not said.
        let told = self.last + 1;
        assert!(found == told || found == told + 1, "{found} of {told}");
        assert!(begun.elapsed() < Duration::from_secs(10));
        through(mount, 0).set_len(0).unwrap();
    }
}

/// What the process does that [`Appender`] starts.
pub(super) fn append_records(path: &str, say: &dyn Fn(&str)) {
    let file = pramfs_client::OpenOptions::new().write(true);
    let mut file_opened = file.open(path);
    // The test has had it open.
    assert!(wait_until(|| {
        if file_opened.is_err() {
            file_opened = file.open(path);
        }
        file_opened.is_ok()
    }));
    let file = file_opened.unwrap();
    for count in 0.. {
        file.append(&record(0, count)).unwrap();
        say(&count.to_string());
    }
}
