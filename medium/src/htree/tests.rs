//! Trees of names and attributes, compared with a plain map. Also the helpers of the other
//! tests of trees.

mod damage;
mod durable;
mod free;
mod gaps;
mod transaction;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Instant;

use super::*;
use crate::format::{FormatOptions, format};
use crate::journal::Rules;
use crate::media::DiskInode;
use crate::media::record::EntryKind;
use crate::media::superblock::{BLOCK_GROUPS_OFFSET, INODE_GROUPS_OFFSET};
use crate::media::walk::MapRoot;
use crate::pmem::{HeapBackend, Region};
use crate::volume::Volume;

thread_local! {
    /// Mask of the name hash. Clearing bits makes names collide.
    pub static HASH_MASK: Cell<u64> = const { Cell::new(u64::MAX) };
}

const OWNER: Ino = Ino(77);

fn item<'a>(name: &'a [u8], kind: u8, value: &'a [u8]) -> NewItem<'a> {
    NewItem { name, kind, value }
}

fn options(block_size: u32) -> FormatOptions {
    FormatOptions {
        block_size,
        uuid: Some([7; 16]),
        hash_seed: Some([9; 16]),
        ..FormatOptions::default()
    }
}

fn volume(block_size: u32, len: usize) -> Volume {
    let region = Region::new("test", HeapBackend::boxed(len));
    let made = format(&region, &options(block_size)).unwrap();
    mount(region, Geometry::new(&made.fixed))
}

fn mount(region: Region, geo: Geometry) -> Volume {
    let root = |at, ino| {
        let d: DiskInode = region.read_pod(at).unwrap();
        MapRoot {
            ino,
            root: Ptr(d.root),
            height: d.height.into(),
        }
    };
    let roots = crate::volume::GroupRoots {
        blocks: root(BLOCK_GROUPS_OFFSET, Ino::BLOCK_GROUPS),
        inodes: root(INODE_GROUPS_OFFSET, Ino::INODE_GROUPS),
    };
    Volume::new(region, geo, 1, roots, Rules::default())
}

fn empty_tree(kind: TreeKind) -> TreeRef {
    TreeRef {
        ino: OWNER,
        kind,
        root: Ptr::HOLE,
        blocks: 0,
    }
}

fn dir() -> TreeRef {
    empty_tree(TreeKind::Directory)
}

fn put(vol: &Volume, tree: &mut TreeRef, name: &[u8], kind: u8, value: &[u8]) -> Result<u64> {
    let mut tx = vol.begin();
    let mut new = *tree;
    let cookie = insert(&mut tx, &mut new, &item(name, kind, value))?;
    tx.commit()?;
    *tree = new;
    Ok(cookie)
}

fn take(vol: &Volume, tree: &mut TreeRef, name: &[u8]) -> Result<bool> {
    let mut tx = vol.begin();
    let mut new = *tree;
    let found = remove(&mut tx, &mut new, name)?;
    tx.commit()?;
    *tree = new;
    Ok(found)
}

type Entry = (Vec<u8>, u8, Vec<u8>);

