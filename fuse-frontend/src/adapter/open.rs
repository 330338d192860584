//! create, open, release and fsync, and files without a name (O_TMPFILE).
//!
//! A file handle tells only how the file is open: every request names its node. Each open
//! file holds one reference on the inode.
//!
//! With `opens=kernel` ([`OpenedBy::Kernel`]) the answer to the first OPEN is ENOSYS. The kernel
//! then opens every file by itself, keeps its pages, and sends neither OPEN nor RELEASE; it
//! treats directories in the same way after OPENDIR. ENOSYS to CREATE makes it send MKNOD and
//! open the file. So:
//! * every handle is 0, and an open file holds no reference. The kernel's lookup count keeps the
//!   inode instead: FORGET comes after the last close, for a file without a name too;
//! * the checks below do not happen at open. Each request does its own: a write to an immutable
//!   file or a read-only file system is refused by the engine;
//! * a RELEASE, if one comes, must release nothing. (One may come for a file that the reply
//!   to TMPFILE has opened: whether it does depends on the version of the kernel, and on whether
//!   OPEN has been answered before.)

use pramfs::Error;
use pramfs::inode::{Fs, Ino, InodeRef, LeaseMode};
use pramfs_fuse_protocol::flags::{OpenInFlags, OpenOutFlags};
use pramfs_fuse_protocol::wire::{CreateIn, InHeader, OpenIn, OpenOut};
use pramfs_fuse_protocol::{Errno, Extensions};
use pramfs_medium::media::inode::{FL_APPEND, FL_IMMUTABLE, FL_SYNC};

use super::answer::{Answer, Reply};
use super::caller::CallerIds;
use super::convert::{Handle, Node, ino};
use super::namespace::{HeldEntry, labels};
use super::serve::{Refusal, Served};
use super::{Adapter, CacheMode, OpenedBy, stores};
use crate::direct::{OpenedHow, Opens};

/// Bit of a handle whose file is open for reading.
const READABLE: u64 = 1;
/// Bit of a handle whose file is open for writing.
const WRITABLE: u64 = 2;
/// Bit of a handle that counts among those that use the page cache.
const CACHED: u64 = 4;

/// Bit of a handle that counts among the others.
const DIRECT: u64 = 8;

/// Bit of a handle whose file is open with O_APPEND.
const APPENDING: u64 = 16;

/// Returns the handle of a file opened with these flags.
fn handle(flags: i32, counted: Counted) -> Handle {
    let access = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => READABLE,
        libc::O_WRONLY => WRITABLE,
        _ => READABLE | WRITABLE,
    };
    let counted = match counted {
        Counted::Cached { .. } => CACHED,
        Counted::Direct => DIRECT,
        Counted::No => 0,
    };
    let appending = match flags & libc::O_APPEND {
        0 => 0,
        _ => APPENDING,
    };
    Handle(access | counted | appending)
}

/// Whether a handle belongs to a file that is open for the accesses of a lease. What the holder of
/// one to write cannot store, it writes by this descriptor at an offset: with O_APPEND, that goes to
/// the end of the file.
pub(super) fn allows(handle: Handle, lease: LeaseMode) -> bool {
    let (asked, needed) = match lease {
        LeaseMode::Read => (READABLE, READABLE),
        LeaseMode::Write => (READABLE | WRITABLE | APPENDING, READABLE | WRITABLE),
    };
    handle.0 & asked == needed
}

/// Whether the file can be mapped for stores.
fn is_for_stores(handle: Handle) -> bool {
    handle.0 & (READABLE | WRITABLE) == READABLE | WRITABLE
}

/// Among which opens an open counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counted {
    /// Those through the page cache. `stores`: for reading and writing.
    Cached { stores: bool },
    /// The others.
    Direct,
    /// None: the mount does not count them.
    No,
}

impl Counted {
    fn of(handle: Handle) -> Counted {
        match handle.0 {
            bits if bits & CACHED != 0 => Counted::Cached {
                stores: is_for_stores(handle),
            },
            bits if bits & DIRECT != 0 => Counted::Direct,
            _ => Counted::No,
        }
    }
}

/// How an open is answered.
pub(super) struct Opened {
    mode: OpenOutFlags,
    counted: Counted,
    /// Its handle is 0, as that of every file.
    by_kernel: bool,
}

/// A new file that is open: how, its reference as an open file, and that of its lookup.
pub(super) type Created = (Opened, Option<InodeRef>, HeldEntry);

