//! Files whose size the kernel may not know.

use std::sync::atomic::{AtomicU64, Ordering};

use pramfs::inode::Ino;

/// Files that may have grown without the kernel, whose size of them stays too small until
/// somebody asks for it. A file stays in here until the mount ends; one whose number differs by
/// a multiple of [`GROWN`] counts as well.
#[derive(Debug)]
pub(super) struct Grown(Box<[AtomicU64]>);

/// Numbers of files that are told apart.
const GROWN: u64 = 1 << 20;

impl Default for Grown {
    fn default() -> Grown {
        Grown((0..GROWN / 64).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Grown {
    fn bit(&self, ino: Ino) -> (&AtomicU64, u64) {
        let n = ino.0 % GROWN;
        (&self.0[(n / 64) as usize], 1 << (n % 64))
    }

    pub(super) fn add(&self, ino: Ino) {
        let (word, bit) = self.bit(ino);
        word.fetch_or(bit, Ordering::SeqCst);
    }

    pub(super) fn has(&self, ino: Ino) -> bool {
        let (word, bit) = self.bit(ino);
        word.load(Ordering::SeqCst) & bit != 0
    }
}
