//! Listings of directories that the kernel keeps.
//!
//! The answer ENOSYS to the first opendir tells the kernel that directories
//! need no opening: it asks no more, neither at opendir nor at closedir, and
//! lists a directory from its page cache for as long as nothing in it changes.
//! It knows of every change, as each is a request of its own. Of four requests
//! for a listing none is left.
//!
//! Who is in the middle of a listing that has changed since is not led astray:
//! where the kernel does not find the entry at which it stopped, it asks here.
//!
//! What it does not know is when a listing sets the atime. By `relatime` that is
//! after a change of the entries, when it asks anyhow, or of the directory
//! itself: then it is told to let go ([`Adapter::listing_is_due`]). What is left
//! of differences is in `docs/semantics.md`. With `strictatime`, where each
//! listing sets it, and with `cache=none` nothing is kept. Nor does it know that
//! a listing has `..` in it: a directory that moves loses it.
//!
//! It lets go of pages, each of which may be locked by somebody who lists from it
//! into memory that is long in coming. So it is told only in a request whose
//! caller has the directory's lock in the kernel, which keeps listings away:
//! that is so for changes of attributes, and for a directory that moves to
//! another one; not for one that gets another name in the same.
//!
//! A directory that is removed while it is open stays for as long as the kernel
//! knows its node; no reference of the open directory is needed for that.

use fuser::{Errno, FileHandle, FopenFlags, INodeNo, ReplyEmpty, ReplyOpen};
use pramfs::{
    AtimePolicy, FileType,
    inode::{Attr, Fs, Ino},
};

use super::convert::{ino, node};
use super::serve::Refusal;
use super::{Adapter, CacheMode};

impl Adapter {
    fn keeps_listings(&self) -> bool {
        let each_counts = self.fs.atime_policy() == (AtimePolicy::StrictAtime, true);
        self.offers.opens_directories && self.cache == CacheMode::Auto && !each_counts
    }

    pub(super) fn on_opendir(&self, dir: INodeNo, reply: ReplyOpen) {
        let work = |fs: &Fs, _: &mut _| {
            if self.keeps_listings() {
                return Err(Refusal::Request(
                    Errno::ENOSYS,
                    "directories need no opening",
                ));
            }
            fs.hold(ino(dir)?).into_count();
            Ok(())
        };
        self.serve("opendir", dir, reply, work, |reply, ()| {
            reply.opened(FileHandle(0), FopenFlags::empty());
        });
    }

    pub(super) fn on_releasedir(&self, dir: INodeNo, reply: ReplyEmpty) {
        self.on_release(dir, reply);
    }

    /// The next listing of an inode, if it is a directory, may set its atime,
    /// as something about it has changed that is no entry. The caller of this
    /// request has its lock, see the module.
    pub(super) fn listing_is_due(&self, fs: &Fs, changed: Ino) {
        if fs.atime_policy() == (AtimePolicy::Relatime, true) {
            self.let_go_of_listing(fs, changed);
        }
    }

    /// An inode has another parent, and another `..` if it is a directory. The
    /// caller of this request has its lock, see the module.
    pub(super) fn has_moved(&self, fs: &Fs, (dir, name): (Ino, &[u8])) {
        if let Ok(moved) = fs.lookup(dir, name) {
            self.let_go_of_listing(fs, moved.ino);
        }
    }

    fn let_go_of_listing(&self, fs: &Fs, of: Ino) {
        let is_dir = |a: Attr| a.kind == FileType::Directory;
        if !self.keeps_listings() || !fs.getattr(of).is_ok_and(is_dir) {
            return;
        }
        // The whole of its page cache.
        if let Some(kernel) = self.kernel.get()
            && let Err(error) = kernel.inval_inode(node(of), 0, 0)
        {
            tracing::debug!("the listing of {of} stays cached: {error}");
        }
    }
}
