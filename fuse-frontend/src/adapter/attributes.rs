//! getattr, setattr and statfs.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pramfs::inode::{Fs, SetTime, Time};
use pramfs::{
    FileType,
    inode::{Attr, Ino, SetAttr},
};
use pramfs_fuse_protocol::flags::SetattrValid;
use pramfs_fuse_protocol::wire::{AttrOut, InHeader, Kstatfs, SetattrIn, StatxOut};
use pramfs_medium::media::inode::{FL_APPEND, FL_IMMUTABLE, FL_SYNC};

use super::Adapter;
use super::answer::{Answer, Reply};
use super::caller::Caller;
use super::convert::{Node, attr, ino, set_attr, statx};
use super::serve::Served;

/// Clears set-user-ID and set-group-ID of a file before a change, unless the caller may
/// keep them. With HANDLE_KILLPRIV_V2 the kernel leaves this to the server. It flags a
/// write (FUSE_WRITE_KILL_SUIDGID). For fallocate and copy_file_range it sends no flag, and
/// for truncate one that `transport=fuser` does not pass on.
///
/// A change that will be refused clears nothing. `grows`: an append-only file allows the
/// change.
pub(super) fn drop_rights(fs: &Fs, req: &InHeader, ino: Ino, grows: bool) -> Served<()> {
    drop_rights_unless(fs, ino, grows, || Caller::keeps_rights(req))
}

/// As [`drop_rights`], if `keeps` does not say that the caller may keep them. Asks only if there
/// is something to clear.
fn drop_rights_unless(fs: &Fs, ino: Ino, grows: bool, keeps: impl FnOnce() -> bool) -> Served<()> {
    const OF_GROUP: u32 = libc::S_ISGID | libc::S_IXGRP;
    let Attr { perm, flags, .. } = fs.getattr(ino)?;
    let has = perm & libc::S_ISUID != 0 || perm & OF_GROUP == OF_GROUP;
    let refused = flags & FL_IMMUTABLE != 0 || flags & FL_APPEND != 0 && !grows;
    if has && !refused && !keeps() {
        fs.strip_suid(ino)?;
    }
    Ok(())
}

/// Whether this has the form of the kernel's own flush of the times of held back writes. A program
/// that sets the mtime alone asks in the same form.
fn looks_like_flush_of_times(arg: &SetattrIn) -> bool {
    arg.valid.difference(SetattrValid::FH) == SetattrValid::MTIME | SetattrValid::CTIME
}

/// Whether a time that is to be set is older than this one.
fn is_older(new: Option<SetTime>, than: Time) -> bool {
    match new {
        Some(SetTime::At(at)) => (at.sec, at.nsec) < (than.sec, than.nsec),
        Some(SetTime::Now) | None => false,
    }
}

/// Files with +i or +a whose held back bytes have come after the flag was set. The kernel flushes
/// their times next: a refusal would fail the fsync or close of a program that had written before.
/// Any other change of these times is refused.
#[derive(Debug, Default)]
pub(super) struct LateWrites(Mutex<BTreeSet<u64>>);

impl LateWrites {
    pub(super) fn note(&self, ino: Ino) {
        self.lock().insert(ino.0);
    }

