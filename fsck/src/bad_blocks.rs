//! Bad blocks: the list on the medium, and what is known of failed pages.
//!
//! Failed pages are known from the kernel's list, and from reads that failed. A block under
//! one, and a block in the list, is *bad*: no pointer may lead to it
//! ([`Geometry::set_bad`]). Whatever named it is damaged, and is repaired as damage is: from a
//! copy, from what proves it elsewhere, or by a mark that the bytes are lost.
//!
//! A page that fails in the middle of a check is noted, and the check runs again.

use std::collections::BTreeSet;

use zerocopy::IntoBytes as _;

use super::owners::Owner;
use super::view::SECTOR;
use super::{Checker, Issue, View};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::media::bad_blocks::{ListBlock, read_list};
use pramfs_medium::media::bitmap::{BitmapKind, GroupDesc, GroupState};
use pramfs_medium::media::features::BAD_BLOCKS;
use pramfs_medium::media::superblock::{
    BLOCK_GROUPS_OFFSET, INODE_GROUPS_OFFSET, INODE_TABLE_OFFSET,
};
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::media::{DiskInode, Geometry, Ptr, SuperStatic};
use pramfs_medium::pmem::RegionView;
use pramfs_medium::types::{BlockRun, Bno, FileBlock, Ino, RegionOffset};

/// How often a check or a repair runs again because further pages have failed.
pub(super) const TRIES: usize = 16;

/// Returns the bad blocks of a region, and has the region treat what the kernel names as
/// failed.
pub(super) fn known(region: RegionView<'_>, geo: &Geometry, root: u64) -> Vec<BlockRun> {
    let mut failed = region.bad_ranges();
    // Without the kernel's list a check still finds what fails when it is read.
    if let Ok(found) = region.kernel_bad() {
        for range in found.ranges {
            let known = failed
                .iter()
                .any(|bad| bad.start <= range.start && range.end <= bad.end);
            if !known {
                region.mark_bad(range.clone());
                failed.push(range);
            }
        }
    }
    let mut runs: Vec<BlockRun> = failed
        .into_iter()
        .map(|range| {
            let Bno(first) = geo.block_at(RegionOffset(range.start));
            let end = geo.blocks_for(range.end).min(geo.blocks());
            BlockRun {
                start: Bno(first),
                len: end.saturating_sub(first),
            }
        })
        .filter(|run| run.len > 0)
        .collect();
    let list = read_list(geo, root, &mut |at, into| Ok(region.read(at.0, into)?));
    for block in list.unwrap_or_default() {
        runs.extend(block.extents);
    }
    // Two sectors of a block are two ranges.
    runs.sort_unstable_by_key(|run| run.start);
    runs.dedup_by(|next, last| {
        let joins = next.start <= last.end();
        if joins {
            last.len = last.len.max(next.end().0 - last.start.0);
        }
        joins
    });
    match runs.is_empty() {
        true => runs,
        false => without(&runs, &Rewritten::of(region, geo, &runs)),
    }
}

/// Bad blocks that stay where they are, because no other block could take their place: those of
/// the tables and the bitmaps, without which no free block is known, and of the sums of data. The
/// tables and the bitmaps are written anew.
struct Rewritten<'r, 'b> {
    region: RegionView<'r>,
    geo: &'b Geometry,
    bad: &'b [BlockRun],
    found: BTreeSet<u64>,
}

impl Rewritten<'_, '_> {
    fn of(region: RegionView<'_>, geo: &Geometry, bad: &[BlockRun]) -> BTreeSet<u64> {
        let mut found = Rewritten {
            region,
            geo,
            bad,
            found: BTreeSet::new(),
        };
        let kinds = [Some(BitmapKind::Blocks), Some(BitmapKind::Inodes), None];
        for kind in kinds {
            let (at, ino) = match kind {
                Some(BitmapKind::Blocks) => (BLOCK_GROUPS_OFFSET, Ino::BLOCK_GROUPS),
                Some(BitmapKind::Inodes) => (INODE_GROUPS_OFFSET, Ino::INODE_GROUPS),
                None => (INODE_TABLE_OFFSET, Ino::INODE_TABLE),
            };
            let inode = geo.pages().into_iter().find_map(|page| {
                let inode: DiskInode = region.read_pod((page + at).0).ok()?;
                let fits = inode.crc == inode.expected_crc(geo.seed, ino)
                    && u32::from(inode.height) <= geo.max_height();
                fits.then_some(inode)
            });
            if let Some(inode) = inode {
                let map = MapRoot::of(&inode);
                found.entry(
                    kind,
                    &map,
                    map.root,
                    map.height,
                    FileBlock(0),
                    &mut geo.blocks(),
                );
            }
        }
        found.found
    }

    /// Follows a pointer of a table. `left` bounds the walk over a hostile one.
    fn entry(
        &mut self,
        kind: Option<BitmapKind>,
        map: &MapRoot,
        ptr: Ptr,
        level: u32,
        first: FileBlock,
        left: &mut u64,
    ) {
        let geo = self.geo;
        let Ok(block) = map.open(geo, ptr, map.at(geo, level, first)) else {
            return;
        };
        if ptr.is_leaf() || *left == 0 {
            return;
        }
        *left -= 1;
        self.note(block);
        if level == 0 && kind.is_none() {
            return;
        }
        let mut words = vec![0u64; geo.words_per_block() as usize];
        if self
            .region
            .read(geo.offset(block).0, words.as_mut_bytes())
            .is_err()
        {
            return;
        }
        match kind {
            Some(kind) if level == 0 => {
                let each = GroupDesc::SIZE / 8;
                let group = first.0 * (words.len() / each) as u64;
                for (group, desc) in (group..).zip(words.chunks(each)) {
                    let GroupState::Bitmap(block) = GroupDesc::state(geo, kind, group, desc[0])
                    else {
                        continue;
                    };
                    self.note(block);
                    // The sums of data have their place before it.
                    if kind == BitmapKind::Blocks {
                        geo.tail_of(block).for_each(|block| self.note(Bno(block)));
                    }
                }
            }
            _ => {
                for (i, word) in (0..).zip(words).filter(|(_, word)| *word != 0) {
                    let first = first + i * geo.span(level - 1);
                    self.entry(kind, map, Ptr(word), level - 1, first, left);
                }
            }
        }
    }

