//! Reads lanes, groups and inodes of an image from the medium, and counts the
//! blocks of each owner.
//!
//! Invariant: nothing read is trusted. A structure that fails its checksum counts
//! as damage and is not followed. The geometry bounds every loop; the validation
//! of the superblock bounds the geometry by the size of the region.
//!
//! Not here: whether two inodes name the same block. A check of the file system
//! finds that.

use pramfs::Damage;
use pramfs::{Error, FileType, Result, inode::Ino};
use pramfs_medium::media::bitmap::{BitmapKind, GroupDesc, GroupState};
use pramfs_medium::media::checksum::{unseal, word_sum};
use pramfs_medium::media::record::{ENTRIES_AT, EntryWord, RECORD_MAGIC, RecordHeader};
use pramfs_medium::media::superblock::{
    BLOCK_GROUPS_OFFSET, INODE_GROUPS_OFFSET, INODE_TABLE_OFFSET,
};
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::media::{DiskInode, Geometry, Ptr};
use pramfs_medium::pmem::RegionView;
use pramfs_medium::types::FileBlock;
use serde::Serialize;

/// A region whose superblock is valid.
pub(crate) struct Image<'a> {
    region: RegionView<'a>,
    geo: Geometry,
    table: MapRoot,
    block_groups: MapRoot,
    inode_groups: MapRoot,
    /// Blocks of the three tables above, including pointer blocks.
    pub table_blocks: [u64; 3],
}

/// A record slot of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub(crate) enum Slot {
    /// Never written.
    Empty,
    /// No valid record: torn, or damaged.
    Bad,
    /// A record.
    Valid {
        /// Log sequence number.
        lsn: u64,
        /// Bytes.
        bytes: u32,
        /// Number of changes in it.
        entries: u32,
        /// Whether the entries fill the record exactly.
        sound: bool,
    },
}

/// A journal lane.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Lane {
    /// Number.
    pub lane: u32,
    /// LSN up to which its records are dead; `None` if the word is damaged.
    pub retired: Option<u64>,
    /// Its two slots.
    pub slots: [Slot; 2],
}

/// A group of blocks or inodes that has a bitmap.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Group {
    /// Number.
    pub group: u64,
    /// Offset of its bitmap, bytes.
    pub bitmap_offset: u64,
    /// Bits in the group.
    pub bits: u64,
    /// Number of set bits.
    pub used: u64,
    /// Whether the sum over the bitmap is right.
    pub sum_fits: bool,
}

/// An inode that is in use.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct InodeRow {
    /// Number.
    pub inode: u64,
    /// Type and permission bits, octal.
    pub mode: String,
    /// Number of names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes; for a directory, entries.
    pub size: u64,
    /// Number of blocks owned.
    pub blocks: u64,
    /// Levels of pointer blocks.
    pub height: u8,
    /// Offset of the inode, bytes.
    pub offset: u64,
    /// Type.
    #[serde(skip)]
    pub kind: Option<FileType>,
}

