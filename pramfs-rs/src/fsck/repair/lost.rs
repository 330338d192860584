//! What pointers that are gone have led to: blocks of pointers, which say
//! themselves whose they are, go back to their place; data without an owner is
//! kept as a file in `lost+found`.

use std::collections::{BTreeMap, HashSet};

use zerocopy::FromBytes;

use super::maps::Found;
use super::{Fixer, Notes};
use crate::error::Result;
use crate::fsck::claims::Claims;
use crate::fsck::outcome::{Done, Lost};
use crate::htree::{TreeKind, TreeRef};
use crate::media::DiskInode;
use crate::media::htree::LEAF_MAGIC;
use crate::media::pointer::{LEAF, Ptr, PtrAt, SHARED, UNWRITTEN};
use crate::media::walk::MapRoot;
use crate::types::{Bno, FileType, Ino};

/// Most places that are tried for each lost block of pointers.
const PLACES: usize = 1 << 16;

/// A place of a map where a block of pointers may have been lost.
struct Gap {
    /// Where its pointer stands.
    at: u64,
    place: PtrAt,
}

impl Notes {
    /// Notes what a check has found to be owned.
    pub(super) fn owned(&mut self, claims: &Claims, hidden: bool) {
        self.hidden |= hidden;
        match &mut self.owned {
            Some(owned) => owned.merge(claims),
            None => self.owned = Some(claims.clone()),
        }
    }
}

