//! Checks the orphan table.

use std::collections::HashSet;

use super::maps::Walked;
use super::{Checker, Issue, Part};
use pramfs_medium::error::Result;
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::checksum::orphan_of;
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::types::{Bno, FileBlock, FileType, Ino};

impl Checker<'_> {
    pub(super) fn table_inode(&self, ino: Ino) -> Result<Option<DiskInode>> {
        match self.home(ino) {
            Some(home) => {
                let d = self.read_inode(home)?;
                Ok((d.crc == d.expected_crc(self.geo.seed, ino)).then_some(d))
            }
            None => Ok(None),
        }
    }

    /// Reads the orphan table and notes the inodes that it names.
    pub(super) fn check_orphans(&mut self) -> Result<()> {
        let Some(d) = self.table_inode(Ino::ORPHANS)? else {
            return Ok(());
        };
        let walked = self.walk_map(&MapRoot::of(&d), Ino::ORPHANS, Part::Contents, true)?;
        if walked.damaged {
            self.hidden_names = true;
        } else {
            self.check_table(Ino::ORPHANS, &d, &walked);
        }
        let mut named = HashSet::new();
        for e in walked.extents.iter().filter(|e| !e.unwritten) {
            for i in 0..e.count * self.geo.words_per_block() {
                let slot = e.first.0 * self.geo.words_per_block() + i;
                if slot >= d.size / 8 {
                    break;
                }
                let word = self.region.load_u64(self.geo.offset(e.block) + i * 8)?;
                if word != 0 {
                    self.orphan_slot(slot, word, &mut named)?;
                }
            }
        }
        Ok(())
    }

    fn orphan_slot(&mut self, slot: u64, word: u64, named: &mut HashSet<u64>) -> Result<()> {
        let Some(ino) = orphan_of(self.geo.seed, slot, word) else {
            self.hidden_names = true;
            self.add(Issue::OrphanSlotDamaged { slot });
            return Ok(());
        };
        if !named.insert(ino.0) {
            self.add(Issue::OrphanTwice { slot, ino });
            return Ok(());
        }
        let regular = (FileType::Regular.mode_bits() >> 12) as u8;
        let wrong = match self.inodes.get(ino) {
            _ if ino < Ino::FIRST_FREE => true,
            None => true,
            // A file that has names: its truncation was interrupted.
            Some(info) => {
                info.orphan = true;
                let cut = info.nlink > 0;
                let wrong = cut && info.kind != regular && info.kind != 0;
                self.report.counts.truncations += u64::from(cut && !wrong);
                wrong
            }
        };
        if wrong {
            self.add(Issue::OrphanSlotWrong { slot, ino });
        }
        Ok(())
    }

    /// Checks that a table has all its blocks, and counts them correctly.
    pub(super) fn check_table(&mut self, ino: Ino, d: &DiskInode, walked: &Walked) {
        self.check_block_count(ino, d.blocks, walked.blocks);
        let mut next = FileBlock(0);
        for e in walked.extents.iter().chain([&super::Extent {
            first: self.geo.file_block(d.size),
            count: 0,
            block: Bno(0),
            unwritten: false,
        }]) {
            if e.first > next || e.unwritten {
                self.add(Issue::MapHole {
                    ino,
                    part: Part::Contents,
                    first: next.0,
                });
                break;
            }
            next = e.end();
        }
    }
}
