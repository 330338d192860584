//! rename, with NOREPLACE, EXCHANGE and WHITEOUT: one record, both names.

use std::sync::Arc;

use zerocopy::FromZeros;

use super::create::{New, Newborn};
use super::inode::{Core, Inode, add_link, put_inode, put_new_inode, touch_ctime, touch_mtime};
use super::locks::LockSet;
use super::orphan::Dropped;
use super::{Need, Shared, names, protect};
use crate::error::{Error, Result};
use crate::htree::{DirEntry, Gap};
use crate::media::DiskInode;
use crate::pmem::mutants::has_bug;
use crate::types::{Ctx, FileType, Ino, RenameFlags};
use crate::volume::Tx;

/// Deepest path that the search for a loop follows: more than any tree of the
/// largest number of inodes on a sound medium has in practice; it only bounds
/// a loop on a damaged one.
const MAX_DEPTH: u32 = 1 << 24;

/// The two ends of a rename.
struct Ends<'a> {
    from: &'a Arc<Inode>,
    name: &'a [u8],
    entry: &'a DirEntry,
    to: &'a Arc<Inode>,
    new_name: &'a [u8],
    /// Where the new name would stand, if it was looked for under the locks.
    gap: Option<&'a Gap>,
    source: &'a Arc<Inode>,
    target: Option<&'a Arc<Inode>>,
}

impl Shared {
    /// Moves a name, atomically also with what it replaces.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Exists`] with `noreplace`,
    /// [`Error::NotEmpty`], [`Error::IsDirectory`], [`Error::NotDirectory`],
    /// [`Error::Invalid`] for a directory into its own subtree.
    pub fn rename(
        &self,
        cx: &Ctx,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        self.op(Need::Write, || {
            if flags.exchange && (flags.noreplace || flags.whiteout) {
                return Err(Error::Invalid("exchange goes with no other flag of rename"));
            }
            names::check(name)?;
            names::check(new_name)?;
            self.in_dir(parent, |from| {
                self.rename_from(cx, from, name, new_parent, new_name, flags)
            })
        })
    }

    fn peek(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Option<Arc<Inode>>> {
        let core = dir.core.read();
        self.check_dir(dir, &core)?;
        self.entry_inode(&core, name)
    }

    #[inline(never)]
    fn rename_from(
        &self,
        cx: &Ctx,
        from: &Arc<Inode>,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        // Within one directory nothing has to be locked before it, and the
        // others' locks are mostly free.
        if from.ino == new_parent {
            let (source, target);
            let mut set = LockSet::first(from);
            let core = set.core(from)?;
            self.check_linked_dir(from, core)?;
            let Some(entry) = self.entry(core, name)? else {
                return Err(Error::NotFound);
            };
            source = self.inode_of(core, name, Ino(entry.ino))?;
            let gap;
            (target, gap) = self.entry_inode_or_gap(core, new_name)?;
            if set.try_add(&source) && target.as_ref().is_none_or(|t| set.try_add(t)) {
                let ends = Ends {
                    from,
                    name,
                    entry: &entry,
                    to: from,
                    new_name,
                    gap: gap.as_ref(),
                    source: &source,
                    target: target.as_ref(),
                };
                let orphan = self.rename_locked(cx, &ends, &mut set, flags)?;
                drop(set);
                return self.after_removal(orphan);
            }
        }
        let to = self.iget_user(new_parent)?;
        loop {
            let source = self.peek(from, name)?.ok_or(Error::NotFound)?;
            let target = self.peek(&to, new_name)?;
            match &target {
                Some(_) if flags.noreplace => return Err(Error::Exists),
                None if flags.exchange => return Err(Error::NotFound),
                _ => {}
            }
            let across = from.ino != to.ino;
            let is_dir = |i: &Arc<Inode>| i.core.read().is_dir();
            let moves_dir = across
                && (is_dir(&source) || (flags.exchange && target.as_ref().is_some_and(is_dir)));
            // While directories move one at a time, who is above whom holds.
            let _moving = moves_dir.then(|| self.rename.lock());
            if moves_dir {
                self.check_linked_dir(&to, &to.core.read())?;
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
            self.check_dir(from, set.core(from)?)?;
            self.check_linked_dir(&to, set.core(&to)?)?;
            let entry = self.entry(set.core(from)?, name)?;
            let Some(entry) = entry.filter(|e| e.ino == source.ino.0) else {
                continue;
            };
            let there = self.entry(set.core(&to)?, new_name)?.map(|e| e.ino);
            if there != target.as_ref().map(|t| t.ino.0)
                || set.core(&source)?.gone
                || target
                    .as_ref()
                    .is_some_and(|t| set.core(t).is_ok_and(|c| c.gone))
            {
                continue;
            }
            let ends = Ends {
                from,
                name,
                entry: &entry,
                to: &to,
                new_name,
                gap: None,
                source: &source,
                target: target.as_ref(),
            };
            let orphan = self.rename_locked(cx, &ends, &mut set, flags)?;
            drop(set);
            return self.after_removal(orphan);
        }
    }

    /// Whether directory `above` is `below` or contains it. The caller holds
    /// the rename lock; only the removal of `below` can interfere.
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
            let core = inode.core.read();
            if !core.is_dir() {
                break;
            }
            at = Ino(core.d.parent_or_rdev);
        }
        // Where a removed directory stood may be anything by now.
        if below.core.read().d.nlink == 0 {
            return Err(Error::NotFound);
        }
        Err(Error::corrupt(
            below.ino.to_string(),
            "its parents do not lead to the root directory",
        ))
    }

