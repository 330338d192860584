//! Freeing a tree in steps, and empty index blocks.

use super::*;

/// Fills the region except for one block in fifty.
fn scatter(vol: &Volume) {
    let mut apart = Vec::new();
    for i in 0.. {
        let mut tx = vol.begin();
        let Ok(run) = tx.alloc_blocks(None, if i % 2 == 0 { 49 } else { 1 }, false) else {
            break;
        };
        if i % 2 == 1 {
            apart.push(run);
        }
        tx.commit().unwrap();
    }
    for run in apart {
        let mut tx = vol.begin();
        tx.free_blocks(run).unwrap();
        tx.commit().unwrap();
    }
}

#[test]
fn free_step_frees_tree_in_several_steps() {
    for (block_size, files) in [(512, 4000), (1024, 3000), (4096, 30_000)] {
        let vol = volume(block_size, 128 << 20);
        scatter(&vol);
        let free = free_blocks(&vol);
        let mut tree = dir();
        for i in 0..files {
            put(&vol, &mut tree, format!("file-{i}").as_bytes(), 8, &[1; 8]).unwrap();
        }
        let mut steps = 0;
        loop {
            let mut tx = vol.begin();
            let before = tree.blocks;
            let gone = free_step(&mut tx, &mut tree).unwrap();
            assert!(tx.room() >= 900 && tree.blocks < before);
            tx.commit().unwrap();
            steps += 1;
            assert_eq!(blocks(&vol, &tree).unwrap(), tree.blocks);
            list(&vol, &tree, 0, usize::MAX).unwrap();
            if gone {
                break;
            }
            // The rest of the tree still works.
            put(&vol, &mut tree, b"again", 8, &[1; 8]).unwrap();
            assert!(take(&vol, &mut tree, b"again").unwrap());
        }
        assert!(steps > 1);
        assert_eq!((tree.root, tree.blocks), (Ptr::HOLE, 0));
        assert_eq!(free_blocks(&vol), free);
    }
}

#[test]
fn free_step_leaves_no_empty_index_block() {
    let vol = volume(512, 1 << 20);
    let mut tx = vol.begin();
    let run = tx.alloc_blocks(None, 16, true).unwrap();
    tx.commit().unwrap();
    let mut steps = 0;
    // Vary the room at the start of a step, and thereby the place where it ends.
    let most = vol.begin().room();
    for room in (1000..most).step_by(8) {
        let mut tree = empty_tree(TreeKind::Xattrs);
        for i in 0..40 {
            put(&vol, &mut tree, format!("name-{i}").as_bytes(), 1, &[7; 40]).unwrap();
        }
        assert!(!tree.root.is_leaf());
        let mut first = true;
        while !tree.root.is_hole() {
            let mut tx = vol.begin();
            let mut at = vol.geo.offset(run.start);
            while first && tx.room() > room + 8 {
                let len = (tx.room() - room - 8).min(256) & !7;
                if len == 0 {
                    break;
                }
                tx.put(EntryKind::Leaf, at, &vec![1; len]).unwrap();
                at = at + 512;
            }
            first = false;
            let mut new = tree;
            free_step(&mut tx, &mut new).unwrap();
            tx.commit().unwrap();
            tree = new;
            assert_eq!(
                blocks(&vol, &tree).unwrap(),
                tree.blocks,
                "with room for {room}"
            );
            steps += 1;
        }
    }
    assert!(steps > 300, "{steps} steps");
}

#[test]
fn empty_index_block_is_corrupt() {
    let vol = volume(512, 1 << 20);
    for kind in [TreeKind::Directory, TreeKind::Xattrs] {
        let mut tree = empty_tree(kind);
        for i in 0..60 {
            put(&vol, &mut tree, format!("name-{i}").as_bytes(), 8, &[7; 8]).unwrap();
        }
        assert!(!tree.root.is_leaf());
        let w = vol.region.window();
        for slot in 0..64 {
            let at = vol.geo.offset(tree.root.block()).0 + slot * 8;
            w.store_u64_unflushed(at, 0).unwrap();
        }
        let corrupt = |e: Error| matches!(e, Error::Corrupt { .. });
        assert!(corrupt(
            find(&vol, &tree, b"name-1", &mut |_, _| ()).unwrap_err()
        ));
        assert!(corrupt(list(&vol, &tree, 0, 9).unwrap_err()));
        assert!(corrupt(count(&vol, &tree, 99).unwrap_err()));
        assert!(corrupt(
            put(&vol, &mut tree, b"new", 8, &[1; 8]).unwrap_err()
        ));
        assert!(corrupt(take(&vol, &mut tree, b"name-1").unwrap_err()));
    }
}

/// A step of an older version could clear the last pointer but keep the block.
#[test]
fn free_step_frees_empty_index_block_of_old_version() {
    let vol = volume(512, 4 << 20);
    let free = free_blocks(&vol);
    let mut tree = empty_tree(TreeKind::Directory);
    for i in 0..900 {
        put(&vol, &mut tree, format!("name-{i}").as_bytes(), 8, &[7; 8]).unwrap();
    }
    // Bring the first index block below the root into the state that such a step left.
    let mut below = tree;
    let first = (0..64).find_map(|slot| {
        let at = vol.geo.offset(tree.root.block()).0 + slot * 8;
        let ptr = Ptr(vol.region.load_u64(at).unwrap());
        (!ptr.is_leaf() && !ptr.is_hole()).then_some(ptr)
    });
    let first = first.expect("an index block below the root");
    let mut tx = vol.begin();
    let mut leaves: Vec<Bno> = Vec::new();
    for slot in 0..64 {
        let at = vol.geo.offset(first.block()).0 + slot * 8;
        let ptr = Ptr(vol.region.load_u64(at).unwrap());
        assert!(ptr.is_leaf());
        if leaves.last() != Some(&ptr.block()) {
            leaves.push(ptr.block());
        }
    }
    for leaf in leaves {
        let (start, len) = (leaf.0, 1);
        let start = Bno(start);
        tx.free_blocks(crate::types::BlockRun { start, len })
            .unwrap();
        below.blocks -= 1;
    }
    tx.put_zeros(vol.geo.offset(first.block()), 64).unwrap();
    tx.commit().unwrap();
    tree = below;
    while !tree.root.is_hole() {
        let mut tx = vol.begin();
        free_step(&mut tx, &mut tree).unwrap();
        tx.commit().unwrap();
    }
    assert_eq!(tree.blocks, 0);
    assert_eq!(free_blocks(&vol), free);
}
