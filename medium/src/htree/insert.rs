//! Inserts items into free slots of the leaf. If they do not fit, rewrites the
//! leaf and splits it if necessary.

use zerocopy::IntoBytes;

use super::build::{Builder, Place, put_pointers};
use super::edit::LeafEdit;
use super::leaf::{Image, Item, Tags, home_of, look_up, slots_for, tag_of, verify};
use super::walk::{
    Cursor, Ties, VacantEntry, check_run, descend, read_index, read_slots, seek_leaf, slot_of,
};
use super::{CALLER_ROOM, TreeRef, first_bits, prefix_of};
use crate::alloc::Run;
use crate::error::{Error, Result};
use crate::media::htree::{ItemHeader, NAME_MAX, SLOT, TAG_NEXT};
use crate::types::Bno;
use crate::volume::Tx;

/// Bytes of a record for the insertion of an item, beyond the bytes of the item:
/// header, tags and sum.
const IN_PLACE_ROOM: usize = 128;
/// Size that is enough for most items, bytes.
const SMALL_ITEM: usize = 64;
/// Size that is enough for all directory entries, bytes.
const USUAL_ITEM: usize = (ItemHeader::SIZE + 8 + NAME_MAX).next_multiple_of(8);

/// Inserts a new item and returns its hash, which is the readdir cookie. After an
/// error the caller must drop the transaction.
///
/// # Errors
/// [`Error::Exists`], [`Error::NoSpace`], [`Error::Corrupt`]; [`Error::Invalid`] for
/// an empty name; [`Error::NameTooLong`] and [`Error::AttributeTooLarge`] if no leaf
/// could hold the item.
pub fn insert(
    tx: &mut Tx<'_>,
    tree: &mut TreeRef,
    name: &[u8],
    kind: u8,
    value: &[u8],
) -> Result<u64> {
    let vol = tx.volume();
    let geo = &vol.geo;
    if name.is_empty() {
        return Err(Error::Invalid("an empty name"));
    }
    if name.len() > NAME_MAX {
        return Err(Error::NameTooLong(name.len(), NAME_MAX));
    }
    let need = slots_for(value.len(), name.len());
    if need > geo.leaf.slots {
        return Err(Error::AttributeTooLarge(
            value.len(),
            geo.leaf.max_item() - ItemHeader::SIZE - name.len(),
        ));
    }
    let cursor = seek_leaf(tx, tree, name)?;
    insert_on(tx, tree, &cursor, name, kind, value)
}

/// As [`insert`], at a [`Cursor`] for the name. The name has at most [`NAME_MAX`]
/// bytes, and the value fits an item. Since the cursor was made, the caller has held
/// the owner's lock and has not changed the tree.
///
/// # Errors
/// As for [`insert`].
pub fn insert_on(
    tx: &mut Tx<'_>,
    tree: &mut TreeRef,
    cursor: &Cursor,
    name: &[u8],
    kind: u8,
    value: &[u8],
) -> Result<u64> {
    let vol = tx.volume();
    let geo = &vol.geo;
    let &Cursor { hash, leaf } = cursor;
    let room = &mut ItemRoom::Small([0; SMALL_ITEM]);
    let Some((level, block)) = leaf else {
        let bytes = item_bytes(room, hash, kind, name, value);
        return insert_first_leaf(tx, tree, bytes, hash);
    };
    verify(vol, tree, block, level, hash)?;

    let mut tags = Tags::FREE;
    tags.read(tx, &geo.leaf, geo.offset(block))?;
    let mut ties = Ties::default();
    let found = look_up(tx, tree, block, &tags, hash, name, |tie| ties.note(tie))?;
    if found.is_some() {
        return Err(Error::Exists);
    }
    let Some(tie) = ties.free() else {
        return Err(Error::NoSpace("too many names with the same hash"));
    };
    let hash = hash | tie;
    let bytes = item_bytes(room, hash, kind, name, value);
    put_item(tx, tree, (block, &tags), bytes, hash)?;
    Ok(hash)
}

/// As [`insert`], for a name that a look-up has not found. The name has at most
/// [`NAME_MAX`] bytes, and the value at most [`USUAL_ITEM`].
///
/// # Errors
/// As for [`insert`].
pub fn insert_at(
    tx: &mut Tx<'_>,
    tree: &mut TreeRef,
    vacant: &VacantEntry,
    name: &[u8],
    kind: u8,
    value: &[u8],
) -> Result<u64> {
    if !vacant.holds(tx, tree) {
        return insert(tx, tree, name, kind, value);
    }
    let geo = &tx.volume().geo;
    let &VacantEntry { hash, block, .. } = vacant;
    let mut tags = Tags::FREE;
    tags.read(tx, &geo.leaf, geo.offset(block))?;
    let room = &mut ItemRoom::Small([0; SMALL_ITEM]);
    let bytes = item_bytes(room, hash, kind, name, value);
    put_item(tx, tree, (block, &tags), bytes, hash)?;
    Ok(hash)
}

