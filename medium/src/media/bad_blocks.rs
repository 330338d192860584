//! The list of bad blocks on the medium: blocks that no pointer leads to and that are never
//! allocated, because a page of the medium under them has failed.
//!
//! The list is a chain of blocks. `badblock_root` in the superblock leads to the first. Each
//! holds a header and extents. The CRC covers the header and the extents that count.
//!
//! A reader does not rely on the list: the bits of its blocks are set in the block bitmap. So a
//! list that is damaged costs the knowledge of bad blocks, and nothing else.

use std::collections::HashSet;

use zerocopy::{FromBytes as _, FromZeros as _, IntoBytes as _};

use super::Medium;
use super::checksum::{crc, mix64};
use super::geometry::Geometry;
use super::pointer::{Ptr, PtrAt};
use crate::error::{Damage, Error, Result};
use crate::types::{BlockRun, Bno, Ino, RegionOffset};

/// First bytes of a block of the list: `bbl1`.
pub const LIST_MAGIC: u32 = u32::from_le_bytes(*b"bbl1");

layout! {
    /// Header of a block of the list of bad blocks.
    pub struct BadListHeader: 32 {
        0x00 magic: u32 = "`bbl1`",
        0x04 crc: u32 = "CRC32C of bytes 8 to 31 and of the extents that count, seeded by file system and block",
        0x08 count: u32 = "number of extents that count",
        0x0c reserved_half: u32 = "zero",
        0x10 next: u64 = "pointer to the next block of the list; 0: this is the last",
        0x18 reserved_tail: u64 = "zero",
    }
}

layout! {
    /// Consecutive bad blocks.
    pub struct BadExtent: 16 {
        0x00 start: u64 = "number of the first bad block",
        0x08 len: u64 = "number of blocks, at least 1",
    }
}

impl BadExtent {
    fn run(&self) -> BlockRun {
        BlockRun {
            start: Bno(self.start),
            len: self.len,
        }
    }
}

/// Returns the place of the pointer to the `nth` block of the list.
pub fn list_at(geo: &Geometry, nth: u64) -> PtrAt {
    PtrAt {
        fs_seed: geo.seed,
        ino: Ino::BAD_BLOCKS,
        level: 0,
        index: nth | 1 << 61,
    }
}

/// Number of extents in a block of the list.
pub fn extents_in_block(geo: &Geometry) -> usize {
    (geo.block_size as usize - BadListHeader::SIZE) / BadExtent::SIZE
}

/// One block of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListBlock {
    /// Its place.
    pub block: Bno,
    /// Pointer to the next; a hole for the last.
    pub next: Ptr,
    /// Its extents.
    pub extents: Vec<BlockRun>,
}

impl ListBlock {
    /// An empty block, the last of its list.
    pub fn new(block: Bno) -> ListBlock {
        ListBlock {
            block,
            next: Ptr::HOLE,
            extents: Vec::new(),
        }
    }

    fn seed(geo: &Geometry, block: Bno) -> u64 {
        geo.seed ^ mix64(block.0 ^ u64::from(LIST_MAGIC))
    }

