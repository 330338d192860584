//! Reads a tree: the path from the root to a leaf, look-up, scan, and a visit of
//! all blocks.

use std::ops::ControlFlow;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::leaf::{Image, ItemPos, Tags, home_of, item_parts, look_up, verify};
use super::{HASH_BITS, MAX_LEVELS, TreeRef, first_bits, name_hash, prefix_of, width};
use crate::error::Result;
use crate::media::Geometry;
use crate::media::htree::{ItemHeader, LeafHeader, LeafShape, SLOT};
use crate::media::pointer::Ptr;
use crate::pmem::LINE;
use crate::types::{Bno, RegionOffset};
use crate::volume::{Record, Volume};

/// Source of blocks: the medium, or the medium with the changes of a transaction.
pub trait BlockSource {
    /// Returns the volume.
    fn volume(&self) -> &Volume;
    /// Reads one word.
    fn word(&self, offset: RegionOffset) -> Result<u64>;
    /// Reads bytes.
    fn bytes(&self, offset: RegionOffset, into: &mut [u8]) -> Result<()>;
    /// Reads a value.
    fn pod<T: FromBytes + IntoBytes + Immutable>(&self, offset: RegionOffset) -> Result<T>;
}

impl BlockSource for Volume {
    #[inline]
    fn volume(&self) -> &Volume {
        self
    }
    #[inline]
    fn word(&self, offset: RegionOffset) -> Result<u64> {
        Ok(self.medium().load_u64(offset)?)
    }
    #[inline]
    fn bytes(&self, offset: RegionOffset, into: &mut [u8]) -> Result<()> {
        Ok(self.medium().read(offset, into)?)
    }
    #[inline]
    fn pod<T: FromBytes + IntoBytes + Immutable>(&self, offset: RegionOffset) -> Result<T> {
        Ok(self.medium().read_pod(offset)?)
    }
}

impl BlockSource for Record<'_> {
    #[inline]
    fn volume(&self) -> &Volume {
        Record::volume(self)
    }
    #[inline]
    fn word(&self, offset: RegionOffset) -> Result<u64> {
        self.load_u64(offset)
    }
    #[inline]
    fn bytes(&self, offset: RegionOffset, into: &mut [u8]) -> Result<()> {
        self.read(offset, into)
    }
    #[inline]
    fn pod<T: FromBytes + IntoBytes + Immutable>(&self, offset: RegionOffset) -> Result<T> {
        self.read_pod(offset)
    }
}

/// The path of a hash and its end.
#[derive(Debug)]
pub(super) struct LeafPath {
    /// Level of the last pointer that was followed; 0 is the root.
    pub level: u32,
    /// The leaf; `None` for a hole.
    pub leaf: Option<Bno>,
    /// Index blocks on the path. The k-th (from 1) holds the slots of level k.
    path: [Bno; MAX_LEVELS],
}

impl LeafPath {
    /// Returns the index block that holds the slots of a level, 1 or greater.
    pub(super) fn index_block(&self, level: u32) -> Bno {
        self.path[level as usize - 1]
    }
}

/// Follows a hash to its leaf and records the path.
pub(super) fn descend<S: BlockSource>(s: &S, tree: &TreeRef, hash: u64) -> Result<LeafPath> {
    let mut path = [Bno(0); MAX_LEVELS];
    let (level, leaf) = find_leaf(s, tree, hash, |level, block| path[level as usize] = block)?;
    Ok(LeafPath { level, leaf, path })
}

/// Follows a hash to its leaf. Returns the level of the last pointer and the leaf,
/// or `None` for a hole. Calls `through` with the level of each pointer to an index
/// block and with that block.
#[inline]
pub(super) fn find_leaf<S: BlockSource>(
    s: &S,
    tree: &TreeRef,
    hash: u64,
    mut through: impl FnMut(u32, Bno),
) -> Result<(u32, Option<Bno>)> {
    let geo = &s.volume().geo;
    let (mut level, mut index) = (0, 0);
    let (mut ptr, mut home) = (tree.root, Bno(0));
    loop {
        if ptr.is_hole() {
            if level > 0 {
                has_pointers(s, tree, level, index, home)?;
            }
            return Ok((level, None));
        }
        let block = tree.open(geo, ptr, level, index)?;
        if ptr.is_leaf() {
            return Ok((level, Some(block)));
        }
        let bits = (level + 1) * geo.fan_log2;
        if bits > HASH_BITS || level as usize == MAX_LEVELS {
            return Err(tree.bad_pointer(level, index, "an index block past the last level"));
        }
        through(level, block);
        level += 1;
        index = first_bits(hash, bits);
        ptr = Ptr(s.word(geo.offset(block).word(slot_of(geo, index)))?);
        home = block;
    }
}