impl Opened {
    /// As the kernel opens every file by itself, also one with O_DIRECT: it goes past its pages
    /// without being told.
    fn by_kernel() -> Opened {
        Opened {
            mode: OpenOutFlags::KEEP_CACHE,
            counted: Counted::No,
            by_kernel: true,
        }
    }

    fn answer(&self, flags: i32) -> OpenOut {
        let fh = match self.by_kernel {
            true => 0,
            false => handle(flags, self.counted).0,
        };
        OpenOut {
            fh,
            open_flags: self.mode,
            ..OpenOut::default()
        }
    }
}

/// Checks that chattr flags allow opening for writing. The engine would refuse the
/// writes, but programs expect the error from open(2).
fn may_write(kept: u32, flags: i32) -> Served<()> {
    let refused = kept & FL_IMMUTABLE != 0 || kept & FL_APPEND != 0 && flags & libc::O_APPEND == 0;
    if refused {
        return Err(Refusal::Request(
            Errno::EPERM,
            "the file is immutable or append-only",
        ));
    }
    Ok(())
}

/// The answer to an open that the kernel does by itself, from then on without asking.
const BY_KERNEL: Refusal = Refusal::Request(Errno::ENOSYS, "the kernel opens files (opens=kernel)");

/// The answer to a CREATE of a name that another door has made since the kernel looked it up. The
/// program has asked for that file, if it is there, and the kernel begins again with a lookup. It
/// checks the file itself then: whether it may be opened, and in a sticky directory. A reply with
/// the file would go past these checks, because the kernel takes it for a new one.
const MADE_MEANWHILE: Refusal = Refusal::Request(Errno::ESTALE, "the name has been made meanwhile");

/// Notes an open that may use the page cache. `stores`: it is for reading and writing.
fn count_cached(opens: &Opens, fs: &Fs, ino: Ino, stores: bool) -> Counted {
    match opens.open_cached(ino, stores) {
        OpenedHow::Cached => Counted::Cached { stores },
        OpenedHow::CachedAfterRecall => {
            let told = fs.recall_leases(ino);
            opens.end_recall(ino, told.is_ok());
            match told {
                Ok(()) => Counted::Cached { stores },
                Err(error) => {
                    tracing::warn!(
                        "{ino} is opened without the page cache: its direct readers cannot be told: {error}"
                    );
                    Counted::Direct
                }
            }
        }
        OpenedHow::Direct => Counted::Direct,
    }
}

impl Adapter {
    /// Whether files and directories are opened without a request.
    pub(super) fn kernel_opens(&self) -> bool {
        self.opened_by == OpenedBy::Kernel
    }

    /// Returns the I/O mode of a file opened with these flags.
    ///
    /// NOFLUSH: nothing is left to write at `close`. Exception: a file that can be mapped
    /// for stores. For it the kernel writes dirty pages back first, and `close` reports
    /// write-back errors not reported before. With `cache=writeback` the kernel ignores this
    /// flag, and each close writes back.
    /// PARALLEL_DIRECT_WRITES: the engine orders writers itself.
    ///
    /// With `cache=writeback`:
    /// * a file that chattr restricts (`kept`: its flags) is not held back. The kernel writes
    ///   whole pages back in any order, and so bytes that +a does not let change; and it does
    ///   not know +S;
    /// * O_DIRECT is left to the kernel, which writes held back bytes first and sets the times,
    ///   as it owns them.
    fn file_mode(&self, flags: i32, kept: u32) -> OpenOutFlags {
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
        let bypasses = match self.cache {
            CacheMode::Auto => flags & libc::O_DIRECT != 0,
            CacheMode::Writeback => writes && kept & (FL_APPEND | FL_SYNC) != 0,
            CacheMode::None => true,
        };
        let mut mode = if bypasses {
            OpenOutFlags::DIRECT_IO | OpenOutFlags::PARALLEL_DIRECT_WRITES
        } else if self.shared {
            OpenOutFlags::empty()
        } else {
            OpenOutFlags::KEEP_CACHE
        };
        if flags & libc::O_ACCMODE != libc::O_RDWR {
            mode |= OpenOutFlags::NOFLUSH;
        }
        mode
    }

