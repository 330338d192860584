//! link: adds a name to an inode.

use pramfs_medium::pmem::RegionAccess as _;
use zerocopy::IntoBytes;

use crate::fs::engine::change::Edit;
use crate::fs::inode::disk::{add_link, touch_ctime, touch_mtime};
use crate::fs::inode::lock_set::LockSet;
use crate::fs::inode::refs::By;
use crate::fs::policy::{chattr, names};
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::pmem::mutants::has_bug;
use pramfs_medium::types::{Attr, Ino};

impl Engine {
    /// Adds a name to an inode.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NotPermitted`] for a directory,
    /// [`Error::NotFound`] for an inode that has lost its last name, or that was made without
    /// one and must not get one; [`Error::TooManyLinks`].
    pub fn link(&self, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<Attr> {
        self.link_with_ref(ino, new_parent, new_name, None)
    }

    /// As [`link`](Self::link); `by` takes a reference to the inode as well.
    pub(crate) fn link_with_ref(
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
        if child_state.disk.nlink == 0 && !child_state.linkable {
            return Err(Error::NotFound);
        }
        let now = self.now();
        let [Some(child_state), Some(dir_state)] = set.states_mut([Some(&inode), Some(&dir)])
        else {
            return Err(Error::Stale(ino));
        };
        let is_first = child_state.disk.nlink == 0;
        if is_first {
            // Its slot is about to be cleared, and blocks past its end need one.
            self.finish_truncate(&inode, child_state)?;
        }
        let mut new = Edit::new(&inode, child_state);
        let mut new_dir = Edit::new(&dir, dir_state);
        let cursor = self.seek_entry(&mut new_dir, name)?;
        cursor.check_hole()?;
        let mut tx = self.begin(&dir);
        if is_first {
            let before = new.before();
            if let Some(slot) = before.orphan_slot.filter(|_| !before.past_end) {
                self.clear_orphan(&mut tx, slot)?;
            }
            new.named = true;
        }
        cursor.vacant(&tx)?.insert(&mut tx, ino, new.mode)?;
        touch_mtime(&mut new_dir, now);
        let new_dir = new_dir.stage(&mut tx)?;
        add_link(&mut new)?;
        touch_ctime(&mut new, now);
        if has_bug!(LinkCountUnfenced) {
            new.change += 1;
            new.seal(self.vol.geo.seed, ino);
            self.commit(tx, [new_dir, new.stage_freed()])?;
            let w = self.vol.region.window();
            // In two lines: the search for places of mutants must not count this one.
            let unfenced = w.store(inode.home.0, new.as_bytes())?;
            drop(unfenced);
        } else {
            let new = new.stage(&mut tx)?;
            tx.decide(Some(ino));
            self.commit(tx, [new_dir, new])?;
        }
        if let Some(by) = by {
            self.refs.add(ino, 1, by);
        }
        Ok(set.state(&inode)?.attr(&self.vol.geo))
    }
}
