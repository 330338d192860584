//! Names: lookup and forget, and all requests that make, move or remove a name.

use std::sync::Arc;

use pramfs::{
    Error, FileType, RenameFlags,
    inode::{Attr, Credentials, Fs, Ino, InodeRef},
};
use pramfs_fuse_protocol::flags::InitFlags;
use pramfs_fuse_protocol::wire::{EntryOut, InHeader, MkdirIn, MknodIn};
use pramfs_fuse_protocol::{Errno, Extensions};

use super::Adapter;
use super::answer::{Answer, Reply};
use super::caller::{Caller, CallerIds};
use super::convert::{Node, attr as wire_attr, generation, ino, node, unpack_device};
use super::serve::{Refusal, Served};
use crate::direct::Opens;

/// An inode for a reply with an entry, with its reference. Sending the reply passes the
/// reference to the kernel's lookup count.
pub(super) type HeldEntry = (InodeRef, Attr);

/// Looks a name up. The NFS server asks for `.` and `..`, and for `.` of any type of file.
fn find(fs: &Fs, parent: Node, name: &[u8]) -> Served<HeldEntry> {
    let parent = ino(parent)?;
    if name != b"." {
        return Ok(fs.holding().lookup(parent, name)?);
    }
    let held = fs.hold(parent);
    let attr = fs.getattr(parent)?;
    // Removed. A program that has it open needs no lookup.
    if attr.nlink == 0 {
        return Err(Error::Stale(parent).into());
    }
    Ok((held, attr))
}

/// Returns the names and values of the security contexts that a new file gets.
pub(super) fn labels(extensions: Extensions<'_>) -> Vec<(&[u8], &[u8])> {
    let contexts = extensions.contexts;
    contexts.map_or_else(Vec::new, |contexts| contexts.iter().collect())
}

impl Adapter {
    /// Returns the mode of a new file. In a setgid directory, a caller outside the group of the
    /// directory makes no program with sgid.
    ///
    /// Since Linux 6.0 the kernel has cleared the bit before it asks, and knows the user namespaces
    /// that count. It offers CREATE_SUPP_GROUP since 6.3, which shows that.
    pub(super) fn mode_of_new(
        &self,
        fs: &Fs,
        req: &InHeader,
        parent: Ino,
        mode: u32,
    ) -> Served<u32> {
        const PROGRAM: u32 = libc::S_ISGID | libc::S_IXGRP;
        if mode & PROGRAM != PROGRAM || self.offers(InitFlags::CREATE_SUPP_GROUP) {
            return Ok(mode);
        }
        let dir = fs.getattr(parent)?;
        let keeps = dir.perm & libc::S_ISGID == 0 || Caller::in_group(req)(dir.gid);
        Ok(if keeps { mode } else { mode & !libc::S_ISGID })
    }

    /// Returns for how many seconds the kernel may cache attributes. It does not cache those of a file
    /// - with suid or sgid: a write by another user clears the bits without the kernel
    ///   noticing;
    /// - that is stored to directly, which changes its times.
    pub(super) fn attr_ttl(&self, attr: &Attr) -> u64 {
        let is_written = |opens: &Arc<Opens>| {
            let written = opens.is_written(attr.ino);
            if written {
                opens.note_told(attr.ino, attr.size);
            }
            written
        };
        let changes = attr.kind == FileType::Regular
            && (attr.perm & 0o6000 != 0 || self.opens.as_ref().is_some_and(is_written));
        match changes {
            true => 0,
            false => self.name_ttl(),
        }
    }

    /// Returns the entry of a node.
    pub(super) fn entry(&self, of: &Attr) -> EntryOut {
        EntryOut {
            nodeid: node(of.ino).0,
            generation: generation(of),
            entry_valid: self.name_ttl(),
            attr_valid: self.attr_ttl(of),
            attr: wire_attr(of),
            ..EntryOut::default()
        }
    }

    /// Sends an entry. The kernel may forget it as soon as it has the reply.
    pub(super) fn send_entry(&self, reply: impl Reply, (held, found): HeldEntry) {
        let entry = self.entry(&found);
        held.into_count();
        reply.send(Answer::Entry(entry));
    }

    pub(super) fn on_lookup(&self, parent: Node, name: &[u8], reply: impl Reply) {
        let work = |fs: &Fs, _: &mut _| match find(fs, parent, name) {
            Ok(found) => Ok(Some(found)),
            // A negative entry: the kernel caches that the name does not exist.
            Err(Refusal::Engine(Error::NotFound)) => Ok(None),
            Err(refusal) => Err(refusal),
        };
        self.serve("lookup", parent, reply, work, |reply, found| match found {
            Some(found) => self.send_entry(reply, found),
            None => reply.send(Answer::Entry(EntryOut {
                entry_valid: self.name_ttl(),
                ..EntryOut::default()
            })),
        });
    }

    pub(super) fn on_forget(&self, node: Node, lookups: u64) {
        self.quietly("forget", node, |fs| {
            if let Ok(ino) = ino(node) {
                self.removals.during(|| fs.forget(ino, lookups));
            }
        });
    }

