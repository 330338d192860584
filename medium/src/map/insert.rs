//! Maps blocks into a file.

use std::ops::Range;

use smallvec::{SmallVec, smallvec};
use zerocopy::IntoBytes;

use super::{
    BIT_WORD, MapRef, ONE_WORD, RESERVED_BYTES, check_last, descend, height_for, put_pointer,
    put_slots,
};
use crate::error::{Error, Result};
use crate::media::pointer::{LEAF, Ptr, UNWRITTEN};
use crate::types::{BlockRun, Bno, FileBlock};
use crate::volume::{Plan, Record};

fn flag(unwritten: bool) -> u64 {
    if unwritten { UNWRITTEN } else { 0 }
}

/// Returns the maximum number of bytes of a record for the bits of one run.
fn bits_cost(blocks: u64) -> usize {
    (blocks.div_ceil(64) as usize + 1) * BIT_WORD
}

/// Largest run for which [`plan`] uses an upper bound of the cost, blocks.
const LINEAR_BLOCKS: u64 = 16;

/// Returns the maximum cost of [`LINEAR_BLOCKS`] blocks: new levels above the root,
/// and two paths to pointer blocks that are missing or change in all pointers.
fn small_cost(height: u32) -> usize {
    bits_cost(LINEAR_BLOCKS)
        + 3 * height as usize * BIT_WORD
        + 2 * ONE_WORD
        + LINEAR_BLOCKS as usize * 8
}

/// Returns how many blocks from `index` on, at most `max`, [`insert`] can map as one
/// run with the remaining room of the record.
///
/// # Errors
/// [`Error::Corrupt`], [`Error::TooLarge`].
pub fn plan(tx: &Record<'_>, map: &MapRef, index: FileBlock, max: u64) -> Result<u64> {
    let geo = &tx.volume().geo;
    if max == 0 {
        return Ok(0);
    }
    let end = map.checked(geo)?.end(geo);
    let last = index.last_of(max).ok_or(Error::TooLarge(u64::MAX))?;
    let height = height_for(tx.volume(), last)?.max(map.height);
    let mut room = tx.room().saturating_sub(RESERVED_BYTES);
    // A small run always fits, whatever the shape of the tree.
    if max <= LINEAR_BLOCKS && room >= small_cost(height) {
        return Ok(max);
    }
    if !map.root.is_hole() {
        let grown = (height - map.height) as usize * BIT_WORD;
        if grown > room {
            return Ok(0);
        }
        room -= grown;
    }
    let mut count = 0;
    while count < max {
        let at = index + count;
        let piece = (max - count).min(geo.fan() - geo.slot_of(at));
        let (level, new) = if map.root.is_hole() || at >= end {
            (height, true)
        } else {
            let step = descend(tx, map, at, 0)?;
            (step.level, step.home.is_none_or(|b| tx.is_new(b)))
        };
        // Cost of the pointers beyond the bits: once, and for each block.
        let (once, each) = match (level, new) {
            (0, true) => (0, 0),
            (0, false) => (8, 8),
            (missing, _) => (missing as usize * BIT_WORD + ONE_WORD, 0),
        };
        let cost = |n: u64| bits_cost(n) + once + each * n as usize;
        if cost(piece) <= room {
            room -= cost(piece);
            count += piece;
            continue;
        }
        // The cost grows with the number of blocks: find the largest number that fits.
        let (mut fits, mut not) = (0, piece);
        while fits + 1 < not {
            let mid = (fits + not) / 2;
            if cost(mid) <= room {
                fits = mid
            } else {
                not = mid
            }
        }
        return Ok(count + fits);
    }
    Ok(count)
}

/// Tells whether [`insert_huge`] at `index` fits the record, with the bits of its run.
///
/// # Errors
/// [`Error::TooLarge`].
pub fn plan_huge(tx: &Record<'_>, map: &MapRef, index: FileBlock) -> Result<bool> {
    let span = tx.volume().geo.fan();
    let last = index.last_of(span).ok_or(Error::TooLarge(u64::MAX))?;
    let levels = height_for(tx.volume(), last)?.max(map.height) as usize;
    // New pointer blocks, the pointer to them, and the data blocks.
    Ok(tx.room() >= RESERVED_BYTES + levels * BIT_WORD + ONE_WORD + bits_cost(span))
}

/// The contents of the other slots of a new pointer block.
#[derive(Debug, Clone, Copy)]
enum Rest {
    Holes,
    /// Loss marks, because the block replaces a loss mark: of this level, in the
    /// pointer block that covers this file block.
    Lost(u32, FileBlock),
}

