//! [`Pinned`]: the blocks of a mapped range, kept from being reused.
//!
//! Invariant: while a pin lives, the allocator gives none of its blocks out, even if the
//! file is truncated or removed.

use std::ops::Range;
use std::sync::Arc;

use crate::fs::{By, Engine, Handle, InodeState, Need};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::pmem::{StitchSource, StitchedMap, Stitcher};
use pramfs_medium::types::{Access, BlockRun, FileExtent, Ino, RegionOffset};

fn past_end() -> Error {
    Error::Invalid("the range extends past the end of the file")
}

const SMALL_PIECES: &str = "this region (devdax, hugetlbfs) is mapped in whole huge pages, and the \
     range has smaller pieces that are not contiguous. A file that is allocated at once \
     (fallocate) in multiples of 2 MiB can be mapped; read_at reads any range";

pub(super) fn is_written(e: &FileExtent) -> bool {
    e.region_offset.is_some() && !e.unwritten
}

/// Returns whether the view shows a part of the file at its current blocks.
pub(super) fn is_shown(view: &[FileExtent], part: &FileExtent) -> bool {
    let end = part.file_offset + part.len;
    view.iter()
        .filter(|e| e.file_offset < end && e.file_offset + e.len > part.file_offset)
        .all(|e| match (e.region_offset, part.region_offset) {
            (Some(shown), Some(now)) if is_written(e) && is_written(part) => {
                shown.wrapping_sub(e.file_offset) == now.wrapping_sub(part.file_offset)
            }
            _ => !is_written(e) && !is_written(part),
        })
}

/// Widens a range to multiples of `unit`.
fn widened(range: &Range<u64>, unit: u64) -> Result<(u64, u64)> {
    let end = range.end.checked_next_multiple_of(unit);
    Ok((
        range.start / unit * unit,
        end.ok_or(Error::TooLarge(range.end))?,
    ))
}

/// Returns whether an extent can be mapped in pieces of `unit` bytes.
fn is_aligned(e: &FileExtent, unit: u64) -> bool {
    let places = [Some(e.file_offset), Some(e.len), e.region_offset];
    places.into_iter().flatten().all(|p| p % unit == 0)
}

/// Keeps a file known as mapped for writing, as long as the view exists: its stores need no
/// record, so the sums of its blocks do not hold, and a save of the live file system does not
/// see them.
#[derive(Debug)]
struct StoreView {
    engine: Arc<Engine>,
    ino: Ino,
}

impl StoreView {
    /// Notes the view, and marks its range durably if the file system has sums.
    fn begin(engine: &Arc<Engine>, ino: Ino, range: Range<u64>) -> Result<StoreView> {
        if engine.vol.geo.data_sums {
            engine.begin_stores(ino, range)?;
        }
        engine.mapped.begin(ino);
        let engine = Arc::clone(engine);
        Ok(StoreView { engine, ino })
    }
}

impl Drop for StoreView {
    fn drop(&mut self) {
        if self.engine.open.is_inherited() {
            return;
        }
        self.engine.mapped.end(self.ino);
        if self.engine.vol.geo.data_sums {
            self.engine.end_stores(self.ino);
        }
    }
}

/// The extents of a range, with a reference to the inode and a pin on its blocks, which
/// keep them.
#[derive(Debug)]
pub(super) struct Pinned {
    pub engine: Handle,
    pub ino: Ino,
    pin: u64,
    pub start: u64,
    pub end: u64,
    pub extents: Vec<FileExtent>,
    /// For stores: the sums of the blocks do not hold.
    view: Option<StoreView>,
}

impl Pinned {
    /// Pins a range of a file, widened to multiples of `unit`. For stores, first fills its
    /// holes. If `unit` is larger than a block, each extent must be a multiple of it.
    pub(super) fn written(
        engine: &Arc<Engine>,
        ino: Ino,
        range: &Range<u64>,
        access: Access,
        unit: u64,
    ) -> Result<Pinned> {
        let block = engine.vol.geo.block_size;
        if access == Access::Write && range.end > engine.getattr(ino)?.size {
            // Before a block is allocated for it.
            return Err(past_end());
        }
        let mut view = match access {
            Access::Write => {
                let (start, end) = widened(range, unit)?;
                Some(StoreView::begin(engine, ino, start..end)?)
            }
            Access::Read => None,
        };
        loop {
            if access == Access::Write {
                let start = range.start / block * block;
                engine.fill(ino, start, range.end - start)?;
            }
            let mut pinned = Pinned::new(engine, ino, range, access, unit)?;
            let asked =
                |e: &&FileExtent| e.file_offset < range.end && e.file_offset + e.len > range.start;
            if access == Access::Write && !pinned.extents.iter().filter(asked).all(is_written) {
                // Punched since it was filled.
                continue;
            }
            if unit > block && !pinned.extents.iter().all(|e| is_aligned(e, unit)) {
                return Err(Error::NotSupported(SMALL_PIECES));
            }
            pinned.view = view.take();
            return Ok(pinned);
        }
    }

    /// Pins a range of a file, widened to multiples of `unit`.
    fn new(
        engine: &Arc<Engine>,
        ino: Ino,
        range: &Range<u64>,
        access: Access,
        unit: u64,
    ) -> Result<Pinned> {
        let (start, end) = widened(range, unit)?;
        // The reference outlives the extents. The pin is taken under the same lock under
        // which the extents were read.
        engine.refs.add(ino, 1, By::Guard);
        match engine.pinned_extents(ino, access, start, end, range.end) {
            Ok((pin, extents)) => Ok(Pinned {
                engine: Handle::new(engine),
                ino,
                pin,
                start,
                end,
                extents,
                view: None,
            }),
            Err(e) => {
                engine.release_ref(ino, 1, By::Guard);
                Err(e)
            }
        }
    }