/// Checks that an index block has a pointer. It is freed with its last leaf, so an empty
/// one was lost, and its zeros, including slot `index`, are not holes.
#[cold]
fn has_pointers<S: BlockSource>(
    s: &S,
    tree: &TreeRef,
    level: u32,
    index: u64,
    block: Bno,
) -> Result<()> {
    if read_index(s, block)?.iter().all(|w| *w == 0) {
        return Err(tree.empty_table(level, index));
    }
    Ok(())
}

/// Returns the position of slot `index` of a level in its index block.
#[inline]
pub(super) fn slot_of(geo: &Geometry, index: u64) -> u64 {
    index & ((1 << geo.fan_log2) - 1)
}

/// Reads the pointers of an index block.
pub(super) fn read_index<S: BlockSource>(s: &S, block: Bno) -> Result<Vec<u64>> {
    let mut slots = vec![0; 1 << s.volume().geo.fan_log2];
    read_slots(s, block, 0, &mut slots)?;
    Ok(slots)
}

/// Reads pointers of an index block from slot `from` on. Stops at the end of the
/// block.
pub(super) fn read_slots<S: BlockSource>(
    s: &S,
    block: Bno,
    from: u64,
    into: &mut [u64],
) -> Result<()> {
    let geo = &s.volume().geo;
    let most = (1usize << geo.fan_log2).saturating_sub(from as usize);
    let n = into.len().min(most);
    s.bytes(geo.offset(block).word(from), into[..n].as_mut_bytes())?;
    into.iter_mut().for_each(|w| *w = u64::from_le(*w));
    Ok(())
}

/// Prefetches the lines of a leaf that a look-up and a change need, so that the
/// loads overlap.
#[inline]
pub(super) fn fetch(vol: &Volume, base: RegionOffset, hash: u64) {
    let shape = &vol.geo.leaf;
    let home = base + (shape.slots_at + home_of(hash, shape) * SLOT) as u64;
    let tags = base + LeafShape::TAGS_AT as u64;
    for at in [tags, tags + LINE, home, home + LINE, base] {
        vol.region.prefetch(at.0);
    }
}

/// An item and its place.
#[derive(Debug)]
pub struct OccupiedEntry {
    /// Level of the pointer to the leaf.
    pub(super) level: u32,
    pub(super) block: Bno,
    pub(super) hit: ItemPos,
}

/// The place for a name that does not exist.
#[derive(Debug)]
pub struct VacantEntry {
    /// Root of the tree that was searched.
    pub(super) root: Ptr,
    /// Hash of the name, with a free tie-breaker.
    pub(super) hash: u64,
    pub(super) block: Bno,
}

impl LeafCursor {
    /// Tells whether the name leads to a hole instead of a leaf. If the hole is
    /// genuine, the name does not exist.
    #[inline]
    pub fn is_hole(&self) -> bool {
        self.leaf.is_none()
    }
}

/// The tie-breakers of items with one hash.
#[derive(Debug, Default)]
pub(super) struct Ties([u64; 4]);

impl Ties {
    #[inline]
    pub(super) fn note(&mut self, tie: u8) {
        self.0[usize::from(tie / 64)] |= 1 << (tie % 64);
    }

    /// Returns the first free tie-breaker.
    #[inline]
    pub(super) fn free(&self) -> Option<u64> {
        let part = self.0.iter().position(|tree| *tree != u64::MAX)?;
        Some(part as u64 * 64 + u64::from(self.0[part].trailing_ones()))
    }
}

