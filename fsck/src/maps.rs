//! Checks file maps: follows every pointer and claims every block.

use zerocopy::IntoBytes;

use super::owners::{DataOf, Owner};
use super::{Checker, Issue, Part};
use pramfs_medium::error::Result;
use pramfs_medium::media::Geometry;
use pramfs_medium::media::pointer::{LEAF, Ptr, UNWRITTEN};
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::types::{Bno, FileBlock, FileRun, FileType, Ino, RegionOffset};

/// Consecutive blocks of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// First file block.
    pub first: FileBlock,
    /// Number of blocks.
    pub count: u64,
    /// First block in the region.
    pub block: Bno,
    /// Reads as zeros.
    pub unwritten: bool,
}

impl Extent {
    /// Returns the file block after the last.
    pub(super) fn end(&self) -> FileBlock {
        self.first + self.count
    }

    /// Returns the file blocks and their blocks.
    pub(super) fn blocks(self) -> impl Iterator<Item = (FileBlock, Bno)> {
        (0..self.count).map(move |i| (self.first + i, self.block.after(i)))
    }
}

/// The result of a walk over a file map.
#[derive(Debug, Default)]
pub(super) struct Walked {
    /// Number of blocks that it owns, including pointer blocks.
    pub blocks: u64,
    /// Part of it could not be walked.
    pub damaged: bool,
    /// Its extents in order, if the caller asked for them.
    pub extents: Vec<Extent>,
    /// Ranges that an earlier repair marked as lost.
    pub lost: Vec<FileRun>,
}

/// Largest shift of a file block number.
const MAX_SHIFT: u32 = 57;

struct Walk<'m> {
    root: &'m MapRoot,
    /// The inode named in findings; for an attribute value, its owner.
    ino: Ino,
    part: Part,
    keep: bool,
    /// Ranges of it can be marked as lost.
    marks: bool,
    out: Walked,
}

/// Returns the extent that covers a file block.
fn extent_at(extents: &[Extent], index: FileBlock) -> Option<&Extent> {
    let i = extents.partition_point(|e| e.first <= index);
    extents[..i].last().filter(|e| index < e.end())
}

/// Returns the offset in the region of the byte at an offset of a file.
pub(super) fn place_of(geo: &Geometry, extents: &[Extent], offset: u64) -> Option<RegionOffset> {
    let e = extent_at(extents, geo.file_block(offset))?;
    let within = geo.file_block(offset) - e.first;
    Some(geo.offset(e.block.after(within)) + geo.within_block(offset))
}

