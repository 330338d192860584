//! The first step of `pramfs defrag`: makes free leaves, by moving the blocks of files out of leaves
//! that have few of them.
//!
//! Invariant: a leaf is vacated only if all its blocks in use are known to be data or pointer
//! blocks of files, and are no more than half of the leaf: less is moved than is gained.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use pramfs_medium::pmem::{PointerBlock, Vacated};
use pramfs_medium::size::human;
use pramfs_medium::types::FileExtent;
use serde::Serialize;

use super::defrag::{FAILED, LeftFiles, NAMED};
use super::missed::Missed;
use super::place::{FileAt, Place};
use super::{Lies, Parts, lies};
use crate::{Failure, output};

/// The file system keeps so many leaves from others at once.
const MOST: u64 = 1 << 13;
/// An offset where a file has nothing in a leaf.
const PAST_THE_END: u64 = u64::MAX;

/// What was done to make free leaves.
#[derive(Debug, Default, Serialize)]
pub(super) struct Compacted {
    /// Leaves that were to be vacated.
    chosen: u64,
    /// Those that are free now.
    gained: u64,
    /// Bytes that were moved, with pointer blocks.
    moved: u64,
    /// Leaves in use in part, at the last look, that hold something else than blocks of files that
    /// were examined.
    with_other_blocks: u64,
    /// Leaves, at the last look, of which more than half is in use, and less than all.
    too_full: u64,
    /// Files whose blocks were left.
    in_the_way: LeftFiles,
}

/// The leaves of a region.
struct Leaves {
    /// Bytes of a leaf.
    len: u64,
    block_size: u64,
    /// Blocks in use in each.
    used: Vec<u16>,
    /// Blocks of them that files were found to have.
    known: Vec<u16>,
    /// Parts of files that are to be moved into leaves.
    scattered: u64,
}

impl Compacted {
    /// Makes as many free leaves as scattered parts need. `barred` are leaves that could not be
    /// vacated. Returns whether there are more free leaves now.
    ///
    /// # Errors
    /// Those of the file system. What cannot be examined is left to the caller's own walk.
    pub(super) fn run(
        &mut self,
        place: &Place,
        parts: Parts,
        barred: &mut BTreeSet<u64>,
        failures: &mut Vec<String>,
    ) -> Result<bool, Failure> {
        let Some(leaves) = Leaves::look(place, parts)? else {
            return Ok(false);
        };
        let free = place.free()?.leaves.unwrap_or_default();
        let wanted = match leaves.scattered > free {
            // Some more, for files that grow meanwhile.
            true => (leaves.scattered - free + leaves.scattered / 8 + 1).min(MOST),
            false => 0,
        };
        (self.with_other_blocks, self.too_full) = leaves.left_out();
        let chosen = leaves.choose(wanted, barred);
        if chosen.is_empty() {
            return Ok(false);
        }
        self.chosen += chosen.len() as u64;
        let mut are_held = false;
        place.each_file(&mut Missed::default(), &mut |path, file| {
            // Before the first move, so that no leaf gets the blocks of another.
            if !are_held {
                for leaf in &chosen {
                    file.vacate(path, PAST_THE_END, leaf * leaves.len)?;
                }
                are_held = true;
            }
            let of_file = leaves.of_file(&file.extents(path)?, &file.pointers(path)?);
            for ((offset, leaf), blocks) in of_file {
                if chosen.contains(&leaf) && !barred.contains(&leaf) {
                    let done = file.vacate(path, offset, leaf * leaves.len);
                    if matches!(done, Ok(Vacated::Moved)) {
                        self.moved += blocks * leaves.block_size;
                    }
                    self.note(path, leaf, done, barred, failures)?;
                }
            }
            Ok(())
        })?;
        let Some(used) = place.leaf_use()? else {
            return Ok(false);
        };
        let is_free = |leaf: &&u64| used.get(**leaf as usize) == Some(&0);
        let gained = chosen.iter().filter(is_free).count() as u64;
        self.gained += gained;
        // Those that others have filled again meanwhile are not tried again either.
        barred.extend(chosen.iter().filter(|leaf| !is_free(leaf)));
        Ok(gained > 0)
    }

