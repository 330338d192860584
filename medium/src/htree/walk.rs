//! Reading: the way from the root to a leaf, look-up, scan, and the visit of
//! every block.

use std::ops::ControlFlow;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::leaf::{Image, ItemPos, Tags, home_of, item_parts, look_up, verify};
use super::{HASH_BITS, MAX_LEVELS, TreeRef, first_bits, name_hash, prefix_of, width};
use crate::error::Result;
use crate::media::Geometry;
use crate::media::htree::{ItemHeader, LeafHeader, LeafShape, SLOT};
use crate::media::pointer::Ptr;
use crate::media::walk::EMPTY_TABLE;
use crate::pmem::LINE;
use crate::types::Bno;
use crate::volume::{Tx, Volume};

/// Where blocks are read: the medium as it is, or as a transaction leaves it.
pub trait Source {
    /// The volume.
    fn volume(&self) -> &Volume;
    /// One word.
    fn word(&self, offset: u64) -> Result<u64>;
    /// Copies bytes out.
    fn bytes(&self, offset: u64, into: &mut [u8]) -> Result<()>;
    /// Copies a value out.
    fn pod<T: FromBytes + IntoBytes + Immutable>(&self, offset: u64) -> Result<T>;
}

impl Source for Volume {
    #[inline]
    fn volume(&self) -> &Volume {
        self
    }
    #[inline]
    fn word(&self, offset: u64) -> Result<u64> {
        Ok(self.region.load_u64(offset)?)
    }
    #[inline]
    fn bytes(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        Ok(self.region.read(offset, into)?)
    }
    #[inline]
    fn pod<T: FromBytes + IntoBytes + Immutable>(&self, offset: u64) -> Result<T> {
        Ok(self.region.read_pod(offset)?)
    }
}

impl Source for Tx<'_> {
    #[inline]
    fn volume(&self) -> &Volume {
        Tx::volume(self)
    }
    #[inline]
    fn word(&self, offset: u64) -> Result<u64> {
        self.load_u64(offset)
    }
    #[inline]
    fn bytes(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.read(offset, into)
    }
    #[inline]
    fn pod<T: FromBytes + IntoBytes + Immutable>(&self, offset: u64) -> Result<T> {
        self.read_pod(offset)
    }
}

/// Where the way of a hash ends.
#[derive(Debug)]
pub(super) struct LeafPath {
    /// Level of the pointer that was followed last; 0 is the root.
    pub level: u32,
    /// The leaf; `None` for a hole.
    pub leaf: Option<Bno>,
    /// Index blocks on the way: the slots of level k are in the k-th, from 1.
    path: [Bno; MAX_LEVELS],
}

impl LeafPath {
    /// The index block whose slots are those of a level from 1.
    pub(super) fn index_block(&self, level: u32) -> Bno {
        self.path[level as usize - 1]
    }
}

/// Follows a hash to its leaf, and notes the way.
pub(super) fn descend<S: Source>(s: &S, tree: &TreeRef, hash: u64) -> Result<LeafPath> {
    let mut path = [Bno(0); MAX_LEVELS];
    let (level, leaf) = find_leaf(s, tree, hash, |level, block| path[level as usize] = block)?;
    Ok(LeafPath { level, leaf, path })
}

/// Follows a hash to the level of its leaf, and the leaf; `None` for a hole. On
/// the way `through` is told the level of each pointer to an index block, and
/// that.
#[inline]
pub(super) fn find_leaf<S: Source>(
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
                has_pointers(s, tree, (level, index), home)?;
            }
            return Ok((level, None));
        }
        let block = tree.open(geo, ptr, level, index)?;
        if ptr.is_leaf() {
            return Ok((level, Some(block)));
        }
        let bits = (level + 1) * geo.fan_log2;
        if bits > HASH_BITS || level as usize == MAX_LEVELS {
            return Err(tree.bad_pointer(level, index, "an index block where there can be none"));
        }
        through(level, block);
        level += 1;
        index = first_bits(hash, bits);
        ptr = Ptr(s.word(geo.offset(block) + slot_of(geo, index) * 8)?);
        home = block;
    }
}

/// An index block goes with its last leaf: one that has none was lost, and the
/// zeros in it, that of slot `index` among them, are no holes.
#[cold]
fn has_pointers<S: Source>(
    s: &S,
    tree: &TreeRef,
    (level, index): (u32, u64),
    block: Bno,
) -> Result<()> {
    if read_index(s, block)?.iter().all(|w| *w == 0) {
        return Err(tree.bad_pointer(level, index, EMPTY_TABLE));
    }
    Ok(())
}

/// The slot in its index block of slot `index` of a level.
#[inline]
pub(super) fn slot_of(geo: &Geometry, index: u64) -> u64 {
    index & ((1 << geo.fan_log2) - 1)
}

