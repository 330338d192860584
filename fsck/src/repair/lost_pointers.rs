//! Searches for pointer blocks without an owner. If a block fits only one gap of a file,
//! the checks of its pointers identify that gap. The blocks that it points to must also
//! have lost their owner.
//!
//! Invariant: one pass over the blocks serves all files of a round, and the number
//! of tried pairs of a gap and a block is bounded. So an image with many of both
//! takes no longer.

use std::collections::{BTreeMap, HashSet};

use super::Repairer;
use super::maps::LocatedPtr;
use crate::findings::{Issue, Part};
use pramfs_medium::error::Result;
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::pointer::{LEAF, Ptr, PtrAt, SHARED, UNWRITTEN};
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::types::{Bno, FileBlock, FileType, Ino, RegionOffset};

/// Most gaps examined in one round, and most blocks compared with damaged pointers
/// in all rounds.
const MAX_GAPS: usize = 1 << 20;
/// Most pairs of a gap and a block tried in one round.
const MAX_PAIRS: usize = 1 << 31;
/// This many pointers do not match a gap by chance, even if one of them does not
/// match. With fewer, all must match.
const MIN_POINTERS: usize = 4;

/// A place of a map where a pointer block may have been lost.
struct MissingTable {
    /// Offset of its pointer.
    at: RegionOffset,
    place: PtrAt,
}

