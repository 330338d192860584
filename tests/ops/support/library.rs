//! A file system of the library on simulated memory, and a clock that a test moves.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use pramfs::inode::{Credentials, Fs, Ino, Time};
use pramfs::{Clock, Error, Fallocate, MountOptions};
use pramfs_medium::pmem::SimBackend;
use pramfs_tests::region::{fresh, mount, quiet};

pub const MIB: usize = 1 << 20;
pub const ROOT: Credentials<'_> = Credentials::new(0, 0);

/// A fresh file system of 8 MiB with blocks of 4096 bytes.
pub fn small() -> (SimBackend, Fs) {
    fresh(8 * MIB, 4096).unwrap()
}

/// Unmounts and mounts again.
pub fn remount(sim: &SimBackend, fs: Fs, options: MountOptions) -> Fs {
    fs.close().unwrap();
    mount(sim, options).unwrap()
}

/// The state that a mount finds after the process has died: nothing is closed.
pub fn after_a_crash(sim: &SimBackend) -> (SimBackend, Fs) {
    let image = SimBackend::from_image(&sim.image()).unwrap();
    let fs = mount(&image, quiet()).unwrap();
    (image, fs)
}

/// Creates a file in the root.
pub fn file(fs: &Fs, name: &str) -> Ino {
    fs.create(&ROOT, Ino::ROOT, name.as_bytes(), 0o644)
        .unwrap()
        .ino
}

/// Looks up a name in the root.
pub fn find(fs: &Fs, name: &str) -> Result<Ino, Error> {
    fs.lookup(Ino::ROOT, name.as_bytes()).map(|a| a.ino)
}

/// All bytes of a file.
pub fn contents(fs: &Fs, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0; fs.getattr(ino).unwrap().size as usize];
    let n = fs.read(ino, 0, &mut bytes).unwrap();
    assert_eq!(n, bytes.len());
    bytes
}

/// The names in a directory, `.` and `..` left out, in the order given.
pub fn names(fs: &Fs, dir: Ino) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    fs.readdir(dir, 2, &mut |e| {
        out.push(e.name.to_vec());
        ControlFlow::Continue(())
    })
    .unwrap();
    out
}

/// Fills the region with files until it is full.
pub fn fill(fs: &Fs) -> Vec<String> {
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
pub struct Stopped(Arc<AtomicI64>);

impl Stopped {
    pub fn at(sec: i64) -> Stopped {
        Stopped(Arc::new(AtomicI64::new(sec)))
    }
    pub fn set(&self, sec: i64) {
        self.0.store(sec, Ordering::Relaxed);
    }
    pub fn options(&self) -> MountOptions {
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

/// The error of an operation that must fail.
pub fn errno<T: std::fmt::Debug>(result: pramfs::Result<T>) -> i32 {
    result.unwrap_err().errno()
}

/// A file system with `free` free blocks, each with its bit in a different bitmap word.
pub fn scattered(len: usize, block_size: u32, free: u64) -> Fs {
    let (_, fs) = fresh(len, block_size).expect("a file system");
    let fill = fs
        .create(&Credentials::ROOT, Ino::ROOT, b"fill", 0o644)
        .expect("made")
        .ino;
    let (mut at, mut step) = (0, len as u64 / 4);
    while step >= u64::from(block_size) {
        let all = Fallocate::Allocate { keep_size: false };
        while fs
            .fallocate(&Credentials::ROOT, fill, all, at, step)
            .is_ok()
        {
            at += step;
        }
        step /= 2;
    }
    let block = u64::from(block_size);
    for i in 0..free {
        fs.fallocate(
            &Credentials::ROOT,
            fill,
            Fallocate::PunchHole,
            i * 64 * block,
            block,
        )
        .expect("a removal needs no space");
    }
    fs
}
