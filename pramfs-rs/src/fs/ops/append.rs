//! Repeated appends of whole blocks to an open file.
//!
//! A growing file usually continues after its last block and in the same pointer block.
//! [`AppendCursor`] caches both, which saves the walk of the tree and the search for free
//! blocks. The remaining steps run in the cheapest order: first those that need a lock,
//! then the stores of the data, then the rest while the data are being written back.
//!
//! All other writes are in `write.rs`, which takes the same steps one by one.

use std::cell::Cell;

use crate::credentials::Credentials;
use crate::fs::Engine;
use crate::fs::cache::append_cursor::{AppendCursor, MAX_APPEND_BLOCKS};
use crate::fs::engine::change::Edit;
use crate::fs::engine::room;
use crate::fs::inode::Inode;
use crate::fs::inode::disk::{restore_times, touch_mtime};
use crate::fs::inode::state::{InodeState, check_file};
use crate::fs::policy::chattr;
use pramfs_medium::error::{Error, Result};
use pramfs_medium::map;
use pramfs_medium::types::{Bno, FileBlock, Ino};

impl Engine {
    /// Writes at the end of the file and returns that offset. Writes all bytes, or
    /// none.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn append(&self, caller: &Credentials<'_>, ino: Ino, from: &[u8]) -> Result<u64> {
        let at = Cell::new(None);
        let targets = || at.get().map(|at| (at, from.len() as u64));
        self.op_past_bad_blocks_of(ino, targets, || {
            at.set(None);
            self.append_inode(&*self.iget_user(ino)?, None, from, caller, &at)
        })
    }

    /// Writes one part of an append at the offset that the caller assigned. The
    /// caller knows the end of the file and excludes other writers. Parts may arrive
    /// in any order; an early part leaves zeros for the earlier offsets. The whole
    /// part is written, or the file does not grow by it.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn append_chunk(
        &self,
        caller: &Credentials<'_>,
        ino: Ino,
        offset: u64,
        from: &[u8],
    ) -> Result<()> {
        self.op_past_bad_blocks(ino, offset, from.len(), || {
            let (inode, at) = (self.iget_user(ino)?, Cell::new(None));
            self.append_inode(&inode, Some(offset), from, caller, &at)
                .map(drop)
        })
    }

    /// Appends at `offset`, or at the end of the file. Tells where in `at`, also if it fails then:
    /// what has failed elsewhere in the file is not to be replaced.
    fn append_inode(
        &self,
        inode: &Inode,
        offset: Option<u64>,
        from: &[u8],
        caller: &Credentials<'_>,
        at: &Cell<Option<u64>>,
    ) -> Result<u64> {
        let mut state = self.lock_for_write(inode, caller, chattr::check_append)?;
        self.close_window(inode, &mut state)?;
        let size = state.disk.size;
        let offset = offset.unwrap_or(size);
        at.set(Some(offset));
        if offset < size {
            // An explicit offset before the end is an overwrite, which an append-only
            // file refuses.
            chattr::check_write(&state.disk)?;
        }
        let end = offset.saturating_add(from.len() as u64);
        if end > self.vol.geo.max_file_size() {
            return Err(Error::TooLarge(end));
        }
        self.check_host_holds(&state.map(), offset, end)?;
        let before = state.disk;
        let holes = self.holes_beside_lease(&state, size, end)?;
        let n = self.write_locked(inode, &mut state, offset, from);
        let done = state.disk.size.saturating_sub(offset);
        if !matches!(n, Ok(n) if n == from.len()) && state.disk.size != size {
            self.undo(|| {
                self.resize(inode, &mut state, size, &|_, new| {
                    if offset >= size {
                        restore_times(new, &before);
                    }
                    Ok(())
                })
            })?;
            // A lease keeps all blocks past the end. No holder has seen the new ones: the
            // inode is still locked.
            for (first, end) in holes {
                self.undo(|| self.remove_blocks(inode, &mut state, first, end, Some(&before)))?;
            }
        }
        // The rest, or nothing.
        let n = n.map_err(room::request_all_room(
            (from.len() as u64).saturating_sub(done),
        ))?;
        self.sync_if_flagged(&state)?;
        match n {
            n if n == from.len() => Ok(offset),
            _ => Err(Error::NoSpace("too few free blocks for all of the append")),
        }
    }

    /// Returns the holes of a leased file past its end, up to `end`, so that a failed append
    /// frees the blocks that it puts there, and no others. Without a lease, none.
    fn holes_beside_lease(
        &self,
        state: &InodeState,
        size: u64,
        end: u64,
    ) -> Result<Vec<(FileBlock, FileBlock)>> {
        let (geo, mut holes) = (&self.vol.geo, Vec::new());
        if self.keeps_blocks(state) {
            let (mut at, last) = (geo.file_block_from(size), geo.file_block_from(end));
            while at < last {
                let extent = map::run(&self.vol, &state.map(), at, last - at)?;
                let next = at + extent.count;
                if extent.block.is_none() {
                    holes.push((at, next));
                }
                at = next;
            }
        }
        Ok(holes)
    }

    /// As [`append`](Self::append), for a caller that holds the inode.
    #[inline]
    pub(crate) fn append_to_file(
        &self,
        inode: &Inode,
        append_cursor: &AppendCursor,
        from: &[u8],
    ) -> Result<u64> {
        let place = Cell::new(None);
        let targets = || place.get().map(|at| (at, from.len() as u64));
        self.op_past_bad_blocks_of(inode.ino, targets, || {
            place.set(None);
            let part = self.vol.geo.block_size - 1;
            let whole = from.len() as u64 & part == 0;
            if whole
                && append_cursor.is_set()
                && let Some(at) = self.append_at_cursor(inode, append_cursor, from)?
            {
                return Ok(at);
            }
            let at = self.append_inode(inode, None, from, &Credentials::ROOT, &place)?;
            if whole && at & part == 0 {
                self.fill_append_cursor(inode, append_cursor);
            }
            Ok(at)
        })
    }

    /// Appends at the cursor. Returns `None`, and changes nothing, if the cursor is not
    /// valid or the append needs more than blocks after the last one.
    fn append_at_cursor(
        &self,
        inode: &Inode,
        append_cursor: &AppendCursor,
        from: &[u8],
    ) -> Result<Option<u64>> {
        let geo = &self.vol.geo;
        let len = from.len() as u64;
        let blocks = geo.whole_blocks(len);
        let state = &mut *inode.state.write();
        let Some((table, next)) = append_cursor.get(state.records) else {
            return Ok(None);
        };
        let size = state.disk.size;
        let index = geo.file_block(size);
        let slot = geo.slot_of(index);
        let fits =
            (1..=MAX_APPEND_BLOCKS).contains(&blocks) && slot != 0 && slot + blocks <= geo.fan();
        let whole = geo.within_block(size | len) == 0;
        if !fits || !whole || !is_plain(state) || size + len > geo.max_file_size() {
            return Ok(None);
        }
        check_file(inode.ino, state)?;
        // The slots are empty, unless blocks were allocated past the end of the file.
        let slots = geo.offset(table).word(slot);
        for i in 0..blocks {
            if self.vol.medium().load_u64(slots.word(i))? != 0 {
                return Ok(None);
            }
        }
        let mut map = state.map();
        let end = {
            let mut new = Edit::new(inode, state);
            let mut tx = self.begin(inode);
            let Ok(run) = tx.alloc_blocks(Some(Bno(next)), blocks as u32, false) else {
                return Ok(None);
            };
            if run.len != blocks {
                return Ok(None);
            }
            let mut record = tx.lock_lane(&[&inode.last_record]);
            record.write_new(geo.offset(run.start), from)?;
            map::insert_into(&mut record, &mut map, table, index, run)?;
            let (before, new_size) = (new.before(), size + len);
            self.put_sums(&mut record, before, &map, new_size, size..new_size)?;
            map.store(&mut new);
            new.size = size + len;
            touch_mtime(&mut new, self.now());
            let new = new.stage(&mut record)?;
            self.commit(record, [new])?;
            run.end().0
        };
        append_cursor.put(state.records, table, end);
        Ok(Some(size))
    }

    /// Sets the cursor after an append.
    fn fill_append_cursor(&self, inode: &Inode, append_cursor: &AppendCursor) {
        let geo = &self.vol.geo;
        let state = inode.state.write();
        if !is_plain(&state) || state.disk.size == 0 || geo.within_block(state.disk.size) != 0 {
            return;
        }
        let last = geo.file_block(state.disk.size - 1);
        // The next append reports an error.
        if let Ok(e) = map::run(&self.vol, &state.map(), last, 1)
            && let (Some(table), Some(block)) = (e.table, e.block)
        {
            append_cursor.put(state.records, table, block.0 + 1);
        }
    }
}

