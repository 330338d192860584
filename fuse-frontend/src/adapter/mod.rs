//! Translates kernel requests into calls of [`pramfs::inode::Fs`].
//!
//! Purpose: unpack the request, call the engine, reply. This file maps each request to
//! its handler; each family of requests has its own file.
//!
//! Invariants:
//! * every request is answered exactly once, even if its handler panics (EIO) or an
//!   earlier one has panicked (EIO at once, until the region is mounted again);
//! * each entry reported to the kernel, other than `.` and `..`, holds one reference on
//!   its inode in the engine; `forget` releases it;
//! * only capabilities that the kernel offers are requested, and none that this version
//!   of `fuser` cannot handle (`init.rs`).
//!
//! Not here: permissions and locks, which are the kernel's (`default_permissions`, and
//! the ACLs that it requests). The engine does everything else, including the umask,
//! because a default ACL replaces it.

mod attributes;
mod caller;
mod convert;
mod data;
mod dir;
mod enospc_retry;
mod init;
mod ioctl;
mod lent;
mod listings;
mod namespace;
mod open;
mod serve;
mod xattr;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use convert::creator;
use enospc_retry::PendingFrees;
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, INodeNo, IoctlFlags,
    KernelConfig, LockOwner, Notifier, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};
use pramfs::inode::{Fs, Repeats};

use crate::direct::{Direct, Opens};

/// How long the kernel may cache names and attributes. While the file system is mounted,
/// all changes pass through the kernel, and it drops entries that its own requests
/// change. So the value means "until invalidated".
const CACHE_TTL: Duration = Duration::from_secs(86_400);

/// Whether the kernel's page cache serves reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheMode {
    /// The page cache serves hot reads; writes go through it to the medium
    /// before they return.
    #[default]
    Auto,
    /// Every read and write reaches the medium.
    None,
}

/// One mounted file system, as `fuser` sees it.
pub struct Adapter {
    fs: Arc<Fs>,
    cache: CacheMode,
    offers: init::Offers,
    removals: PendingFrees,
    /// Set by the first panic; from then on every request gets EIO.
    failed: AtomicBool,
    /// Medium failures that have been logged.
    repeats: Mutex<Repeats>,
    kernel: Arc<OnceLock<Notifier>>,
    direct: Option<Arc<Direct>>,
    opens: Option<Arc<Opens>>,
}

impl Adapter {
    /// Returns an adapter for `fs`.
    pub fn new(fs: Arc<Fs>, cache: CacheMode) -> Adapter {
        Adapter {
            fs,
            cache,
            offers: init::Offers::default(),
            removals: PendingFrees::default(),
            failed: AtomicBool::new(false),
            repeats: Mutex::default(),
            kernel: Arc::default(),
            direct: None,
            opens: None,
        }
    }

    /// Keeps the files that are stored to directly out of the page cache. Such a mount has
    /// no shared mappings of files that are opened with O_DIRECT.
    #[must_use]
    pub fn with_opens(mut self, opens: Option<Arc<Opens>>) -> Adapter {
        self.opens = opens;
        self
    }

    /// Issues tickets for direct access.
    #[must_use]
    pub fn with_direct(mut self, direct: Option<Arc<Direct>>) -> Adapter {
        self.direct = direct;
        self
    }

    /// Takes the slot for the notifier, which tells the kernel of changes that it cannot
    /// know. Until it is filled, no notification is sent.
    #[must_use]
    pub fn with_kernel(mut self, kernel: Arc<OnceLock<Notifier>>) -> Adapter {
        self.kernel = kernel;
        self
    }

    /// Makes the kernel ask for the attributes of a node again.
    fn attributes_have_changed(&self, node: INodeNo) {
        // A negative offset leaves the page cache alone.
        if let Some(kernel) = self.kernel.get()
            && let Err(error) = kernel.inval_inode(node, -1, 0)
        {
            tracing::debug!("attributes of node {} stay cached: {error}", node.0);
        }
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.offers = init::negotiate(config, self.opens.is_none());
        Ok(())
    }

    // Names: namespace.rs

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.on_lookup(parent, name.as_bytes(), reply);
    }

    // `fuser` splits a batch of forgets into single ones.
    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.on_forget(ino, nlookup);
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
        self.on_mknod(
            &creator(req, umask),
            parent,
            name.as_bytes(),
            mode,
            rdev,
            reply,
        );
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
        self.on_mkdir(&creator(req, umask), parent, name.as_bytes(), mode, reply);
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        self.on_symlink(
            req,
            parent,
            link_name.as_bytes(),
            target.as_os_str().as_bytes(),
            reply,
        );
    }

    fn link(
        &self,
        _req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        self.on_link(ino, newparent, newname.as_bytes(), reply);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.on_unlink(parent, name.as_bytes(), reply);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.on_rmdir(parent, name.as_bytes(), reply);
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
        self.on_rename(
            req,
            (parent, name.as_bytes()),
            (newparent, newname.as_bytes()),
            flags,
            reply,
        );
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        self.on_readlink(ino, reply);
    }

    // Attributes: attributes.rs

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.on_getattr(ino, reply);
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
        let set = convert::set_attr(mode, uid, gid, size, atime, mtime, ctime);
        self.on_setattr(req, ino, &set, reply);
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.on_statfs(reply);
    }

    // Opening and closing: open.rs

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
        self.on_create(
            &creator(req, umask),
            parent,
            name.as_bytes(),
            mode,
            flags,
            reply,
        );
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.on_open(ino, flags.0, reply);
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.on_release(ino, handle, reply);
    }

    /// Nothing is left to do at `close`, because the kernel writes dirty pages back before
    /// this request. After ENOSYS the kernel never asks again.
    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.on_fsync("fsync", ino, datasync, reply);
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.on_opendir(ino, reply);
    }

    fn releasedir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.on_releasedir(ino, reply);
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.on_fsync("fsyncdir", ino, datasync, reply);
    }

    // Contents: data.rs

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.on_read(ino, offset, size, reply);
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.on_write(req, ino, (offset, data), write_flags, flags.0, reply);
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.on_fallocate(req, ino, offset, length, mode, reply);
    }

    fn lseek(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.on_lseek(ino, offset, whence, reply);
    }

    fn copy_file_range(
        &self,
        req: &Request,
        ino_in: INodeNo,
        _fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        self.on_copy_file_range(
            req,
            (ino_in, offset_in),
            (ino_out, offset_out),
            len,
            flags.bits(),
            reply,
        );
    }

    // Directories: dir.rs

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        self.on_readdir(ino, offset, reply);
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.on_readdirplus(ino, offset, reply);
    }

    // Extended attributes: xattr.rs

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
        self.on_setxattr(req, ino, name.as_bytes(), value, flags, reply);
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.on_getxattr(ino, name.as_bytes(), size, reply);
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.on_listxattr(req, ino, size, reply);
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.on_removexattr(ino, name.as_bytes(), reply);
    }

    // The rest

    fn ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        out_size: u32,
        reply: ReplyIoctl,
    ) {
        self.on_ioctl(req, (ino, fh), cmd, in_data, out_size, reply);
    }

    /// Regular files are always ready. After ENOSYS the kernel never asks again.
    fn poll(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _ph: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }
}
