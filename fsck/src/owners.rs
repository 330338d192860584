//! Tells who owns each block: the reverse of what a check follows from the superblock down.
//!
//! Invariant: it sees what the next mount would see, since live records are replayed in memory,
//! and it works on a damaged file system as far as a check gets. A block may have several owners:
//! that is damage.

use std::collections::{HashMap, HashSet};

use super::bitmaps::GroupBits;
use super::repair::replay::replay;
use super::report::Report;
use super::view::View;
use super::{CheckOptions, Checker, Part, superblock};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::htree::{TreeKind, TreeRef};
use pramfs_medium::media::pointer::Ptr;
use pramfs_medium::pmem::{Region, RegionAccess};
use pramfs_medium::types::{BlockRun, Bno, FileBlock, Ino};

/// Longest path in bytes, as in Linux.
const PATH_MAX: usize = 4096;

/// What the data blocks of a file map hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DataOf {
    /// Contents of a regular file.
    File,
    /// The target of a symbolic link.
    Target,
    /// The value of an extended attribute.
    Value,
    /// A table of the file system.
    Table,
}

/// The use and the owner of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The first superblock page.
    Superblock,
    /// The copy of it.
    SuperblockCopy,
    /// The journal.
    Journal,
    /// The list of bad blocks.
    BadBlockList,
    /// A bad block.
    BadBlock,
    /// The bitmap of a block group.
    BlockBitmap {
        /// The group.
        group: u64,
    },
    /// The sums of the data of a block group.
    DataSums {
        /// The group.
        group: u64,
    },
    /// The bitmap of an inode group.
    InodeBitmap {
        /// The group.
        group: u64,
    },
    /// Data of a file map.
    Data {
        /// The inode.
        ino: Ino,
        /// What it holds.
        of: DataOf,
        /// The file block of the first of these blocks.
        first: FileBlock,
        /// Allocated, and reads as zeros.
        unwritten: bool,
    },
    /// Pointers of a file map.
    Pointers {
        /// The inode.
        ino: Ino,
        /// Whose map it is.
        part: Part,
        /// Levels of pointers from here to the data.
        level: u32,
        /// The first file block below.
        first: FileBlock,
    },
    /// Pointers of a tree of entries or attributes.
    Index {
        /// The inode.
        ino: Ino,
        /// Which tree.
        part: Part,
        /// Levels above.
        level: u32,
    },
    /// Entries or attributes.
    Leaf {
        /// The inode.
        ino: Ino,
        /// Which tree.
        part: Part,
    },
}

impl Owner {
    /// The inode, if one owns the block.
    pub fn ino(&self) -> Option<Ino> {
        match *self {
            Owner::Data { ino, .. }
            | Owner::Pointers { ino, .. }
            | Owner::Index { ino, .. }
            | Owner::Leaf { ino, .. } => Some(ino),
            _ => None,
        }
    }

    /// The owner of the block `by` blocks later, if both are in one run.
    #[must_use]
    pub fn later(self, by: u64) -> Owner {
        match self {
            Owner::Data {
                ino,
                of,
                first,
                unwritten,
            } => Owner::Data {
                ino,
                of,
                first: first + by,
                unwritten,
            },
            other => other,
        }
    }
}

/// Blocks, and what they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owned {
    /// The blocks.
    pub blocks: BlockRun,
    /// What they are.
    pub owner: Owner,
}

/// What the block bitmap says about a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It is free.
    Free,
    /// It is in use.
    Used,
    /// The bitmap of its group is damaged.
    Unknown,
}

/// The owners of all blocks of a region.
pub struct Owners<'c> {
    checker: Checker<'c>,
    /// In ascending order of their first blocks.
    owned: Vec<Owned>,
}

impl std::fmt::Debug for Owners<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owners")
            .field("runs", &self.owned.len())
            .finish_non_exhaustive()
    }
}

impl Checker<'_> {
    /// Notes what blocks are, if the caller of the check asks for it.
    pub(super) fn note_owner(&mut self, first: u64, count: u64, owner: Owner) {
        let Some(owned) = &mut self.owners else {
            return;
        };
        if let Some(last) = owned.last_mut()
            && last.blocks.end() == Bno(first)
            && last.owner.later(last.blocks.len) == owner
        {
            last.blocks.len += count;
            return;
        }
        owned.push(Owned {
            blocks: BlockRun {
                start: Bno(first),
                len: count,
            },
            owner,
        });
    }

    /// Runs all checks, and returns what blocks are.
    pub(super) fn run_for_owners(&mut self) -> Vec<Owned> {
        self.owners = Some(Vec::new());
        self.run_to_end();
        let mut owned = self.owners.take().unwrap_or_default();
        owned.sort_by_key(|o| o.blocks.start);
        owned
    }
}

