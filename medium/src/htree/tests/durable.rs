//! Stores of a tree outside of a record are flushed before the record commits.

use std::collections::BTreeSet;

use super::*;
use crate::pmem::{EventKind, LINE, SimBackend};

/// An index block is rewritten if the record has no room for its pointers.
#[test]
fn leaf_split_leaves_no_line_unflushed() {
    for block_size in [512, 4096] {
        let sim = SimBackend::new(4 << 20).unwrap();
        let region = Region::new("test", Box::new(sim.clone()));
        let made = format(&region, &options(block_size)).unwrap();
        let vol = mount(region, Geometry::new(&made.fixed));
        let mut tx = vol.begin();
        let block = tx.alloc_blocks(None, 8, true).unwrap().start;
        let scratch = vol.geo.offset(block);
        tx.commit().unwrap();
        let mut tree = dir();
        let mut anew = 0;
        for i in 0..1500 {
            let mut tx = vol.begin();
            // Make the record almost full.
            let full = (tx.room() - 1300) / 8 * 8;
            tx.put(EntryKind::Leaf, scratch, &vec![0; full]).unwrap();
            let mut u = tree;
            sim.recording(true);
            insert(&mut tx, &mut u, &item(&numbered(i), 8, &i.to_le_bytes())).unwrap();
            tx.commit().unwrap();
            vol.retire_all().unwrap();
            sim.recording(false);
            let mut dirty = BTreeSet::new();
            for e in sim.take_record() {
                let lines = e.offset / LINE..(e.offset + e.bytes.len() as u64).div_ceil(LINE);
                let block = e.bytes.len() as u32 == block_size;
                match e.kind {
                    EventKind::Store => dirty.extend(lines),
                    EventKind::Flush => dirty.retain(|l| !lines.contains(l)),
                    EventKind::NtStore => anew += u32::from(block && !e.bytes.starts_with(b"hlf1")),
                    _ => {}
                }
            }
            assert!(
                dirty.is_empty(),
                "blocks of {block_size}, name {i}: lines {dirty:x?} were stored and not flushed"
            );
            tree = u;
        }
        assert!(anew > 5, "blocks of {block_size}: {anew} index blocks");
    }
}
