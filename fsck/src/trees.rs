//! Checks hash trees: every pointer, every leaf, every item.

use std::mem::take;

use zerocopy::IntoBytes;

use super::owners::Owner;
use super::{Checker, Issue, Part};
use pramfs_medium::error::Result;
use pramfs_medium::htree::{
    HASH_BITS, Image, Item, LeafAt, TIE_MASK, TreeKind, TreeRef, item_parts,
};
use pramfs_medium::media::htree::ItemHeader;
use pramfs_medium::media::pointer::Ptr;
use pramfs_medium::types::Bno;

/// Called for each item with its header, value and name.
pub(super) type Show<'c, 'f> =
    dyn FnMut(&mut Checker<'c>, &ItemHeader, &[u8], &[u8]) -> Result<()> + 'f;

/// The result of a walk over a hash tree.
#[derive(Debug, Default)]
pub(super) struct TreeWalked {
    /// Number of blocks of the tree.
    pub blocks: u64,
    /// Number of items in undamaged leaves.
    pub items: u64,
    /// Part of it could not be walked.
    pub damaged: bool,
}

struct Walk<'t> {
    t: &'t TreeRef,
    part: Part,
    out: TreeWalked,
}

/// The slots of an index block, or the root as a single slot.
struct Slots<'s> {
    words: &'s [u64],
    level: u32,
    /// Number of the first slot in its level.
    first: u64,
    /// Slots that have been reported as damaged.
    reported: Vec<bool>,
}

impl<'c> Checker<'c> {
    /// Walks a tree, claims its blocks, and passes the items of undamaged leaves
    /// to `f`.
    pub(super) fn walk_tree(&mut self, t: &TreeRef, f: &mut Show<'c, '_>) -> Result<TreeWalked> {
        let part = match t.kind {
            TreeKind::Directory => Part::Entries,
            TreeKind::Xattrs => Part::Xattrs,
        };
        let mut w = Walk {
            t,
            part,
            out: TreeWalked::default(),
        };
        self.tree_slots(&mut w, &[t.root.0], 0, 0, f)?;
        if w.out.damaged {
            self.hidden_blocks = true;
            self.hidden_names |= t.kind == TreeKind::Directory;
        }
        Ok(w.out)
    }

    fn tree_pointer(&mut self, w: &mut Walk<'_>, s: &mut Slots<'_>, slot: usize) {
        w.out.damaged = true;
        if !std::mem::replace(&mut s.reported[slot], true) {
            self.add(Issue::TreePointer {
                ino: w.t.ino,
                part: w.part,
                level: s.level,
                index: s.first + slot as u64,
            });
        }
    }

    /// Walks the blocks that the slots of an index block point to.
    fn tree_slots(
        &mut self,
        w: &mut Walk<'_>,
        words: &[u64],
        level: u32,
        first: u64,
        f: &mut Show<'c, '_>,
    ) -> Result<()> {
        let mut s = Slots {
            words,
            level,
            first,
            reported: vec![false; words.len()],
        };
        let mut slot = 0;
        while slot < words.len() {
            let (ptr, index) = (Ptr(words[slot]), first + slot as u64);
            if ptr.is_hole() || s.reported[slot] {
                slot += 1;
                continue;
            }
            match w.t.open(&self.geo, ptr, level, index) {
                Ok(block) if ptr.is_leaf() => {
                    slot = self.tree_leaf(w, &mut s, slot, block, f)?;
                    continue;
                }
                Ok(block) if (level + 1) * self.geo.fan_log2 <= HASH_BITS => {
                    w.out.blocks += 1;
                    // As in file maps, no index block is walked twice.
                    let owner = Owner::Index {
                        ino: w.t.ino,
                        part: w.part,
                        level,
                    };
                    if self.claim(w.t.ino, block.0, 1, owner) {
                        let below = self.pointers(block)?;
                        // The format frees an index block with its last pointer.
                        if below.iter().all(|word| *word == 0) {
                            w.out.damaged = true;
                            self.add(Issue::TreeEmpty {
                                ino: w.t.ino,
                                part: w.part,
                                level,
                                index,
                            });
                        }
                        self.tree_slots(w, &below, level + 1, index << self.geo.fan_log2, f)?;
                    } else {
                        w.out.damaged = true;
                    }
                }
                _ => self.tree_pointer(w, &mut s, slot),
            }
            slot += 1;
        }
        Ok(())
    }