/// Whether appends to a file follow no rule but its end: it has no flags for writes, no
/// unfinished truncation, no append window, and no blocks that are mapped past its end.
fn is_plain(state: &InodeState) -> bool {
    state.disk.flags & chattr::WRITE_FLAGS == 0
        && state.orphan_slot.is_none()
        && state.leases.window().is_none()
        && !state.leases.are_mapped_ahead()
}

#[cfg(test)]
mod tests {
    use crate::api::{File, OpenOptions};
    use crate::{MountOptions, inode::Fs};
    use pramfs_medium::format::{FormatOptions, format};
    use pramfs_medium::pmem::{HeapBackend, Region};
    use pramfs_medium::types::Fallocate;

    const BLOCK: u64 = 4096;

    fn small() -> Fs {
        let region = Region::new("test", HeapBackend::boxed(16 << 20));
        format(&region, &FormatOptions::default()).unwrap();
        Fs::open(region, MountOptions::default()).unwrap()
    }

    fn open(fs: &Fs, name: &str) -> File {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .open(fs, name)
            .unwrap()
    }

    /// Whether the next append of whole blocks uses the cursor.
    fn knows(file: &File) -> bool {
        file.append_cursor
            .get(file.inode.state.read().records)
            .is_some()
    }

    struct Grown {
        file: File,
        expect: Vec<u8>,
    }

