//! Walks a file map in steps, for a check during a mount that holds no lock for long.

use super::MapRef;
use crate::error::Result;
use crate::media::walk::Leaf;
use crate::types::{Bno, FileBlock};
use crate::volume::Volume;

/// Most levels of a map.
const LEVELS: usize = 10;

/// The pointer blocks on the path of the last step, to count each of them once.
#[derive(Debug, Clone, Copy)]
pub struct Tables([Bno; LEVELS]);

impl Default for Tables {
    fn default() -> Tables {
        Tables([Bno(0); LEVELS])
    }
}

impl Tables {
    /// Notes a pointer block. True if the last step did not pass it.
    fn is_new(&mut self, level: u32, block: Bno) -> bool {
        match self.0.get_mut(level as usize) {
            Some(known) if *known != block => {
                *known = block;
                true
            }
            _ => false,
        }
    }
}

/// What covers a place of a file.
#[derive(Debug)]
pub struct MapStep {
    /// First file block that the pointer covers which was followed last.
    pub first: FileBlock,
    /// Number of file blocks that it covers.
    pub count: u64,
    /// The leaf or hole, or what is wrong with the pointer.
    pub leaf: Result<Leaf>,
    /// Pointer blocks on the path that the last step did not pass.
    pub tables: u64,
}

/// Follows the pointers to a file block, checks each, and says how far the result holds, also if
/// a pointer is damaged. The caller holds the lock of the inode.
pub fn step(vol: &Volume, map: &MapRef, index: FileBlock, tables: &mut Tables) -> MapStep {
    let (geo, root) = (&vol.geo, map.root());
    let mut found = MapStep {
        first: FileBlock(0),
        count: FileBlock::END - FileBlock(0),
        leaf: Ok(Leaf {
            first: FileBlock(0),
            count: 0,
            block: None,
            unwritten: false,
            lost: false,
        }),
        tables: 0,
    };
    if let Err(e) = map.checked(geo) {
        found.leaf = Err(e);
        return found;
    }
    let end = root.end(geo);
    let mut level = map.height;
    if index < end {
        (found.first, found.count) = (geo.first_under(level, index), geo.span(level));
        let mut ptr = map.root;
        while level > 0 && !ptr.is_hole() && !ptr.is_leaf() {
            let at = root.at(geo, level, index);
            let table = match root.open(geo, ptr, at) {
                Err(_) if ptr.is_lost(at) => break,
                Err(e) => {
                    found.leaf = Err(e);
                    return found;
                }
                Ok(table) => table,
            };
            found.tables += u64::from(tables.is_new(level, table));
            level -= 1;
            match vol
                .medium()
                .load_u64(geo.offset(table).word(geo.slot_at(level, index)))
            {
                Ok(word) => ptr = crate::media::pointer::Ptr(word),
                Err(e) => {
                    found.leaf = Err(e.into());
                    return found;
                }
            }
            (found.first, found.count) = (geo.first_under(level, index), geo.span(level));
        }
    } else {
        (found.first, found.count) = (end, FileBlock::END - end);
    }
    // Checks the last pointer, and that a hole is in a block with pointers.
    found.leaf = root.look(vol.medium(), index);
    if let Ok(leaf) = &found.leaf {
        (found.first, found.count) = (leaf.first, leaf.count);
    }
    found
}
