//! Replaces names, targets and attributes by others of the same length.
//!
//! What stays: numbers, sizes, times, owners, modes, ACLs, the namespaces of attributes, and the
//! slashes of targets. The hash of a name stays where it is, and so does its item; the new name
//! follows from it ([`scrambled`]). Values become zeros. Checksums are renewed where they fitted.
//!
//! What a check no longer finds: that records of the journal are refused, because they are left
//! out; how exactly the items of a leaf with a correct sum cannot be, because its slots are left
//! out. That leaf is still damaged.

use super::Edit;
use crate::owners::{DataOf, Owned, Owner};
use crate::{Checker, Part};
use pramfs_medium::error::Result;
use pramfs_medium::htree::{Image, TIE_MASK, TreeKind, TreeRef, item_parts, name_hash, scrambled};
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::checksum::{crc, mix64};
use pramfs_medium::media::htree::{
    ItemHeader, LargeValue, LeafHeader, SLOT, VALUE_IN_BLOCKS, VALUE_MAX,
};
use pramfs_medium::media::inode::{INLINE_TARGET, INODE_SIZE};
use pramfs_medium::media::pointer::Ptr;
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::types::{Bno, FileType, Ino, RegionOffset};
use zerocopy::IntoBytes;

/// Offset of the sum in a leaf.
const SUM_AT: usize = std::mem::offset_of!(LeafHeader, sum);
/// Longest target, bytes.
const TARGET_MAX: u64 = 4095;

