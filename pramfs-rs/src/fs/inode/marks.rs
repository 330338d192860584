//! The files of which data sums do not hold (flag `FL_UNSUMMED`), as far as they are in memory,
//! and the marked range of one file, for reads without its lock.
//!
//! What marks and sums them is in [`steps::marks`](crate::fs::steps::marks).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use pramfs_medium::media::{DiskInode, Geometry};
use pramfs_medium::sync::{Mutex, rank};
use pramfs_medium::types::{FileBlock, Ino};

/// The blocks of a file whose sums need not hold. Changes under the exclusive lock of the inode
/// alone, with the inode.
///
/// A reader without the lock that sees an older, larger range finds that a writer has interfered
/// ([`lock`](crate::fs::inode::lock)). One that sees an older, smaller range may find a wrong sum,
/// and reads again under the lock.
#[derive(Debug)]
pub(crate) struct UnsummedBlocks {
    start: AtomicU64,
    end: AtomicU64,
}

impl UnsummedBlocks {
    pub(crate) fn of(disk: &DiskInode) -> UnsummedBlocks {
        let blocks = disk.unsummed();
        UnsummedBlocks {
            start: AtomicU64::new(blocks.start.0),
            end: AtomicU64::new(blocks.end.0),
        }
    }

    /// Shows those of a changed inode.
    pub(crate) fn show(&self, blocks: &Range<FileBlock>) {
        self.start.store(blocks.start.0, Ordering::Relaxed);
        self.end.store(blocks.end.0, Ordering::Relaxed);
    }

    /// Whether all blocks that hold a byte range are among them.
    #[inline(never)]
    pub(crate) fn hold(&self, geo: &Geometry, offset: u64, len: usize) -> bool {
        let start = self.start.load(Ordering::Relaxed);
        let end = self.end.load(Ordering::Relaxed);
        let last = geo.file_block_from(offset.saturating_add(len as u64));
        start <= geo.file_block(offset).0 && last.0 <= end
    }
}

/// Returns the bytes of a range of blocks.
pub(crate) fn bytes_of(geo: &Geometry, blocks: &Range<FileBlock>) -> Range<u64> {
    let offset = |block: FileBlock| block.0.saturating_mul(geo.block_size);
    offset(blocks.start)..offset(blocks.end)
}

#[derive(Debug, Default)]
struct State {
    /// The number of views for writing of each marked file.
    files: BTreeMap<Ino, u32>,
    /// A file is or may be marked, and is none of them: it could not be summed, or not be read.
    has_left_one: bool,
    /// The next inode of the search for files that the last mount has left marked; `None` if it is
    /// done.
    search: Option<Ino>,
}

/// The marked files in memory.
#[derive(Debug, Default)]
pub(crate) struct Marks(Mutex<State, rank::Leaf>);

impl Marks {
    /// `may_have_some`: the last mount may have left files marked, which are to be searched.
    pub(crate) fn new(may_have_some: bool) -> Marks {
        Marks(Mutex::new(State {
            search: may_have_some.then_some(Ino::FIRST_FREE),
            ..State::default()
        }))
    }

    /// Where the search for files that the last mount has left marked goes on, if it does.
    pub(crate) fn search(&self) -> Option<Ino> {
        self.0.lock().search
    }

    /// Notes where it goes on, or that it is done.
    pub(crate) fn searched(&self, next: Option<Ino>) {
        self.0.lock().search = next;
    }

    /// Notes that a file that cannot be read may be marked.
    pub(crate) fn miss(&self) {
        self.0.lock().has_left_one = true;
    }

    /// Notes a file that has the flag, or is to get it.
    pub(crate) fn note(&self, ino: Ino) {
        self.0.lock().files.entry(ino).or_default();
    }

    /// Notes a view for writing.
    pub(crate) fn begin_view(&self, ino: Ino) {
        *self.0.lock().files.entry(ino).or_default() += 1;
    }

    /// Notes the end of a view for writing.
    pub(crate) fn end_view(&self, ino: Ino) {
        if let Some(views) = self.0.lock().files.get_mut(&ino) {
            *views = views.saturating_sub(1);
        }
    }

    /// Whether a file has a view for writing.
    pub(crate) fn has_view(&self, ino: Ino) -> bool {
        self.0
            .lock()
            .files
            .get(&ino)
            .is_some_and(|views| *views > 0)
    }

    /// Forgets a file, unless it has a view.
    pub(crate) fn remove(&self, ino: Ino) {
        let mut state = self.0.lock();
        if state.files.get(&ino) == Some(&0) {
            state.files.remove(&ino);
        }
    }

    /// Forgets a file that stays marked, unless it has a view.
    pub(crate) fn leave(&self, ino: Ino) {
        self.0.lock().has_left_one = true;
        self.remove(ino);
    }

    /// Whether no file is marked.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().files.is_empty()
    }

    /// Whether all files that were marked, by any mount, are summed.
    pub(crate) fn are_done(&self) -> bool {
        let state = self.0.lock();
        state.files.is_empty() && !state.has_left_one && state.search.is_none()
    }

    /// Returns the files without a view.
    pub(crate) fn waiting(&self) -> Vec<Ino> {
        let state = self.0.lock();
        let waiting = state.files.iter().filter(|(_, views)| **views == 0);
        waiting.map(|(ino, _)| *ino).collect()
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;
    use pramfs_medium::format::{FormatOptions, format};
    use pramfs_medium::media::probe_superblock;
    use pramfs_medium::pmem::{HeapBackend, Region};

    #[test]
    fn blocks_are_unsummed_if_all_of_them_are_in_range() {
        let region = Region::new("marks", HeapBackend::boxed(1 << 20));
        format(&region, &FormatOptions::default()).unwrap();
        let geo = probe_superblock(&region).unwrap().geometry();
        let mut disk = DiskInode::new_zeroed();
        let blocks = UnsummedBlocks::of(&disk);
        let marked = |offset, len| blocks.hold(&geo, offset, len);
        assert!(!marked(0, 10));
        disk.set_unsummed(FileBlock(2)..FileBlock(4));
        blocks.show(&disk.unsummed());
        assert!(marked(8192, 8192) && marked(9000, 1));
        assert!(!marked(8191, 2) && !marked(12288, 4097));
        disk.set_unsummed(FileBlock(0)..FileBlock::END);
        blocks.show(&disk.unsummed());
        assert!(marked(0, usize::MAX) && marked(u64::MAX, 1));
    }
}
