//! Checks names against link counts, parents, and the path up to the root.

use super::inodes::{Dir, Info, NO_DIR};
use super::{Checker, Issue, Step};
use pramfs_medium::error::Result;
use pramfs_medium::types::Ino;

/// The state of a directory's path to the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathState {
    /// Not followed yet.
    Unknown,
    /// On the path that is being followed.
    Following,
    /// The path ends: at the root, or at a reported directory.
    Ended,
}

impl Checker<'_> {
    /// Checks the links of every inode and the place of every directory.
    pub(super) fn check_links(&mut self) -> Result<()> {
        self.each_inode(Step::Links, |c, ino, info| {
            if info.kind != 0 && (ino >= Ino::FIRST_FREE || ino == Ino::ROOT) {
                c.check_names(ino, info);
            }
            Ok(())
        })?;
        self.check_loops();
        Ok(())
    }

    fn check_names(&mut self, ino: Ino, info: Info) {
        let dir = self
            .inodes
            .dirs
            .get(info.dir as usize)
            .copied()
            .filter(|_| info.dir != NO_DIR);
        if info.found == 0 && ino != Ino::ROOT {
            // With a link count above 0 it has lost its names, orphan or not.
            return match (info.orphan && info.nlink == 0, self.hidden_names) {
                (true, _) => {
                    self.report.counts.orphans += 1;
                    if dir.is_some_and(|d| d.entries > 0) {
                        self.add(Issue::OrphanNotEmpty { ino });
                    }
                }
                (false, true) => self.report.counts.hidden_inodes += 1,
                (false, false) => self.add(Issue::InodeLeaked { ino }),
            };
        }
        if info.nlink == 0 && ino != Ino::ROOT {
            return self.add(Issue::NameOfOrphan { ino });
        }
        let (found, sure) = match dir {
            Some(dir) => {
                if ino != Ino::ROOT {
                    self.check_parent(ino, info, dir);
                }
                (dir.subdirs.saturating_add(2), !dir.damaged)
            }
            None => (info.found, info.found > info.nlink || !self.hidden_names),
        };
        if found != info.nlink && sure {
            self.add(Issue::LinkCount {
                ino,
                recorded: info.nlink,
                found,
            });
        }
    }

    fn check_parent(&mut self, ino: Ino, info: Info, dir: Dir) {
        if info.found > 1 {
            self.add(Issue::DirectoryNames {
                ino,
                names: info.found,
            });
        } else if dir.named_by != dir.parent {
            self.add(Issue::DirectoryParent {
                ino,
                recorded: Ino(dir.parent),
                found: Ino(dir.named_by),
            });
        }
    }

    /// Follows every directory up to the first known one. A path that returns to
    /// itself is a loop.
    fn check_loops(&mut self) {
        let mut states = vec![PathState::Unknown; self.inodes.dirs.len()];
        let mut path = Vec::new();
        for start in 0..states.len() {
            let mut at = start;
            while states[at] == PathState::Unknown {
                states[at] = PathState::Following;
                path.push(at);
                let up = Ino(self.inodes.dirs[at].named_by);
                match self.inodes.get(up).map(|i| i.dir as usize) {
                    Some(up) if up < states.len() => at = up,
                    _ => break,
                }
            }
            let end = self.inodes.dirs[at];
            // The last step returned to this path instead of ending here.
            let looped =
                states[at] == PathState::Following && end.named_by != 0 && path.last() != Some(&at)
                    || states[at] == PathState::Following && end.named_by == end.ino;
            if looped {
                self.add(Issue::DirectoryLoop { ino: Ino(end.ino) });
            }
            path.drain(..).for_each(|i| states[i] = PathState::Ended);
        }
    }
}