impl Checker<'_> {
    /// Returns the changes that replace all that a person wrote, but for file data.
    pub(super) fn scramble(&mut self, owned: &[Owned]) -> Result<Vec<Edit>> {
        let mut edits = Vec::new();
        let block_size = self.geo.block_size as usize;
        for of in owned {
            if let Owner::Data {
                of: DataOf::Value | DataOf::Target,
                ..
            } = of.owner
            {
                let blocks = of.blocks.blocks();
                edits.extend(blocks.map(|block| (self.geo.offset(block), vec![0; block_size])));
            }
        }
        for of in owned {
            for (i, block) in (0..).zip(of.blocks.blocks()) {
                match of.owner.later(i) {
                    Owner::Leaf { ino, part } => edits.push(self.leaf(ino, part, block)?),
                    Owner::Data {
                        ino: Ino::INODE_TABLE,
                        first,
                        ..
                    } => self.inodes(block, first.0, &mut edits)?,
                    _ => {}
                }
            }
        }
        Ok(edits)
    }

    /// Scrambles a leaf of entries or attributes.
    fn leaf(&mut self, ino: Ino, part: Part, block: Bno) -> Result<Edit> {
        let tree = TreeRef {
            ino,
            kind: match part {
                Part::Xattrs => TreeKind::Xattrs,
                _ => TreeKind::Directory,
            },
            root: Ptr::HOLE,
            blocks: 0,
        };
        let at = self.geo.offset(block);
        let shape = self.geo.leaf;
        let mut image = Image::zeroed(shape.block_size);
        self.region.read(at, &mut image.bytes)?;
        let seed = tree.leaf_seed(&self.geo, block);
        let fits = image.sum(seed) == image.header().sum;
        match image.items(&tree, &shape) {
            Ok(items) => {
                // What removed items have left.
                let mut used = vec![false; shape.slots];
                for item in &items {
                    let first = (item.at - shape.slots_at) / SLOT;
                    used[first..first + item.slots].fill(true);
                }
                for (slot, _) in used.iter().enumerate().filter(|(_, used)| !**used) {
                    let from = shape.slots_at + slot * SLOT;
                    image.bytes[from..from + SLOT].fill(0);
                }
                for item in items {
                    self.item(&tree, &mut image, item.at, item.slots)?;
                }
            }
            // The names in it cannot be told from the rest.
            Err(_) => image.bytes[shape.slots_at..].fill(0),
        }
        let end = shape.slots_at + shape.slots * SLOT;
        image.bytes[end..].fill(0);
        let sum = image.sum(seed);
        let stored = match fits {
            true => sum,
            false if sum == image.header().sum => !sum,
            false => image.header().sum,
        };
        image.bytes[SUM_AT..SUM_AT + 8].copy_from_slice(&stored.to_le_bytes());
        Ok((at, image.bytes.clone()))
    }

    fn item(&mut self, tree: &TreeRef, image: &mut Image, at: usize, slots: usize) -> Result<()> {
        let Some((head, value, name)) = item_parts(&image.bytes, at) else {
            return Ok(());
        };
        let (value, name) = (value.to_vec(), name.to_vec());
        let hash = head.hash();
        let mut new = scrambled(tree.kind, hash, &name);
        if name_hash(&self.geo, &name) != hash & !TIE_MASK
            && let Some(last) = new.last_mut()
        {
            // Still a name, and not that of its hash.
            *last = if *last == b'a' { b'b' } else { b'a' };
        }
        let mut new_value = value.clone();
        if tree.kind == TreeKind::Xattrs {
            let large = (head.kind == VALUE_IN_BLOCKS).then(|| LargeValue::parse(&value));
            match large.flatten() {
                Some(large) => {
                    let large = self.value(tree.ino, &head, large)?;
                    new_value[..LargeValue::SIZE].copy_from_slice(large.as_bytes());
                    new_value[LargeValue::SIZE..].fill(0);
                }
                None if name.starts_with(b"system.") => {}
                None => new_value.fill(0),
            }
        }
        let from = at + ItemHeader::SIZE;
        let named = from + new_value.len();
        image.bytes[from..named].copy_from_slice(&new_value);
        image.bytes[named..named + new.len()].copy_from_slice(&new);
        image.bytes[named + new.len()..at + slots * SLOT].fill(0);
        Ok(())
    }

    /// Returns a large value whose bytes have become zeros.
    fn value(&mut self, ino: Ino, head: &ItemHeader, mut large: LargeValue) -> Result<LargeValue> {
        let len = large.len as usize;
        if len > VALUE_MAX {
            return Ok(large);
        }
        let root = large.map(ino, head.hash() & !TIE_MASK);
        self.claims = super::super::Claims::new(self.geo.blocks());
        let walked = self.walk_map(&root, ino, Part::XattrValue, true)?;
        if let (false, Ok(bytes)) = (walked.damaged, self.read_whole(&walked.extents, len)?) {
            let zeros = crc(self.geo.seed, &vec![0; len]);
            let fits = crc(self.geo.seed, &bytes) == large.crc;
            large.crc = if fits { zeros } else { !zeros };
        }
        Ok(large)
    }

    /// Scrambles the targets in a block of the inode table, and those that lie in blocks.
    fn inodes(&mut self, block: Bno, index: u64, edits: &mut Vec<Edit>) -> Result<()> {
        let per_block = self.geo.inodes_per_block();
        for i in 0..per_block {
            let ino = Ino(index * per_block + i);
            let at = self.geo.offset(block) + i * INODE_SIZE;
            let mut d = self.read_inode(at)?;
            let before = d;
            let fits = d.crc == d.expected_crc(self.geo.seed, ino);
            let is_used = self.inodes.get(ino).is_some();
            let is_link = FileType::from_mode(d.mode) == Some(FileType::Symlink);
            if is_used && fits && is_link {
                self.target(&mut d, edits)?;
                d.seal(self.geo.seed, ino);
            } else if !is_used || !fits {
                // What an inode has left that was freed, or is damaged.
                d.target.fill(0);
                if !fits && d.crc == d.expected_crc(self.geo.seed, ino) {
                    d.crc = !d.crc;
                } else if fits {
                    d.seal(self.geo.seed, ino);
                }
            }
            if d != before {
                edits.push((at, d.as_bytes().to_vec()));
            }
        }
        Ok(())
    }

    fn target(&mut self, d: &mut DiskInode, edits: &mut Vec<Edit>) -> Result<()> {
        let size = d.size as usize;
        let random = mix64(d.ino ^ d.generation.rotate_left(32));
        if d.size <= INLINE_TARGET as u64 {
            replace(&mut d.target[..size], random);
            return Ok(());
        }
        if d.size > TARGET_MAX {
            return Ok(());
        }
        self.claims = super::super::Claims::new(self.geo.blocks());
        let ino = Ino(d.ino);
        let walked = self.walk_map(&MapRoot::of(d), ino, Part::Contents, true)?;
        let mut bytes = match self.read_whole(&walked.extents, size)? {
            Ok(bytes) => bytes,
            // Parts of it are missing: nobody can tell whether its sum fits.
            Err(_) => vec![0; size],
        };
        let fits = d.target[..4] == crc(self.geo.seed, &bytes).to_le_bytes();
        replace(&mut bytes, random);
        let sum = crc(self.geo.seed, &bytes);
        let sum = if fits { sum } else { !sum };
        d.target[..4].copy_from_slice(&sum.to_le_bytes());
        let block_size = self.geo.block_size as usize;
        for extent in &walked.extents {
            for (index, block) in extent.blocks() {
                let from = (index.0 as usize).saturating_mul(block_size).min(size);
                let to = from.saturating_add(block_size).min(size);
                let mut new = vec![0; block_size];
                new[..to - from].copy_from_slice(&bytes[from..to]);
                let at: RegionOffset = self.geo.offset(block);
                edits.push((at, new));
            }
        }
        Ok(())
    }
}

/// Replaces the bytes of a target but for slashes, and zeros, which are damage.
fn replace(target: &mut [u8], mut random: u64) {
    for byte in target.iter_mut().filter(|byte| !matches!(byte, b'/' | 0)) {
        random = mix64(random.wrapping_add(1));
        *byte = b'a' + (random % 26) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::replace;

    #[test]
    fn target_keeps_its_slashes_and_length() {
        let mut target = *b"/home/anna/notes";
        replace(&mut target, 7);
        assert_eq!(target.iter().filter(|b| **b == b'/').count(), 3);
        assert_eq!((target[0], target[5]), (b'/', b'/'));
        assert_ne!(&target, b"/home/anna/notes");
    }
}
