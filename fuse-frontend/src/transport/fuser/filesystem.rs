//! Packs what `fuser` has unpacked, for the handlers that all transports share.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, INodeNo, IoctlFlags, KernelConfig,
    LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek,
    ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use pramfs_fuse_protocol::flags::{self, FsyncFlags, InitFlags};
use pramfs_fuse_protocol::wire::*;
use pramfs_fuse_protocol::{Data, Extensions, Operation};

use super::reply::Form;
use super::unpack::Changes;
use crate::adapter::{Adapter, MAX_BACKGROUND, MAX_REQUEST};

/// The file system that `fuser` serves.
pub(super) struct Server(pub Arc<Adapter>);

impl Server {
    fn serve(&self, req: &Request, node: INodeNo, asked: Operation<'_>, reply: impl Into<Form>) {
        let header = InHeader {
            unique: req.unique().0,
            nodeid: node.0,
            uid: req.uid(),
            gid: req.gid(),
            pid: req.pid(),
            ..InHeader::default()
        };
        self.0.serve_request(&header, asked, reply.into());
    }
}

/// `fuser` asks for an extension that is not there.
const NO_EXTENSIONS: Extensions<'static> = Extensions {
    groups: None,
    contexts: None,
};

fn read_in(fh: FileHandle, offset: u64, size: u32) -> ReadIn {
    ReadIn {
        fh: fh.0,
        offset,
        size,
        ..ReadIn::default()
    }
}

fn fsync_in(fh: FileHandle, data_only: bool) -> FsyncIn {
    let mut fsync_flags = FsyncFlags::empty();
    fsync_flags.set(FsyncFlags::FDATASYNC, data_only);
    FsyncIn {
        fh: fh.0,
        fsync_flags,
        padding: 0,
    }
}

impl Filesystem for Server {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let offered = InitFlags::from_bits_retain(config.capabilities().bits());
        let missing = self.0.required() - offered;
        if !missing.is_empty() {
            let why = format!("the kernel does not offer {missing:?}");
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let wanted = fuser::InitFlags::from_bits_retain((offered & self.0.wanted()).bits());
        if let Err(refused) = config.add_capabilities(wanted) {
            tracing::warn!("the kernel does not offer {refused:?}");
        }
        // These fail only with the nearest value that works.
        if let Err(nearest) = config.set_max_write(MAX_REQUEST) {
            tracing::warn!("requests are limited to {nearest} bytes");
        }
        if config.set_max_background(MAX_BACKGROUND).is_err() {
            tracing::warn!("the limit of background requests stays at its default");
        }
        tracing::debug!(
            "kernel ABI {}, capabilities in use: {wanted:?}",
            config.kernel_abi()
        );
        self.0.note_offer(offered);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.as_bytes();
        self.serve(req, parent, Operation::Lookup { name }, reply);
    }

    // `fuser` splits a batch of forgets into single ones.
    fn forget(&self, req: &Request, ino: INodeNo, nlookup: u64) {
        self.serve(req, ino, Operation::Forget { nlookup }, Form::None);
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let arg = MknodIn {
            mode,
            rdev,
            umask,
            padding: 0,
        };
        let asked = Operation::Mknod {
            arg,
            name: name.as_bytes(),
            extensions: NO_EXTENSIONS,
        };
        self.serve(req, parent, asked, reply);
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let asked = Operation::Mkdir {
            arg: MkdirIn { mode, umask },
            name: name.as_bytes(),
            extensions: NO_EXTENSIONS,
        };
        self.serve(req, parent, asked, reply);
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let asked = Operation::Symlink {
            name: link_name.as_bytes(),
            target: target.as_os_str().as_bytes(),
            extensions: NO_EXTENSIONS,
        };
        self.serve(req, parent, asked, reply);
    }

    fn link(
        &self,
        req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        let asked = Operation::Link {
            oldnodeid: ino.0,
            name: newname.as_bytes(),
        };
        self.serve(req, newparent, asked, reply);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes();
        self.serve(req, parent, Operation::Unlink { name }, reply);
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes();
        self.serve(req, parent, Operation::Rmdir { name }, reply);
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let asked = Operation::Rename {
            newdir: newparent.0,
            flags: flags.bits(),
            name: name.as_bytes(),
            newname: newname.as_bytes(),
        };
        self.serve(req, parent, asked, reply);
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        self.serve(req, ino, Operation::Readlink, reply);
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.serve(req, ino, Operation::Getattr(GetattrIn::default()), reply);
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changes = Changes {
            mode,
            uid,
            gid,
            size,
            atime,
            mtime,
            ctime,
        };
        self.serve(req, ino, Operation::Setattr(changes.pack()), reply);
    }

