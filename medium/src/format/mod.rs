//! Makes a file system: mkfs as a library call.
//!
//! Order of stores:
//!
//! 1. Clear the magics of both superblock pages, then fence.
//! 2. Write everything else, then fence.
//! 3. Store the magics of both pages, then fence.
//!
//! A crash leaves no file system or a complete one. Only used blocks are
//! initialised; the rest of the region is not touched.

mod layout;
mod options;

pub use options::FormatOptions;

use zerocopy::IntoBytes;

use crate::error::Result;
use crate::media::bitmap::{BitmapKind, GroupDesc};
use crate::media::checksum::{seal, word_sum};
use crate::media::lease::refuse_if_leased;
use crate::media::pointer::{Ptr, PtrAt};
use crate::media::superblock::*;
use crate::media::{DiskInode, Geometry, SuperblockInfo, probe_superblock};
use crate::pmem::{Region, Unfenced};
use crate::types::{Bno, Ino, RegionOffset, Time};
use layout::{Plan, Tree};

/// Makes an empty file system in the region and destroys the previous contents. The
/// caller checks for an existing file system (`probe_superblock`).
///
/// # Errors
/// [`crate::Error::NotMountable`] if the options do not fit the region.
pub fn format(region: &Region, options: &FormatOptions) -> Result<SuperblockInfo> {
    region.check_owner()?;
    refuse_if_leased(region)?;
    let fixed = options.superblock(options.len_in(region.len())?)?;
    let geo = Geometry::new(&fixed);
    let plan = Plan::new(&geo, options.preallocate_inodes(&geo))?;
    let w = region.window();

    // Clear the old magics first, under a separate fence: a crash leaves the old
    // file system intact or none. From here to the last store the region has no file
    // system.
    let mut pending = Unfenced::none();
    for page in geo.pages() {
        region.take_room(page.0, PAGE)?;
        pending = pending.join(w.nt_store(page.0, &[0; 8])?);
    }
    let _ = w.fence(pending);

    let mut f = Formatter {
        region,
        geo: &geo,
        plan: &plan,
        time: options.now(),
    };
    f.journal()?;
    f.tree(&plan.block_descs, Ino::BLOCK_GROUPS)?;
    f.tree(&plan.inode_descs, Ino::INODE_GROUPS)?;
    f.unused_groups(BitmapKind::Blocks, &plan.block_descs, geo.blocks())?;
    f.unused_groups(BitmapKind::Inodes, &plan.inode_descs, geo.inodes_max())?;
    f.tree(&plan.inode_table, Ino::INODE_TABLE)?;
    f.zero(plan.orphans, 1)?;
    f.inodes(options)?;
    f.block_bitmaps()?;
    f.inode_bitmap()?;

    // Write both pages without magics, under one fence with everything else. Each
    // magic then validates complete contents, whichever of the two survives a crash.
    let mut page = f.page(&fixed);
    page[..8].fill(0);
    let [first, copy] = geo.pages();
    let pages = [copy, first];
    let mut pending = Unfenced::none();
    for at in pages {
        pending = pending.join(w.nt_store(at.0, &page)?);
    }
    let durable = w.fence(pending);
    let mut pending = Unfenced::none();
    for at in pages {
        pending = pending.join(w.publish_u64(at.0, fixed.magic, durable)?);
    }
    let _ = w.fence(pending);
    probe_superblock(region)
}

struct Formatter<'a> {
    region: &'a Region,
    geo: &'a Geometry,
    plan: &'a Plan,
    time: Time,
}

