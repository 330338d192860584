//! Trees with damaged bytes: an error or the right answer, never a panic.

use super::*;
use crate::htree::leaf::tag_of;
use crate::media::htree::{LeafShape, SLOT};
use crate::types::RegionOffset;

#[test]
fn trees_of_one_inode_are_not_confused() {
    let vol = volume(4096, 1 << 20);
    let mut tree = dir();
    put(&vol, &mut tree, b"name", 8, &[1; 8]).unwrap();
    let wrong = TreeRef {
        root: tree.root,
        ..empty_tree(TreeKind::Xattrs)
    };
    assert!(matches!(
        find(&vol, &wrong, b"name", &mut |_, _| ()),
        Err(Error::Corrupt { .. })
    ));
    // Even if the pointer fits, the leaf identifies its owner.
    let root = Ptr::new(tree.root.block(), LEAF, wrong.at(&vol.geo, 0, 0));
    vol.verified.forget(root.block());
    let wrong = TreeRef { root, ..wrong };
    assert!(matches!(
        find(&vol, &wrong, b"name", &mut |_, _| ()),
        Err(Error::Corrupt { .. })
    ));
}

/// Runs all operations on a damaged tree. Each returns an error or the right answer.
/// Returns whether one of them returned an error.
fn use_damaged(vol: &Volume, tree: &TreeRef, names: &[String], all: usize) -> bool {
    let mut hurt = false;
    let mut note = |e: Error| {
        assert!(matches!(e, Error::Corrupt { .. }), "{e}");
        hurt = true;
    };
    for n in names {
        match find_dir(vol, tree, n.as_bytes()) {
            Ok(found) => assert_eq!(found.map(|f| f.ino), Some(5), "{n}"),
            Err(e) => note(e),
        }
        let mut tx = vol.begin();
        match set_value(&mut tx, tree, n.as_bytes(), 1, &[1; 8]) {
            Ok(found) => assert!(found),
            Err(e) => note(e),
        }
        let mut u = *tree;
        match remove(&mut tx, &mut u, n.as_bytes()) {
            Ok(found) => assert!(found),
            Err(e) => note(e),
        }
        if let Err(e) = insert(
            &mut vol.begin(),
            &mut u,
            &item(format!("{n}x").as_bytes(), 1, &[1; 8]),
        ) {
            note(e);
        }
    }
    match list(vol, tree, 0, usize::MAX) {
        Ok(l) => assert_eq!(l.len(), all),
        Err(e) => note(e),
    }
    if let Err(e) = visit_blocks(vol, tree, &mut |_, _| Ok(())) {
        note(e);
    }
    let mut u = *tree;
    if let Err(e) = free_step(&mut vol.begin(), &mut u) {
        note(e);
    }
    hurt
}

#[test]
fn flipped_tree_byte_is_detected() {
    let vol = volume(512, 1 << 20);
    let mut tree = dir();
    let names: Vec<String> = (0..60).map(|i| format!("a name of its own, {i}")).collect();
    for n in &names {
        put(&vol, &mut tree, n.as_bytes(), 8, &5u64.to_le_bytes()).unwrap();
    }
    let mut all = Vec::new();
    visit_blocks(&vol, &tree, &mut |b, leaf| {
        all.push((b, leaf));
        Ok(())
    })
    .unwrap();
    assert!(!all[0].1 && all.iter().any(|(_, leaf)| *leaf));
    let few: Vec<_> = all
        .iter()
        .filter(|b| !b.1)
        .chain(all.iter().filter(|b| b.1).take(2))
        .collect();
    for &&(block, leaf) in &few {
        for at in 0..512 {
            let at = vol.geo.offset(block).0 + at;
            let mut byte = [0];
            vol.region.read(at, &mut byte).unwrap();
            for bits in [1, 0x80, 0xff] {
                drop(vol.region.window().store(at, &[byte[0] ^ bits]).unwrap());
                all.iter().for_each(|(b, _)| vol.verified.forget(*b));
                let hurt = use_damaged(
                    &vol,
                    &tree,
                    if leaf { &names } else { &names[..20] },
                    names.len(),
                );
                assert!(hurt, "byte {at} of block {} (leaf: {leaf})", block.0);
            }
            drop(vol.region.window().store(at, &byte).unwrap());
        }
    }
    all.iter().for_each(|(b, _)| vol.verified.forget(*b));
    assert!(!use_damaged(&vol, &tree, &names, names.len()));
}

