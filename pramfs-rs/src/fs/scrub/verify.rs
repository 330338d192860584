//! What a block of data must hold.

use crate::fs::Engine;
use crate::fs::inode::state::InodeState;
use pramfs_medium::error::{Error, Result};
use pramfs_medium::media::sums::{SumState, check_word, data_crc};
use pramfs_medium::types::{Bno, FileBlock, Ino};

/// A block of data that was read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DataBlock {
    /// The file.
    pub ino: Ino,
    /// Its block.
    pub index: FileBlock,
    /// Where it is.
    pub block: Bno,
}

/// Checks the contents of data, where the file system knows more of them than that they can be
/// read.
///
/// A step takes the sums under the lock of the file and reads without it first. An error then
/// makes it look again, with blocks and sums found anew and all under the lock, so what an
/// implementation refuses is a finding only if no change of the file can explain it.
pub(crate) trait VerifyData: Sync {
    /// Returns the sums of `count` consecutive blocks of a locked file, in their order. `None`,
    /// or the end of the list: nothing is known of the block.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the place of the sums is damaged.
    fn sums(
        &self,
        engine: &Engine,
        state: &InodeState,
        first: DataBlock,
        count: u64,
    ) -> Result<Vec<Option<BlockSum>>>;

    /// Checks a block against its sum.
    ///
    /// # Errors
    /// [`Error::WrongSum`] if the bytes are not those that were written there.
    fn check(&self, engine: &Engine, of: DataBlock, sum: BlockSum, bytes: &[u8]) -> Result<()>;
}

/// What is known of the bytes of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockSum {
    /// The word of the block.
    pub word: u64,
    /// The bytes that it sums, from the first on.
    pub len: usize,
}

/// By the feature `data_checksums`. Without it, what can be read is right.
#[derive(Debug)]
pub(crate) struct Checksums;

impl VerifyData for Checksums {
    fn sums(
        &self,
        engine: &Engine,
        state: &InodeState,
        first: DataBlock,
        count: u64,
    ) -> Result<Vec<Option<BlockSum>>> {
        let (vol, size) = (&engine.vol, state.disk.size);
        let geo = &vol.geo;
        if !geo.data_sums {
            return Ok(Vec::new());
        }
        let marked = state.disk.unsummed();
        let mut sums = Vec::with_capacity(count as usize);
        for i in 0..count {
            let offset = geo.file_offset(first.index + i);
            // Blocks past the end of the file have no sum.
            if offset >= size {
                break;
            }
            if marked.contains(&(first.index + i)) {
                sums.push(None);
                continue;
            }
            let place = vol.blocks.sum_at(vol.medium(), first.block.after(i))?;
            sums.push(Some(BlockSum {
                word: vol.medium().load_u64(place)?,
                len: (size - offset).min(geo.block_size) as usize,
            }));
        }
        Ok(sums)
    }

    fn check(&self, engine: &Engine, of: DataBlock, sum: BlockSum, bytes: &[u8]) -> Result<()> {
        let geo = &engine.vol.geo;
        let summed = data_crc(bytes.get(..sum.len).unwrap_or(bytes));
        match check_word(geo.seed, of.block, sum.word, summed) {
            SumState::Right => Ok(()),
            SumState::Wrong | SumState::Damaged => Err(Error::WrongSum {
                ino: of.ino,
                offset: geo.file_offset(of.index),
                block: of.block.0,
            }),
        }
    }
}