    /// Notes an open of a file in this mode. A file that is stored to directly is not opened
    /// through the page cache, and neither is one for stores whose direct readers cannot be told.
    fn note_open(&self, fs: &Fs, ino: Ino, mut mode: OpenOutFlags, flags: i32) -> Opened {
        let counted = match &self.opens {
            None => Counted::No,
            Some(_) if mode.contains(OpenOutFlags::DIRECT_IO) => Counted::Direct,
            Some(opens) => count_cached(opens, fs, ino, is_for_stores(handle(flags, Counted::No))),
        };
        if let (Counted::Direct, Some(opens)) = (counted, &self.opens) {
            mode.remove(OpenOutFlags::KEEP_CACHE);
            mode |= OpenOutFlags::DIRECT_IO | OpenOutFlags::PARALLEL_DIRECT_WRITES;
            opens.open_direct(ino);
        }
        Opened {
            mode,
            counted,
            by_kernel: false,
        }
    }

    /// Closes the append window of a file that is being opened. If it had one, the kernel's size
    /// of the file is too small, so the open is refused in a way that makes the kernel look the
    /// file up and open it again.
    ///
    /// A holder that was stopped in an append keeps its window. Those who only read may open the
    /// file even so. For others, a failed asynchronous write would end at the kernel's size, and
    /// cut what the holder has appended.
    fn close_window(&self, fs: &Fs, ino: Ino, opened: &Opened, writes: bool) -> Served<()> {
        let Some(opens) = self.opens.as_ref().filter(|opens| opens.is_written(ino)) else {
            return Ok(());
        };
        let closed = match fs.close_file_window(ino) {
            Ok(closed) => closed,
            Err(error) if writes && error.errno() == libc::EBUSY => {
                self.note_close(ino, opened.counted);
                return Err(error.into());
            }
            // A mount that has become read-only closes no window.
            Err(_) => false,
        };
        if closed
            && fs
                .getattr(ino)
                .is_ok_and(|attr| opens.must_open_again(ino, attr.size))
        {
            self.note_close(ino, opened.counted);
            return Err(Refusal::Request(
                Errno::ESTALE,
                "the file has grown without the kernel",
            ));
        }
        Ok(())
    }

    fn note_close(&self, ino: Ino, counted: Counted) {
        match (&self.opens, counted) {
            (Some(opens), Counted::Cached { stores }) => opens.close_cached(ino, stores),
            (Some(opens), Counted::Direct) => opens.close_direct(ino),
            _ => {}
        }
    }

    pub(super) fn on_create(
        &self,
        req: &InHeader,
        arg: &CreateIn,
        name: &[u8],
        extensions: Extensions<'_>,
        reply: impl Reply,
    ) {
        let (parent, flags) = (Node(req.nodeid), arg.flags.cast_signed());
        let labels = labels(extensions);
        let work = |fs: &Fs, _: &mut _| {
            if self.kernel_opens() {
                return Err(BY_KERNEL);
            }
            let caller = CallerIds::of(req).creator(arg.umask)?;
            let parent = ino(parent)?;
            // The flag KILL_SUIDGID is for a file that exists.
            let perm = self.mode_of_new(fs, req, parent, arg.mode & 0o7777)?;
            let holding = fs.holding().with_labels(&labels);
            let made = self
                .removals
                .wait_for_space(fs, || holding.create(&caller, parent, name, perm));
            match made {
                Err(Error::Exists) if flags & libc::O_EXCL == 0 => Err(MADE_MEANWHILE),
                made => Ok(self.opened_anew(fs, made?, flags)),
            }
        };
        self.serve("create", parent, reply, work, |reply, made| {
            self.send_created(reply, made, flags)
        });
    }

    /// Creates a file without a name (O_TMPFILE). Unless O_EXCL is among the flags, a link
    /// may give it one.
    pub(super) fn on_tmpfile(
        &self,
        req: &InHeader,
        arg: &CreateIn,
        extensions: Extensions<'_>,
        reply: impl Reply,
    ) {
        let (parent, flags) = (Node(req.nodeid), arg.flags.cast_signed());
        let labels = labels(extensions);
        let work = |fs: &Fs, _: &mut _| {
            let caller = CallerIds::of(req).creator(arg.umask)?;
            let (parent, linkable) = (ino(parent)?, flags & libc::O_EXCL == 0);
            let perm = self.mode_of_new(fs, req, parent, arg.mode & 0o7777)?;
            let holding = fs.holding().with_labels(&labels);
            let made = self.removals.wait_for_space(fs, || {
                holding.create_unnamed(&caller, parent, perm, linkable)
            })?;
            Ok(self.opened_anew(fs, made, flags))
        };
        self.serve("tmpfile", parent, reply, work, |reply, made| {
            self.send_created(reply, made, flags)
        });
    }

