//! The fences of file operations.

use crate::credentials::Credentials;
use crate::fs::Fs;
use crate::fs::ops::file_tests::{mount, new_file, truncate};
use pramfs_medium::pmem::SimBackend;
use pramfs_medium::types::{Fallocate, Ino};

/// A block to write.
const BLOCK: [u8; 4096] = [1; 4096];
/// Calls per operation.
const TIMES: u64 = 2000;

/// A mount on the simulator, which counts fences.
struct Counted {
    fs: Fs,
    sim: SimBackend,
}

impl Counted {
    /// Checks that the calls of an operation take at most `most` fences on average.
    fn check(&self, what: &str, most: f64, times: u64, mut call: impl FnMut(u64)) {
        let (mut worst, before) = (0, self.sim.counters().fences);
        for i in 0..times {
            let fences = self.sim.counters().fences;
            call(i);
            worst = worst.max(self.sim.counters().fences - fences);
        }
        let mean = (self.sim.counters().fences - before) as f64 / times as f64;
        println!("{what:40} {mean:6.3} worst {worst}");
        assert!(mean <= most, "{what}: {mean} fences");
    }

    fn file(&self, name: &[u8]) -> Ino {
        new_file(&self.fs, name)
    }

    fn append(&self, file: Ino, bytes: &[u8]) {
        self.fs.append(&Credentials::ROOT, file, bytes).unwrap();
    }

    fn write(&self, file: Ino, offset: u64) {
        let root = Credentials::ROOT;
        self.fs.write(&root, file, offset, &BLOCK).unwrap();
    }

    fn fallocate(&self, file: Ino, what: Fallocate, offset: u64, len: u64) {
        let root = Credentials::ROOT;
        self.fs.fallocate(&root, file, what, offset, len).unwrap();
    }
}

#[test]
fn file_operations_stay_within_fence_budget() {
    let sim = SimBackend::new(64 << 20).unwrap();
    sim.recording(false);
    let fs = mount(Box::new(sim.clone()), 4096);
    let on = Counted { fs, sim };
    let file = on.file(b"file");
    on.check("append with allocation", 2.01, TIMES, |_| {
        on.append(file, &BLOCK);
    });
    on.check("append of 100 bytes", 2.01, TIMES, |_| {
        on.append(file, &BLOCK[..100]);
    });
    on.check("overwrite", 1.0, TIMES, |i| on.write(file, i * 4096));
    on.check("overwrite, unaligned", 1.0, TIMES, |i| {
        on.write(file, i * 4000 + 7);
    });
    let other = on.file(b"other");
    let ahead = Fallocate::Allocate { keep_size: true };
    on.fallocate(other, ahead, 4096, TIMES * 4096);
    on.check("append into preallocated", 2.01, TIMES, |_| {
        on.append(other, &BLOCK);
    });
    let third = on.file(b"third");
    let allocate = Fallocate::Allocate { keep_size: false };
    on.check("fallocate", 2.01, TIMES, |i| {
        on.fallocate(third, allocate, i * 4096, 4096);
    });
    on.check("punch hole", 2.01, TIMES / 2, |i| {
        on.fallocate(file, Fallocate::PunchHole, i * 8192, 4096);
    });
    on.check("truncate, shorter", 2.01, TIMES, |i| {
        truncate(&on.fs, other, (TIMES - i - 1) * 4096).unwrap();
    });
    on.check("truncate, longer", 2.01, TIMES, |i| {
        truncate(&on.fs, other, i * 100).unwrap();
    });
}
