//! Repairs inodes: corrects one wrong byte, clears invalid fields, and keeps an
//! inode past correction if its pointers prove it.

use zerocopy::IntoBytes;

use super::Repairer;
use super::build::FileBlocks;
use super::gather::first_level;
use crate::inodes::{can_be_marked, flags_of};
use crate::outcome::{Done, Lost};
use pramfs_medium::error::Result;
use pramfs_medium::htree::{TreeKind, TreeRef};
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::bitmap::BitmapKind;
use pramfs_medium::media::checksum::{orphan_of, orphan_word};
use pramfs_medium::media::correct;
use pramfs_medium::media::inode::{ALL_BLOCKS, FLAGS_KEPT, INLINE_TARGET, LINK_MAX};
use pramfs_medium::media::pointer::Ptr;
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::types::{Bno, FileBlock, FileType, Ino, RegionOffset};

impl Repairer<'_, '_> {
    /// Repairs an inode with a checksum or number mismatch.
    pub(super) fn repair_inode(&mut self, ino: Ino) -> Result<bool> {
        let Some(home) = self.home(ino) else {
            return Ok(false);
        };
        let d: DiskInode = self.view.read_pod(home)?;
        if let Some(right) = correct::inode(&d, self.geo.seed, ino)
            && right.ino == ino.0
        {
            self.view.store(home, right.as_bytes())?;
            self.did(Done::Corrected);
            return Ok(true);
        }
        let by_itself = d.crc == d.expected_crc(self.geo.seed, ino);
        if by_itself || self.proves_itself(ino, &d)? {
            self.recount(ino);
            self.did(Done::Kept);
            self.lose(Some(ino), Lost::Rights);
            return self.put_inode(ino, self.sane(d));
        }
        self.replace_inode(ino)
    }

    /// Whether the pointers of a damaged inode belong to it, so that it is more
    /// than noise.
    fn proves_itself(&mut self, ino: Ino, d: &DiskInode) -> Result<bool> {
        let Some(kind) = FileType::from_mode(d.mode) else {
            return Ok(false);
        };
        let said = self.known.inodes.get(ino).map_or(0, |i| i.said);
        if d.ino != ino.0 || said != 0 && said != (d.mode >> 12 & 15) as u8 {
            return Ok(false);
        }
        let tree = |kind, root| TreeRef {
            ino,
            kind,
            root: Ptr(root),
            blocks: 0,
        };
        let in_tree = |t: TreeRef| t.root.is_hole() || t.open(self.geo, t.root, 0, 0).is_ok();
        let map = MapRoot::of(d);
        let contents = match kind {
            FileType::Directory => in_tree(tree(TreeKind::Directory, d.root)),
            _ if d.root == 0 => true,
            _ => {
                let at = map.root_at(self.geo);
                map.height <= self.geo.max_height()
                    && (map.open(self.geo, map.root, at).is_ok() || map.root.is_lost(at))
            }
        };
        let proof = d.root != 0 || said != 0;
        Ok(proof && contents && in_tree(tree(TreeKind::Xattrs, d.xattr_root)))
    }

    /// Returns a damaged inode with valid fields and without setuid and setgid,
    /// which may be wrong.
    fn sane(&self, mut d: DiskInode) -> DiskInode {
        d.mode &= !0o6000;
        self.clear_reserved(&mut d);
        self.clear_impossible(&mut d);
        d
    }

    fn clear_reserved(&self, d: &mut DiskInode) {
        let inline = FileType::from_mode(d.mode) == Some(FileType::Symlink)
            && d.size <= INLINE_TARGET as u64;
        let target = match FileType::from_mode(d.mode) {
            Some(FileType::Symlink) if inline => d.size as usize,
            Some(FileType::Symlink) => 4,
            _ => 0,
        };
        d.target[target..].fill(0);
        (d.xattr_height, d.reserved_line0) = (0, 0);
        // With the flag, the whole file is marked.
        (d.unsummed_from, d.unsummed_to) = (0, 0);
    }

    fn clear_impossible(&self, d: &mut DiskInode) {
        for nsec in [
            &mut d.mtime_nsec,
            &mut d.ctime_nsec,
            &mut d.atime_nsec,
            &mut d.btime_nsec,
        ] {
            *nsec = (*nsec).min(999_999_999);
        }
        d.nlink = d.nlink.min(LINK_MAX);
        let kind = FileType::from_mode(d.mode);
        d.flags &= kind.map_or(FLAGS_KEPT, |kind| flags_of(self.geo, Ino(d.ino), kind));
        let inline = kind == Some(FileType::Symlink) && d.size <= INLINE_TARGET as u64;
        match kind {
            Some(FileType::Directory) => d.height = 0,
            Some(FileType::Regular | FileType::Symlink) if !inline => {
                if u32::from(d.height) > self.geo.max_height() {
                    (d.root, d.height) = (0, 0);
                }
            }
            _ => (d.root, d.height) = (0, 0),
        }
        let special = !matches!(
            kind,
            Some(FileType::Regular | FileType::Directory | FileType::Symlink)
        );
        if special {
            d.size = 0;
        }
    }

