//! Reads that lend bytes of the medium to the kernel. A lease to write waits for them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Reads that lend, in two alternating sets: a wait for those of one set ends although new
/// reads begin.
#[derive(Debug, Default)]
pub(super) struct Lending {
    pub(super) set: AtomicUsize,
    reads: [AtomicUsize; 2],
}

/// A read that lends bytes to the kernel.
#[derive(Debug)]
pub(crate) struct Lend<'o>(&'o AtomicUsize);

impl Drop for Lend<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl Lending {
    pub(super) fn begin(&self) -> Lend<'_> {
        loop {
            let set = self.set.load(Ordering::SeqCst);
            let reads = &self.reads[set % 2];
            reads.fetch_add(1, Ordering::SeqCst);
            let lend = Lend(reads);
            if self.set.load(Ordering::SeqCst) == set {
                return lend;
            }
        }
    }

    /// Waits for the reads that have begun. One caller at a time.
    pub(super) fn wait(&self) {
        let set = self.set.fetch_add(1, Ordering::SeqCst);
        while self.reads[set % 2].load(Ordering::SeqCst) > 0 {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}
