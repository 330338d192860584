//! getattr, setattr and statfs.

use fuser::{INodeNo, ReplyAttr, ReplyStatfs, Request};
use pramfs::inode::Fs;
use pramfs::{
    FileType,
    inode::{Attr, Ino, SetAttr},
};
use pramfs_medium::media::inode::{FL_APPEND, FL_IMMUTABLE};

use super::Adapter;
use super::caller::{CAP_FOWNER, Caller};
use super::convert::{attr, ino};
use super::namespace::attr_ttl;
use super::serve::Served;

fn send_attr(reply: ReplyAttr, of: Attr) {
    reply.attr(&attr_ttl(&of), &attr(&of));
}

/// Takes set-user-id and set-group-id away from a file that is about to be
/// changed, unless who asks may keep them. The kernel leaves this to us, as
/// HANDLE_KILLPRIV_V2 is negotiated: it says so with a write
/// (FUSE_WRITE_KILL_SUIDGID), but not, or not so that the transport hands it on,
/// with truncations, fallocate and copy_file_range.
///
/// A change that is going to be refused takes nothing away. `grows`: it is one
/// that a file which can only grow allows.
pub(super) fn drop_rights(fs: &Fs, req: &Request, ino: Ino, grows: bool) -> Served<()> {
    const OF_GROUP: u32 = libc::S_ISGID | libc::S_IXGRP;
    let Attr { perm, flags, .. } = fs.getattr(ino)?;
    let has = perm & libc::S_ISUID != 0 || perm & OF_GROUP == OF_GROUP;
    let refused = flags & FL_IMMUTABLE != 0 || flags & FL_APPEND != 0 && !grows;
    if has && !refused && !Caller::keeps_rights(req) {
        fs.strip_suid(ino)?;
    }
    Ok(())
}

impl Adapter {
    pub(super) fn on_getattr(&self, node: INodeNo, reply: ReplyAttr) {
        let work = |fs: &Fs, _: &mut _| Ok(fs.getattr(ino(node)?)?);
        self.serve("getattr", node, reply, work, send_attr);
    }

    pub(super) fn on_setattr(&self, req: &Request, node: INodeNo, set: &SetAttr, reply: ReplyAttr) {
        let work = |fs: &Fs, _: &mut _| {
            let (ino, is_member) = (ino(node)?, Caller::in_group(req));
            if set.size.is_some() {
                drop_rights(fs, req, ino, false)?;
            }
            // With nothing to set comes what is to lose its rights and nothing
            // else: an overlay has that done before it writes. So does a chown
            // to nobody, which anybody can ask for who finds the file: from them
            // it takes nothing.
            if *set == SetAttr::default() {
                let owner = fs.getattr(ino)?.uid;
                if req.uid() == owner || Caller::of(req).can(CAP_FOWNER) {
                    fs.strip_suid(ino)?;
                }
            }
            let attr = fs.setattr(&Caller::credentials(req, &is_member), ino, set)?;
            if attr.kind == FileType::Directory {
                self.listing_is_due(fs, ino);
            }
            Ok(attr)
        };
        self.serve("setattr", node, reply, work, send_attr);
    }

    pub(super) fn on_statfs(&self, reply: ReplyStatfs) {
        self.serve(
            "statfs",
            INodeNo::ROOT,
            reply,
            |fs, _| Ok(fs.statfs()?),
            |reply, of| {
                reply.statfs(
                    of.blocks,
                    of.free,
                    of.available_to_data(),
                    of.inodes,
                    of.free_inodes,
                    of.block_size,
                    of.name_max,
                    of.block_size,
                );
            },
        );
    }
}
