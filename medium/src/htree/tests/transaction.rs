//! Several changes of a tree in one transaction.

use super::*;

#[test]
fn one_tx_changes_leaf_many_times() {
    for block_size in [512, 4096] {
        let vol = volume(block_size, 8 << 20);
        let mut tree = dir();
        let mut names: Vec<String> = (0..if block_size == 512 { 300 } else { 3000 })
            .map(|i| format!("n{i}"))
            .collect();
        for n in &names {
            put(&vol, &mut tree, n.as_bytes(), 8, &[1; 8]).unwrap();
        }
        for round in 0..500 {
            // Like a rename: insert a name, remove a name, change a value.
            let i = (mix64(round) % names.len() as u64) as usize;
            let new = format!("renamed-{round}");
            let old = std::mem::replace(&mut names[i], new.clone());
            let mut tx = vol.begin();
            let mut u = tree;
            insert(&mut tx, &mut u, &item(new.as_bytes(), 8, &[3; 8])).unwrap();
            assert!(remove(&mut tx, &mut u, old.as_bytes()).unwrap());
            assert!(set_value(&mut tx, &u, new.as_bytes(), 4, &round.to_le_bytes()).unwrap());
            assert!(!remove(&mut tx, &mut u, old.as_bytes()).unwrap());
            if round % 3 == 0 {
                drop(tx);
                assert!(find_dir(&vol, &tree, old.as_bytes()).unwrap().is_some());
                names[i] = old;
                continue;
            }
            tx.commit().unwrap();
            tree = u;
            assert_eq!(
                find_dir(&vol, &tree, new.as_bytes())
                    .unwrap()
                    .map(|f| (f.ino, f.found.hit.head.kind)),
                Some((round, 4))
            );
            assert!(find_dir(&vol, &tree, old.as_bytes()).unwrap().is_none());
        }
        assert_eq!(blocks(&vol, &tree).unwrap(), tree.blocks);
        assert_eq!(list(&vol, &tree, 0, usize::MAX).unwrap().len(), names.len());
    }
}

#[test]
fn leaf_split_works_with_nearly_full_record() {
    for block_size in [512, 4096] {
        let vol = volume(block_size, 8 << 20);
        let mut tx = vol.begin();
        let scratch = vol
            .geo
            .offset(tx.alloc_blocks(None, 8, true).unwrap().start);
        tx.commit().unwrap();
        let free = free_blocks(&vol);
        let mut tree = dir();
        for i in 0..2000 {
            let mut tx = vol.begin();
            let full = (tx.room() - 1300) / 8 * 8;
            tx.put(EntryKind::Leaf, scratch, &vec![0; full]).unwrap();
            let mut u = tree;
            insert(&mut tx, &mut u, &item(&numbered(i), 8, &i.to_le_bytes())).unwrap();
            if i % 3 == 2 {
                assert!(remove(&mut tx, &mut u, &numbered(i - 1)).unwrap());
            }
            assert!(
                tx.room() >= 900,
                "{} bytes are left to the caller",
                tx.room()
            );
            tx.commit().unwrap();
            tree = u;
        }
        assert_eq!(blocks(&vol, &tree).unwrap(), tree.blocks);
        for i in 0..2000 {
            let want = (i % 3 != 1 || i == 1999).then_some(i);
            assert_eq!(
                find_dir(&vol, &tree, &numbered(i)).unwrap().map(|f| f.ino),
                want
            );
        }
        for i in 0..2000 {
            take(&vol, &mut tree, &numbered(i)).unwrap();
        }
        assert_eq!((tree.root, tree.blocks), (Ptr::HOLE, 0));
        assert_eq!(free_blocks(&vol), free);
    }
}

#[test]
fn tree_emptied_in_same_tx_uses_no_blocks() {
    let vol = volume(512, 1 << 20);
    let free = free_blocks(&vol);
    let mut tree = dir();
    let mut tx = vol.begin();
    for i in 0..20 {
        insert(
            &mut tx,
            &mut tree,
            &item(format!("{i}").as_bytes(), 1, &[1; 8]),
        )
        .unwrap();
    }
    for i in 0..20 {
        assert!(remove(&mut tx, &mut tree, format!("{i}").as_bytes()).unwrap());
    }
    tx.commit().unwrap();
    drop(tx);
    assert_eq!((tree.root, tree.blocks), (Ptr::HOLE, 0));
    assert_eq!(free_blocks(&vol), free);
    // The medium agrees after a remount.
    let Volume { region, geo, .. } = vol;
    assert_eq!(free_blocks(&mount(region, geo)), free);
}
