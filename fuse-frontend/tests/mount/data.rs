//! File contents: cached and direct I/O, appends, sparse files, copies.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use rustix::fs::{FallocateFlags, SeekFrom, copy_file_range, fallocate, seek};
use rustix::io::Errno;

use crate::{MIB, mounted, unmounted};

/// Returns bytes that differ everywhere.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64)
        .map(|n| (n.wrapping_mul(0x9e37_79b9).wrapping_add(seed) >> 11) as u8)
        .collect()
}

#[test]
fn written_data_reads_back_in_both_cache_modes() {
    for mode in ["cache=auto", "cache=none"] {
        let Some((mount, _dog)) = mounted("cache modes", mode) else {
            return;
        };
        let path = mount.at("file");
        let bytes = pattern(5 * MIB as usize + 321, 1);
        fs::write(&path, &bytes).unwrap();
        assert!(fs::read(&path).unwrap() == bytes, "{mode}");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let mut expected = bytes;
        for (offset, len) in [
            (0, 1),
            (4095, 2),
            (4096, 4096),
            (1 << 20, 70_000),
            (expected.len() - 5, 100),
        ] {
            let piece = pattern(len, offset as u64);
            file.write_all_at(&piece, offset as u64).unwrap();
            if expected.len() < offset + len {
                expected.resize(offset + len, 0);
            }
            expected[offset..offset + len].copy_from_slice(&piece);
            assert_eq!(file.metadata().unwrap().len(), expected.len() as u64);
        }
        assert!(fs::read(&path).unwrap() == expected, "{mode}");
        drop(file);
        mount.unmount();
        mount.mount(mode);
        assert!(
            fs::read(&path).unwrap() == expected,
            "{mode}, mounted again"
        );
    }
}

#[test]
fn direct_and_cached_io_are_coherent() {
    let Some((mount, _dog)) = mounted("O_DIRECT", "") else {
        return;
    };
    let path = mount.at("file");
    let cached = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    let direct = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .unwrap();
    let mut got = vec![0; 8192];
    for round in 0..20 {
        let one = pattern(8192, round);
        cached.write_all_at(&one, 0).unwrap();
        direct.read_exact_at(&mut got, 0).unwrap();
        assert!(got == one, "cached to direct, round {round}");
        let two = pattern(8192, round + 1000);
        direct.write_all_at(&two, 0).unwrap();
        cached.read_exact_at(&mut got, 0).unwrap();
        assert!(got == two, "direct to cached, round {round}");
    }
}

#[test]
fn appends_through_two_descriptors_keep_all_lines() {
    for mode in ["cache=auto", "cache=none"] {
        let Some((mount, _dog)) = mounted("O_APPEND", mode) else {
            return;
        };
        let path = mount.at("log");
        fs::write(&path, "").unwrap();
        const LINES: usize = 500;
        std::thread::scope(|scope| {
            for writer in ["a", "b"] {
                let path = &path;
                scope.spawn(move || {
                    let mut log = OpenOptions::new().append(true).open(path).unwrap();
                    for n in 0..LINES {
                        log.write_all(format!("{writer}{n:06}\n").as_bytes())
                            .unwrap();
                    }
                });
            }
        });
        let log = fs::read_to_string(&path).unwrap();
        assert_eq!(log.len(), 2 * LINES * 8, "{mode}");
        for writer in ["a", "b"] {
            let lines: Vec<&str> = log
                .lines()
                .filter(|line| line.starts_with(writer))
                .collect();
            assert_eq!(lines.len(), LINES);
            assert!(lines.is_sorted(), "in order");
        }
    }
}

#[test]
fn unlinked_open_file_lives_until_close() {
    let Some((mount, _dog)) = mounted("unlinked but open", "") else {
        return;
    };
    let free = || rustix::fs::statvfs(mount.path()).unwrap().f_bfree;
    let before = free();
    let path = mount.at("file");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    file.write_all(&pattern(MIB as usize, 3)).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(!path.exists());
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all(b"more").unwrap();
    let mut got = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut got).unwrap();
    assert!(got.ends_with(b"more") && got.len() as u64 == MIB + 4);
    file.set_len(10).unwrap();
    fs::write(&path, "another").unwrap();
    assert_ne!(
        fs::metadata(&path).unwrap().ino(),
        file.metadata().unwrap().ino()
    );
    fs::remove_file(&path).unwrap();
    drop(file);
    // A few blocks of metadata may stay; those of the file may not.
    assert!(
        pramfs_tests::mounted::wait_until(|| before - free() < 64),
        "{} of {before}",
        free()
    );
}

