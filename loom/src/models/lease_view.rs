//! `fs/inode/leases.rs`, `client/src/snapshot.rs` and `client/src/places.rs`: a process copies bytes of a leased file
//! from the medium, while the server changes the file.
//!
//! The server stores to the block and shows the holder what has changed, all under the lock of
//! the inode. The process has no lock; a request for the blocks of the file takes it, as
//! `leased_extents` does.

use std::convert::Infallible;
use std::sync::Arc;

use loom::thread;

use super::{Model, explore, explore_bounded, promise};
use crate::fs::inode::leases::Leases;
use crate::places::Places;
use crate::pmem::Region;
use crate::snapshot::{Shown, copy_of_one_layout};
use crate::sync::{RwLock, rank};
use crate::types::{LeaseMode, RegionOffset};
use crate::volume::Volume;

pub const MODELS: &[Model] = &[
    Model {
        name: "copy_during_truncation_and_growth_has_no_byte_of_later_layout",
        run: copy_during_truncation_and_growth_has_no_byte_of_later_layout,
        needs: &["lease-copied", "lease-shown"],
    },
    Model {
        name: "copy_during_growth_has_no_byte_of_before_truncation",
        run: copy_during_growth_has_no_byte_of_before_truncation,
        needs: &["region-load", "region-store"],
    },
    Model {
        name: "size_of_shorter_file_comes_with_its_layout",
        run: size_of_shorter_file_comes_with_its_layout,
        needs: &["region-load", "region-store"],
    },
    Model {
        name: "copy_while_hole_is_filled_is_of_the_block_of_its_layout",
        run: copy_while_hole_is_filled_is_of_the_block_of_its_layout,
        // The lock of the inode orders them.
        needs: &[],
    },
    Model {
        name: "place_while_other_thread_learns_next_layout_is_of_its_layout",
        run: place_while_other_thread_learns_next_layout_is_of_its_layout,
        needs: &["place-valid", "place-put", "place-layout"],
    },
];

/// The view line, and a block of two words.
const VIEW: RegionOffset = RegionOffset(0);
const BLOCK: RegionOffset = RegionOffset(16);

/// Old contents.
const OLD: u64 = 7;

/// A leased file. The lock has its leases, and whether its block is in the map.
struct File {
    vol: Volume,
    inode: RwLock<(Leases, bool), rank::Inode>,
}

impl File {
    /// With a layout, a size in words, a block in the map or none, and the words of the block.
    fn new(layout: u64, size: u64, has_block: bool, block: [u64; 2]) -> Arc<File> {
        let mut leases = Leases::default();
        leases.add(0, VIEW, LeaseMode::Read);
        let region = Region::new(&[layout, size, block[0], block[1]]);
        Arc::new(File {
            vol: Volume { region },
            inode: RwLock::new((leases, has_block)),
        })
    }

    /// An operation of the server: stores bytes, and shows the change.
    fn change(&self, store: &[(u64, u64)], layout: bool, size: u64) {
        let mut inode = self.inode.write();
        for (word, value) in store {
            self.vol.region.store(BLOCK.word(*word), *value);
            inode.1 = true;
        }
        let Ok(()) = inode.0.show(&self.vol, layout, size);
    }

    /// A request for the blocks: the layout, and whether there is a block.
    fn ask(&self) -> (u64, bool) {
        let inode = self.inode.read();
        let Ok(layout) = self.vol.region.load_u64(VIEW);
        (layout, inode.1)
    }

    /// A read of the whole file by a process that knows a layout. `None`: it tries again.
    fn read(&self, known: (u64, bool)) -> Option<Vec<u64>> {
        let copied = copy_of_one_layout(self, |layout, size| {
            let word = |n| match known.1 {
                true => self.vol.region.copy(BLOCK.word(n)),
                false => 0,
            };
            Ok((layout == known.0).then(|| (0..size).map(word).collect()))
        });
        let Ok(copied) = copied;
        copied
    }
}

