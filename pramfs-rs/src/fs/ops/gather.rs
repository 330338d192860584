//! Moves a scattered part of a file into blocks that follow each other: a leaf of 2 MiB where the
//! file system has them.
//!
//! Invariant: no byte of the file changes, and neither does a time. The copy is in blocks that no
//! pointer names, fenced before the record; one record changes the map and frees the old blocks,
//! which are not reused before it is dead (rule 2). So a crash leaves the old blocks or the new
//! ones.
//!
//! A file that others reach without the engine is left as it is: their stores would go to the old
//! blocks. Which files are worth it is left to the caller.

use crate::fs::engine::change::Edit;
use crate::fs::engine::room;
use crate::fs::inode::state::{InodeState, check_file};
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::map;
use pramfs_medium::media::inode::FL_IMMUTABLE;
use pramfs_medium::pmem::Gathered;
use pramfs_medium::types::{BlockRun, Bno, FileBlock, Ino};
use pramfs_medium::volume::Plan;

impl Engine {
    /// Returns the number of bytes of a part for [`gather`](Self::gather): 2 MiB with blocks of
    /// 4 KiB.
    pub fn gather_unit(&self) -> u64 {
        self.vol.geo.bytes(self.vol.geo.fan())
    }

    /// Moves the part of a file that holds the byte at `offset` into blocks that follow each
    /// other. Its bytes, size and times stay. The last part of a file is moved only in a file
    /// system without leaves of 2 MiB.
    ///
    /// Writers and readers of the file wait for the copy of one part.
    ///
    /// ```
    /// # use pramfs::format::{FormatOptions, format};
    /// # use pramfs::pmem::RegionOptions;
    /// # use pramfs::{inode::{Credentials, Fs, Gathered, Ino}, MountOptions};
    /// let region = RegionOptions::new().memfd("example", 16 << 20)?;
    /// format(&region, &FormatOptions::default())?;
    /// let fs = Fs::open(region, MountOptions::default())?;
    /// let file = fs.create(&Credentials::ROOT, Ino::ROOT, b"file", 0o644)?.ino;
    /// fs.write(&Credentials::ROOT, file, 0, &vec![1; 4 << 20])?;
    /// // A write that is large enough gets its leaves at once.
    /// assert_eq!(fs.gather(file, 0)?, Gathered::Whole);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::IsDirectory`], [`Error::Invalid`] if it is not a regular file;
    /// [`Error::Corrupt`], and [`Error::WrongSum`] for data that are not what was written; those
    /// of the medium. Then nothing has changed.
    pub fn gather(&self, ino: Ino, offset: u64) -> Result<Gathered> {
        let gathered = self.op(Need::Write, || {
            let geo = &self.vol.geo;
            let inode = self.iget_user(ino)?;
            let mut state = inode.state.write();
            check_file(inode.ino, &state)?;
            if state.disk.flags & FL_IMMUTABLE != 0 {
                return Ok(Gathered::Immutable);
            }
            if !state.leases.is_empty() {
                return Ok(Gathered::Leased);
            }
            self.settle_size(&inode, &mut state)?;
            let slot = geo.slot_of(geo.file_block(offset));
            let first = FileBlock(geo.file_block(offset).0 - slot);
            let end = match geo.huge_leaves {
                true => geo.file_block(state.disk.size),
                false => geo.file_block_from(state.disk.size),
            };
            let end = end.min(first + geo.fan());
            if offset >= state.disk.size || geo.huge_leaves && end < first + geo.fan() {
                return Ok(Gathered::Holes);
            }
            // Only sums that hold tell whether the bytes are those that were written.
            let marked = state.disk.unsummed();
            if geo.data_sums && first < marked.end && marked.start < end {
                return Ok(Gathered::Unsummed);
            }
            let old = match self.scattered(&state, first, end)? {
                Ok(old) => old,
                Err(why) => return Ok(why),
            };
            // A damaged block gets no new sum.
            if geo.data_sums {
                for i in 0..end - first {
                    self.check_block(&state, first + i)?;
                }
            }
            // The bits of blocks that lie far apart take more than a slot.
            self.use_copies()?;
            let mut new = Edit::new(&inode, &mut state);
            let mut tx = self.begin(&inode);
            tx.allow_large();
            let len = end - first;
            let Some(run) = self.run_for(&mut tx, len)? else {
                return Ok(Gathered::NoSpace);
            };
            self.copy_blocks(&mut tx, &old, run.start)?;
            let mut map = new.before().map();
            if map::remove(&mut tx, &mut map, first, end)? != end {
                return Err(Error::NotSupported(
                    "a part that does not fit a journal record",
                ));
            }
            match geo.huge_leaves {
                true => map::insert_huge(&mut tx, &mut map, first, run, false)?,
                false => map::insert(&mut tx, &mut map, first, run, false)?,
            }
            let bytes = geo.file_offset(first)..geo.file_offset(end);
            self.put_sums(&mut tx, new.before(), &map, new.size, bytes)?;
            new.store_map(&tx, &map, first);
            let staged = new.stage(&mut tx)?;
            tx.end_staging()?;
            self.commit(tx, [staged])?;
            Ok(Gathered::Moved)
        });
        match gathered {
            // For pointers, or for the record.
            Err(Error::NoSpace(_)) => Ok(Gathered::NoSpace),
            gathered => gathered,
        }
    }