    /// Maps the extents, with `reserve` bytes of addresses in total.
    pub(super) fn stitch(&self, access: Access, reserve: u64) -> Result<StitchedMap> {
        let source = StitchSource::of_region(&self.engine.vol.region)?;
        let first = self.extents.iter().find_map(|e| {
            e.region_offset
                .map(|r| r.wrapping_sub(e.file_offset - self.start))
        });
        let mut stitcher = Stitcher::reserving(
            self.end - self.start,
            reserve,
            first.unwrap_or(0),
            source.unit(),
        )?;
        for e in self.extents.iter().filter(|e| is_written(e)) {
            stitcher.stitch(
                &source,
                e.file_offset - self.start,
                e.region_offset.unwrap_or(0),
                e.len,
                access == Access::Write,
            )?;
        }
        Ok(stitcher.finish()?)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // As for an open file.
        if self.engine.open.is_inherited() {
            return;
        }
        // A block is reused only after the record that freed it is dead.
        self.engine.vol.unpin(self.pin);
        self.engine.release_ref(self.ino, 1, By::Guard);
    }
}

impl Engine {
    /// Pins a range of whole blocks. Returns the pin and the extents of the range.
    fn pinned_extents(
        &self,
        ino: Ino,
        access: Access,
        start: u64,
        end: u64,
        needed: u64,
    ) -> Result<(u64, Vec<FileExtent>)> {
        let mut taken = None;
        let marks = access == Access::Write && self.vol.geo.data_sums;
        let need = match marks {
            true => Need::Write,
            false => Need::Read,
        };
        let pinned = self.op(need, || {
            let inode = self.iget_user(ino)?;
            // A reader of lent bytes holds the lock shared, so that the bytes do not change
            // meanwhile (`with_contiguous`).
            let (mut alone, mut along) = (None, None);
            let state: &InodeState = match access {
                Access::Write => {
                    let state = alone.insert(inode.state.write());
                    crate::fs::check_file(inode.ino, state)?;
                    if marks && needed <= state.disk.size {
                        // It has been cut and has grown again since it was marked.
                        self.mark_range(&inode, state, start..end)?;
                    }
                    state
                }
                Access::Read => along.insert(inode.state.read()),
            };
            crate::fs::check_file(inode.ino, state)?;
            if needed > state.disk.size {
                return Err(past_end());
            }
            if access == Access::Write {
                // Its stores need no record.
                self.settle_copies(state)?;
            }
            let extents = self.extents_between(state, start, end)?;
            // A view cannot report that bytes were lost.
            if let Some(e) = extents.iter().find(|e| e.lost && e.file_offset < needed) {
                return Err(Error::Lost {
                    ino,
                    offset: e.file_offset,
                });
            }
            let geo = &self.vol.geo;
            let runs: Vec<BlockRun> = extents
                .iter()
                .filter_map(|e| {
                    e.region_offset.map(|at| BlockRun {
                        start: geo.block_at(RegionOffset(at)),
                        len: geo.whole_blocks(e.len),
                    })
                })
                .collect();
            let pin = self.vol.pins.pin(&runs);
            taken = Some(pin);
            Ok((pin, extents))
        });
        // A fault of the medium is only detected at the end of the operation.
        if let Some(pin) = taken.filter(|_| pinned.is_err()) {
            self.vol.unpin(pin);
        }
        pinned
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MountOptions;
    use crate::api::OpenOptions;
    use crate::credentials::Credentials;
    use crate::fs::Fs;
    use pramfs_medium::format::{FormatOptions, format};
    use pramfs_medium::pmem::{HeapBackend, Region};
    use pramfs_medium::types::FileBlock;

    const BLOCK: u64 = 4096;

    /// Between the mark and the pin, another thread may cut the mark with the file.
    #[test]
    fn range_cut_after_its_mark_is_marked_again_when_pinned() {
        let region = Region::new("test", HeapBackend::boxed(8 << 20));
        let options = FormatOptions {
            features: vec![("data_checksums".to_owned(), true)],
            ..FormatOptions::default()
        };
        format(&region, &options).unwrap();
        let fs = Fs::open(region, MountOptions::default()).unwrap();
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true);
        let file = options.open(&fs, "/file").unwrap();
        file.write_all_at(&vec![5; 8 * BLOCK as usize], 0).unwrap();
        let ino = fs.lookup(Ino::ROOT, b"file").unwrap().ino;
        let engine = fs.engine();
        let marked = || engine.iget(ino).unwrap().state.read().disk.unsummed();
        let range = 5 * BLOCK..6 * BLOCK;
        let view = StoreView::begin(engine, ino, range.clone()).unwrap();
        assert_eq!(marked(), FileBlock(5)..FileBlock(6));
        file.set_len(BLOCK).unwrap();
        assert!(marked().is_empty());
        file.set_len(8 * BLOCK).unwrap();
        fs.write(&Credentials::ROOT, ino, 5 * BLOCK, &[6; BLOCK as usize])
            .unwrap();
        let pinned = Pinned::new(engine, ino, &range, Access::Write, BLOCK).unwrap();
        assert_eq!(marked(), FileBlock(5)..FileBlock(6));
        drop((pinned, view));
        assert!(fs.sum_marked_files() && marked().is_empty());
    }
}