    fn statfs(&self, req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.serve(req, ino, Operation::Statfs, reply);
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let arg = CreateIn {
            flags: flags.cast_unsigned(),
            mode,
            umask,
            ..CreateIn::default()
        };
        let asked = Operation::Create {
            arg,
            name: name.as_bytes(),
            extensions: NO_EXTENSIONS,
        };
        self.serve(req, parent, asked, reply);
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let arg = OpenIn {
            flags: flags.0.cast_unsigned(),
            ..OpenIn::default()
        };
        self.serve(req, ino, Operation::Open(arg), reply);
    }

    fn release(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let arg = ReleaseIn {
            fh: fh.0,
            ..ReleaseIn::default()
        };
        self.serve(req, ino, Operation::Release(arg), reply);
    }

    fn flush(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.serve(req, ino, Operation::Flush(FlushIn::default()), reply);
    }

    fn fsync(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.serve(req, ino, Operation::Fsync(fsync_in(fh, datasync)), reply);
    }

    fn opendir(&self, req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.serve(req, ino, Operation::Opendir(OpenIn::default()), reply);
    }

    fn releasedir(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.serve(req, ino, Operation::Releasedir(ReleaseIn::default()), reply);
    }

    fn fsyncdir(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.serve(req, ino, Operation::Fsyncdir(fsync_in(fh, datasync)), reply);
    }

    fn read(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.serve(req, ino, Operation::Read(read_in(fh, offset, size)), reply);
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let arg = WriteIn {
            fh: fh.0,
            offset,
            size: data.len() as u32,
            write_flags: flags::WriteFlags::from_bits_retain(write_flags.bits()),
            flags: flags.0.cast_unsigned(),
            ..WriteIn::default()
        };
        let data = Data::Whole(data);
        self.serve(req, ino, Operation::Write { arg, data }, reply);
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let arg = FallocateIn {
            fh: fh.0,
            offset,
            length,
            mode: mode.cast_unsigned(),
            padding: 0,
        };
        self.serve(req, ino, Operation::Fallocate(arg), reply);
    }

    fn lseek(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let arg = LseekIn {
            fh: fh.0,
            offset: offset.cast_unsigned(),
            whence: whence.cast_unsigned(),
            padding: 0,
        };
        self.serve(req, ino, Operation::Lseek(arg), reply);
    }

    fn copy_file_range(
        &self,
        req: &Request,
        ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let arg = CopyFileRangeIn {
            fh_in: fh_in.0,
            off_in: offset_in,
            nodeid_out: ino_out.0,
            fh_out: fh_out.0,
            off_out: offset_out,
            len,
            flags: flags.bits(),
        };
        self.serve(req, ino_in, Operation::CopyFileRange(arg), reply);
    }

    // `fuser` packs the entries itself, into a buffer of the size that the kernel asks for.

    fn readdir(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let asked = Operation::Readdir(read_in(fh, offset, 0));
        self.serve(req, ino, asked, reply);
    }

    fn readdirplus(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let asked = Operation::Readdirplus(read_in(fh, offset, 0));
        self.serve(req, ino, asked, reply);
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let arg = SetxattrIn {
            size: value.len() as u32,
            flags: flags.cast_unsigned(),
            ..SetxattrIn::default()
        };
        let name = name.as_bytes();
        self.serve(req, ino, Operation::Setxattr { arg, name, value }, reply);
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let name = name.as_bytes();
        self.serve(req, ino, Operation::Getxattr { size, name }, reply);
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.serve(req, ino, Operation::Listxattr { size }, reply);
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes();
        self.serve(req, ino, Operation::Removexattr { name }, reply);
    }

    fn ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        out_size: u32,
        reply: ReplyIoctl,
    ) {
        let arg = IoctlIn {
            fh: fh.0,
            flags: flags::IoctlFlags::from_bits_retain(flags.bits()),
            cmd,
            arg: 0,
            in_size: in_data.len() as u32,
            out_size,
        };
        let data = Data::Whole(in_data);
        self.serve(req, ino, Operation::Ioctl { arg, data }, reply);
    }

    fn poll(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _ph: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        self.serve(req, ino, Operation::Poll(PollIn::default()), reply);
    }
}