#[test]
fn sparse_file_reports_holes_and_reads_zeros() {
    let Some((mount, _dog)) = mounted("SEEK_HOLE", "") else {
        return;
    };
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(mount.at("sparse"))
        .unwrap();
    file.write_all_at(b"x", 10 * MIB).unwrap();
    file.write_all_at(b"x", 20 * MIB).unwrap();
    file.set_len(30 * MIB).unwrap();
    assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(10 * MIB));
    assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(0));
    assert_eq!(seek(&file, SeekFrom::Hole(10 * MIB)), Ok(10 * MIB + 4096));
    assert_eq!(seek(&file, SeekFrom::Data(10 * MIB + 4096)), Ok(20 * MIB));
    assert_eq!(
        seek(&file, SeekFrom::Data(20 * MIB + 4096)),
        Err(Errno::NXIO)
    );
    assert_eq!(seek(&file, SeekFrom::Hole(30 * MIB)), Err(Errno::NXIO));
    assert!(file.metadata().unwrap().blocks() < 2048);
    let far = (16u64 << 40) - 4096;
    file.write_all_at(b"far", far).unwrap();
    let mut got = [0; 3];
    file.read_exact_at(&mut got, far).unwrap();
    assert_eq!(&got, b"far");
}

#[test]
fn fallocate_modes_change_size_and_contents() {
    let Some((mount, _dog)) = mounted("fallocate", "") else {
        return;
    };
    let path = mount.at("file");
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    let bytes = pattern(64 << 10, 4);
    file.write_all_at(&bytes, 0).unwrap();
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, MIB).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 64 << 10);
    assert!(file.metadata().unwrap().blocks() >= 2048);
    fallocate(&file, FallocateFlags::empty(), 0, MIB).unwrap();
    assert_eq!(file.metadata().unwrap().len(), MIB);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 5000, 20_000).unwrap();
    fallocate(&file, FallocateFlags::ZERO_RANGE, 40_000, 1000).unwrap();
    let mut expected = bytes;
    expected.resize(MIB as usize, 0);
    expected[5000..25_000].fill(0);
    expected[40_000..41_000].fill(0);
    assert!(fs::read(&path).unwrap() == expected);
    assert_eq!(
        fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096),
        Err(Errno::OPNOTSUPP)
    );
    assert_eq!(
        fallocate(&file, FallocateFlags::empty(), 0, 1 << 40),
        Err(Errno::NOSPC)
    );
    assert!(
        fs::read(&path).unwrap() == expected,
        "the failed calls changed nothing"
    );
}

#[test]
fn copy_file_range_copies_within_mount() {
    let Some((mount, _dog)) = mounted("copy_file_range", "") else {
        return;
    };
    let bytes = pattern(20 * MIB as usize + 77, 5);
    fs::write(mount.at("from"), &bytes).unwrap();
    let from = File::open(mount.at("from")).unwrap();
    let to = File::options()
        .write(true)
        .create_new(true)
        .open(mount.at("to"))
        .unwrap();
    let (mut at, mut out, mut left) = (100, 50, bytes.len() - 100);
    while left > 0 {
        let copied = copy_file_range(&from, Some(&mut at), &to, Some(&mut out), left).unwrap();
        assert_ne!(copied, 0);
        left -= copied;
    }
    assert_eq!(
        copy_file_range(&from, Some(&mut at), &to, Some(&mut out), 1),
        Ok(0),
        "the end"
    );
    let copy = fs::read(mount.at("to")).unwrap();
    assert!(copy[..50].iter().all(|byte| *byte == 0) && copy[50..] == bytes[100..]);
}

#[test]
fn truncate_shrinks_grows_and_zeroes() {
    let Some((mount, _dog)) = mounted("truncate", "") else {
        return;
    };
    let path = mount.at("file");
    fs::write(&path, pattern(100_000, 6)).unwrap();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    file.set_len(5000).unwrap();
    file.set_len(200_000).unwrap();
    let mut expected = pattern(5000, 6);
    expected.resize(200_000, 0);
    assert!(
        fs::read(&path).unwrap() == expected,
        "truncated data does not come back"
    );
    File::create(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 0, "O_TRUNC");
}

#[test]
fn write_on_full_region_fails_with_enospc() {
    let Some((mount, _dog)) = mounted("ENOSPC", "") else {
        return;
    };
    let mut file = File::create_new(mount.at("filler")).unwrap();
    let block = vec![1; MIB as usize];
    let error = loop {
        if let Err(error) = file.write_all(&block) {
            break error;
        }
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    drop(file);
    assert!(fs::metadata(mount.at("filler")).unwrap().len() > 32 * MIB);
    fs::remove_file(mount.at("filler")).unwrap();
    fs::write(mount.at("fits"), &block).unwrap();
}

#[test]
fn region_truncated_under_mount_gives_eio() {
    let Some((mount, _dog)) = unmounted("truncated region") else {
        return;
    };
    mount.mount("cache=none");
    fs::write(mount.at("file"), pattern(32 * MIB as usize, 7)).unwrap();
    let region = File::options().write(true).open(mount.region()).unwrap();
    region.set_len(8 * MIB).unwrap();
    let file = File::open(mount.at("file")).unwrap();
    let mut failed = 0;
    let mut buffer = vec![0; 4096];
    for offset in (0..32 * MIB).step_by(MIB as usize) {
        match file.read_at(&mut buffer, offset) {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EIO));
                failed += 1;
            }
        }
    }
    assert!(failed > 0);
    let write = OpenOptions::new().write(true).open(mount.at("file"));
    let error = write
        .and_then(|file| file.write_at(&buffer, 31 * MIB))
        .unwrap_err();
    assert!(
        matches!(error.raw_os_error(), Some(libc::EIO | libc::EROFS)),
        "{error}"
    );
    mount.process();
}
