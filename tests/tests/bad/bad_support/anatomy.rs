//! The owner of every byte of an image, and so the possible effect of its damage.
//!
//! Uses the definitions of the format and its own walk, not the engine. It also shows
//! that the image is consistent, since each block marked as used has exactly one owner.

use std::collections::{BTreeMap, BTreeSet};

use pramfs::pmem::Region;
use pramfs::{
    FileType, Result,
    inode::{Bno, Ino},
};
use pramfs_medium::media::bitmap::GroupDesc;
use pramfs_medium::media::htree::{ItemHeader, LeafHeader, LeafShape, SLOT, TAG_FREE};
use pramfs_medium::media::inode::{INLINE_TARGET, INODE_SIZE};
use pramfs_medium::media::superblock::{
    BLOCK_GROUPS_OFFSET, INODE_GROUPS_OFFSET, INODE_TABLE_OFFSET, PAGE,
};
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::media::{DiskInode, Geometry, Ptr, probe_superblock};
use pramfs_medium::pmem::RegionAccess;
use pramfs_medium::types::FileBlock;
use pramfs_medium::types::RegionOffset;

/// Owner of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Free: contents do not matter.
    Free,
    /// Contents of a regular file.
    Data,
    /// Superblock page, or its copy.
    Superblock,
    /// Lanes of the journal.
    Journal,
    /// Block of the inode table, the first inode in it.
    Inodes(u64),
    /// Pointers, entries or target of an inode.
    Of(Ino),
    /// Extended attributes of an inode.
    Xattrs(Ino),
    /// The orphan table.
    Orphans,
    /// Bits of blocks, and what describes them.
    BlockBits,
    /// Bits of inodes, and what describes them.
    InodeBits,
    /// Pointers of the inode table.
    TablePointers,
}

/// Possible effect of damage to a byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// None: another copy exists, or the byte is not needed.
    Nothing,
    /// Only allocation and freeing.
    Allocation,
    /// These inodes, and what is below them.
    Inodes(BTreeSet<Ino>),
    /// The extended attributes of an inode.
    Xattrs(Ino),
    /// Everything: no mount.
    All,
}

impl Reach {
    /// Whether one of these inodes may be damaged.
    pub fn hits(&self, inodes: &[Ino]) -> bool {
        match self {
            Reach::All => true,
            Reach::Inodes(set) => inodes.iter().any(|i| set.contains(i)),
            _ => false,
        }
    }

    /// Whether the extended attributes of this inode may be damaged.
    pub fn hits_xattrs(&self, ino: Ino) -> bool {
        self.hits(&[ino]) || *self == Reach::Xattrs(ino)
    }
}

/// Owners of an image.
#[derive(Debug)]
pub struct Anatomy {
    geo: Geometry,
    blocks: Vec<Owner>,
    inodes: BTreeSet<u64>,
}

struct Walk<'a> {
    region: &'a Region,
    geo: Geometry,
    blocks: Vec<Owner>,
}

