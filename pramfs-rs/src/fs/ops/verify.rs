//! Comparing file data with their checksums, for checks of a whole file system.

use std::ops::Range;

use crate::fs::inode::marks::bytes_of;
use crate::fs::inode::state::check_file;
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::map;
use pramfs_medium::types::Ino;

/// Bytes that are read at once, with the file locked.
const PIECE: u64 = 1 << 20;

/// What [`Engine::verify_data`] found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VerifiedData {
    /// Bytes that were read and compared.
    pub compared: u64,
    /// Whole blocks of the file whose checksum does not match, as byte ranges. They end at the
    /// end of the file.
    pub wrong: Vec<Range<u64>>,
    /// Some of the blocks are marked: they are, or were, mapped for writing, and were not
    /// compared.
    pub is_marked: bool,
    /// The marked blocks, as byte ranges, which end at the end of the file.
    pub unsummed: Vec<Range<u64>>,
}

impl Engine {
    /// Compares the written blocks of a file that hold a byte range with their checksums. In a
    /// file system without `data_checksums`, compares nothing. Writers of the file wait for a
    /// piece of 1 MiB at most.
    ///
    /// A wrong checksum is no error here, and is not logged.
    ///
    /// # Errors
    /// [`Error::IsDirectory`], [`Error::Invalid`] if it is not a regular file;
    /// [`Error::Corrupt`]; those of the medium.
    pub fn verify_data(&self, ino: Ino, range: Range<u64>) -> Result<VerifiedData> {
        let mut found = VerifiedData::default();
        if !self.vol.geo.data_sums {
            return Ok(found);
        }
        let geo = &self.vol.geo;
        let range = range.start..range.end.min(geo.max_file_size());
        let mut at = range.start - geo.within_block(range.start);
        let mut bytes = Vec::new();
        while at < range.end {
            let next = self.op(Need::Read, || {
                self.verify_piece(ino, at..range.end, &mut bytes, &mut found)
            })?;
            match next {
                Some(next) => at = next,
                None => break,
            }
        }
        Ok(found)
    }

    /// Compares the first piece of a range. Returns where the next begins.
    fn verify_piece(
        &self,
        ino: Ino,
        range: Range<u64>,
        bytes: &mut Vec<u8>,
        found: &mut VerifiedData,
    ) -> Result<Option<u64>> {
        let geo = &self.vol.geo;
        let inode = self.iget_user(ino)?;
        let state = inode.state.read();
        check_file(ino, &state)?;
        let size = state.disk.size;
        let last = geo.file_offset(geo.file_block_from(range.end)).min(size);
        if range.start >= last {
            return Ok(None);
        }
        let marked = bytes_of(geo, &state.disk.unsummed());
        if marked.contains(&range.start) {
            let end = marked.end.min(last);
            found.is_marked = true;
            add(&mut found.unsummed, range.start..end);
            return Ok(Some(end));
        }
        let last = match range.start < marked.start {
            true => last.min(marked.start),
            false => last,
        };
        let index = geo.file_block(range.start);
        let extent = map::run(
            &self.vol,
            &state.map(),
            index,
            geo.blocks_of(range.start, last),
        )?;
        let end = last.min(geo.file_offset(index + extent.count));
        let Some(block) = extent.block.filter(|_| !extent.unwritten) else {
            return Ok(Some(end));
        };
        let end = end.min(range.start + PIECE);
        bytes.resize((end - range.start) as usize, 0);
        self.vol.medium().read(geo.offset(block), bytes)?;
        found.compared += end - range.start;
        let mut at = range.start;
        while at < end {
            let done = (at - range.start) as usize;
            let block = block.after(geo.file_block(at) - index);
            let part = &mut bytes[done..];
            at = match self.compare_run(ino, size, block, at, part) {
                Ok(right) => at + right as u64,
                Err(Error::WrongSum { .. }) => {
                    let stop = (at + geo.block_size).min(end);
                    add(&mut found.wrong, at..stop);
                    stop
                }
                Err(e) => return Err(e),
            };
        }
        Ok(Some(end))
    }
}

/// Adds a range after the others.
fn add(to: &mut Vec<Range<u64>>, range: Range<u64>) {
    match to.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => to.push(range),
    }
}