/// Looks up a directory entry that probably does not exist. The inner error has the
/// place for it, if there is one.
///
/// # Errors
/// [`crate::Error::Corrupt`].
pub fn find_dir_or_vacant(
    vol: &Volume,
    tree: &TreeRef,
    name: &[u8],
) -> Result<Result<DirEntry, Option<VacantEntry>>> {
    let mut ties = Ties::default();
    let SearchResult { hash, leaf, hit } = seek(vol, tree, name, |tie| ties.note(tie))?;
    let vacant = |(_, block)| {
        Some(VacantEntry {
            root: tree.root,
            hash: hash | ties.free()?,
            block,
        })
    };
    match (leaf, hit) {
        (Some((level, block)), Some(hit)) => {
            entry_of(vol, tree, OccupiedEntry { level, block, hit }).map(Ok)
        }
        (leaf, _) => Ok(Err(leaf.and_then(vacant))),
    }
}

/// Looks up a name.
///
/// # Errors
/// [`crate::Error::Corrupt`].
#[inline]
pub(super) fn find_in<S: BlockSource>(
    s: &S,
    tree: &TreeRef,
    name: &[u8],
) -> Result<Option<OccupiedEntry>> {
    let SearchResult { leaf, hit, .. } = seek(s, tree, name, |_| ())?;
    Ok(leaf
        .zip(hit)
        .map(|((level, block), hit)| OccupiedEntry { level, block, hit }))
}

/// The hash of a name and the leaf it leads to, with its level. A hole has no leaf.
#[derive(Debug)]
pub struct LeafCursor {
    pub(super) hash: u64,
    pub(super) leaf: Option<(u32, Bno)>,
}

/// Finds the leaf that a name leads to and prefetches its lines. The caller can do
/// other work before it reads them.
///
/// # Errors
/// [`crate::Error::Corrupt`].
#[inline]
pub fn seek_leaf<S: BlockSource>(s: &S, tree: &TreeRef, name: &[u8]) -> Result<LeafCursor> {
    let vol = s.volume();
    let hash = name_hash(&vol.geo, name);
    let (level, block) = find_leaf(s, tree, hash, |_, _| ())?;
    if let Some(block) = block {
        vol.verified.prefetch(block);
        fetch(vol, vol.geo.offset(block), hash);
    }
    Ok(LeafCursor {
        hash,
        leaf: block.map(|block| (level, block)),
    })
}

/// The result of a search for a name.
struct SearchResult {
    hash: u64,
    /// Level and leaf at the end of the path; `None` for a hole.
    leaf: Option<(u32, Bno)>,
    hit: Option<ItemPos>,
}

/// Follows a name to its item. Calls `ties` with the tie-breaker of each item that has
/// the same hash.
#[inline]
fn seek<S: BlockSource>(
    s: &S,
    tree: &TreeRef,
    name: &[u8],
    ties: impl FnMut(u8),
) -> Result<SearchResult> {
    seek_on(s, tree, &seek_leaf(s, tree, name)?, name, ties)
}

/// As [`seek`], from a [`LeafCursor`] for the name.
#[inline]
fn seek_on<S: BlockSource>(
    s: &S,
    tree: &TreeRef,
    cursor: &LeafCursor,
    name: &[u8],
    ties: impl FnMut(u8),
) -> Result<SearchResult> {
    let vol = s.volume();
    let &LeafCursor { hash, leaf } = cursor;
    let Some((level, block)) = leaf else {
        return Ok(SearchResult {
            hash,
            leaf: None,
            hit: None,
        });
    };
    let (base, shape) = (vol.geo.offset(block), &vol.geo.leaf);
    verify(vol, tree, block, level, hash)?;
    let mut tags = Tags::FREE;
    tags.read(s, shape, base)?;
    let hit = look_up(s, tree, block, &tags, hash, name, ties)?;
    Ok(SearchResult {
        hash,
        leaf: Some((level, block)),
        hit,
    })
}

