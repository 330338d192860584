//! create, mkdir, mknod: a new inode and its first name, in one record.
//!
//! Invariant: the new inode is in the cache and locked before its record is committed. A
//! thread that finds it early waits for the lock, and finds it gone if the commit fails.
//!
//! Directory entries are in [`entries`](crate::fs::steps::entries), inherited ACLs in
//! `steps::acl`, symlinks' targets are checked here and read in
//! [`symlink`](crate::fs::ops::symlink).

use pramfs_medium::pmem::RegionAccess as _;
use std::sync::Arc;

use crate::credentials::Credentials;
use crate::fs::engine::change::Edit;
use crate::fs::inode::Inode;
use crate::fs::inode::disk::{add_link, put_new_inode, touch_mtime};
use crate::fs::inode::lock::InodeGuard;
use crate::fs::inode::refs::By;
use crate::fs::inode::state::InodeState;
use crate::fs::policy::names::TARGET_MAX;
use crate::fs::policy::{chattr, names};
use crate::fs::steps::entries::Insertion;
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::journal::RecordId;
use pramfs_medium::map::{self, MapRef};
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::checksum::crc;
use pramfs_medium::media::inode::{
    FLAGS_INHERITED, FLAGS_INHERITED_SPECIAL, INLINE_TARGET, INODE_SIZE,
};
use pramfs_medium::pmem::LINE;
use pramfs_medium::sync::unshared;
use pramfs_medium::types::{Attr, FileType, Ino, Time};
use pramfs_medium::volume::Plan;

/// The type, mode, device number, symlink target and security labels of a new inode.
pub(crate) struct InodeTemplate<'a> {
    pub mode: u32,
    pub rdev: u64,
    pub target: &'a [u8],
    /// Names and values of attributes, which [`check_labels`](super::xattr::check_labels)
    /// accepts.
    pub labels: &'a [Label<'a>],
}

/// Name and value of an attribute in the namespace `security.`.
pub(crate) type Label<'a> = (&'a [u8], &'a [u8]);

impl<'a> InodeTemplate<'a> {
    pub(crate) fn of(kind: FileType, perm: u32) -> Self {
        InodeTemplate {
            mode: kind.mode_bits() | perm & 0o7777,
            rdev: 0,
            target: b"",
            labels: &[],
        }
    }

    pub(crate) fn file(perm: u32) -> Self {
        Self::of(FileType::Regular, perm)
    }

    pub(crate) fn dir(perm: u32) -> Self {
        Self::of(FileType::Directory, perm)
    }

    /// A regular file, pipe, socket or device, by the type in `mode`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for directories, symbolic links and unknown types.
    pub(crate) fn node(mode: u32, rdev: u64) -> Result<Self> {
        match FileType::from_mode(mode) {
            Some(FileType::Directory | FileType::Symlink) | None => Err(Error::Invalid(
                "mknod makes files, pipes, sockets and devices",
            )),
            Some(_) => Ok(InodeTemplate {
                mode,
                rdev,
                target: b"",
                labels: &[],
            }),
        }
    }

    /// A symbolic link.
    ///
    /// # Errors
    /// [`Error::NotFound`] for an empty target, as symlink(2);
    /// [`Error::NameTooLong`], [`Error::Invalid`] for a NUL byte.
    pub(crate) fn symlink(target: &'a [u8]) -> Result<Self> {
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        if target.len() > TARGET_MAX {
            return Err(Error::NameTooLong(target.len(), TARGET_MAX));
        }
        if target.contains(&0) {
            return Err(Error::Invalid("a symlink target with a NUL byte"));
        }
        let link = Self::of(FileType::Symlink, 0o777);
        Ok(InodeTemplate { target, ..link })
    }
}

/// A request to make an inode and its name.
struct Creation<'a> {
    caller: &'a Credentials<'a>,
    name: &'a [u8],
    what: &'a InodeTemplate<'a>,
    /// The kind of reference to add, if any.
    by: Option<By>,
}