impl Owners<'_> {
    /// Walks an unmounted region, and calls `f` with what it finds.
    ///
    /// # Errors
    /// The region holds no file system that this version knows, or cannot be read.
    ///
    /// ```
    /// use pramfs::format::{FormatOptions, format};
    /// use pramfs::pmem::{HeapBackend, Region};
    /// use pramfs_fsck::{Owner, Owners};
    ///
    /// let region = Region::new("example", HeapBackend::boxed(1 << 20));
    /// format(&region, &FormatOptions::default())?;
    /// let owner = Owners::with(&region, |owners| owners.between(0, 1).next().map(|o| o.owner))?;
    /// assert_eq!(owner, Some(Owner::Superblock));
    /// # Ok::<(), pramfs::Error>(())
    /// ```
    pub fn with<R>(region: &Region, f: impl FnOnce(&mut Owners<'_>) -> R) -> Result<R> {
        region.check_owner()?;
        let options = CheckOptions::default();
        let mut report = Report::default();
        let Some(geo) = superblock::open(region.into(), &options, &mut report) else {
            let why = report.issues().next().map(ToString::to_string);
            return Err(Error::NotMountable(why.unwrap_or_default()));
        };
        let mut view = View::new(region);
        replay(&mut view, &geo)?;
        let mut checker = Checker::new(&view, geo, &options, report);
        let owned = checker.run_for_owners();
        Ok(f(&mut Owners { checker, owned }))
    }

    /// Returns the number of blocks of the file system.
    pub fn blocks(&self) -> u64 {
        self.checker.geo.blocks()
    }

    /// Returns the size of a block, bytes.
    pub fn block_size(&self) -> u64 {
        self.checker.geo.block_size
    }

    /// Returns the owners of the blocks `first..end`, in ascending order, each cut to this range.
    pub fn between(&self, first: u64, end: u64) -> impl Iterator<Item = Owned> {
        let overlapping = self
            .owned
            .iter()
            .take_while(move |o| o.blocks.start.0 < end)
            .filter(move |o| o.blocks.end().0 > first);
        overlapping.map(move |o| {
            let start = o.blocks.start.0.max(first);
            Owned {
                blocks: BlockRun {
                    start: Bno(start),
                    len: o.blocks.end().0.min(end) - start,
                },
                owner: o.owner.later(start - o.blocks.start.0),
            }
        })
    }

    /// Returns what the block bitmap says.
    ///
    /// # Errors
    /// The medium cannot be read.
    pub fn state(&self, block: u64) -> Result<State> {
        let per_group = self.checker.geo.bits_per_group();
        let group = (block / per_group) as usize;
        Ok(match self.checker.groups[0].get(group) {
            Some(GroupBits::Clear) => State::Free,
            Some(GroupBits::At(bitmap)) => {
                let bit = block % per_group;
                let word = self.checker.region.load_u64(bitmap.word(bit / 64))?;
                match word >> (bit % 64) & 1 {
                    0 => State::Free,
                    _ => State::Used,
                }
            }
            Some(GroupBits::Unknown) | None => State::Unknown,
        })
    }

    /// Whether the walk has reached everything: nothing is hidden behind damage.
    pub fn is_complete(&self) -> bool {
        let c = &self.checker;
        c.report.complete && !c.hidden_blocks && !c.unknown_groups
    }

    /// Whether an inode has no name, and is freed by the next mount.
    pub fn is_orphan(&mut self, ino: Ino) -> bool {
        let info = self.checker.inodes.get(ino);
        info.is_some_and(|info| info.orphan && info.nlink == 0)
    }

    /// Returns all paths of the wanted inodes, those of an inode in the order of its names.
    ///
    /// # Errors
    /// The medium cannot be read.
    pub fn paths(&mut self, wanted: &HashSet<Ino>) -> Result<HashMap<Ino, Vec<Vec<u8>>>> {
        let c = &mut self.checker;
        c.claims = super::Claims::new(c.geo.blocks());
        // All directories are noted: paths lead through them.
        let mut dirs: HashMap<Ino, (Ino, Vec<u8>)> = HashMap::new();
        let mut names: Vec<(Ino, Ino, Vec<u8>)> = Vec::new();
        for n in 0..c.inodes.dirs.len() {
            let dir = Ino(c.inodes.dirs[n].ino);
            let Some(home) = c.home(dir) else { continue };
            let tree = TreeRef {
                ino: dir,
                kind: TreeKind::Directory,
                root: Ptr(c.read_inode(home)?.root),
                blocks: 0,
            };
            c.walk_tree(&tree, &mut |_, head, value, name| {
                let ino = Ino(value.first_chunk().map_or(0, |b| u64::from_le_bytes(*b)));
                if wanted.contains(&ino) {
                    names.push((ino, dir, name.to_vec()));
                }
                if head.kind == super::directory::DIRECTORY {
                    dirs.entry(ino).or_insert_with(|| (dir, name.to_vec()));
                }
                Ok(())
            })?;
        }
        let mut paths: HashMap<Ino, Vec<Vec<u8>>> = HashMap::new();
        for (ino, dir, name) in names {
            if let Some(path) = path(&dirs, dir, &name) {
                paths.entry(ino).or_default().push(path);
            }
        }
        if wanted.contains(&Ino::ROOT) {
            paths.entry(Ino::ROOT).or_default().push(b"/".to_vec());
        }
        paths.values_mut().for_each(|of| of.sort());
        Ok(paths)
    }
}

/// Builds a path from the root. `None` if the directories do not lead to it, or it is too long.
fn path(dirs: &HashMap<Ino, (Ino, Vec<u8>)>, dir: Ino, name: &[u8]) -> Option<Vec<u8>> {
    let (mut at, mut parts, mut len) = (dir, vec![name], name.len() + 1);
    while at != Ino::ROOT {
        let (above, name) = dirs.get(&at)?;
        len += name.len() + 1;
        // Also ends a loop.
        if len > PATH_MAX {
            return None;
        }
        parts.push(name);
        at = *above;
    }
    let mut out = Vec::with_capacity(len);
    for part in parts.into_iter().rev() {
        out.push(b'/');
        out.extend_from_slice(part);
    }
    Some(out)
}