#[cfg(test)]
thread_local! {
    /// Number of blocks that this thread has compared with gaps.
    pub(crate) static TRIED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// A pointer block that fits a gap.
struct Table {
    block: u64,
    pointers: usize,
    /// The block and the blocks that it points to: first block and count.
    all: Vec<(u64, u64)>,
}

/// Returns the most gaps to examine for a number of blocks.
fn most_gaps(blocks: usize) -> usize {
    MAX_GAPS.min(MAX_PAIRS / blocks.max(1)).max(1)
}

/// Returns a map in which only the owner matters.
fn owned_by(ino: Ino) -> MapRoot {
    MapRoot {
        ino,
        root: Ptr::HOLE,
        height: 0,
    }
}

impl Repairer<'_, '_> {
    /// Whether pointer blocks of this file were put back in this round. The first
    /// call searches for all files that lack some.
    pub(super) fn tables_found(
        &mut self,
        ino: Ino,
        todo: &[(Issue, Option<usize>)],
    ) -> Result<bool> {
        if self.found.is_none() {
            let (mut wanted, mut seen) = (Vec::new(), HashSet::new());
            for (issue, _) in todo {
                let (Issue::BlocksMissing { ino, .. }
                | Issue::MapEmpty {
                    ino,
                    part: Part::Contents,
                    ..
                }) = issue
                else {
                    continue;
                };
                if !self.notes.searched.contains(&ino.0) && seen.insert(ino.0) {
                    wanted.push(*ino);
                }
            }
            self.found = Some(self.find_tables(&wanted)?);
        }
        Ok(self.found.as_ref().is_some_and(|f| f.contains(&ino.0)))
    }

    /// Searches for pointer blocks without an owner, and puts them back into the
    /// gaps of these files that the checks of their pointers match. Returns the
    /// files that got one back.
    fn find_tables(&mut self, wanted: &[Ino]) -> Result<HashSet<u64>> {
        let mut found = HashSet::new();
        let lost = self.scan()?.tables.clone();
        if lost.is_empty() {
            return Ok(found);
        }
        // A file with many holes must not use up the gaps of all others.
        let most = most_gaps(lost.len());
        let share = (most / wanted.len().max(1)).max(1);
        let mut gaps = Vec::new();
        for ino in wanted {
            if gaps.len() < most
                && let Some(d) = self.inode(*ino)?
            {
                self.gaps_of(&d, gaps.len() + share, &mut gaps)?;
            }
        }
        let mut fitting: BTreeMap<usize, Vec<Table>> = BTreeMap::new();
        for block in lost {
            if let Some((gap, table)) = self.gap_of(&gaps, block)? {
                fitting.entry(gap).or_default().push(table);
            }
        }
        let mut tried = HashSet::new();
        for (gap, tables) in fitting {
            let gap = &gaps[gap];
            let Some(t) = self.only_one(&gap.place, tables, &mut tried)? else {
                continue;
            };
            let ptr = Ptr::new(Bno(t.block), 0, gap.place);
            self.view.store_u64(gap.at, ptr.0)?;
            self.take_back(&gap.place, &t);
            let ino = gap.place.ino;
            self.recount(ino);
            found.insert(ino.0);
        }
        Ok(found)
    }

    /// Finds the pointer block that a damaged pointer led to, if only one fits.
    pub(super) fn find_table(&mut self, f: &LocatedPtr) -> Result<Option<Ptr>> {
        let lost = self.scan()?.tables.clone();
        self.notes.tables_tried = self.notes.tables_tried.saturating_add(lost.len());
        if self.notes.tables_tried > MAX_GAPS {
            return Ok(None);
        }
        let gap = [MissingTable {
            at: RegionOffset(0),
            place: f.place,
        }];
        let mut fitting = Vec::new();
        for block in lost {
            if let Some((_, table)) = self.gap_of(&gap, block)? {
                fitting.push(table);
            }
        }
        let Some(t) = self.only_one(&f.place, fitting, &mut HashSet::new())? else {
            return Ok(None);
        };
        self.take_back(&f.place, &t);
        Ok(Some(Ptr::new(Bno(t.block), 0, f.place)))
    }

    /// Of the blocks that fit a place, returns the one that has no owner, nor has
    /// anything below it. Returns `None` if there are two.
    fn only_one(
        &self,
        place: &PtrAt,
        tables: Vec<Table>,
        tried: &mut HashSet<u64>,
    ) -> Result<Option<Table>> {
        let mut right = Vec::new();
        for mut t in tables {
            let all = &mut t.all;
            if self.is_lost_with_all(Bno(t.block), place, tried, all)? {
                right.push(t);
            }
        }
        // Few pointers may match by chance; many do not.
        if right.iter().any(|t| t.pointers >= MIN_POINTERS) {
            right.retain(|t| t.pointers >= MIN_POINTERS);
        }
        // If two fit, one of them is a copy or forged.
        let one = right.pop();
        Ok(one.filter(|_| right.is_empty()))
    }

    /// Claims a pointer block and everything below it for its owner.
    fn take_back(&mut self, place: &PtrAt, t: &Table) {
        let mut blocks = 0;
        for (start, count) in &t.all {
            self.known.claims.claim(*start, *count);
            blocks += count;
        }
        *self.notes.again.entry(place.ino.0).or_default() += blocks;
    }

    /// Returns the only gap that a block fits.
    fn gap_of(&self, gaps: &[MissingTable], block: u64) -> Result<Option<(usize, Table)>> {
        #[cfg(test)]
        TRIED.set(TRIED.get() + 1);
        let words = self.words(self.geo.offset(Bno(block)))?;
        let pointers = words.iter().filter(|word| **word != 0).count();
        let Some((i, word)) = (0..).zip(words).find(|(_, word)| *word != 0) else {
            return Ok(None);
        };
        let mut right = None;
        for (n, gap) in gaps.iter().enumerate() {
            // One pointer excludes most gaps.
            let below = gap.place.below(self.geo, i);
            let map = owned_by(gap.place.ino);
            if Ptr(word).fits(below)
                && self.is_pointer_block(&map, Bno(block), &gap.place)?
                && (pointers >= MIN_POINTERS || self.all_fit(Bno(block), &gap.place)?)
                && right.replace(n).is_some()
            {
                // With few pointers, two gaps may match by chance.
                return Ok(None);
            }
        }
        let table = Table {
            block,
            pointers,
            all: Vec::new(),
        };
        Ok(right.map(|gap| (gap, table)))
    }

    /// Whether all pointers of a block belong to this place.
    fn all_fit(&self, block: Bno, at: &PtrAt) -> Result<bool> {
        let fits = |(i, word): (u64, u64)| {
            let place = at.below(self.geo, i);
            word == 0 || Ptr(word).fits(place)
        };
        Ok((0..).zip(self.words(self.geo.offset(block))?).all(fits))
    }

    /// Whether a pointer block and all blocks that it points to were in use and have no
    /// owner. Otherwise a user who forges such a block would get present or former
    /// blocks of others. Adds these blocks to `all`. Visits no pointer block twice.
    fn is_lost_with_all(
        &self,
        block: Bno,
        at: &PtrAt,
        tried: &mut HashSet<u64>,
        all: &mut Vec<(u64, u64)>,
    ) -> Result<bool> {
        if !tried.insert(block.0) || !self.was_in_use(block.0, 1)? {
            return Ok(false);
        }
        all.push((block.0, 1));
        let map = owned_by(at.ino);
        for (i, word) in (0..).zip(self.words(self.geo.offset(block))?) {
            if word == 0 {
                continue;
            }
            let place = at.below(self.geo, i);
            let ptr = Ptr(word);
            // The next round reports an invalid pointer.
            let Ok(child) = map.open(self.geo, ptr, place) else {
                continue;
            };
            if place.level > 0 && !ptr.is_leaf() {
                if !self.is_lost_with_all(child, &place, tried, all)? {
                    return Ok(false);
                }
                continue;
            }
            let count = self.geo.span(place.level);
            if !self.was_in_use(child.0, count)? {
                return Ok(false);
            }
            all.push((child.0, count));
        }
        Ok(true)
    }

    /// Whether blocks are in use and have no owner. A block of zeros also counts
    /// as in use: its bit may have been lost with the bitmap, and its content
    /// reveals nothing.
    fn was_in_use(&self, start: u64, count: u64) -> Result<bool> {
        for block in start..start + count {
            let claimed = self.known.claims.word(block / 64 * 64) >> (block % 64) & 1 != 0;
            if claimed
                || !self.is_lost(block)?
                    && self
                        .words(self.geo.offset(Bno(block)))?
                        .iter()
                        .any(|w| *w != 0)
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Adds the gaps of a file, up to `most` in all.
    fn gaps_of(&self, d: &DiskInode, most: usize, gaps: &mut Vec<MissingTable>) -> Result<()> {
        let map = MapRoot::of(d);
        if FileType::from_mode(d.mode) != Some(FileType::Regular)
            || map.root.is_hole()
            || map.height < 2
            || map.height > self.geo.max_height()
        {
            return Ok(());
        }
        let root = LocatedPtr {
            at: None,
            place: map.root_at(self.geo),
            ptr: map.root,
        };
        let end = self.geo.file_block_from(d.size);
        self.gaps(&map, root, end, most, &mut HashSet::new(), gaps)
    }

    /// Adds the null pointers and loss marks above the lowest level, where a
    /// pointer block may have been.
    fn gaps(
        &self,
        map: &MapRoot,
        f: LocatedPtr,
        end: FileBlock,
        most: usize,
        seen: &mut HashSet<u64>,
        out: &mut Vec<MissingTable>,
    ) -> Result<()> {
        if f.place.level < 2 || f.ptr.is_leaf() {
            return Ok(());
        }
        let Ok(block) = map.open(self.geo, f.ptr, f.place) else {
            return Ok(());
        };
        if !seen.insert(block.0) {
            return Ok(());
        }
        let base = self.geo.offset(block);
        for (i, word) in (0..).zip(self.words(base)?) {
            let place = f.place.below(self.geo, i);
            if place.first(self.geo) >= end || out.len() >= most {
                break;
            }
            let at = base + i * 8;
            if word == 0 || Ptr(word).is_lost(place) {
                out.push(MissingTable { at, place });
            } else {
                let below = LocatedPtr {
                    at: Some(at),
                    place,
                    ptr: Ptr(word),
                };
                self.gaps(map, below, end, most, seen, out)?;
            }
        }
        Ok(())
    }

    /// Whether a block can be a pointer block: one or more pointers, nothing else.
    pub(super) fn looks_like_pointers(&self, bytes: &[u8]) -> bool {
        let mut any = false;
        for word in bytes.as_chunks::<8>().0 {
            let word = u64::from_le_bytes(*word);
            let ptr = Ptr(word);
            let flags = word & (0xff << 40);
            if word == 0 {
                continue;
            }
            let possible = flags & !(LEAF | UNWRITTEN) == 0 && flags & SHARED == 0;
            let lost = flags == UNWRITTEN && ptr.block().0 == 0;
            if !possible || ptr.block().0 == 0 && !lost || ptr.block().0 >= self.geo.blocks() {
                return false;
            }
            any = true;
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gap_block_pairs_are_bounded() {
        for blocks in [0, 1, 1 << 10, 1 << 20, 1 << 31] {
            let gaps = most_gaps(blocks);
            assert!(
                (1..=MAX_GAPS).contains(&gaps) && gaps * blocks <= MAX_PAIRS,
                "{blocks}"
            );
        }
        assert_eq!(most_gaps(100), MAX_GAPS);
    }
}