    /// Whether there was one. Forgets it.
    fn take(&self, ino: Ino) -> bool {
        self.lock().remove(&ino.0)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Adapter {
    /// Sets the times of a file that a holder of a lease has stored to.
    fn note_stores(&self, fs: &Fs, ino: Ino) {
        match (fs.note_stores(ino), &self.opens) {
            (Ok(true), Some(opens)) => opens.note_stored(ino),
            (Ok(_), _) => {}
            // The request does not fail for it.
            (Err(error), _) => tracing::debug!("the times of {ino} stay as they are: {error}"),
        }
    }

    fn send_attr(&self, reply: impl Reply, of: &Attr) {
        reply.send(Answer::Attr(AttrOut {
            attr_valid: self.attr_ttl(of),
            attr: attr(of),
            ..AttrOut::default()
        }));
    }

    /// Returns the attributes of a node, with the times of direct stores.
    fn current_attr(&self, fs: &Fs, node: Node) -> Served<Attr> {
        let ino = ino(node)?;
        let written = self
            .opens
            .as_ref()
            .is_some_and(|opens| opens.is_written(ino));
        if written && !fs.is_read_only() {
            // In the times that this returns.
            self.note_stores(fs, ino);
        }
        Ok(fs.getattr(ino)?)
    }

    pub(super) fn on_getattr(&self, node: Node, reply: impl Reply) {
        let work = |fs: &Fs, _: &mut _| self.current_attr(fs, node);
        self.serve("getattr", node, reply, work, |reply, attr| {
            self.send_attr(reply, &attr)
        });
    }

    pub(super) fn on_statx(&self, node: Node, reply: impl Reply) {
        let work = |fs: &Fs, _: &mut _| self.current_attr(fs, node);
        self.serve("statx", node, reply, work, |reply, attr| {
            reply.send(Answer::Statx(StatxOut {
                attr_valid: self.attr_ttl(&attr),
                stat: statx(&attr),
                ..StatxOut::default()
            }))
        });
    }

    pub(super) fn on_setattr(&self, req: &InHeader, arg: &SetattrIn, reply: impl Reply) {
        let (node, set) = (Node(req.nodeid), set_attr(arg));
        // The kernel tells by a flag that the caller has no right to keep them. With overlayfs,
        // the caller is the user who mounted it, so `/proc` must confirm a missing flag.
        let told_to_clear = arg.valid.contains(SetattrValid::KILL_SUIDGID);
        let keeps_rights = || !told_to_clear && Caller::keeps_rights(req);
        let work = |fs: &Fs, _: &mut _| {
            let ino = ino(node)?;
            if set.size.is_some() {
                drop_rights_unless(fs, ino, false, keeps_rights)?;
            }
            // An empty setattr asks only to clear suid and sgid: overlayfs sends it before
            // a write. `chown(-1,-1)` sends the same request, and any user who can look
            // up the file may call it. So only the owner or CAP_FOWNER clears the bits. If the
            // kernel gives no ids, they belong to the program and not to overlayfs, and its
            // write clears the bits (`on_write`).
            if set == SetAttr::default() {
                let owner = fs.getattr(ino)?.uid;
                if Caller::may_clear_rights(req, owner) {
                    fs.strip_suid(ino)?;
                }
            }
            // The kernel itself clears sgid in a new mode.
            let (checked, asked) = (Caller::in_group_unless_checked(req), Caller::in_group(req));
            let is_member = |group| match set.perm {
                Some(_) => checked(group),
                None => asked(group),
            };
            if self.holds_writes_back() && looks_like_flush_of_times(arg) {
                let attr = fs.getattr(ino)?;
                // The file has the times of its write-back, or, with +S, of its last write.
                let keeps_times = match attr.flags {
                    kept if kept & (FL_IMMUTABLE | FL_APPEND) != 0 => self.late_writes.take(ino),
                    kept => kept & FL_SYNC != 0 && is_older(set.mtime, attr.mtime),
                };
                if keeps_times {
                    return Ok(attr);
                }
            }
            let attr = fs.setattr(&Caller::credentials(req, &is_member), ino, &set)?;
            if attr.kind == FileType::Directory {
                self.listing_is_due(fs, ino);
            }
            Ok(attr)
        };
        self.serve("setattr", node, reply, work, |reply, attr| {
            self.send_attr(reply, &attr)
        });
    }

    pub(super) fn on_statfs(&self, reply: impl Reply) {
        self.serve(
            "statfs",
            Node::ROOT,
            reply,
            |fs, _| Ok(fs.statfs()?),
            |reply, of| {
                reply.send(Answer::Statfs(Kstatfs {
                    blocks: of.blocks,
                    bfree: of.free,
                    bavail: of.available_to_data(),
                    files: of.inodes,
                    ffree: of.free_inodes,
                    bsize: of.block_size,
                    namelen: of.name_max,
                    frsize: of.block_size,
                    ..Kstatfs::default()
                }));
            },
        );
    }
}
