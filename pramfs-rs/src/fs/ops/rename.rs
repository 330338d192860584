//! rename, with NOREPLACE, EXCHANGE and WHITEOUT: one record changes both names.

use std::sync::Arc;

use smallvec::SmallVec;
use zerocopy::FromZeros;

use crate::credentials::Credentials;
use crate::fs::engine::change::{Edit, Staged};
use crate::fs::inode::Inode;
use crate::fs::inode::disk::{add_link, put_new_inode, touch_ctime, touch_mtime};
use crate::fs::inode::lock_set::LockSet;
use crate::fs::inode::state::InodeState;
use crate::fs::ops::create::{InodeTemplate, NewInode};
use crate::fs::policy::{chattr, names};
use crate::fs::steps::entries::Insertion;
use crate::fs::steps::two_entries::Names;
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::media::DiskInode;
use pramfs_medium::pmem::mutants::has_bug;
use pramfs_medium::types::{FileType, Ino, RenameFlags, Time};
use pramfs_medium::volume::{Plan, Record};

/// Maximum depth that the search for a loop follows. An undamaged tree does not
/// reach it in practice; it bounds the search in a damaged tree that has a loop.
const MAX_DEPTH: u32 = 1 << 24;

/// The names of a rename, and the inodes that they led to when they were looked up.
struct Ends<'a> {
    from: &'a Arc<Inode>,
    name: &'a [u8],
    to: &'a Arc<Inode>,
    new_name: &'a [u8],
    source: &'a Arc<Inode>,
    target: Option<&'a Arc<Inode>>,
}

impl Ends<'_> {
    /// Whether the rename moves a directory to another parent.
    fn moves_dir(&self, flags: RenameFlags) -> bool {
        self.from.ino != self.to.ino
            && (is_dir(self.source) || flags.exchange && self.target.is_some_and(is_dir))
    }
}