    /// Returns the bytes of the header, and of all extents.
    pub fn bytes(&self, geo: &Geometry) -> Vec<u8> {
        let mut header = BadListHeader::new_zeroed();
        header.magic = LIST_MAGIC;
        header.count = self.extents.len() as u32;
        header.next = self.next.0;
        let mut bytes = header.as_bytes().to_vec();
        for run in &self.extents {
            let extent = BadExtent {
                start: run.start.0,
                len: run.len,
            };
            bytes.extend_from_slice(extent.as_bytes());
        }
        let sum = crc(Self::seed(geo, self.block), &bytes[8..]);
        bytes[4..8].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Offset of the `nth` extent.
    pub fn extent_offset(&self, geo: &Geometry, nth: usize) -> RegionOffset {
        geo.offset(self.block) + (BadListHeader::SIZE + nth * BadExtent::SIZE) as u64
    }

    fn parse(geo: &Geometry, block: Bno, bytes: &[u8]) -> Result<ListBlock> {
        let damaged = |what: &str| damaged(block, what);
        let (header, rest) = BadListHeader::read_from_prefix(bytes)
            .map_err(|_| damaged("it is shorter than its header"))?;
        if header.magic != LIST_MAGIC {
            return Err(damaged("no magic number"));
        }
        let count = header.count as usize;
        if count > extents_in_block(geo) {
            return Err(damaged("it counts more extents than it holds"));
        }
        let end = BadListHeader::SIZE + count * BadExtent::SIZE;
        if header.crc != crc(Self::seed(geo, block), &bytes[8..end]) {
            return Err(damaged("checksum mismatch"));
        }
        let extents = rest
            .as_chunks::<{ BadExtent::SIZE }>()
            .0
            .iter()
            .take(count)
            .map(|raw| {
                BadExtent::read_from_bytes(raw)
                    .map(|extent| extent.run())
                    .map_err(|_| damaged("an extent is cut"))
            })
            .collect::<Result<Vec<_>>>()?;
        if let Some(wrong) = extents.iter().find(|run| !is_possible(geo, run)) {
            return Err(damaged(&format!(
                "it names {} blocks from {} on, which no list may hold",
                wrong.len, wrong.start.0
            )));
        }
        Ok(ListBlock {
            block,
            next: Ptr(header.next),
            extents,
        })
    }
}

/// Whether blocks can be taken out of use: they lie in the region, and the format itself does
/// not own them.
pub fn is_possible(geo: &Geometry, run: &BlockRun) -> bool {
    let end = run.start.0.checked_add(run.len);
    run.len > 0
        && end.is_some_and(|end| end <= geo.blocks())
        && !geo.is_of_format(run.start.0, run.len)
}

/// Reads a list. `root` is the word in the superblock; zero is an empty list.
///
/// # Errors
/// [`Error::Corrupt`]; errors of the region.
pub fn read_list(
    geo: &Geometry,
    root: u64,
    read: &mut dyn FnMut(RegionOffset, &mut [u8]) -> Result<()>,
) -> Result<Vec<ListBlock>> {
    let mut list: Vec<ListBlock> = Vec::new();
    let (mut seen, mut named) = (HashSet::new(), 0u64);
    let mut ptr = Ptr(root);
    let mut bytes = vec![0; geo.block_size as usize];
    while !ptr.is_hole() {
        let at = list_at(geo, list.len() as u64);
        let block = ptr.block();
        let one = BlockRun::one(block);
        if !ptr.fits(at) || ptr.flags() != 0 || !is_possible(geo, &one) {
            return Err(damaged(block, "the pointer to it does not fit its place"));
        }
        // Each pointer fits one place in the list only, so a loop has no more blocks than
        // the region; this stops it at once.
        if !seen.insert(block.0) {
            return Err(damaged(block, "the list comes back to it"));
        }
        read(geo.offset(block), &mut bytes)?;
        let next = ListBlock::parse(geo, block, &bytes)?;
        // Overlapping runs would cost more time than the region has blocks.
        named = (next.extents.iter()).fold(named, |sum, run| sum.saturating_add(run.len));
        if named > geo.blocks() {
            return Err(damaged(block, "the list names more blocks than there are"));
        }
        ptr = next.next;
        list.push(next);
    }
    Ok(list)
}

/// As [`read_list`], from a region.
///
/// # Errors
/// As there.
pub fn read_list_of(medium: Medium<'_>, root: u64) -> Result<Vec<ListBlock>> {
    read_list(medium.geo, root, &mut |at, into| Ok(medium.read(at, into)?))
}

#[cold]
fn damaged(block: Bno, what: &str) -> Error {
    Error::corrupt(
        Damage::BadBlockListDamaged,
        format!("block {} of the list of bad blocks", block.0),
        what,
    )
}
