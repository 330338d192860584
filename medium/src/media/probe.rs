//! Reads and validates a superblock from untrusted bytes.

use zerocopy::FromBytes;

use super::checksum::unseal;
use super::features::{self, Mask};
use super::geometry::Geometry;
use super::inode::INODE_SIZE;
use super::sums::usable_blocks;
use super::superblock::*;
use crate::error::{Error, Result};
use crate::pmem::{Region, RegionView};

/// A validated superblock, with accessors for its readable form.
#[derive(Debug, Clone)]
pub struct SuperblockInfo {
    /// The static part.
    pub fixed: SuperStatic,
    /// The dynamic words of the page it was read from.
    pub dynamic: SuperDynamic,
    /// Whether the page at offset 0 was damaged and the copy was used.
    pub from_copy: bool,
    /// Whether the first page is valid and the copy is damaged. Nothing is lost
    /// yet, but no fallback is left.
    pub copy_damaged: bool,
}

impl SuperblockInfo {
    /// Returns the label as text.
    pub fn label(&self) -> String {
        text(&self.fixed.label)
    }
    /// Returns the name of the program that made the file system.
    pub fn writer(&self) -> String {
        text(&self.fixed.writer)
    }
    /// Returns the uuid.
    pub fn uuid(&self) -> uuid::Uuid {
        uuid::Uuid::from_bytes(self.fixed.uuid)
    }
    /// Returns the block size, bytes.
    pub fn block_size(&self) -> u32 {
        1 << self.fixed.block_size_log2
    }
    /// Tells whether the file system was unmounted cleanly.
    pub fn is_clean(&self) -> bool {
        self.dynamic.state == STATE_CLEAN
    }
    /// Returns the offsets and sizes of the file system.
    pub fn geometry(&self) -> Geometry {
        Geometry::new(&self.fixed)
    }
    /// Returns the LSN up to which records are dead, or `None` if the word is damaged.
    pub fn checkpoint(&self) -> Option<u64> {
        unseal(self.geometry().seed, self.dynamic.checkpoint)
    }
    /// Returns the names of the features in use.
    pub fn features(&self) -> Vec<String> {
        let mut all = features::names(Mask::Compat, self.fixed.compat);
        all.extend(features::names(Mask::RoCompat, self.fixed.ro_compat));
        all.extend(features::names(Mask::Incompat, self.fixed.incompat));
        all
    }
}

/// Returns the bytes up to the first NUL as text.
pub fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Reads and validates the superblock. If the first page is damaged, reads the
/// copy. Unknown features are not an error here; see [`check_features`].
///
/// # Errors
/// [`Error::NotMountable`] if neither page is valid, with the fault of the first
/// page; [`Error::Pmem`] in a forked child.
pub fn probe_superblock<'r>(region: impl Into<RegionView<'r>>) -> Result<SuperblockInfo> {
    let region = region.into().region();
    region.check_owner()?;
    match read_page(region, 0) {
        Ok(info) => Ok(SuperblockInfo {
            copy_damaged: !copy_is_sound(region, &info.fixed),
            ..info
        }),
        Err(first) => match read_page(region, COPY_OFFSET) {
            Ok(info) if info.fixed.copy_offset == COPY_OFFSET => Ok(SuperblockInfo {
                from_copy: true,
                ..info
            }),
            _ => Err(first),
        },
    }
}

/// Refuses features that this version does not support, by name.
///
/// # Errors
/// [`Error::NotMountable`]; [`Error::ReadOnly`] where a read-only mount would do.
pub fn check_features(sb: &SuperStatic, read_only: bool) -> Result<()> {
    let bad = features::unsupported(Mask::Incompat, sb.incompat);
    if bad != 0 {
        return Err(Error::NotMountable(format!(
            "the file system uses features that this version does not know: {}; use a newer pramfs",
            features::names(Mask::Incompat, bad).join(", ")
        )));
    }
    if sb.ro_compat & features::METADATA_IMAGE != 0 && !read_only {
        return Err(Error::NotMountable(
            "it is an image of metadata for reports (feature metadata_image): its files have no data; read it with fsck.pramfs -n, or mount it with -o ro".into(),
        ));
    }
    let bad = features::unsupported(Mask::RoCompat, sb.ro_compat);
    if bad != 0 && !read_only {
        return Err(Error::NotMountable(format!(
            "the file system uses features that this version can only mount read-only: {}; mount it with -o ro or use a newer pramfs",
            features::names(Mask::RoCompat, bad).join(", ")
        )));
    }
    Ok(())
}

/// Validates the two superblock pages of a region that is `region_len` bytes long, as
/// [`probe_superblock`] does, without the region.
///
/// # Errors
/// [`Error::NotMountable`] if one of them is not valid, or they are not of one file system.
pub fn probe_superblock_pages(
    first: &[u8],
    copy: &[u8],
    region_len: u64,
) -> Result<SuperblockInfo> {
    let decoded = |page: &[u8]| -> Result<SuperblockInfo> {
        let short = |_| Error::NotMountable("a superblock page is cut off".into());
        let (fixed, _) = SuperStatic::read_from_prefix(page).map_err(|e| short(e.to_string()))?;
        let dynamic = page.get(DYNAMIC_OFFSET as usize..).unwrap_or_default();
        let (dynamic, _) =
            SuperDynamic::read_from_prefix(dynamic).map_err(|e| short(e.to_string()))?;
        validated(fixed, dynamic, region_len)
    };
    let (first, copy) = (decoded(first)?, decoded(copy)?);
    match first.fixed.is_same_but_changed(&copy.fixed) {
        true => Ok(first),
        false => Err(Error::NotMountable(
            "the superblock and its copy are of different file systems".into(),
        )),
    }
}

