//! A minimal FUSE server: the competitor that shows the cost of the kernel, /dev/fuse
//! and the `fuser` crate alone.
//!
//! It has one file, `data`, in preallocated memory of the same kind as a pramfs region
//! (a mapped file on tmpfs), and empty files in a hash map. Nothing is durable, nothing
//! is checked, no times are kept. Init flags, open flags, timeouts of names and
//! attributes, and the number of threads are those of `mount.pramfs`. So a difference
//! between the two comes from the servers' work.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Result;
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, SessionACL, TimeOrNow,
    WriteFlags,
};

use crate::sys::Mapping;

/// Name of the one file with contents.
pub const DATA: &str = "data";
const DATA_INO: INodeNo = INodeNo(2);

/// How long the kernel may cache names and attributes, as with `mount.pramfs`.
const TTL: Duration = Duration::from_secs(86_400);

/// Flags that `mount.pramfs` requests of the kernel.
const WANTED: InitFlags = InitFlags::FUSE_ASYNC_READ
    .union(InitFlags::FUSE_ASYNC_DIO)
    .union(InitFlags::FUSE_BIG_WRITES)
    .union(InitFlags::FUSE_MAX_PAGES)
    .union(InitFlags::FUSE_PARALLEL_DIROPS)
    .union(InitFlags::FUSE_DO_READDIRPLUS)
    .union(InitFlags::FUSE_READDIRPLUS_AUTO)
    .union(InitFlags::FUSE_EXPORT_SUPPORT)
    .union(InitFlags::FUSE_CACHE_SYMLINKS)
    .union(InitFlags::FUSE_EXPLICIT_INVAL_DATA)
    .union(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP)
    .union(InitFlags::FUSE_HAS_IOCTL_DIR);

/// Its maximum request size and number of background requests.
const MAX_REQUEST: u32 = 1 << 20;
const MAX_BACKGROUND: u16 = 64;

struct Minimal {
    data: Mapping,
    names: Mutex<HashMap<OsString, INodeNo>>,
    next: AtomicU64,
}

fn attr(ino: INodeNo, kind: FileType, size: u64) -> FileAttr {
    FileAttr {
        ino,
        size,
        blocks: size.div_ceil(512),
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: if kind == FileType::Directory {
            0o755
        } else {
            0o644
        },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Minimal {
    fn attr_of(&self, ino: INodeNo) -> FileAttr {
        match ino {
            INodeNo::ROOT => attr(ino, FileType::Directory, 0),
            DATA_INO => attr(ino, FileType::RegularFile, self.data.len() as u64),
            _ => attr(ino, FileType::RegularFile, 0),
        }
    }

    fn names(&self) -> std::sync::MutexGuard<'_, HashMap<OsString, INodeNo>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, name: &OsStr) -> Option<INodeNo> {
        if name == DATA {
            Some(DATA_INO)
        } else {
            self.names().get(name).copied()
        }
    }

    /// Returns the part of a request that lies in the file.
    fn clip(&self, offset: u64, len: usize) -> std::ops::Range<usize> {
        let size = self.data.len();
        let start = usize::try_from(offset).map_or(size, |o| o.min(size));
        start..size.min(start + len)
    }
}

impl Filesystem for Minimal {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let offered = WANTED & config.capabilities();
        config
            .add_capabilities(offered)
            .map_err(|f| io::Error::other(format!("the kernel refuses {f:?}")))?;
        let nearest = |n: u64| io::Error::other(format!("only {n} is possible"));
        config
            .set_max_write(MAX_REQUEST)
            .map_err(|n| nearest(n.into()))?;
        config
            .set_max_background(MAX_BACKGROUND)
            .map_err(|n| nearest(n.into()))?;
        Ok(())
    }

    fn lookup(&self, _req: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.find(name) {
            Some(ino) => reply.entry(&TTL, &self.attr_of(ino), Generation(0)),
            // The kernel also caches that a name does not exist.
            None => {
                let nothing = attr(INodeNo(0), FileType::RegularFile, 0);
                reply.entry(&TTL, &nothing, Generation(0));
            }
        }
    }

    fn forget(&self, _req: &Request, _ino: INodeNo, _nlookup: u64) {}

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attr_of(ino));
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<std::time::SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<std::time::SystemTime>,
        _chgtime: Option<std::time::SystemTime>,
        _bkuptime: Option<std::time::SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.attr(&TTL, &self.attr_of(ino));
    }

    fn open(&self, _req: &Request, _ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), open_flags(flags.0));
    }

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
        if ino == DATA_INO {
            self.data
                .lend(self.clip(offset, size as usize), |bytes| reply.data(bytes));
        } else {
            reply.data(&[]);
        }
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let range = self.clip(offset, data.len());
        if ino != DATA_INO || range.len() < data.len() {
            return reply.error(Errno::ENOSPC);
        }
        self.data.copy_in(range.start, data);
        reply.written(data.len() as u32);
    }

    fn create(
        &self,
        _req: &Request,
        _parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let ino = INodeNo(self.next.fetch_add(1, Ordering::Relaxed));
        self.names().insert(name.to_owned(), ino);
        reply.created(
            &TTL,
            &self.attr_of(ino),
            Generation(0),
            FileHandle(0),
            open_flags(flags),
        );
    }

    fn unlink(&self, _req: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        match self.names().remove(name) {
            Some(_) => reply.ok(),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn readdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if offset == 0 && !reply.add(INodeNo::ROOT, 1, FileType::Directory, ".") {
            let _ = reply.add(DATA_INO, 2, FileType::RegularFile, DATA);
        }
        reply.ok();
    }
}

/// The flags of `mount.pramfs` for an open in its default mode (`cache=auto`).
fn open_flags(flags: i32) -> FopenFlags {
    let cached = if flags & libc::O_DIRECT != 0 {
        FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
    } else {
        FopenFlags::FOPEN_KEEP_CACHE
    };
    cached | FopenFlags::FOPEN_NOFLUSH
}

/// Serves until unmounted.
///
/// # Errors
/// If the memory or the mount is refused.
pub fn serve(mount_point: &Path, memory: &Path, threads: usize) -> Result<()> {
    let file = File::options().read(true).write(true).open(memory)?;
    let size = usize::try_from(file.metadata()?.len())?;
    let fs = Minimal {
        data: Mapping::of_file(&file, size, true, true)?,
        names: Mutex::new(HashMap::new()),
        next: AtomicU64::new(16),
    };
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("pramfs-bench-minimal".into()),
        MountOption::DefaultPermissions,
    ];
    config.acl = SessionACL::All;
    config.n_threads = Some(threads);
    config.clone_fd = threads > 1;
    fuser::mount(fs, mount_point, &config)?;
    Ok(())
}