    /// Replaces an inode that is past repair:
    /// - by an empty table, or the orphan table rebuilt;
    /// - by a directory rebuilt from its leaves, if it must be a directory;
    /// - otherwise by nothing: it is freed.
    fn replace_inode(&mut self, ino: Ino) -> Result<bool> {
        let dir = (FileType::Directory.mode_bits() >> 12) as u8;
        let said = self.known.inodes.get(ino).map_or(0, |i| i.said);
        match ino {
            Ino::ORPHANS => return self.renew_orphans(),
            Ino::LEASES => {
                self.lose_windows()?;
                let d = Self::fresh_inode(FileType::Regular.mode_bits() | 0o600);
                return self.put_inode(ino, d);
            }
            _ if ino == Ino::ROOT || said == dir => {}
            _ => return self.give_up(ino),
        }
        self.did(Done::Rebuilt);
        self.lose(Some(ino), Lost::Rights);
        self.lose(Some(ino), Lost::Attributes);
        let mode = if ino == Ino::ROOT { 0o755 } else { 0o700 };
        let mut d = Self::fresh_inode(FileType::Directory.mode_bits() | mode);
        d.ino = ino.0;
        d.nlink = 2;
        d.parent_or_rdev = Ino::ROOT.0;
        let t = TreeRef::directory(&d);
        let leaves = self.scan()?.leaves_of(&t);
        let mut names = std::collections::HashSet::new();
        let (mut items, mut lost) = (Vec::new(), 0);
        for block in leaves {
            let image = self.image(Bno(block))?;
            for item in self.single_items(&t, &image) {
                if !names.insert(item.name.clone()) {
                    continue;
                }
                // A user who knows the uuid can forge such a leaf.
                if self.is_plausible(&t, &item)? {
                    items.push(item);
                } else {
                    lost += 1;
                }
            }
        }
        if lost > 0 {
            self.lose(Some(ino), Lost::Names { count: lost });
        }
        d.size = items.len() as u64;
        d.root = self.build_tree(&t, items)?.0;
        self.rebuilt
            .insert((ino.0, first_level(TreeKind::Directory)));
        self.recount(ino);
        self.put_inode(ino, d)
    }

    /// Frees an inode that is past repair. The first call defers this until trees
    /// are repaired: a name in them may tell its type.
    fn give_up(&mut self, ino: Ino) -> Result<bool> {
        let said = self.known.inodes.get(ino).map_or(0, |i| i.said);
        if self.notes.deferred.insert(ino.0, said) != Some(said) {
            self.later = true;
            return Ok(false);
        }
        self.did(Done::Freed);
        self.lose(Some(ino), Lost::File);
        self.free_inode(ino)
    }

    /// Repairs an inode in use for which the table has no block.
    pub(super) fn repair_missing(&mut self, ino: Ino) -> Result<bool> {
        if ino >= Ino::FIRST_FREE {
            self.did(Done::Freed);
            self.lose(Some(ino), Lost::File);
            return self.free_inode(ino);
        }
        self.repair_internal(Ino::INODE_TABLE, false)
    }

    /// Repairs invalid fields of an inode.
    pub(super) fn repair_fields(&mut self, ino: Ino) -> Result<bool> {
        let Some(mut d) = self.inode(ino)? else {
            return Ok(false);
        };
        let expected = match ino {
            Ino::ROOT => Some(FileType::Directory),
            Ino::ORPHANS | Ino::LEASES => Some(FileType::Regular),
            _ => None,
        };
        let kind = FileType::from_mode(d.mode);
        if expected.is_some() && expected != kind {
            return self.replace_inode(ino);
        }
        if kind.is_none() {
            // Use the type in its entry.
            let said = self.known.inodes.get(ino).map_or(0, |i| u32::from(i.said));
            if FileType::from_mode(said << 12).is_none() {
                return self.give_up(ino);
            }
            d.mode = said << 12 | d.mode & 0o777;
            return self.put_inode(ino, d);
        }
        if ino == Ino::ROOT {
            d.parent_or_rdev = Ino::ROOT.0;
        }
        let unreachable = u32::from(d.height) > self.geo.max_height();
        self.clear_impossible(&mut d);
        if unreachable && d.size <= self.geo.max_file_size() && can_be_marked(ino, kind) {
            self.lose_all(&d);
            self.mark_whole(&mut d)?;
        }
        if d.size > self.geo.max_file_size() {
            // Derive the size from the last written block.
            d.size = self.end_of(&d)?;
            if self.geo.data_sums && kind == Some(FileType::Regular) {
                // The sum of the last block was that of another end: the next mount makes it.
                d.set_unsummed(ALL_BLOCKS);
            }
        }
        self.recount(ino);
        self.put_inode(ino, d)
    }

