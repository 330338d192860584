//! The files whose data sums do not hold (flag `FL_UNSUMMED`), as far as they are in memory.
//!
//! What marks and sums them is in [`steps::marks`](crate::fs::steps::marks).

use std::collections::BTreeMap;

use pramfs_medium::sync::{Mutex, rank};
use pramfs_medium::types::Ino;

/// A marked file.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Marked {
    /// Views for writing.
    pub views: u32,
    /// Bytes that are summed.
    pub summed: u64,
}

/// The marked files in memory.
#[derive(Debug, Default)]
pub(crate) struct Marks(Mutex<BTreeMap<Ino, Marked>, rank::Leaf>);

impl Marks {
    /// Notes a file that has the flag.
    pub(crate) fn note(&self, ino: Ino) {
        self.0.lock().entry(ino).or_default();
    }

    /// Changes what is known of a file.
    pub(crate) fn change(&self, ino: Ino, f: impl FnOnce(&mut Marked)) {
        f(self.0.lock().entry(ino).or_default());
    }

    /// Returns what is known of a file.
    pub(crate) fn get(&self, ino: Ino) -> Option<Marked> {
        self.0.lock().get(&ino).copied()
    }

    /// Forgets a file, unless it has a view.
    pub(crate) fn remove(&self, ino: Ino) {
        let mut all = self.0.lock();
        if all.get(&ino).is_some_and(|marked| marked.views == 0) {
            all.remove(&ino);
        }
    }

    /// Whether no file is marked.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Returns the files without a view.
    pub(crate) fn waiting(&self) -> Vec<Ino> {
        let all = self.0.lock();
        let waiting = all.iter().filter(|(_, marked)| marked.views == 0);
        waiting.map(|(ino, _)| *ino).collect()
    }
}