/// Tells whether a directory has no entries. Reads the tree rather than the count in
/// the inode: a directory with a damaged count must not be mistaken for an empty one.
///
/// # Errors
/// [`crate::Error::Corrupt`].
pub fn is_empty(vol: &Volume, tree: &TreeRef) -> Result<bool> {
    if tree.root.is_hole() {
        return Ok(true);
    }
    let block = tree.open(&vol.geo, tree.root, 0, 0)?;
    // An index block is freed with its last leaf.
    if !tree.root.is_leaf() {
        return Ok(false);
    }
    verify(vol, tree, block, 0, 0)?;
    let header: LeafHeader = vol.medium().read_pod(vol.geo.offset(block))?;
    Ok(header.items == 0)
}

/// Looks up a name and calls `f` with the item. Returns false if the name does not
/// exist.
///
/// # Errors
/// [`crate::Error::Corrupt`].
pub fn find(
    vol: &Volume,
    tree: &TreeRef,
    name: &[u8],
    f: &mut dyn FnMut(&ItemHeader, &[u8]),
) -> Result<bool> {
    let Some(OccupiedEntry { hit, .. }) = find_in(vol, tree, name)? else {
        return Ok(false);
    };
    let mut value = vec![0; hit.head.value_len.into()];
    vol.medium()
        .read(hit.at + ItemHeader::SIZE as u64, &mut value)?;
    f(&hit.head, &value);
    Ok(true)
}

/// An entry of a directory.
#[derive(Debug)]
pub struct DirEntry {
    /// Inode number.
    pub ino: u64,
    /// Its place.
    pub found: OccupiedEntry,
}

/// Looks up an entry of a directory.
///
/// # Errors
/// [`crate::Error::Corrupt`].
pub fn find_dir(vol: &Volume, tree: &TreeRef, name: &[u8]) -> Result<Option<DirEntry>> {
    match find_in(vol, tree, name)? {
        Some(found) => entry_of(vol, tree, found).map(Some),
        None => Ok(None),
    }
}

/// As [`find_dir`], from a [`LeafCursor`] for the name. Since the cursor was made, the
/// caller has held the owner's lock and has not changed the tree.
///
/// # Errors
/// [`crate::Error::Corrupt`].
pub fn find_dir_on(
    vol: &Volume,
    tree: &TreeRef,
    cursor: &LeafCursor,
    name: &[u8],
) -> Result<Option<DirEntry>> {
    let SearchResult { leaf, hit, .. } = seek_on(vol, tree, cursor, name, |_| ())?;
    let found = leaf.zip(hit);
    found
        .map(|((level, block), hit)| entry_of(vol, tree, OccupiedEntry { level, block, hit }))
        .transpose()
}

#[inline(always)]
fn entry_of(vol: &Volume, tree: &TreeRef, found: OccupiedEntry) -> Result<DirEntry> {
    let hit = &found.hit;
    if hit.head.value_len != 8 {
        return Err(tree.bad_leaf(found.block, "an entry without an inode number"));
    }
    Ok(DirEntry {
        ino: vol.medium().read_pod(hit.at + ItemHeader::SIZE as u64)?,
        found,
    })
}

/// The callback of [`scan`]: head, value and name of an item.
pub(super) type Show<'a> = dyn FnMut(&ItemHeader, &[u8], &[u8]) -> ControlFlow<()> + 'a;

/// Calls `f` with the items after `from` (head, value, name), in ascending order of
/// their hashes, until `f` breaks. An item that stays in the tree between calls is
/// shown exactly once, whatever is inserted and removed in between. At each hole the
/// scan calls `hole`, which fails if the hole cannot be genuine.
///
/// # Errors
/// [`crate::Error::Corrupt`]; errors of `hole`.
pub fn scan(
    vol: &Volume,
    tree: &TreeRef,
    from: u64,
    hole: &dyn Fn() -> Result<()>,
    f: &mut Show<'_>,
) -> Result<()> {
    let geo = &vol.geo;
    let mut next = from.saturating_add(1);
    while next >> HASH_BITS == 0 {
        let spot = descend(vol, tree, next)?;
        let bits = match spot.leaf {
            None => {
                hole()?;
                spot.level * geo.fan_log2
            }
            Some(block) => {
                verify(vol, tree, block, spot.level, next)?;
                let image = Image::read(vol, block)?;
                let bad = |what| tree.bad_leaf(block, what);
                let depth = image.depth(geo, spot.level, next).map_err(bad)?;
                let mut items = image.items(tree, &geo.leaf).map_err(bad)?;
                items.sort_unstable_by_key(|i| i.hash);
                // The first use of a leaf checks it, but not for equal hashes.
                // Callers rely on the ascending order to end their loops. The order
                // must not depend on later damage to the leaf.
                let prefix = prefix_of(next, depth);
                if items.iter().any(|i| prefix_of(i.hash, depth) != prefix) {
                    return Err(bad("an item belongs in another leaf"));
                }
                if items.windows(2).any(|w| w[0].hash == w[1].hash) {
                    return Err(bad("two items have the same hash"));
                }
                items.retain(|i| i.hash >= next);
                for i in items {
                    let (head, value, name) = item_parts(&image.bytes, i.at)
                        .ok_or_else(|| bad("an item leaves the block"))?;
                    if f(&head, value, name).is_break() {
                        return Ok(());
                    }
                }
                depth
            }
        };
        next = (next | width(bits)) + 1;
    }
    Ok(())
}