impl Rest {
    fn of(step: &super::Step, level: u32, index: FileBlock) -> Rest {
        if step.lost {
            Rest::Lost(level, index)
        } else {
            Rest::Holes
        }
    }
}

/// Writes a new pointer block with these pointers.
fn new_table(
    tx: &mut Plan<'_>,
    map: &mut MapRef,
    near: Option<Bno>,
    first: u64,
    words: &[u64],
    rest: Rest,
) -> Result<Bno> {
    let geo = &tx.volume().geo;
    let block = tx.alloc_blocks(near, 1, true)?.start;
    let mut table = [0u64; 512];
    if let Rest::Lost(level, index) = rest {
        let base = geo.first_under(level + 1, index);
        for (i, word) in (0..geo.fan()).zip(&mut table) {
            *word = Ptr::lost(map.at(geo, level, base + i * geo.span(level))).0;
        }
    }
    let (from, to) = (first as usize, first as usize + words.len());
    table[from..to].copy_from_slice(words);
    tx.write_new(geo.offset(block), table[..geo.fan() as usize].as_bytes())?;
    map.blocks += 1;
    Ok(block)
}

/// Grows the tree until it can hold a block `last` and has at least `least` levels.
fn grow(tx: &mut Plan<'_>, map: &mut MapRef, last: FileBlock, least: u32) -> Result<()> {
    let geo = &tx.volume().geo;
    let root = map.checked(geo)?;
    check_last(geo, last)?;
    if map.height >= least && last < root.end(geo) {
        return Ok(());
    }
    let height = height_for(tx.volume(), last)?.max(least);
    if map.height >= height {
        return Ok(());
    }
    if map.root.is_hole() {
        map.height = height;
        return Ok(());
    }
    if !map.root.is_lost(root.root_at(geo)) {
        root.open(geo, map.root, root.root_at(geo))?;
    }
    while map.height < height {
        // The old root becomes entry 0 of the new one. Its level and index do not
        // change, so its check stays valid.
        let old = [map.root.0];
        let table = new_table(tx, map, None, 0, &old, Rest::Holes)?;
        map.height += 1;
        map.root = Ptr::new(table, 0, map.at(geo, map.height, FileBlock(0)));
    }
    Ok(())
}

/// Replaces the hole or loss mark that covers `index` by `ptr`, of level `level`. Adds
/// the missing pointer blocks. The rest of a loss mark's range stays lost.
fn graft(
    tx: &mut Plan<'_>,
    map: &mut MapRef,
    index: FileBlock,
    mut level: u32,
    mut ptr: Ptr,
) -> Result<()> {
    let geo = &tx.volume().geo;
    let step = descend(tx, map, index, level)?;
    if !step.is_free() {
        return Err(map.damaged(index, "it is mapped already"));
    }
    while level < step.level {
        let first = geo.slot_at(level, index);
        let rest = Rest::of(&step, level, index);
        let table = new_table(tx, map, step.home, first, &[ptr.0], rest)?;
        level += 1;
        ptr = Ptr::new(table, 0, map.at(geo, level, index));
    }
    put_pointer(tx, map, &step, index, ptr)
}

/// Maps the blocks of `run`, taken by this transaction, from `index` on. All these
/// file blocks are holes or lost, and their number is at most that of [`plan`].
///
/// # Errors
/// [`Error::NoSpace`] if no block is left for a pointer block; [`Error::Corrupt`];
/// [`Error::TooLarge`].
pub fn insert(
    tx: &mut Plan<'_>,
    map: &mut MapRef,
    index: FileBlock,
    run: BlockRun,
    unwritten: bool,
) -> Result<()> {
    if run.len == 0 {
        return Ok(());
    }
    let geo = &tx.volume().geo;
    let last = index.last_of(run.len).ok_or(Error::TooLarge(u64::MAX))?;
    grow(tx, map, last, 0)?;
    let mut done = 0;
    let mut words = SmallVec::<[u64; 16]>::new();
    while done < run.len {
        let at = index + done;
        let first = geo.slot_of(at);
        let n = (run.len - done).min(geo.fan() - first);
        words.clear();
        for i in 0..n {
            let block = run.start.after(done + i);
            words.push(Ptr::new(block, flag(unwritten), map.at(geo, 0, at + i)).0);
        }
        let step = descend(tx, map, at, 0)?;
        match step.home {
            Some(table) if step.level == 0 => {
                let mut mapped = !step.is_free();
                if n > 1 {
                    let mut there = [0u64; 512];
                    let there = &mut there[..n as usize];
                    tx.read(geo.offset(table).word(first), there.as_mut_bytes())?;
                    mapped = (0..)
                        .zip(&*there)
                        .any(|(i, w)| *w != 0 && !Ptr(*w).is_lost(map.at(geo, 0, at + i)));
                }
                if mapped {
                    return Err(map.damaged(at, "it is mapped already"));
                }
                put_slots(tx, table, first, &words)?;
            }
            _ if map.height == 0 => graft(tx, map, at, 0, Ptr(words[0]))?,
            _ => {
                if !step.is_free() {
                    return Err(map.damaged(at, "it is mapped already"));
                }
                let rest = Rest::of(&step, 0, at);
                let table = new_table(tx, map, step.home, first, &words, rest)?;
                let ptr = Ptr::new(table, 0, map.at(geo, 1, at));
                graft(tx, map, at, 1, ptr)?;
            }
        }
        done += n;
    }
    map.blocks += run.len as i64;
    Ok(())
}