/// No store of the formatter has its own fence. One fence, after the superblock
/// pages without magics, covers all of them.
impl Formatter<'_> {
    fn store(&mut self, at: RegionOffset, bytes: &[u8]) -> Result<()> {
        self.region.take_room(at.0, bytes.len() as u64)?;
        drop(self.region.window().nt_store(at.0, bytes)?);
        Ok(())
    }

    fn zero(&mut self, first: Bno, count: u64) -> Result<()> {
        let (at, len) = (self.geo.offset(first), self.geo.bytes(count));
        self.region.take_room(at.0, len)?;
        drop(self.region.window().nt_zero(at.0, len)?);
        Ok(())
    }

    fn journal(&mut self) -> Result<()> {
        let (at, len) = (self.geo.journal_offset, self.geo.journal_len);
        self.region.take_room(at.0, len)?;
        let w = self.region.window();
        drop(w.nt_zero(at.0, self.geo.slot_offset(0, 0) - at)?);
        for lane in 0..self.geo.lanes {
            for slot in 0..2 {
                drop(w.nt_zero(self.geo.slot_offset(lane, slot).0, 64)?);
            }
        }
        Ok(())
    }

    /// Writes zeroed data blocks and the pointer blocks that name them.
    fn tree(&mut self, t: &Tree, ino: Ino) -> Result<()> {
        self.zero(t.data, t.count)?;
        let fan = 1u64 << self.geo.fan_log2;
        let (mut below, mut count) = (t.data, t.count);
        for (level, &(first, blocks)) in t.levels.iter().enumerate() {
            for b in 0..blocks {
                let mut block = vec![0u64; fan as usize];
                for (slot, word) in block.iter_mut().enumerate() {
                    let index = b * fan + slot as u64;
                    if index < count {
                        let at = PtrAt {
                            fs_seed: self.geo.seed,
                            ino,
                            level: level as u32,
                            index,
                        };
                        *word = Ptr::new(Bno(below.0 + index), 0, at).0;
                    }
                }
                self.store(self.geo.offset(Bno(first.0 + b)), block.as_bytes())?;
            }
            (below, count) = (first, blocks);
        }
        Ok(())
    }

    fn internal_inode(&self, t: &Tree, ino: Ino) -> DiskInode {
        let at = PtrAt {
            fs_seed: self.geo.seed,
            ino,
            level: t.levels.len() as u32,
            index: 0,
        };
        let mut d = self.blank(ino, libc::S_IFREG | 0o600);
        d.size = self.geo.bytes(t.count);
        d.blocks = t.count + t.levels.iter().map(|(_, n)| n).sum::<u64>();
        d.height = t.levels.len() as u8;
        d.root = Ptr::new(t.levels.last().map_or(t.data, |(first, _)| *first), 0, at).0;
        d.seal(self.geo.seed, ino);
        d
    }

    fn blank(&self, ino: Ino, mode: u32) -> DiskInode {
        DiskInode {
            mode,
            nlink: 1,
            ino: ino.0,
            change: 1,
            mtime_sec: self.time.sec,
            ctime_sec: self.time.sec,
            atime_sec: self.time.sec,
            btime_sec: self.time.sec,
            mtime_nsec: self.time.nsec,
            ctime_nsec: self.time.nsec,
            atime_nsec: self.time.nsec,
            btime_nsec: self.time.nsec,
            ..DiskInode::default()
        }
    }

    fn inodes(&mut self, options: &FormatOptions) -> Result<()> {
        let mut root = self.blank(Ino::ROOT, libc::S_IFDIR | options.root_mode & 0o7777);
        root.nlink = 2;
        root.uid = options.root_uid;
        root.gid = options.root_gid;
        root.parent_or_rdev = Ino::ROOT.0;
        let mut orphans = self.blank(Ino::ORPHANS, libc::S_IFREG | 0o600);
        let at = PtrAt {
            fs_seed: self.geo.seed,
            ino: Ino::ORPHANS,
            level: 0,
            index: 0,
        };
        orphans.root = Ptr::new(self.plan.orphans, 0, at).0;
        orphans.blocks = 1;
        orphans.size = self.geo.block_size;
        let leases = self.blank(Ino::LEASES, libc::S_IFREG | 0o600);
        for (ino, mut d) in [
            (Ino::ROOT, root),
            (Ino::ORPHANS, orphans),
            (Ino::LEASES, leases),
        ] {
            d.seal(self.geo.seed, ino);
            let at = self.geo.offset(self.plan.inode_table.data) + ino.0 * DiskInode::SIZE as u64;
            self.store(at, d.as_bytes())?;
        }
        Ok(())
    }

    /// Fills a table with descriptors of unused groups.
    fn unused_groups(&mut self, kind: BitmapKind, t: &Tree, bits: u64) -> Result<()> {
        let groups = bits.div_ceil(self.geo.bits_per_group());
        let in_block = self.geo.block_size / GroupDesc::SIZE as u64;
        for b in 0..t.count {
            let bytes: Vec<u8> = (b * in_block..groups.min((b + 1) * in_block))
                .flat_map(|g| {
                    let desc = GroupDesc::unused(self.geo, kind, g);
                    <[u8; GroupDesc::SIZE]>::try_from(desc.as_bytes()).unwrap_or_default()
                })
                .collect();
            self.store(self.geo.offset(Bno(t.data.0 + b)), &bytes)?;
        }
        Ok(())
    }

    fn group(&mut self, kind: BitmapKind, group: u64, bitmap: Bno, bits: &[u64]) -> Result<()> {
        let t = match kind {
            BitmapKind::Blocks => &self.plan.block_descs,
            BitmapKind::Inodes => &self.plan.inode_descs,
        };
        let desc = GroupDesc {
            bitmap: Ptr::new(bitmap, 0, kind.bitmap_at(self.geo, group)).0,
            sum: bits.iter().enumerate().fold(0u64, |s, (i, w)| {
                s.wrapping_add(word_sum(self.geo.seed, i as u64, *w))
            }),
            ..GroupDesc::default()
        };
        let desc_offset = self.geo.offset(t.data) + group * GroupDesc::SIZE as u64;
        self.store(self.geo.offset(bitmap), bits.as_bytes())?;
        self.store(desc_offset, desc.as_bytes())
    }

    fn block_bitmaps(&mut self) -> Result<()> {
        let per_group = self.geo.bits_per_group();
        for &group in &self.plan.groups {
            let mut bits = vec![0u64; (per_group / 64) as usize];
            let first = group * per_group;
            let len = (self.geo.blocks() - first).min(per_group);
            let mut set = |b: u64| bits[(b - first) as usize / 64] |= 1 << (b % 64);
            for run in &self.plan.used {
                (run.start.0.max(first)..run.end().0.min(first + len)).for_each(&mut set);
            }
            self.group(BitmapKind::Blocks, group, Bno(first + len - 1), &bits)?;
        }
        Ok(())
    }

    fn inode_bitmap(&mut self) -> Result<()> {
        let mut bits = vec![0u64; (self.geo.bits_per_group() / 64) as usize];
        bits[0] = (1 << Ino::FIRST_FREE.0) - 1;
        self.group(BitmapKind::Inodes, 0, self.plan.inode_bitmap, &bits)
    }

    fn page(&self, fixed: &SuperStatic) -> Vec<u8> {
        let mut page = vec![0u8; PAGE as usize];
        let mut put = |at: u64, bytes: &[u8]| {
            page[at as usize..at as usize + bytes.len()].copy_from_slice(bytes)
        };
        let mut fixed = *fixed;
        fixed.seal();
        put(0, fixed.as_bytes());
        let dynamic = SuperDynamic {
            state: STATE_CLEAN,
            checkpoint: seal(self.geo.seed, 1),
            ..SuperDynamic::default()
        };
        put(DYNAMIC_OFFSET, dynamic.as_bytes());
        for (at, t, ino) in [
            (INODE_TABLE_OFFSET, &self.plan.inode_table, Ino::INODE_TABLE),
            (
                INODE_GROUPS_OFFSET,
                &self.plan.inode_descs,
                Ino::INODE_GROUPS,
            ),
            (
                BLOCK_GROUPS_OFFSET,
                &self.plan.block_descs,
                Ino::BLOCK_GROUPS,
            ),
        ] {
            put(at, self.internal_inode(t, ino).as_bytes());
        }
        page
    }
}
