//! A disk under the page cache whose write-outs fail for a while. The system
//! reports a failure once and takes the pages for clean from then on: what they
//! held is written by no later msync. What had returned before must be found
//! after the next mount all the same.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use pramfs::format::{FormatOptions, format};
use pramfs::pmem::{Granularity, HeapBackend, Persistence, PmemBackend, Region, note_fault};
use pramfs::types::SetAttr;
use pramfs::{Ctx, Fs, Ino, MountOptions, Result};

const PAGE: usize = 4096;
const LEN: usize = 4 << 20;

/// What the disk has, and what the page cache knows of it.
#[derive(Debug, Default)]
struct State {
    on_disk: Mutex<Vec<u8>>,
    dirty: Mutex<BTreeSet<usize>>,
    /// Pages to be written by the next fence.
    flushed: Mutex<BTreeSet<usize>>,
    /// Whether a fence writes nothing but those, or all between them, too, as one
    /// msync does.
    precise: AtomicBool,
    fails: AtomicBool,
    /// Two pages of new data cannot be stored.
    no_room: AtomicBool,
    failed: AtomicU64,
}

#[derive(Debug)]
struct Disk {
    memory: Box<dyn PmemBackend>,
    state: Arc<State>,
}

impl Disk {
    fn pages(&self, at: *const u8, len: usize) -> std::ops::Range<usize> {
        let at = at.addr() - self.base().addr();
        at / PAGE..(at + len).div_ceil(PAGE)
    }

    fn dirty(&self, at: *const u8, len: usize) {
        self.state.dirty.lock().extend(self.pages(at, len));
    }
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
        self.dirty(dst, len);
        // SAFETY: passed on from the caller.
        unsafe { self.memory.store(dst, src, len) }
    }
    unsafe fn store_u64(&self, dst: *mut u64, value: u64) {
        self.dirty(dst.cast(), 8);
        // SAFETY: passed on from the caller.
        unsafe { self.memory.store_u64(dst, value) }
    }
    unsafe fn nt_copy(&self, dst: *mut u8, src: *const u8, len: usize) {
        self.dirty(dst, len);
        // SAFETY: passed on from the caller.
        unsafe {
            self.memory.nt_copy(dst, src, len);
            self.flush(dst, len);
        }
    }
    unsafe fn nt_zero(&self, dst: *mut u8, len: usize) {
        self.dirty(dst, len);
        // SAFETY: passed on from the caller.
        unsafe {
            self.memory.nt_zero(dst, len);
            self.flush(dst, len);
        }
    }
    unsafe fn flush(&self, ptr: *const u8, len: usize) {
        self.state.flushed.lock().extend(self.pages(ptr, len));
    }
    fn fence(&self) {
        let state = &self.state;
        let flushed = std::mem::take(&mut *state.flushed.lock());
        let (Some(&first), Some(&last)) = (flushed.first(), flushed.last()) else {
            return;
        };
        let precise = state.precise.load(Ordering::Relaxed);
        let fails = state.fails.load(Ordering::Relaxed);
        state.dirty.lock().retain(|&page| {
            let asked = (first..=last).contains(&page) && (!precise || flushed.contains(&page));
            if asked && !fails {
                let at = page * PAGE;
                // SAFETY: a page of the mapping, whose length is one of pages.
                // Stores of other threads would be torn, and there are none.
                let bytes = unsafe { std::slice::from_raw_parts(self.base().add(at), PAGE) };
                state.on_disk.lock()[at..at + PAGE].copy_from_slice(bytes);
            }
            // Clean now, written or not.
            !asked
        });
        if fails {
            state.failed.fetch_add(1, Ordering::Release);
            note_fault();
        }
    }
    fn faults(&self) -> u64 {
        self.state.failed.load(Ordering::Acquire)
    }
    fn failed_fences(&self) -> u64 {
        self.faults()
    }
    fn is_faulted(&self, _ptr: *const u8, len: usize) -> bool {
        self.state.no_room.load(Ordering::Relaxed) && len == 2 * PAGE
    }
}

