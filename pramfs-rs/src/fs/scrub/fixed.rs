//! Superblock pages, the list of bad blocks, journal, groups and internal tables.

use crate::fs::scrub::position::Phase;
use crate::fs::scrub::unit::{Scrubber, Unit};
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::map::MapRef;
use pramfs_medium::media::bitmap::{BitmapKind, GroupDesc};
use pramfs_medium::media::checksum::unseal;
use pramfs_medium::media::superblock::{
    BLOCK_GROUPS_OFFSET, DYNAMIC_OFFSET, INODE_GROUPS_OFFSET, INODE_TABLE_OFFSET, MAGIC, PAGE,
};
use pramfs_medium::media::{DiskInode, SuperDynamic, SuperStatic};
use pramfs_medium::types::{FileBlock, Ino, RegionOffset};

use crate::fs::engine::superblock::internal;

/// The internal inodes, and where they are in a page.
const INTERNAL: [(u64, Ino); 3] = [
    (INODE_TABLE_OFFSET, Ino::INODE_TABLE),
    (INODE_GROUPS_OFFSET, Ino::INODE_GROUPS),
    (BLOCK_GROUPS_OFFSET, Ino::BLOCK_GROUPS),
];

impl Scrubber<'_> {
    /// Checks both superblock pages, and the list that they lead to.
    pub(super) fn pages(&mut self) -> Result<Unit> {
        let geo = &self.engine.vol.geo;
        let [first, copy] = geo.pages();
        let mut unit = Unit::done(self.next_phase(), 2 * PAGE);
        for (name, page) in [
            ("the first superblock page", first),
            ("the copy of the superblock", copy),
        ] {
            if let Err(e) = self
                .static_part(name, page)
                .and_then(|()| self.page(name, page))
            {
                unit.add(e, None, None)?;
            }
        }
        for (at, ino) in INTERNAL {
            if let Err(e) = self.internal_inode(at, ino) {
                unit.add(e, None, None)?;
            }
        }
        let vol = &self.engine.vol;
        let root = || self.engine.super_state.fixed.lock().badblock_root;
        match vol.check_bad_list(root) {
            Ok(blocks) => unit.bytes += geo.bytes(blocks),
            Err(e) => unit.add(e, None, None)?,
        }
        Ok(unit)
    }

    /// Checks the static part of a page against its checksum and against the one in use.
    fn static_part(&self, name: &str, page: RegionOffset) -> Result<()> {
        // A change of it stores both pages under this lock.
        let used = self.engine.super_state.fixed.lock();
        let there: SuperStatic = self.engine.vol.medium().read_pod(page)?;
        if there.magic != MAGIC || there.crc != there.expected_crc() {
            let what = "its checksum does not match";
            return Err(Error::corrupt(Damage::SuperblockDamaged, name, what));
        }
        if there != *used {
            let what = "it differs from the superblock in use";
            return Err(Error::corrupt(Damage::SuperblocksDiffer, name, what));
        }
        Ok(())
    }

    /// Reads a whole page, and checks the checkpoint in it.
    fn page(&self, name: &str, page: RegionOffset) -> Result<()> {
        let (medium, geo) = (self.engine.vol.medium(), &self.engine.vol.geo);
        medium.read(page, &mut vec![0; PAGE as usize])?;
        let dynamic: SuperDynamic = medium.read_pod(page + DYNAMIC_OFFSET)?;
        match unseal(geo.seed, dynamic.checkpoint) {
            Some(_) => Ok(()),
            None => Err(Error::corrupt(
                Damage::CheckpointDamaged,
                name,
                "its checkpoint is damaged",
            )),
        }
    }

    /// Checks an internal inode in both pages.
    fn internal_inode(&self, at: u64, ino: Ino) -> Result<()> {
        let (medium, geo) = (self.engine.vol.medium(), &self.engine.vol.geo);
        let mut both = Vec::new();
        for page in geo.pages() {
            let disk: DiskInode = medium.read_pod(page + at)?;
            if disk.crc != disk.expected_crc(geo.seed, ino) || disk.ino != ino.0 {
                return Err(Error::corrupt(
                    Damage::InternalInodeDamaged,
                    format!("the internal inode at byte {} of the region", page.0 + at),
                    "its checksum does not match",
                ));
            }
            both.push(disk);
        }
        match both.windows(2).all(|pair| pair[0] == pair[1]) {
            true => Ok(()),
            false => Err(Error::corrupt(
                Damage::InternalInodesDiffer,
                format!("the internal inode at {at:#x} of the superblock pages"),
                "the pages differ",
            )),
        }
    }

    /// Checks a lane of the journal.
    pub(super) fn lane(&mut self) -> Result<Unit> {
        let vol = &self.engine.vol;
        let lane = u32::try_from(self.at.object).unwrap_or(u32::MAX);
        if lane >= vol.geo.lanes {
            return Ok(Unit::done(self.next_phase(), 0));
        }
        let bytes = 64 + 2 * vol.geo.slot_size;
        let mut unit = Unit::done(self.at.object(u64::from(lane) + 1), bytes);
        if let Err(e) = vol.journal.check_lane(vol.medium(), lane) {
            unit.add(e, None, None)?;
        }
        Ok(unit)
    }

    /// Checks the descriptor and the bitmap of a group.
    pub(super) fn group(&mut self) -> Result<Unit> {
        let vol = &self.engine.vol;
        let kind = match self.at.phase {
            Phase::InodeGroups => BitmapKind::Inodes,
            _ => BitmapKind::Blocks,
        };
        let mut unit = Unit::done(
            self.at.object(self.at.object.saturating_add(1)),
            GroupDesc::SIZE as u64,
        );
        match vol.bitmap(kind).check_group(vol.medium(), self.at.object) {
            Ok(None) => unit.next = self.next_phase(),
            Ok(Some(words)) => unit.bytes += words.len() as u64 * 8,
            Err(e) => unit.add(e, None, None)?,
        }
        Ok(unit)
    }

    /// Checks a part of the map of an internal table.
    pub(super) fn table(&mut self) -> Result<Unit> {
        let Some(&(place, ino)) = INTERNAL.get(self.at.object as usize) else {
            return Ok(Unit::done(self.next_phase(), 0));
        };
        let next_table = self.at.object(self.at.object + 1);
        let disk = match internal(self.engine.vol.medium(), place, ino) {
            Ok(disk) => disk,
            Err(e) => {
                let mut unit = Unit::done(next_table, 0);
                unit.add(e, None, None)?;
                return Ok(unit);
            }
        };
        let version = (ino, disk.generation, disk.change);
        match self.at.offset {
            0 => self.counted.begin(version),
            _ => self.counted.go_on(version),
        }
        let map = MapRef::of(&disk);
        let chunk = self.chunk(&map, FileBlock(self.at.offset));
        let mut unit = Unit::done(next_table, chunk.bytes);
        match chunk.next {
            Some(next) => unit.next = self.at.offset(next.0),
            None if self.counted.version.is_some() && self.counted.blocks != disk.blocks => {
                unit.add(
                    Error::corrupt(
                        Damage::BlockCount,
                        (ino, "an internal table".into()),
                        format!(
                            "it has {} blocks, but counts {}",
                            self.counted.blocks, disk.blocks
                        ),
                    ),
                    None,
                    None,
                )?;
            }
            None => {}
        }
        // What the blocks hold is read as groups and as inodes.
        if let Some(e) = chunk.bad {
            unit.add(e, Some(ino), None)?;
        }
        Ok(unit)
    }
}