/// Calls `f` with every block of the tree (block, whether it is a leaf) and checks
/// all of them, whether checked before or not. An index block comes before the
/// blocks below it.
///
/// # Errors
/// [`crate::Error::Corrupt`] for the first damage; errors of `f`.
#[cfg(test)]
pub fn visit_blocks(
    vol: &Volume,
    tree: &TreeRef,
    f: &mut dyn FnMut(Bno, bool) -> Result<()>,
) -> Result<()> {
    visit(vol, tree, tree.root, 0, 0, f).map(|_| ())
}

/// Visits the subtree of slot `index` of a level. Returns the number of slots that it
/// should fill.
#[cfg(test)]
fn visit(
    vol: &Volume,
    tree: &TreeRef,
    ptr: Ptr,
    level: u32,
    index: u64,
    f: &mut dyn FnMut(Bno, bool) -> Result<()>,
) -> Result<u64> {
    let geo = &vol.geo;
    if ptr.is_hole() {
        return Ok(1);
    }
    let block = tree.open(geo, ptr, level, index)?;
    let bits = level * geo.fan_log2;
    if ptr.is_leaf() {
        let image = Image::read(vol, block)?;
        let hash = index << (HASH_BITS - bits);
        let bad = |what| tree.bad_leaf(block, what);
        image
            .check(tree, geo, super::LeafAt { block, level, hash }, true)
            .map_err(bad)?;
        f(block, true)?;
        return Ok(1 << (bits - image.depth(geo, level, hash).map_err(bad)?));
    }
    if bits + geo.fan_log2 > HASH_BITS {
        return Err(tree.bad_pointer(level, index, "an index block past the last level"));
    }
    f(block, false)?;
    let slots = read_index(vol, block)?;
    if slots.iter().all(|w| *w == 0) {
        return Err(tree.bad_pointer(level, index, "an index block without pointers"));
    }
    let mut slot = 0;
    while slot < slots.len() {
        let first = index << geo.fan_log2 | slot as u64;
        let ptr = Ptr(slots[slot]);
        let run = visit(vol, tree, ptr, level + 1, first, f)? as usize;
        check_run(
            tree,
            geo,
            level + 1,
            first,
            &slots[slot..],
            run,
            ptr.block(),
        )?;
        slot += run;
    }
    Ok(1)
}

/// Checks that all slots of a leaf name it: `run` slots from slot `first` of the
/// level on.
pub(super) fn check_run(
    tree: &TreeRef,
    geo: &Geometry,
    level: u32,
    first: u64,
    slots: &[u64],
    run: usize,
    leaf: Bno,
) -> Result<()> {
    if run <= 1 {
        return Ok(());
    }
    let own = slots
        .get(..run)
        .filter(|_| first.is_multiple_of(run as u64));
    let own = own.ok_or_else(|| tree.bad_leaf(leaf, "it is in the wrong place"))?;
    for (i, &w) in own.iter().enumerate() {
        let ptr = Ptr(w);
        let index = first + i as u64;
        if tree.open(geo, ptr, level, index)? != leaf || !ptr.is_leaf() {
            return Err(tree.bad_pointer(
                level,
                index,
                "it names a different block from its neighbours",
            ));
        }
    }
    Ok(())
}
