//! rename, with NOREPLACE, EXCHANGE and WHITEOUT: one record changes both names.

use std::sync::Arc;

use smallvec::SmallVec;
use zerocopy::FromZeros;

use crate::credentials::Credentials;
use crate::fs::engine::change::{Edit, Staged};
use crate::fs::inode::Inode;
use crate::fs::inode::disk::{add_link, put_new_inode, touch_ctime, touch_mtime};
use crate::fs::inode::lock_set::LockSet;
use crate::fs::inode::trees::dir_tree;
use crate::fs::ops::create::{InodeTemplate, NewInode};
use crate::fs::policy::{chattr, names};
use crate::fs::steps::entries::NewEntry;
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::htree::{self, DirEntry, InsertionPoint, VacantEntry};
use pramfs_medium::media::DiskInode;
use pramfs_medium::pmem::mutants::has_bug;
use pramfs_medium::types::{FileType, Ino, RenameFlags, Time};
use pramfs_medium::volume::{Plan, Record};

/// Maximum depth that the search for a loop follows. An undamaged tree does not
/// reach it in practice; it bounds the search in a damaged tree that has a loop.
const MAX_DEPTH: u32 = 1 << 24;

/// The two ends of a rename.
struct Ends<'a> {
    from: &'a Arc<Inode>,
    name: &'a [u8],
    entry: &'a DirEntry,
    to: &'a Arc<Inode>,
    new_name: &'a [u8],
    /// The place for the new name, if it was looked up under the locks.
    vacant: Option<&'a VacantEntry>,
    source: &'a Arc<Inode>,
    target: Option<&'a Arc<Inode>>,
}

/// The directories and the inode of a move.
struct Moved<'e, 'v> {
    from: &'e mut Edit<'v>,
    /// `None` within one directory.
    to: Option<&'e mut Edit<'v>>,
    source: &'e mut Edit<'v>,
}

impl<'e, 'v> Moved<'e, 'v> {
    /// Puts them into the record, with their new times, counts and parent.
    fn stage<'r>(self, tx: &mut Record<'r>, now: Time) -> Result<StagedMove<'e, 'v>>
    where
        'v: 'r,
    {
        let Moved {
            from,
            mut to,
            source,
        } = self;
        if source.before().is_dir()
            && let Some(to) = &mut to
        {
            add_link(to)?;
            from.nlink = from.nlink.saturating_sub(1);
            source.parent_or_rdev = to.inode().ino.0;
        }
        touch_mtime(from, now);
        let mut staged = SmallVec::new();
        staged.push(from.stage(tx)?);
        if let Some(to) = to {
            touch_mtime(to, now);
            staged.push(to.stage(tx)?);
        }
        touch_ctime(source, now);
        staged.push(source.stage(tx)?);
        Ok(staged)
    }
}

