//! Inserts items into free slots of the leaf. If they do not fit, rewrites the
//! leaf and splits it if necessary.

use zerocopy::IntoBytes;

use super::build::{Builder, SlotRange, put_pointers};
use super::edit::LeafEdit;
use super::leaf::{Image, Item, Tags, home_of, look_up, slots_for, tag_of, verify};
use super::walk::{
    LeafCursor, Ties, VacantEntry, check_run, descend, read_index, read_slots, seek_leaf, slot_of,
};
use super::{CALLER_ROOM, TreeRef, first_bits, prefix_of};
use crate::error::{Error, Result};
use crate::media::htree::{ItemHeader, NAME_MAX, SLOT, TAG_NEXT};
use crate::types::{BlockRun, Bno};
use crate::volume::{Plan, Record};

/// Bytes of a record for the insertion of an item, beyond the bytes of the item:
/// header, tags and sum.
const IN_PLACE_ROOM: usize = 128;
/// Size that is enough for most items, bytes.
const SMALL_ITEM: usize = 64;
/// Size that is enough for all directory entries, bytes.
const USUAL_ITEM: usize = (ItemHeader::SIZE + 8 + NAME_MAX).next_multiple_of(8);

/// A new item of a tree.
#[derive(Debug, Clone, Copy)]
pub struct NewItem<'a> {
    /// Key.
    pub name: &'a [u8],
    /// Type of the value.
    pub kind: u8,
    /// Value.
    pub value: &'a [u8],
}

impl NewItem<'_> {
    /// Length as in a leaf, bytes.
    #[inline]
    fn len(&self) -> usize {
        (ItemHeader::SIZE + self.value.len() + self.name.len()).next_multiple_of(8)
    }
}

/// The place where an item can be inserted. Until the insertion the caller holds the
/// owner's lock and does not change the tree.
#[derive(Debug)]
pub enum InsertionPoint {
    /// Its leaf has room: the insertion allocates nothing.
    InLeaf(FreeSlots),
    /// Its leaf has to be written or rewritten: the insertion allocates blocks.
    NewLeaf(NewLeaf),
}

/// Free slots of a leaf. See [`InsertionPoint`].
#[derive(Debug)]
pub struct FreeSlots {
    /// Hash of the name, with a free tie-breaker.
    hash: u64,
    block: Bno,
    /// Number of the first slot.
    slot: usize,
}

/// A hole, or a leaf without room. See [`InsertionPoint`].
#[derive(Debug)]
pub struct NewLeaf {
    /// Hash of the name, with a free tie-breaker.
    hash: u64,
    /// `None` for a hole.
    leaf: Option<Bno>,
}

/// Finds the place for a new item.
///
/// # Errors
/// [`Error::Exists`]; [`Error::NoSpace`] if too many names have the same hash;
/// [`Error::Corrupt`]; [`Error::Invalid`] for an empty name; [`Error::NameTooLong`] and
/// [`Error::AttributeTooLarge`] if no leaf could hold the item.
pub fn insertion_point(
    tx: &Record<'_>,
    tree: &TreeRef,
    item: &NewItem<'_>,
) -> Result<InsertionPoint> {
    let geo = &tx.volume().geo;
    let &NewItem { name, value, .. } = item;
    if name.is_empty() {
        return Err(Error::Invalid("an empty name"));
    }
    if name.len() > NAME_MAX {
        return Err(Error::NameTooLong(name.len(), NAME_MAX));
    }
    if slots_for(value.len(), name.len()) > geo.leaf.slots {
        return Err(Error::AttributeTooLarge(
            value.len(),
            geo.leaf.max_item() - ItemHeader::SIZE - name.len(),
        ));
    }
    seek_leaf(tx, tree, name)?.insertion_point(tx, tree, item)
}

