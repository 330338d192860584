//! Checks the two superblock pages against their checksums and against each
//! other, and reads the internal inodes in them.

use zerocopy::IntoBytes;

use super::bad_blocks;
use super::owners::Owner;
use super::{CheckOptions, Checker, Extent, Issue, Page, Part, Report, View};
use pramfs_medium::error::Result;
use pramfs_medium::media::checksum::{crc, unseal};
use pramfs_medium::media::features::{self, Mask};
use pramfs_medium::media::probe::check_geometry;
use pramfs_medium::media::scrub::ScrubSlots;
use pramfs_medium::media::superblock::*;
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::media::{DiskInode, Geometry, SuperStatic, probe_superblock};
use pramfs_medium::pmem::{PmemError, RegionView};
use pramfs_medium::types::{Bno, Ino, RegionOffset};

/// Returns the geometry from the usable page; `None` ends the check.
pub(super) fn open(
    region: RegionView<'_>,
    options: &CheckOptions,
    report: &mut Report,
) -> Option<Geometry> {
    let mut add = |issue| report.add(issue, options.max_findings);
    let info = match probe_superblock(region) {
        Ok(info) => info,
        Err(e) => {
            // The mount's error advises mkfs, which would destroy other contents.
            let blank = |at| !region.read_pod::<u64>(at).is_ok_and(|magic| magic == MAGIC);
            let large_enough = region.len() >= MIN_REGION;
            let why = match large_enough && blank(0) && blank(COPY_OFFSET) {
                true => "no pramfs file system was found: is it the right device or file?".into(),
                false => e.to_string(),
            };
            add(Issue::NoSuperblock { why });
            return None;
        }
    };
    let unknown = |mask, bits| features::names(mask, features::unsupported(mask, bits));
    let mut names = unknown(Mask::Incompat, info.fixed.incompat);
    let of_image = features::METADATA_IMAGE | features::SCRAMBLED;
    names.extend(unknown(Mask::RoCompat, info.fixed.ro_compat & !of_image));
    if !names.is_empty() {
        add(Issue::UnknownFeatures { names });
        return None;
    }
    let mut geo = info.geometry();
    geo.set_bad(bad_blocks::known(region, &geo, info.fixed.badblock_root));
    Some(geo)
}

/// Reads the static part of a page; the inner error says what is wrong with it.
pub(super) fn valid(
    region: &View<'_>,
    at: RegionOffset,
) -> Result<Result<SuperStatic, &'static str>, PmemError> {
    let fixed: SuperStatic = region.read_pod(at)?;
    Ok(if fixed.magic != MAGIC {
        Err("no magic number")
    } else if fixed.crc != crc(0, &fixed.as_bytes()[..SuperStatic::SIZE - 4]) {
        Err("checksum mismatch")
    } else if fixed.version != VERSION {
        Err("unknown format version")
    } else {
        Ok(fixed)
    })
}