    /// Opens a new file, for the reply that makes it known to the kernel.
    pub(super) fn opened_anew(&self, fs: &Fs, made: HeldEntry, flags: i32) -> Created {
        // The only reply that opens a file with `opens=kernel`, to TMPFILE: a release releases
        // nothing.
        if self.kernel_opens() {
            return (Opened::by_kernel(), None, made);
        }
        // One reference for the lookup, one for the open file.
        let opened = self.note_open(fs, made.1.ino, self.file_mode(flags, made.1.flags), flags);
        (opened, Some(fs.hold(made.1.ino)), made)
    }

    /// Sends a new file that is open. The kernel may close and forget it as soon as it has the
    /// reply.
    pub(super) fn send_created(
        &self,
        reply: impl Reply,
        (opened, open, (held, made)): Created,
        flags: i32,
    ) {
        let entry = self.entry(&made);
        if let Some(open) = open {
            open.into_count();
        }
        held.into_count();
        reply.send(Answer::Created(entry, opened.answer(flags)));
    }

    pub(super) fn on_open(&self, node: Node, arg: &OpenIn, reply: impl Reply) {
        let flags = arg.flags.cast_signed();
        let work = |fs: &Fs, _: &mut _| {
            if self.kernel_opens() {
                return Err(BY_KERNEL);
            }
            let ino = ino(node)?;
            let mut kept = 0;
            if flags & libc::O_ACCMODE != libc::O_RDONLY {
                // The kernel may not know yet that the mount is read-only: see `readonly`.
                if fs.is_read_only() {
                    return Err(Refusal::Request(
                        Errno::EROFS,
                        "the file system is read-only, or has met damage",
                    ));
                }
                kept = fs.getattr(ino)?.flags;
                may_write(kept, flags)?;
            }
            // An open that truncates, by a caller without CAP_FSETID.
            if arg.open_flags.contains(OpenInFlags::KILL_SUIDGID) {
                fs.strip_suid(ino)?;
            }
            // A read from the page cache does not set the atime. If an update is due, the
            // kernel drops the cached pages, and the read reaches the server.
            let reads = flags & libc::O_ACCMODE != libc::O_WRONLY;
            let mut mode = self.file_mode(flags, kept);
            if reads && fs.read_sets_atime(ino)? {
                mode.remove(OpenOutFlags::KEEP_CACHE);
            }
            let opened = self.note_open(fs, ino, mode, flags);
            let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
            self.close_window(fs, ino, &opened, writes)?;
            fs.hold(ino).into_count();
            Ok(opened)
        };
        self.serve("open", node, reply, work, |reply, opened| {
            reply.send(Answer::Opened(opened.answer(flags)));
        });
    }

    pub(super) fn on_release(&self, node: Node, handle: Handle, reply: impl Reply) {
        let work = |fs: &Fs, _: &mut _| {
            let ino = ino(node)?;
            if self.kernel_opens() {
                return Ok(());
            }
            self.note_close(ino, Counted::of(handle));
            self.removals.during(|| fs.release(ino, 1));
            Ok(())
        };
        self.serve("release", node, reply, work, |reply, ()| {
            reply.send(Answer::Done)
        });
    }

    /// Makes durable what guests have stored to a file. Their own requests do so in their doors.
    fn flush_stores_of_guests(&self, fs: &Fs, file: Ino) -> pramfs::Result<()> {
        match self.flushes {
            true => stores::flush(fs, Some(file.0), |_| false).map(drop),
            false => Ok(()),
        }
    }

    /// Makes everything durable. Only the kernels of guests send it.
    pub(super) fn on_syncfs(&self, reply: impl Reply) {
        let work = |fs: &Fs, _: &mut _| Ok(fs.sync()?);
        self.serve("syncfs", Node::ROOT, reply, work, |reply, ()| {
            reply.send(Answer::Done)
        });
    }

    pub(super) fn on_fsync(
        &self,
        request: &'static str,
        node: Node,
        data_only: bool,
        reply: impl Reply,
    ) {
        let work = |fs: &Fs, _: &mut _| {
            let file = ino(node)?;
            self.flush_stores_of_guests(fs, file)?;
            Ok(fs.fsync(file, data_only)?)
        };
        self.serve(request, node, reply, work, |reply, ()| {
            reply.send(Answer::Done)
        });
    }
}