fn list(vol: &Volume, tree: &TreeRef, from: u64, most: usize) -> Result<BTreeMap<u64, Entry>> {
    let mut out = BTreeMap::new();
    let mut last = from;
    scan(vol, tree, from, &|| Ok(()), &mut |head, value, name| {
        assert!(head.hash() > last, "not in order");
        last = head.hash();
        out.insert(last, (name.to_vec(), head.kind, value.to_vec()));
        if out.len() == most {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    Ok(out)
}

/// Checks all blocks and returns their number.
fn blocks(vol: &Volume, tree: &TreeRef) -> Result<i64> {
    let mut n = 0;
    visit_blocks(vol, tree, &mut |b, _| {
        assert!(
            vol.blocks.is_set_at_home(vol.medium(), b.0)?,
            "block {} is free",
            b.0
        );
        n += 1;
        Ok(())
    })?;
    Ok(n)
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix64(self.0)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Counts free blocks and blocks that became bitmaps of groups.
fn free_blocks(vol: &Volume) -> u64 {
    vol.retire_pending().unwrap();
    let made = (0..vol.blocks.groups()).filter(|g| vol.blocks.is_made(vol.medium(), *g).unwrap());
    vol.free_blocks().0 + made.count() as u64
}

/// Compares random changes with a map of names. Uses `names` names of up to `longest`
/// bytes.
fn against_model(vol: &Volume, kind: TreeKind, seed: u64, steps: usize, names: u64, longest: u64) {
    let mut rng = Rng(seed);
    let mut tree = empty_tree(kind);
    let mut model: BTreeMap<Vec<u8>, (u8, Vec<u8>, u64)> = BTreeMap::new();
    let at_start = free_blocks(vol);
    let name_of = |i: u64| {
        let len = 4 + mix64(i ^ seed) % (longest - 3);
        let mut name = format!("{i:04x}").into_bytes();
        name.resize(len as usize, b'a' + (i % 26) as u8);
        name
    };
    for step in 0..steps {
        // The tree alternately grows and shrinks, down to nothing.
        let growing = (step / (steps / 4)).is_multiple_of(2);
        let name = name_of(rng.below(names));
        let value_len = if kind == TreeKind::Directory {
            8
        } else {
            rng.below(60) as usize
        };
        let value: Vec<u8> = (0..value_len).map(|_| rng.next() as u8).collect();
        let file_kind = rng.below(16) as u8;
        match (model.get(&name).cloned(), rng.below(10)) {
            (None, 0..2) => assert!(!take(vol, &mut tree, &name).unwrap()),
            (None, n) if growing || n == 9 => {
                let cookie = put(vol, &mut tree, &name, file_kind, &value).unwrap();
                model.insert(name.clone(), (file_kind, value.clone(), cookie));
            }
            (None, _) => {}
            (Some(_), 0) => {
                assert!(matches!(
                    put(vol, &mut tree, &name, file_kind, &value),
                    Err(Error::Exists)
                ));
            }
            (Some((_, old, cookie)), 1..4) => {
                let value = vec![step as u8; old.len()];
                let mut tx = vol.begin();
                assert!(set_value(&mut tx, &tree, &name, file_kind, &value).unwrap());
                tx.commit().unwrap();
                model.insert(name.clone(), (file_kind, value, cookie));
            }
            (Some(_), n) if !growing || n == 9 => {
                assert!(take(vol, &mut tree, &name).unwrap());
                model.remove(&name);
            }
            (Some(_), _) => {}
        }
        let mut seen = None;
        let found = find(vol, &tree, &name, &mut |h, v| {
            seen = Some((h.kind, v.to_vec(), h.hash()))
        })
        .unwrap();
        assert_eq!(found, model.contains_key(&name));
        assert_eq!(seen.as_ref(), model.get(&name));
        if step % (steps / 16) == 0 || step == steps - 1 {
            vol.verified.forget(tree.root.block());
            assert_eq!(blocks(vol, &tree).unwrap(), tree.blocks);
            let want: BTreeMap<u64, Entry> = model
                .iter()
                .map(|(n, (k, v, c))| (*c, (n.clone(), *k, v.clone())))
                .collect();
            assert_eq!(list(vol, &tree, 0, usize::MAX).unwrap(), want);
        }
    }
    for name in model.keys() {
        assert!(take(vol, &mut tree, name).unwrap());
    }
    // A directory keeps its last leaf until it is removed itself.
    assert!(tree.blocks <= i64::from(kind == TreeKind::Directory));
    while !tree.root.is_hole() {
        let mut tx = vol.begin();
        free_step(&mut tx, &mut tree).unwrap();
        tx.commit().unwrap();
    }
    assert_eq!((tree.root, tree.blocks), (Ptr::HOLE, 0));
    assert_eq!(free_blocks(vol), at_start);
}

#[test]
fn tree_matches_btreemap_model() {
    for block_size in [512, 1024, 2048, 4096] {
        let vol = volume(block_size, 8 << 20);
        against_model(&vol, TreeKind::Directory, 1, 6000, 1500, 20);
        against_model(&vol, TreeKind::Directory, 2, 2000, 400, 255);
        against_model(&vol, TreeKind::Xattrs, 3, 2000, 400, 120);
    }
}

#[test]
fn colliding_names_match_btreemap_model() {
    // Few distinct hashes, which share their first and last bits.
    for (mask, names) in [(0x3f00, 500), (0b101 << 40 | 0b11 << 9, 200), (1 << 8, 24)] {
        HASH_MASK.set(mask);
        for block_size in [1024, 4096] {
            let vol = volume(block_size, 8 << 20);
            against_model(&vol, TreeKind::Directory, 4, 1500, names, 12);
        }
    }
    HASH_MASK.set(u64::MAX);
}

#[test]
fn insert_of_too_many_equal_hashes_fails_without_loss() {
    HASH_MASK.set(0);
    for (block_size, most) in [(512, 13), (4096, 122)] {
        let vol = volume(block_size, 1 << 20);
        let mut tree = dir();
        let mut cookies = Vec::new();
        for i in 0..most {
            cookies.push(put(&vol, &mut tree, format!("{i}").as_bytes(), 1, &[i; 8]).unwrap());
        }
        let free = free_blocks(&vol);
        assert!(matches!(
            put(&vol, &mut tree, b"more", 1, &[0; 8]),
            Err(Error::NoSpace(_))
        ));
        assert_eq!(free_blocks(&vol), free);
        let got: Vec<u64> = list(&vol, &tree, 0, usize::MAX)
            .unwrap()
            .into_keys()
            .collect();
        assert_eq!(got, cookies);
        assert!(take(&vol, &mut tree, b"3").unwrap());
        assert_eq!(
            put(&vol, &mut tree, b"more", 1, &[0; 8]).unwrap(),
            cookies[3]
        );
    }
    HASH_MASK.set(u64::MAX);
}

#[test]
fn name_hash_leaves_small_cookies_free() {
    let vol = volume(4096, 1 << 20);
    for i in 0..1000 {
        let h = name_hash(&vol.geo, format!("{i}").as_bytes());
        assert!(h >> HASH_BITS == 0 && h & TIE_MASK == 0 && h > 255);
    }
    HASH_MASK.set(0);
    assert_eq!(name_hash(&vol.geo, b"x"), 256);
    HASH_MASK.set(u64::MAX);
}

#[test]
fn insert_of_item_larger_than_leaf_fails() {
    let vol = volume(512, 1 << 20);
    let mut tree = empty_tree(TreeKind::Xattrs);
    let long = [b'x'; 256];
    assert!(matches!(
        put(&vol, &mut tree, &long, 1, b""),
        Err(Error::NameTooLong(256, 255))
    ));
    assert!(matches!(
        put(&vol, &mut tree, b"", 1, b""),
        Err(Error::Invalid(_))
    ));
    assert!(matches!(
        put(&vol, &mut tree, b"name", 1, &[0; 401]),
        Err(Error::AttributeTooLarge(401, 400))
    ));
    put(&vol, &mut tree, b"name", 1, &[0; 400]).unwrap();
    // A value too large for one record takes the path of a split.
    let vol = volume(4096, 1 << 20);
    let mut tree = empty_tree(TreeKind::Xattrs);
    put(&vol, &mut tree, b"small", 1, b"value").unwrap();
    put(&vol, &mut tree, b"large", 1, &[5; 3800]).unwrap();
    let mut len = 0;
    assert!(find(&vol, &tree, b"large", &mut |_, v| len = v.len()).unwrap());
    assert!(len == 3800 && find(&vol, &tree, b"small", &mut |_, _| ()).unwrap());
    assert_eq!(blocks(&vol, &tree).unwrap(), tree.blocks);
}

#[test]
fn scan_shows_entries_once_despite_changes() {
    for block_size in [512, 4096] {
        let vol = volume(block_size, 8 << 20);
        let mut tree = dir();
        let mut rng = Rng(5);
        let stay: Vec<Vec<u8>> = (0..400).map(|i| format!("stay-{i}").into_bytes()).collect();
        for n in &stay {
            put(&vol, &mut tree, n, 8, &[1; 8]).unwrap();
        }
        let mut others: Vec<Vec<u8>> = Vec::new();
        let (mut seen, mut at) = (BTreeMap::new(), 0);
        loop {
            let part = list(&vol, &tree, at, 1 + rng.below(20) as usize).unwrap();
            let Some((&last, _)) = part.last_key_value() else {
                break;
            };
            at = last;
            for (name, _, _) in part.into_values() {
                *seen.entry(name).or_insert(0) += 1;
            }
            for i in 0..30 {
                if others.is_empty() || rng.below(2) == 0 {
                    let name = format!("other-{at:x}-{i}").into_bytes();
                    put(&vol, &mut tree, &name, 8, &[2; 8]).unwrap();
                    others.push(name);
                } else {
                    let i = rng.below(others.len() as u64) as usize;
                    assert!(take(&vol, &mut tree, &others.swap_remove(i)).unwrap());
                }
            }
        }
        assert!(stay.iter().all(|n| seen.get(n) == Some(&1)));
        assert!(seen.values().all(|&n| n == 1));
    }
}

#[test]
fn count_returns_blocks_and_items() {
    let vol = volume(512, 1 << 20);
    let mut tree = dir();
    for i in 0..200u64 {
        put(&vol, &mut tree, format!("name-{i}").as_bytes(), 8, &[7; 8]).unwrap();
        if i % 20 == 0 {
            let counted = count(&vol, &tree, u64::MAX).unwrap();
            assert_eq!(
                (counted.blocks as i64, counted.items),
                (tree.blocks, Some(i + 1))
            );
        }
    }
    // The count detects the loss of each line of pointers, whether or not the line
    // covers whole leaves.
    let index = vol.geo.offset(tree.root.block()).0;
    let w = vol.region.window();
    for line in 0..8 {
        let at = |i: u64| index + line * 64 + i * 8;
        let words: Vec<u64> = (0..8)
            .map(|i| vol.region.load_u64(at(i)).unwrap())
            .collect();
        for i in 0..8 {
            w.store_u64_unflushed(at(i), 0).unwrap();
        }
        let lost = count(&vol, &tree, u64::MAX);
        assert!(!lost.is_ok_and(|c| c.blocks as i64 == tree.blocks && c.items == Some(200)));
        for i in 0..8 {
            w.store_u64_unflushed(at(i), words[i as usize]).unwrap();
        }
    }
}

#[test]
fn insert_in_full_region_fails_and_remove_works() {
    let vol = volume(512, 256 << 10);
    let mut tree = dir();
    let mut n = 0;
    let full = loop {
        match put(&vol, &mut tree, format!("name-{n}").as_bytes(), 8, &[1; 8]) {
            Ok(_) => n += 1,
            Err(e) => break e,
        }
    };
    assert!(matches!(full, Error::NoSpace(_)));
    assert_eq!(blocks(&vol, &tree).unwrap(), tree.blocks);
    for i in 0..n {
        assert!(take(&vol, &mut tree, format!("name-{i}").as_bytes()).unwrap());
    }
    assert_eq!((tree.root, tree.blocks), (Ptr::HOLE, 0));
}

/// Returns `file-000000` and so on, without an allocation.
fn numbered(mut i: u64) -> [u8; 11] {
    let mut name = *b"file-000000";
    for digit in name[5..].iter_mut().rev() {
        *digit += (i % 10) as u8;
        i /= 10;
    }
    name
}

#[test]
fn large_directory_finds_and_scans_every_name_until_removed() {
    const FILES: u64 = 200_000;
    let vol = volume(4096, 64 << 20);
    let free = free_blocks(&vol);
    let mut tree = dir();
    let mut rng = Rng(9);
    let order: Vec<u64> = (0..FILES).map(|_| rng.below(FILES)).collect();
    let since = |start: Instant| start.elapsed().as_nanos() as u64 / FILES;

    let start = Instant::now();
    for i in 0..FILES {
        put(&vol, &mut tree, &numbered(i), 8, &i.to_le_bytes()).unwrap();
    }
    let inserted = since(start);
    let find_all = |order: &mut dyn Iterator<Item = u64>| {
        let start = Instant::now();
        for i in order {
            assert_eq!(
                find_dir(&vol, &tree, &numbered(i)).unwrap().map(|f| f.ino),
                Some(i)
            );
        }
        since(start)
    };
    let found = (0..4)
        .map(|_| find_all(&mut order.iter().copied()))
        .min()
        .unwrap();
    let few = find_all(&mut (0..FILES).map(|i| i % 500));
    let start = Instant::now();
    assert_eq!(
        list(&vol, &tree, 0, usize::MAX).unwrap().len() as u64,
        FILES
    );
    let listed = since(start);
    let n = blocks(&vol, &tree).unwrap();
    assert_eq!(n, tree.blocks);
    let start = Instant::now();
    for i in 0..FILES {
        assert!(take(&vol, &mut tree, &numbered(i)).unwrap());
    }
    println!(
        "{FILES} entries in {n} blocks; each: insert {inserted} ns, find {found} ns ({few} ns among 500 of them), \
         scan {listed} ns, remove {} ns",
        since(start)
    );
    assert_eq!((tree.root, tree.blocks), (Ptr::HOLE, 0));
    assert_eq!(free_blocks(&vol), free);
}