impl Walk<'_> {
    fn give(&mut self, block: u64, owner: Owner) {
        let there = &mut self.blocks[block as usize];
        assert_eq!(
            *there,
            Owner::Free,
            "block {block} has two owners: {owner:?} too"
        );
        *there = owner;
    }

    fn give_range(&mut self, from: u64, len: u64, owner: Owner) {
        for b in
            self.geo.block_at(RegionOffset(from)).0..self.geo.block_at(RegionOffset(from + len)).0
        {
            self.give(b, owner);
        }
    }

    fn words(&self, block: Bno) -> Result<Vec<u64>> {
        let at = self.geo.offset(block).0;
        let word = |i| Ok(self.region.load_u64(at + i * 8)?);
        (0..self.geo.block_size / 8).map(word).collect()
    }

    /// A file map: owner of its tables, and of its data by file block.
    fn map(
        &mut self,
        ptr: Ptr,
        level: u32,
        first: u64,
        tables: Owner,
        data: &dyn Fn(u64) -> Owner,
    ) -> Result<()> {
        if ptr.is_hole() {
            return Ok(());
        }
        assert!(
            level == 0 || !ptr.is_leaf(),
            "256 KiB has no room for a large leaf"
        );
        if level == 0 {
            self.give(ptr.block().0, data(first));
            return Ok(());
        }
        self.give(ptr.block().0, tables);
        for (i, word) in self.words(ptr.block())?.into_iter().enumerate() {
            let first = first + ((i as u64) << (self.geo.fan_log2 * (level - 1)));
            self.map(Ptr(word), level - 1, first, tables, data)?;
        }
        Ok(())
    }

    /// A hash tree; calls `f` for the items of its leaves.
    fn tree(
        &mut self,
        ptr: Ptr,
        owner: Owner,
        f: &mut dyn FnMut(&ItemHeader, &[u8]),
    ) -> Result<()> {
        if ptr.is_hole() {
            return Ok(());
        }
        self.give(ptr.block().0, owner);
        if !ptr.is_leaf() {
            let mut last = None;
            for word in self.words(ptr.block())? {
                // A leaf is in several slots.
                let below = Ptr(word);
                if last != Some(below.block()) {
                    self.tree(below, owner, f)?;
                }
                last = Some(below.block());
            }
            return Ok(());
        }
        let (shape, base) = (self.geo.leaf, self.geo.offset(ptr.block()).0);
        let head: LeafHeader = self.region.read_pod(base)?;
        let (mut slot, mut items) = (0, 0);
        while slot < shape.slots {
            let tag: u8 = self
                .region
                .read_pod(base + (LeafShape::TAGS_AT + slot) as u64)?;
            if tag == TAG_FREE {
                slot += 1;
                continue;
            }
            let at = base + (shape.slots_at + slot * SLOT) as u64;
            let item: ItemHeader = self.region.read_pod(at)?;
            let mut value = vec![0; item.value_len.into()];
            self.region.read(at + ItemHeader::SIZE as u64, &mut value)?;
            f(&item, &value);
            let len = ItemHeader::SIZE + value.len() + usize::from(item.name_len);
            slot += len.div_ceil(SLOT);
            items += 1;
        }
        assert_eq!(items, head.items);
        Ok(())
    }

    fn inode(&mut self, ino: Ino, d: &DiskInode) -> Result<()> {
        match FileType::from_mode(d.mode) {
            Some(FileType::Directory) => {
                self.tree(Ptr(d.root), Owner::Of(ino), &mut |_, _| ())?;
            }
            Some(FileType::Symlink) if d.size <= INLINE_TARGET as u64 => {}
            kind => {
                let data = match kind {
                    _ if ino == Ino::ORPHANS => Owner::Orphans,
                    Some(FileType::Symlink) => Owner::Of(ino),
                    _ => Owner::Data,
                };
                let tables = if ino == Ino::ORPHANS {
                    data
                } else {
                    Owner::Of(ino)
                };
                self.map(Ptr(d.root), d.height.into(), 0, tables, &|_| data)?;
            }
        }
        let mut large = Vec::new();
        self.tree(Ptr(d.xattr_root), Owner::Xattrs(ino), &mut |item, value| {
            if item.kind == 2 {
                let root = u64::from_le_bytes(value[..8].try_into().expect("8 bytes"));
                large.push((Ptr(root), u32::from(value[8])));
            }
        })?;
        for (root, height) in large {
            let owner = Owner::Xattrs(ino);
            self.map(root, height, 0, owner, &|_| owner)?;
        }
        Ok(())
    }

    /// The bits of a bitmap, which fits one group.
    fn bits(&mut self, at: u64, owner: Owner) -> Result<Vec<u64>> {
        let d: DiskInode = self.region.read_pod(at)?;
        self.map(Ptr(d.root), d.height.into(), 0, owner, &|_| owner)?;
        let root = MapRoot {
            ino: Ino(d.ino),
            root: Ptr(d.root),
            height: d.height.into(),
        };
        let block = root
            .find(self.region, &self.geo, FileBlock(0))?
            .block
            .expect("descriptors have a block");
        let desc: GroupDesc = self.region.read_pod(self.geo.offset(block).0)?;
        let bitmap = Ptr(desc.bitmap).block();
        self.give(bitmap.0, owner);
        self.words(bitmap)
    }
}

fn is_set(bits: &[u64], i: u64) -> bool {
    bits[i as usize / 64] >> (i % 64) & 1 != 0
}

