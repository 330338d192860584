//! readdir and readdirplus.
//!
//! The offset of an entry is the engine's cookie. It stays valid while the directory
//! changes, and after a remount.

use std::ops::ControlFlow;

use pramfs::inode::{DirEntry, Fs, Taken};
use pramfs_fuse_protocol::{BadName, Errno, Fit, Listing};

use super::Adapter;
use super::answer::{Answer, Listed, Reply};
use super::convert::{self, Node, ino};
use super::data::with_buffer;
use super::serve::{Refusal, Served};

/// An empty answer would mean the end of the directory.
const NO_ROOM: Refusal = Refusal::Request(Errno::EINVAL, "no room for one entry");

/// Adds an entry. A name that no kernel lists is left out: the engine returns none.
fn added(fit: Result<Fit, BadName>) -> Option<Fit> {
    fit.inspect_err(|error| tracing::debug!("an entry is left out of its listing: {error}"))
        .ok()
}

fn listed<'a>(found: &DirEntry<'a>) -> Listed<'a> {
    Listed {
        ino: found.ino.0,
        cookie: found.cookie,
        kind: convert::kind(found.kind),
        name: found.name,
    }
}

impl Adapter {
    pub(super) fn on_readdir<R: Reply>(&self, node: Node, offset: u64, size: u32, reply: R) {
        let work = |fs: &Fs, reply: &mut Option<R>| {
            with_buffer(size as usize, |room| {
                let mut listing = Listing::new(room);
                let (mut given, mut full) = (false, false);
                let walked = fs.readdir(ino(node)?, offset, &mut |found| {
                    match added(reply.list(&mut listing, &listed(&found))) {
                        Some(Fit::Full) => {
                            full = true;
                            return ControlFlow::Break(());
                        }
                        Some(Fit::Added) => given = true,
                        None => {}
                    }
                    ControlFlow::Continue(())
                });
                // The entries before the damage are returned. The next request starts behind
                // them and gets the error.
                match walked {
                    Err(_) if given => {}
                    walked => walked?,
                }
                if full && !given {
                    return Err(NO_ROOM);
                }
                reply.take().send(Answer::Listing(listing.bytes()));
                Ok(())
            })
        };
        self.serve("readdir", node, Some(reply), work, |_, ()| {});
    }

    /// Each returned entry except `.` and `..` counts as a lookup and holds a reference. The
    /// kernel uses only the number of `.` and `..`. An entry with a damaged inode has a name, a
    /// number and a type alone.
    pub(super) fn on_readdirplus<R: Reply>(&self, node: Node, offset: u64, size: u32, reply: R) {
        let work = |fs: &Fs, reply: &mut Option<R>| -> Served<()> {
            with_buffer(size as usize, |room| {
                let mut listing = Listing::new(room);
                let (mut given, mut full) = (false, false);
                let held = fs
                    .holding()
                    .readdir(ino(node)?, offset, &mut |found, attr| {
                        let entry = attr.map(|attr| self.entry(attr));
                        let fit = reply.list_plus(&mut listing, &listed(&found), entry.as_ref());
                        match added(fit) {
                            Some(Fit::Full) => {
                                full = true;
                                return Taken::Full;
                            }
                            Some(Fit::Added) => given = true,
                            // The kernel gets no reference.
                            None => return Taken::NameOnly,
                        }
                        match entry {
                            None if R::LISTS_BARE_NAMES => Taken::NameOnly,
                            _ => Taken::Kept,
                        }
                    })?;
                if full && !given {
                    return Err(NO_ROOM);
                }
                held.into_counts();
                reply.take().send(Answer::Listing(listing.bytes()));
                Ok(())
            })
        };
        self.serve("readdirplus", node, Some(reply), work, |_, ()| {});
    }
}