impl<'a> Image<'a> {
    /// Reads the internal inodes.
    ///
    /// # Errors
    /// They are damaged in both superblock pages.
    pub(crate) fn new(region: impl Into<RegionView<'a>>, geo: Geometry) -> Result<Image<'a>> {
        let region = region.into();
        let inode = |at: u64, ino: Ino| {
            for page in geo.pages() {
                let d: DiskInode = region.read_pod(page.0 + at)?;
                if d.crc == d.expected_crc(geo.seed, ino) && u32::from(d.height) <= geo.max_height()
                {
                    return Ok((
                        MapRoot {
                            ino,
                            root: Ptr(d.root),
                            height: u32::from(d.height),
                        },
                        d.blocks,
                    ));
                }
            }
            Err(Error::corrupt(
                Damage::InternalInodeLost,
                ino,
                "it is damaged in both superblock pages",
            ))
        };
        let (table, a) = inode(INODE_TABLE_OFFSET, Ino::INODE_TABLE)?;
        let (inode_groups, b) = inode(INODE_GROUPS_OFFSET, Ino::INODE_GROUPS)?;
        let (block_groups, c) = inode(BLOCK_GROUPS_OFFSET, Ino::BLOCK_GROUPS)?;
        Ok(Image {
            region,
            geo,
            table,
            block_groups,
            inode_groups,
            table_blocks: [a, b, c],
        })
    }

    /// Reads all lanes.
    ///
    /// # Errors
    /// A region error.
    pub(crate) fn lanes(&self) -> Result<Vec<Lane>> {
        (0..self.geo.lanes)
            .map(|lane| {
                let word = self.region.load_u64(self.geo.retired_offset(lane).0)?;
                let retired = if word == 0 {
                    Some(0)
                } else {
                    unseal(self.geo.seed, word)
                };
                Ok(Lane {
                    lane,
                    retired,
                    slots: [self.slot(lane, 0)?, self.slot(lane, 1)?],
                })
            })
            .collect()
    }

    fn slot(&self, lane: u32, slot: u32) -> Result<Slot> {
        let at = self.geo.slot_offset(lane, slot).0;
        let header: RecordHeader = self.region.read_pod(at)?;
        if header == RecordHeader::default() {
            return Ok(Slot::Empty);
        }
        let len = header.len as usize;
        if header.magic != RECORD_MAGIC || len < ENTRIES_AT || len as u64 > self.geo.slot_size {
            return Ok(Slot::Bad);
        }
        let mut bytes = vec![0; len];
        self.region.read(at, &mut bytes)?;
        if RecordHeader::crc_of(self.geo.seed, &bytes) != header.crc
            || (header.lane, header.slot) != (lane, slot)
        {
            return Ok(Slot::Bad);
        }
        let (words, _) = bytes[ENTRIES_AT..].as_chunks::<8>();
        let (mut next, mut entries) = (0, 0);
        while let Some(word) = words.get(next) {
            let word = EntryWord(u64::from_le_bytes(*word));
            if word.kind().is_none() {
                break;
            }
            next += 1 + word.words();
            entries += 1;
        }
        let sound = next == words.len() && entries == header.entries;
        Ok(Slot::Valid {
            lsn: header.lsn,
            bytes: header.len,
            entries: header.entries,
            sound,
        })
    }

    /// Calls `f` for each group that has a bitmap, and `bad` for damage. Returns the
    /// number of all groups.
    ///
    /// # Errors
    /// A region error.
    pub(crate) fn groups(
        &self,
        kind: BitmapKind,
        bad: &mut dyn FnMut(Error),
        f: &mut dyn FnMut(Group, &[u64]),
    ) -> Result<u64> {
        let (map, total) = match kind {
            BitmapKind::Blocks => (&self.block_groups, self.geo.blocks()),
            BitmapKind::Inodes => (&self.inode_groups, self.geo.inodes_max()),
        };
        let (per_group, per_block) = (
            self.geo.bits_per_group(),
            self.geo.block_size / GroupDesc::SIZE as u64,
        );
        let groups = total.div_ceil(per_group);
        let mut block = 0;
        while block * per_block < groups {
            let leaf = match map.find(self.region, &self.geo, FileBlock(block)) {
                Ok(leaf) => leaf,
                Err(e) => {
                    bad(e);
                    block += 1;
                    continue;
                }
            };
            let end = (leaf.first.0.saturating_add(leaf.count)).min(groups.div_ceil(per_block));
            if let Some(first) = leaf.block {
                for b in block..end {
                    let at = self.geo.offset(first).0 + self.geo.bytes(b - leaf.first.0);
                    for group in b * per_block..((b + 1) * per_block).min(groups) {
                        let desc = self
                            .region
                            .read_pod(at + group % per_block * GroupDesc::SIZE as u64)?;
                        match self.group(kind, group, total, &desc) {
                            Ok(None) => {}
                            Ok(Some((row, bits))) => f(row, &bits),
                            Err(e) => bad(e),
                        }
                    }
                }
            }
            block = end.max(block + 1);
        }
        Ok(groups)
    }

    fn group(
        &self,
        kind: BitmapKind,
        group: u64,
        total: u64,
        desc: &GroupDesc,
    ) -> Result<Option<(Group, Vec<u64>)>> {
        let damaged = |what: &str| {
            let name = match kind {
                BitmapKind::Blocks => "block group",
                BitmapKind::Inodes => "inode group",
            };
            Error::corrupt(Damage::BitmapPointer, format!("{name} {group}"), what)
        };
        let bitmap_offset = match GroupDesc::state(&self.geo, kind, group, desc.bitmap) {
            GroupState::Unused => return Ok(None),
            GroupState::Bitmap(block) => self.geo.offset(block).0,
            GroupState::Damaged => {
                return Err(damaged("the pointer to its bitmap is invalid"));
            }
        };
        let mut bytes = vec![0; self.geo.block_size as usize];
        self.region.read(bitmap_offset, &mut bytes)?;
        let words: Vec<u64> = bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|c| u64::from_le_bytes(*c))
            .collect();
        let sum = words.iter().enumerate().fold(0u64, |s, (i, w)| {
            s.wrapping_add(word_sum(self.geo.seed, i as u64, *w))
        });
        let bits = (total - group * self.geo.bits_per_group()).min(self.geo.bits_per_group());
        let used = words.iter().map(|w| u64::from(w.count_ones())).sum();
        if used > bits {
            return Err(damaged("more bits are set than the group has"));
        }
        Ok(Some((
            Group {
                group,
                bitmap_offset,
                bits,
                used,
                sum_fits: sum == desc.sum,
            },
            words,
        )))
    }

