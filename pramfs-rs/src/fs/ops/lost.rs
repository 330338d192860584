//! Lost ranges: ranges of a file that a repair could not recover. They read as EIO
//! until they are written. This module lists them.
//!
//! The file map has a mark in place of each lost pointer, and the inode has a flag.
//! The map is walked only if the flag is set. The list is a read-only extended
//! attribute.

use std::ops::{ControlFlow, Range};

use crate::fs::inode::state::{InodeState, check_file};
use crate::fs::{Engine, Need};
use pramfs_medium::error::Result;
use pramfs_medium::map;
use pramfs_medium::media::htree::VALUE_MAX;
use pramfs_medium::media::inode::FL_LOST;
use pramfs_medium::types::{FileType, Ino};

/// The attribute that lists the ranges.
pub(crate) const LIST: &[u8] = b"system.pramfs.lost";

impl Engine {
    /// Returns the ranges of a file, in bytes, that an earlier repair could not
    /// recover and that have not been written since. Reading them fails with
    /// [`Error::Lost`](crate::Error::Lost).
    ///
    /// # Errors
    /// [`crate::Error::IsDirectory`], [`crate::Error::Invalid`] if it is not a
    /// regular file, [`crate::Error::Corrupt`].
    pub fn lost_ranges(&self, ino: Ino) -> Result<Vec<Range<u64>>> {
        self.op(Need::Read, || {
            let inode = self.iget_user(ino)?;
            let state = inode.state.read();
            check_file(inode.ino, &state)?;
            self.lost_in(&state, usize::MAX)
        })
    }

    /// As [`lost_ranges`](Self::lost_ranges), for a locked inode of any type; returns
    /// at most `most` ranges.
    pub(crate) fn lost_in(&self, state: &InodeState, most: usize) -> Result<Vec<Range<u64>>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        if state.disk.flags & FL_LOST == 0 || state.kind() != FileType::Regular {
            return Ok(ranges);
        }
        let (block, size) = (self.vol.geo.block_size, state.disk.size);
        map::lost_blocks(&self.vol, &state.map(), &mut |first, count| {
            let start = first.0.saturating_mul(block);
            let end = (first + count).0.saturating_mul(block).min(size);
            let full = ranges.len() == most;
            match ranges.last_mut() {
                _ if start >= end => return ControlFlow::Break(()),
                Some(last) if last.end == start => last.end = end,
                _ if full => return ControlFlow::Break(()),
                _ => ranges.push(start..end),
            }
            ControlFlow::Continue(())
        })?;
        Ok(ranges)
    }

    /// Returns the value of the attribute: `OFFSET+LENGTH` of each range in bytes,
    /// separated by spaces, then `...` if not all ranges fit. `None` if nothing was
    /// lost.
    pub(crate) fn lost_list(&self, state: &InodeState) -> Result<Option<Vec<u8>>> {
        let mut list = String::new();
        for range in self.lost_in(state, VALUE_MAX)? {
            let next = format!("{}+{}", range.start, range.end - range.start);
            if list.len() + next.len() + 5 > VALUE_MAX {
                list += " ...";
                break;
            }
            if !list.is_empty() {
                list.push(' ');
            }
            list += &next;
        }
        Ok((!list.is_empty()).then(|| list.into_bytes()))
    }
}
