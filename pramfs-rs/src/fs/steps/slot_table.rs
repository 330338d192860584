//! What the orphan table and the lease table share: files of slots that only grow.
//!
//! Invariant: a new block of a table is durable, with zeros, before a slot in it is used.

use std::ops::Range;

use crate::fs::Engine;
use crate::fs::engine::change::Edit;
use crate::fs::inode::Inode;
use crate::fs::inode::state::InodeState;
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::map;
use pramfs_medium::types::RegionOffset;

impl Engine {
    /// Returns the place of byte `at` of a table.
    pub(super) fn place_in_table(
        &self,
        state: &InodeState,
        at: u64,
        name: &'static str,
    ) -> Result<RegionOffset> {
        let geo = &self.vol.geo;
        let leaf = map::find(&self.vol, &state.map(), geo.file_block(at))?;
        let block = leaf.block.ok_or_else(|| {
            Error::corrupt(Damage::MapHole, name, format!("byte {at} has no block"))
        })?;
        Ok(geo.offset(block) + geo.within_block(at))
    }

    /// Adds a block of zeros to a locked table, in a separate record. Returns its bytes.
    pub(super) fn grow_table(&self, table: &Inode, state: &mut InodeState) -> Result<Range<u64>> {
        let geo = &self.vol.geo;
        let mut map = state.map();
        let mut new = Edit::new(table, state);
        let mut grow = self.vol.begin();
        grow.allow_reserve();
        let old_size = new.size;
        let first = geo.file_block(old_size);
        let run = grow.alloc_blocks(None, 1, true)?;
        grow.zero_new(geo.offset(run.start), geo.block_size)?;
        map::insert(&mut grow, &mut map, first, run, false)?;
        map.store(&mut new);
        new.size += geo.block_size;
        let size = new.size;
        let staged = new.stage(&mut grow)?;
        self.commit(grow, [staged])?;
        Ok(old_size..size)
    }
}
