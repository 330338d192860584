//! What a client makes of the answers of a server, for the fuzz target `control`.

use pramfs_control::Blocks;

use crate::blocks::{KnownBlocks, is_sound};

/// A piece of a range: its place in the region, or `None` for zeros, and its length.
pub type Piece = (Option<u64>, u64);

/// Learns the blocks of a file from answers, in this order, as a reader does.
#[derive(Debug)]
pub struct Learned(KnownBlocks);

impl Learned {
    /// Takes the first answer. `None` if a reader refuses it.
    pub fn first(answer: &Blocks) -> Option<Learned> {
        is_sound(answer, 0).then(|| Learned(KnownBlocks::new(answer)))
    }

    /// Takes the answer to a request for what follows. False if a reader refuses it.
    pub fn next(&mut self, answer: &Blocks) -> bool {
        is_sound(answer, self.0.end) && self.0.extend(answer)
    }

    /// Returns the offset up to which the blocks are known.
    pub fn end(&self) -> u64 {
        self.0.end
    }

    /// Returns the pieces of a range, which ends at [`end`](Self::end) or before.
    pub fn pieces(&self, offset: u64, end: u64) -> impl Iterator<Item = Piece> {
        self.0.pieces(offset, end)
    }

    /// Returns where a read of one byte finds it without a lock.
    pub fn place(&self, offset: u64) -> Option<u64> {
        let places = crate::places::Places::default();
        let extent = self.0.extent_at(offset)?;
        let place = (extent.file_offset, extent.region_offset, extent.len);
        places.put(self.0.layout, offset, place);
        places.get(self.0.layout, offset, 1)
    }
}