/// The inodes of a move, and its target.
type StagedMove<'e, 'v> = SmallVec<[Staged<'e, 'v>; 4]>;

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
        // Within one directory its lock comes first; the locks of source and target
        // are usually free.
        if from.ino == new_parent {
            let (source, target);
            let mut set = LockSet::first(from);
            let state = set.state(from)?;
            self.check_linked_dir(from, state)?;
            let Some(entry) = self.entry(state, name)? else {
                return Err(Error::NotFound);
            };
            source = self.inode_of(state, name, Ino(entry.ino))?;
            let vacant;
            (target, vacant) = self.entry_inode_or_vacant(state, new_name)?;
            if set.try_add(&source) && target.as_ref().is_none_or(|t| set.try_add(t)) {
                let ends = Ends {
                    from,
                    name,
                    entry: &entry,
                    to: from,
                    new_name,
                    vacant: vacant.as_ref(),
                    source: &source,
                    target: target.as_ref(),
                };
                let orphan = self.rename_locked(caller, &ends, &mut set, flags)?;
                drop(set);
                return self.after_removal(orphan);
            }
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
            let across = from.ino != to.ino;
            let is_dir = |i: &Arc<Inode>| i.state.read().is_dir();
            let moves_dir = across
                && (is_dir(&source) || (flags.exchange && target.as_ref().is_some_and(is_dir)));
            // Directories move one at a time, so ancestry cannot change.
            let _moving = moves_dir.then(|| self.rename.lock());
            if moves_dir {
                self.check_linked_dir(&to, &to.state.read())?;
                if is_dir(&source) && self.is_above(source.ino, &to)? {
                    return Err(Error::Invalid("a directory into its own subtree"));
                }
                if let Some(t) = &target
                    && is_dir(t)
                    && self.is_above(t.ino, from)?
                {
                    return Err(if flags.exchange {
                        Error::Invalid("a directory into its own subtree")
                    } else {
                        Error::NotEmpty
                    });
                }
            }
            let mut list = vec![from, &to, &source];
            list.extend(&target);
            let mut set = LockSet::new(&list);
            self.check_dir(from, set.state(from)?)?;
            self.check_linked_dir(&to, set.state(&to)?)?;
            let entry = self.entry(set.state(from)?, name)?;
            let Some(entry) = entry.filter(|e| e.ino == source.ino.0) else {
                continue;
            };
            let there = self.entry(set.state(&to)?, new_name)?.map(|e| e.ino);
            if there != target.as_ref().map(|t| t.ino.0)
                || set.state(&source)?.gone
                || target
                    .as_ref()
                    .is_some_and(|t| set.state(t).is_ok_and(|c| c.gone))
            {
                continue;
            }
            let ends = Ends {
                from,
                name,
                entry: &entry,
                to: &to,
                new_name,
                vacant: None,
                source: &source,
                target: target.as_ref(),
            };
            let orphan = self.rename_locked(caller, &ends, &mut set, flags)?;
            drop(set);
            return self.after_removal(orphan);
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
            below.ino.to_string(),
            "its parents do not lead to the root directory",
        ))
    }

    fn rename_locked(
        &self,
        caller: &Credentials<'_>,
        ends: &Ends<'_>,
        set: &mut LockSet<'_>,
        flags: RenameFlags,
    ) -> Result<Option<Ino>> {
        match ends.target {
            Some(_) if flags.noreplace => return Err(Error::Exists),
            None if flags.exchange => return Err(Error::NotFound),
            // Two names of one inode: POSIX requires no change.
            Some(t) if t.ino == ends.source.ino => return Ok(None),
            _ => {}
        }
        chattr::check_write(&set.state(ends.from)?.disk)?;
        chattr::check_write(&set.state(ends.source)?.disk)?;
        let to = &set.state(ends.to)?.disk;
        match ends.target {
            Some(t) => {
                chattr::check_write(to)?;
                chattr::check_write(&set.state(t)?.disk)?;
            }
            None => chattr::check_append(to)?,
        }
        let own = |i: &Inode, dir: &Inode| i.ino == dir.ino;
        if own(ends.source, ends.from) || ends.target.is_some_and(|t| own(t, ends.to)) {
            return Err(Error::corrupt(
                Damage::DirectoryLoop,
                format!("directory {} or {}", ends.from.ino, ends.to.ino),
                "the directory contains itself",
            ));
        }
        if flags.exchange {
            self.exchange_locked(ends, set).map(|()| None)
        } else {
            self.move_locked(caller, ends, set, flags.whiteout)
        }
    }

    fn exchange_locked(&self, ends: &Ends<'_>, set: &mut LockSet<'_>) -> Result<()> {
        let now = self.now();
        let states = set.states_mut([
            Some(ends.from),
            Some(ends.to),
            Some(ends.source),
            ends.target,
        ]);
        // Within one directory `from` serves for both ends.
        let ([Some(from), to, Some(source), Some(target)], Some(target_inode)) =
            (states, ends.target)
        else {
            return Err(Error::Stale(ends.from.ino));
        };
        let mut from = Edit::new(ends.from, from);
        let mut to = to.map(|to| Edit::new(ends.to, to));
        let mut source = Edit::new(ends.source, source);
        let mut target = Edit::new(target_inode, target);
        let mut tx = self.begin(ends.from);
        self.replace_entry(&mut tx, &from, ends.name, &target)?;
        self.replace_entry(
            &mut tx,
            to.as_deref().unwrap_or(&from),
            ends.new_name,
            &source,
        )?;
        if let Some(to) = &mut to {
            if source.before().is_dir() {
                source.parent_or_rdev = ends.to.ino.0;
                from.nlink = from.nlink.saturating_sub(1);
                add_link(to)?;
            }
            if target.before().is_dir() {
                target.parent_or_rdev = ends.from.ino.0;
                to.nlink = to.nlink.saturating_sub(1);
                add_link(&mut from)?;
            }
            touch_mtime(to, now);
        }
        let to = to.as_mut().map(|to| to.stage(&mut tx)).transpose()?;
        touch_mtime(&mut from, now);
        let from = from.stage(&mut tx)?;
        touch_ctime(&mut source, now);
        touch_ctime(&mut target, now);
        let source = source.stage(&mut tx)?;
        let target = target.stage(&mut tx)?;
        self.commit(tx, to.into_iter().chain([from, source, target]))?;
        Ok(())
    }

    fn move_locked(
        &self,
        caller: &Credentials<'_>,
        ends: &Ends<'_>,
        set: &mut LockSet<'_>,
        whiteout: bool,
    ) -> Result<Option<Ino>> {
        let now = self.now();
        let source_is_dir = set.state(ends.source)?.is_dir();
        // The target may be the directory that holds the source: not empty.
        if let Some(target) = ends.target {
            let target = set.state(target)?;
            match (source_is_dir, target.is_dir()) {
                (true, _) => self.check_empty_dir(target)?,
                (false, true) => return Err(Error::IsDirectory),
                (false, false) => {}
            }
        }
        let states = set.states_mut([
            Some(ends.from),
            Some(ends.to),
            Some(ends.source),
            ends.target,
        ]);
        // Within one directory `from` serves for both ends.
        let [Some(from), to, Some(source), target] = states else {
            return Err(Error::Stale(ends.from.ino));
        };
        let mut from = Edit::new(ends.from, from);
        let mut to = to.map(|to| Edit::new(ends.to, to));
        let mut source = Edit::new(ends.source, source);
        let mut target = match (ends.target, target) {
            (Some(inode), Some(state)) => Some(Edit::new(inode, state)),
            _ => None,
        };
        let whiteout_inode;
        let mut tx = self.begin(ends.from);
        if target.is_some() {
            tx.allow_reserve();
        }

        // The old name first: the new one may reuse its slots.
        whiteout_inode = if whiteout {
            Some(self.put_whiteout(caller, &mut tx, &mut from, ends.name, now)?)
        } else {
            self.take_entry(&mut tx, &mut from, ends.entry)?;
            None
        };
        let mut vacant = ends.vacant;
        if has_bug!(RenameRemovesFirst) && whiteout_inode.is_none() {
            vacant = None;
            let from = from.stage(&mut tx)?;
            self.commit(tx, [from])?;
            tx = self.begin(ends.from);
        }
        let mut orphan = None;
        let (record, staged) = if let Some(target) = &mut target {
            let dest = to.as_mut().unwrap_or(&mut from);
            self.replace_entry(&mut tx, dest, ends.new_name, &source)?;
            if source_is_dir {
                dest.nlink = dest.nlink.saturating_sub(1);
            }
            let moved = Moved {
                from: &mut from,
                to: to.as_mut(),
                source: &mut source,
            };
            let mut staged = moved.stage(&mut tx, now)?;
            touch_ctime(target, now);
            target.nlink = if source_is_dir {
                0
            } else {
                target.nlink.saturating_sub(1)
            };
            let target = if target.nlink == 0 {
                self.drop_inode(&mut tx, target)?
            } else {
                target.stage(&mut tx)?
            };
            orphan = target.orphan();
            staged.push(target);
            (tx.end(), staged)
        } else {
            let dest = to.as_mut().unwrap_or(&mut from);
            let entry = NewEntry::new(ends.new_name, ends.source.ino, source.mode);
            let tree = dir_tree(dest);
            let place = match vacant {
                Some(vacant) => vacant.insertion_point(&tx, &tree, &entry.item())?,
                None => None,
            };
            let place = match place {
                Some(place) => place,
                None => htree::insertion_point(&tx, &tree, &entry.item())?,
            };
            let mut record = match place {
                InsertionPoint::InLeaf(slots) if whiteout_inode.is_none() => {
                    let mut record = tx.lock_lane(&[
                        &ends.from.last_record,
                        &ends.to.last_record,
                        &ends.source.last_record,
                    ]);
                    self.fill_slots(&mut record, dest, slots, &entry)?;
                    record
                }
                place => {
                    self.add_entry_at(&mut tx, dest, place, &entry)?;
                    tx.end()
                }
            };
            let moved = Moved {
                from: &mut from,
                to: to.as_mut(),
                source: &mut source,
            };
            let staged = moved.stage(&mut record, now)?;
            (record, staged)
        };
        match &whiteout_inode {
            Some(inode) => {
                let mut whiteout = NewInode::new(self, inode);
                whiteout.committed(self.commit(record, staged)?, None);
            }
            None => {
                self.commit(record, staged)?;
            }
        }
        Ok(orphan)
    }

    /// Replaces an entry with a whiteout.
    fn put_whiteout(
        &self,
        caller: &Credentials<'_>,
        tx: &mut Plan<'_>,
        dir: &mut DiskInode,
        name: &[u8],
        now: Time,
    ) -> Result<Arc<Inode>> {
        let ino = tx.alloc_inode(None)?;
        let home = self.table.home_or_grow(&self.vol, ino)?;
        let mode = FileType::CharDevice.mode_bits();
        let mut d = DiskInode::new_zeroed();
        let what = InodeTemplate {
            mode,
            rdev: 0,
            target: b"",
        };
        self.fill_new(caller, dir, &what, now, (ino, &mut d));
        put_new_inode(tx, home, ino, &mut d)?;
        self.replace_entry(tx, dir, name, &d)?;
        Ok(Arc::new(Inode::new(ino, home, d)))
    }
}