    fn note(&mut self, block: Bno) {
        if self.bad.iter().any(|run| run.contains(block)) {
            self.found.insert(block.0);
        }
    }
}

/// Returns runs without some of their blocks.
fn without(runs: &[BlockRun], not: &BTreeSet<u64>) -> Vec<BlockRun> {
    let mut out = Vec::new();
    for run in runs {
        let mut start = run.start.0;
        for block in not
            .range(run.start.0..run.end().0)
            .copied()
            .chain([run.end().0])
        {
            if block > start {
                out.push(BlockRun {
                    start: Bno(start),
                    len: block - start,
                });
            }
            start = block + 1;
        }
    }
    out
}

/// Has the region treat the pages that failed under a view as failed. True if any was not
/// known: what was read is to be read again. A region whose file was cut short is another
/// matter: nothing of it may be given up.
pub(super) fn note_failures(region: RegionView<'_>, view: &View<'_>) -> bool {
    if region.is_cut() {
        return false;
    }
    let known = region.bad_ranges();
    let mut any = view.has_given_up();
    for at in view.failed() {
        if !known.iter().any(|bad| bad.contains(&at)) {
            region.mark_bad(at..at + SECTOR);
            any = true;
        }
    }
    any
}

impl Checker<'_> {
    /// Returns the static part in use: the first page's if that is valid.
    pub(super) fn static_part(&self) -> Result<Option<SuperStatic>> {
        for page in self.geo.pages() {
            if let Ok(fixed) = super::superblock::valid(self.region, page)? {
                return Ok(Some(fixed));
            }
        }
        Ok(None)
    }

    /// Checks the list of bad blocks, and claims its blocks and those that it names. Claims all
    /// other bad blocks too, so that nothing else can get them.
    pub(super) fn check_bad_blocks(&mut self) -> Result<()> {
        let Some(fixed) = self.static_part()? else {
            return Ok(());
        };
        let root = fixed.badblock_root;
        let (region, geo) = (self.region, self.geo.clone());
        let read = read_list(&geo, root, &mut |at, into| Ok(region.read(at, into)?));
        let list = match read {
            Ok(list) => list,
            Err(e) => {
                let what = match e {
                    Error::Corrupt { object, what, .. } => format!("{object}: {what}"),
                    other => other.to_string(),
                };
                self.add(Issue::BadBlockListDamaged { what });
                Vec::new()
            }
        };
        if (root != 0) != (fixed.ro_compat & BAD_BLOCKS != 0) {
            let what = "the feature bad_blocks does not fit its root".into();
            self.add(Issue::BadBlockListDamaged { what });
        }
        for block in &list {
            self.note_owner(block.block.0, 1, Owner::BadBlockList);
            self.claims.claim(block.block.0, 1);
        }
        for run in list.iter().flat_map(|block| &block.extents) {
            self.claim_each(run);
        }
        for run in geo.bad() {
            for run in unlisted(&geo, run, &list) {
                self.claim_each(&run);
                self.unlisted.push(run);
                let (start, len) = (run.start.0, run.len);
                self.add(Issue::BadBlockUnlisted { start, len });
            }
        }
        Ok(())
    }

    /// Lists failed blocks that were to be written anew where they are, and that nothing owns any
    /// more. Comes after all claims.
    pub(super) fn check_unowned_bad_blocks(&mut self) {
        for range in self.region.region().bad_ranges() {
            let Bno(first) = self.geo.block_at(RegionOffset(range.start));
            let end = self.geo.blocks_for(range.end).min(self.geo.blocks());
            for block in first..end {
                let is_owned = self.claims.word(block / 64 * 64) >> (block % 64) & 1 != 0;
                if !is_owned && !self.geo.is_fixed(block, 1) {
                    self.note_owner(block, 1, Owner::BadBlock);
                    self.claims.claim(block, 1);
                    self.unlisted.push(BlockRun::one(Bno(block)));
                    self.add(Issue::BadBlockUnlisted {
                        start: block,
                        len: 1,
                    });
                }
            }
        }
    }

    /// Claims blocks of which some may have an owner.
    fn claim_each(&mut self, run: &BlockRun) {
        self.note_owner(run.start.0, run.len, Owner::BadBlock);
        if self.claims.claim(run.start.0, run.len).is_some() {
            for block in run.blocks() {
                self.claims.claim(block.0, 1);
            }
        }
    }
}

/// Returns the parts of a run that no list names, without the blocks of the format.
fn unlisted(geo: &Geometry, run: &BlockRun, list: &[ListBlock]) -> Vec<BlockRun> {
    let named = |block: Bno| {
        geo.is_of_format(block.0, 1)
            || list
                .iter()
                .any(|of| of.block == block || of.extents.iter().any(|run| run.contains(block)))
    };
    let mut out: Vec<BlockRun> = Vec::new();
    for block in run.blocks().filter(|block| !named(*block)) {
        match out.last_mut() {
            Some(last) if last.end() == block => last.len += 1,
            _ => out.push(BlockRun::one(block)),
        }
    }
    out
}