impl Fixer<'_, '_> {
    /// A file that owns fewer blocks than it counts, or a block of pointers
    /// without any: what is lost is looked for once, then the count is what is
    /// there.
    pub(super) fn mend_missing_blocks(&mut self, ino: Ino, found: u64) -> Result<bool> {
        let Some(d) = self.inode(ino)? else {
            return Ok(false);
        };
        if self.notes.searched.insert(ino.0) {
            if self.notes.upset.contains(&ino.0) {
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
            // What is behind them is seen by the next round.
            self.notes.upset.insert(ino.0);
            if kind == Some(FileType::Regular) && self.find_tables(&d)? {
                self.did(Done::Corrected);
                return Ok(true);
            }
            if kind == Some(FileType::Directory) && names > 0 {
                return self.rebuild_directory(ino, None);
            }
            if attributes > 0 {
                return self.rebuild_xattrs(ino);
            }
        }
        let count = d.blocks.saturating_sub(found);
        // Of what a mending has upset nobody knows how much was a hole before.
        if !self.notes.recounted.contains(&ino.0) && self.mark_gaps(ino, &d, count)? {
            self.notes.upset.insert(ino.0);
        } else {
            if count > 0 {
                self.lose(Some(ino), Lost::Blocks { count });
            }
            self.did(Done::Set);
        }
        self.edit(ino, |d| d.blocks = found)
    }

    /// A block of pointers that holds none.
    pub(super) fn mend_empty(&mut self, ino: Ino, level: u32, first: u64) -> Result<bool> {
        let Some(d) = self.inode(ino)? else {
            return Ok(false);
        };
        if self.notes.searched.insert(ino.0) && self.find_tables(&d)? {
            self.notes.upset.insert(ino.0);
            self.did(Done::Corrected);
            return Ok(true);
        }
        let map = Self::map_of(&d);
        self.did(Done::Cleared);
        self.lose_range(&d, level, first);
        let Some(found) = self.find_pointer(&map, level, first)? else {
            return Ok(true);
        };
        self.mark(ino, &found)
    }

    /// The bytes below a pointer are lost, as far as the file reaches.
    pub(super) fn lose_range(&mut self, d: &DiskInode, level: u32, first: u64) {
        let shift = self.geo.fan_log2 * level;
        let at = first.saturating_mul(self.geo.block_size);
        let span = self.geo.block_size.checked_shl(shift).unwrap_or(u64::MAX);
        let len = d.size.saturating_sub(at).min(span);
        if len > 0 {
            self.lose(Some(Ino(d.ino)), Lost::Bytes { at, len });
        }
    }

    /// Puts blocks of pointers back that nothing leads to and whose pointers
    /// say that they are this file's. True where one was found.
    fn find_tables(&mut self, d: &DiskInode) -> Result<bool> {
        let map = Self::map_of(d);
        if map.root.is_hole() || map.height < 2 || map.height > self.geo.max_height() {
            return Ok(false);
        }
        let mut gaps = Vec::new();
        let root = Found {
            at: None,
            place: map.root_at(self.geo),
            ptr: map.root,
        };
        self.gaps(&map, root, d.size.div_ceil(self.geo.block_size), &mut gaps)?;
        if gaps.is_empty() {
            return Ok(false);
        }
        let lost = self.scan()?.tables.clone();
        let mut any = false;
        for block in lost {
            if self.known.claims.word(block / 64 * 64) >> (block % 64) & 1 != 0 {
                continue;
            }
            let mut right = Vec::new();
            let words = self.words(self.geo.offset(Bno(block)))?;
            let one = (0..).zip(words).find(|(_, word)| *word != 0);
            for gap in &gaps {
                // One of its pointers tells most places apart.
                let below = |i| PtrAt {
                    level: gap.place.level - 1,
                    index: gap.place.index << self.geo.fan_log2 | i,
                    ..gap.place
                };
                if one.is_none_or(|(i, word)| !Ptr(word).fits(below(i))) {
                    continue;
                }
                if self.is_pointer_block(&map, Bno(block), &gap.place)? {
                    right.push(gap);
                }
            }
            // With one pointer that fits by chance two may.
            let [gap] = right[..] else { continue };
            let there = Ptr(self.view.load_u64(gap.at)?);
            if !there.is_hole() && !there.is_lost(gap.place) {
                continue;
            }
            let ptr = Ptr::new(Bno(block), 0, gap.place);
            self.view.store_u64(gap.at, ptr.0)?;
            self.known.claims.claim(block, 1);
            any = true;
        }
        Ok(any)
    }

    /// The block of pointers that a damaged pointer led to: the only one without
    /// an owner whose pointers say that they are of this place.
    pub(super) fn find_table(&mut self, map: &MapRoot, f: &Found) -> Result<Option<Ptr>> {
        let mut found = None;
        for block in self.scan()?.tables.clone() {
            let owned = self.known.claims.word(block / 64 * 64) >> (block % 64) & 1 != 0;
            if !owned && self.is_pointer_block(map, Bno(block), &f.place)? {
                let ptr = Ptr::new(Bno(block), 0, f.place);
                if found.replace(ptr).is_some() {
                    return Ok(None);
                }
            }
        }
        Ok(found)
    }

    /// Null pointers and marks of loss above the lowest level, where a block of
    /// pointers may have been.
    fn gaps(&self, map: &MapRoot, f: Found, blocks: u64, out: &mut Vec<Gap>) -> Result<()> {
        if f.place.level < 2 || f.ptr.is_leaf() || out.len() >= PLACES {
            return Ok(());
        }
        let Ok(block) = map.open(self.geo, f.ptr, f.place) else {
            return Ok(());
        };
        let base = self.geo.offset(block);
        let level = f.place.level - 1;
        for (i, word) in (0..).zip(self.words(base)?) {
            let place = PtrAt {
                level,
                index: f.place.index << self.geo.fan_log2 | i,
                ..f.place
            };
            if place.index << (self.geo.fan_log2 * level) >= blocks {
                break;
            }
            let at = base + i * 8;
            if word == 0 || Ptr(word).is_lost(place) {
                out.push(Gap { at, place });
            } else {
                let below = Found {
                    at: Some(at),
                    place,
                    ptr: Ptr(word),
                };
                self.gaps(map, below, blocks, out)?;
            }
        }
        Ok(())
    }

    /// Blocks that are in use and that nothing leads to. What was hidden behind
    /// damage and holds data is kept as a file in `lost+found`; the rest is
    /// given back.
    pub(super) fn mend_leaked(
        &mut self,
        todo: &[(crate::fsck::Issue, Option<usize>)],
    ) -> Result<bool> {
        if !self.rebuilt.insert((u64::MAX, 0)) {
            return Ok(true);
        }
        let (mut data, mut freed) = (BTreeMap::new(), 0u64);
        for (issue, _) in todo {
            let crate::fsck::Issue::BlocksLeaked { start, len } = issue else {
                continue;
            };
            for block in *start..*start + *len {
                let keep = self.was_hidden(block) && {
                    let holds = self.holds_data(block)?;
                    freed += u64::from(!holds);
                    holds
                };
                if keep {
                    data.insert(data.len() as u64, block);
                } else {
                    self.set_range(crate::media::bitmap::BitmapKind::Blocks, block, 1, false)?;
                }
            }
        }
        self.did(Done::Freed);
        if freed > 0 {
            self.lose(None, Lost::Freed { count: freed });
        }
        if !data.is_empty() {
            self.keep(&data)?;
        }
        Ok(true)
    }

    /// Whether a block was behind damage: nothing has led to it since the
    /// repair began.
    fn was_hidden(&self, block: u64) -> bool {
        let per_group = self.geo.bits_per_group();
        self.notes.hidden
            && !self.notes.guessed.contains(&(block / per_group))
            && self
                .notes
                .owned
                .as_ref()
                .is_some_and(|o| o.word(block / 64 * 64) >> (block % 64) & 1 == 0)
    }

    /// Whether a block without an owner holds what a file may have held: it is
    /// not empty, no leaf, and no block of pointers.
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
        Ok(!self.looks_like_pointers(&image.bytes) && self.table_number(&image).is_none())
    }