fn read_page(region: &Region, at: u64) -> Result<SuperblockInfo> {
    if region.len() < MIN_REGION {
        return Err(Error::NotMountable(format!(
            "the region has {} bytes, fewer than the smallest file system ({MIN_REGION})",
            region.len()
        )));
    }
    validated(
        region.read_pod(at)?,
        region.read_pod(at + DYNAMIC_OFFSET)?,
        region.len(),
    )
}

pub(super) fn validated(
    fixed: SuperStatic,
    dynamic: SuperDynamic,
    region_len: u64,
) -> Result<SuperblockInfo> {
    let bad = |why: String| Err(Error::NotMountable(why));
    if fixed.magic != MAGIC {
        return bad("no pramfs superblock was found; make a file system with mkfs.pramfs".into());
    }
    if fixed.crc != fixed.expected_crc() {
        return bad(
            "the superblock and its copy are both damaged (checksum), and nothing can be found without them: restore the region from a backup".into(),
        );
    }
    if fixed.version != VERSION {
        return bad(format!(
            "the format has version {}, this program knows version {VERSION}",
            fixed.version
        ));
    }
    if let Err(why) = check_geometry(&fixed, region_len) {
        return bad(format!("the superblock makes no sense: {why}"));
    }
    Ok(SuperblockInfo {
        fixed,
        dynamic,
        from_copy: false,
        copy_damaged: false,
    })
}

/// Tells whether the copy could replace the first page. What a mounted file system changes
/// (the label, the features of the lease table, the sizes) may differ: a crash can interrupt such a
/// change, and the next read-write mount completes it.
fn copy_is_sound(region: &Region, first: &SuperStatic) -> bool {
    let copy = region.read_pod::<SuperStatic>(first.copy_offset);
    // A forged size would make the copy useless as a replacement.
    copy.is_ok_and(|copy| {
        first.is_same_but_changed(&copy) && check_geometry(&copy, region.len()).is_ok()
    })
}

/// Checks that a static part makes sense in a region of so many bytes.
///
/// # Errors
/// A sentence that tells what does not.
pub fn check_geometry(sb: &SuperStatic, region_len: u64) -> Result<(), String> {
    if !(9..=12).contains(&sb.block_size_log2) {
        return Err(format!("blocks of 2^{} bytes", sb.block_size_log2));
    }
    let bs = 1u64 << sb.block_size_log2;
    if sb.region_len > region_len {
        return Err(format!(
            "it was made for {} bytes and the region has only {region_len}: the region is truncated; give it its size back (truncate -s {} for a file), or restore it from a backup",
            sb.region_len, sb.region_len
        ));
    }
    if sb.region_len < MIN_REGION || sb.blocks != sb.region_len / bs || sb.blocks >= 1 << 40 {
        return Err(format!("{} blocks in {} bytes", sb.blocks, sb.region_len));
    }
    if sb.lanes == 0
        || sb.lanes > 1024
        || sb.slot_size < 2048
        || sb.slot_size > 1 << 16
        || !sb.slot_size.is_multiple_of(64)
    {
        return Err(format!(
            "{} lanes of {} bytes a slot",
            sb.lanes, sb.slot_size
        ));
    }
    let journal = Geometry::journal_bytes(u64::from(sb.lanes), u64::from(sb.slot_size));
    let journal_end = sb.journal_offset.checked_add(sb.journal_len);
    if sb.journal_len < journal
        || !sb.journal_offset.is_multiple_of(4096)
        || sb.journal_offset < PAGE
        || journal_end.is_none_or(|e| e > sb.region_len)
        || (sb.journal_offset < sb.copy_offset.saturating_add(PAGE)
            && journal_end > Some(sb.copy_offset))
    {
        return Err(format!(
            "a journal of {} bytes at {:#x}",
            sb.journal_len, sb.journal_offset
        ));
    }
    if !sb.copy_offset.is_multiple_of(4096)
        || sb.copy_offset < PAGE
        || sb.copy_offset > sb.region_len - PAGE
    {
        return Err(format!("a superblock copy at {:#x}", sb.copy_offset));
    }
    let bits = bs * 8;
    if u64::from(sb.blocks_per_group) != bits || u64::from(sb.inodes_per_group) != bits {
        return Err(format!(
            "groups of {} and {} bits",
            sb.blocks_per_group, sb.inodes_per_group
        ));
    }
    if usable_blocks(sb.ro_compat, sb.blocks, bits) != sb.blocks {
        return Err(format!(
            "{} blocks, of which the last group has too few for the sums of its data",
            sb.blocks
        ));
    }
    // Tables in memory grow with the number of inodes, which must fit the region.
    let first = crate::types::Ino::FIRST_FREE.0;
    if sb.inodes_max <= first || sb.inodes_max > sb.region_len / INODE_SIZE + first {
        return Err(format!("{} inodes", sb.inodes_max));
    }
    if sb.reserve_blocks > sb.blocks || sb.member_count != 1 {
        return Err(format!(
            "a reserve of {} blocks, {} members",
            sb.reserve_blocks, sb.member_count
        ));
    }
    Ok(())
}
