//! A disk below the page cache whose write-back fails for a while. The system reports a
//! failure once and treats the pages as clean from then on, so no later msync writes
//! them. Completed operations must still be there after the next mount.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use pramfs::format::{FormatOptions, format};
use pramfs::inode::SetAttr;
use pramfs::{
    MountOptions, Result,
    inode::{Credentials, Fs, Ino},
};
use pramfs_medium::pmem::{HeapBackend, Region, RegionAccess, note_fault};
use pramfs_tests::disk::{Drive, region_on};

const PAGE: usize = 4096;
const LEN: usize = 4 << 20;

/// Contents of the disk, and the state of the page cache.
#[derive(Debug, Default)]
struct State {
    on_disk: Mutex<Vec<u8>>,
    dirty: Mutex<BTreeSet<usize>>,
    /// Pages to be written by the next fence.
    flushed: Mutex<BTreeSet<usize>>,
    /// Whether a fence writes only those pages, or all between them too, as one msync
    /// does.
    precise: AtomicBool,
    fails: AtomicBool,
    /// Two pages of new data cannot be stored.
    no_room: AtomicBool,
}

fn pages(range: Range<usize>) -> Range<usize> {
    range.start / PAGE..range.end.div_ceil(PAGE)
}

impl Drive for State {
    fn stored(&self, range: Range<usize>) {
        self.dirty.lock().extend(pages(range));
    }
    fn flushed(&self, range: Range<usize>) {
        self.flushed.lock().extend(pages(range));
    }
    fn fence(&self, read: &dyn Fn(usize, &mut [u8])) -> bool {
        let flushed = std::mem::take(&mut *self.flushed.lock());
        let (Some(&first), Some(&last)) = (flushed.first(), flushed.last()) else {
            return true;
        };
        let precise = self.precise.load(Ordering::Relaxed);
        let fails = self.fails.load(Ordering::Relaxed);
        self.dirty.lock().retain(|&page| {
            let asked = (first..=last).contains(&page) && (!precise || flushed.contains(&page));
            if asked && !fails {
                let at = page * PAGE;
                read(at, &mut self.on_disk.lock()[at..at + PAGE]);
            }
            // Clean now, written or not.
            !asked
        });
        !fails
    }
    fn is_faulted(&self, len: usize) -> bool {
        self.no_room.load(Ordering::Relaxed) && len == 2 * PAGE
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
    fs.setattr(&Credentials::ROOT, ino, &set).map(drop)
}

/// A chmod of the sixth file to 0777 completes. Then `fails` tries an operation while
/// nothing can be written. More records follow, the power fails, and the contents of the
/// disk are mounted.
fn completed_ops_are_there(precise: bool, fails: impl FnOnce(&Fs, &[Ino], &State)) {
    let state = Arc::new(State::default());
    *state.on_disk.lock() = vec![0; LEN];
    let region = region_on(state.clone(), LEN);
    format(&region, &FormatOptions::default()).unwrap();
    let fs = Fs::open(region, quiet()).unwrap();
    let make = |i: usize| {
        let name = format!("file {i}");
        fs.create(&Credentials::ROOT, Ino::ROOT, name.as_bytes(), 0o644)
    };
    // Far apart in the inode table.
    let inos: Vec<Ino> = (0..100).map(|i| make(i).unwrap().ino).collect();
    fs.write(&Credentials::ROOT, inos[50], 0, &[1; 4 * PAGE])
        .unwrap();
    // From here on, fault checks run, as after any fault of the process.
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
    // Nor may its retirements declare stores in place that are not on the disk.
    fs.close().ok();

    let after = Region::new("the disk", HeapBackend::boxed(LEN));
    let w = after.window();
    let stored = w.store(0, &state.on_disk.lock()).unwrap();
    let _ = w.fence(stored);
    drop(w);
    let fs = Fs::open(after, quiet()).unwrap();
    assert_eq!(fs.getattr(inos[5]).unwrap().perm, 0o777);
}

fn overwrite(fs: &Fs, inos: &[Ino], state: &State) {
    chmod(fs, inos[5], 0o777).unwrap();
    state.fails.store(true, Ordering::Relaxed);
    let e = fs
        .write(&Credentials::ROOT, inos[50], 0, &[3; PAGE])
        .unwrap_err();
    assert_eq!(e.errno(), libc::EIO, "{e}");
}

/// An append that takes its lane and then meets a page that accepts no bytes.
fn append_to_nothing(fs: &Fs, inos: &[Ino], state: &State) {
    let file = fs.open_file(inos[50]).unwrap();
    // From the second append on, the file knows where it grows.
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
fn failed_overwrite_loses_no_completed_op() {
    completed_ops_are_there(false, overwrite);
}

#[test]
fn failed_append_loses_no_completed_op() {
    completed_ops_are_there(true, append_to_nothing);
}

#[test]
fn failed_append_with_neighbours_loses_no_completed_op() {
    completed_ops_are_there(false, append_to_nothing);
}