impl Anatomy {
    /// Of a consistent image whose journal has nothing left to replay, or nothing
    /// relevant.
    pub fn of(region: &Region) -> Result<Anatomy> {
        let geo = probe_superblock(region)?.geometry();
        let mut w = Walk {
            region,
            blocks: vec![Owner::Free; geo.blocks() as usize],
            geo,
        };
        let geo = w.geo.clone();
        w.give_range(0, PAGE, Owner::Superblock);
        w.give_range(geo.copy_offset.0, PAGE, Owner::Superblock);
        w.give_range(geo.journal_offset.0, geo.journal_len, Owner::Journal);
        let used = w.bits(BLOCK_GROUPS_OFFSET, Owner::BlockBits)?;
        let exist = w.bits(INODE_GROUPS_OFFSET, Owner::InodeBits)?;

        let table: DiskInode = region.read_pod(INODE_TABLE_OFFSET)?;
        let per_block = geo.inodes_per_block();
        w.map(
            Ptr(table.root),
            table.height.into(),
            0,
            Owner::TablePointers,
            &|i| Owner::Inodes(i * per_block),
        )?;
        let root = MapRoot {
            ino: Ino::INODE_TABLE,
            root: Ptr(table.root),
            height: table.height.into(),
        };
        let mut inodes = BTreeSet::new();
        for ino in (Ino::ROOT.0..geo.inodes_max()).filter(|&i| is_set(&exist, i)) {
            let reserved = ino < Ino::FIRST_FREE.0 && ino > Ino::LEASES.0;
            let leaf = root.find(region, &geo, FileBlock(ino / per_block))?;
            let (Some(block), false) = (leaf.block, reserved) else {
                continue;
            };
            let d: DiskInode =
                region.read_pod(geo.offset(block).0 + ino % per_block * INODE_SIZE)?;
            assert_eq!(d.crc, d.expected_crc(geo.seed, Ino(ino)), "inode {ino}");
            inodes.insert(ino);
            w.inode(Ino(ino), &d)?;
        }
        for (b, owner) in w.blocks.iter().enumerate() {
            assert_eq!(
                *owner != Owner::Free,
                is_set(&used, b as u64),
                "block {b}, {owner:?}, against its bit"
            );
        }
        Ok(Anatomy {
            geo,
            blocks: w.blocks,
            inodes,
        })
    }

    /// Owner of a byte.
    pub fn owner(&self, offset: u64) -> Owner {
        self.blocks[self.geo.block_at(RegionOffset(offset)).0 as usize]
    }

    /// Offsets of all bytes of metadata in use.
    pub fn metadata(&self) -> impl Iterator<Item = u64> + '_ {
        let bs = self.geo.block_size;
        let owned = |(_, o): &(usize, &Owner)| !matches!(o, Owner::Free | Owner::Data);
        let blocks = self.blocks.iter().enumerate().filter(owned);
        blocks.flat_map(move |(b, _)| b as u64 * bs..(b as u64 + 1) * bs)
    }

    /// Bytes of metadata for each kind of owner.
    pub fn census(&self) -> BTreeMap<&'static str, u64> {
        let mut all = BTreeMap::new();
        for o in &self.blocks {
            let kind = match o {
                Owner::Free => "free",
                Owner::Data => "data",
                Owner::Superblock => "superblocks",
                Owner::Journal => "journal",
                Owner::Inodes(_) => "inodes",
                Owner::Of(_) => "directories, pointers, targets",
                Owner::Xattrs(_) => "attributes",
                Owner::Orphans => "orphan table",
                Owner::BlockBits => "block bitmap",
                Owner::InodeBits => "inode bitmap",
                Owner::TablePointers => "pointers of the inode table",
            };
            *all.entry(kind).or_default() += self.geo.block_size;
        }
        all
    }

    /// Possible effect of damage to a byte.
    pub fn reach(&self, offset: u64) -> Reach {
        let one = |ino| match ino {
            Ino::ROOT => Reach::All,
            ino => Reach::Inodes(BTreeSet::from([ino])),
        };
        match self.owner(offset) {
            Owner::Free | Owner::Data | Owner::Superblock | Owner::Journal => Reach::Nothing,
            Owner::Inodes(first) => {
                let ino = first + offset % self.geo.block_size / INODE_SIZE;
                match Ino(ino) {
                    Ino::ORPHANS => Reach::Allocation,
                    i if self.inodes.contains(&ino) => one(i),
                    _ => Reach::Nothing,
                }
            }
            Owner::Of(Ino::ROOT) => Reach::Inodes(BTreeSet::from([Ino::ROOT])),
            Owner::Of(ino) => one(ino),
            Owner::Xattrs(ino) => Reach::Xattrs(ino),
            Owner::Orphans | Owner::BlockBits | Owner::InodeBits => Reach::Allocation,
            Owner::TablePointers => Reach::All,
        }
    }
}