/// As [`insert`], for a known pointer block that covers all of the run and has holes
/// or loss marks there.
///
/// # Errors
/// A full record.
#[inline]
pub fn insert_into(
    tx: &mut Record<'_>,
    map: &mut MapRef,
    table: Bno,
    index: FileBlock,
    run: BlockRun,
) -> Result<()> {
    let geo = &tx.volume().geo;
    let word = |i| Ptr::new(run.start.after(i), 0, map.at(geo, 0, index + i)).0;
    let words: SmallVec<[u64; 16]> = (0..run.len).map(word).collect();
    put_slots(tx, table, geo.slot_of(index), &words)?;
    map.blocks += run.len as i64;
    Ok(())
}

/// Maps an aligned run of 2 MiB as one leaf at `index`, a multiple of 512. The range
/// is a hole or lost under one pointer, or lies past the end of the tree.
///
/// # Errors
/// [`Error::NoSpace`] if no block is left for a pointer block; [`Error::NotSupported`]
/// for an unaligned run or a file system without 2 MiB leaves; [`Error::Corrupt`];
/// [`Error::TooLarge`].
pub fn insert_huge(
    tx: &mut Plan<'_>,
    map: &mut MapRef,
    index: FileBlock,
    run: BlockRun,
    unwritten: bool,
) -> Result<()> {
    let geo = &tx.volume().geo;
    let span = geo.fan();
    if !geo.allows_huge_leaves()
        || run.len != span
        || !run.start.0.is_multiple_of(span)
        || geo.slot_of(index) != 0
    {
        return Err(Error::NotSupported(
            "a 2 MiB leaf that is unaligned, or a file system without the feature",
        ));
    }
    let last = index.last_of(span).ok_or(Error::TooLarge(u64::MAX))?;
    grow(tx, map, last, 1)?;
    let ptr = Ptr::new(run.start, LEAF | flag(unwritten), map.at(geo, 1, index));
    let step = descend(tx, map, index, 1)?;
    if !step.is_free() {
        // A pointer block is freed with its last pointer. This one has pointers, or
        // they were lost.
        return Err(map.damaged(index, "it is mapped already"));
    }
    graft(tx, map, index, 1, ptr)?;
    map.blocks += span as i64;
    Ok(())
}

