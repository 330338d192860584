//! Repairs names and links: link counts, directories with two names or none, and
//! `lost+found`.

use std::collections::{HashMap, HashSet};

use super::Repairer;
use super::gather::SalvagedEntry;
use crate::findings::Issue;
use crate::inodes::NO_DIR;
use crate::outcome::Done;
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::htree::TreeRef;
use pramfs_medium::htree::name_hash;
use pramfs_medium::media::bitmap::BitmapKind;
use pramfs_medium::types::{FileType, Ino};

/// Name of the directory for unattached inodes.
const LOST_FOUND: &[u8] = b"lost+found";
/// Names by inode: directory and name.
pub(super) type Names = HashMap<u64, Vec<(Ino, Vec<u8>)>>;

/// `DT_DIR`.
const DT_DIR: u8 = 4;

/// Returns the names that the findings of a round remove.
pub(super) fn to_remove(todo: &[(Issue, Option<usize>)]) -> HashMap<u64, HashSet<Vec<u8>>> {
    let mut out: HashMap<u64, HashSet<Vec<u8>>> = HashMap::new();
    for (issue, _) in todo {
        if let Issue::DanglingEntry { dir, name, .. } | Issue::EntryReserved { dir, name, .. } =
            issue
        {
            out.entry(dir.0).or_default().insert(name.clone());
        }
    }
    out
}

impl Repairer<'_, '_> {
    /// Sets the link count to the number of names.
    pub(super) fn repair_links(&mut self, ino: Ino) -> Result<bool> {
        let Some(info) = self.known.inodes.get(ino).copied() else {
            return Ok(false);
        };
        let dir = self.known.inodes.dirs.get(info.dir as usize).copied();
        let links = match dir.filter(|_| info.dir != NO_DIR) {
            Some(dir) => dir.subdirs.saturating_add(2),
            None => info.found,
        };
        self.recount(ino);
        self.edit(ino, |d| d.nlink = links)
    }

    /// Collects every name of some inodes, in a walk over all directories.
    fn names_of(&mut self, wanted: &HashSet<u64>) -> Result<Names> {
        let mut out = Names::new();
        let dirs: Vec<u64> = self.known.inodes.dirs.iter().map(|d| d.ino).collect();
        for dir in dirs {
            let Some(d) = self.inode(Ino(dir))? else {
                continue;
            };
            for item in self.gather(&TreeRef::directory(&d))?.items {
                if wanted.contains(&item.ino().0) {
                    out.entry(item.ino().0)
                        .or_default()
                        .push((Ino(dir), item.name));
                }
            }
        }
        Ok(out)
    }

    /// Returns the names that a directory loses. One walk looks up those of all
    /// directories of this round.
    fn surplus(
        &mut self,
        ino: Ino,
        todo: &[(Issue, Option<usize>)],
    ) -> Result<Vec<(Ino, Vec<u8>)>> {
        if self.names.is_none() {
            // A directory that keeps a name keeps the one in its parent.
            let mut keeps = HashMap::new();
            for (issue, _) in todo {
                match issue {
                    Issue::DirectoryNames { ino, .. } => {
                        keeps.entry(ino.0).or_insert(true);
                    }
                    Issue::DirectoryLoop { ino } => {
                        keeps.insert(ino.0, false);
                    }
                    _ => {}
                }
            }
            let mut names = self.names_of(&keeps.keys().copied().collect())?;
            for (ino, names) in &mut names {
                if keeps[ino] {
                    let parent = self.inode(Ino(*ino))?.map(|d| d.parent_or_rdev);
                    let keep = names.iter().position(|(dir, _)| Some(dir.0) == parent);
                    names.remove(keep.unwrap_or(0));
                }
                for (dir, name) in names.iter() {
                    let to_remove = self.to_remove.entry(dir.0).or_default();
                    to_remove.insert(name.clone());
                }
            }
            self.names = Some(names);
        }
        let names = self.names.as_mut().and_then(|names| names.remove(&ino.0));
        Ok(names.unwrap_or_default())
    }

    /// Removes all names of a directory but the one in its parent.
    pub(super) fn repair_directory_names(
        &mut self,
        ino: Ino,
        todo: &[(Issue, Option<usize>)],
    ) -> Result<bool> {
        if self.inode(ino)?.is_none() {
            return Ok(false);
        }
        for (dir, name) in self.surplus(ino, todo)? {
            if !self.remove_entry(dir, &name)? {
                return Ok(false);
            }
            self.recount(dir);
        }
        Ok(true)
    }

    /// Breaks a loop at one of its directories, which then has no name.
    pub(super) fn repair_loop(
        &mut self,
        ino: Ino,
        todo: &[(Issue, Option<usize>)],
    ) -> Result<bool> {
        self.recount(ino);
        self.repair_directory_names(ino, todo)
    }

    /// Repairs an orphan directory with entries: it is no longer an orphan, and a
    /// later round connects it to `lost+found`.
    pub(super) fn repair_orphan_not_empty(&mut self, ino: Ino) -> Result<bool> {
        for (at, orphan) in self.orphan_slots()? {
            if orphan == ino {
                self.view.store_u64(at, 0)?;
            }
        }
        self.recount(ino);
        self.edit(ino, |d| d.nlink = 2)
    }