    fn rename_locked(
        &self,
        cx: &Ctx,
        e: &Ends<'_>,
        set: &mut LockSet<'_>,
        flags: RenameFlags,
    ) -> Result<Option<Ino>> {
        match e.target {
            Some(_) if flags.noreplace => return Err(Error::Exists),
            None if flags.exchange => return Err(Error::NotFound),
            // Two names of one inode: nothing to do, as POSIX has it.
            Some(t) if t.ino == e.source.ino => return Ok(None),
            _ => {}
        }
        protect::may_change(&set.core(e.from)?.d)?;
        protect::may_change(&set.core(e.source)?.d)?;
        let to = &set.core(e.to)?.d;
        match e.target {
            Some(t) => {
                protect::may_change(to)?;
                protect::may_change(&set.core(t)?.d)?;
            }
            None => protect::may_grow(to)?,
        }
        let own = |i: &Inode, dir: &Inode| i.ino == dir.ino;
        if own(e.source, e.from) || e.target.is_some_and(|t| own(t, e.to)) {
            return Err(Error::corrupt(
                format!("directory {} or {}", e.from.ino, e.to.ino),
                "it has itself as an entry",
            ));
        }
        if flags.exchange {
            self.exchange_locked(e, set).map(|()| None)
        } else {
            self.move_locked(cx, e, set, flags.whiteout)
        }
    }

    fn exchange_locked(&self, e: &Ends<'_>, set: &mut LockSet<'_>) -> Result<()> {
        let target = e.target.ok_or(Error::NotFound)?;
        let now = self.now();
        let (mut s, mut t) = (set.core(e.source)?.d, set.core(target)?.d);
        let mut from = set.core(e.from)?.d;
        let across = e.from.ino != e.to.ino;
        let mut to = set.core(e.to)?.d;
        let mut tx = self.vol.begin_at(&e.from.place);
        self.replace_entry(&mut tx, &from, e.name, &t)?;
        self.replace_entry(&mut tx, &to, e.new_name, &s)?;
        let is_dir = |d: &DiskInode| d.mode & libc::S_IFMT == libc::S_IFDIR;
        if across {
            if is_dir(&s) {
                s.parent_or_rdev = e.to.ino.0;
                from.nlink = from.nlink.saturating_sub(1);
                add_link(&mut to)?;
            }
            if is_dir(&t) {
                t.parent_or_rdev = e.from.ino.0;
                to.nlink = to.nlink.saturating_sub(1);
                add_link(&mut from)?;
            }
            touch_mtime(&mut to, now);
            put_inode(&mut tx, e.to, set.core(e.to)?, &mut to)?;
        }
        touch_mtime(&mut from, now);
        put_inode(&mut tx, e.from, set.core(e.from)?, &mut from)?;
        touch_ctime(&mut s, now);
        touch_ctime(&mut t, now);
        put_inode(&mut tx, e.source, set.core(e.source)?, &mut s)?;
        put_inode(&mut tx, target, set.core(target)?, &mut t)?;
        tx.commit()?;
        set.core_mut(e.from)?.committed(&from);
        if across {
            set.core_mut(e.to)?.committed(&to);
        }
        set.core_mut(e.source)?.committed(&s);
        set.core_mut(target)?.committed(&t);
        Ok(())
    }

