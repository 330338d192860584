//! Maps each request to its handler.

use std::borrow::Cow;
use std::cell::Cell;

use pramfs_fuse_protocol::flags::FsyncFlags;
use pramfs_fuse_protocol::wire::InHeader;
use pramfs_fuse_protocol::{Data, Errno, Operation};

use super::Adapter;
use super::answer::{Answer, Reply};
use super::convert::{Handle, Node};
use super::counts::Noted;

/// Returns data in one piece.
fn whole(data: Data<'_>) -> Cow<'_, [u8]> {
    match data.as_slice() {
        Some(bytes) => Cow::Borrowed(bytes),
        None => Cow::Owned(data.to_vec()),
    }
}

impl Adapter {
    /// Serves a request, and answers it before this returns.
    pub fn serve_request(&self, header: &InHeader, asked: Operation<'_>, reply: impl Reply) {
        let begun = self.counts.begin(asked.opcode());
        let errno = Cell::new(0);
        let reply = Noted {
            reply,
            errno: &errno,
        };
        self.serve_uncounted(header, asked, reply);
        self.counts.end(begun, header.nodeid, errno.get());
    }

    /// Serves a request as [`serve_request`](Self::serve_request) does, without counting it. Public
    /// for the measurement of what the counts cost.
    #[doc(hidden)]
    #[inline]
    pub fn serve_uncounted(&self, header: &InHeader, asked: Operation<'_>, reply: impl Reply) {
        match &self.takeover {
            None => self.dispatch(header, asked, reply),
            Some(memory) => self.dispatch_noted(memory, header, asked, reply),
        }
    }

    /// Calls the handler.
    pub(super) fn dispatch(&self, header: &InHeader, asked: Operation<'_>, reply: impl Reply) {
        let node = Node(header.nodeid);
        match asked {
            // Names: namespace.rs
            Operation::Lookup { name } => self.on_lookup(node, name, reply),
            Operation::Forget { nlookup } => {
                self.on_forget(node, nlookup);
                reply.dismiss();
            }
            Operation::BatchForget(list) => {
                for one in list.iter() {
                    self.on_forget(Node(one.nodeid), one.nlookup);
                }
                reply.dismiss();
            }
            Operation::Mknod {
                arg,
                name,
                extensions,
            } => self.on_mknod(header, &arg, name, extensions, reply),
            Operation::Mkdir {
                arg,
                name,
                extensions,
            } => self.on_mkdir(header, &arg, name, extensions, reply),
            Operation::Symlink {
                name,
                target,
                extensions,
            } => self.on_symlink(header, name, target, extensions, reply),
            Operation::Link { oldnodeid, name } => {
                self.on_link(Node(oldnodeid), node, name, reply);
            }
            Operation::Unlink { name } => self.on_unlink(node, name, reply),
            Operation::Rmdir { name } => self.on_rmdir(node, name, reply),
            Operation::Rename {
                newdir,
                flags,
                name,
                newname,
            } => {
                let (from, to) = ((node, name), (Node(newdir), newname));
                self.on_rename(header, from, to, flags, reply);
            }
            Operation::Readlink => self.on_readlink(node, reply),

            // Attributes: attributes.rs
            Operation::Getattr(_) => self.on_getattr(node, reply),
            Operation::Statx(_) => self.on_statx(node, reply),
            Operation::Setattr(arg) => self.on_setattr(header, &arg, reply),
            Operation::Statfs => self.on_statfs(reply),

            // Opening and closing: open.rs
            Operation::Create {
                arg,
                name,
                extensions,
            } => self.on_create(header, &arg, name, extensions, reply),
            Operation::Tmpfile {
                arg, extensions, ..
            } => self.on_tmpfile(header, &arg, extensions, reply),
            Operation::Open(arg) => self.on_open(node, &arg, reply),
            Operation::Release(arg) => self.on_release(node, Handle(arg.fh), reply),
            Operation::Opendir(_) => self.on_opendir(node, reply),
            Operation::Releasedir(_) => self.on_releasedir(node, reply),
            Operation::Fsync(arg) => {
                let data_only = arg.fsync_flags.contains(FsyncFlags::FDATASYNC);
                self.on_fsync("fsync", node, data_only, reply);
            }
            Operation::Fsyncdir(arg) => {
                let data_only = arg.fsync_flags.contains(FsyncFlags::FDATASYNC);
                self.on_fsync("fsyncdir", node, data_only, reply);
            }
            Operation::Syncfs => self.on_syncfs(reply),

            // Contents: data.rs
            Operation::Read(arg) => self.on_read(node, arg.offset, arg.size, reply),
            Operation::Write { arg, data } => self.on_write(header, &arg, &whole(data), reply),
            Operation::Fallocate(arg) => {
                let mode = arg.mode.cast_signed();
                self.on_fallocate(header, node, arg.offset, arg.length, mode, reply);
            }
            Operation::Lseek(arg) => {
                let (offset, whence) = (arg.offset.cast_signed(), arg.whence.cast_signed());
                self.on_lseek(node, offset, whence, reply);
            }
            Operation::CopyFileRange(arg) => {
                // The limit of one request fits 32 bits.
                let written = |copied| Answer::Written(copied as u32);
                self.on_copy_file_range(header, &arg, reply, written);
            }
            Operation::CopyFileRange64(arg) => {
                self.on_copy_file_range(header, &arg, reply, Answer::Copied);
            }

            // Directories: dir.rs
            Operation::Readdir(arg) => self.on_readdir(node, arg.offset, arg.size, reply),
            Operation::Readdirplus(arg) => self.on_readdirplus(node, arg.offset, arg.size, reply),

            // Extended attributes: xattr.rs
            Operation::Setxattr { arg, name, value } => {
                self.on_setxattr(header, &arg, name, value, reply);
            }
            Operation::Getxattr { size, name } => self.on_getxattr(node, name, size, reply),
            Operation::Listxattr { size } => self.on_listxattr(header, node, size, reply),
            Operation::Removexattr { name } => self.on_removexattr(node, name, reply),

            Operation::Ioctl { arg, data } => {
                let of = (node, Handle(arg.fh));
                self.on_ioctl(header, of, arg.cmd, &whole(data), arg.out_size, reply);
            }

            Operation::Destroy => reply.send(Answer::Done),
            Operation::NotifyReply { .. } => reply.dismiss(),
            // ENOSYS: the kernel does not ask again, and does it itself.
            //
            // Nothing is left to do at `close`, because the kernel writes dirty pages back
            // before a flush. Regular files are always ready for `poll`. Locks are the
            // kernel's, as is the check of permissions. An interrupted request ends soon by itself.
            Operation::Flush(_)
            | Operation::Poll(_)
            | Operation::Getlk(_)
            | Operation::Setlk(_)
            | Operation::Setlkw(_)
            | Operation::Access { .. }
            | Operation::Interrupt { .. }
            | Operation::Bmap(_)
            | Operation::Setupmapping(_)
            | Operation::Removemapping(_) => reply.send(Answer::Refused(Errno::ENOSYS)),
            Operation::Init(_) => {
                tracing::warn!("the kernel negotiates a second time; refused");
                reply.send(Answer::Refused(Errno::EIO));
            }
        }
    }
}