    pub(super) fn on_mknod(
        &self,
        req: &InHeader,
        arg: &MknodIn,
        name: &[u8],
        extensions: Extensions<'_>,
        reply: impl Reply,
    ) {
        let (parent, labels) = (Node(req.nodeid), labels(extensions));
        let work = |fs: &Fs, _: &mut _| {
            let caller = CallerIds::of(req).creator(arg.umask)?;
            let (parent, rdev) = (ino(parent)?, unpack_device(arg.rdev));
            let mode = self.mode_of_new(fs, req, parent, arg.mode)?;
            let holding = fs.holding().with_labels(&labels);
            Ok(self
                .removals
                .wait_for_space(fs, || holding.mknod(&caller, parent, name, mode, rdev))?)
        };
        self.serve("mknod", parent, reply, work, |reply, made| {
            self.send_entry(reply, made)
        });
    }

    pub(super) fn on_mkdir(
        &self,
        req: &InHeader,
        arg: &MkdirIn,
        name: &[u8],
        extensions: Extensions<'_>,
        reply: impl Reply,
    ) {
        let (parent, labels) = (Node(req.nodeid), labels(extensions));
        let perm = arg.mode & 0o7777;
        let work = |fs: &Fs, _: &mut _| {
            let caller = CallerIds::of(req).creator(arg.umask)?;
            let parent = ino(parent)?;
            let holding = fs.holding().with_labels(&labels);
            Ok(self
                .removals
                .wait_for_space(fs, || holding.mkdir(&caller, parent, name, perm))?)
        };
        self.serve("mkdir", parent, reply, work, |reply, made| {
            self.send_entry(reply, made)
        });
    }

    pub(super) fn on_symlink(
        &self,
        req: &InHeader,
        name: &[u8],
        target: &[u8],
        extensions: Extensions<'_>,
        reply: impl Reply,
    ) {
        let (parent, labels) = (Node(req.nodeid), labels(extensions));
        let work = |fs: &Fs, _: &mut _| {
            let caller = CallerIds::of(req).creator(0)?;
            let parent = ino(parent)?;
            let holding = fs.holding().with_labels(&labels);
            Ok(self
                .removals
                .wait_for_space(fs, || holding.symlink(&caller, parent, name, target))?)
        };
        self.serve("symlink", parent, reply, work, |reply, made| {
            self.send_entry(reply, made)
        });
    }

    pub(super) fn on_link(&self, node: Node, parent: Node, name: &[u8], reply: impl Reply) {
        let work = |fs: &Fs, _: &mut _| {
            let (ino, parent) = (ino(node)?, ino(parent)?);
            Ok(self
                .removals
                .wait_for_space(fs, || fs.holding().link(ino, parent, name))?)
        };
        self.serve("link", node, reply, work, |reply, made| {
            self.send_entry(reply, made)
        });
    }

    pub(super) fn on_unlink(&self, parent: Node, name: &[u8], reply: impl Reply) {
        let work = |fs: &Fs, _: &mut _| {
            fs.unlink(ino(parent)?, name)?;
            self.removals.note_removed();
            Ok(())
        };
        self.serve("unlink", parent, reply, work, |reply, ()| {
            reply.send(Answer::Done)
        });
    }

    pub(super) fn on_rmdir(&self, parent: Node, name: &[u8], reply: impl Reply) {
        let work = |fs: &Fs, _: &mut _| {
            fs.rmdir(ino(parent)?, name)?;
            self.removals.note_removed();
            Ok(())
        };
        self.serve("rmdir", parent, reply, work, |reply, ()| {
            reply.send(Answer::Done)
        });
    }

    pub(super) fn on_rename(
        &self,
        req: &InHeader,
        from: (Node, &[u8]),
        to: (Node, &[u8]),
        flags: u32,
        reply: impl Reply,
    ) {
        let work = |fs: &Fs, _: &mut _| {
            let flags = rename_flags(flags)?;
            let (source, target) = (ino(from.0)?, ino(to.0)?);
            // The owner of the whiteout. Without one, the engine uses no credentials.
            let caller = match flags.whiteout {
                true => CallerIds::of(req).creator(0)?,
                false => Credentials::ROOT,
            };
            self.removals.wait_for_space(fs, || {
                fs.rename(&caller, source, from.1, target, to.1, flags)
            })?;
            self.removals.note_removed();
            self.note_moves(fs, (source, from.1), (target, to.1), flags.exchange);
            Ok(())
        };
        self.serve("rename", from.0, reply, work, |reply, ()| {
            reply.send(Answer::Done)
        });
    }

    /// Makes the kernel list again what has a new parent after a rename.
    pub(super) fn note_moves(
        &self,
        fs: &Fs,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        is_exchange: bool,
    ) {
        if from.0 != to.0 {
            self.has_moved(fs, to);
            if is_exchange {
                self.has_moved(fs, from);
            }
        }
    }

    pub(super) fn on_readlink(&self, node: Node, reply: impl Reply) {
        let work = |fs: &Fs, _: &mut _| Ok(fs.readlink(ino(node)?)?);
        self.serve("readlink", node, reply, work, |reply, target| {
            reply.send(Answer::Data(&target))
        });
    }
}

fn rename_flags(flags: u32) -> Served<RenameFlags> {
    let known = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT;
    if flags & !known != 0 {
        return Err(Refusal::Request(Errno::EINVAL, "rename with unknown flags"));
    }
    let noreplace = flags & libc::RENAME_NOREPLACE != 0;
    let exchange = flags & libc::RENAME_EXCHANGE != 0;
    let whiteout = flags & libc::RENAME_WHITEOUT != 0;
    if exchange && (noreplace || whiteout) {
        return Err(Refusal::Request(
            Errno::EINVAL,
            "rename with mutually exclusive flags",
        ));
    }
    Ok(RenameFlags {
        noreplace,
        exchange,
        whiteout,
    })
}
