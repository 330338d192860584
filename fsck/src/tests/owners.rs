//! Every block has the owner that a check found, and every owner its names.

use std::collections::{HashMap, HashSet};

use super::plant::Plant;
use crate::{DataOf, Owner, Owners, Part, State};
use pramfs_medium::media::superblock::{BLOCK_GROUPS_OFFSET, INODE_TABLE_OFFSET};
use pramfs_medium::types::Ino;

/// Calls `f` with the owners of the blocks of an image.
fn with<R>(p: &Plant, f: impl FnOnce(&mut Owners<'_>) -> R) -> R {
    Owners::with(&p.region, f).unwrap()
}

#[test]
fn each_used_block_has_one_owner_and_each_free_block_none() {
    let p = Plant::new();
    with(&p, |owners| {
        assert!(owners.is_complete());
        let mut count: HashMap<u64, usize> = HashMap::new();
        for owned in owners.between(0, owners.blocks()) {
            for block in owned.blocks.blocks() {
                *count.entry(block.0).or_default() += 1;
            }
        }
        for block in 0..owners.blocks() {
            let found = count.get(&block).copied().unwrap_or(0);
            let state = owners.state(block).unwrap();
            assert_eq!(
                (found, state == State::Used),
                (found.min(1), found > 0),
                "{block}"
            );
        }
    });
}

#[test]
fn owners_of_a_file_are_its_data_pointers_and_attributes() {
    let p = Plant::new();
    with(&p, |owners| {
        let mut data = 0;
        let mut kinds = HashSet::new();
        for owned in owners.between(0, owners.blocks()) {
            if owned.owner.ino() != Some(p.file) {
                continue;
            }
            match owned.owner {
                Owner::Data {
                    of: DataOf::File,
                    first,
                    ..
                } => {
                    // The run is in the order of the file.
                    let within = owned.owner.later(owned.blocks.len - 1);
                    let last = first + (owned.blocks.len - 1);
                    assert!(matches!(within, Owner::Data { first, .. } if first == last));
                    data += owned.blocks.len;
                }
                Owner::Data { of, .. } => {
                    assert_eq!(of, DataOf::Value);
                    kinds.insert("value");
                }
                Owner::Pointers {
                    part: Part::Contents,
                    level,
                    ..
                } => {
                    assert!(level > 0);
                    kinds.insert("pointers");
                }
                Owner::Pointers { .. } => _ = kinds.insert("pointers of a value"),
                Owner::Leaf { part, .. } => {
                    assert_eq!(part, Part::Xattrs);
                    kinds.insert("attributes");
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(data, 300);
        assert!(
            kinds.is_superset(&HashSet::from(["value", "pointers", "attributes"])),
            "{kinds:?}"
        );
    });
}

#[test]
fn paths_are_all_names_and_orphans_have_none() {
    let p = Plant::new();
    with(&p, |owners| {
        let wanted = [p.file, p.sub, p.gone, Ino::ROOT].into_iter().collect();
        let paths = owners.paths(&wanted).unwrap();
        let of = |ino: Ino| paths.get(&ino).cloned().unwrap_or_default();
        assert_eq!(of(p.file), [b"/file".to_vec(), b"/link".to_vec()]);
        assert_eq!(of(p.sub), [b"/dir/sub".to_vec()]);
        assert_eq!(of(Ino::ROOT), [b"/".to_vec()]);
        assert!(of(p.gone).is_empty() && owners.is_orphan(p.gone));
        assert!(!owners.is_orphan(p.file));
    });
}

#[test]
fn owners_of_damaged_region_are_those_that_can_be_reached() {
    let p = Plant::new();
    // The inode of a directory with an index, in place.
    p.flip(p.home(p.big) + 8, 1);
    with(&p, |owners| {
        assert!(!owners.is_complete());
        let mut all = owners.between(0, owners.blocks());
        assert!(!all.any(|o| o.owner.ino() == Some(p.big)));
    });
    // Without the tables, only what lies in fixed places is known.
    for page in p.pages() {
        for at in [INODE_TABLE_OFFSET, BLOCK_GROUPS_OFFSET] {
            p.flip(page + at + 0x20, 4);
        }
    }
    with(&p, |owners| {
        assert!(!owners.is_complete());
        assert_eq!(owners.state(0).unwrap(), State::Unknown);
        let first = owners.between(0, 1).next().map(|o| o.owner);
        assert_eq!(first, Some(Owner::Superblock));
    });
}