    fn move_locked(
        &self,
        cx: &Ctx,
        e: &Ends<'_>,
        set: &mut LockSet<'_>,
        whiteout: bool,
    ) -> Result<Option<Ino>> {
        let now = self.now();
        let across = e.from.ino != e.to.ino;
        let mut s = set.core(e.source)?.d;
        let s_dir = set.core(e.source)?.is_dir();
        let mut t = None;
        if let Some(target) = e.target {
            let core = set.core(target)?;
            match (s_dir, core.is_dir()) {
                (true, _) => self.check_empty_dir(core)?,
                (false, true) => return Err(Error::IsDirectory),
                (false, false) => {}
            }
            t = Some(core.d);
        }
        let mut tx = self.vol.begin_at(&e.from.place);
        if t.is_some() {
            tx.allow_reserve();
        }
        let mut from = set.core(e.from)?.d;
        // With one directory, `from` stands for both and `to` is not used.
        let mut to = if across {
            Some(set.core(e.to)?.d)
        } else {
            None
        };

        // The old name first: its slots may serve the new one.
        let white = if whiteout {
            Some(self.put_whiteout(cx, &mut tx, &mut from, e.name, now)?)
        } else {
            self.take_entry(&mut tx, &mut from, e.entry)?;
            None
        };
        let mut gap = e.gap;
        if has_bug!(RenameRemovesFirst) && white.is_none() {
            gap = None;
            put_inode(&mut tx, e.from, set.core(e.from)?, &mut from)?;
            tx.commit()?;
            tx = self.vol.begin_at(&e.from.place);
        }
        let dest = to.as_mut().unwrap_or(&mut from);
        if t.is_some() {
            self.replace_entry(&mut tx, dest, e.new_name, &s)?;
        } else {
            if white.is_none() {
                tx.may_enter(&[&e.from.place, &e.to.place, &e.source.place]);
            }
            self.add_entry_at(&mut tx, dest, e.new_name, gap, (s.ino, s.mode))?;
        }
        if s_dir {
            if t.is_some() {
                dest.nlink = dest.nlink.saturating_sub(1);
            }
            if across {
                add_link(dest)?;
                from.nlink = from.nlink.saturating_sub(1);
                s.parent_or_rdev = e.to.ino.0;
            }
        }
        touch_mtime(&mut from, now);
        put_inode(&mut tx, e.from, set.core(e.from)?, &mut from)?;
        if let Some(to) = &mut to {
            touch_mtime(to, now);
            put_inode(&mut tx, e.to, set.core(e.to)?, to)?;
        }
        touch_ctime(&mut s, now);
        put_inode(&mut tx, e.source, set.core(e.source)?, &mut s)?;

        let mut dropped = None;
        if let (Some(target), Some(t)) = (e.target, &mut t) {
            touch_ctime(t, now);
            t.nlink = if s_dir { 0 } else { t.nlink.saturating_sub(1) };
            let core = set.core(target)?;
            if t.nlink == 0 {
                dropped = Some(self.drop_inode(&mut tx, target, core, t)?);
            } else {
                put_inode(&mut tx, target, core, t)?;
            }
        }
        match white {
            Some(white) => drop(Newborn::new(self, &white).commit(&mut tx, false)?),
            None => drop(tx.commit()?),
        }
        set.core_mut(e.from)?.committed(&from);
        if let Some(to) = to {
            set.core_mut(e.to)?.committed(&to);
        }
        set.core_mut(e.source)?.committed(&s);
        if let (Some(target), Some(t)) = (e.target, t) {
            let core: &mut Core = set.core_mut(target)?;
            match dropped {
                Some(what) => self.dropped(target, core, &t, what),
                None => core.committed(&t),
            }
        }
        Ok(match (dropped, e.target) {
            (Some(Dropped::Orphan(_)), Some(target)) => Some(target.ino),
            _ => None,
        })
    }

    /// Puts a whiteout in the place of an entry.
    fn put_whiteout(
        &self,
        cx: &Ctx,
        tx: &mut Tx<'_>,
        dir: &mut DiskInode,
        name: &[u8],
        now: crate::types::Time,
    ) -> Result<Arc<Inode>> {
        let ino = Ino(tx.alloc_inode(None)?);
        let home = self.table.home_or_grow(&self.vol, ino)?;
        let mode = FileType::CharDevice.mode_bits();
        let mut d = DiskInode::new_zeroed();
        let what = New {
            mode,
            rdev: 0,
            target: b"",
        };
        self.fill_new(cx, dir, &what, now, (ino, &mut d));
        put_new_inode(tx, home, ino, &mut d)?;
        self.replace_entry(tx, dir, name, &d)?;
        Ok(Arc::new(Inode::new(ino, home, d)))
    }
}