/// Puts an item into a leaf, or rewrites the leaf.
#[inline]
fn put_item(
    tx: &mut Tx<'_>,
    tree: &mut TreeRef,
    (block, tags): (Bno, &Tags),
    bytes: &[u8],
    hash: u64,
) -> Result<()> {
    let geo = &tx.volume().geo;
    let need = bytes.len().div_ceil(SLOT);
    // Each line of the item is a separate entry of the record.
    let in_place = bytes.len() * 9 / 8 + IN_PLACE_ROOM + CALLER_ROOM <= tx.room();
    match tags
        .find_free(need, home_of(hash, &geo.leaf), &geo.leaf)
        .filter(|_| in_place)
    {
        Some(slot) => {
            // If the preferred slots are taken, the item lies in lines that were
            // not prefetched.
            let at = geo.leaf.slots_at + slot * SLOT;
            let lines = geo.offset(block) + at as u64;
            tx.volume().region.prefetch(lines);
            tx.volume().region.prefetch(lines + bytes.len() as u64 - 1);
            let mut edit = LeafEdit::begin(tx, tree, block)?;
            edit.items = edit.items.wrapping_add(1);
            edit.used_slots = edit.used_slots.wrapping_add(need as u16);
            edit.set_tags(slot, need, tag_of(hash), TAG_NEXT)?;
            edit.write(at, bytes)?;
            edit.finish()?;
        }
        None => split_leaf(tx, tree, block, bytes, hash)?,
    }
    Ok(())
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
fn item_bytes<'a>(
    room: &'a mut ItemRoom,
    hash: u64,
    kind: u8,
    name: &[u8],
    value: &[u8],
) -> &'a [u8] {
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
fn insert_first_leaf(tx: &mut Tx<'_>, tree: &mut TreeRef, bytes: &[u8], hash: u64) -> Result<u64> {
    let geo = &tx.volume().geo;
    let spot = descend(tx, tree, hash)?;
    let mut place = Place {
        level: spot.level,
        first: first_bits(hash, spot.level * geo.fan_log2),
        depth: 0,
    };
    let mut count = 1;
    if spot.level > 0 {
        // The leaf gets the largest aligned run of holes around the slot, which is
        // never the whole index block.
        let slots = read_index(tx, spot.index_block(spot.level))?;
        let slot = slot_of(geo, place.first) as usize;
        let fits = |n: usize| slots[slot & !(n - 1)..][..n].iter().all(|w| *w == 0);
        while count * 2 < slots.len() && fits(count * 2) {
            count *= 2;
        }
        place.first &= !(count as u64 - 1);
        place.depth = spot.level * geo.fan_log2 - count.trailing_zeros();
        if place.depth > super::SPLIT_BITS {
            return Err(tree.bad_pointer(
                spot.level,
                place.first,
                "a hole deeper than the hash allows",
            ));
        }
    }
    let goal = (spot.level > 0).then(|| spot.index_block(spot.level).0);
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
    b.fill(&mut [item], place, &mut out, geo.leaf.slots)?;
    let taken = b.taken;
    put_pointers(tx, tree, &spot, place.first, &out)?;
    tree.blocks += taken;
    Ok(hash)
}

/// Rewrites a leaf with one more item. If the free slots suffice but are scattered,
/// the result is one leaf. Otherwise the leaf is split.
fn split_leaf(
    tx: &mut Tx<'_>,
    tree: &mut TreeRef,
    block: Bno,
    bytes: &[u8],
    hash: u64,
) -> Result<()> {
    let geo = &tx.volume().geo;
    let spot = descend(tx, tree, hash)?;
    let mut image = Image::read(tx, block)?;
    let bad = |what| tree.bad_leaf(block, what);
    let depth = image.depth(geo, spot.level, hash).map_err(bad)?;
    // The new leaves get new sums, which would hide damage: check the old sum first.
    let seed = tree.leaf_seed(geo, block);
    let mut items = image.whole_items(&geo.leaf, seed).map_err(bad)?;
    let bits = spot.level * geo.fan_log2;
    let place = Place {
        level: spot.level,
        first: first_bits(prefix_of(hash, depth), bits),
        depth,
    };
    let mut out = vec![0; 1 << (bits - depth)];
    if spot.level > 0 {
        let index = spot.index_block(spot.level);
        read_slots(tx, index, slot_of(geo, place.first), &mut out)?;
        let run = out.len();
        check_run(tree, geo, spot.level, place.first, &out, run, block)?;
    }
    items.push(add_item(&mut image.bytes, bytes, hash));
    // A leaf that is almost full would soon be rewritten again.
    let most = geo.leaf.slots * 7 / 8;
    let mut b = Builder {
        tx,
        tree: *tree,
        arena: &image.bytes,
        goal: Some(block.0),
        taken: 0,
    };
    b.fill(&mut items, place, &mut out, most)?;
    let taken = b.taken;
    put_pointers(tx, tree, &spot, place.first, &out)?;
    tx.free_blocks(Run {
        start: block.0,
        len: 1,
    })?;
    tree.blocks += taken - 1;
    Ok(())
}
