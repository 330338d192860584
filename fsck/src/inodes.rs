//! Checks inodes: their numbers, their fields, and their blocks.

use super::bitmaps::GroupBits;
use super::maps::{Walked, place_of};
use super::{Checker, Issue, Loss, Lost, Part, Step};
use pramfs_medium::error::Result;
use pramfs_medium::media::checksum::crc;
use pramfs_medium::media::inode::{
    FL_LOST, FLAGS_HIDDEN, FLAGS_KEPT, INLINE_TARGET, INODE_SIZE, LINK_MAX,
};
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::media::{DiskInode, Geometry};
use pramfs_medium::types::{FileBlock, FileType, Ino, RegionOffset};

/// [`Info::dir`] of an inode that is not a directory.
pub(super) const NO_DIR: u32 = u32::MAX;
/// Longest symlink target, bytes.
const TARGET_MAX: u64 = 4095;

/// The check's data about an inode in use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Info {
    /// Link count in the inode.
    pub nlink: u32,
    /// Number of names found.
    pub found: u32,
    /// Index among the directories; [`NO_DIR`] if it is not a directory.
    pub dir: u32,
    /// Type bits of the mode, shifted down; 0 if the inode is damaged.
    pub kind: u8,
    /// In use.
    pub used: bool,
    /// Named by the orphan table.
    pub orphan: bool,
    /// Type in the entry that names it.
    pub said: u8,
}

const FREE: Info = Info {
    nlink: 0,
    found: 0,
    dir: NO_DIR,
    kind: 0,
    used: false,
    orphan: false,
    said: 0,
};

/// The check's data about a directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dir {
    pub ino: u64,
    /// Parent in its inode.
    pub parent: u64,
    /// The first directory found that names it; 0 if none does.
    pub named_by: u64,
    /// Number of entries.
    pub entries: u64,
    /// Number of entries that name directories.
    pub subdirs: u32,
    /// Some of its entries could not be read.
    pub damaged: bool,
}

/// All inodes in use, by number. The piece of a group exists only if the group
/// has one.
#[derive(Debug)]
pub(super) struct Inodes {
    groups: Vec<Option<Box<[Info]>>>,
    per_group: u64,
    pub dirs: Vec<Dir>,
    count: u64,
}

impl Inodes {
    pub(super) fn new(geo: &Geometry) -> Inodes {
        let per_group = geo.bits_per_group();
        Inodes {
            groups: (0..geo.inodes_max().div_ceil(per_group))
                .map(|_| None)
                .collect(),
            per_group,
            dirs: Vec::new(),
            count: 0,
        }
    }

    /// Returns an inode if it is in use.
    pub(super) fn get(&mut self, ino: Ino) -> Option<&mut Info> {
        let group = self
            .groups
            .get_mut((ino.0 / self.per_group) as usize)?
            .as_mut()?;
        let info = group.get_mut((ino.0 % self.per_group) as usize)?;
        info.used.then_some(info)
    }

    fn add(&mut self, ino: u64) {
        let per_group = self.per_group as usize;
        if let Some(group) = self.groups.get_mut(ino as usize / per_group) {
            let group = group.get_or_insert_with(|| vec![FREE; per_group].into());
            group[ino as usize % per_group].used = true;
            self.count += 1;
        }
    }

    /// Returns the first inode in use whose number is at least `from`.
    pub(super) fn next(&self, from: u64) -> Option<(Ino, Info)> {
        let mut at = from;
        while let Some(group) = self.groups.get((at / self.per_group) as usize) {
            let first = at - at % self.per_group;
            if let Some(group) = group {
                let found = group[(at - first) as usize..].iter().position(|i| i.used);
                if let Some(i) = found {
                    let ino = at + i as u64;
                    return Some((Ino(ino), group[(ino - first) as usize]));
                }
            }
            at = first + self.per_group;
        }
        None
    }
}

/// Whether ranges of an inode's contents can be marked as lost.
pub(super) fn can_be_marked(ino: Ino, kind: Option<FileType>) -> bool {
    ino >= Ino::FIRST_FREE && kind == Some(FileType::Regular)
}

/// Returns the flags that an inode can have.
pub(super) fn flags_of(geo: &Geometry, ino: Ino, kind: FileType) -> u32 {
    match can_be_marked(ino, Some(kind)) {
        true if geo.data_sums => FLAGS_KEPT | FLAGS_HIDDEN,
        true => FLAGS_KEPT | FL_LOST,
        false => FLAGS_KEPT,
    }
}