fn quiet() -> MountOptions {
    MountOptions {
        background: false,
        ..MountOptions::default()
    }
}

fn chmod(fs: &Fs, ino: Ino, perm: u32) -> Result<()> {
    let set = SetAttr {
        perm: Some(perm),
        ..SetAttr::default()
    };
    fs.setattr(&Ctx::default(), ino, &set).map(drop)
}

/// In `fails` a chmod of the sixth file to 0777 returns, and something is tried
/// while nothing can be written; more records follow. The power fails, and what the disk has is mounted.
fn what_had_returned_is_there(precise: bool, fails: impl FnOnce(&Fs, &[Ino], &State)) {
    let state = Arc::new(State::default());
    *state.on_disk.lock() = vec![0; LEN];
    let disk = Disk {
        memory: HeapBackend::boxed(LEN),
        state: state.clone(),
    };
    let region = Region::new("a disk", Box::new(disk));
    format(&region, &FormatOptions::default()).unwrap();
    let fs = Fs::open(region, quiet()).unwrap();
    let make = |i: usize| {
        let name = format!("file {i}");
        fs.create(&Ctx::default(), Ino::ROOT, name.as_bytes(), 0o644)
    };
    // Far apart in the inode table.
    let inos: Vec<Ino> = (0..100).map(|i| make(i).unwrap().ino).collect();
    fs.write(inos[50], 0, &[1; 4 * PAGE]).unwrap();
    // Faults are asked for from here on, as after any that the process has had.
    note_fault();
    state.precise.store(precise, Ordering::Relaxed);
    for perm in [0o600, 0o611, 0o622] {
        chmod(&fs, inos[90], perm).unwrap();
    }
    fails(&fs, &inos, &state);
    state.fails.store(false, Ordering::Relaxed);

    for perm in [0o600, 0o611, 0o622] {
        match chmod(&fs, inos[90], perm) {
            Ok(()) => println!("a chmod after it: done"),
            Err(e) => println!("a chmod after it: {e}"),
        }
    }
    // Its retirements, too, must not call home what is not.
    fs.close().ok();

    let after = Region::new("the disk", HeapBackend::boxed(LEN));
    let w = after.window();
    let stored = w.store(0, &state.on_disk.lock()).unwrap();
    let _ = w.fence(stored);
    let fs = Fs::open(after, quiet()).unwrap();
    assert_eq!(fs.getattr(inos[5]).unwrap().perm, 0o777);
}

fn overwrite(fs: &Fs, inos: &[Ino], state: &State) {
    chmod(fs, inos[5], 0o777).unwrap();
    state.fails.store(true, Ordering::Relaxed);
    let e = fs.write(inos[50], 0, &[3; PAGE]).unwrap_err();
    assert_eq!(e.errno(), libc::EIO, "{e}");
}

/// An append that takes its lane, and then meets a page that takes no bytes.
fn append_to_nothing(fs: &Fs, inos: &[Ino], state: &State) {
    let file = fs.open_file(inos[50]).unwrap();
    // It knows where it goes from the second on.
    file.append(&[1; PAGE]).unwrap();
    chmod(fs, inos[90], 0o633).unwrap();
    chmod(fs, inos[90], 0o644).unwrap();
    chmod(fs, inos[5], 0o777).unwrap();
    state.fails.store(true, Ordering::Relaxed);
    state.no_room.store(true, Ordering::Relaxed);
    file.append(&[2; 2 * PAGE]).unwrap_err();
    state.no_room.store(false, Ordering::Relaxed);
}

#[test]
fn after_an_overwrite_that_failed() {
    what_had_returned_is_there(false, overwrite);
}

#[test]
fn after_an_append_that_came_to_nothing() {
    what_had_returned_is_there(true, append_to_nothing);
}

#[test]
fn after_an_append_that_came_to_nothing_and_took_its_neighbours_along() {
    what_had_returned_is_there(false, append_to_nothing);
}
