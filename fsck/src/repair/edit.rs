//! Building blocks of every repair: inodes, bits, free blocks. Selects the repair
//! of each finding.

use zerocopy::IntoBytes;

use super::{GroupBits, Repairer};
use crate::findings::{Issue, Part};
use crate::maps::place_of;
use crate::outcome::{Done, Loss, Lost};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::bitmap::{BitmapKind, GroupDesc};
use pramfs_medium::media::checksum::word_sum;
use pramfs_medium::media::inode::{ALL_BLOCKS, FL_LOST, INODE_SIZE, NO_BLOCKS};
use pramfs_medium::media::pointer::Ptr;
use pramfs_medium::media::superblock::{
    BLOCK_GROUPS_OFFSET, INODE_GROUPS_OFFSET, INODE_TABLE_OFFSET,
};
use pramfs_medium::types::{Bno, FileBlock, FileType, Ino, RegionOffset};

/// Returns the index of a kind in the pairs of [`Known`](super::Known).
pub(super) fn place(kind: BitmapKind) -> usize {
    usize::from(kind == BitmapKind::Inodes)
}

impl Repairer<'_, '_> {
    /// Repairs one finding. Returns true if it is repaired, perhaps together with
    /// another, and false if it cannot be. `todo` holds all findings of this round.
    pub(super) fn repair(
        &mut self,
        issue: &Issue,
        todo: &[(Issue, Option<usize>)],
    ) -> Result<bool> {
        use Issue::*;
        match issue {
            SuperblockDamaged { .. }
            | SuperblocksDiffer
            | LabelsDiffer
            | GrowInterrupted
            | CheckpointDamaged { .. }
            | InternalInodeDamaged { .. }
            | InternalInodesDiffer { .. }
            | RetiredWordDamaged { .. }
            | RecordTorn { .. }
            | LaneDamaged { .. }
            | StateUnknown { .. }
            | DynamicWordsDiffer
            | NotUnmounted
            | ErrorsRecorded { .. }
            | ScrubFindings { .. }
            | ScrubRecordDamaged => self.repair_page(issue),
            InternalInodeLost { ino } => self.repair_internal(*ino, true),
            MapPointer { ino, .. }
            | MapHole { ino, .. }
            | MapEmpty { ino, .. }
            | BlocksMissing { ino, .. }
            | BlockCount { ino, .. }
                if *ino >= Ino::INODE_TABLE =>
            {
                self.repair_internal(*ino, false)
            }
            DescriptorMissing { kind, .. } => self.repair_internal(kind.owner(), false),
            BitmapPointer { kind, group } => self.repair_bitmap_pointer(*kind, *group),
            BitmapSum { kind, group } => self.repair_sum(*kind, *group),
            BitsPastEnd { kind, group } => self.repair_past_end(*kind, *group),
            ReservedInodeFree { .. } => self.set_range(BitmapKind::Inodes, 0, 16, true),
            BlocksLeaked { start, .. } => self.repair_leaked(*start, todo),
            BlocksFree { start, len } => self.set_range(BitmapKind::Blocks, *start, *len, true),
            InodeDamaged { ino } => self.repair_inode(*ino),
            InodeMissing { ino } => self.repair_missing(*ino),
            InodeField { ino, .. } => self.repair_fields(*ino),
            InodeReserved { ino } => self.repair_reserved(*ino),
            MapPointer { ino, .. } | MapHole { ino, .. } | MapEmpty { ino, .. }
                if *ino == Ino::ORPHANS =>
            {
                self.did(Done::Rebuilt);
                self.renew_orphans()
            }
            MapPointer {
                ino, level, first, ..
            } if *ino == Ino::LEASES => self.repair_lease_pointer(*level, FileBlock(*first)),
            MapHole { ino, .. } | MapEmpty { ino, .. } if *ino == Ino::LEASES => {
                self.empty_leases()
            }
            MapEmpty {
                ino,
                part: Part::Contents,
                level,
                first,
            } => self.repair_empty(*ino, *level, FileBlock(*first), todo),
            MapEmpty { ino, part, .. } => self.rebuild(*ino, *part),
            BlocksMissing { ino, found, .. } => self.repair_missing_blocks(*ino, *found, todo),
            EntriesMissing { ino, found, .. } => self.repair_entries(*ino, *found),
            LsnsUsedUp { .. } => self.renumber(),
            MapPointer {
                ino,
                part,
                level,
                first,
            } => self.repair_pointer(*ino, *part, *level, FileBlock(*first)),
            MapHole { ino, part, .. } => self.repair_hole(*ino, *part),
            BadTarget { ino } | TargetChecksum { ino } => self.repair_target(*ino),
            BlockUsedTwice { ino, .. } if *ino >= Ino::INODE_TABLE => {
                self.repair_internal(*ino, false)
            }
            BlockUsedTwice { block, .. } => self.repair_twice(*block, todo),
            TreePointer { ino, part, .. }
            | TreeEmpty { ino, part, .. }
            | TreeLeaf { ino, part, .. }
            | DuplicateName { ino, part, .. } => self.rebuild(*ino, *part),
            XattrItem { ino, .. } | XattrChecksum { ino, .. } | AclDamaged { ino, .. } => {
                self.rebuild_xattrs(*ino)
            }
            LostFlag { ino, marked } => self.edit(*ino, |d| {
                d.flags = d.flags & !FL_LOST | if *marked { FL_LOST } else { 0 };
            }),
            MarkedRange {
                ino, is_flagged, ..
            } => self.edit(*ino, |d| {
                d.set_unsummed(if *is_flagged { ALL_BLOCKS } else { NO_BLOCKS });
            }),
            AclMode { ino, found, .. } => {
                self.edit(*ino, |d| d.mode = d.mode & !0o777 | found & 0o777)
            }
            DanglingEntry { dir, name, .. } | EntryReserved { dir, name, .. } => {
                self.lose_name(*dir, name);
                self.remove_entry(*dir, name)
            }
            EntryType { dir, name, ino } => self.repair_entry_type(*dir, name, *ino),
            NameOfOrphan { ino } => self.repair_links(*ino),
            DirectoryNames { ino, .. } => self.repair_directory_names(*ino, todo),
            DirectoryLoop { ino } => self.repair_loop(*ino, todo),
            OrphanSlotDamaged { slot }
            | OrphanSlotWrong { slot, .. }
            | OrphanTwice { slot, .. } => self.clear_orphan_slot(*slot),
            LeaseSlotDamaged { slot, appended } => self.repair_lease_slot(*slot, *appended),
            LeaseSlotWrong { slot, .. } => self.clear_lease_slot(*slot),
            BadBlockListDamaged { .. } => self.clear_bad_list(),
            BadBlockUnlisted { start, len } => self.list_bad_blocks(*start, *len),
            LeaseFeatureMissing { name } => self.repair_lease_features(name),
            AppendWindowLeft { slot, appended } => self.clear_left_window(*slot, *appended),
            AppendWindowDamaged { slot, bytes, .. } | AppendEndDamaged { slot, bytes, .. } => {
                self.close_window(*slot, Some(*bytes))
            }
            AppendWindowWrong { slot, .. } | AppendWindowOpen { slot, .. } => {
                self.close_window(*slot, None)
            }
            OrphanNotEmpty { ino } => self.repair_orphan_not_empty(*ino),
            InodeLeaked { .. } => self.reconnect(todo),
            LinkCount { ino, .. } => self.repair_links(*ino),
            EntryCount { ino, found, .. } => self.edit(*ino, |d| d.size = *found),
            BlockCount { ino, found, .. } => self.edit(*ino, |d| d.blocks = *found),
            DirectoryParent { ino, found, .. } => self.edit(*ino, |d| d.parent_or_rdev = found.0),
            NoSuperblock { .. }
            | UnknownFeatures { .. }
            | DataSum { .. }
            | LiveRecords { .. }
            | RecordsRefused { .. }
            | Unreadable { .. } => Ok(false),
        }
    }