/// Inserts a new item and returns its hash, which is the readdir cookie. After an
/// error the caller must drop the transaction.
///
/// # Errors
/// As for [`insertion_point`], and [`Error::NoSpace`] if no block is free.
pub fn insert(tx: &mut Plan<'_>, tree: &mut TreeRef, item: &NewItem<'_>) -> Result<u64> {
    insertion_point(tx, tree, item)?.insert(tx, tree, item)
}

impl LeafCursor {
    /// Finds the place for an item whose name leads here. The name has at most
    /// [`NAME_MAX`] bytes, and the value fits an item. Since the cursor was made, the
    /// caller has held the owner's lock and has not changed the tree.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::NoSpace`] if too many names have the same hash;
    /// [`Error::Corrupt`].
    pub fn insertion_point(
        &self,
        tx: &Record<'_>,
        tree: &TreeRef,
        item: &NewItem<'_>,
    ) -> Result<InsertionPoint> {
        let vol = tx.volume();
        let geo = &vol.geo;
        let &LeafCursor { hash, leaf } = self;
        let Some((level, block)) = leaf else {
            return Ok(InsertionPoint::NewLeaf(NewLeaf { hash, leaf: None }));
        };
        verify(vol, tree, block, level, hash)?;
        let mut tags = Tags::FREE;
        tags.read(tx, &geo.leaf, geo.offset(block))?;
        let mut ties = Ties::default();
        let note = |tie| ties.note(tie);
        if look_up(tx, tree, block, &tags, hash, item.name, note)?.is_some() {
            return Err(Error::Exists);
        }
        let Some(tie) = ties.free() else {
            return Err(Error::NoSpace("too many names with the same hash"));
        };
        Ok(free_slots(tx, block, &tags, hash | tie, item))
    }
}

impl VacantEntry {
    /// Finds the place for an item of the name that was looked up. The name has at most
    /// [`NAME_MAX`] bytes, and the value at most [`USUAL_ITEM`]. Since the look-up, the
    /// caller has held the owner's lock, and only the removals of this transaction have
    /// changed the tree. `None` if these removals have freed a block.
    ///
    /// # Errors
    /// Errors of the region.
    #[inline]
    pub fn insertion_point(
        &self,
        tx: &Record<'_>,
        tree: &TreeRef,
        item: &NewItem<'_>,
    ) -> Result<Option<InsertionPoint>> {
        if self.root != tree.root || tx.frees() {
            return Ok(None);
        }
        let geo = &tx.volume().geo;
        let &VacantEntry { hash, block, .. } = self;
        let mut tags = Tags::FREE;
        tags.read(tx, &geo.leaf, geo.offset(block))?;
        Ok(Some(free_slots(tx, block, &tags, hash, item)))
    }
}

/// Looks for free slots in a leaf.
#[inline]
fn free_slots(
    tx: &Record<'_>,
    block: Bno,
    tags: &Tags,
    hash: u64,
    item: &NewItem<'_>,
) -> InsertionPoint {
    let geo = &tx.volume().geo;
    let len = item.len();
    // Each line of the item is a separate entry of the record.
    let in_place = len * 9 / 8 + IN_PLACE_ROOM + CALLER_ROOM <= tx.room();
    match tags
        .find_free(len.div_ceil(SLOT), home_of(hash, &geo.leaf), &geo.leaf)
        .filter(|_| in_place)
    {
        Some(slot) => {
            // If the preferred slots are taken, the item lies in lines that were
            // not prefetched.
            let lines = geo.offset(block) + (geo.leaf.slots_at + slot * SLOT) as u64;
            tx.volume().region.prefetch(lines.0);
            tx.volume().region.prefetch(lines.0 + len as u64 - 1);
            InsertionPoint::InLeaf(FreeSlots { hash, block, slot })
        }
        None => InsertionPoint::NewLeaf(NewLeaf {
            hash,
            leaf: Some(block),
        }),
    }
}