/// The pointers of an index block.
pub(super) fn read_index<S: Source>(s: &S, block: Bno) -> Result<Vec<u64>> {
    let mut slots = vec![0; 1 << s.volume().geo.fan_log2];
    read_slots(s, block, 0, &mut slots)?;
    Ok(slots)
}

/// Pointers of an index block, from slot `from` on; no more than it has.
pub(super) fn read_slots<S: Source>(s: &S, block: Bno, from: u64, into: &mut [u64]) -> Result<()> {
    let geo = &s.volume().geo;
    let most = (1usize << geo.fan_log2).saturating_sub(from as usize);
    let n = into.len().min(most);
    s.bytes(geo.offset(block) + from * 8, into[..n].as_mut_bytes())?;
    into.iter_mut().for_each(|w| *w = u64::from_le(*w));
    Ok(())
}

/// Asks for the lines of a leaf that a look-up and a change need: they are on
/// their way together.
#[inline]
pub(super) fn fetch(vol: &Volume, base: u64, hash: u64) {
    let shape = &vol.geo.leaf;
    let home = base + (shape.slots_at + home_of(hash, shape) * SLOT) as u64;
    let tags = base + LeafShape::TAGS_AT as u64;
    for at in [tags, tags + LINE, home, home + LINE, base] {
        vol.region.prefetch(at);
    }
}

/// An item, and where it stands.
#[derive(Debug)]
pub struct OccupiedEntry {
    /// Level of the pointer to the leaf.
    pub(super) level: u32,
    pub(super) block: Bno,
    pub(super) hit: ItemPos,
}

/// Where a name would stand that is not there.
#[derive(Debug)]
pub struct VacantEntry {
    /// Root of the tree that was searched.
    root: Ptr,
    /// Hash of the name; its tie-breaker is one that is free.
    pub(super) hash: u64,
    pub(super) block: Bno,
}

impl Cursor {
    /// The name leads to no leaf: it is not there if that hole is one.
    #[inline]
    pub fn is_hole(&self) -> bool {
        self.leaf.is_none()
    }
}

