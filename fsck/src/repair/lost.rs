//! Recovers blocks whose pointers were lost. Pointer blocks name their owner and
//! go back to their place (`lost_pointers.rs`). Data without an owner is kept as a
//! file in `lost+found`.

use std::collections::HashSet;

use zerocopy::FromBytes;

use super::build::FileBlocks;
use super::{Repairer, RoundState};
use crate::claims::Claims;
use crate::findings::Issue;
use crate::outcome::{Done, Lost};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::htree::{TreeKind, TreeRef};
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::bitmap::BitmapKind;
use pramfs_medium::media::htree::LEAF_MAGIC;
use pramfs_medium::media::inode::ALL_BLOCKS;
use pramfs_medium::media::pointer::Ptr;
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::types::{Bno, FileBlock, FileType, Ino};

/// Second key of a run of leaked blocks in `Repairer::fates`; the first key is
/// its first block.
pub(super) const LEAKED: u32 = u32::MAX;

impl RoundState {
    /// Records the blocks that a check found to have an owner.
    pub(super) fn owned(&mut self, claims: &Claims, hidden: bool) {
        self.hidden |= hidden;
        match &mut self.owned {
            Some(owned) => owned.merge(claims),
            None => self.owned = Some(claims.clone()),
        }
    }
}

impl Repairer<'_, '_> {
    /// Repairs a file that owns fewer blocks than it counts. Searches for the lost
    /// blocks once, then sets the count to the number found.
    pub(super) fn repair_missing_blocks(
        &mut self,
        ino: Ino,
        found: u64,
        todo: &[(Issue, Option<usize>)],
    ) -> Result<bool> {
        let Some(d) = self.inode(ino)? else {
            return Ok(false);
        };
        let tables = self.tables_found(ino, todo)?;
        if self.notes.searched.insert(ino.0) {
            if self.notes.recount.contains(&ino.0) {
                self.notes.recounted.insert(ino.0);
            }
            let kind = FileType::from_mode(d.mode);
            let trees = [TreeKind::Directory, TreeKind::Xattrs].map(|kind| TreeRef {
                ino,
                kind,
                root: Ptr::HOLE,
                blocks: 0,
            });
            let scan = self.scan()?;
            let [names, attributes] = trees.map(|t| scan.leaves_of(&t).len());
            // The next round sees what is behind them.
            self.notes.recount.insert(ino.0);
            if tables {
                self.did(Done::Rebuilt);
                return Ok(true);
            }
            if kind == Some(FileType::Directory) && names > 0 {
                return self.rebuild_directory(ino, None);
            }
            if attributes > 0 {
                return self.rebuild_xattrs(ino);
            }
        }
        let missing = d.blocks.saturating_sub(found);
        let reported = self.blocks_reported(ino);
        // After a repair that changed the counts, earlier holes are unknown.
        if !self.notes.recounted.contains(&ino.0) && self.mark_gaps(ino, &d, missing)? {
            self.notes.recount.insert(ino.0);
        } else {
            let count = missing.saturating_sub(reported);
            if count > 0 {
                self.lose(Some(ino), Lost::Blocks { count });
            }
            self.did(Done::Set);
        }
        self.edit(ino, |d| d.blocks = found)
    }

    /// Repairs a pointer block that holds no pointers.
    pub(super) fn repair_empty(
        &mut self,
        ino: Ino,
        level: u32,
        first: FileBlock,
        todo: &[(Issue, Option<usize>)],
    ) -> Result<bool> {
        let Some(d) = self.inode(ino)? else {
            return Ok(false);
        };
        self.tables_found(ino, todo)?;
        self.notes.searched.insert(ino.0);
        let map = MapRoot::of(&d);
        let Some(found) = self.find_pointer(&map, level, first)? else {
            // Below a pointer that was repaired in this round.
            return Ok(true);
        };
        // The search of this round has filled it, perhaps for another finding.
        if let Ok(block) = map.open(self.geo, found.ptr, found.place)
            && self
                .words(self.geo.offset(block))?
                .iter()
                .any(|word| *word != 0)
        {
            self.did(Done::Rebuilt);
            return Ok(true);
        }
        self.did(Done::Cleared);
        self.lose_range(&d, level, first);
        self.mark(ino, &found)
    }

    /// Records the loss of the bytes below a pointer, up to the end of the file.
    pub(super) fn lose_range(&mut self, d: &DiskInode, level: u32, first: FileBlock) {
        let shift = self.geo.fan_log2 * level;
        let at = first.0.saturating_mul(self.geo.block_size);
        let blocks = 1u64.checked_shl(shift).unwrap_or(u64::MAX);
        let span = self.geo.block_size.saturating_mul(blocks);
        let len = d.size.saturating_sub(at).min(span);
        if len > 0 {
            self.lose(Some(Ino(d.ino)), Lost::Bytes { at, len });
        }
    }

    /// Returns the number of blocks of a file, including pointer blocks, that are
    /// in reported byte ranges and were not found again.
    fn blocks_reported(&mut self, ino: Ino) -> u64 {
        let mut reported = 0u64;
        for n in self.notes.ranges.remove(&ino.0).unwrap_or_default() {
            let Some(Lost::Bytes { len, .. }) = self.notes.lost.get(n).map(|l| &l.what) else {
                continue;
            };
            let mut blocks = self.geo.blocks_for(*len);
            reported = reported.saturating_add(blocks);
            while blocks > 1 {
                blocks = blocks.div_ceil(self.geo.fan());
                reported = reported.saturating_add(blocks);
            }
        }
        reported.saturating_sub(self.notes.again.remove(&ino.0).unwrap_or(0))
    }

