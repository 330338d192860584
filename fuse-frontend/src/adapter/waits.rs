//! Requests that may take long, for a transport that has others serve them.
//!
//! There are two ways to find one out:
//! * [`Adapter::may_wait`] tells by the request itself, before it is served;
//! * a lack of space shows only while it is served. A thread that
//!   [does not wait for space](leave_waits_for_space) leaves the request then: it has had no
//!   effect, and is answered ENOSPC. [`has_left`] tells that answer from a final one.
//!
//! A long request is one that moves or frees many bytes, syncs a file or block device, or may wait
//! for space, for the holder of a lease, or for memory while a live region is saved. Locks do not
//! count: whoever holds one works, or is itself such a request.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use pramfs::inode::Fs;
use pramfs_fuse_protocol::Operation;
use pramfs_fuse_protocol::flags::SetattrValid;
use pramfs_fuse_protocol::wire::InHeader;
use pramfs_medium::pmem::{Durability, Granularity};

use super::convert::{Node, ino};
use super::init::MAX_REQUEST;
use super::{Adapter, ioctl};

/// Most bytes that a short request copies, zeroes or allocates: those of a read.
const COPIED: u64 = MAX_REQUEST as u64;

/// Most bytes that a short request frees.
const FREED: u64 = 16 << 20;

/// What a thread does about a lack of space that may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lack {
    /// It waits.
    Waits,
    /// It leaves the request to others.
    Leaves,
    /// It has left the request.
    Left,
}

thread_local! {
    static LACK: Cell<Lack> = const { Cell::new(Lack::Waits) };
}

/// From now on, requests that wait for space are left to other threads by this one.
pub(crate) fn leave_waits_for_space() {
    LACK.set(Lack::Leaves);
}

/// Leaves the request if this thread does not wait for space. Returns whether it does so.
pub(super) fn leave() -> bool {
    match LACK.get() {
        Lack::Waits => false,
        Lack::Leaves | Lack::Left => {
            LACK.set(Lack::Left);
            true
        }
    }
}

/// Whether this thread has left a request since it was last asked.
pub(crate) fn has_left() -> bool {
    let left = LACK.get() == Lack::Left;
    if left {
        LACK.set(Lack::Leaves);
    }
    left
}

/// Whether this thread has left a request.
pub(super) fn is_left() -> bool {
    LACK.get() == Lack::Left
}

/// What takes long on a medium.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slow {
    /// A fence is an msync(2), so that each change takes long.
    fences: bool,
    /// So is a sync.
    syncs: bool,
}

impl Slow {
    pub(super) fn of(fs: &Fs) -> Slow {
        let info = fs.region().info();
        let syncs = info.granularity == Granularity::Page;
        Slow {
            fences: syncs && info.durability == Durability::Power,
            syncs,
        }
    }
}

/// Returns the nodes that a request works on: one of them, twice, or two.
pub(crate) fn nodes(header: &InHeader, asked: &Operation<'_>) -> [u64; 2] {
    let other = match asked {
        Operation::CopyFileRange(arg) | Operation::CopyFileRange64(arg) => arg.nodeid_out,
        _ => header.nodeid,
    };
    [header.nodeid, other]
}

impl Adapter {
    /// Whether a request may take long.
    #[inline]
    pub(crate) fn may_wait(&self, header: &InHeader, asked: &Operation<'_>) -> bool {
        match asked {
            Operation::Fsync(_) | Operation::Fsyncdir(_) => self.slow.syncs || self.flushes,
            Operation::Syncfs => true,
            Operation::Write { arg, .. } => {
                let flags = arg.flags.cast_signed();
                let syncs = flags & libc::O_DSYNC != 0 && self.slow.syncs;
                let appends = flags & libc::O_APPEND != 0;
                syncs || self.change_may_wait() || self.waits_for_holder(header.nodeid, appends)
            }
            Operation::Fallocate(arg) => {
                arg.length > COPIED
                    || self.change_may_wait()
                    || self.waits_for_holder(header.nodeid, false)
            }
            Operation::CopyFileRange(arg) | Operation::CopyFileRange64(arg) => {
                arg.len > COPIED
                    || self.change_may_wait()
                    || self.waits_for_holder(arg.nodeid_out, false)
            }
            Operation::Setattr(arg) => {
                let resizes = arg.valid.contains(SetattrValid::SIZE);
                self.change_may_wait()
                    || resizes && self.frees_much(header.nodeid, arg.size)
                    || resizes && self.waits_for_holder(header.nodeid, false)
            }
            Operation::Ioctl { arg, .. } => ioctl::takes_long(arg.cmd),
            Operation::Create { .. }
            | Operation::Tmpfile { .. }
            | Operation::Mknod { .. }
            | Operation::Mkdir { .. }
            | Operation::Symlink { .. }
            | Operation::Link { .. }
            | Operation::Unlink { .. }
            | Operation::Rmdir { .. }
            | Operation::Rename { .. }
            | Operation::Release(_)
            | Operation::Setxattr { .. }
            | Operation::Removexattr { .. } => self.change_may_wait(),
            _ => false,
        }
    }

    /// Whether any change may take long.
    fn change_may_wait(&self) -> bool {
        self.slow.fences || self.fs.has_snapshot()
    }

    /// Whether a change of a file may wait until the holder of a lease has ended an append, or for
    /// the earlier parts of an append.
    fn waits_for_holder(&self, node: u64, appends: bool) -> bool {
        let (Some(opens), Ok(ino)) = (&self.opens, ino(Node(node))) else {
            return false;
        };
        // Where any file may have changed, only appends ask.
        opens.may_have_grown(ino) && (appends || !opens.are_all_written())
    }

    /// Whether a file becomes so much shorter that this takes long.
    fn frees_much(&self, node: u64, size: u64) -> bool {
        let Ok(ino) = ino(Node(node)) else {
            return false;
        };
        if self.failed.load(Ordering::Relaxed) {
            return false;
        }
        match catch_unwind(AssertUnwindSafe(|| self.fs.getattr(ino))) {
            Ok(attr) => attr.is_ok_and(|attr| attr.size.saturating_sub(size) > FREED),
            // It panics again where that is contained.
            Err(_) => true,
        }
    }
}