impl Checker<'_> {
    /// Calls `f` for each inode in use, in ascending order.
    pub(super) fn each_inode(
        &mut self,
        step: Step,
        mut f: impl FnMut(&mut Self, Ino, Info) -> Result<()>,
    ) -> Result<()> {
        let total = self.inodes.count;
        let (mut from, mut done) = (0, 0);
        while let Some((ino, info)) = self.inodes.next(from) {
            if done % 8192 == 0 {
                self.progress(step, done, total);
            }
            f(self, ino, info)?;
            (from, done) = (ino.0 + 1, done + 1);
        }
        Ok(())
    }

    /// Collects the inodes in use from the bitmap.
    pub(super) fn find_inodes(&mut self, groups: &[GroupBits]) -> Result<()> {
        let per_group = self.geo.bits_per_group();
        for (group, bits) in groups.iter().enumerate() {
            let first = group as u64 * per_group;
            let &GroupBits::At(at) = bits else {
                if first == 0 && *bits == GroupBits::Clear {
                    self.add(Issue::ReservedInodeFree { ino: Ino(0) });
                }
                continue;
            };
            for word in 0..per_group / 64 {
                let mut w = self.region.load_u64(at + word * 8)?;
                if first + word == 0 {
                    let reserved = (1 << Ino::FIRST_FREE.0) - 1;
                    if w & reserved != reserved {
                        let ino = Ino(u64::from((!w).trailing_zeros()));
                        self.add(Issue::ReservedInodeFree { ino });
                    }
                    let kept = [Ino::ROOT, Ino::ORPHANS, Ino::LEASES];
                    w = w & !reserved | kept.iter().fold(0, |m, i| m | 1 << i.0);
                }
                while w != 0 {
                    let ino = first + word * 64 + u64::from(w.trailing_zeros());
                    w &= w - 1;
                    if ino < self.geo.inodes_max() {
                        self.inodes.add(ino);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the offset of an inode.
    pub(super) fn home(&self, ino: Ino) -> Option<RegionOffset> {
        // A slot of the lease table may name any number.
        place_of(&self.geo, &self.table, ino.0.checked_mul(INODE_SIZE)?)
    }

    /// Reads every inode once: checks its fields and records data for later steps.
    pub(super) fn read_inodes(&mut self) -> Result<()> {
        self.each_inode(Step::Inodes, |c, ino, mut info| {
            let Some(home) = c.home(ino) else {
                c.mark_contents_unknown();
                c.add(Issue::InodeMissing { ino });
                return Ok(());
            };
            let d = c.read_inode(home)?;
            if d.crc != d.expected_crc(c.geo.seed, ino) || d.ino != ino.0 {
                c.mark_contents_unknown();
                c.add(Issue::InodeDamaged { ino });
                return Ok(());
            }
            let Some(kind) = FileType::from_mode(d.mode) else {
                c.mark_contents_unknown();
                c.add(Issue::InodeField {
                    ino,
                    what: "the mode has no valid file type",
                });
                return Ok(());
            };
            c.check_fields(ino, &d, kind);
            c.count(ino, kind);
            info.nlink = d.nlink;
            info.kind = (d.mode >> 12 & 15) as u8;
            if kind == FileType::Directory {
                info.dir = c.inodes.dirs.len() as u32;
                c.inodes.dirs.push(Dir {
                    ino: ino.0,
                    parent: d.parent_or_rdev,
                    named_by: 0,
                    entries: 0,
                    subdirs: 0,
                    damaged: false,
                });
            }
            if let Some(i) = c.inodes.get(ino) {
                *i = info;
            }
            Ok(())
        })
    }

    /// Records that an inode is unreadable, so that its blocks and names are unknown.
    fn mark_contents_unknown(&mut self) {
        (self.hidden_blocks, self.hidden_names) = (true, true);
    }

    fn count(&mut self, ino: Ino, kind: FileType) {
        let n = &mut self.report.counts;
        if ino < Ino::FIRST_FREE && ino != Ino::ROOT {
            return;
        }
        n.inodes += 1;
        match kind {
            FileType::Regular => n.files += 1,
            FileType::Directory => n.directories += 1,
            FileType::Symlink => n.symlinks += 1,
            _ => n.special += 1,
        }
    }

    fn check_fields(&mut self, ino: Ino, d: &DiskInode, kind: FileType) {
        let mut bad = |what| {
            self.report
                .add(Issue::InodeField { ino, what }, self.options.max_findings)
        };
        if u32::from(d.height) > self.geo.max_height() {
            bad("the height of the file map is out of range");
        }
        if d.size > self.geo.max_file_size() {
            bad("the size is out of range");
        }
        if [d.mtime_nsec, d.ctime_nsec, d.atime_nsec, d.btime_nsec]
            .iter()
            .any(|n| *n >= 1_000_000_000)
        {
            bad("the nanoseconds of a timestamp are out of range");
        }
        if d.nlink > LINK_MAX {
            bad("the link count is out of range");
        }
        if d.flags & !flags_of(&self.geo, ino, kind) != 0 {
            bad("unknown flags are set");
        }
        let special = !matches!(
            kind,
            FileType::Regular | FileType::Directory | FileType::Symlink
        );
        let inline = kind == FileType::Symlink && d.size <= INLINE_TARGET as u64;
        if (special || inline) && (d.root != 0 || d.height != 0) || special && d.size != 0 {
            bad("it has contents, but cannot have any");
        }
        if kind == FileType::Directory && d.height != 0 {
            bad("a directory has the height of a file map");
        }
        let expected = match ino {
            Ino::ROOT => Some(FileType::Directory),
            Ino::ORPHANS | Ino::LEASES => Some(FileType::Regular),
            _ => None,
        };
        if expected.is_some_and(|e| e != kind) {
            bad("the file type is wrong for this inode");
        }
        if ino == Ino::ROOT && d.parent_or_rdev != Ino::ROOT.0 {
            bad("the root directory is not its own parent");
        }
        // A long symlink holds the CRC of its target here.
        let target = match kind {
            FileType::Symlink if inline => d.size as usize,
            FileType::Symlink => 4,
            _ => 0,
        };
        if d.xattr_height != 0
            || d.reserved_line0 != 0
            || !self.can_have_sums(ino, kind) && (d.unsummed_from, d.unsummed_to) != (0, 0)
            || d.target[target..].iter().any(|&b| b != 0)
        {
            self.add(Issue::InodeReserved { ino });
        }
    }

    /// Walks the trees and maps of every inode.
    pub(super) fn check_contents(&mut self) -> Result<()> {
        self.each_inode(Step::Contents, |c, ino, info| {
            // The tables were already walked when they were read.
            let is_table = [Ino::ORPHANS, Ino::LEASES].contains(&ino);
            let (Some(home), true) = (c.home(ino), info.kind != 0 && !is_table) else {
                return Ok(());
            };
            let d = c.read_inode(home)?;
            c.check_content(ino, &d, info)
        })
    }

    fn check_content(&mut self, ino: Ino, d: &DiskInode, info: Info) -> Result<()> {
        let (mut blocks, mut damaged) = (0, false);
        let kind = FileType::from_mode(d.mode);
        if kind == Some(FileType::Directory) {
            let (b, bad) = self.check_directory(ino, d, info)?;
            (blocks, damaged) = (blocks + b, damaged | bad);
        } else if can_be_marked(ino, kind) {
            let walked = match d.root {
                0 => Walked::default(),
                _ => {
                    let keep = self.leases.has_window(ino) || self.is_summed(d);
                    self.walk_file(&MapRoot::of(d), ino, keep)?
                }
            };
            self.check_mark(ino, d)?;
            if self.is_summed(d) {
                self.check_sums(ino, d, &walked.extents)?;
            }
            self.note_window_blocks(ino, &walked);
            (blocks, damaged) = (walked.blocks, walked.damaged);
            self.check_marks(ino, d, &walked);
        } else if d.root != 0 {
            let link = kind == Some(FileType::Symlink);
            let walked = self.walk_map(&MapRoot::of(d), ino, Part::Contents, link)?;
            (blocks, damaged) = (walked.blocks, walked.damaged);
            if link && !damaged {
                self.check_target(ino, d, &walked.extents)?;
            }
        } else if kind == Some(FileType::Symlink) {
            let size = d.size as usize;
            if size > INLINE_TARGET {
                self.check_target(ino, d, &[])?;
            } else if size == 0 || d.target[..size].contains(&0) {
                self.add(Issue::BadTarget { ino });
            }
        }
        if d.xattr_root != 0 {
            let (b, bad) = self.check_xattrs(ino, d)?;
            (blocks, damaged) = (blocks + b, damaged | bad);
        }
        if !damaged {
            self.check_block_count(ino, d.blocks, blocks);
        }
        Ok(())
    }

    /// Lists the ranges marked as lost, which are not damage, and checks that the
    /// flag of the inode matches.
    fn check_marks(&mut self, ino: Ino, d: &DiskInode, walked: &Walked) {
        let marked = !walked.lost.is_empty();
        if marked != (d.flags & FL_LOST != 0) && (marked || !walked.damaged) {
            self.add(Issue::LostFlag { ino, marked });
        }
        for run in &walked.lost {
            let at = run.start.0.saturating_mul(self.geo.block_size);
            let end = run.end().0.saturating_mul(self.geo.block_size);
            let len = end.min(d.size).saturating_sub(at);
            if len > 0 && self.report.marked.len() < self.options.max_findings {
                self.report.marked.push(Loss {
                    ino: Some(ino),
                    path: None,
                    what: Lost::Bytes { at, len },
                });
            }
        }
    }

    fn check_target(&mut self, ino: Ino, d: &DiskInode, extents: &[super::Extent]) -> Result<()> {
        if d.size > TARGET_MAX {
            self.add(Issue::BadTarget { ino });
            return Ok(());
        }
        match self.read_whole(extents, d.size as usize)? {
            Err(first) => self.add(Issue::MapHole {
                ino,
                part: Part::Contents,
                first: first.0,
            }),
            Ok(target) if d.target[..4] != crc(self.geo.seed, &target).to_le_bytes() => {
                self.add(Issue::TargetChecksum { ino });
            }
            Ok(target) if target.contains(&0) => self.add(Issue::BadTarget { ino }),
            Ok(_) => {
                let end = extents.last().map_or(FileBlock(0), |e| e.end());
                if end > self.geo.file_block_from(d.size) {
                    self.add(Issue::BadTarget { ino });
                }
            }
        }
        Ok(())
    }
}