    // ---- the report

    /// Records the action on the current finding.
    pub(super) fn did(&mut self, done: Done) {
        self.done = Some(done);
    }

    /// Records the action on a tree (by its first level) or on an inode (0), for
    /// all findings of this round that concern it.
    pub(super) fn fate(&mut self, key: (u64, u32), done: Done) {
        self.fates.insert(key, done);
    }

    /// Records a loss.
    pub(super) fn lose(&mut self, ino: Option<Ino>, what: Lost) {
        let path = ino.and_then(|ino| self.notes.paths.path(ino));
        self.lose_at(ino, path, what);
    }

    /// Records the loss of a name whose inode no longer exists.
    fn lose_name(&mut self, dir: Ino, name: &[u8]) {
        let path = self.notes.paths.below(dir, name);
        if path.is_none() {
            self.notes
                .late
                .push((self.notes.lost.len(), dir, name.to_vec()));
            let (ino, what) = (None, Lost::Name);
            return self.notes.lost.push(Loss { ino, path, what });
        }
        self.lose_at(None, path, Lost::Name);
    }

    pub(super) fn lose_at(&mut self, ino: Option<Ino>, path: Option<Vec<u8>>, what: Lost) {
        let loss = Loss { ino, path, what };
        if self.notes.reported.insert(loss.clone()) {
            if let (Some(ino), Lost::Bytes { .. }) = (loss.ino, &loss.what) {
                let ranges = self.notes.ranges.entry(ino.0).or_default();
                ranges.push(self.notes.lost.len());
            }
            self.notes.lost.push(loss);
        }
    }