impl Engine {
    /// Renames an entry. Moving it and replacing the target are one atomic change.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Exists`] with `noreplace`,
    /// [`Error::NotEmpty`], [`Error::IsDirectory`], [`Error::NotDirectory`],
    /// [`Error::Invalid`] for moving a directory into its own subtree.
    pub fn rename(
        &self,
        caller: &Credentials<'_>,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        self.op(Need::Write, || {
            if flags.exchange && (flags.noreplace || flags.whiteout) {
                return Err(Error::Invalid(
                    "exchange excludes all other flags of rename",
                ));
            }
            names::check(name)?;
            names::check(new_name)?;
            self.with_dir(parent, |from| {
                self.rename_from(caller, from, name, new_parent, new_name, flags)
            })
        })
    }

    fn find_unlocked(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Option<Arc<Inode>>> {
        let state = dir.state.read();
        self.check_dir(dir, &state)?;
        self.entry_inode(&state, name)
    }

    #[inline(never)]
    fn rename_from(
        &self,
        caller: &Credentials<'_>,
        from: &Arc<Inode>,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        if from.ino == new_parent
            && let Some(orphan) = self.try_rename_within(caller, from, name, new_name, flags)?
        {
            return self.after_removal(orphan);
        }
        let to = self.iget_user(new_parent)?;
        loop {
            let source = self.find_unlocked(from, name)?.ok_or(Error::NotFound)?;
            let target = self.find_unlocked(&to, new_name)?;
            match &target {
                Some(_) if flags.noreplace => return Err(Error::Exists),
                None if flags.exchange => return Err(Error::NotFound),
                _ => {}
            }
            let ends = Ends {
                from,
                name,
                to: &to,
                new_name,
                source: &source,
                target: target.as_ref(),
            };
            // Directories move one at a time, so ancestry cannot change.
            let moving = ends.moves_dir(flags).then(|| self.rename.lock());
            if moving.is_some() {
                self.check_ancestry(&ends, flags)?;
            }
            let mut list = vec![from, &to, &source];
            list.extend(&target);
            let mut set = LockSet::new(&list);
            self.check_dir(from, set.state(from)?)?;
            self.check_linked_dir(&to, set.state(&to)?)?;
            if let Some(orphan) = self.rename_in_order(caller, &ends, &mut set, flags)? {
                drop(set);
                return self.after_removal(orphan);
            }
        }
    }

    /// Renames within one directory if the locks of source and target are free, as they
    /// usually are. `None` if one is not, or if an inode has gone.
    #[inline]
    fn try_rename_within(
        &self,
        caller: &Credentials<'_>,
        dir: &Arc<Inode>,
        name: &[u8],
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<Option<Option<Ino>>> {
        let (source, target, mut source_state, mut target_state);
        let mut dir_state = dir.state.write();
        self.check_linked_dir(dir, &dir_state)?;
        let mut edit = Edit::new(dir, &mut dir_state);
        let names = self.seek_names(&mut edit, None, name, new_name)?;
        source = names.old.inode()?;
        target = names.new_inode()?;
        source_state = match source.state.try_write() {
            Some(state) if !state.gone => state,
            _ => return Ok(None),
        };
        let mut source_edit = Edit::new(&source, &mut source_state);
        let Some(target) = &target else {
            return self
                .rename_locked(caller, names, &mut source_edit, None, flags)
                .map(Some);
        };
        if target.ino == source.ino {
            return same_inode(flags).map(|()| Some(None));
        }
        target_state = match target.state.try_write() {
            Some(state) if !state.gone => state,
            _ => return Ok(None),
        };
        let mut target = Edit::new(target, &mut target_state);
        self.rename_locked(caller, names, &mut source_edit, Some(&mut target), flags)
            .map(Some)
    }

    /// Renames inodes that were looked up without locks, and that `set` has locked since.
    /// `None` if a name leads to another inode by now.
    fn rename_in_order<'a>(
        &self,
        caller: &Credentials<'_>,
        ends: &Ends<'a>,
        set: &mut LockSet<'a>,
        flags: RenameFlags,
    ) -> Result<Option<Option<Ino>>> {
        let (old, new) = (ends.name, ends.new_name);
        let &Ends {
            from,
            to,
            source,
            target,
            ..
        } = ends;
        let states = set.states_mut([Some(from), Some(to), Some(source), target]);
        // An inode that is also an earlier one of the list has no state of its own.
        let [Some(from_state), to_state, source_state, target_state] = states else {
            return Err(Error::Stale(from.ino));
        };
        let gone = |state: &Option<&mut InodeState>| state.as_ref().is_some_and(|s| s.gone);
        if gone(&source_state) || gone(&target_state) {
            return Ok(None);
        }
        let mut from_edit = Edit::new(from, from_state);
        let mut to_edit = to_state.map(|state| Edit::new(to, state));
        let names = match self.seek_names(&mut from_edit, to_edit.as_mut(), old, new) {
            Err(Error::NotFound) => return Ok(None),
            names => names?,
        };
        let (old, new) = (names.old.ino(), names.new_ino());
        if old != source.ino || new != target.map(|t| t.ino) {
            return Ok(None);
        }
        if new == Some(old) {
            return same_inode(flags).map(|()| Some(None));
        }
        let Some(source_state) = source_state else {
            return Err(contains_itself(from, to));
        };
        let mut source = Edit::new(source, source_state);
        let mut target_edit = match (target, target_state) {
            (Some(target), Some(state)) => Some(Edit::new(target, state)),
            // The target is the directory that holds the source.
            (Some(target), None) if target.ino == from.ino && from.ino != to.ino => {
                check_flags(&names, &source, Some(names.from()))?;
                return Err(match source.before().is_dir() {
                    true => Error::NotEmpty,
                    false => Error::IsDirectory,
                });
            }
            (Some(_), None) => return Err(contains_itself(from, to)),
            (None, _) => None,
        };
        self.rename_locked(caller, names, &mut source, target_edit.as_mut(), flags)
            .map(Some)
    }

    /// Checks that no directory moves into its own subtree. The caller holds the rename
    /// lock.
    fn check_ancestry(&self, ends: &Ends<'_>, flags: RenameFlags) -> Result<()> {
        self.check_linked_dir(ends.to, &ends.to.state.read())?;
        if is_dir(ends.source) && self.is_above(ends.source.ino, ends.to)? {
            return Err(Error::Invalid("a directory into its own subtree"));
        }
        match ends.target {
            Some(t) if is_dir(t) && self.is_above(t.ino, ends.from)? => Err(if flags.exchange {
                Error::Invalid("a directory into its own subtree")
            } else {
                Error::NotEmpty
            }),
            _ => Ok(()),
        }
    }

    /// Whether directory `above` is `below` or an ancestor of it. The caller holds
    /// the rename lock, so only the removal of `below` can interfere.
    fn is_above(&self, above: Ino, below: &Arc<Inode>) -> Result<bool> {
        let mut at = below.ino;
        for _ in 0..MAX_DEPTH {
            if at == above {
                return Ok(true);
            }
            if at == Ino::ROOT {
                return Ok(false);
            }
            let inode = match self.iget_user(at) {
                Ok(inode) => inode,
                Err(Error::Stale(_)) => break,
                Err(e) => return Err(e),
            };
            let state = inode.state.read();
            if !state.is_dir() {
                break;
            }
            at = Ino(state.disk.parent_or_rdev);
        }
        // The former parent of a removed directory may have been reused.
        if below.state.read().disk.nlink == 0 {
            return Err(Error::NotFound);
        }
        Err(Error::corrupt(
            Damage::DirectoryParent,
            below.ino,
            "its parents do not lead to the root directory",
        ))
    }

    fn rename_locked<'e, 'v>(
        &'v self,
        caller: &Credentials<'_>,
        names: Names<'e, 'v>,
        source: &'e mut Edit<'v>,
        target: Option<&'e mut Edit<'v>>,
        flags: RenameFlags,
    ) -> Result<Option<Ino>> {
        match &target {
            Some(_) if flags.noreplace => return Err(Error::Exists),
            None if flags.exchange => return Err(Error::NotFound),
            _ => {}
        }
        check_flags(&names, source, target.as_deref().map(|target| &**target))?;
        match target {
            Some(target) if flags.exchange => {
                self.exchange_locked(names, source, target).map(|()| None)
            }
            target => self.move_locked(caller, names, source, target, flags.whiteout),
        }
    }

    fn exchange_locked<'e, 'v>(
        &'v self,
        names: Names<'e, 'v>,
        source: &'e mut Edit<'v>,
        target: &'e mut Edit<'v>,
    ) -> Result<()> {
        let now = self.now();
        let mut tx = self.begin(names.from().inode());
        let (mut from, new) = names.change_old(&mut tx, Some(target))?;
        let to = new.replace(&mut tx, source)?;
        if let Some(from) = &mut from {
            if source.before().is_dir() {
                source.parent_or_rdev = to.inode().ino.0;
                from.nlink = from.nlink.saturating_sub(1);
                add_link(to)?;
            }
            if target.before().is_dir() {
                target.parent_or_rdev = from.inode().ino.0;
                to.nlink = to.nlink.saturating_sub(1);
                add_link(from)?;
            }
            touch_mtime(from, now);
        }
        touch_mtime(to, now);
        let to = to.stage(&mut tx)?;
        let from = from.map(|from| from.stage(&mut tx)).transpose()?;
        touch_ctime(source, now);
        touch_ctime(target, now);
        let source = source.stage(&mut tx)?;
        let target = target.stage(&mut tx)?;
        tx.decide(None);
        self.commit(tx, from.into_iter().chain([to, source, target]))?;
        Ok(())
    }

    fn move_locked<'e, 'v>(
        &'v self,
        caller: &Credentials<'_>,
        names: Names<'e, 'v>,
        source: &'e mut Edit<'v>,
        target: Option<&'e mut Edit<'v>>,
        whiteout: bool,
    ) -> Result<Option<Ino>> {
        let now = self.now();
        let source_is_dir = source.before().is_dir();
        // The target may be the directory that holds the source: not empty.
        match &target {
            Some(target) if source_is_dir => self.check_empty_dir(target.before())?,
            Some(target) if target.before().is_dir() => return Err(Error::IsDirectory),
            _ => {}
        }
        let old_dir = names.from().inode();
        let mut tx = self.begin(old_dir);
        if target.is_some() {
            tx.allow_reserve();
        }
        // The old name first: the new one may reuse its slots.
        let whiteout = match whiteout {
            true => Some(self.make_whiteout(caller, &mut tx, names.from(), now)?),
            false => None,
        };
        let instead = whiteout.as_ref().map(|(_, disk)| disk);
        let (mut from, mut new) = names.change_old(&mut tx, instead)?;
        if has_bug!(RenameRemovesFirst) && whiteout.is_none() {
            new.forget_place();
            let removed = match &mut from {
                Some(from) => from.stage(&mut tx)?,
                None => new.dir_mut().stage(&mut tx)?,
            };
            self.commit(tx, [removed])?;
            tx = self.begin(old_dir);
        }
        let mut orphan = None;
        let (mut record, staged) = if let Some(target) = target {
            let to = new.replace(&mut tx, source)?;
            if source_is_dir {
                to.nlink = to.nlink.saturating_sub(1);
            }
            let mut staged = stage_moved(&mut tx, from, to, source, now)?;
            let target = self.stage_replaced(&mut tx, target, source_is_dir, now)?;
            orphan = target.orphan();
            staged.push(target);
            (tx.end(), staged)
        } else {
            let (ino, mode) = (source.inode().ino, source.mode);
            let (mut record, to) = match new.insertion(&tx)? {
                // Nothing is allocated any more, so the lane is taken early.
                Insertion::InLeaf(slots) if whiteout.is_none() => {
                    let mut record = tx.lock_lane(&[
                        &old_dir.last_record,
                        &slots.dir().inode().last_record,
                        &source.inode().last_record,
                    ]);
                    let to = slots.insert(&mut record, ino, mode)?;
                    (record, to)
                }
                place => {
                    let to = place.insert(&mut tx, ino, mode)?;
                    (tx.end(), to)
                }
            };
            let staged = stage_moved(&mut record, from, to, source, now)?;
            (record, staged)
        };
        // The whiteout is locked before the commit makes it reachable.
        let mut whiteout = whiteout
            .as_ref()
            .map(|(inode, _)| NewInode::new(self, inode));
        record.decide(None);
        let id = self.commit(record, staged)?;
        if let Some(whiteout) = &mut whiteout {
            whiteout.committed(id, None);
        }
        Ok(orphan)
    }

    /// Puts the replaced target of a move into the record.
    fn stage_replaced<'e, 'v>(
        &'v self,
        tx: &mut Plan<'v>,
        target: &'e mut Edit<'v>,
        is_dir: bool,
        now: Time,
    ) -> Result<Staged<'e, 'v>> {
        touch_ctime(target, now);
        target.nlink = match is_dir {
            true => 0,
            false => target.nlink.saturating_sub(1),
        };
        if target.nlink == 0 {
            self.drop_inode(tx, target)
        } else {
            target.stage(tx)
        }
    }

    /// Makes a whiteout for the place of an entry of `dir`.
    fn make_whiteout(
        &self,
        caller: &Credentials<'_>,
        tx: &mut Plan<'_>,
        dir: &DiskInode,
        now: Time,
    ) -> Result<(Arc<Inode>, DiskInode)> {
        let ino = tx.alloc_inode(None)?;
        let home = self.table.home_or_grow(&self.vol, ino)?;
        let what = InodeTemplate::of(FileType::CharDevice, 0);
        let mut disk = DiskInode::new_zeroed();
        self.fill_new(caller, dir, &what, now, ino, &mut disk);
        put_new_inode(tx, home, ino, &mut disk)?;
        Ok((Arc::new(Inode::new(ino, home, disk)), disk))
    }
}

