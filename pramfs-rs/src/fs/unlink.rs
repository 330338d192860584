//! unlink and rmdir: one record removes the name, and the inode with it if
//! that fits.

use std::sync::Arc;

use super::inode::{Core, Inode, put_inode, touch_ctime, touch_mtime};
use super::orphan::{Dropped, dir_tree};
use super::whole::Hole;
use super::{Need, Shared, names, protect};
use crate::error::{Error, Result};
use crate::htree::{self, DirEntry};
use crate::types::Ino;
use crate::volume::Tx;

impl Shared {
    /// Removes a name of anything but a directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDirectory`].
    pub fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.op(Need::Write, || self.remove_entry(parent, name, false))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::NotEmpty`],
    /// [`Error::Invalid`] for `.`.
    pub fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        if name == b".." {
            return Err(Error::NotEmpty);
        }
        self.op(Need::Write, || self.remove_entry(parent, name, true))
    }

    fn remove_entry(&self, parent: Ino, name: &[u8], directory: bool) -> Result<()> {
        names::check(name)?;
        self.in_dir(parent, |dir| self.remove_from(dir, name, directory))
    }

    #[inline(never)]
    fn remove_from(&self, dir: &Arc<Inode>, name: &[u8], directory: bool) -> Result<()> {
        let mut next: Option<Arc<Inode>> = None;
        loop {
            let (orphan, again) = match next.take() {
                None => {
                    let mut pc = dir.core.write();
                    self.check_dir(dir, &pc)?;
                    let child;
                    // The lines of the name's leaf come while the transaction is
                    // made.
                    let tree = dir_tree(&pc.d);
                    let way = htree::approach(&self.vol, &tree, name)?;
                    let mut tx = self.vol.begin_at(&dir.place);
                    let Some(entry) = htree::find_dir_on(&self.vol, &tree, &way, name)? else {
                        self.is_missing(&pc, &tree, name)?;
                        return Err(Error::NotFound);
                    };
                    child = self.inode_of(&pc, name, Ino(entry.ino))?;
                    match child.core.try_write() {
                        // On a damaged medium another name may have taken it.
                        Some(c) if c.gone => continue,
                        Some(mut c) => {
                            let what = (&entry, directory);
                            let pair = (dir, &mut *pc, &child, &mut *c);
                            (self.remove_locked(&mut tx, pair, what)?, None)
                        }
                        None => (None, Some(child.clone())),
                    }
                }
                // The child's lock was taken: both in order, and look again.
                Some(child) => {
                    if child.ino == dir.ino {
                        return Err(Error::corrupt(
                            dir.ino.to_string(),
                            "a directory has itself as an entry",
                        ));
                    }
                    let (first, second) = if child.ino < dir.ino {
                        (&child, dir)
                    } else {
                        (dir, &child)
                    };
                    let (mut a, mut b) = (first.core.write(), second.core.write());
                    let (pc, c) = if child.ino < dir.ino {
                        (&mut b, &mut a)
                    } else {
                        (&mut a, &mut b)
                    };
                    self.check_dir(dir, pc)?;
                    match self.entry(pc, name)? {
                        None => return Err(Error::NotFound),
                        Some(entry) if entry.ino == child.ino.0 && !c.gone => {
                            let mut tx = self.vol.begin_at(&dir.place);
                            let what = (&entry, directory);
                            let pair = (dir, &mut **pc, &child, &mut **c);
                            (self.remove_locked(&mut tx, pair, what)?, None)
                        }
                        Some(_) => continue,
                    }
                }
            };
            match again {
                Some(child) => next = Some(child),
                None => return self.after_removal(orphan),
            }
        }
    }

    /// Goes on with what did not fit the record, if nobody holds it.
    pub(super) fn after_removal(&self, orphan: Option<Ino>) -> Result<()> {
        match orphan {
            // The name is gone and the orphan table has the rest: a failure
            // from here on loses nothing, and the next mount tries again.
            Some(ino) if !self.refs.has(ino) => {
                if let Err(e) = self.reclaim_orphan(ino) {
                    tracing::warn!(%ino, error = %e, "an unlinked inode was not freed");
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn remove_locked<'v>(
        &'v self,
        tx: &mut Tx<'v>,
        (dir, pc, child, c): (&'v Arc<Inode>, &mut Core, &'v Arc<Inode>, &mut Core),
        (entry, directory): (&DirEntry, bool),
    ) -> Result<Option<Ino>> {
        protect::may_change(&pc.d)?;
        protect::may_change(&c.d)?;
        if directory {
            self.check_empty_dir(c)?;
        } else if c.is_dir() {
            return Err(Error::IsDirectory);
        }
        let now = self.now();
        let mut new_dir = pc.d;
        tx.allow_reserve();
        let last = directory || c.d.nlink <= 1;
        if last && self.owns_nothing(child, c) {
            tx.may_enter(&[&dir.place, &child.place]);
            self.take_entry(tx, &mut new_dir, entry)?;
            touch_mtime(&mut new_dir, now);
            if directory {
                new_dir.nlink = new_dir.nlink.saturating_sub(1);
            }
            put_inode(tx, dir, pc, &mut new_dir)?;
            tx.touch(&child.place);
            tx.free_inode(child.ino.0)?;
            tx.commit()?;
            pc.committed(&new_dir);
            self.gone(child, c);
            return Ok(None);
        }
        let mut new = c.d;
        self.take_entry(tx, &mut new_dir, entry)?;
        touch_mtime(&mut new_dir, now);
        touch_ctime(&mut new, now);
        if directory {
            new_dir.nlink = new_dir.nlink.saturating_sub(1);
            new.nlink = 0;
        } else {
            new.nlink = new.nlink.saturating_sub(1);
        }
        put_inode(tx, dir, pc, &mut new_dir)?;
        let dropped = if new.nlink == 0 {
            Some(self.drop_inode(tx, child, c, &mut new)?)
        } else {
            put_inode(tx, child, c, &mut new)?;
            None
        };
        tx.commit()?;
        pc.committed(&new_dir);
        match dropped {
            Some(what) => self.dropped(child, c, &new, what),
            None => c.committed(&new),
        }
        Ok(matches!(dropped, Some(Dropped::Orphan(_))).then_some(child.ino))
    }

    /// A locked directory that may be removed. What it counts is not enough: its
    /// entries would be lost with it, and be found in the next directory of the
    /// same number by whoever remembers them.
    pub(super) fn check_empty_dir(&self, c: &Core) -> Result<()> {
        if !c.is_dir() {
            return Err(Error::NotDirectory);
        }
        if c.d.size != 0 {
            return Err(Error::NotEmpty);
        }
        if c.d.root == 0 {
            return self.is_hole(c, Hole::Contents);
        }
        if htree::is_empty(&self.vol, &dir_tree(&c.d))? {
            Ok(())
        } else {
            Err(Error::corrupt(
                format!("directory {}", Ino(c.d.ino)),
                "it counts no entries, and has some",
            ))
        }
    }
}
