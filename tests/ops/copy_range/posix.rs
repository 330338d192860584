//! copy_file_range: within a file and across files, short at EOF, refused for overlapping
//! ranges (xfstests 430-434 553 564 565).

use std::fs::{self, File};
use std::path::Path;

use pramfs_tests::syscalls::{Sys, errno};
use rustix::fs::{OFlags, copy_file_range};

use crate::support::mount::Reference::{Ext4, Tmpfs};
use crate::support::mount::agree;
use crate::support::transcript::Transcript;

const LEN: usize = 300_000;

fn pattern() -> Vec<u8> {
    (0..LEN).map(|i| (i * 7 / 3) as u8).collect()
}

fn both(path: &Path) -> File {
    File::options()
        .read(true)
        .write(true)
        .open(path)
        .expect("open")
}

/// Length and checksum, to compare contents.
fn sum(path: &Path) -> (usize, u32) {
    let bytes = fs::read(path).expect("read");
    (bytes.len(), crc32c::crc32c(&bytes))
}

/// Repeats the call until it returns 0, since the kernel may copy less than asked.
/// Returns the total.
fn copy(from: &File, mut at: u64, to: &File, mut target: u64, len: usize) -> Sys<usize> {
    let mut done = 0;
    while done < len {
        match errno(copy_file_range(
            from,
            Some(&mut at),
            to,
            Some(&mut target),
            len - done,
        )) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
        }
    }
    Ok(done)
}

#[test]
fn copy_range_works_within_and_across_files() {
    agree("copy_file_range", &[Tmpfs, Ext4], |dir, n| {
        let (a, b) = (dir.join("a"), dir.join("b"));
        fs::write(&a, pattern()).expect("a file");
        fs::write(&b, "").expect("a file");
        let len = LEN as u64;
        let step =
            |n: &mut Transcript, from: &Path, at: u64, to: &Path, target: u64, want: usize| {
                let what = format!("{at} to {target}, {want}");
                let done = copy(&both(from), at, &both(to), target, want);
                n.note(&what, done);
                n.note(&what, (sum(&a), sum(&b)));
            };
        step(n, &a, 0, &b, 0, LEN);
        step(n, &a, 100, &b, 5, 10_000);
        step(n, &a, len - 10, &b, 0, 100);
        step(n, &a, len, &b, 0, 100);
        step(n, &a, len + 5000, &b, 0, 100);
        step(n, &a, 0, &b, len + 50_000, 4096);
        step(n, &a, 0, &b, 0, 0);
        // Within one file: to a distant range, an adjacent range, and onto itself.
        step(n, &a, 0, &a, len, 5000);
        step(n, &a, 0, &a, 4096, 4096);
        step(n, &a, 8192, &a, 4096, 4096);
        step(n, &a, 0, &a, 100, 4096);
        step(n, &a, 100, &a, 0, 4096);
        step(n, &a, 0, &a, 0, 4096);
    });
}

#[test]
fn copy_range_of_invalid_arguments_fails() {
    // Files of ext4 end at 16 TiB, those of pramfs and tmpfs at the largest offset.
    agree("copy_file_range refused", &[Tmpfs], |dir, n| {
        let (a, b) = (dir.join("a"), dir.join("b"));
        fs::write(&a, pattern()).expect("a file");
        fs::write(&b, pattern()).expect("a file");
        let open = |path: &Path, flags: OFlags| -> File {
            let flags = flags | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, rustix::fs::Mode::empty())
                .expect("open")
                .into()
        };
        let (read, write) = (open(&a, OFlags::RDONLY), open(&b, OFlags::WRONLY));
        n.call(
            "to a reader",
            copy(&read, 0, &open(&b, OFlags::RDONLY), 0, 10),
        );
        n.call(
            "from a writer",
            copy(&open(&a, OFlags::WRONLY), 0, &write, 0, 10),
        );
        let appending = open(&b, OFlags::WRONLY | OFlags::APPEND);
        n.call("to the end", copy(&read, 0, &appending, 0, 10));
        let itself = File::open(dir).expect("the directory");
        n.call("from a directory", copy(&itself, 0, &write, 0, 10));
        n.call("too far", copy(&read, 0, &write, i64::MAX as u64 - 5, 100));
        n.call("beyond", copy(&read, 0, &write, i64::MAX as u64, 100));
        // A copy up to the largest offset would take long to read back.
        let size = fs::metadata(&b).expect("stat").len();
        n.note("left", (sum(&a), size));
    });
}

