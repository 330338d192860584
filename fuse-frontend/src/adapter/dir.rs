//! readdir and readdirplus.
//!
//! The offset of an entry is the engine's cookie. It stays valid while the directory
//! changes, and after a remount.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use fuser::{Errno, Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use pramfs::inode::{Fs, Taken};

use super::Adapter;
use super::convert::{self, entry, ino};
use super::serve::Refusal;

/// An empty answer would mean the end of the directory.
const NO_ROOM: Refusal = Refusal::Request(Errno::EINVAL, "no room for one entry");

impl Adapter {
    pub(super) fn on_readdir(&self, node: INodeNo, offset: u64, reply: ReplyDirectory) {
        let work = |fs: &Fs, reply: &mut ReplyDirectory| {
            let (mut given, mut fits) = (false, true);
            let walked = fs.readdir(ino(node)?, offset, &mut |found| {
                let name = OsStr::from_bytes(found.name);
                let full = reply.add(
                    INodeNo(found.ino.0),
                    found.cookie,
                    convert::kind(found.kind),
                    name,
                );
                if full {
                    fits = given;
                    return ControlFlow::Break(());
                }
                given = true;
                ControlFlow::Continue(())
            });
            // The entries before the damage are returned. The next request starts behind
            // them and gets the error.
            match walked {
                Err(_) if given => {}
                walked => walked?,
            }
            fits.then_some(()).ok_or(NO_ROOM)
        };
        self.serve("readdir", node, reply, work, |reply, ()| reply.ok());
    }

    /// Each returned entry except `.` and `..` counts as a lookup and holds a reference.
    /// The kernel uses only the number of `.` and `..`, and number, type and name of an
    /// entry with a damaged inode.
    pub(super) fn on_readdirplus(&self, node: INodeNo, offset: u64, reply: ReplyDirectoryPlus) {
        let work = |fs: &Fs, reply: &mut ReplyDirectoryPlus| {
            let (mut given, mut fits) = (false, true);
            let held = fs
                .holding()
                .readdir(ino(node)?, offset, &mut |found, attr| {
                    let name = OsStr::from_bytes(found.name);
                    let dots = found.name == b"." || found.name == b"..";
                    let (shown, generation, ttl) = match attr {
                        Some(attr) if dots => {
                            (convert::attr(attr), Generation(0), self.attr_ttl(attr))
                        }
                        Some(attr) => {
                            let (shown, generation) = entry(attr);
                            (shown, generation, self.attr_ttl(attr))
                        }
                        None => (convert::name_only(&found), Generation(0), Duration::ZERO),
                    };
                    let full = reply.add(shown.ino, found.cookie, name, &ttl, &shown, generation);
                    if full {
                        fits = given;
                        return Taken::Full;
                    }
                    given = true;
                    Taken::Kept
                })?;
            fits.then_some(held).ok_or(NO_ROOM)
        };
        self.serve("readdirplus", node, reply, work, |reply, held| {
            held.into_counts();
            reply.ok();
        });
    }
}
