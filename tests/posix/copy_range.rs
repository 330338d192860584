//! copy_file_range: within a file and across, short at the end, refused where
//! the ranges overlap (430-434 553 564 565).

use std::fs::{self, File};
use std::path::Path;

use pramfs_tests::syscalls::{Sys, errno};
use rustix::fs::{OFlags, copy_file_range};

use crate::Reference::{Ext4, Tmpfs};
use crate::{Notes, agree};

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

/// A sum by which contents can be told apart.
fn sum(path: &Path) -> (usize, u32) {
    let bytes = fs::read(path).expect("read");
    (bytes.len(), crc32c::crc32c(&bytes))
}

/// One call, as the kernel makes of it what it likes: how far it got in all,
/// until it says that there is no more.
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
fn ranges_are_copied_within_a_file_and_across() {
    agree("copy_file_range", &[Tmpfs, Ext4], |dir, n| {
        let (a, b) = (dir.join("a"), dir.join("b"));
        fs::write(&a, pattern()).expect("a file");
        fs::write(&b, "").expect("a file");
        let len = LEN as u64;
        let step = |n: &mut Notes, from: &Path, at: u64, to: &Path, target: u64, want: usize| {
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
        // Within one file: to behind it, next to it, over itself.
        step(n, &a, 0, &a, len, 5000);
        step(n, &a, 0, &a, 4096, 4096);
        step(n, &a, 8192, &a, 4096, 4096);
        step(n, &a, 0, &a, 100, 4096);
        step(n, &a, 100, &a, 0, 4096);
        step(n, &a, 0, &a, 0, 4096);
    });
}

#[test]
fn what_cannot_be_copied_is_refused() {
    // The files of ext4 end at 16 TiB, ours and those of tmpfs where offsets do.
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
        // What may have been copied to the largest offset is a long read.
        let size = fs::metadata(&b).expect("stat").len();
        n.note("left", (sum(&a), size));
    });
}

/// The holes of the source are zeros in the copy, and times are those of a
/// write.
#[test]
fn a_copy_is_a_write() {
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
