//! A medium that cannot be written: fences that fail, as `msync` does on a full
//! or broken disk. In a process of its own, since the first fault of a process
//! changes what is asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pramfs::format::{FormatOptions, format};
use pramfs::pmem::{Granularity, HeapBackend, Persistence, PmemBackend, Region, note_fault};
use pramfs::{Ctx, Fs, Ino, MountOptions};

/// Memory whose fences fail when they are told to.
#[derive(Debug)]
struct Disk {
    memory: Box<dyn PmemBackend>,
    broken: Arc<AtomicBool>,
    failed: AtomicU64,
}

// SAFETY: the mapping is that of `memory`, which lives as long.
unsafe impl PmemBackend for Disk {
    fn name(&self) -> &'static str {
        "disk"
    }
    fn base(&self) -> *mut u8 {
        self.memory.base()
    }
    fn len(&self) -> usize {
        self.memory.len()
    }
    fn granularity(&self) -> Granularity {
        self.memory.granularity()
    }
    fn persistence(&self) -> Persistence {
        self.memory.persistence()
    }
    unsafe fn store(&self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: passed on from the caller.
        unsafe { self.memory.store(dst, src, len) }
    }
    unsafe fn store_u64(&self, dst: *mut u64, value: u64) {
        // SAFETY: passed on from the caller.
        unsafe { self.memory.store_u64(dst, value) }
    }
    unsafe fn nt_copy(&self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: passed on from the caller.
        unsafe { self.memory.nt_copy(dst, src, len) }
    }
    unsafe fn nt_zero(&self, dst: *mut u8, len: usize) {
        // SAFETY: passed on from the caller.
        unsafe { self.memory.nt_zero(dst, len) }
    }
    unsafe fn flush(&self, ptr: *const u8, len: usize) {
        // SAFETY: passed on from the caller.
        unsafe { self.memory.flush(ptr, len) }
    }
    fn fence(&self) {
        if self.broken.load(Ordering::Relaxed) {
            self.failed.fetch_add(1, Ordering::Release);
            note_fault();
        }
    }
    fn faults(&self) -> u64 {
        self.failed.load(Ordering::Acquire)
    }
    fn failed_fences(&self) -> u64 {
        self.faults()
    }
}

/// A file system on a disk, and the switch that breaks it.
fn mounted() -> (Fs, Arc<AtomicBool>) {
    let broken = Arc::new(AtomicBool::new(false));
    let disk = Disk {
        memory: HeapBackend::boxed(4 << 20),
        broken: broken.clone(),
        failed: AtomicU64::new(0),
    };
    let region = Region::new("a disk", Box::new(disk));
    format(&region, &FormatOptions::default()).unwrap();
    let options = MountOptions {
        background: false,
        ..MountOptions::default()
    };
    (Fs::open(region, options).unwrap(), broken)
}

/// The system says once that a write-out failed: the next that succeeds has
/// written nothing of it.
#[test]
fn what_the_timer_could_not_write_is_not_forgotten() {
    let (fs, broken) = mounted();
    let cx = Ctx::default();
    fs.create(&cx, Ino::ROOT, b"file", 0o644).unwrap();
    broken.store(true, Ordering::Relaxed);
    let e = fs.settle().unwrap_err();
    assert_eq!(e.errno(), libc::EIO, "{e}");
    broken.store(false, Ordering::Relaxed);
    // Its slot would be taken by the second record from here.
    let e = fs.create(&cx, Ino::ROOT, b"other", 0o644).unwrap_err();
    assert_eq!(e.errno(), libc::EIO, "{e}");
}

#[test]
fn what_cannot_be_written_is_not_called_durable() {
    let (fs, broken) = mounted();
    let cx = Ctx::default();
    let file = fs.create(&cx, Ino::ROOT, b"file", 0o644).unwrap().ino;
    fs.write(file, 0, &[1; 8192]).unwrap();

    broken.store(true, Ordering::Relaxed);
    // In place, without a record.
    let e = fs.write(file, 0, &[2; 4096]).unwrap_err();
    assert_eq!(e.errno(), libc::EIO, "{e}");
    // With a record: nobody knows whether it is on the medium.
    let e = fs.create(&cx, Ino::ROOT, b"other", 0o644).unwrap_err();
    assert_eq!(e.errno(), libc::EIO, "{e}");

    // Whole again: what would follow that record waits for the next mount.
    broken.store(false, Ordering::Relaxed);
    let e = fs.create(&cx, Ino::ROOT, b"third", 0o644).unwrap_err();
    assert_eq!(e.errno(), libc::EIO, "{e}");
    assert!(fs.getattr(file).is_err());
}