impl Checker<'_> {
    pub(super) fn pages(&self) -> [(Page, RegionOffset); 2] {
        let [first, copy] = self.geo.pages();
        [(Page::First, first), (Page::Copy, copy)]
    }

    /// Checks the static parts of both pages.
    pub(super) fn check_pages(&mut self) -> Result<()> {
        let [(_, first), (_, copy)] = self.pages();
        let parts = [valid(self.region, first)?, valid(self.region, copy)?];
        match parts {
            [Ok(a), Ok(b)] if a != b => {
                let possible = check_geometry(&b, self.region.region().len()).is_ok();
                self.add(match a.is_same_but_changed(&b) {
                    // A size that the region does not have was never stored by a grow.
                    true if a.differs_in_size(&b) && possible => Issue::GrowInterrupted,
                    true if possible => Issue::LabelsDiffer,
                    _ => Issue::SuperblocksDiffer,
                });
            }
            [Ok(_), Ok(_)] => {}
            [Err(what), Ok(_)] => self.add(Issue::SuperblockDamaged {
                page: Page::First,
                what,
            }),
            [_, Err(what)] => self.add(Issue::SuperblockDamaged {
                page: Page::Copy,
                what,
            }),
        }
        Ok(())
    }

    /// Checks the dynamic words. Returns the checkpoint, 0 if it is lost.
    pub(super) fn check_dynamic(&mut self) -> Result<u64> {
        let mut words = Vec::new();
        for (page, at) in self.pages() {
            let d: SuperDynamic = self.region.read_pod(at + DYNAMIC_OFFSET)?;
            let checkpoint = unseal(self.geo.seed, d.checkpoint);
            if checkpoint.is_none() {
                self.add(Issue::CheckpointDamaged { page });
            }
            words.push((d, checkpoint));
        }
        let both = words.iter().all(|(_, c)| c.is_some());
        let plain = |d: &SuperDynamic| SuperDynamic {
            checkpoint: if both { d.checkpoint } else { 0 },
            ..*d
        };
        let (first, copy) = (words[0].0, words[1].0);
        if plain(&first) != plain(&copy) {
            self.add(Issue::DynamicWordsDiffer);
        }
        match first.state {
            STATE_CLEAN => {}
            STATE_ACTIVE => self.add(Issue::NotUnmounted),
            state => self.add(Issue::StateUnknown { state }),
        }
        if first.last_error.count > 0 {
            self.add(Issue::ErrorsRecorded {
                count: first.last_error.count,
                errno: first.first_error.errno,
            });
        }
        self.check_scrubs();
        Ok(words.iter().filter_map(|(_, c)| *c).max().unwrap_or(0))
    }

    /// Checks the record of the scrubs.
    fn check_scrubs(&mut self) {
        let slots = ScrubSlots::read_by(&self.geo, |at| self.region.read_pod(at).ok());
        if slots.is_damaged() {
            self.add(Issue::ScrubRecordDamaged);
        }
        if let Some(count) = slots
            .newest
            .map(|record| record.findings)
            .filter(|n| *n > 0)
        {
            self.add(Issue::ScrubFindings { count });
        }
    }

    /// Returns the three internal inodes; `None` if one is lost.
    pub(super) fn internal_inodes(&mut self) -> Result<Option<[DiskInode; 3]>> {
        let mut found = [None; 3];
        let all = [
            (INODE_TABLE_OFFSET, Ino::INODE_TABLE),
            (INODE_GROUPS_OFFSET, Ino::INODE_GROUPS),
            (BLOCK_GROUPS_OFFSET, Ino::BLOCK_GROUPS),
        ];
        for (slot, (at, ino)) in found.iter_mut().zip(all) {
            let mut good = Vec::new();
            let mut bad = Vec::new();
            for (page, page_at) in self.pages() {
                let d = self.read_inode(page_at + at)?;
                let fits = d.crc == d.expected_crc(self.geo.seed, ino)
                    && d.ino == ino.0
                    && u32::from(d.height) <= self.geo.max_height();
                if fits {
                    good.push(d);
                } else {
                    bad.push(page);
                }
            }
            match (&good[..], &bad[..]) {
                ([], _) => self.add(Issue::InternalInodeLost { ino }),
                ([_], &[page]) => self.add(Issue::InternalInodeDamaged { page, ino }),
                ([a, b], _) if a != b => self.add(Issue::InternalInodesDiffer { ino }),
                _ => {}
            }
            *slot = good.first().copied();
        }
        Ok(match found {
            [Some(a), Some(b), Some(c)] => Some([a, b, c]),
            _ => None,
        })
    }

    /// Returns the static part of the first valid page.
    pub(super) fn valid_page(&self) -> Result<Option<SuperStatic>> {
        for (_, page) in self.pages() {
            if let Ok(fixed) = valid(self.region, page)? {
                return Ok(Some(fixed));
            }
        }
        Ok(None)
    }

    /// Claims the blocks that the format itself owns.
    pub(super) fn claim_fixed(&mut self) {
        let areas = [
            (RegionOffset::START, PAGE, Owner::Superblock),
            (self.geo.copy_offset, PAGE, Owner::SuperblockCopy),
            (
                self.geo.journal_offset,
                self.geo.journal_len,
                Owner::Journal,
            ),
        ];
        for (at, len, owner) in areas {
            let Bno(first) = self.geo.block_at(at);
            let end = self.geo.blocks_for(at.0 + len);
            self.note_owner(first, end - first, owner);
            self.claims.claim(first, end - first);
        }
    }

    /// Returns the blocks of an internal inode.
    pub(super) fn walk_internal(&mut self, d: &DiskInode) -> Result<Vec<Extent>> {
        let ino = Ino(d.ino);
        let walked = self.walk_map(&MapRoot::of(d), ino, Part::Contents, true)?;
        if !walked.damaged {
            self.check_block_count(ino, d.blocks, walked.blocks);
        }
        Ok(walked.extents)
    }
}