/// Puts the directories and the inode of a move into the record, with their new times,
/// counts and parent. `from` is `None` within one directory.
fn stage_moved<'e, 'v: 'r, 'r>(
    tx: &mut Record<'r>,
    from: Option<&'e mut Edit<'v>>,
    to: &'e mut Edit<'v>,
    source: &'e mut Edit<'v>,
    now: Time,
) -> Result<SmallVec<[Staged<'e, 'v>; 4]>> {
    let mut staged = SmallVec::new();
    if let Some(from) = from {
        if source.before().is_dir() {
            add_link(to)?;
            from.nlink = from.nlink.saturating_sub(1);
            source.parent_or_rdev = to.inode().ino.0;
        }
        touch_mtime(from, now);
        staged.push(from.stage(tx)?);
    }
    touch_mtime(to, now);
    staged.push(to.stage(tx)?);
    touch_ctime(source, now);
    staged.push(source.stage(tx)?);
    Ok(staged)
}

/// Checks that the flags of the inodes permit a rename.
fn check_flags(
    names: &Names<'_, '_>,
    source: &DiskInode,
    target: Option<&DiskInode>,
) -> Result<()> {
    chattr::check_write(names.from())?;
    chattr::check_write(source)?;
    match target {
        Some(target) => {
            chattr::check_write(names.to())?;
            chattr::check_write(target)
        }
        None => chattr::check_append(names.to()),
    }
}

fn is_dir(inode: &Arc<Inode>) -> bool {
    inode.state.read().is_dir()
}

/// Two names of one inode: POSIX requires no change.
fn same_inode(flags: RenameFlags) -> Result<()> {
    if flags.noreplace {
        Err(Error::Exists)
    } else {
        Ok(())
    }
}

#[cold]
fn contains_itself(from: &Inode, to: &Inode) -> Error {
    Error::corrupt(
        Damage::DirectoryLoop,
        (from.ino, format!("directory {} or {}", from.ino, to.ino)),
        "the directory contains itself",
    )
}