impl InsertionPoint {
    /// Inserts the item and returns its hash.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Corrupt`].
    #[inline]
    pub fn insert(self, tx: &mut Plan<'_>, tree: &mut TreeRef, item: &NewItem<'_>) -> Result<u64> {
        match self {
            InsertionPoint::InLeaf(slots) => slots.insert(tx, tree, item),
            InsertionPoint::NewLeaf(leaf) => leaf.insert(tx, tree, item),
        }
    }
}

impl FreeSlots {
    /// Puts the item into the slots and returns its hash.
    ///
    /// # Errors
    /// Errors of the region; a full record.
    #[inline]
    pub fn insert(self, tx: &mut Record<'_>, tree: &TreeRef, item: &NewItem<'_>) -> Result<u64> {
        let FreeSlots { hash, block, slot } = self;
        let room = &mut ItemRoom::Small([0; SMALL_ITEM]);
        let bytes = item_bytes(room, hash, item);
        let need = bytes.len().div_ceil(SLOT);
        let at = tx.volume().geo.leaf.slots_at + slot * SLOT;
        let mut edit = LeafEdit::begin(tx, tree, block)?;
        edit.items = edit.items.wrapping_add(1);
        edit.used_slots = edit.used_slots.wrapping_add(need as u16);
        edit.set_tags(slot, need, tag_of(hash), TAG_NEXT)?;
        edit.write(at, bytes)?;
        edit.finish()?;
        Ok(hash)
    }
}

impl NewLeaf {
    /// Writes a leaf with the item, or leaves if one is too small, and returns the hash
    /// of the item.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Corrupt`].
    #[cold]
    pub fn insert(self, tx: &mut Plan<'_>, tree: &mut TreeRef, item: &NewItem<'_>) -> Result<u64> {
        let NewLeaf { hash, leaf } = self;
        let room = &mut ItemRoom::Small([0; SMALL_ITEM]);
        let bytes = item_bytes(room, hash, item);
        match leaf {
            Some(block) => split_leaf(tx, tree, block, bytes, hash)?,
            None => insert_first_leaf(tx, tree, bytes, hash)?,
        }
        Ok(hash)
    }
}

/// Zeroed space for an item, no larger than necessary.
#[expect(clippy::large_enum_variant, reason = "it stays where it is made")]
enum ItemRoom {
    Small([u8; SMALL_ITEM]),
    Usual([u8; USUAL_ITEM]),
    Large(Vec<u8>),
}

/// Encodes an item as in a leaf, padded to a multiple of 8 bytes.
#[inline]
fn item_bytes<'a>(room: &'a mut ItemRoom, hash: u64, item: &NewItem<'_>) -> &'a [u8] {
    let &NewItem { name, kind, value } = item;
    let head = ItemHeader {
        hash_low: hash as u32,
        hash_high: (hash >> 32) as u32,
        value_len: value.len() as u16,
        name_len: name.len() as u8,
        kind,
    };
    let (value_at, name_at) = (ItemHeader::SIZE, ItemHeader::SIZE + value.len());
    let end = name_at + name.len();
    let len = end.next_multiple_of(8);
    if len > SMALL_ITEM {
        *room = match len {
            ..=USUAL_ITEM => ItemRoom::Usual([0; USUAL_ITEM]),
            _ => ItemRoom::Large(vec![0; len]),
        };
    }
    let bytes = match room {
        ItemRoom::Small(bytes) => &mut bytes[..len],
        ItemRoom::Usual(bytes) => &mut bytes[..len],
        ItemRoom::Large(bytes) => &mut bytes[..len],
    };
    bytes[..value_at].copy_from_slice(head.as_bytes());
    bytes[value_at..name_at].copy_from_slice(value);
    bytes[name_at..end].copy_from_slice(name);
    bytes
}

/// Appends an item to an arena.
fn add_item(arena: &mut Vec<u8>, bytes: &[u8], hash: u64) -> Item {
    let (at, slots) = (arena.len(), bytes.len().div_ceil(SLOT));
    arena.extend_from_slice(bytes);
    arena.resize(at + slots * SLOT, 0);
    Item { hash, at, slots }
}

