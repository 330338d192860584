//! Repairs multiply-claimed blocks. The owner is, in this order:
//! 1. the format, if it claims the block;
//! 2. the owner that a leaf or a pointer block names;
//! 3. the first of the files that claim it.
//!
//! Each other file gets a copy, so that all read as before.

use std::collections::HashSet;

use zerocopy::IntoBytes;

use super::Repairer;
use super::maps::LocatedPtr;
use crate::{CheckOptions, Checker, Issue, Report};
use pramfs_medium::error::Result;
use pramfs_medium::htree::{TreeKind, TreeRef};
use pramfs_medium::media::htree::LEAF_MAGIC;
use pramfs_medium::media::inode::ALL_BLOCKS;
use pramfs_medium::media::pointer::Ptr;
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::types::{Bno, FileType, Ino};

/// A claim of a block.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockOwner {
    pub block: u64,
    pub ino: Ino,
}

impl Repairer<'_, '_> {
    pub(super) fn repair_twice(
        &mut self,
        block: u64,
        todo: &[(Issue, Option<usize>)],
    ) -> Result<bool> {
        if self.twice.is_none() {
            self.twice = Some(self.claimers(todo));
        }
        let all = self.twice.iter().flatten().filter(|c| c.block == block);
        let claimers: Vec<Ino> = all.map(|c| c.ino).collect();
        let mut files = Vec::new();
        // The format claims its blocks without an inode, or by an internal one.
        let format = claimers.len() < 2 || claimers.iter().any(|i| *i >= Ino::INODE_TABLE);
        let mut taken = format;
        let leaf_owner = self.leaf_owner(block)?;
        taken |= leaf_owner.is_some_and(|o| claimers.contains(&o));
        let mut seen = HashSet::new();
        for ino in &claimers {
            if *ino < Ino::INODE_TABLE && seen.insert(*ino) {
                files.push(*ino);
            }
        }
        // A pointer block belongs to the file whose pointers it holds.
        let mut owner = None;
        let mut uses = Vec::new();
        for ino in files {
            let found = self.uses(ino, block)?;
            for f in &found {
                let map = pramfs_medium::media::walk::MapRoot {
                    ino: f.place.ino,
                    root: f.ptr,
                    height: f.place.level,
                };
                let index = f.place.level > 0 && !f.ptr.is_leaf();
                if !taken && index && self.is_pointer_block(&map, Bno(block), &f.place)? {
                    owner = Some((ino, f.at));
                    taken = true;
                }
            }
            uses.push((ino, found));
        }
        for (ino, found) in uses {
            let claims = claimers.iter().filter(|i| **i == ino).count();
            let own = usize::from(leaf_owner == Some(ino));
            if found.len() + own < claims {
                // The wrong claim is in its tree of entries or attributes.
                let kind = self.kind(ino)?;
                if kind == Some(FileType::Directory) {
                    self.rebuild_directory(ino, None)?;
                }
                self.rebuild_xattrs(ino)?;
            }
            for f in found {
                if owner == Some((ino, f.at)) {
                    continue;
                }
                let data = f.place.level == 0 || f.ptr.is_leaf();
                if data && !std::mem::replace(&mut taken, true) {
                    continue;
                }
                self.separate(ino, &f, block)?;
            }
        }
        Ok(true)
    }

    /// Finds the claimers of this round's blocks with another check.
    fn claimers(&self, todo: &[(Issue, Option<usize>)]) -> Vec<BlockOwner> {
        let options = CheckOptions {
            max_findings: 0,
            progress: None,
        };
        let mut c = Checker::new(self.view, self.geo.clone(), &options, Report::default());
        c.watched = todo
            .iter()
            .filter_map(|(i, _)| match i {
                Issue::BlockUsedTwice { block, .. } => Some(*block),
                _ => None,
            })
            .collect();
        c.run_to_end();
        let all = c.claimers.into_iter();
        all.map(|(block, ino)| BlockOwner { block, ino }).collect()
    }

