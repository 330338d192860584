//! readdir and readdirplus.
//!
//! The offset of an entry is the engine's cookie: it means the same however
//! the directory changes in between, also after a remount.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;

use fuser::{Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use pramfs::{Fs, Taken};

use super::Adapter;
use super::convert::{self, entry, ino};
use super::namespace::attr_ttl;

impl Adapter {
    pub(super) fn on_readdir(&self, node: INodeNo, offset: u64, reply: ReplyDirectory) {
        let work = |fs: &Fs, reply: &mut ReplyDirectory| {
            fs.readdir(ino(node)?, offset, &mut |found| {
                let name = OsStr::from_bytes(found.name);
                let full = reply.add(
                    INodeNo(found.ino.0),
                    found.cookie,
                    convert::kind(found.kind),
                    name,
                );
                if full {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })?;
            Ok(())
        };
        self.serve("readdir", node, reply, work, |reply, ()| reply.ok());
    }

    /// Each entry but `.` and `..` is a lookup, too, and is pinned as such if
    /// it fits. Of `.` and `..` the kernel takes the number only.
    pub(super) fn on_readdirplus(&self, node: INodeNo, offset: u64, reply: ReplyDirectoryPlus) {
        let work = |fs: &Fs, reply: &mut ReplyDirectoryPlus| {
            fs.readdir_pinned(ino(node)?, offset, &mut |found, attr| {
                let name = OsStr::from_bytes(found.name);
                let (shown, generation) = if found.name == b"." || found.name == b".." {
                    (convert::attr(attr), Generation(0))
                } else {
                    entry(attr)
                };
                let full = reply.add(
                    shown.ino,
                    found.cookie,
                    name,
                    &attr_ttl(attr),
                    &shown,
                    generation,
                );
                if full { Taken::Full } else { Taken::Kept }
            })?;
            Ok(())
        };
        self.serve("readdirplus", node, reply, work, |reply, ()| reply.ok());
    }
}