    /// Returns the runs of a part in the order of the file, if it is worth moving, and may be
    /// moved.
    fn scattered(
        &self,
        state: &InodeState,
        first: FileBlock,
        end: FileBlock,
    ) -> Result<std::result::Result<Vec<BlockRun>, Gathered>> {
        let mut runs: Vec<BlockRun> = Vec::new();
        let mut index = first;
        while index < end {
            let extent = map::run(&self.vol, &state.map(), index, end - index)?;
            let Some(start) = extent.block.filter(|_| !extent.unwritten && !extent.lost) else {
                return Ok(Err(Gathered::Holes));
            };
            let len = extent.count;
            match runs.last_mut() {
                Some(last) if last.end() == start => last.len += len,
                _ => runs.push(BlockRun { start, len }),
            }
            index += len;
        }
        let is_whole = match self.vol.geo.huge_leaves {
            true => map::find(&self.vol, &state.map(), first)?.count > 1,
            false => runs.len() == 1,
        };
        if is_whole {
            return Ok(Err(Gathered::Whole));
        }
        // A new mapping waits for the lock of the file.
        if runs.iter().any(|run| self.vol.pins.has(*run)) {
            return Ok(Err(Gathered::Mapped));
        }
        Ok(Ok(runs))
    }

    /// Takes a free run for a part, if there is one: a leaf that was vacated before others.
    fn run_for(&self, tx: &mut Plan<'_>, len: u64) -> Result<Option<BlockRun>> {
        let geo = &self.vol.geo;
        let taken = match geo.huge_leaves {
            true => match tx.alloc_held() {
                Ok(None) => tx.alloc_aligned(Bno(0), len as u32),
                held => held,
            },
            false => tx.alloc_blocks(None, len as u32, true).map(Some),
        };
        match taken.map_err(room::request_all_room(geo.bytes(len))) {
            Err(Error::NoSpace(_)) => Ok(None),
            taken => taken,
        }
    }

    /// Copies runs of blocks to consecutive new blocks.
    pub(super) fn copy_blocks(&self, tx: &mut Plan<'_>, from: &[BlockRun], to: Bno) -> Result<()> {
        const PIECE: u64 = 64 << 10;
        let geo = &self.vol.geo;
        let mut bytes = vec![0; PIECE as usize];
        let mut at = geo.offset(to);
        for run in from {
            let (mut from, mut left) = (geo.offset(run.start), geo.bytes(run.len));
            while left > 0 {
                let n = left.min(PIECE);
                let part = &mut bytes[..n as usize];
                self.vol.medium().read(from, part)?;
                tx.write_new(at, part)?;
                (from, at, left) = (from + n, at + n, left - n);
            }
        }
        Ok(())
    }
}
