//! Tests of vacant entries: insertion at the place that a look-up found.

use super::*;

/// Renames an entry as the engine does. Returns whether the vacant entry, found before
/// the removal, was still valid.
fn rename(vol: &Volume, tree: &mut TreeRef, old: &[u8], new: &[u8]) -> bool {
    let Ok(Some(from)) = find_dir(vol, tree, old) else {
        panic!("{old:?} is not there");
    };
    let Err(vacant) = find_dir_or_vacant(vol, tree, new).unwrap() else {
        panic!("{new:?} is there");
    };
    let mut after = *tree;
    let mut tx = vol.begin();
    remove_found(&mut tx, &mut after, &from.found).unwrap();
    let value = from.ino.to_le_bytes();
    let item = item(new, 8, &value);
    let held = (vacant.as_ref()).and_then(|v| v.insertion_point(&tx, &after, &item).unwrap());
    let is_held = held.is_some();
    let place = held.unwrap_or_else(|| insertion_point(&tx, &after, &item).unwrap());
    place.insert(&mut tx, &mut after, &item).unwrap();
    tx.commit().unwrap();
    *tree = after;
    is_held
}

fn name(i: u64) -> Vec<u8> {
    let mut name = format!("{i:06}").into_bytes();
    name.resize(6 + (mix64(i) % 70) as usize, b'x');
    name
}

/// Renames entries in a directory of `names` entries. Returns the number of valid and
/// of invalid vacant entries.
fn move_about(block_size: u32, names: u64, moves: u64) -> (usize, usize) {
    let vol = volume(block_size, 8 << 20);
    let mut tree = dir();
    let mut there: Vec<u64> = (0..names).collect();
    for i in &there {
        put(&vol, &mut tree, &name(*i), 8, &i.to_le_bytes()).unwrap();
    }
    let (mut rng, mut held) = (Rng(names), 0);
    for i in names..names + moves {
        let at = rng.below(names) as usize;
        let old = std::mem::replace(&mut there[at], i);
        held += usize::from(rename(&vol, &mut tree, &name(old), &name(i)));
        if i % 64 == 0 || names < 10 {
            assert_eq!(blocks(&vol, &tree).unwrap(), tree.blocks);
        }
    }
    assert_eq!(blocks(&vol, &tree).unwrap(), tree.blocks);
    let listed = list(&vol, &tree, 0, usize::MAX).unwrap();
    let mut found: Vec<_> = listed.into_values().map(|(name, ..)| name).collect();
    let mut want: Vec<_> = there.iter().map(|i| name(*i)).collect();
    found.sort();
    want.sort();
    assert_eq!(found, want);
    (held, moves as usize - held)
}

#[test]
fn rename_uses_vacant_entry_of_lookup() {
    let (held, not) = move_about(4096, 400, 2000);
    assert!(held > 1900, "{held} and {not}");
}

/// A leaf is freed with its last item, which invalidates the vacant entries in it.
#[test]
fn vacant_entry_in_freed_leaf_is_not_used() {
    let (held, not) = move_about(512, 60, 4000);
    assert!(held > 1000 && not > 100, "{held} and {not}");
}

#[test]
fn colliding_names_get_separate_vacant_entries() {
    HASH_MASK.set(0x7f << 56);
    let (held, not) = move_about(4096, 60, 1000);
    HASH_MASK.set(u64::MAX);
    assert!(held > 900, "{held} and {not}");
}

/// A vacant entry is valid only for the tree of its look-up.
#[test]
fn vacant_entry_of_other_tree_is_not_used() {
    let vol = volume(4096, 4 << 20);
    let mut tree = dir();
    put(&vol, &mut tree, b"a", 8, &1u64.to_le_bytes()).unwrap();
    let Err(Some(vacant)) = find_dir_or_vacant(&vol, &tree, b"b").unwrap() else {
        panic!("the tree has a leaf, and the name does not exist");
    };
    let tx = vol.begin();
    let is_held = |tree| {
        let item = item(b"b", 8, &[0; 8]);
        vacant.insertion_point(&tx, tree, &item).unwrap().is_some()
    };
    assert!(is_held(&tree) && !is_held(&dir()));
}
