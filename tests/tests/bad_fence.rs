//! A medium that cannot be written: fences that fail, as `msync` does on a full
//! or broken disk. In a process of its own, since the first fault of a process
//! changes what is asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use pramfs::format::{FormatOptions, format};
use pramfs::{
    MountOptions,
    inode::{Credentials, Fs, Ino},
};
use pramfs_tests::disk::{Drive, region_on};

/// A disk whose fences fail when it is told to.
#[derive(Debug, Default)]
struct Told {
    broken: AtomicBool,
    /// What it answers to who would give memory back; 0: nothing is wrong.
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
        // As a host does that has something to do.
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

/// The system says once that a write-out failed: the next that succeeds has
/// written nothing of it.
#[test]
fn what_the_timer_could_not_write_is_not_forgotten() {
    let (fs, disk) = mounted();
    let ctx = Credentials::ROOT;
    fs.create(&ctx, Ino::ROOT, b"file", 0o644).unwrap();
    disk.broken.store(true, Ordering::Relaxed);
    let e = fs.settle().unwrap_err();
    assert_eq!(e.errno(), libc::EIO, "{e}");
    disk.broken.store(false, Ordering::Relaxed);
    // Its slot would be taken by the second record from here.
    let e = fs.create(&ctx, Ino::ROOT, b"other", 0o644).unwrap_err();
    assert_eq!(e.errno(), libc::EIO, "{e}");
}

#[test]
fn what_cannot_be_written_is_not_called_durable() {
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
    // With a record: nobody knows whether it is on the medium.
    let e = fs.create(&ctx, Ino::ROOT, b"other", 0o644).unwrap_err();
    assert_eq!(e.errno(), libc::EIO, "{e}");

    // Whole again: what would follow that record waits for the next mount.
    disk.broken.store(false, Ordering::Relaxed);
    let e = fs.create(&ctx, Ino::ROOT, b"third", 0o644).unwrap_err();
    assert_eq!(e.errno(), libc::EIO, "{e}");
    assert!(fs.getattr(file).is_err());
    // Nor is anything shown that the caches know.
    assert!(fs.getattr(other).is_err());
    for found in [
        fs.lookup(Ino::ROOT, b"directory"),
        fs.holding().lookup(Ino::ROOT, b"directory").map(|f| f.1),
    ] {
        assert_eq!(found.unwrap_err().errno(), libc::EIO);
    }
}

/// Trimming does not call given back what the host has kept.
#[test]
fn a_host_that_takes_nothing_back_says_so() {
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
        // What was taken for it is free again.
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
    // But for the directory's leaf and the reserve, which has been taken.
    let again = fs.trim(0, u64::MAX, 0).unwrap();
    assert!(
        (free - (128 << 10)..=free).contains(&again),
        "{again} of {free}"
    );
    fs.close().unwrap();
}

/// What is out for trimming is not missing to who needs it: here all that is
/// free goes in one piece.
#[test]
fn nobody_is_refused_for_what_is_being_trimmed() {
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
            // Not one by one: what a file before has left is at home.
            if i % 25 == 0 {
                for i in i - 25..i {
                    fs.unlink(Ino::ROOT, i.to_string().as_bytes()).unwrap();
                }
            }
        }
    });
    fs.close().unwrap();
}
