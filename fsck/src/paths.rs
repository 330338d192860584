//! Finds the paths of inodes in findings, for people.
//!
//! It takes one walk over all directories, and only if there is an inode to name.

use std::collections::{HashMap, HashSet};

use super::Checker;
use super::report::Finding;
use pramfs_medium::error::Result;
use pramfs_medium::htree::{TreeKind, TreeRef};
use pramfs_medium::media::pointer::Ptr;
use pramfs_medium::types::Ino;

/// Longest path in bytes, as in Linux. A longer path or a loop counts as unknown:
/// it could not be used, and each finding holds its path in memory.
const PATH_MAX: usize = 4096;

impl Checker<'_> {
    /// Adds a path to each finding whose inode has a name. Must run last, with
    /// empty claims, because the walk makes its own.
    pub(super) fn name_findings(&mut self, findings: &mut [Finding]) -> Result<Paths> {
        let wanted = findings.iter().filter_map(|f| f.issue.ino()).collect();
        let paths = self.paths(&wanted)?;
        for f in findings {
            f.path = f.issue.ino().and_then(|ino| paths.path(ino));
        }
        Ok(paths)
    }

    /// Collects the names of all directories and of the wanted inodes.
    pub(super) fn paths(&mut self, wanted: &HashSet<Ino>) -> Result<Paths> {
        if wanted.is_empty() {
            return Ok(Paths::default());
        }
        // All directories are noted: paths lead through them.
        let mut names: HashMap<u64, (u64, Vec<u8>)> = HashMap::new();
        for n in 0..self.inodes.dirs.len() {
            let dir = Ino(self.inodes.dirs[n].ino);
            let Some(home) = self.home(dir) else {
                continue;
            };
            let t = TreeRef {
                ino: dir,
                kind: TreeKind::Directory,
                root: Ptr(self.read_inode(home)?.root),
                blocks: 0,
            };
            self.walk_tree(&t, &mut |_, head, value, name| {
                let ino = value.first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
                if head.kind == 4 || wanted.contains(&Ino(ino)) {
                    names.entry(ino).or_insert_with(|| (dir.0, name.to_vec()));
                }
                Ok(())
            })?;
        }
        Ok(Paths(names))
    }
}

/// Parent and name of all directories and of the wanted inodes.
#[derive(Debug, Default)]
pub(super) struct Paths(HashMap<u64, (u64, Vec<u8>)>);

impl Paths {
    /// Returns the path of a name in a directory.
    pub(super) fn below(&self, dir: Ino, name: &[u8]) -> Option<Vec<u8>> {
        let mut path = self.path(dir)?;
        if path.len() > 1 {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Some(path)
    }

    /// Returns a path of an inode, if one is known.
    pub(super) fn path(&self, ino: Ino) -> Option<Vec<u8>> {
        path(&self.0, ino)
    }
}

/// Builds the path from the root. `None` if the parents do not lead to the root.
fn path(names: &HashMap<u64, (u64, Vec<u8>)>, ino: Ino) -> Option<Vec<u8>> {
    let (mut parts, mut len) = (Vec::new(), 0);
    let mut at = ino.0;
    while at != Ino::ROOT.0 {
        let (dir, name) = names.get(&at)?;
        parts.push(name);
        at = *dir;
        len += 1 + name.len();
        if len > PATH_MAX {
            return None;
        }
    }
    let mut path = Vec::new();
    for name in parts.into_iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    Some(if path.is_empty() { b"/".to_vec() } else { path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_or_looping_path_yields_none() {
        let mut names: HashMap<u64, (u64, Vec<u8>)> = HashMap::new();
        for ino in 16..1016u64 {
            let above = if ino == 16 { Ino::ROOT.0 } else { ino - 1 };
            names.insert(ino, (above, vec![b'x'; 255]));
        }
        assert_eq!(path(&names, Ino(16 + 15)).map(|p| p.len()), Some(4096));
        assert_eq!(path(&names, Ino(16 + 16)), None);
        names.insert(16, (20, b"loop".to_vec()));
        assert_eq!(path(&names, Ino(18)), None);
        let paths = Paths(names);
        assert_eq!(paths.below(Ino::ROOT, b"a"), Some(b"/a".to_vec()));
    }
}
