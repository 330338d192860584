//! Checks directories: every entry, and the entry count.

use super::inodes::{Info, NO_DIR};
use super::trees::TreeWalked;
use super::{Checker, Issue};
use pramfs_medium::error::Result;
use pramfs_medium::htree::{TreeKind, TreeRef};
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::htree::ItemHeader;
use pramfs_medium::media::pointer::Ptr;
use pramfs_medium::types::Ino;

/// `DT_DIR`.
pub(super) const DIRECTORY: u8 = 4;

impl Checker<'_> {
    /// Walks a directory. Returns the number of blocks of its tree, and whether
    /// it is damaged.
    pub(super) fn check_directory(
        &mut self,
        dir: Ino,
        d: &DiskInode,
        info: Info,
    ) -> Result<(u64, bool)> {
        let t = TreeRef {
            ino: dir,
            kind: TreeKind::Directory,
            root: Ptr(d.root),
            blocks: 0,
        };
        let mut subdirs = 0;
        let TreeWalked {
            blocks,
            items,
            mut damaged,
        } = self.walk_tree(&t, &mut |c, head, value, name| {
            c.report.counts.entries += 1;
            if c.check_entry(dir, head, value, name) {
                subdirs += 1;
            }
            Ok(())
        })?;
        if !damaged && items < d.size {
            damaged = true;
            (self.hidden_blocks, self.hidden_names) = (true, true);
            self.add(Issue::EntriesMissing {
                ino: dir,
                recorded: d.size,
                found: items,
            });
        } else if !damaged && items != d.size {
            self.add(Issue::EntryCount {
                ino: dir,
                recorded: d.size,
                found: items,
            });
        }
        if let Some(known) = self.inodes.dirs.get_mut(info.dir as usize) {
            known.entries = items;
            known.subdirs = subdirs;
            known.damaged = damaged;
        }
        Ok((blocks, damaged))
    }

    /// Checks one entry. Returns whether it names a directory.
    fn check_entry(&mut self, dir: Ino, head: &ItemHeader, value: &[u8], name: &[u8]) -> bool {
        let ino = Ino(value.first_chunk().map_or(0, |b| u64::from_le_bytes(*b)));
        if ino < Ino::FIRST_FREE {
            self.add(Issue::EntryReserved {
                dir,
                name: name.to_vec(),
                ino,
            });
            return false;
        }
        let Some(info) = self.inodes.get(ino) else {
            // The cause may be damage to the bitmap of the inode's group.
            self.add(Issue::DanglingEntry {
                dir,
                name: name.to_vec(),
                ino,
            });
            return false;
        };
        info.found = info.found.saturating_add(1);
        info.said = head.kind;
        let (kind, number) = (info.kind, info.dir);
        if kind != 0 && kind != head.kind {
            self.add(Issue::EntryType {
                dir,
                name: name.to_vec(),
                ino,
            });
        }
        if number == NO_DIR {
            // For an unreadable inode, the type in the entry counts.
            return kind == 0 && head.kind == DIRECTORY;
        }
        if let Some(child) = self.inodes.dirs.get_mut(number as usize)
            && child.named_by == 0
        {
            child.named_by = dir.0;
        }
        true
    }
}