impl Engine {
    /// Creates a regular file.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoSpace`], [`Error::NotFound`] in a removed
    /// directory, [`Error::NameTooLong`].
    pub fn create(
        &self,
        caller: &Credentials<'_>,
        parent: Ino,
        name: &[u8],
        perm: u32,
    ) -> Result<Attr> {
        self.make(caller, parent, name, &InodeTemplate::file(perm), None)
    }

    /// As [`create`](Self::create), with a reference for a guard to release.
    pub(crate) fn create_for_guard(
        &self,
        caller: &Credentials<'_>,
        parent: Ino,
        name: &[u8],
        perm: u32,
    ) -> Result<Attr> {
        let by = Some(By::Guard);
        self.make(caller, parent, name, &InodeTemplate::file(perm), by)
    }

    /// Creates a regular file, named pipe, socket or device file, by the type in `mode`.
    ///
    /// # Errors
    /// As for [`create`](Self::create); [`Error::Invalid`] for other types.
    pub fn mknod(
        &self,
        caller: &Credentials<'_>,
        parent: Ino,
        name: &[u8],
        mode: u32,
        rdev: u64,
    ) -> Result<Attr> {
        self.make(
            caller,
            parent,
            name,
            &InodeTemplate::node(mode, rdev)?,
            None,
        )
    }

    /// Creates a directory.
    ///
    /// # Errors
    /// As for [`create`](Self::create).
    pub fn mkdir(
        &self,
        caller: &Credentials<'_>,
        parent: Ino,
        name: &[u8],
        perm: u32,
    ) -> Result<Attr> {
        self.make(caller, parent, name, &InodeTemplate::dir(perm), None)
    }

    /// Fills the zeroed inode of a new file in `dir` with its initial values.
    pub(crate) fn fill_new(
        &self,
        caller: &Credentials<'_>,
        dir: &DiskInode,
        what: &InodeTemplate<'_>,
        now: Time,
        ino: Ino,
        d: &mut DiskInode,
    ) {
        let is_dir = what.mode & libc::S_IFMT == libc::S_IFDIR;
        let umask = if what.mode & libc::S_IFMT == libc::S_IFLNK {
            0
        } else {
            caller.umask
        };
        d.mode = what.mode & !(umask & 0o777);
        (d.uid, d.gid) = (caller.uid, caller.gid);
        if dir.mode & libc::S_ISGID != 0 {
            d.gid = dir.gid;
            if is_dir {
                d.mode |= libc::S_ISGID;
            }
        }
        d.flags = match what.mode & libc::S_IFMT {
            libc::S_IFREG | libc::S_IFDIR => dir.flags & FLAGS_INHERITED,
            _ => dir.flags & FLAGS_INHERITED_SPECIAL,
        };
        d.nlink = if is_dir { 2 } else { 1 };
        d.parent_or_rdev = if is_dir { dir.ino } else { what.rdev };
        d.ino = ino.0;
        // Lower than the LSN of the record that will hold the inode, and never reused.
        d.generation = self.vol.journal.unique();
        touch_mtime(d, now);
        (d.atime_sec, d.atime_nsec) = (now.sec, now.nsec);
        (d.btime_sec, d.btime_nsec) = (now.sec, now.nsec);
    }