    /// Repairs blocks that are allocated but unused. Blocks that were hidden behind
    /// damage and hold data are kept as a file in `lost+found`; the rest is freed.
    pub(super) fn repair_leaked(
        &mut self,
        start: u64,
        todo: &[(Issue, Option<usize>)],
    ) -> Result<bool> {
        if !self.rebuilt.insert((u64::MAX, 0)) {
            let kept = self.fates.get(&(start, LEAKED)) == Some(&Done::Moved);
            if kept && self.stuck.contains(&u64::MAX) {
                return Err(Error::NoSpace("no free block for data kept in lost+found"));
            }
            return Ok(true);
        }
        let (mut data, mut freed) = (FileBlocks::new(), 0u64);
        for (issue, _) in todo {
            let Issue::BlocksLeaked { start, len } = issue else {
                continue;
            };
            let mut done = Done::Freed;
            for block in *start..*start + *len {
                let keep = self.was_hidden(block) && {
                    let holds = self.holds_data(block)?;
                    freed += u64::from(!holds);
                    holds
                };
                if keep {
                    data.insert(FileBlock(data.len() as u64), Bno(block));
                    done = Done::Moved;
                } else {
                    self.set_range(BitmapKind::Blocks, block, 1, false)?;
                }
            }
            self.fate((*start, LEAKED), done);
        }
        if freed > 0 {
            self.lose(None, Lost::Freed { count: freed });
        }
        if !data.is_empty()
            && let Err(e) = self.keep(&data)
        {
            self.stuck.insert(u64::MAX);
            return Err(e);
        }
        Ok(true)
    }

    /// Whether a block was hidden behind damage: in no round did it have an owner.
    fn was_hidden(&self, block: u64) -> bool {
        self.notes.hidden
            && self
                .notes
                .owned
                .as_ref()
                .is_some_and(|o| o.word(block / 64 * 64) >> (block % 64) & 1 == 0)
    }

    /// Whether a block without an owner may hold file data: it is not empty, and
    /// not a leaf, which a 64-bit sum proves. Blocks that look like pointers or
    /// inodes count as data, because file data may look the same.
    fn holds_data(&self, block: u64) -> Result<bool> {
        let image = self.image(Bno(block))?;
        if image.bytes.iter().all(|b| *b == 0) {
            return Ok(false);
        }
        let header = image.header();
        if header.magic == LEAF_MAGIC {
            for kind in [TreeKind::Directory, TreeKind::Xattrs] {
                let t = TreeRef {
                    ino: Ino(header.owner),
                    kind,
                    root: Ptr::HOLE,
                    blocks: 0,
                };
                if header.sum == image.sum(t.leaf_seed(self.geo, Bno(block))) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Keeps data blocks as one file, in the order in which they lie.
    fn keep(&mut self, data: &FileBlocks) -> Result<()> {
        let home = self.lost_found()?;
        let taken = self.names_in(home)?;
        let first = data.values().next().map_or(0, |block| block.0);
        let mut name = format!("blocks-{first}").into_bytes();
        while taken.contains(&name) {
            name.push(b'_');
        }
        let ino = self.new_inode()?;
        let (root, height, blocks) = self.build_map(ino, data)?;
        let mut d = Self::fresh_inode(FileType::Regular.mode_bits() | 0o600);
        d.size = self.geo.bytes(data.len() as u64);
        (d.root, d.height, d.blocks) = (root, height as u8, blocks);
        if self.geo.data_sums {
            // The sums of the blocks are unknown: the next mount makes them.
            d.set_unsummed(ALL_BLOCKS);
        }
        if let Some(like) = self.inode(home)? {
            d.generation = like.generation;
            (d.mtime_sec, d.ctime_sec) = (like.mtime_sec, like.ctime_sec);
            (d.atime_sec, d.btime_sec) = (like.mtime_sec, like.mtime_sec);
        }
        self.put_inode(ino, d)?;
        self.set_range(BitmapKind::Inodes, ino.0, 1, true)?;
        let entry = self.entry(
            name.clone(),
            ino,
            (FileType::Regular.mode_bits() >> 12) as u8,
        );
        self.add_entries(home, vec![entry])?;
        let path = [b"/lost+found/", &name[..]].concat();
        let count = data.len() as u64;
        self.lose_at(Some(ino), Some(path), Lost::Kept { count });
        Ok(())
    }

    /// Restarts record numbers above the generation of every inode, so that no
    /// inode number gets the same generation twice. Storing this empties the
    /// journal in an order in which no old record is ever live.
    pub(super) fn renumber(&mut self) -> Result<bool> {
        let mut base = 1;
        for e in self.known.table.clone() {
            for (_, block) in e.blocks() {
                let image = self.image(block)?;
                for bytes in image
                    .bytes
                    .chunks(pramfs_medium::media::inode::INODE_SIZE as usize)
                {
                    let Ok(d) = DiskInode::read_from_bytes(bytes) else {
                        continue;
                    };
                    let fits = d.crc == d.expected_crc(self.geo.seed, Ino(d.ino));
                    if fits && d.generation < crate::journal::LSNS_USED_UP {
                        base = base.max(d.generation + 1);
                    }
                }
            }
        }
        self.notes.first = Some(base);
        self.empty_journal(base)
    }
}

/// A set of inodes in [`RoundState`].
pub(super) type Searched = HashSet<u64>;