    fn end_of(&self, d: &DiskInode) -> Result<u64> {
        if FileType::from_mode(d.mode) != Some(FileType::Regular) {
            return Ok(0);
        }
        let map = MapRoot::of(d);
        let mut end = 0;
        let mut rest = vec![(map.root_at(self.geo), map.root)];
        let mut seen = std::collections::HashSet::new();
        while let Some((place, ptr)) = rest.pop() {
            let Ok(block) = map.open(self.geo, ptr, place) else {
                continue;
            };
            if place.level == 0 || ptr.is_leaf() {
                let after = place.first(self.geo) + self.geo.span(place.level);
                if !ptr.is_unwritten() {
                    end = end.max(self.geo.file_offset(after));
                }
            } else if seen.insert(block.0) {
                for (i, word) in (0..).zip(self.words(self.geo.offset(block))?) {
                    if word != 0 {
                        rest.push((place.below(self.geo, i), Ptr(word)));
                    }
                }
            }
        }
        Ok(end)
    }

    pub(super) fn repair_reserved(&mut self, ino: Ino) -> Result<bool> {
        let Some(mut d) = self.inode(ino)? else {
            return Ok(false);
        };
        self.clear_reserved(&mut d);
        self.put_inode(ino, d)
    }

    // ---- the orphan table

    /// Returns the readable slots of the orphan table: offset, and the inode named.
    pub(super) fn orphan_slots(&self) -> Result<Vec<(RegionOffset, Ino)>> {
        let mut out = Vec::new();
        let Some(d) = self.inode(Ino::ORPHANS)? else {
            return Ok(out);
        };
        let Some(blocks) = self.map_blocks(&MapRoot::of(&d))? else {
            return Ok(out);
        };
        let in_block = self.geo.words_per_block();
        for (number, block) in blocks {
            for (i, word) in (0..).zip(self.words(self.geo.offset(block))?) {
                let slot = number.0 * in_block + i;
                if word != 0
                    && slot < d.size / 8
                    && let Some(ino) = orphan_of(self.geo.seed, slot, word)
                {
                    out.push((self.geo.offset(block) + i * 8, ino));
                }
            }
        }
        Ok(out)
    }

    /// Empties a slot of the orphan table.
    pub(super) fn clear_orphan_slot(&mut self, slot: u64) -> Result<bool> {
        let at = slot * 8;
        let Some(d) = self.inode(Ino::ORPHANS)? else {
            return Ok(false);
        };
        let blocks = self.map_blocks(&MapRoot::of(&d))?.unwrap_or_default();
        let Some(block) = blocks.get(&self.geo.file_block(at)) else {
            return Ok(false);
        };
        let offset = self.geo.offset(*block) + self.geo.within_block(at);
        self.view.store_u64(offset, 0)?;
        Ok(true)
    }

    /// Rebuilds the orphan table from the readable slots.
    pub(super) fn renew_orphans(&mut self) -> Result<bool> {
        if !self.rebuilt.insert((Ino::ORPHANS.0, 0)) {
            return Ok(true);
        }
        let mut d = match self.inode(Ino::ORPHANS)? {
            Some(d) => d,
            None => Self::fresh_inode(FileType::Regular.mode_bits() | 0o600),
        };
        let orphans: Vec<Ino> = self.orphan_slots()?.into_iter().map(|s| s.1).collect();
        let in_block = self.geo.words_per_block();
        let mut data = FileBlocks::new();
        for number in 0..(orphans.len() as u64).div_ceil(in_block).max(1) {
            let block = self.alloc_zeroed()?;
            for i in 0..in_block {
                let slot = number * in_block + i;
                let Some(ino) = orphans.get(slot as usize) else {
                    break;
                };
                let word = orphan_word(self.geo.seed, slot, *ino);
                self.view.store_u64(self.geo.offset(block) + i * 8, word)?;
            }
            data.insert(FileBlock(number), block);
        }
        let (root, height, blocks) = self.build_map(Ino::ORPHANS, &data)?;
        (d.root, d.height, d.blocks) = (root, height as u8, blocks);
        d.size = self.geo.bytes(data.len() as u64);
        d.mode = FileType::Regular.mode_bits() | d.mode & 0o777;
        self.set_range(BitmapKind::Inodes, 0, 16, true)?;
        self.put_inode(Ino::ORPHANS, d)
    }
}
