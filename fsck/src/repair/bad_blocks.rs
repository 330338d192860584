//! Takes bad blocks out of use: adds them to their list, or makes the list anew.

use zerocopy::IntoBytes as _;

use super::Repairer;
use super::maps::LocatedPtr;
use crate::outcome::{Done, Lost};
use crate::superblock::valid;
use pramfs_medium::error::Result;
use pramfs_medium::media::bad_blocks::{ListBlock, extents_in_block, list_at, read_list};
use pramfs_medium::media::features::BAD_BLOCKS;
use pramfs_medium::media::inode::FL_LOST;
use pramfs_medium::media::pointer::{LEAF, Ptr};
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::types::{BlockRun, Bno};

impl Repairer<'_, '_> {
    /// Sets the root of the list in both superblock pages that are valid.
    fn set_bad_root(&mut self, root: u64) -> Result<bool> {
        let mut any = false;
        for page in self.geo.pages() {
            if let Ok(mut fixed) = valid(self.view, page)? {
                fixed.badblock_root = root;
                fixed.ro_compat &= !BAD_BLOCKS;
                if root != 0 {
                    fixed.ro_compat |= BAD_BLOCKS;
                }
                fixed.seal();
                self.view.store(page, fixed.as_bytes())?;
                any = true;
            }
        }
        Ok(any)
    }

    fn bad_root(&self) -> Result<u64> {
        for page in self.geo.pages() {
            if let Ok(fixed) = valid(self.view, page)? {
                return Ok(fixed.badblock_root);
            }
        }
        Ok(0)
    }

    /// Clears a damaged list. The bad blocks that are known are other findings of the next
    /// round.
    pub(super) fn clear_bad_list(&mut self) -> Result<bool> {
        self.set_bad_root(0)
    }

    /// Adds blocks to the list.
    pub(super) fn list_bad_blocks(&mut self, start: u64, len: u64) -> Result<bool> {
        let root = self.bad_root()?;
        let view = &*self.view;
        let list = read_list(self.geo, root, &mut |at, into| Ok(view.read(at, into)?));
        let Ok(mut list) = list else {
            // It is cleared in this round.
            return Ok(false);
        };
        let run = BlockRun {
            start: Bno(start),
            len,
        };
        let full = extents_in_block(self.geo);
        let nth = list.len();
        if list.last().is_none_or(|last| last.extents.len() == full) {
            let block = self.alloc_zeroed()?;
            let ptr = Ptr::new(block, 0, list_at(self.geo, nth as u64));
            match list.last_mut() {
                None => {
                    if !self.set_bad_root(ptr.0)? {
                        return Ok(false);
                    }
                }
                Some(last) => {
                    last.next = ptr;
                    let (at, bytes) = (self.geo.offset(last.block), last.bytes(self.geo));
                    self.view.store(at, &bytes)?;
                }
            }
            list.push(ListBlock::new(block));
        }
        if let Some(last) = list.last_mut() {
            last.extents.push(run);
            let (at, bytes) = (self.geo.offset(last.block), last.bytes(self.geo));
            self.view.store(at, &bytes)?;
        }
        self.did(Done::Marked);
        Ok(true)
    }

    /// If a 2 MiB leaf is damaged only because some of its blocks are bad: makes a pointer
    /// block in its place, in which those are marked as lost. Returns the pointer to it.
    pub(super) fn divide_bad_leaf(
        &mut self,
        map: &MapRoot,
        found: &LocatedPtr,
    ) -> Result<Option<Ptr>> {
        let (ptr, place) = (found.ptr, found.place);
        let span = self.geo.fan();
        let start = ptr.block().0;
        let is_leaf = ptr.fits(place)
            && ptr.is_leaf()
            && place.level == 1
            && self.geo.allows_huge_leaves()
            && start.is_multiple_of(span)
            && start
                .checked_add(span)
                .is_some_and(|end| end <= self.geo.blocks())
            && !self.geo.is_of_format(start, span);
        if !is_leaf || !self.geo.is_bad(start, span) {
            return Ok(None);
        }
        let table = self.alloc_zeroed()?;
        let first = place.first(self.geo);
        let mut lost = 0;
        for i in 0..span {
            let at = map.at(self.geo, 0, first + i);
            let ptr = match self.geo.is_bad(start + i, 1) {
                true => {
                    lost += 1;
                    let at = self.geo.file_offset(first + i);
                    let len = self.geo.block_size;
                    self.lose(Some(map.ino), Lost::Bytes { at, len });
                    Ptr::lost(map.at(self.geo, 0, first + i))
                }
                false => {
                    self.known.claims.claim(start + i, 1);
                    Ptr::new(Bno(start + i), ptr.flags() & !LEAF, at)
                }
            };
            let home = self.geo.offset(table).word(i);
            self.view.store_u64(home, ptr.0)?;
        }
        self.edit(map.ino, |d| {
            d.flags |= FL_LOST;
            d.blocks = (d.blocks + 1).saturating_sub(lost);
        })?;
        self.recount(map.ino);
        self.did(Done::MarkedLost);
        Ok(Some(Ptr::new(table, 0, place)))
    }
}