impl Shown for File {
    type Error = Infallible;

    fn layout(&self) -> Result<u64, Infallible> {
        self.vol.region.load_u64(VIEW)
    }

    fn size(&self) -> Result<u64, Infallible> {
        self.vol.region.load_u64(VIEW.word(1))
    }
}

/// The block stays in the file. So what a reader could find there is the zeros that the growth
/// has put there, beside bytes of before the truncation. Without rule 6, the block could have
/// the bytes of another file.
fn copy_during_truncation_and_growth_has_no_byte_of_later_layout() {
    explore(|| {
        let file = File::new(1, 2, true, [OLD; 2]);
        let server = {
            let file = file.clone();
            thread::spawn(move || {
                file.change(&[], true, 0);
                file.change(&[(0, 0), (1, 0)], false, 2);
            })
        };
        if let Some(copy) = file.read((1, true)) {
            // It may have the later size, but no byte past it.
            let old = copy.iter().all(|word| *word == OLD);
            promise!(old, "{copy:?} in the first layout");
        }
        server.join().unwrap();
    });
}

/// The file was made shorter before; its second word is left of that. Growth changes the size
/// alone, so the reader knows the block already.
fn copy_during_growth_has_no_byte_of_before_truncation() {
    explore(|| {
        let file = File::new(2, 1, true, [OLD; 2]);
        let server = {
            let file = file.clone();
            thread::spawn(move || file.change(&[(1, 9)], false, 2))
        };
        if let Some(copy) = file.read((2, true)) {
            promise!(
                copy == [OLD] || copy == [OLD, 9],
                "{copy:?} after the growth"
            );
        }
        server.join().unwrap();
    });
}

/// Fails if the server stores the smaller size after the layout alone.
fn size_of_shorter_file_comes_with_its_layout() {
    explore(|| {
        let file = File::new(1, 2, true, [OLD; 2]);
        let server = {
            let file = file.clone();
            thread::spawn(move || file.change(&[], true, 1))
        };
        let Ok(()) = copy_of_one_layout(file.as_ref(), |layout, size| {
            promise!(layout == 1 || size == 1, "{size} words in layout {layout}");
            Ok(Some(()))
        })
        .map(drop);
        server.join().unwrap();
    });
}

/// A write to a hole below the size gives the file a block, which has bytes of another file
/// until then. Fails if the counter is stored after the lock is released.
fn copy_while_hole_is_filled_is_of_the_block_of_its_layout() {
    explore(|| {
        let file = File::new(1, 2, false, [OLD; 2]);
        let server = {
            let file = file.clone();
            thread::spawn(move || file.change(&[(0, 9), (1, 9)], true, 2))
        };
        let known = file.ask();
        if let Some(copy) = file.read(known) {
            let right = if known.0 == 1 { [0; 2] } else { [9; 2] };
            promise!(copy == right, "{copy:?} in layout {}", known.0);
        }
        server.join().unwrap();
    });
}

/// A place takes three words. The reader may find some of each layout, but must not accept
/// them.
fn place_while_other_thread_learns_next_layout_is_of_its_layout() {
    explore_bounded(Some(2), || {
        let file = File::new(1, 2, true, [OLD; 2]);
        let places = Arc::new(Places::default());
        places.put(1, 0, (0, 100, 16));
        let server = {
            let file = file.clone();
            thread::spawn(move || file.change(&[], true, 2))
        };
        let learner = {
            let (file, places) = (file.clone(), places.clone());
            thread::spawn(move || {
                if let (2, _) = file.ask() {
                    places.put(2, 0, (8, 200, 8));
                }
            })
        };
        let Ok(found) = copy_of_one_layout(file.as_ref(), |layout, _| {
            Ok(places.get(layout, 8, 8).map(|at| (layout, at)))
        });
        let right = matches!(found, None | Some((1, 108) | (2, 200)));
        promise!(right, "{found:?}: layout and place");
        server.join().unwrap();
        learner.join().unwrap();
    });
}