    /// Gives a new inode its security labels.
    #[inline]
    pub(crate) fn put_labels(
        &self,
        tx: &mut Plan<'_>,
        d: &mut DiskInode,
        labels: &[Label<'_>],
    ) -> Result<()> {
        for (name, value) in labels {
            self.put_value(tx, d, name, value, None)?;
        }
        Ok(())
    }

    /// Stores a symlink's target in its inode, or in separate blocks if it is too long.
    fn put_target(&self, tx: &mut Plan<'_>, d: &mut DiskInode, target: &[u8]) -> Result<()> {
        if target.is_empty() {
            return Ok(());
        }
        d.size = target.len() as u64;
        if target.len() <= INLINE_TARGET {
            d.target[..target.len()].copy_from_slice(target);
            return Ok(());
        }
        let geo = &self.vol.geo;
        d.target[..4].copy_from_slice(&crc(geo.seed, target).to_le_bytes());
        let mut map = MapRef::of(d);
        let mut rest = target;
        while !rest.is_empty() {
            let done = geo.file_block((target.len() - rest.len()) as u64);
            let blocks = geo.blocks_for(rest.len() as u64);
            let run = tx.alloc_blocks(None, blocks as u32, false)?;
            let (now, more) = rest.split_at(rest.len().min(geo.bytes(run.len) as usize));
            tx.write_new(geo.offset(run.start), now)?;
            map::insert(tx, &mut map, done, run, false)?;
            rest = more;
        }
        map.store(d);
        Ok(())
    }

    /// Creates an inode and its name. Also takes a reference of the kind `by`, if any.
    pub(crate) fn make(
        &self,
        caller: &Credentials<'_>,
        parent: Ino,
        name: &[u8],
        what: &InodeTemplate<'_>,
        by: Option<By>,
    ) -> Result<Attr> {
        let creation = Creation {
            caller,
            name,
            what,
            by,
        };
        self.op_with_ref(Need::Write, by, || {
            names::check(name)?;
            self.with_dir(parent, |dir| self.make_in(dir, &creation))
        })
    }

    #[inline(never)]
    fn make_in(&self, dir: &Inode, creation: &Creation<'_>) -> Result<Attr> {
        let mut dir_state = dir.state.write();
        self.check_linked_dir(dir, &dir_state)?;
        chattr::check_append(&dir_state.disk)?;
        match self.make_locked(dir, &mut dir_state, creation, None) {
            // The next free number may lie where the table would have to grow; a
            // lower one does not.
            Err(Error::NoSpace(_)) => self.make_locked(dir, &mut dir_state, creation, Some(Ino(0))),
            made => made,
        }
    }

    fn make_locked(
        &self,
        dir: &Inode,
        dir_state: &mut InodeState,
        creation: &Creation<'_>,
        near: Option<Ino>,
    ) -> Result<Attr> {
        let &Creation {
            caller,
            name,
            what,
            by,
        } = creation;
        let now = self.now();
        let mut new_dir = Edit::new(dir, dir_state);
        // Declared before the transaction, which therefore ends first after an error: to
        // leave the cache takes a lock, and a thread that holds a lane must not wait for it.
        let (early, late);
        let mut new_inode = None;
        let mut tx = self.begin(dir);
        // In a large directory, the lines of the name's leaf take as long to load as
        // everything before the insertion.
        let cursor = self.seek_entry(&mut new_dir, name)?;
        cursor.check_hole()?;
        // EEXIST takes precedence over ENOSPC. The insertion tells whether the name
        // exists; without a free number, a look-up does.
        let ino = match tx.alloc_inode(near) {
            Ok(ino) => ino,
            Err(_) if cursor.exists()? => return Err(Error::Exists),
            Err(e) => return Err(e),
        };
        if let Some(home) = self.table.find_now(&self.vol, ino)? {
            // Its lines are stored to when the record is durable; by then they are loaded.
            for line in 0..INODE_SIZE / LINE {
                self.vol.region.prefetch(home.0 + line * LINE);
            }
            // Everything that takes a lock precedes the lane. The generation is a locked
            // instruction, too.
            early = Inode::empty(ino, home);
            let new = new_inode.insert(NewInode::new(self, &early));
            self.fill_new(caller, cursor.dir(), what, now, ino, &mut new.state.disk);
        }
        let plain =
            what.target.is_empty() && what.labels.is_empty() && cursor.dir().xattr_root == 0;
        // EEXIST takes precedence over a table without room to grow.
        let place = cursor.vacant(&tx)?;
        let (parent, mut record, new) = match (place, &mut new_inode) {
            (Insertion::InLeaf(slots), Some(new)) if plain => {
                let mut record = tx.lock_lane(&[&dir.last_record]);
                let parent = slots.insert(&mut record, ino, what.mode)?;
                (parent, record, new)
            }
            (place, new) => {
                let parent = place.insert(&mut tx, ino, what.mode)?;
                let new = match new {
                    Some(new) => new,
                    none => {
                        late = Inode::empty(ino, self.table.home_or_grow(&self.vol, ino)?);
                        let new = none.insert(NewInode::new(self, &late));
                        self.fill_new(caller, parent, what, now, ino, &mut new.state.disk);
                        new
                    }
                };
                let d = &mut new.state.disk;
                self.inherit_acl(&mut tx, parent.before_mut(), d, what.mode)?;
                self.put_target(&mut tx, d, what.target)?;
                self.put_labels(&mut tx, d, what.labels)?;
                (parent, tx.end(), new)
            }
        };
        let d = &mut new.state.disk;
        put_new_inode(&mut record, new.inode.home, ino, d)?;
        if d.mode & libc::S_IFMT == libc::S_IFDIR {
            add_link(parent)?;
        }
        touch_mtime(parent, now);
        let parent = parent.stage(&mut record)?;
        // The name is durable after this, but no thread can find it while the directory
        // is locked.
        record.decide(Some(ino));
        let id = self.commit(record, [parent])?;
        Ok(new.committed(id, by))
    }
}

/// A new inode that is in the cache and locked; a thread that finds it waits. Dropping it
/// before its record is committed removes it from the cache.
pub(crate) struct NewInode<'a> {
    engine: &'a Engine,
    inode: &'a Arc<Inode>,
    pub state: InodeGuard<'a>,
    committed: bool,
}

