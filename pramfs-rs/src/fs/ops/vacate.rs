//! Moves what a part of a file has in one leaf of the region to blocks elsewhere: data blocks, and
//! the pointer blocks above them. A leaf that nothing is left in is one that
//! [`gather`](super::gather) can take.
//!
//! Invariant: as for a gather, no byte, size or time of the file changes. The copies are in blocks
//! that no pointer names, fenced before the record; one record changes the pointers and the sums,
//! and frees the old blocks, which are not reused before it is dead (rule 2). So a crash leaves the
//! old blocks or the new ones.
//!
//! The blocks go to leaves that are in use in part: a free leaf stays free. Until the leaf is
//! empty, or a few seconds have passed, no other allocation gets its blocks
//! (`pramfs_medium::volume`, `hold`). Which leaves are worth it is left to the caller.

use crate::fs::engine::change::Edit;
use crate::fs::inode::state::{InodeState, check_file};
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::map::{self, Table};
use pramfs_medium::media::inode::FL_IMMUTABLE;
use pramfs_medium::pmem::Vacated;
use pramfs_medium::types::{BlockRun, Bno, FileBlock, Ino, RegionOffset};
use pramfs_medium::volume::Plan;

/// What a part of a file has in a leaf.
#[derive(Debug, Default)]
struct Inside {
    /// Runs of data blocks, in the order of the file.
    data: Vec<(FileBlock, BlockRun)>,
    /// Pointer blocks, from the root down.
    tables: Vec<Table>,
}

impl Engine {
    /// Moves what a file has in the aligned [part](Self::gather_unit) of the region that begins at
    /// the byte `leaf`: of the part of the file that holds the byte at `offset`. The file's bytes,
    /// size and times stay. Writers and readers of the file wait for the copy.
    ///
    /// From the first call for a leaf on, whatever it moves, other allocations get the leaf's free
    /// blocks only if they find no others, until some seconds after the last call. A leaf that is
    /// free as a whole goes to the next [`gather`](Self::gather) meanwhile.
    ///
    /// ```
    /// # use pramfs::format::{FormatOptions, format};
    /// # use pramfs::pmem::RegionOptions;
    /// # use pramfs::{inode::{Credentials, Fs, Ino, Vacated}, MountOptions};
    /// let region = RegionOptions::new().memfd("example", 16 << 20)?;
    /// format(&region, &FormatOptions::default())?;
    /// let fs = Fs::open(region, MountOptions::default())?;
    /// let file = fs.create(&Credentials::ROOT, Ino::ROOT, b"file", 0o644)?.ino;
    /// fs.write(&Credentials::ROOT, file, 0, b"short")?;
    /// let place = fs.file_extents(file, 0, 1)?[0].region_offset.unwrap();
    /// let leaf = place - place % fs.gather_unit();
    /// let other = (leaf + fs.gather_unit()) % (16 << 20);
    /// assert_eq!(fs.vacate(file, 0, other)?, Vacated::Nothing);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if `leaf` is not aligned or lies past the end of the region;
    /// [`Error::IsDirectory`], [`Error::Invalid`] if it is not a regular file;
    /// [`Error::Corrupt`], and [`Error::WrongSum`] for data that are not what was written; those
    /// of the medium. Then nothing has changed.
    pub fn vacate(&self, ino: Ino, offset: u64, leaf: u64) -> Result<Vacated> {
        let leaf = self.leaf_at(leaf)?;
        let vacated = self.op(Need::Write, || {
            let geo = &self.vol.geo;
            let inode = self.iget_user(ino)?;
            let mut state = inode.state.write();
            check_file(inode.ino, &state)?;
            self.vol.hold_leaf(leaf.start.0 / leaf.len)?;
            if state.disk.flags & FL_IMMUTABLE != 0 {
                return Ok(Vacated::Immutable);
            }
            if !state.leases.is_empty() {
                return Ok(Vacated::Leased);
            }
            self.settle_size(&inode, &mut state)?;
            let inside = match self.inside(&state, offset, leaf)? {
                Ok(inside) => inside,
                Err(why) => return Ok(why),
            };
            // Only sums that hold tell whether the bytes are those that were written.
            let marked = state.disk.unsummed();
            let is_marked = |(index, run): &(FileBlock, BlockRun)| {
                *index < marked.end && marked.start < *index + run.len
            };
            if geo.data_sums && inside.data.iter().any(is_marked) {
                return Ok(Vacated::Unsummed);
            }
            // A damaged block gets no new sum.
            if geo.data_sums {
                for (index, run) in &inside.data {
                    for i in 0..run.len {
                        self.check_block(&state, *index + i)?;
                    }
                }
            }
            // The bits and sums of blocks that lie far apart take more than a slot.
            self.use_copies()?;
            let mut new = Edit::new(&inode, &mut state);
            let mut tx = self.begin(&inode);
            tx.allow_large();
            let mut map = new.before().map();
            for table in &inside.tables {
                let Some(run) = tx.alloc_beside(leaf.start, 1)? else {
                    return Ok(Vacated::NoSpace);
                };
                map::move_table(&mut tx, &mut map, *table, run.start)?;
            }
            for (index, run) in &inside.data {
                if !self.move_run(&mut tx, &mut map, *index, *run)? {
                    return Ok(Vacated::NoSpace);
                }
            }
            let bytes = |(index, run): &(FileBlock, BlockRun)| {
                geo.file_offset(*index)..geo.file_offset(*index + run.len)
            };
            let changed: Vec<_> = inside.data.iter().map(bytes).collect();
            self.put_all_sums(&mut tx, new.before(), &map, new.size, &changed)?;
            let first = inside.data.first().map(|(index, _)| *index);
            new.store_map(&tx, &map, first.unwrap_or(FileBlock::END));
            let staged = new.stage(&mut tx)?;
            tx.end_staging()?;
            self.commit(tx, [staged])?;
            Ok(Vacated::Moved)
        });
        match vacated {
            // For the record.
            Err(Error::NoSpace(_)) => Ok(Vacated::NoSpace),
            vacated => vacated,
        }
    }

