//! Counts the blocks that a file map owns, for comparison with its inode.

use zerocopy::IntoBytes;

use super::MapRef;
use crate::error::{Error, Result};
use crate::media::pointer::Ptr;
use crate::types::FileBlock;
use crate::volume::Volume;

/// Counts the blocks that a map owns, including pointer blocks.
///
/// - Returns `None` if the count exceeds `most` or the number of blocks in the
///   region. A block that several pointers name is counted for each of them.
/// - Reads pointer blocks but no data.
/// - Counts a pointer to a data block as one block even if it is damaged, provided
///   that another pointer in the same pointer block is valid.
///
/// # Errors
/// [`Error::Corrupt`] if a pointer above the lowest level is damaged, or a pointer
/// block has no pointers or no valid pointer; errors of the region.
pub fn count(vol: &Volume, map: &MapRef, most: u64) -> Result<Option<u64>> {
    map.checked(&vol.geo)?;
    let mut counted = 0;
    let most = most.min(vol.geo.blocks());
    let within =
        Counter { vol, map, most }.entry(&mut counted, map.root, map.height, FileBlock(0))?;
    Ok(within.then_some(counted))
}

struct Counter<'a> {
    vol: &'a Volume,
    map: &'a MapRef,
    most: u64,
}

impl Counter<'_> {
    /// Adds the blocks that a pointer owns. Returns false if the total is too large.
    fn entry(&self, counted: &mut u64, ptr: Ptr, level: u32, first: FileBlock) -> Result<bool> {
        let geo = &self.vol.geo;
        if ptr.is_hole() {
            return Ok(true);
        }
        // A lost range owns no blocks.
        let at = self.map.at(geo, level, first);
        if ptr.is_lost(at) {
            return Ok(true);
        }
        if level == 0 {
            return Ok(self.add(counted, 1));
        }
        let block = self.map.root().open(geo, ptr, at)?;
        if ptr.is_leaf() {
            return Ok(self.add(counted, geo.fan()));
        }
        let mut words = [0u64; 512];
        let words = &mut words[..geo.fan() as usize];
        let at = geo.offset(block);
        self.vol.medium().read(at, words.as_mut_bytes())?;
        let pointers = words.iter().filter(|w| **w != 0).count() as u64;
        if pointers == 0 {
            return Err(self.lost(first));
        }
        if level == 1 {
            self.belongs(words, first)?;
            let lost = |(i, w): &(u64, &u64)| Ptr(**w).is_lost(self.map.at(geo, 0, first + *i));
            let lost = (0..).zip(&*words).filter(lost).count() as u64;
            return Ok(self.add(counted, 1 + pointers - lost));
        }
        if !self.add(counted, 1) {
            return Ok(false);
        }
        for (i, w) in words.iter().enumerate() {
            let first = first + i as u64 * geo.span(level - 1);
            if !self.entry(counted, Ptr(*w), level - 1, first)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Checks that a pointer block of the lowest level belongs here, which one valid
    /// pointer shows. A different block with the same number of pointers is rejected.
    fn belongs(&self, words: &[u64], first: FileBlock) -> Result<()> {
        let geo = &self.vol.geo;
        let mut result = Ok(());
        for (i, w) in words.iter().enumerate().filter(|(_, w)| **w != 0) {
            let at = self.map.at(geo, 0, first + i as u64);
            result = match self.map.root().open(geo, Ptr(*w), at) {
                Err(_) if Ptr(*w).is_lost(at) => Ok(()),
                opened => opened.map(drop),
            };
            if result.is_ok() {
                break;
            }
        }
        result
    }

    fn add(&self, counted: &mut u64, n: u64) -> bool {
        *counted += n;
        *counted <= self.most
    }

    #[cold]
    fn lost(&self, first: FileBlock) -> Error {
        self.map.empty_table(first)
    }
}