    impl Grown {
        fn append(&mut self, len: u64) {
            let bytes = vec![self.expect.len() as u8 | 1; len as usize];
            assert_eq!(self.file.append(&bytes).unwrap(), self.expect.len() as u64);
            self.expect.extend(bytes);
            self.check();
        }

        fn check(&self) {
            let mut found = vec![0xee; self.expect.len() + 1];
            let n = self.file.read_at(&mut found, 0).unwrap();
            assert!(found[..n] == self.expect[..], "{n} bytes");
        }
    }

    /// Alternates appends with every other change of the place where the file grows.
    #[test]
    fn append_alternates_with_other_size_changes() {
        let fs = small();
        let (file, other) = (open(&fs, "/file"), open(&fs, "/other"));
        let same = open(&fs, "/file");
        let mut f = Grown {
            file,
            expect: Vec::new(),
        };
        // Across pointer blocks, interleaved with blocks of another file.
        for i in 0..1100 {
            f.append(BLOCK * (1 + i % 17 / 16));
            assert!(knows(&f.file) || f.expect.len() < 3 * 4096);
            if i % 3 == 0 {
                other.append(&[9; 4096]).unwrap();
            }
        }
        // More than one record holds, and less than a block.
        for len in [40 * BLOCK, 17 * BLOCK, 100, BLOCK - 100, BLOCK, 1, BLOCK] {
            f.append(len);
        }
        f.append(2 * BLOCK - f.expect.len() as u64 % BLOCK);
        f.append(BLOCK);
        assert!(knows(&f.file));
        // Another handle, whose cursor is not valid.
        let at = same.append(&[7; 4096]).unwrap();
        assert_eq!(at, f.expect.len() as u64);
        f.expect.extend([7; 4096]);
        assert!(!knows(&f.file));
        f.append(BLOCK);
        // Blocks past the end of the file.
        let end = f.expect.len() as u64;
        let ahead = Fallocate::Allocate { keep_size: true };
        f.file.fallocate(ahead, end, 5 * BLOCK).unwrap();
        for _ in 0..7 {
            f.append(BLOCK);
        }
        // Shorter, and longer.
        f.expect.truncate(3 * 4096);
        f.file.set_len(3 * BLOCK).unwrap();
        other.append(&[9; 4096]).unwrap();
        f.append(BLOCK);
        f.append(BLOCK);
        f.expect.resize(700 * 4096, 0);
        f.file.set_len(700 * BLOCK).unwrap();
        f.append(BLOCK);
        f.append(BLOCK);
        // A hole before the end, and an overwrite, which needs no record.
        f.append(BLOCK);
        let end = f.expect.len();
        f.file
            .fallocate(Fallocate::PunchHole, end as u64 - BLOCK, BLOCK)
            .unwrap();
        f.expect[end - 4096..].fill(0);
        f.append(BLOCK);
        f.append(BLOCK);
        f.file.write_at(&[1, 2, 3], 5).unwrap();
        f.expect[5..8].copy_from_slice(&[1, 2, 3]);
        assert!(knows(&f.file));
        f.append(BLOCK);
        drop((f, other, same));
        let options = pramfs_fsck::CheckOptions::default();
        let check = |region: &Region| pramfs_fsck::check(region, &options);
        let (_, report) = fs.close_with(check).unwrap();
        assert!(report.is_clean(), "{report:?}");
    }
}