    // ---- inodes

    /// Returns the offset of an inode.
    pub(super) fn home(&self, ino: Ino) -> Option<RegionOffset> {
        let at = ino.0.checked_mul(INODE_SIZE)?;
        place_of(self.geo, &self.known.table, at)
    }

    /// Reads an inode; `None` on a checksum or number mismatch.
    pub(super) fn inode(&self, ino: Ino) -> Result<Option<DiskInode>> {
        let Some(home) = self.home(ino) else {
            return Ok(None);
        };
        let d: DiskInode = self.view.read_pod(home)?;
        let fits = d.crc == d.expected_crc(self.geo.seed, ino) && d.ino == ino.0;
        Ok(fits.then_some(d))
    }

    /// Reads an inode that is in use; `None` if it is not, or is damaged.
    pub(super) fn used(&mut self, ino: Ino) -> Result<Option<DiskInode>> {
        if self.known.inodes.get(ino).is_none() {
            return Ok(None);
        }
        self.inode(ino)
    }

    pub(super) fn put_inode(&mut self, ino: Ino, mut d: DiskInode) -> Result<bool> {
        let Some(home) = self.home(ino) else {
            return Ok(false);
        };
        d.ino = ino.0;
        d.change = d.change.wrapping_add(1);
        d.seal(self.geo.seed, ino);
        self.view.store(home, d.as_bytes())?;
        Ok(true)
    }

    /// Changes an inode. Returns false if it cannot be read.
    pub(super) fn edit(&mut self, ino: Ino, f: impl FnOnce(&mut DiskInode)) -> Result<bool> {
        match self.inode(ino)? {
            Some(mut d) => {
                f(&mut d);
                self.put_inode(ino, d)
            }
            None => Ok(false),
        }
    }

    /// Returns the type of an inode; `None` if it cannot be read.
    pub(super) fn kind(&self, ino: Ino) -> Result<Option<FileType>> {
        Ok(self.inode(ino)?.and_then(|d| FileType::from_mode(d.mode)))
    }

    /// Marks an inode number as free. Its blocks then have no owner.
    pub(super) fn free_inode(&mut self, ino: Ino) -> Result<bool> {
        self.recount(ino);
        self.set_range(BitmapKind::Inodes, ino.0, 1, false)
    }

    /// Returns the offset of an internal inode in a superblock page.
    pub(super) fn internal_at(ino: Ino) -> u64 {
        match ino {
            Ino::INODE_TABLE => INODE_TABLE_OFFSET,
            Ino::INODE_GROUPS => INODE_GROUPS_OFFSET,
            _ => BLOCK_GROUPS_OFFSET,
        }
    }

    /// Whether `d` is a valid copy of an internal inode.
    pub(super) fn internal_fits(&self, ino: Ino, d: &DiskInode) -> bool {
        d.crc == d.expected_crc(self.geo.seed, ino)
            && d.ino == ino.0
            && u32::from(d.height) <= self.geo.max_height()
    }

    pub(super) fn put_internal(&mut self, ino: Ino, mut d: DiskInode) -> Result<bool> {
        d.ino = ino.0;
        d.change = d.change.wrapping_add(1);
        d.seal(self.geo.seed, ino);
        for page in self.geo.pages() {
            self.view
                .store(page + Self::internal_at(ino), d.as_bytes())?;
        }
        Ok(true)
    }