    /// Gives the free blocks of leaves back to all allocations, once nobody has vacated a leaf for
    /// some seconds. The timer calls this.
    ///
    /// # Errors
    /// The file system has failed.
    pub(crate) fn end_idle_hold(&self) -> Result<()> {
        match self.vol.is_holding() {
            true => self.op(Need::Write, || {
                self.vol.end_idle_hold();
                Ok(())
            }),
            false => Ok(()),
        }
    }

    /// Returns the blocks of an aligned part of the region.
    fn leaf_at(&self, leaf: u64) -> Result<BlockRun> {
        let (geo, unit) = (&self.vol.geo, self.gather_unit());
        let is_within = leaf
            .checked_add(unit)
            .is_some_and(|end| end <= geo.bytes(geo.blocks()));
        if !leaf.is_multiple_of(unit) || !is_within {
            return Err(Error::Invalid(
                "no aligned part of the region begins there, or the region ends in it",
            ));
        }
        Ok(BlockRun {
            start: geo.block_at(RegionOffset(leaf)),
            len: geo.fan(),
        })
    }

    /// Returns what a part of a file has in a leaf, if it has anything there, and all of it may be
    /// moved.
    fn inside(
        &self,
        state: &InodeState,
        offset: u64,
        leaf: BlockRun,
    ) -> Result<std::result::Result<Inside, Vacated>> {
        let geo = &self.vol.geo;
        if offset >= state.disk.size {
            return Ok(Err(Vacated::Nothing));
        }
        let at = geo.file_block(offset);
        let first = FileBlock(at.0 - geo.slot_of(at));
        let end = geo
            .file_block_from(state.disk.size)
            .min(first.saturating_add(geo.fan()));
        let mut inside = Inside::default();
        let mut index = first;
        while index < end {
            let extent = map::run(&self.vol, &state.map(), index, end - index)?;
            if let Some(start) = extent.block {
                let from = start.0.max(leaf.start.0);
                let to = (start.0 + extent.count).min(leaf.end().0);
                if from < to && extent.unwritten {
                    return Ok(Err(Vacated::Unwritten));
                }
                if from < to && extent.table.is_none() && state.disk.height > 0 {
                    return Ok(Err(Vacated::Whole));
                }
                if from < to {
                    let run = BlockRun {
                        start: Bno(from),
                        len: to - from,
                    };
                    inside.data.push((index + (from - start.0), run));
                }
            }
            index += extent.count;
        }
        let tables = map::tables_above(&self.vol, &state.map(), at)?;
        let is_inside = |table: &Table| leaf.contains(table.block);
        inside.tables.extend(tables.into_iter().filter(is_inside));
        if inside.data.is_empty() && inside.tables.is_empty() {
            return Ok(Err(Vacated::Nothing));
        }
        // A new mapping waits for the lock of the file.
        if inside.data.iter().any(|(_, run)| self.vol.pins.has(*run)) {
            return Ok(Err(Vacated::Mapped));
        }
        Ok(Ok(inside))
    }

    /// Moves a run of data blocks. False if there is no place for all of it.
    fn move_run(
        &self,
        tx: &mut Plan<'_>,
        map: &mut map::MapRef,
        index: FileBlock,
        run: BlockRun,
    ) -> Result<bool> {
        let (mut done, mut near) = (0, run.start);
        while done < run.len {
            let Some(new) = tx.alloc_beside(near, (run.len - done) as u32)? else {
                return Ok(false);
            };
            let old = BlockRun {
                start: run.start.after(done),
                len: new.len,
            };
            self.copy_blocks(tx, &[old], new.start)?;
            map::replace(tx, map, index + done, old, new.start)?;
            (done, near) = (done + new.len, new.end());
        }
        Ok(true)
    }
}
