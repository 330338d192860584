//! Overwriting several ranges of a file at once, all or nothing: the end of a staged view.
//!
//! Invariant: one record copies all ranges, after [`fill`](Engine::fill) has given each a written
//! block. Writes of one range are in [`atomic`](crate::fs::ops::atomic).

use crate::fs::engine::change::WithCopies;
use crate::fs::engine::room;
use crate::fs::inode::Inode;
use crate::fs::inode::state::{InodeState, check_file};
use crate::fs::ops::write_source::{Copies, stage, store_copies};
use crate::fs::policy::chattr;
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::map;
use pramfs_medium::pmem::Region;
use pramfs_medium::types::Ino;

impl Engine {
    /// Overwrites disjoint ranges of a file, each an offset and its bytes: all of them or none.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range past the end of the file; those of
    /// [`write`](Self::write). No byte has changed then.
    pub(crate) fn overwrite_ranges(&self, ino: Ino, ranges: &[(u64, &[u8])]) -> Result<()> {
        // Other threads may punch holes again.
        loop {
            for (offset, bytes) in ranges {
                self.fill(ino, *offset, bytes.len() as u64)?;
            }
            let done = self.op(Need::Write, || {
                let inode = self.iget_user(ino)?;
                let mut state = inode.state.write();
                check_file(inode.ino, &state)?;
                chattr::check_write(&state.disk)?;
                let done = self.overwrite_each(&inode, &mut state, ranges)?;
                self.sync_if_flagged(&state)?;
                Ok(done)
            });
            if done? {
                return Ok(());
            }
        }
    }

    /// False, and nothing is changed, if a range has a hole.
    fn overwrite_each(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        ranges: &[(u64, &[u8])],
    ) -> Result<bool> {
        self.use_copies()?;
        let (geo, map) = (&self.vol.geo, state.map());
        let total = ranges.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        let mut tx = self.begin(inode);
        tx.allow_large();
        tx.touch(&inode.last_record);
        let mut copies = Copies::new();
        for (offset, bytes) in ranges {
            let end = offset.saturating_add(bytes.len() as u64);
            if end > state.disk.size {
                return Err(Error::Invalid("a range past the end of the file"));
            }
            self.check_edges(state, *offset..end)?;
            let mut at = *offset;
            while at < end {
                let index = geo.file_block(at);
                let extent = map::run(&self.vol, &map, index, geo.blocks_of(at, end))?;
                let Some(block) = extent.block.filter(|_| !extent.unwritten) else {
                    return Ok(false);
                };
                let stop = end.min(geo.file_offset(index + extent.count));
                let part = &bytes[(at - offset) as usize..(stop - offset) as usize];
                let to = geo.offset(block) + (at - geo.file_offset(index));
                stage(&mut tx, to, part, &mut copies).map_err(room::request_all_room(total))?;
                at = stop;
            }
        }
        if copies.is_empty() {
            return Ok(true);
        }
        let mut changed: Vec<_> = (ranges.iter())
            .map(|(offset, bytes)| *offset..offset + bytes.len() as u64)
            .collect();
        changed.sort_unstable_by_key(|range| range.start);
        self.put_all_sums(&mut tx, state, &map, state.disk.size, &changed)?;
        tx.end_staging()?;
        let restore = |region: &Region| store_copies(region, &copies);
        let record = self.commit(WithCopies(tx.end(), &restore), [])?;
        drop(tx);
        self.touch_lazily(inode, state);
        self.note_copies(state, record)?;
        Ok(true)
    }
}
