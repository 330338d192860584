//! What a repair could not bring back: ranges of a file that read as EIO until
//! they are written, and where they are shown.
//!
//! The file map has a mark in place of each pointer that was lost, and the inode
//! a flag that says so: only who finds the flag walks the map. The list is an
//! extended attribute that nobody sets.

use std::ops::{ControlFlow, Range};

use super::inode::InodeState;
use super::read::check_file;
use super::{Engine, Need};
use crate::error::Result;
use crate::map;
use crate::media::htree::VALUE_MAX;
use crate::media::inode::FL_LOST;
use crate::types::{FileType, Ino};

/// The attribute that lists the ranges.
pub(super) const LIST: &[u8] = b"system.pramfs.lost";

impl Engine {
    /// Ranges of a file, in bytes, that an earlier repair could not bring back
    /// and that nobody has written since: to read them is [`Error::Lost`](crate::Error::Lost).
    ///
    /// # Errors
    /// [`crate::Error::IsDirectory`], [`crate::Error::Invalid`] where it
    /// is not a regular file, [`crate::Error::Corrupt`].
    pub fn lost_ranges(&self, ino: Ino) -> Result<Vec<Range<u64>>> {
        self.op(Need::Read, || {
            let inode = self.iget_user(ino)?;
            let state = inode.state.read();
            check_file(&inode, &state)?;
            self.lost_in(&state, usize::MAX)
        })
    }

    /// The same of a locked inode, of whatever type; at most so many.
    pub(super) fn lost_in(&self, state: &InodeState, most: usize) -> Result<Vec<Range<u64>>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        if state.disk.flags & FL_LOST == 0 || state.kind() != FileType::Regular {
            return Ok(ranges);
        }
        let (block, size) = (self.vol.geo.block_size, state.disk.size);
        map::lost_blocks(&self.vol, &state.map(), &mut |first, count| {
            let start = first.saturating_mul(block);
            let end = (first + count).saturating_mul(block).min(size);
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

    /// The value of the attribute: `OFFSET+LENGTH` of each range in bytes, with
    /// spaces between, and `...` where there are more than an attribute holds.
    /// `None` where nothing was lost.
    pub(super) fn lost_list(&self, state: &InodeState) -> Result<Option<Vec<u8>>> {
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