    // ---- bits

    /// Returns the offset of a group descriptor.
    pub(super) fn desc_at(&self, kind: BitmapKind, group: u64) -> Option<RegionOffset> {
        let at = group * GroupDesc::SIZE as u64;
        place_of(self.geo, &self.known.descs[place(kind)], at)
    }

    /// Returns the number of bits of a whole bitmap.
    pub(super) fn bits(&self, kind: BitmapKind) -> u64 {
        match kind {
            BitmapKind::Blocks => self.geo.blocks(),
            BitmapKind::Inodes => self.geo.inodes_max(),
        }
    }

    /// Reads the words of a block.
    pub(super) fn words(&self, at: RegionOffset) -> Result<Vec<u64>> {
        let mut words = vec![0u64; self.geo.words_per_block() as usize];
        self.view.read(at, words.as_mut_bytes())?;
        Ok(words)
    }

    pub(super) fn sum_of(&self, words: &[u64]) -> u64 {
        let part = |(i, w): (u64, &u64)| word_sum(self.geo.seed, i, *w);
        (0..).zip(words).map(part).fold(0, u64::wrapping_add)
    }

    /// Sets or clears bits of a bitmap, group by group.
    pub(super) fn set_range(
        &mut self,
        kind: BitmapKind,
        start: u64,
        len: u64,
        on: bool,
    ) -> Result<bool> {
        let per_group = self.geo.bits_per_group();
        let (mut at, end) = (start, (start + len).min(self.bits(kind)));
        while at < end {
            let group = at / per_group;
            let stop = end.min((group + 1) * per_group);
            let known = self.known.groups[place(kind)].get(group as usize).copied();
            let base = match known {
                Some(GroupBits::At(base)) => base,
                Some(GroupBits::Clear) if !on => {
                    at = stop;
                    continue;
                }
                Some(GroupBits::Clear) => self.make_group(kind, group)?,
                _ => return Ok(false),
            };
            let Some(desc) = self.desc_at(kind, group) else {
                return Ok(false);
            };
            let mut sum = self.view.load_u64(desc + 8)?;
            while at < stop {
                let (index, bit) = (at % per_group / 64, at % 64);
                let n = (64 - bit).min(stop - at);
                let mask = (u64::MAX >> (64 - n)) << bit;
                let old = self.view.load_u64(base + index * 8)?;
                let new = if on { old | mask } else { old & !mask };
                let part = |w| word_sum(self.geo.seed, index, w);
                sum = sum.wrapping_sub(part(old)).wrapping_add(part(new));
                self.view.store_u64(base + index * 8, new)?;
                at += n;
            }
            self.view.store_u64(desc + 8, sum)?;
        }
        Ok(true)
    }

    /// Creates the bitmap of an unused group. Returns its offset.
    pub(super) fn make_group(&mut self, kind: BitmapKind, group: u64) -> Result<RegionOffset> {
        let Some(desc_at) = self.desc_at(kind, group) else {
            return Err(Error::NoSpace("no descriptor for the group"));
        };
        let block = self.bitmap_block(kind, group)?;
        let at = self.geo.offset(block);
        let mut words = vec![0u64; self.geo.words_per_block() as usize];
        let first = group * self.geo.bits_per_group();
        if kind == BitmapKind::Blocks && block.0 / self.geo.bits_per_group() == group {
            for bit in self.geo.tail_of(block).map(|block| block - first) {
                words[bit as usize / 64] |= 1 << (bit % 64);
            }
        }
        let desc = GroupDesc {
            bitmap: Ptr::new(block, 0, kind.bitmap_at(self.geo, group)).0,
            sum: self.sum_of(&words),
            ..GroupDesc::default()
        };
        self.view.store(at, words.as_bytes())?;
        self.view.store(desc_at, desc.as_bytes())?;
        self.known.groups[place(kind)][group as usize] = GroupBits::At(at);
        Ok(at)
    }

