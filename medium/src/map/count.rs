//! Counting what a file map owns, as its inode does.

use zerocopy::IntoBytes;

use super::{MapRef, fan};
use crate::error::{Error, Result};
use crate::media::pointer::Ptr;
use crate::media::walk::EMPTY_TABLE;
use crate::volume::Volume;

/// Blocks that a map owns, pointer blocks included; `None` where there are more
/// than `most`, or than there are at all: one block that many pointers lead to
/// is counted for each. Pointer blocks are read and data is not. A pointer to a block of
/// data counts for one, damaged or not, where another beside it is right.
///
/// # Errors
/// [`Error::Corrupt`] where a pointer above the lowest level is damaged, or a
/// pointer block has no pointers, or none that fits; those of the region.
pub fn count(vol: &Volume, map: &MapRef, most: u64) -> Result<Option<u64>> {
    map.checked(&vol.geo)?;
    let mut counted = 0;
    let most = most.min(vol.geo.blocks);
    let within = Counter { vol, map, most }.entry(&mut counted, map.root, map.height, 0)?;
    Ok(within.then_some(counted))
}

struct Counter<'a> {
    vol: &'a Volume,
    map: &'a MapRef,
    most: u64,
}

impl Counter<'_> {
    /// Adds what a pointer owns; false where that is too much.
    fn entry(&self, counted: &mut u64, ptr: Ptr, level: u32, first: u64) -> Result<bool> {
        let geo = &self.vol.geo;
        if ptr.is_hole() {
            return Ok(true);
        }
        // What was lost is owned no more.
        let at = self.map.at(geo, level, first);
        if ptr.is_lost(at) {
            return Ok(true);
        }
        if level == 0 {
            return Ok(self.add(counted, 1));
        }
        let block = self.map.root().open(geo, ptr, at)?;
        if ptr.is_leaf() {
            return Ok(self.add(counted, fan(geo)));
        }
        let mut words = [0u64; 512];
        let words = &mut words[..fan(geo) as usize];
        let at = geo.offset(block);
        self.vol.region.read(at, words.as_mut_bytes())?;
        let pointers = words.iter().filter(|w| **w != 0).count() as u64;
        if pointers == 0 {
            return Err(self.lost(first));
        }
        if level == 1 {
            self.belongs(words, first)?;
            let lost = |(i, w): &(u64, &u64)| Ptr(**w).is_lost(self.map.at(geo, 0, first + i));
            let lost = (0..).zip(&*words).filter(lost).count() as u64;
            return Ok(self.add(counted, 1 + pointers - lost));
        }
        if !self.add(counted, 1) {
            return Ok(false);
        }
        for (i, w) in words.iter().enumerate() {
            let first = first + ((i as u64) << (geo.fan_log2 * (level - 1)));
            if !self.entry(counted, Ptr(*w), level - 1, first)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// One pointer that fits shows that a pointer block of the lowest level is
    /// the right one: others of as many pointers are no replacement.
    fn belongs(&self, words: &[u64], first: u64) -> Result<()> {
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
    fn lost(&self, first: u64) -> Error {
        self.map.damaged(first, EMPTY_TABLE)
    }
}
