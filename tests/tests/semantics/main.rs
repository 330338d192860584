//! The guarantees of `docs/semantics.md` that the library keeps by itself, one test each;
//! the document names them. Real mounts test those about mounts, and crash images those
//! about crashes.

mod access;
mod acls;
mod attributes;
mod damage;
mod direct;
mod document;
mod flags;
mod limits;
mod names;
mod space;
mod times;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pramfs::{
    Clock, Error, MountOptions,
    inode::{Credentials, Fs, Ino, Time},
};
use pramfs_medium::pmem::SimBackend;
use pramfs_tests::region::{fresh, mount, quiet};

const MIB: usize = 1 << 20;
const ROOT: Credentials<'_> = Credentials::new(0, 0);

/// For tests that start a process, and tests that open a locked region twice: a process
/// being started briefly holds our descriptors, and with them the lock.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A fresh file system of 8 MiB with blocks of 4096 bytes.
fn small() -> (SimBackend, Fs) {
    fresh(8 * MIB, 4096).unwrap()
}

/// Unmounts and mounts again.
fn remount(sim: &SimBackend, fs: Fs, options: MountOptions) -> Fs {
    fs.close().unwrap();
    mount(sim, options).unwrap()
}

/// The state that a mount finds after the process has died: nothing is closed.
fn after_a_crash(sim: &SimBackend) -> (SimBackend, Fs) {
    let image = SimBackend::from_image(&sim.image()).unwrap();
    let fs = mount(&image, quiet()).unwrap();
    (image, fs)
}

fn file(fs: &Fs, name: &str) -> Ino {
    fs.create(&ROOT, Ino::ROOT, name.as_bytes(), 0o644)
        .unwrap()
        .ino
}

fn find(fs: &Fs, name: &str) -> Result<Ino, Error> {
    fs.lookup(Ino::ROOT, name.as_bytes()).map(|a| a.ino)
}

fn contents(fs: &Fs, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0; fs.getattr(ino).unwrap().size as usize];
    let n = fs.read(ino, 0, &mut bytes).unwrap();
    assert_eq!(n, bytes.len());
    bytes
}

/// The names in a directory, `.` and `..` left out, in the order given.
fn names(fs: &Fs, dir: Ino) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    fs.readdir(dir, 2, &mut |e| {
        out.push(e.name.to_vec());
        ControlFlow::Continue(())
    })
    .unwrap();
    out
}

/// Fills the region with files until it is full.
fn fill(fs: &Fs) -> Vec<String> {
    let chunk = vec![0x55; 256 << 10];
    let mut made = Vec::new();
    for size in [chunk.len(), 4096, 1] {
        for i in 0.. {
            let name = format!("full-{size}-{i}");
            let Ok(a) = fs.create(&ROOT, Ino::ROOT, name.as_bytes(), 0o600) else {
                break;
            };
            made.push(name);
            if fs
                .append(&Credentials::ROOT, a.ino, &chunk[..size])
                .is_err()
            {
                break;
            }
        }
    }
    made
}

/// A clock that the test moves.
#[derive(Debug, Clone)]
struct Stopped(Arc<AtomicI64>);

impl Stopped {
    fn at(sec: i64) -> Stopped {
        Stopped(Arc::new(AtomicI64::new(sec)))
    }
    fn set(&self, sec: i64) {
        self.0.store(sec, Ordering::Relaxed);
    }
    fn options(&self) -> MountOptions {
        MountOptions {
            clock: Arc::new(self.clone()),
            ..quiet()
        }
    }
}

impl Clock for Stopped {
    fn now(&self) -> Time {
        Time {
            sec: self.0.load(Ordering::Relaxed),
            nsec: 7,
        }
    }
}