impl VacantEntry {
    /// Whether a change may begin with this: since the name was looked for, the
    /// owner's lock has been held and its tree has had no other change than the
    /// removals of this transaction, which have left all blocks in place.
    #[inline]
    pub(super) fn holds(&self, tx: &Tx<'_>, tree: &TreeRef) -> bool {
        self.root == tree.root && !tx.frees()
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

    /// The first that none has.
    #[inline]
    pub(super) fn free(&self) -> Option<u64> {
        let part = self.0.iter().position(|tree| *tree != u64::MAX)?;
        Some(part as u64 * 64 + u64::from(self.0[part].trailing_ones()))
    }
}

/// Looks for an entry of a directory that is likely not to be there; an error
/// has the place for it, if there is one.
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

/// Looks a name up.
///
/// # Errors
/// [`crate::Error::Corrupt`].
#[inline]
pub(super) fn find_in<S: Source>(
    s: &S,
    tree: &TreeRef,
    name: &[u8],
) -> Result<Option<OccupiedEntry>> {
    let SearchResult { leaf, hit, .. } = seek(s, tree, name, |_| ())?;
    Ok(leaf
        .zip(hit)
        .map(|((level, block), hit)| OccupiedEntry { level, block, hit }))
}

/// Where a name leads: its hash, and the leaf with its level; no leaf for a hole.
#[derive(Debug)]
pub struct Cursor {
    pub(super) hash: u64,
    pub(super) leaf: Option<(u32, Bno)>,
}

/// Finds the leaf that a name leads to and has its lines fetched, to be looked
/// at after something else has been done.
///
/// # Errors
/// [`crate::Error::Corrupt`].
#[inline]
pub fn seek_leaf<S: Source>(s: &S, tree: &TreeRef, name: &[u8]) -> Result<Cursor> {
    let vol = s.volume();
    let hash = name_hash(&vol.geo, name);
    let (level, block) = find_leaf(s, tree, hash, |_, _| ())?;
    if let Some(block) = block {
        vol.verified.prefetch(block);
        fetch(vol, vol.geo.offset(block), hash);
    }
    Ok(Cursor {
        hash,
        leaf: block.map(|block| (level, block)),
    })
}

/// The way of a name.
struct SearchResult {
    hash: u64,
    /// Where it ends: level and leaf, if there is one.
    leaf: Option<(u32, Bno)>,
    hit: Option<ItemPos>,
}

/// Follows a name to its item; `ties` is told the tie-breaker of each item with
/// the same hash.
#[inline]
fn seek<S: Source>(
    s: &S,
    tree: &TreeRef,
    name: &[u8],
    ties: impl FnMut(u8),
) -> Result<SearchResult> {
    seek_on(s, tree, &seek_leaf(s, tree, name)?, name, ties)
}

/// As [`seek`], of a name that a [`Cursor`] leads to.
#[inline]
fn seek_on<S: Source>(
    s: &S,
    tree: &TreeRef,
    cursor: &Cursor,
    name: &[u8],
    ties: impl FnMut(u8),
) -> Result<SearchResult> {
    let vol = s.volume();
    let &Cursor { hash, leaf } = cursor;
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

/// Whether a directory has no entries. Its owner counts them, but a damaged count
/// must not pass for an empty directory.
///
/// # Errors
/// [`crate::Error::Corrupt`].
pub fn is_empty(vol: &Volume, tree: &TreeRef) -> Result<bool> {
    if tree.root.is_hole() {
        return Ok(true);
    }
    let block = tree.open(&vol.geo, tree.root, 0, 0)?;
    // An index goes with its last leaf.
    if !tree.root.is_leaf() {
        return Ok(false);
    }
    verify(vol, tree, block, 0, 0)?;
    let header: LeafHeader = vol.region.read_pod(vol.geo.offset(block))?;
    Ok(header.items == 0)
}

/// Looks a name up and shows the item to `f`. False when there is none.
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
    vol.region
        .read(hit.at + ItemHeader::SIZE as u64, &mut value)?;
    f(&hit.head, &value);
    Ok(true)
}

/// An entry of a directory.
#[derive(Debug)]
pub struct DirEntry {
    /// Inode number.
    pub ino: u64,
    /// Where it stands.
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

/// As [`find_dir`], of a name that a [`Cursor`] leads to: the owner's lock has been
/// held since that was found, and its tree has not been changed.
///
/// # Errors
/// [`crate::Error::Corrupt`].
pub fn find_dir_on(
    vol: &Volume,
    tree: &TreeRef,
    cursor: &Cursor,
    name: &[u8],
) -> Result<Option<DirEntry>> {
    let SearchResult { leaf, hit, .. } = seek_on(vol, tree, cursor, name, |_| ())?;
    let found = leaf.zip(hit);
    found
        .map(|((level, block), hit)| entry_of(vol, tree, OccupiedEntry { level, block, hit }))
        .transpose()
}

#[inline]
fn entry_of(vol: &Volume, tree: &TreeRef, found: OccupiedEntry) -> Result<DirEntry> {
    let hit = &found.hit;
    if hit.head.value_len != 8 {
        return Err(tree.bad_leaf(found.block, "an entry without an inode number"));
    }
    Ok(DirEntry {
        ino: vol.region.read_pod(hit.at + ItemHeader::SIZE as u64)?,
        found,
    })
}

/// What [`scan`] shows items to: head, value, name.
pub(super) type Show<'a> = dyn FnMut(&ItemHeader, &[u8], &[u8]) -> ControlFlow<()> + 'a;

/// Shows the items after `from` to `f` (head, value, name), in ascending order
/// of their hashes, until it breaks. What stays in the tree between calls is
/// shown exactly once, whatever else is inserted and removed meanwhile. `hole` is
/// asked at each hole whether it can be one.
///
/// # Errors
/// [`crate::Error::Corrupt`]; those of `hole`.
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
                // The leaf was checked when it was first read, and equal hashes
                // were not looked for. Ascending order, which callers end their
                // loops by, must not depend on what has become of it since.
                let prefix = prefix_of(next, depth);
                if items.iter().any(|i| prefix_of(i.hash, depth) != prefix) {
                    return Err(bad("an item belongs into another leaf"));
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

/// Shows every block of the tree to `f` (block, whether it is a leaf), and
/// checks all of it, whether checked before or not. An index block comes before
/// what is below it.
///
/// # Errors
/// [`crate::Error::Corrupt`] for the first damage; those of `f`.
#[cfg(test)]
pub fn visit_blocks(
    vol: &Volume,
    tree: &TreeRef,
    f: &mut dyn FnMut(Bno, bool) -> Result<()>,
) -> Result<()> {
    visit(vol, tree, tree.root, 0, 0, f).map(|_| ())
}

/// Visits what slot `index` of a level points to; gives the number of slots
/// that it should fill.
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
            .check(tree, geo, (block, level, hash), true)
            .map_err(bad)?;
        f(block, true)?;
        return Ok(1 << (bits - image.depth(geo, level, hash).map_err(bad)?));
    }
    if bits + geo.fan_log2 > HASH_BITS {
        return Err(tree.bad_pointer(level, index, "an index block where there can be none"));
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

/// Checks that a leaf stands in all the slots that are its own: `run` of them
/// from slot `first` of the level.
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
    let own = own.ok_or_else(|| tree.bad_leaf(leaf, "it does not belong where it stands"))?;
    for (i, &w) in own.iter().enumerate() {
        let ptr = Ptr(w);
        let index = first + i as u64;
        if tree.open(geo, ptr, level, index)? != leaf || !ptr.is_leaf() {
            return Err(tree.bad_pointer(
                level,
                index,
                "it names another block than its neighbours",
            ));
        }
    }
    Ok(())
}