/// Replaces a hole by a leaf with one item.
fn insert_first_leaf(tx: &mut Plan<'_>, tree: &mut TreeRef, bytes: &[u8], hash: u64) -> Result<()> {
    let geo = &tx.volume().geo;
    let spot = descend(&**tx, tree, hash)?;
    let mut range = SlotRange {
        level: spot.level,
        first: first_bits(hash, spot.level * geo.fan_log2),
        depth: 0,
    };
    let mut count = 1;
    if spot.level > 0 {
        // The leaf gets the largest aligned run of holes around the slot, which is
        // never the whole index block.
        let slots = read_index(&**tx, spot.index_block(spot.level))?;
        let slot = slot_of(geo, range.first) as usize;
        let fits = |n: usize| slots[slot & !(n - 1)..][..n].iter().all(|w| *w == 0);
        while count * 2 < slots.len() && fits(count * 2) {
            count *= 2;
        }
        range.first &= !(count as u64 - 1);
        range.depth = spot.level * geo.fan_log2 - count.trailing_zeros();
        if range.depth > super::SPLIT_BITS {
            return Err(tree.bad_pointer(
                spot.level,
                range.first,
                "a hole deeper than the hash allows",
            ));
        }
    }
    let goal = (spot.level > 0).then(|| spot.index_block(spot.level));
    let mut arena = Vec::new();
    let item = add_item(&mut arena, bytes, hash);
    let mut out = vec![0; count];
    let mut b = Builder {
        tx,
        tree: *tree,
        arena: &arena,
        goal,
        taken: 0,
    };
    b.fill(&mut [item], range, &mut out, geo.leaf.slots)?;
    let taken = b.taken;
    put_pointers(tx, tree, &spot, range.first, &out)?;
    tree.blocks += taken;
    Ok(())
}

/// Rewrites a leaf with one more item. If the free slots suffice but are scattered,
/// the result is one leaf. Otherwise the leaf is split.
fn split_leaf(
    tx: &mut Plan<'_>,
    tree: &mut TreeRef,
    block: Bno,
    bytes: &[u8],
    hash: u64,
) -> Result<()> {
    let geo = &tx.volume().geo;
    let spot = descend(&**tx, tree, hash)?;
    let mut image = Image::read(&**tx, block)?;
    let bad = |what| tree.bad_leaf(block, what);
    let depth = image.depth(geo, spot.level, hash).map_err(bad)?;
    // The new leaves get new sums, which would hide damage: check the old sum first.
    let seed = tree.leaf_seed(geo, block);
    let mut items = image.whole_items(&geo.leaf, seed).map_err(bad)?;
    let bits = spot.level * geo.fan_log2;
    let range = SlotRange {
        level: spot.level,
        first: first_bits(prefix_of(hash, depth), bits),
        depth,
    };
    let mut out = vec![0; 1 << (bits - depth)];
    if spot.level > 0 {
        let index = spot.index_block(spot.level);
        read_slots(&**tx, index, slot_of(geo, range.first), &mut out)?;
        let run = out.len();
        check_run(tree, geo, spot.level, range.first, &out, run, block)?;
    }
    items.push(add_item(&mut image.bytes, bytes, hash));
    // A leaf that is almost full would soon be rewritten again.
    let most = geo.leaf.slots * 7 / 8;
    let mut b = Builder {
        tx,
        tree: *tree,
        arena: &image.bytes,
        goal: Some(block),
        taken: 0,
    };
    b.fill(&mut items, range, &mut out, most)?;
    let taken = b.taken;
    put_pointers(tx, tree, &spot, range.first, &out)?;
    tx.free_blocks(BlockRun::one(block))?;
    tree.blocks += taken - 1;
    Ok(())
}
