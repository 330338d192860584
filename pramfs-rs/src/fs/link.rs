//! link: adds a name to an inode.

use super::completeness::Hole;
use super::inode::{add_link, put_inode, touch_ctime, touch_mtime};
use super::locks::LockSet;
use super::orphan::dir_tree;
use super::{By, Engine, Need, chattr, names};
use zerocopy::IntoBytes;

use pramfs_medium::error::{Error, Result};
use pramfs_medium::htree;
use pramfs_medium::pmem::mutants::has_bug;
use pramfs_medium::types::{Attr, Ino};

impl Engine {
    /// Adds a name to an inode.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NotPermitted`] for a directory,
    /// [`Error::NotFound`] for an inode without names, [`Error::TooManyLinks`].
    pub fn link(&self, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<Attr> {
        self.link_by(ino, new_parent, new_name, None)
    }

    /// As [`link`](Self::link); `by` takes a reference to the inode as well.
    pub(super) fn link_by(
        &self,
        ino: Ino,
        new_parent: Ino,
        new_name: &[u8],
        by: Option<By>,
    ) -> Result<Attr> {
        self.op_with_ref(Need::Write, by, || {
            self.link_inner(ino, new_parent, new_name, by)
        })
    }

    fn link_inner(&self, ino: Ino, new_parent: Ino, name: &[u8], by: Option<By>) -> Result<Attr> {
        names::check(name)?;
        let inode = self.iget_user(ino)?;
        let dir = self.iget_user(new_parent)?;
        if inode.ino == dir.ino {
            let state = inode.state.read();
            state.alive(ino)?;
            return Err(match state.is_dir() {
                true => Error::NotPermitted("a hard link to a directory"),
                false => Error::NotDirectory,
            });
        }
        let mut set = LockSet::new(&[&inode, &dir]);
        let (child_state, dir_state) = (set.state(&inode)?, set.state(&dir)?);
        child_state.alive(ino)?;
        if child_state.is_dir() {
            return Err(Error::NotPermitted("a hard link to a directory"));
        }
        self.check_linked_dir(&dir, dir_state)?;
        chattr::check_write(&child_state.disk)?;
        chattr::check_append(&dir_state.disk)?;
        if child_state.disk.nlink == 0 {
            return Err(Error::NotFound);
        }
        let now = self.now();
        let (mut new, mut new_dir) = (child_state.disk, dir_state.disk);
        if htree::seek_leaf(&self.vol, &dir_tree(&new_dir), name)?.is_hole() {
            self.check_hole(dir_state, Hole::Contents)?;
        }
        let mut tx = self.vol.begin_at(&dir.last_record);
        self.add_entry(&mut tx, &mut new_dir, name, (ino.0, new.mode))?;
        touch_mtime(&mut new_dir, now);
        put_inode(&mut tx, &dir, dir_state, &mut new_dir)?;
        add_link(&mut new)?;
        touch_ctime(&mut new, now);
        if has_bug!(LinkCountUnfenced) {
            new.change += 1;
            new.seal(self.vol.geo.seed, ino);
            tx.commit()?;
            drop(self.vol.region.window().store(inode.home, new.as_bytes())?);
        } else {
            put_inode(&mut tx, &inode, child_state, &mut new)?;
            tx.commit()?;
        }
        if let Some(by) = by {
            self.refs.add(ino, 1, by);
        }
        set.state_mut(&dir)?.committed(&new_dir);
        let child_state = set.state_mut(&inode)?;
        child_state.committed(&new);
        Ok(child_state.attr(&self.vol.geo))
    }
}