    /// Takes note of an answer.
    fn note(
        &mut self,
        path: &[u8],
        leaf: u64,
        done: Result<Vacated, Failure>,
        barred: &mut BTreeSet<u64>,
        failures: &mut Vec<String>,
    ) -> Result<(), Failure> {
        let why = match done {
            // It may have changed meanwhile.
            Ok(Vacated::Moved | Vacated::Nothing) => return Ok(()),
            Ok(Vacated::Unwritten) => "allocated and never written",
            Ok(Vacated::Mapped) => "mapped",
            Ok(Vacated::Leased) => "leased",
            Ok(Vacated::Immutable) => "immutable",
            Ok(Vacated::Unsummed) => "without checksums yet",
            Ok(Vacated::NoSpace) => "no room elsewhere",
            Ok(Vacated::Whole) => "a leaf of the file",
            Err(failure) if ["read-only", "permission"].contains(&failure.reason) => {
                return Err(failure);
            }
            Err(failure) => {
                if failures.len() < NAMED {
                    failures.push(failure.message);
                }
                FAILED
            }
        };
        barred.insert(leaf);
        self.in_the_way.add(why, path);
        Ok(())
    }

    /// Whether an error kept a block where it was.
    pub(super) fn has_failed(&self) -> bool {
        self.in_the_way.has(FAILED)
    }

    pub(super) fn print(&self) -> Result<(), Failure> {
        output::line(&format!(
            "compacted: {} of {} leaves made free, {} moved; {} leaves have other blocks than those of files, \
             {} are more than half full",
            self.gained,
            self.chosen,
            human(self.moved),
            self.with_other_blocks,
            self.too_full,
        ))?;
        self.in_the_way.print("in the way")
    }
}

impl Leaves {
    /// Looks where all files lie. `None` if the server cannot tell.
    fn look(place: &Place, parts: Parts) -> Result<Option<Leaves>, Failure> {
        let Some(used) = place.leaf_use()? else {
            return Ok(None);
        };
        let mut leaves = Leaves {
            len: parts.len,
            block_size: place.free()?.block_size,
            known: vec![0; used.len()],
            used,
            scattered: 0,
        };
        place.each_file(&mut Missed::default(), &mut |path, file: &FileAt<'_>| {
            let extents = file.extents(path)?;
            let pointers = file.pointers(path)?;
            let is_scattered =
                |part: &Range<u64>| lies(&extents, part.clone(), parts) == Lies::Scattered;
            leaves.scattered += parts.in_file(&extents).filter(is_scattered).count() as u64;
            leaves.know(&extents, &pointers);
            Ok(())
        })?;
        Ok(Some(leaves))
    }

    /// Adds the blocks of a file that can be moved.
    fn know(&mut self, extents: &[FileExtent], pointers: &[PointerBlock]) {
        for e in extents.iter().filter(|e| !e.unwritten) {
            let Some(place) = e.region_offset else {
                continue;
            };
            for (leaf, bytes) in pieces(place..place.saturating_add(e.len), self.len) {
                self.add(leaf, bytes.div_ceil(self.block_size));
            }
        }
        for block in pointers {
            self.add(block.region_offset / self.len, 1);
        }
    }

    fn add(&mut self, leaf: u64, blocks: u64) {
        if let Some(known) = self.known.get_mut(leaf as usize) {
            *known = known.saturating_add(blocks.min(u64::from(u16::MAX)) as u16);
        }
    }

    fn full(&self) -> u16 {
        (self.len / self.block_size.max(1)).min(u64::from(u16::MAX)) as u16
    }

    /// Returns how many leaves are in use in part and have other blocks than those of files, and
    /// how many are too full.
    fn left_out(&self) -> (u64, u64) {
        let (mut other, mut too_full) = (0, 0);
        let full = self.full();
        for (used, known) in self.used.iter().zip(&self.known) {
            match *used {
                0 => {}
                used if used > full / 2 => too_full += u64::from(used < full),
                used => other += u64::from(used != *known),
            }
        }
        (other, too_full)
    }

    /// Chooses leaves with few blocks, as long as the others have room for these.
    fn choose(&self, wanted: u64, barred: &BTreeSet<u64>) -> BTreeSet<u64> {
        let full = self.full();
        let in_part = self.used.iter().filter(|used| (1..full).contains(*used));
        let mut room: u64 = in_part.map(|used| u64::from(full - used)).sum();
        let can_be_moved = |(leaf, (used, known)): &(u64, (&u16, &u16))| {
            (1..=full / 2).contains(*used) && used == known && !barred.contains(leaf)
        };
        let all = (0..).zip(self.used.iter().zip(&self.known));
        let mut few: Vec<_> = all.filter(can_be_moved).collect();
        few.sort_by_key(|(_, (used, _))| **used);
        let mut chosen = BTreeSet::new();
        for (leaf, _) in few {
            // It takes its own room with it, and what it has needs some.
            let Some(left) = room.checked_sub(u64::from(full)) else {
                break;
            };
            if chosen.len() as u64 >= wanted {
                break;
            }
            room = left;
            chosen.insert(leaf);
        }
        chosen
    }

    /// Returns how many blocks each part of a file has in each leaf: by the offset of the part and
    /// the number of the leaf.
    fn of_file(
        &self,
        extents: &[FileExtent],
        pointers: &[PointerBlock],
    ) -> BTreeMap<(u64, u64), u64> {
        let mut of_file = BTreeMap::new();
        for e in extents {
            let Some(place) = e.region_offset else {
                continue;
            };
            // A piece of a part may lie in two leaves, and one of a leaf in two parts.
            for (part, bytes) in pieces(e.file_offset..e.file_offset + e.len, self.len) {
                let from = place + (part * self.len).max(e.file_offset) - e.file_offset;
                for (leaf, bytes) in pieces(from..from.saturating_add(bytes), self.len) {
                    let blocks = of_file.entry((part * self.len, leaf)).or_default();
                    *blocks += bytes.div_ceil(self.block_size);
                }
            }
        }
        for block in pointers {
            let leaf = block.region_offset / self.len;
            *of_file.entry((block.file_offset, leaf)).or_default() += 1;
        }
        of_file
    }
}

