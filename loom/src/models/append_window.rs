//! `fs/inode/leases.rs` and `client/src/handover.rs`: a process appends to a file without a
//! call, while the server closes its append window and lets another process append.
//!
//! The server holds the lock of the inode; the holder of the window has no lock. The windows,
//! the blocks and the order on the medium are left to other tests.

use std::convert::Infallible;
use std::sync::Arc;

use loom::thread;

use super::{Model, explore, promise};
use crate::fs::inode::leases::Leases;
use crate::handover::{Stored, Words, append};
use crate::media::lease::{APPENDING_OFFSET, AppendWindow, END_OFFSET, OPEN_WORD};
use crate::pmem::{Region, RegionAccess as _};
use crate::types::{LeaseMode, RegionOffset};
use crate::volume::Volume;

pub const MODELS: &[Model] = &[
    Model {
        name: "append_while_window_closes_is_in_file_or_stores_nothing",
        run: append_while_window_closes_is_in_file_or_stores_nothing,
        needs: &["append-announced", "window-stopped"],
    },
    Model {
        name: "append_merged_while_window_is_open_is_complete",
        run: append_merged_while_window_is_open_is_complete,
        needs: &["region-load", "region-store"],
    },
];

/// The slot, and a block of one word behind its words.
const SLOT: RegionOffset = RegionOffset(0);
const BLOCK: RegionOffset = RegionOffset(48);

/// A file of 5 bytes; an append makes it 6.
const WINDOW: AppendWindow = AppendWindow {
    number: 7,
    start: 5,
    limit: 8,
};

/// What the block holds: nothing, the bytes of the holder, those of another process.
const HOLDERS: u64 = 1;
const OTHERS: u64 = 2;

struct File {
    vol: Volume,
}

impl File {
    fn new() -> Arc<File> {
        // layout, size, open, closed, appending, end, block
        let region = Region::new(&[1, 5, WINDOW.number, 0, 0, 0, 0]);
        Arc::new(File {
            vol: Volume { region },
        })
    }

    fn leases(&self) -> Leases {
        let mut leases = Leases::default();
        leases.add(0, SLOT, LeaseMode::Write);
        let adopted = leases.adopt_window(SLOT, WINDOW);
        promise!(adopted, "the window is not adopted");
        leases
    }

    /// The size that the server finds in the slot.
    fn size(&self, leases: &Leases) -> u64 {
        let Ok(word) = leases.appended(&self.vol);
        word.and_then(|word| WINDOW.end_of(word)).unwrap_or(0)
    }

    fn append(&self) -> Stored {
        let copy = || {
            self.vol.region.store(BLOCK, HOLDERS);
            Ok(())
        };
        let Ok(stored) = append(self, WINDOW.number, 6, copy);
        stored
    }
}

impl Words for File {
    type Error = Infallible;
    type Durable = ();

    fn set_appending(&self, word: u64) -> Result<(), Infallible> {
        let at = SLOT + APPENDING_OFFSET;
        self.vol.region.window().store_u64_unflushed(at.0, word)
    }

    fn set_end(&self, word: u64, (): ()) -> Result<(), Infallible> {
        let at = SLOT + END_OFFSET;
        self.vol.region.window().store_u64_unflushed(at.0, word)
    }

    fn open(&self) -> Result<u64, Infallible> {
        self.vol.region.load_u64(SLOT.word(OPEN_WORD))
    }
}

/// The other process appends one byte: after that of the holder, or in its place.
fn append_while_window_closes_is_in_file_or_stores_nothing() {
    explore(|| {
        let file = File::new();
        let server = {
            let file = file.clone();
            thread::spawn(move || {
                let leases = file.leases();
                let Ok(()) = leases.stop_appends(&file.vol);
                while matches!(leases.append_under_way(&file.vol), Ok(Some(_))) {
                    thread::yield_now();
                }
                let size = file.size(&leases);
                if size == WINDOW.start {
                    file.vol.region.store(BLOCK, OTHERS);
                }
                size
            })
        };
        let stored = file.append();
        let size = server.join().unwrap();
        let block = file.vol.region.copy(BLOCK);
        let right = match stored {
            Stored::Appended => (6, HOLDERS),
            Stored::Nothing => (5, OTHERS),
        };
        promise!(
            (size, block) == right,
            "{stored:?}: size {size}, block {block}"
        );
    });
}

/// Somebody looks at the file: the server finds the end, and reads the bytes before it.
fn append_merged_while_window_is_open_is_complete() {
    explore(|| {
        let file = File::new();
        let server = {
            let file = file.clone();
            thread::spawn(move || {
                let leases = file.leases();
                (file.size(&leases), file.vol.region.copy(BLOCK))
            })
        };
        let stored = file.append();
        let (size, block) = server.join().unwrap();
        promise!(stored == Stored::Appended, "the window is open");
        promise!(size == 5 || block == HOLDERS, "size {size}, block {block}");
    });
}