    /// Repairs all unattached inodes of this round: frees those that were
    /// unlinked, and connects the others to `lost+found`.
    pub(super) fn reconnect(&mut self, todo: &[(Issue, Option<usize>)]) -> Result<bool> {
        if !self.rebuilt.insert((0, 0)) {
            return Ok(true);
        }
        let leaked = todo.iter().filter_map(|(issue, _)| match issue {
            Issue::InodeLeaked { ino } => Some(*ino),
            _ => None,
        });
        let mut named = Vec::new();
        for ino in leaked {
            let (Some(d), Some(info)) = (self.inode(ino)?, self.known.inodes.get(ino).copied())
            else {
                continue;
            };
            let dir = self.known.inodes.dirs.get(info.dir as usize).copied();
            let holds = dir.is_some_and(|d| d.entries > 0);
            if d.nlink == 0 && !holds {
                self.fate((ino.0, 0), Done::Freed);
                self.free_inode(ino)?;
            } else {
                named.push((ino, (d.mode >> 12 & 15) as u8, dir.map(|d| d.subdirs)));
            }
        }
        if named.is_empty() {
            return Ok(true);
        }
        let home = self.lost_found()?;
        let taken = self.names_in(home)?;
        let mut items = Vec::new();
        for (ino, kind, subdirs) in named {
            let mut name = format!("#{}", ino.0).into_bytes();
            while taken.contains(&name) {
                name.push(b'_');
            }
            items.push(self.entry(name, ino, kind));
            self.recount(ino);
            self.edit(ino, |d| match subdirs {
                Some(subdirs) => {
                    d.nlink = subdirs.saturating_add(2);
                    d.parent_or_rdev = home.0;
                }
                None => d.nlink = 1,
            })?;
        }
        let new_dirs = items.iter().filter(|i| i.kind == DT_DIR).count() as u32;
        self.add_entries(home, items)?;
        self.recount(home);
        self.edit(home, |d| d.nlink = d.nlink.saturating_add(new_dirs))
    }

    pub(super) fn entry(&self, name: Vec<u8>, ino: Ino, kind: u8) -> SalvagedEntry {
        SalvagedEntry {
            hash: name_hash(self.geo, &name),
            kind,
            value: ino.0.to_le_bytes().to_vec(),
            name,
        }
    }

    pub(super) fn names_in(&mut self, dir: Ino) -> Result<HashSet<Vec<u8>>> {
        let Some(d) = self.inode(dir)? else {
            return Ok(HashSet::new());
        };
        let items = self.gather(&TreeRef::directory(&d))?.items;
        Ok(items.into_iter().map(|i| i.name).collect())
    }

    /// Returns the directory `lost+found`. Creates it if the root has none.
    pub(super) fn lost_found(&mut self) -> Result<Ino> {
        if let Some(ino) = self.notes.lost_found
            && self.kind(ino)? == Some(FileType::Directory)
        {
            return Ok(ino);
        }
        let root = self.inode(Ino::ROOT)?.ok_or_else(|| {
            Error::corrupt(
                Damage::InodeDamaged,
                "the root directory",
                "it cannot be read",
            )
        })?;
        let items = self.gather(&TreeRef::directory(&root))?.items;
        let mut name = LOST_FOUND.to_vec();
        while let Some(item) = items.iter().find(|i| i.name == name) {
            if item.kind == DT_DIR && self.used(item.ino())?.is_some() {
                self.notes.lost_found = Some(item.ino());
                return Ok(item.ino());
            }
            name.push(b'_');
        }
        let ino = self.new_inode()?;
        let mut d = Self::fresh_inode(FileType::Directory.mode_bits() | 0o700);
        d.nlink = 2;
        d.parent_or_rdev = Ino::ROOT.0;
        d.generation = root.generation;
        (d.mtime_sec, d.ctime_sec) = (root.mtime_sec, root.ctime_sec);
        (d.atime_sec, d.btime_sec) = (root.mtime_sec, root.mtime_sec);
        self.put_inode(ino, d)?;
        self.set_range(BitmapKind::Inodes, ino.0, 1, true)?;
        let entry = self.entry(name, ino, DT_DIR);
        self.add_entries(Ino::ROOT, vec![entry])?;
        self.edit(Ino::ROOT, |d| d.nlink += 1)?;
        self.notes.lost_found = Some(ino);
        Ok(ino)
    }

    /// Returns a free inode number with a place in the table.
    pub(super) fn new_inode(&mut self) -> Result<Ino> {
        for e in 0..self.known.table.len() {
            let e = self.known.table[e];
            let per_block = self.geo.inodes_per_block();
            let numbers = e.first.0 * per_block..e.end().0 * per_block;
            for n in numbers.start.max(Ino::FIRST_FREE.0)..numbers.end.min(self.geo.inodes_max()) {
                // Use a number once a round: the bitmap changes only later.
                if self.known.inodes.get(Ino(n)).is_none() && self.rebuilt.insert((n, u32::MAX)) {
                    return Ok(Ino(n));
                }
            }
        }
        let ino = self.grow_table()?;
        self.rebuilt.insert((ino.0, u32::MAX));
        Ok(ino)
    }
}