impl Checker<'_> {
    /// Walks a map and claims its blocks. With `keep` it collects the extents.
    pub(super) fn walk_map(
        &mut self,
        root: &MapRoot,
        ino: Ino,
        part: Part,
        keep: bool,
    ) -> Result<Walked> {
        self.walk(Walk {
            root,
            ino,
            part,
            keep,
            marks: false,
            out: Walked::default(),
        })
    }

    /// Walks the contents of a file, where ranges may be marked as lost. With `keep` it
    /// collects the extents.
    pub(super) fn walk_file(&mut self, root: &MapRoot, ino: Ino, keep: bool) -> Result<Walked> {
        self.walk(Walk {
            root,
            ino,
            part: Part::Contents,
            keep,
            marks: true,
            out: Walked::default(),
        })
    }

    fn walk(&mut self, mut w: Walk<'_>) -> Result<Walked> {
        let root = w.root;
        if root.height > self.geo.max_height() || root.height * self.geo.fan_log2 > MAX_SHIFT {
            self.map_pointer(&mut w, root.height, FileBlock(0));
        } else {
            self.map_entry(&mut w, root.root, root.height, FileBlock(0))?;
        }
        Ok(w.out)
    }

    fn map_pointer(&mut self, w: &mut Walk<'_>, level: u32, first: FileBlock) {
        w.out.damaged = true;
        self.hidden_blocks = true;
        self.add(Issue::MapPointer {
            ino: w.ino,
            part: w.part,
            level,
            first: first.0,
        });
    }

    /// Claims blocks for the owner of a walk, and notes what they are to it. Returns false if
    /// one already has an owner.
    pub(super) fn claim(&mut self, ino: Ino, block: u64, count: u64, owner: Owner) -> bool {
        self.note_owner(block, count, owner);
        self.claim_run(ino, block, count)
    }

    /// As [`claim`](Self::claim), for blocks of which the caller has noted what they are.
    pub(super) fn claim_run(&mut self, ino: Ino, block: u64, count: u64) -> bool {
        if !self.watched.is_empty() {
            let hit = |b: &u64| self.watched.contains(b);
            let claims = (block..block + count).filter(hit).map(|b| (b, ino));
            self.claimers.extend(claims);
        }
        match self.claims.claim(block, count) {
            None => true,
            Some(block) => {
                self.add(Issue::BlockUsedTwice { block, ino });
                false
            }
        }
    }

    fn map_entry(
        &mut self,
        w: &mut Walk<'_>,
        ptr: Ptr,
        level: u32,
        first: FileBlock,
    ) -> Result<()> {
        if ptr.is_hole() {
            return Ok(());
        }
        let at = w.root.at(&self.geo, level, first);
        let data = level == 0 || ptr.is_leaf();
        // In this version a block has one owner, and only data can be unwritten.
        let allowed = if data { LEAF | UNWRITTEN } else { 0 };
        let block = match w.root.open(&self.geo, ptr, at) {
            Ok(block) if ptr.flags() & !allowed == 0 => block,
            Err(_) if w.marks && ptr.is_lost(at) => {
                let len = self.geo.span(level);
                match w.out.lost.last_mut() {
                    Some(run) if run.end() == first => run.len += len,
                    _ => w.out.lost.push(FileRun { start: first, len }),
                }
                return Ok(());
            }
            _ => {
                self.map_pointer(w, level, first);
                return Ok(());
            }
        };
        if data {
            let count = self.geo.span(level);
            w.out.blocks += count;
            let owner = Owner::Data {
                ino: w.ino,
                of: self.data_of(w.ino, w.part),
                first,
                unwritten: ptr.is_unwritten(),
            };
            self.claim(w.ino, block.0, count, owner);
            if w.keep {
                push(
                    &mut w.out.extents,
                    Extent {
                        first,
                        count,
                        block,
                        unwritten: ptr.is_unwritten(),
                    },
                );
            }
            return Ok(());
        }
        w.out.blocks += 1;
        // Never walk a pointer block twice: this bounds the walk by the number of
        // blocks, whatever the pointers are.
        let owner = Owner::Pointers {
            ino: w.ino,
            part: w.part,
            level,
            first,
        };
        if !self.claim(w.ino, block.0, 1, owner) {
            w.out.damaged = true;
            self.hidden_blocks = true;
            return Ok(());
        }
        let words = self.pointers(block)?;
        // The format frees a pointer block with its last pointer.
        if words.iter().all(|word| *word == 0) {
            w.out.damaged = true;
            self.hidden_blocks = true;
            self.add(Issue::MapEmpty {
                ino: w.ino,
                part: w.part,
                level,
                first: first.0,
            });
            return Ok(());
        }
        for (i, word) in words.into_iter().enumerate() {
            if word != 0 {
                let first = first + i as u64 * self.geo.span(level - 1);
                self.map_entry(w, Ptr(word), level - 1, first)?;
            }
        }
        Ok(())
    }

    /// Returns what the data blocks of a map hold.
    fn data_of(&mut self, ino: Ino, part: Part) -> DataOf {
        let is_table = [
            Ino::INODE_TABLE,
            Ino::INODE_GROUPS,
            Ino::BLOCK_GROUPS,
            Ino::ORPHANS,
            Ino::LEASES,
        ]
        .contains(&ino);
        let symlink = (FileType::Symlink.mode_bits() >> 12) as u8;
        match part {
            Part::XattrValue => DataOf::Value,
            _ if is_table => DataOf::Table,
            _ if self.inodes.get(ino).is_some_and(|i| i.kind == symlink) => DataOf::Target,
            _ => DataOf::File,
        }
    }

    /// Compares the block count of an inode with the number found. If fewer were
    /// found, blocks that seem leaked may belong to it.
    pub(super) fn check_block_count(&mut self, ino: Ino, recorded: u64, found: u64) {
        if recorded > found {
            self.hidden_blocks = true;
            self.add(Issue::BlocksMissing {
                ino,
                recorded,
                found,
            });
        } else if recorded < found {
            self.add(Issue::BlockCount {
                ino,
                recorded,
                found,
            });
        }
    }

    /// Reads the words of a pointer block.
    pub(super) fn pointers(&self, block: Bno) -> Result<Vec<u64>> {
        let mut words = vec![0u64; self.geo.fan() as usize];
        self.region
            .read(self.geo.offset(block), words.as_mut_bytes())?;
        Ok(words)
    }

    /// Reads the first `len` bytes of a file that must be whole. The inner error
    /// is the first missing file block.
    pub(super) fn read_whole(
        &self,
        extents: &[Extent],
        len: usize,
    ) -> Result<Result<Vec<u8>, FileBlock>> {
        let mut bytes = vec![0; len];
        let geo = &self.geo;
        let mut done = 0;
        while done < len {
            let index = geo.file_block(done as u64);
            let Some(e) = extent_at(extents, index).filter(|e| !e.unwritten) else {
                return Ok(Err(index));
            };
            let block = e.block.after(index - e.first);
            let from = geo.offset(block) + geo.within_block(done as u64);
            let n = (geo.file_offset(e.end()) as usize).min(len) - done;
            self.region.read(from, &mut bytes[done..done + n])?;
            done += n;
        }
        Ok(Ok(bytes))
    }
}

/// Adds an extent. Merges it with the previous one if it continues that.
fn push(extents: &mut Vec<Extent>, e: Extent) {
    if let Some(last) = extents.last_mut()
        && last.end() == e.first
        && last.block.after(last.count) == e.block
        && last.unwritten == e.unwritten
    {
        last.count += e.count;
        return;
    }
    extents.push(e);
}