/// Holes of the source become zeros in the copy. Times change as for a write.
#[test]
fn copy_range_has_effects_of_write() {
    agree("copy_file_range as a write", &[Tmpfs, Ext4], |dir, n| {
        let (a, b) = (dir.join("a"), dir.join("b"));
        let from = File::create(&a).expect("a file");
        from.set_len(1 << 20).expect("its size");
        std::os::unix::fs::FileExt::write_all_at(&from, b"data", 500_000).expect("write");
        fs::write(&b, vec![0x55; 2000]).expect("a file");
        let before = rustix::fs::stat(&b).expect("stat");
        std::thread::sleep(std::time::Duration::from_millis(30));
        n.note("copied", copy(&both(&a), 0, &both(&b), 1000, 1 << 20));
        n.note("left", sum(&b));
        let after = rustix::fs::stat(&b).expect("stat");
        let time = |s: &rustix::fs::Stat| (s.st_mtime, s.st_mtime_nsec);
        n.note("mtime", time(&after) > time(&before));
    });
}

/// Holes take space in the copy, so the copy can be overwritten.
#[test]
fn copy_range_allocates_holes() {
    agree("space of a copy", &[Tmpfs, Ext4], |dir, n| {
        let (a, b) = (dir.join("a"), dir.join("b"));
        let from = File::create(&a).expect("a file");
        from.set_len(20 << 20).expect("its size");
        std::os::unix::fs::FileExt::write_all_at(&from, &[7; 8192], 5 << 20).expect("write");
        fs::write(&b, "").expect("a file");
        // Large enough for several requests of a mount.
        n.note("copied", copy(&both(&a), 0, &both(&b), 0, 20 << 20));
        both(&b).sync_all().expect("fsync");
        n.note("left", sum(&b));
        let stat = rustix::fs::stat(&b).expect("stat");
        n.note("space", stat.st_blocks as u64 * 512 >= 20 << 20);
        // Into the middle of existing data, and beyond its end.
        n.note(
            "again",
            copy(&both(&a), 5 << 20, &both(&b), (20 << 20) - 100, 8192),
        );
        n.note("left", sum(&b));
    });
}

/// Copies as much as fits, then fails with ENOSPC. The next copy that fits succeeds.
#[test]
fn copy_range_without_space_is_short() {
    // ext4 reserves space for delayed allocation.
    agree("copy without space", &[Tmpfs], |dir, n| {
        let (a, b, ballast) = (dir.join("a"), dir.join("b"), dir.join("ballast"));
        fs::write(&a, vec![0x5a; 8 << 20]).expect("a file");
        fs::write(&b, "").expect("a file");
        let free = || {
            let s = rustix::fs::statvfs(dir).expect("statvfs");
            s.f_bavail * s.f_frsize
        };
        let file = both(&{
            fs::write(&ballast, "").expect("a file");
            ballast.clone()
        });
        let spare = 3 << 20;
        rustix::fs::fallocate(
            &file,
            rustix::fs::FallocateFlags::empty(),
            0,
            free() - spare,
        )
        .expect("fallocate");
        let done = copy(&both(&a), 0, &both(&b), 0, 8 << 20).expect("a short copy");
        both(&b).sync_all().expect("fsync");
        n.note(
            "short",
            done > 2 << 20 && done <= spare as usize + (1 << 20),
        );
        let size = fs::metadata(&b).expect("stat").len();
        n.note("all of it is there", size == done as u64);
        n.note(
            "as it was",
            fs::read(&b).expect("read").iter().all(|byte| *byte == 0x5a),
        );
        n.call(
            "nothing more",
            copy(&both(&a), 0, &both(&b), size, 4 << 20).map(|n| n == 0),
        );
        drop(file);
        fs::remove_file(&ballast).expect("unlink");
        n.call("with space", copy(&both(&a), 0, &both(&b), 0, 8 << 20));
        n.note("left", sum(&b));
    });
}