impl<'a> NewInode<'a> {
    /// Locks a new inode and inserts it into the cache.
    #[inline]
    pub(crate) fn new(engine: &'a Engine, inode: &'a Arc<Inode>) -> NewInode<'a> {
        // Its number may be lower than the directory's.
        let state = unshared(|| inode.state.write());
        engine.cache.insert_new(&engine.vol, inode);
        NewInode {
            engine,
            inode,
            state,
            committed: false,
        }
    }

    /// Keeps the inode, after the commit of the record that creates it.
    #[inline]
    pub(crate) fn committed(&mut self, id: RecordId, by: Option<By>) -> Attr {
        self.inode.last_record.set(id);
        self.committed = true;
        if let Some(by) = by {
            self.engine.refs.add(self.inode.ino, 1, by);
        }
        self.state.attr(&self.engine.vol.geo)
    }
}

impl Drop for NewInode<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.committed {
            self.state.gone = true;
            self.engine.cache.remove(self.inode);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MountOptions, inode::Fs};
    use pramfs_medium::format::{FormatOptions, format};
    use pramfs_medium::media::inode::LINK_MAX;
    use pramfs_medium::pmem::{HeapBackend, Region};

    /// The failure comes after the lane is taken. The lane is released before the failed
    /// inode leaves the cache, and the next record finds the lane unchanged.
    #[test]
    fn create_failing_after_name_insert_leaves_nothing() {
        let region = Region::new("test", HeapBackend::boxed(4 << 20));
        format(&region, &FormatOptions::default()).unwrap();
        let fs = Fs::open(region, MountOptions::default()).unwrap();
        let ctx = Credentials::ROOT;
        let full = fs.mkdir(&ctx, Ino::ROOT, b"full", 0o755).unwrap().ino;
        fs.create(&ctx, full, b"first", 0o644).unwrap();
        fs.iget(full).unwrap().state.write().disk.nlink = LINK_MAX;
        let before = (fs.cache.len(), fs.statfs().unwrap().free_inodes);
        for _ in 0..3 {
            let refused = fs.mkdir(&ctx, full, b"one more", 0o755).unwrap_err();
            assert!(matches!(refused, Error::TooManyLinks(_)), "{refused}");
            assert!(fs.lookup(full, b"one more").is_err());
            assert_eq!((fs.cache.len(), fs.statfs().unwrap().free_inodes), before);
        }
        let made = fs.create(&ctx, full, b"one more", 0o644).unwrap();
        assert_eq!(fs.lookup(full, b"one more").unwrap().ino, made.ino);
        fs.close().unwrap();
    }
}