#[test]
fn damage_after_verification_does_not_panic() {
    // Later uses check the bounds again, but not the checksum.
    let vol = volume(512, 1 << 20);
    let mut tree = dir();
    let names: Vec<String> = (0..11).map(|i| format!("{i}")).collect();
    for n in &names {
        put(&vol, &mut tree, n.as_bytes(), 8, &5u64.to_le_bytes()).unwrap();
    }
    let base = vol.geo.offset(tree.root.block()).0;
    let mut good = vec![0; 512];
    vol.region.read(base, &mut good).unwrap();
    let mut rng = Rng(3);
    for _ in 0..20_000 {
        let mut bad = good.clone();
        for _ in 0..1 + rng.below(4) {
            bad[rng.below(512) as usize] = rng.next() as u8;
        }
        drop(vol.region.window().store(base, &bad).unwrap());
        vol.verified.note(tree.root.block());
        for n in &names {
            let mut u = tree;
            let _ = find_dir(&vol, &tree, n.as_bytes());
            let _ = remove(&mut vol.begin(), &mut u, n.as_bytes());
            let _ = set_value(&mut vol.begin(), &tree, n.as_bytes(), 1, &[1; 8]);
        }
        let mut u = tree;
        let mut tx = vol.begin();
        for n in ["some", "more", "names", "to divide the leaf"] {
            if insert(&mut tx, &mut u, &item(n.as_bytes(), 1, &[1; 8])).is_err() {
                break;
            }
        }
        let _ = scan(&vol, &tree, 0, &|| Ok(()), &mut |_, _, _| {
            ControlFlow::Continue(())
        });
    }
}

#[test]
fn leaf_copied_to_other_block_is_detected() {
    let vol = volume(4096, 1 << 20);
    let mut tree = dir();
    put(&vol, &mut tree, b"name", 8, &[1; 8]).unwrap();
    let mut tx = vol.begin();
    let start = tx.alloc_blocks(None, 1, true).unwrap().start.0;
    let mut leaf = vec![0; 4096];
    vol.region
        .read(vol.geo.offset(tree.root.block()).0, &mut leaf)
        .unwrap();
    tx.write_new(RegionOffset(start << 12), &leaf).unwrap();
    tx.commit().unwrap();
    tree.root = Ptr::new(Bno(start), LEAF, tree.at(&vol.geo, 0, 0));
    assert!(matches!(
        find_dir(&vol, &tree, b"name"),
        Err(Error::Corrupt { .. })
    ));
}

/// Callers of a scan rely on its order to end their loops. The order must therefore
/// hold even if a leaf is damaged after it was checked.
#[test]
fn scan_of_damaged_leaf_ascends_or_fails() {
    let vol = volume(512, 1 << 20);
    let mut tree = dir();
    for i in 0..60 {
        put(&vol, &mut tree, format!("{i}").as_bytes(), 8, &[1; 8]).unwrap();
    }
    let mut leaves = Vec::new();
    visit_blocks(&vol, &tree, &mut |b, leaf| {
        leaves.extend(leaf.then_some(b));
        Ok(())
    })
    .unwrap();
    let items = |b: Bno| {
        let image = Image::read(&vol, b).unwrap();
        image.items(&tree, &vol.geo.leaf).unwrap()
    };
    let full = |b: &&Bno| items(**b).len() > 1;
    let (&first, &last) = (
        leaves.iter().find(full).unwrap(),
        leaves.iter().rfind(full).unwrap(),
    );
    let good = items(first);
    // The hash of another item in the same leaf, and of an item in another leaf.
    for hash in [good[1].hash, items(last)[0].hash] {
        let base = vol.geo.offset(first).0;
        let mut bytes = vec![0; 512];
        vol.region.read(base, &mut bytes).unwrap();
        let slot = (good[0].at - vol.geo.leaf.slots_at) / SLOT;
        let mut bad = bytes.clone();
        bad[good[0].at..good[0].at + 8].copy_from_slice(&hash.to_le_bytes());
        bad[LeafShape::TAGS_AT + slot] = tag_of(hash);
        drop(vol.region.window().store(base, &bad).unwrap());
        leaves.iter().for_each(|b| vol.verified.note(*b));
        let mut before = 0;
        let result = scan(&vol, &tree, 0, &|| Ok(()), &mut |item, _, _| {
            assert!(item.hash() > before, "{:#x} after {before:#x}", item.hash());
            before = item.hash();
            ControlFlow::Continue(())
        });
        assert!(matches!(result, Err(Error::Corrupt { .. })), "{result:?}");
        drop(vol.region.window().store(base, &bytes).unwrap());
    }
    assert_eq!(list(&vol, &tree, 0, usize::MAX).unwrap().len(), 60);
}
