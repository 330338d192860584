//! Files that are made without a name (O_TMPFILE).
//!
//! Invariant: the record that creates the inode also puts it into the orphan table, so that
//! a crash leaves nothing of it. The record that gives it its first name takes it out
//! ([`link`](crate::fs::ops::link)).

use std::sync::Arc;

use crate::credentials::Credentials;
use crate::fs::inode::Inode;
use crate::fs::inode::disk::put_new_inode;
use crate::fs::inode::refs::By;
use crate::fs::inode::state::InodeState;
use crate::fs::ops::create::{InodeTemplate, Label, NewInode};
use crate::fs::policy::chattr;
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::types::{Attr, Ino};

/// A request to make a file without a name.
struct Unnamed<'a> {
    caller: &'a Credentials<'a>,
    perm: u32,
    linkable: bool,
    labels: &'a [Label<'a>],
}

impl Engine {
    /// Creates a regular file without a name in the place of a file of `parent`, with a
    /// reference for a guard to release. `linkable`: it may get a name. `labels` are as in
    /// [`InodeTemplate`].
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::NotFound`] in a removed directory,
    /// [`Error::NotDirectory`], [`Error::NotPermitted`] in an immutable directory.
    pub(crate) fn create_unnamed_for_guard(
        &self,
        caller: &Credentials<'_>,
        parent: Ino,
        perm: u32,
        linkable: bool,
        labels: &[Label<'_>],
    ) -> Result<Attr> {
        let wanted = Unnamed {
            caller,
            perm,
            linkable,
            labels,
        };
        self.op_with_ref(Need::Write, Some(By::Guard), || {
            self.with_dir(parent, |dir| self.make_unnamed_in(dir, &wanted))
        })
    }

    fn make_unnamed_in(&self, dir: &Inode, wanted: &Unnamed<'_>) -> Result<Attr> {
        let mut dir_state = dir.state.write();
        self.check_linked_dir(dir, &dir_state)?;
        chattr::check_append(&dir_state.disk)?;
        match self.make_unnamed_locked(dir, &mut dir_state, wanted, None) {
            // As in `make_in`: a lower number does not let the table grow.
            Err(Error::NoSpace(_)) => {
                self.make_unnamed_locked(dir, &mut dir_state, wanted, Some(Ino(0)))
            }
            made => made,
        }
    }

    fn make_unnamed_locked(
        &self,
        dir: &Inode,
        dir_state: &mut InodeState,
        wanted: &Unnamed<'_>,
        near: Option<Ino>,
    ) -> Result<Attr> {
        let what = InodeTemplate::file(wanted.perm);
        let now = self.now();
        // Declared before the transaction: see `make_locked`.
        let inode: Arc<Inode>;
        let mut made = None;
        let mut tx = self.begin(dir);
        let ino = tx.alloc_inode(near)?;
        inode = Inode::empty(ino, self.table.home_or_grow(&self.vol, ino)?);
        let new = made.insert(NewInode::new(self, &inode));
        let d = &mut new.state.disk;
        self.fill_new(wanted.caller, &dir_state.disk, &what, now, ino, d);
        d.nlink = 0;
        self.inherit_acl(&mut tx, dir_state, d, what.mode)?;
        self.put_labels(&mut tx, d, wanted.labels)?;
        let slot = self.put_orphan(&mut tx, ino)?;
        let mut record = tx.end();
        put_new_inode(&mut record, inode.home, ino, d)?;
        record.decide(Some(ino));
        let id = self.commit(record, [])?;
        new.state.orphan_slot = Some(slot);
        new.state.linkable = wanted.linkable;
        self.orphans.lock().insert(ino.0);
        Ok(new.committed(id, Some(By::Guard)))
    }
}
