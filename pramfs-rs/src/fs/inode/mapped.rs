//! The files that others store to without records: by a view for writing, or a lease to write.
//!
//! A save of the live file system has their blocks as it finds them, and names them.

use std::collections::{BTreeMap, BTreeSet};

use pramfs_medium::sync::{Mutex, rank};
use pramfs_medium::types::Ino;

#[derive(Debug, Default)]
struct State {
    /// Views for writing of each file.
    views: BTreeMap<Ino, u32>,
    /// Files that were or became mapped since the moment of a snapshot.
    since: Option<BTreeSet<Ino>>,
    /// Snapshots so far.
    snapshots: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct MappedFiles(Mutex<State, rank::Leaf>);

impl MappedFiles {
    /// Notes a view, before its first store.
    pub(crate) fn begin(&self, ino: Ino) {
        let mut state = self.0.lock();
        *state.views.entry(ino).or_default() += 1;
        if let Some(since) = &mut state.since {
            since.insert(ino);
        }
    }

    /// Ends what [`begin`](Self::begin) began.
    pub(crate) fn end(&self, ino: Ino) {
        let mut state = self.0.lock();
        if let Some(views) = state.views.get_mut(&ino) {
            *views -= 1;
            if *views == 0 {
                state.views.remove(&ino);
            }
        }
    }

    /// Notes a lease to write, before its first store.
    pub(crate) fn note(&self, ino: Ino) {
        if let Some(since) = &mut self.0.lock().since {
            since.insert(ino);
        }
    }

    /// From now on collects the files, beginning with those that are mapped and `leased`, for a
    /// snapshot whose number it returns.
    pub(crate) fn collect(&self, leased: impl IntoIterator<Item = Ino>) -> u64 {
        let mut state = self.0.lock();
        let mut since: BTreeSet<Ino> = leased.into_iter().collect();
        since.extend(state.views.keys());
        state.since = Some(since);
        state.snapshots += 1;
        state.snapshots
    }

    /// Returns the files so far of the snapshot of this number. `None`: there is a later one.
    pub(crate) fn collected(&self, snapshot: u64) -> Option<Vec<Ino>> {
        let state = self.0.lock();
        let since = state.since.as_ref().filter(|_| state.snapshots == snapshot);
        since.map(|since| since.iter().copied().collect())
    }

    /// Collects no longer for the snapshot of this number.
    pub(crate) fn forget(&self, snapshot: u64) {
        let mut state = self.0.lock();
        if state.snapshots == snapshot {
            state.since = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collected_files_are_those_mapped_at_the_moment_or_later() {
        let mapped = MappedFiles::default();
        for ino in [Ino(7), Ino(8), Ino(8)] {
            mapped.begin(ino);
        }
        mapped.end(Ino(7));
        mapped.note(Ino(6));
        mapped.end(Ino(8));
        assert_eq!(mapped.collected(0), None);
        let first = mapped.collect([Ino(20)]);
        mapped.end(Ino(8));
        mapped.begin(Ino(9));
        mapped.end(Ino(9));
        mapped.note(Ino(10));
        let files = [Ino(8), Ino(9), Ino(10), Ino(20)];
        assert_eq!(mapped.collected(first).unwrap(), files);
        // The end of the first one ends nothing of the second.
        let second = mapped.collect([]);
        mapped.note(Ino(11));
        mapped.forget(first);
        assert_eq!(mapped.collected(first), None);
        assert_eq!(mapped.collected(second).unwrap(), [Ino(11)]);
        mapped.forget(second);
        assert_eq!(mapped.collected(second), None);
    }
}
