//! Writes that a crash leaves whole or not at all.
//!
//! Bytes for written blocks go to staging blocks, bytes for holes and unwritten blocks to new
//! ones. One record then changes the map and the size, and copies the staged bytes to their
//! places. So no block of a file moves.
//!
//! Rule 8, which the copies need, is in [`copies`](crate::fs::steps::copies), the search for
//! blocks in [`writer`](crate::fs::ops::writer).

use crate::fs::Engine;
use crate::fs::engine::change::{Edit, WithCopies};
use crate::fs::engine::room;
use crate::fs::inode::Inode;
use crate::fs::inode::disk::touch_mtime;
use crate::fs::inode::state::InodeState;
use crate::fs::ops::write_source::{Copies, WriteSource, stage, store_copies};
use crate::fs::ops::writer::Writer;
use crate::fs::steps::copies::part_of;
use pramfs_medium::error::{Error, Result};
use pramfs_medium::map::{self, MapRef};
use pramfs_medium::pmem::Region;
use pramfs_medium::types::RegionOffset;

impl Engine {
    /// Writes to a locked file, each [part](part_of) whole or not at all. An error after the
    /// first part makes the write short.
    pub(crate) fn write_in_parts<S: WriteSource>(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        offset: u64,
        from: S,
    ) -> Result<usize> {
        let mut done = 0;
        while done < from.len() {
            let at = offset + done as u64;
            let end = done + part_of(at, (from.len() - done) as u64) as usize;
            match self.write_whole(inode, state, at, from.part(done..end)) {
                Ok(()) => done = end,
                Err(e) if done > 0 && room::ends_short(&e) => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// Writes bytes to a locked file, whole or not at all.
    pub(crate) fn write_whole<S: WriteSource>(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        offset: u64,
        from: S,
    ) -> Result<()> {
        let geo = &self.vol.geo;
        let len = from.len() as u64;
        if offset + len <= state.disk.size {
            let within = geo.within_block(offset);
            let blocks = geo.blocks_for(within + len);
            let extent = map::run(&self.vol, &state.map(), geo.file_block(offset), blocks)?;
            if let Some(block) = extent.block
                && !extent.unwritten
                && extent.count == blocks
            {
                return self.overwrite_whole(
                    inode,
                    state,
                    offset,
                    geo.offset(block) + within,
                    from,
                );
            }
        }
        self.write_anywhere(inode, state, offset, from)
            .map_err(room::request_all_room(len))
    }

    /// Overwrites a run of written bytes of a locked file, whole or not at all. `offset` is
    /// their offset in the file.
    pub(crate) fn overwrite_whole<S: WriteSource>(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        offset: u64,
        at: RegionOffset,
        from: S,
    ) -> Result<()> {
        self.use_copies()?;
        let range = offset..offset + from.len() as u64;
        self.check_edges(state, range.clone())?;
        let mut tx = self.begin(inode);
        tx.allow_large();
        tx.touch(&inode.last_record);
        let mut copies = Copies::new();
        stage(&mut tx, at, from, &mut copies).map_err(room::request_all_room(from.len() as u64))?;
        self.put_sums(&mut tx, state, &state.map(), state.disk.size, range)?;
        tx.end_staging()?;
        let restore = |region: &Region| store_copies(region, &copies);
        let record = self.commit(WithCopies(tx.end(), &restore), [])?;
        drop(tx);
        self.touch_lazily(inode, state);
        self.note_copies(state, record)
    }

    fn write_anywhere<S: WriteSource>(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        offset: u64,
        from: S,
    ) -> Result<()> {
        self.use_copies()?;
        self.settle_size(inode, state)?;
        if offset > state.disk.size || state.leases.are_mapped_ahead() {
            // Zeros past the end of the file, which nobody sees, are stored in place.
            self.settle_copies(state)?;
        }
        self.mark_long_growth(inode, state, state.disk.size..offset)?;
        let end = offset + from.len() as u64;
        self.check_edges(state, offset.min(state.disk.size)..end)?;
        let is_settled = state
            .copied
            .is_none_or(|last| self.vol.journal.is_dead(last));
        let mut new = Edit::new(inode, state);
        let mut tx = self.begin(inode);
        tx.allow_large();
        let mut w = Writer::new(self, new.before(), offset, from);
        w.copies = Some(Copies::new());
        w.past_end_in_place = is_settled;
        if offset > w.size {
            self.zero_written(&mut tx, &w.map, w.size, offset)?;
        }
        if let Some(last) = w.fill(&mut tx)? {
            w.store_last(&mut tx, &last)?;
        }
        if w.pos < offset + from.len() as u64 {
            return Err(self.why_short(&w.map, w.pos)?);
        }
        let Writer {
            pos,
            map,
            size,
            first,
            copies,
            whole_leaves,
            ..
        } = w;
        let copies = copies.unwrap_or_default();
        let new_size = size.max(pos);
        // The zeros around the bytes in a leaf of 2 MiB have become written, too.
        let (mut from, mut to) = (offset.min(size), pos);
        if !whole_leaves.is_empty() {
            let geo = &self.vol.geo;
            from = from.min(geo.file_offset(whole_leaves.start));
            to = to.max(geo.file_offset(whole_leaves.end));
        }
        self.put_sums(&mut tx, new.before(), &map, new_size, from..to)?;
        let is_overwrite = pos <= size && map == new.before().map() && tx.has_only_copies();
        let staged = if is_overwrite {
            tx.touch(&inode.last_record);
            None
        } else {
            new.store_map(&tx, &map, first);
            new.size = new.size.max(pos);
            touch_mtime(&mut new, self.now());
            Some(new.stage(&mut tx)?)
        };
        tx.end_staging()?;
        let restore = |region: &Region| store_copies(region, &copies);
        let record = self.commit(WithCopies(tx.end(), &restore), staged)?;
        drop(tx);
        if is_overwrite {
            self.touch_lazily(inode, state);
        }
        match copies.is_empty() {
            true => Ok(()),
            false => self.note_copies(state, record),
        }
    }

    /// Why a write ended at `at`.
    #[cold]
    fn why_short(&self, map: &MapRef, at: u64) -> Result<Error> {
        let extent = map::run(&self.vol, map, self.vol.geo.file_block(at), 1)?;
        Ok(match extent.lost {
            true => self.lost(map.ino, at),
            false => Error::NoSpace("too few free blocks for the whole of an atomic write"),
        })
    }
}