    /// Whether a block can be one of pointers: four or more, and nothing else.
    pub(super) fn looks_like_pointers(&self, bytes: &[u8]) -> bool {
        let mut pointers = 0;
        for word in bytes.as_chunks::<8>().0 {
            let word = u64::from_le_bytes(*word);
            let ptr = Ptr(word);
            let flags = word & (0xff << 40);
            if word == 0 {
                continue;
            }
            let possible = flags & !(LEAF | UNWRITTEN) == 0 && flags & SHARED == 0;
            let lost = flags == UNWRITTEN && ptr.block().0 == 0;
            if !possible || ptr.block().0 == 0 && !lost || ptr.block().0 >= self.geo.blocks {
                return false;
            }
            pointers += 1;
        }
        pointers >= 4
    }

    /// Keeps data blocks as one file, in the order in which they lie.
    fn keep(&mut self, data: &BTreeMap<u64, u64>) -> Result<()> {
        let home = self.lost_found()?;
        let taken = self.names_in(home)?;
        let first = data.values().next().copied().unwrap_or_default();
        let mut name = format!("blocks-{first}").into_bytes();
        while taken.contains(&name) {
            name.push(b'_');
        }
        let ino = self.new_inode()?;
        let (root, height, blocks) = self.build_map(ino, data)?;
        let mut d = Self::fresh_inode(FileType::Regular.mode_bits() | 0o600);
        d.size = (data.len() as u64) << self.geo.block_log2;
        (d.root, d.height, d.blocks) = (root, height as u8, blocks);
        if let Some(like) = self.inode(home)? {
            d.generation = like.generation;
            (d.mtime_sec, d.ctime_sec) = (like.mtime_sec, like.ctime_sec);
            (d.atime_sec, d.btime_sec) = (like.mtime_sec, like.mtime_sec);
        }
        self.put_inode(ino, d)?;
        self.set_range(crate::media::bitmap::BitmapKind::Inodes, ino.0, 1, true)?;
        let entry = self.entry(
            name.clone(),
            ino,
            (FileType::Regular.mode_bits() >> 12) as u8,
        );
        self.add_entries(home, vec![entry])?;
        self.did(Done::Moved);
        let path = [b"/lost+found/", &name[..]].concat();
        let count = data.len() as u64;
        self.lose_at(Some(ino), Some(path), Lost::Kept { count });
        Ok(())
    }

    /// Begins to count records from above every generation that an inode has:
    /// that of no number is given twice. The journal is emptied when this is
    /// stored, in an order in which no old record is ever alive.
    pub(super) fn renumber(&mut self) -> Result<bool> {
        let mut base = 1;
        for e in self.known.table.clone() {
            for block in e.block..e.block + e.count {
                let image = self.image(Bno(block))?;
                for bytes in image.bytes.chunks(crate::media::inode::INODE_SIZE as usize) {
                    let Ok(d) = DiskInode::read_from_bytes(bytes) else {
                        continue;
                    };
                    let fits = d.crc == d.expected_crc(self.geo.seed, Ino(d.ino));
                    if fits && d.generation < crate::fsck::journal::LSNS_USED_UP {
                        base = base.max(d.generation + 1);
                    }
                }
            }
        }
        self.notes.first = Some(base);
        self.empty_journal(base)
    }
}

/// Inodes of which the search is done, for [`Notes`].
pub(super) type Searched = HashSet<u64>;
