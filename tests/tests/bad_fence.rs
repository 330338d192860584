//! A medium that cannot be written: fences fail, as `msync` does on a full or broken
//! disk. The tests run in their own process, since the first fault of a process changes
//! the checks that follow it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use pramfs::format::{FormatOptions, format};
use pramfs::{
    MountOptions,
    inode::{Credentials, Fs, Ino},
};
use pramfs_tests::disk::{Drive, region_on};

/// A disk whose fences fail on request.
#[derive(Debug, Default)]
struct Told {
    broken: AtomicBool,
    /// The errno for discard requests; 0: they succeed.
    refuses: AtomicI32,
}

impl Drive for Told {
    fn fence(&self, _read: &dyn Fn(usize, &mut [u8])) -> bool {
        !self.broken.load(Ordering::Relaxed)
    }
    fn can_discard(&self) -> bool {
        true
    }
    fn discard(&self) -> std::io::Result<()> {
        // As on a host that has work to do.
        std::thread::sleep(Duration::from_micros(200));
        match self.refuses.load(Ordering::Relaxed) {
            0 => Ok(()),
            errno => Err(std::io::Error::from_raw_os_error(errno)),
        }
    }
}

/// A file system on a disk, and the disk.
fn mounted() -> (Fs, Arc<Told>) {
    let disk = Arc::new(Told::default());
    let region = region_on(disk.clone(), 4 << 20);
    format(&region, &FormatOptions::default()).unwrap();
    let options = MountOptions {
        background: false,
        ..MountOptions::default()
    };
    (Fs::open(region, options).unwrap(), disk)
}

/// The system reports a failed write-back once. The next successful one has not written
/// those pages.
#[test]
fn failed_timer_flush_fails_next_record() {
    let (fs, disk) = mounted();
    let ctx = Credentials::ROOT;
    fs.create(&ctx, Ino::ROOT, b"file", 0o644).unwrap();
    disk.broken.store(true, Ordering::Relaxed);
    let e = fs.settle().unwrap_err();
    assert_eq!(e.errno(), libc::EIO, "{e}");
    disk.broken.store(false, Ordering::Relaxed);
    // The second record from here would reuse its slot.
    let e = fs.create(&ctx, Ino::ROOT, b"other", 0o644).unwrap_err();
    assert_eq!(e.errno(), libc::EIO, "{e}");
}

#[test]
fn operations_on_broken_disk_fail_with_eio() {
    let (fs, disk) = mounted();
    let ctx = Credentials::ROOT;
    let file = fs.create(&ctx, Ino::ROOT, b"file", 0o644).unwrap().ino;
    fs.write(&Credentials::ROOT, file, 0, &[1; 8192]).unwrap();
    let other = fs.mkdir(&ctx, Ino::ROOT, b"directory", 0o755).unwrap().ino;
    fs.lookup(Ino::ROOT, b"directory").unwrap();

    disk.broken.store(true, Ordering::Relaxed);
    // In place, without a record.
    let e = fs
        .write(&Credentials::ROOT, file, 0, &[2; 4096])
        .unwrap_err();
    assert_eq!(e.errno(), libc::EIO, "{e}");
    // With a record: it is unknown whether it is on the medium.
    let e = fs.create(&ctx, Ino::ROOT, b"other", 0o644).unwrap_err();
    assert_eq!(e.errno(), libc::EIO, "{e}");

    // The disk works again. Records that would follow wait for the next mount.
    disk.broken.store(false, Ordering::Relaxed);
    let e = fs.create(&ctx, Ino::ROOT, b"third", 0o644).unwrap_err();
    assert_eq!(e.errno(), libc::EIO, "{e}");
    assert!(fs.getattr(file).is_err());
    // The caches serve nothing either.
    assert!(fs.getattr(other).is_err());
    for found in [
        fs.lookup(Ino::ROOT, b"directory"),
        fs.holding().lookup(Ino::ROOT, b"directory").map(|f| f.1),
    ] {
        assert_eq!(found.unwrap_err().errno(), libc::EIO);
    }
}

/// Trim does not report blocks as discarded if the host has kept them.
#[test]
fn trim_fails_if_host_keeps_pages() {
    let (fs, disk) = mounted();
    let free = fs.trim(0, u64::MAX, 0).unwrap();
    assert!(free > 3 << 20, "{free}");
    for (host, ours) in [
        (libc::EOPNOTSUPP, libc::EOPNOTSUPP),
        (libc::ENOSYS, libc::EOPNOTSUPP),
        (libc::EIO, libc::EIO),
    ] {
        disk.refuses.store(host, Ordering::Relaxed);
        let error = fs.trim(0, u64::MAX, 0).unwrap_err();
        assert_eq!(error.errno(), ours, "{error}");
        // The blocks taken for the trim are free again.
        let file = fs
            .create(&Credentials::ROOT, Ino::ROOT, b"all", 0o644)
            .unwrap();
        let half = vec![7; free as usize / 2];
        assert_eq!(
            fs.write(&Credentials::ROOT, file.ino, 0, &half).unwrap(),
            half.len()
        );
        fs.unlink(Ino::ROOT, b"all").unwrap();
    }
    disk.refuses.store(0, Ordering::Relaxed);
    // Except for the leaf of the directory and the reserve, which is already taken.
    let again = fs.trim(0, u64::MAX, 0).unwrap();
    assert!(
        (free - (128 << 10)..=free).contains(&again),
        "{again} of {free}"
    );
    fs.close().unwrap();
}

/// Blocks that are being trimmed are not missing to an allocation. Here one trim takes
/// all free blocks in one piece.
#[test]
fn running_trim_fails_no_allocation() {
    let (fs, _disk) = mounted();
    let trims = AtomicU64::new(0);
    std::thread::scope(|s| {
        s.spawn(|| {
            for _ in 0..200 {
                fs.trim(0, u64::MAX, 0).unwrap();
                trims.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut i = 0;
        while trims.load(Ordering::Relaxed) < 200 {
            let name = format!("{i}");
            let made = fs.create(&Credentials::ROOT, Ino::ROOT, name.as_bytes(), 0o644);
            let file = made.unwrap_or_else(|e| panic!("file {i}: {e}")).ino;
            let written = fs.write(&Credentials::ROOT, file, 0, &[7; 100_000]);
            assert!(matches!(written, Ok(100_000)), "file {i}: {written:?}");
            i += 1;
            // In batches: the blocks of earlier files are released by then.
            if i % 25 == 0 {
                for i in i - 25..i {
                    fs.unlink(Ino::ROOT, i.to_string().as_bytes()).unwrap();
                }
            }
        }
    });
    fs.close().unwrap();
}
