//! Checks extended attributes: their items, and the blocks of large values.

use super::{Checker, Issue, Part};
use pramfs_medium::error::Result;
use pramfs_medium::htree::{TIE_MASK, TreeKind, TreeRef};
use pramfs_medium::media::checksum::crc;
use pramfs_medium::media::htree::{
    ItemHeader, LargeValue, VALUE_IN_BLOCKS, VALUE_INLINE, VALUE_MAX,
};
use pramfs_medium::media::pointer::Ptr;
use pramfs_medium::media::{DiskInode, acl};
use pramfs_medium::types::{FileBlock, Ino};

impl Checker<'_> {
    /// Walks the attributes of an inode. Returns their number of blocks, and
    /// whether some are damaged.
    pub(super) fn check_xattrs(&mut self, ino: Ino, d: &DiskInode) -> Result<(u64, bool)> {
        let t = TreeRef {
            ino,
            kind: TreeKind::Xattrs,
            root: Ptr(d.xattr_root),
            blocks: 0,
        };
        let (mut blocks, mut damaged) = (0, false);
        let walked = self.walk_tree(&t, &mut |c, head, value, name| {
            c.check_acl(d, head, value, name);
            let (b, bad) = c.check_xattr(ino, head, value, name)?;
            blocks += b;
            damaged |= bad;
            Ok(())
        })?;
        Ok((blocks + walked.blocks, damaged | walked.damaged))
    }

    /// Checks that an ACL is valid and that the mode matches it.
    fn check_acl(&mut self, d: &DiskInode, head: &ItemHeader, value: &[u8], name: &[u8]) {
        let ino = Ino(d.ino);
        if acl::fault(d.mode, head.kind, name, value) {
            self.add(Issue::AclDamaged {
                ino,
                name: name.to_vec(),
            });
        } else if name == acl::ACCESS
            && let Ok(Some(list)) = acl::Acl::parse(value)
            && list.mode().0 != d.mode & 0o777
        {
            self.add(Issue::AclMode {
                ino,
                recorded: d.mode & 0o777,
                found: list.mode().0,
            });
        }
    }

    fn check_xattr(
        &mut self,
        ino: Ino,
        head: &ItemHeader,
        value: &[u8],
        name: &[u8],
    ) -> Result<(u64, bool)> {
        self.report.counts.xattrs += 1;
        if head.kind == VALUE_INLINE {
            return Ok((0, false));
        }
        let large = (head.kind == VALUE_IN_BLOCKS)
            .then(|| LargeValue::parse(value))
            .flatten();
        let Some(large) = large.filter(|l| l.len as usize <= VALUE_MAX) else {
            self.hidden_blocks = true;
            self.add(Issue::XattrItem {
                ino,
                name: name.to_vec(),
            });
            return Ok((0, true));
        };
        // The leaf was checked: this is the hash of the name.
        let root = large.map(ino, head.hash() & !TIE_MASK);
        let walked = self.walk_map(&root, ino, Part::XattrValue, true)?;
        if !walked.damaged {
            match self.read_whole(&walked.extents, large.len as usize)? {
                Err(first) => self.add(Issue::MapHole {
                    ino,
                    part: Part::XattrValue,
                    first: first.0,
                }),
                Ok(bytes) if crc(self.geo.seed, &bytes) != large.crc => {
                    self.add(Issue::XattrChecksum {
                        ino,
                        name: name.to_vec(),
                    });
                }
                Ok(_) => {
                    let end = walked.extents.last().map_or(FileBlock(0), |e| e.end());
                    if end > self.geo.file_block_from(u64::from(large.len)) {
                        self.add(Issue::XattrItem {
                            ino,
                            name: name.to_vec(),
                        });
                    }
                }
            }
        }
        Ok((walked.blocks, walked.damaged))
    }
}