/// Marks `count` blocks from `index` on as written. None of them is a hole. Blocks
/// that are already written do not change. A huge leaf changes only as a whole.
/// Returns the number of blocks for which the record had room.
///
/// # Errors
/// [`Error::Corrupt`]; [`Error::NotSupported`] for a part of a huge leaf.
pub fn set_written(
    tx: &mut Plan<'_>,
    map: &mut MapRef,
    index: FileBlock,
    count: u64,
) -> Result<u64> {
    let geo = &tx.volume().geo;
    let root = map.checked(geo)?;
    let end = root.end(geo);
    let mut done = 0;
    while done < count {
        let at = index.saturating_add(done);
        if at >= end {
            return Err(map.damaged(at, "it should be allocated and is not"));
        }
        let step = descend(tx, map, at, 0)?;
        if step.ptr.is_hole() {
            return Err(map.damaged(at, "it should be allocated and is not"));
        }
        let room = tx.room().saturating_sub(RESERVED_BYTES);
        if step.ptr.is_leaf() {
            if geo.slot_of(at) != 0 || count - done < geo.fan() {
                return Err(Error::NotSupported(
                    "only a whole 2 MiB leaf can become written",
                ));
            }
            if step.ptr.is_unwritten() {
                if room < ONE_WORD {
                    return Ok(done);
                }
                let flags = step.ptr.flags() & !UNWRITTEN;
                put_pointer(
                    tx,
                    map,
                    &step,
                    at,
                    Ptr::new(step.ptr.block(), flags, map.at(geo, 1, at)),
                )?;
            }
            done += geo.fan();
            continue;
        }
        let Some(table) = step.home else {
            let block = root.open(geo, step.ptr, map.at(geo, 0, at))?;
            map.root = Ptr::new(block, step.ptr.flags() & !UNWRITTEN, map.at(geo, 0, at));
            done += 1;
            continue;
        };
        let first = geo.slot_of(at);
        let piece = (count - done).min(geo.fan() - first);
        let fits = piece.min((room.saturating_sub(8) / 8) as u64);
        if fits == 0 {
            return Ok(done);
        }
        let mut words: SmallVec<[u64; 16]> = smallvec![0; fits as usize];
        tx.read(
            geo.offset(table).word(first),
            words.as_mut_slice().as_mut_bytes(),
        )?;
        // Store only the range from the first changed pointer to the last.
        let (mut from, mut to) = (usize::MAX, 0);
        for (i, w) in words.iter_mut().enumerate() {
            let (ptr, place) = (Ptr(*w), map.at(geo, 0, at + i as u64));
            if ptr.is_hole() {
                return Err(map.damaged(at + i as u64, "it should be allocated and is not"));
            }
            let block = root.open(geo, ptr, place)?;
            if ptr.is_unwritten() {
                *w = Ptr::new(block, ptr.flags() & !UNWRITTEN, place).0;
                (from, to) = (from.min(i), i + 1);
            }
        }
        if from < to {
            put_slots(tx, table, first + from as u64, &words[from..to])?;
        }
        done += fits;
        if fits < piece {
            return Ok(done);
        }
    }
    Ok(done)
}

/// Replaces the huge leaf that covers `index` by a pointer block with the pointers
/// that `keep` selects (a predicate over its slots). The flags stay the same. The
/// caller frees the other blocks of the leaf. Takes one block, if necessary from the
/// reserve.
pub(super) fn cut(
    tx: &mut Plan<'_>,
    map: &mut MapRef,
    index: FileBlock,
    leaf: Ptr,
    keep: impl Fn(u64) -> bool,
) -> Result<Ptr> {
    let geo = &tx.volume().geo;
    let block = map.root().open(geo, leaf, map.at(geo, 1, index))?;
    let base = geo.first_under(1, index);
    let flags = leaf.flags() & !LEAF;
    let mut words = [0u64; 512];
    for i in (0..geo.fan()).filter(|i| keep(*i)) {
        words[i as usize] = Ptr::new(Bno(block.0 + i), flags, map.at(geo, 0, base + i)).0;
    }
    tx.allow_reserve();
    let words = &words[..geo.fan() as usize];
    let table = new_table(tx, map, None, 0, words, Rest::Holes)?;
    Ok(Ptr::new(table, 0, map.at(geo, 1, index)))
}

/// Returns the maximum number of pointer blocks that [`cut_lost`] takes at a level
/// above the lowest: one at this level, and two at each level below, for the two ends.
pub(super) fn lost_tables(level: u32) -> usize {
    2 * level as usize - 1
}

/// Replaces the loss mark of level `level` whose first file block is `first` by a
/// pointer block. The part in `range` becomes a hole, and the rest stays lost. Takes
/// blocks, if necessary from the reserve.
pub(super) fn cut_lost(
    tx: &mut Plan<'_>,
    map: &mut MapRef,
    level: u32,
    first: FileBlock,
    range: &Range<FileBlock>,
) -> Result<Ptr> {
    let geo = &tx.volume().geo;
    let below = level - 1;
    let span = geo.span(below);
    let mut words = [0u64; 512];
    for i in 0..geo.fan() {
        let start = first + i * span;
        let end = start + span;
        words[i as usize] = if end <= range.start || range.end <= start {
            Ptr::lost(map.at(geo, below, start)).0
        } else if range.start <= start && end <= range.end {
            0
        } else {
            cut_lost(tx, map, below, start, range)?.0
        };
    }
    tx.allow_reserve();
    let words = &words[..geo.fan() as usize];
    let table = new_table(tx, map, None, 0, words, Rest::Holes)?;
    Ok(Ptr::new(table, 0, map.at(geo, level, first)))
}