    /// Walks the leaf in `slot`. Returns the slot after its last one.
    fn tree_leaf(
        &mut self,
        w: &mut Walk<'_>,
        s: &mut Slots<'_>,
        slot: usize,
        block: Bno,
        f: &mut Show<'c, '_>,
    ) -> Result<usize> {
        let same = |word: &u64| Ptr(*word).block() == block && Ptr(*word).is_leaf();
        let in_a_row = slot + s.words[slot..].iter().take_while(|x| same(x)).count();
        w.out.blocks += 1;
        let owner = Owner::Leaf {
            ino: w.t.ino,
            part: w.part,
        };
        if !self.claim(w.t.ino, block.0, 1, owner) {
            w.out.damaged = true;
            return Ok(in_a_row);
        }
        let mut image = Image {
            bytes: take(&mut self.buffer),
        };
        image.bytes.resize(self.geo.leaf.block_size, 0);
        self.region
            .read(self.geo.offset(block), image.bytes.as_mut_bytes())?;
        let bits = s.level * self.geo.fan_log2;
        let hash = (s.first + slot as u64)
            .checked_shl(HASH_BITS - bits)
            .unwrap_or(0);
        let checked = image
            .check(
                w.t,
                &self.geo,
                LeafAt {
                    block,
                    level: s.level,
                    hash,
                },
                true,
            )
            .and_then(|()| {
                let depth = image.depth(&self.geo, s.level, hash)?;
                Ok((depth, image.items(w.t, &self.geo.leaf)?))
            });
        let end = match checked {
            Ok((depth, items)) => {
                // Every slot that begins with its hash bits points to it, and
                // the index block holds all of these slots.
                let run = 1usize << (bits - depth);
                let start = slot & !(run - 1);
                for at in start..(start + run).min(s.words.len()) {
                    let index = s.first + at as u64;
                    let ptr = Ptr(s.words[at]);
                    let named = w.t.open(&self.geo, ptr, s.level, index).ok() == Some(block);
                    if !named || !ptr.is_leaf() {
                        self.tree_pointer(w, s, at);
                    }
                }
                self.tree_items(w, &image, items, f)?;
                start + run
            }
            Err(what) => {
                w.out.damaged = true;
                self.add(Issue::TreeLeaf {
                    ino: w.t.ino,
                    part: w.part,
                    block: block.0,
                    what,
                });
                in_a_row
            }
        };
        self.buffer = std::mem::take(&mut image.bytes);
        Ok(end)
    }

    /// Passes the items of an undamaged leaf to `f`.
    fn tree_items(
        &mut self,
        w: &mut Walk<'_>,
        image: &Image,
        mut items: Vec<Item>,
        f: &mut Show<'c, '_>,
    ) -> Result<()> {
        items.sort_unstable_by_key(|i| i.hash);
        for (n, item) in items.iter().enumerate() {
            let Some((head, value, name)) = item_parts(&image.bytes, item.at) else {
                continue;
            };
            // Names whose hashes differ only in the tie-breaker are adjacent.
            let twin = items[..n]
                .iter()
                .rev()
                .take_while(|o| o.hash | TIE_MASK == item.hash | TIE_MASK)
                .any(|o| item_parts(&image.bytes, o.at).is_some_and(|(.., other)| other == name));
            if twin {
                self.add(Issue::DuplicateName {
                    ino: w.t.ino,
                    part: w.part,
                    name: name.to_vec(),
                });
            }
            w.out.items += 1;
            f(self, &head, value, name)?;
        }
        Ok(())
    }
}