    /// Returns the owner of a block that is a leaf.
    fn leaf_owner(&self, block: u64) -> Result<Option<Ino>> {
        let image = self.image(Bno(block))?;
        let h = image.header();
        let fits = |kind| {
            let t = TreeRef {
                ino: Ino(h.owner),
                kind,
                root: Ptr::HOLE,
                blocks: 0,
            };
            h.sum == image.sum(t.leaf_seed(self.geo, Bno(block)))
        };
        let is_leaf =
            h.magic == LEAF_MAGIC && (fits(TreeKind::Directory) || fits(TreeKind::Xattrs));
        Ok(is_leaf.then_some(Ino(h.owner)))
    }

    /// Returns the pointers of a file that lead to a block.
    fn uses(&self, ino: Ino, block: u64) -> Result<Vec<LocatedPtr>> {
        let mut out = Vec::new();
        let Some(d) = self.inode(ino)? else {
            return Ok(out);
        };
        let kind = FileType::from_mode(d.mode);
        if kind == Some(FileType::Directory) || d.root == 0 {
            return Ok(out);
        }
        let map = MapRoot::of(&d);
        let mut seen = HashSet::new();
        let root = LocatedPtr {
            at: None,
            place: map.root_at(self.geo),
            ptr: map.root,
        };
        let mut rest = vec![root];
        while let Some(f) = rest.pop() {
            let Ok(start) = map.open(self.geo, f.ptr, f.place) else {
                continue;
            };
            let data = f.place.level == 0 || f.ptr.is_leaf();
            let span = if data {
                self.geo.span(f.place.level)
            } else {
                1
            };
            if (start.0..start.0 + span).contains(&block) {
                out.push(f);
            }
            if data || !seen.insert(start.0) {
                continue;
            }
            let base = self.geo.offset(start);
            for (i, word) in (0..).zip(self.words(base)?) {
                if word != 0 {
                    rest.push(LocatedPtr {
                        at: Some(base + i * 8),
                        place: f.place.below(self.geo, i),
                        ptr: Ptr(word),
                    });
                }
            }
        }
        out.sort_by_key(|f| (f.place.level, f.place.index));
        Ok(out)
    }

    /// Gives a pointer a block of its own with the same bytes. If it leads to a
    /// pointer block of another file, the range below it is lost.
    fn separate(&mut self, ino: Ino, f: &LocatedPtr, block: u64) -> Result<()> {
        let data = f.place.level == 0 || f.ptr.is_leaf();
        let word = match (data, f.place.level) {
            (false, level) => {
                if let Some(d) = self.inode(ino)? {
                    self.lose_range(&d, level, f.place.first(self.geo));
                }
                return self.mark(ino, f).map(drop);
            }
            (true, 0) => Ptr::new(self.copy_of(block)?, f.ptr.flags(), f.place).0,
            (true, level) => {
                // A huge leaf: split it into single blocks, one of them a copy.
                let flags = f.ptr.flags() & !pramfs_medium::media::pointer::LEAF;
                let mut words = Vec::new();
                for i in 0..self.geo.span(level) {
                    let own = f.ptr.block().0 + i;
                    let at = if own == block {
                        self.copy_of(block)?
                    } else {
                        Bno(own)
                    };
                    let place = f.place.below(self.geo, i);
                    words.push(Ptr::new(at, flags, place).0);
                }
                let index = self.alloc()?;
                self.view.store(self.geo.offset(index), words.as_bytes())?;
                self.recount(ino);
                Ptr::new(index, 0, f.place).0
            }
        };
        let kind = self.inode(ino)?.and_then(|d| FileType::from_mode(d.mode));
        if self.geo.data_sums && kind == Some(FileType::Regular) && ino >= Ino::FIRST_FREE {
            // The copy has no sum yet: the next mount makes it.
            self.edit(ino, |d| d.set_unsummed(ALL_BLOCKS))?;
        }
        match f.at {
            Some(at) => self.view.store_u64(at, word)?,
            None => {
                self.edit(ino, |d| {
                    d.root = word;
                    if word == 0 {
                        d.height = 0;
                    }
                })?;
            }
        }
        Ok(())
    }

    fn copy_of(&mut self, block: u64) -> Result<Bno> {
        let copy = self.alloc()?;
        let mut bytes = vec![0; self.geo.block_size as usize];
        self.view.read(self.geo.offset(Bno(block)), &mut bytes)?;
        self.view.store(self.geo.offset(copy), &bytes)?;
        Ok(copy)
    }
}