    /// Calls `f` for each inode in use, in ascending order.
    ///
    /// # Errors
    /// Those of the region.
    pub(crate) fn inodes(
        &self,
        bad: &mut dyn FnMut(Error),
        f: &mut dyn FnMut(InodeRow),
    ) -> Result<()> {
        let mut numbers = Vec::new();
        self.groups(BitmapKind::Inodes, &mut |_| {}, &mut |group, bits| {
            let first = group.group * self.geo.bits_per_group();
            for (i, word) in bits.iter().enumerate() {
                let mut word = *word;
                while word != 0 {
                    numbers.push(first + i as u64 * 64 + u64::from(word.trailing_zeros()));
                    word &= word - 1;
                }
            }
        })?;
        for ino in numbers.into_iter().map(Ino) {
            // Reserved numbers have bits, but most of them have no inode.
            let user = ino >= Ino::FIRST_FREE;
            if user || [Ino::ROOT, Ino::ORPHANS, Ino::LEASES].contains(&ino) {
                match self.inode(ino) {
                    Ok(row) => f(row),
                    Err(e) => bad(e),
                }
            }
        }
        Ok(())
    }

    fn inode(&self, ino: Ino) -> Result<InodeRow> {
        let per_block = self.geo.inodes_per_block();
        let index = FileBlock(ino.0 / per_block);
        let leaf = self.table.find(self.region, &self.geo, index)?;
        let Some(first) = leaf.block else {
            return Err(Error::corrupt(
                Damage::InodeMissing,
                ino,
                "it is in use and the inode table has no block for it",
            ));
        };
        let offset = self.geo.offset(first).0
            + self.geo.bytes(ino.0 / per_block - leaf.first.0)
            + ino.0 % per_block * DiskInode::SIZE as u64;
        let d: DiskInode = self.region.read_pod(offset)?;
        if d.crc != d.expected_crc(self.geo.seed, ino) || d.ino != ino.0 {
            return Err(Error::corrupt(
                Damage::InodeDamaged,
                ino,
                "its checksum does not fit",
            ));
        }
        Ok(InodeRow {
            inode: ino.0,
            mode: format!("{:o}", d.mode),
            links: d.nlink,
            uid: d.uid,
            gid: d.gid,
            size: d.size,
            blocks: d.blocks,
            height: d.height,
            offset,
            kind: FileType::from_mode(d.mode),
        })
    }
}