/// Cuts a range at multiples of `len`: which multiple, and how many bytes from there on.
fn pieces(range: Range<u64>, len: u64) -> impl Iterator<Item = (u64, u64)> {
    let (mut at, end) = (range.start, range.end);
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (n, from) = (at / len, at);
        at = end.min((n + 1).saturating_mul(len));
        Some((n, at - from))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(used: &[u16], known: &[u16]) -> Leaves {
        Leaves {
            len: 1000,
            block_size: 10,
            used: used.to_vec(),
            known: known.to_vec(),
            scattered: 0,
        }
    }

    fn extent(file_offset: u64, place: Option<u64>, len: u64) -> FileExtent {
        FileExtent {
            file_offset,
            region_offset: place,
            len,
            unwritten: false,
            lost: false,
        }
    }

    #[test]
    fn leaves_with_fewest_blocks_are_chosen_and_those_with_other_blocks_are_not() {
        let used = [0, 40, 100, 10, 20, 60, 5, 90, 90];
        let known = [0, 40, 100, 10, 19, 60, 5, 90, 90];
        let l = leaves(&used, &known);
        let chosen = |wanted, barred: &[u64]| -> Vec<u64> {
            let barred = barred.iter().copied().collect();
            l.choose(wanted, &barred).into_iter().collect()
        };
        assert!(chosen(0, &[]).is_empty());
        assert_eq!(chosen(1, &[]), [6]);
        assert_eq!(chosen(2, &[]), [3, 6]);
        // The others have room for no more.
        assert_eq!(chosen(9, &[]), [1, 3, 6]);
        assert_eq!(chosen(9, &[6, 1]), [3]);
        assert_eq!(l.left_out(), (1, 3));
    }

    #[test]
    fn nothing_is_chosen_if_the_others_have_no_room() {
        let used = [30, 30, 100, 80];
        assert_eq!(leaves(&used, &used).choose(9, &BTreeSet::new()).len(), 1);
        let used = [30, 100, 80];
        assert!(leaves(&used, &used).choose(9, &BTreeSet::new()).is_empty());
    }

    #[test]
    fn blocks_of_a_file_are_counted_in_each_leaf() {
        let mut l = leaves(&[0; 4], &[0; 4]);
        let extents = [
            extent(0, Some(990), 25),
            extent(500, None, 10),
            extent(1990, Some(2500), 20),
        ];
        let pointers = [PointerBlock {
            file_offset: 1000,
            region_offset: 3000,
        }];
        l.know(&extents, &pointers);
        assert_eq!(l.known, [1, 2, 2, 1]);
        let of_file: Vec<_> = l.of_file(&extents, &pointers).into_iter().collect();
        let expected = [
            ((0, 0), 1),
            ((0, 1), 2),
            ((1000, 2), 1),
            ((1000, 3), 1),
            ((2000, 2), 1),
        ];
        assert_eq!(of_file, expected);
    }

    #[test]
    fn answer_of_a_server_that_makes_no_sense_does_no_harm() {
        let mut l = leaves(&[0; 2], &[0; 2]);
        let extents = [
            extent(0, Some(u64::MAX - 5), 5),
            extent(9, Some(0), 1 << 40),
        ];
        l.know(&extents[..1], &[]);
        assert_eq!(l.known, [0, 0]);
        assert_eq!(pieces(u64::MAX - 5..u64::MAX, 1000).count(), 1);
    }
}