    /// Allocates a block for the bitmap of a group. A block group uses its own
    /// last block if that is free, and with sums no other: they lie before it.
    pub(super) fn bitmap_block(&mut self, kind: BitmapKind, group: u64) -> Result<Bno> {
        let per_group = self.geo.bits_per_group();
        let last = ((group + 1) * per_group).min(self.geo.blocks()) - 1;
        let claims = &mut self.known.claims;
        if kind == BitmapKind::Blocks {
            let mut tail = self.geo.tail_of(Bno(last));
            let fits = tail.start >= group * per_group
                && !self.geo.is_fixed(tail.start, tail.end - tail.start);
            if fits && tail.all(|block| claims.word(block / 64 * 64) >> (block % 64) & 1 == 0) {
                let tail = self.geo.tail_of(Bno(last));
                claims.claim(tail.start, tail.end - tail.start);
                return Ok(Bno(last));
            }
            if self.geo.data_sums {
                return Err(Error::NoSpace(
                    "the place of the sums of a block group is in use",
                ));
            }
        }
        self.alloc()
    }

    // ---- free blocks

    /// Allocates a block that has no owner and is free in the bitmap. A later
    /// round sets its bit. If the bitmap of a group is damaged, the search relies
    /// on the owners found instead: only as a last resort, and not while blocks
    /// may be hidden behind damage.
    pub(super) fn alloc(&mut self) -> Result<Bno> {
        for lenient in [false, true] {
            if let Some(block) = self.free_block(lenient)? {
                self.known.claims.claim(block, 1);
                return Ok(Bno(block));
            }
        }
        Err(Error::NoSpace("no free block for the repair"))
    }

    fn free_block(&mut self, lenient: bool) -> Result<Option<u64>> {
        let per_group = self.geo.bits_per_group();
        let use_claims = lenient && !self.known.hidden_blocks;
        let mut at = self.cursor[usize::from(lenient)];
        while at < self.geo.blocks() {
            let group = at / per_group;
            let first = group * per_group;
            let end = (first + per_group).min(self.geo.blocks());
            let sum_matches = !self
                .known
                .bad_sums
                .contains(&(BitmapKind::Blocks.code(), group));
            let base = match self.known.groups[0].get(group as usize) {
                Some(GroupBits::At(base)) if sum_matches || lenient => Some(*base),
                // Its last blocks will hold its bitmap and its sums.
                Some(GroupBits::Clear) => None,
                _ if use_claims => None,
                _ => {
                    at = end;
                    continue;
                }
            };
            let taken = match base {
                Some(_) if use_claims && !sum_matches => 0,
                Some(base) => self.view.load_u64(base + (at - first) / 64 * 8)?,
                None => (self.geo.tail_of(Bno(end - 1)))
                    .filter(|block| block / 64 == at / 64)
                    .fold(0, |taken, block| taken | 1 << (block % 64)),
            };
            let mut free = !(taken | self.known.claims.word(at / 64 * 64));
            free &= u64::MAX << (at % 64);
            let next = (at / 64 + 1) * 64;
            if free != 0 {
                let block = at / 64 * 64 + u64::from(free.trailing_zeros());
                if block < end {
                    self.cursor[usize::from(lenient)] = block;
                    return Ok(Some(block));
                }
            }
            at = next.min(end);
        }
        self.cursor[usize::from(lenient)] = at;
        Ok(None)
    }

    /// Allocates a block of zeros.
    pub(super) fn alloc_zeroed(&mut self) -> Result<Bno> {
        let block = self.alloc()?;
        let zeros = vec![0; self.geo.block_size as usize];
        self.view.store(self.geo.offset(block), &zeros)?;
        Ok(block)
    }

    /// Whether a block has no known owner and the bitmap of its group is not found.
    pub(super) fn is_unknown(&self, block: u64) -> bool {
        let group = (block / self.geo.bits_per_group()) as usize;
        self.known.groups[0].get(group) == Some(&GroupBits::Unknown)
            && self.known.claims.word(block / 64 * 64) >> (block % 64) & 1 == 0
    }

    /// Whether a block is in use by the bitmap and has no known owner.
    pub(super) fn is_lost(&self, block: u64) -> Result<bool> {
        if block == 0 || block >= self.geo.blocks() {
            return Ok(false);
        }
        if self.known.claims.word(block / 64 * 64) >> (block % 64) & 1 != 0 {
            return Ok(false);
        }
        let per_group = self.geo.bits_per_group();
        match self.known.groups[0].get((block / per_group) as usize) {
            Some(GroupBits::At(base)) => {
                let word = self.view.load_u64(*base + block % per_group / 64 * 8)?;
                Ok(word >> (block % 64) & 1 != 0)
            }
            _ => Ok(false),
        }
    }
}
