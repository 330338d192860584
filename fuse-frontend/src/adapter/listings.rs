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
//! itself: then it is told to let go ([`Adapter::listing_is_due`]). A listing
//! that is kept for longer than a day sets none, see `docs/semantics.md`. With
//! `strictatime`, where each listing does, and with `cache=none` nothing is
//! kept.
//!
//! A directory that is removed while it is open stays for as long as the kernel
//! knows its node; no reference of the open directory is needed for that.

use fuser::{Errno, FileHandle, FopenFlags, INodeNo, ReplyEmpty, ReplyOpen};
use pramfs::types::{FileType, Ino};
use pramfs::{AtimePolicy, Fs};

use super::convert::ino;
use super::serve::Refusal;
use super::{Adapter, CacheMode};

impl Adapter {
    fn keeps_listings(&self) -> bool {
        let options = self.fs.options();
        let each_counts = options.dir_atime && options.atime == AtimePolicy::StrictAtime;
        self.cache == CacheMode::Auto && !each_counts
    }

    pub(super) fn on_opendir(&self, node: INodeNo, reply: ReplyOpen) {
        let work = |fs: &Fs, _: &mut _| {
            if self.keeps_listings() {
                return Err(Refusal::Request(
                    Errno::ENOSYS,
                    "directories need no opening",
                ));
            }
            fs.pin(ino(node)?, 1);
            Ok(())
        };
        self.serve("opendir", node, reply, work, |reply, ()| {
            reply.opened(FileHandle(0), FopenFlags::empty());
        });
    }

    pub(super) fn on_releasedir(&self, node: INodeNo, reply: ReplyEmpty) {
        self.on_release(node, reply);
    }

    /// The next listing of an inode, if it is a directory, may set its atime,
    /// as something about it has changed that is no entry.
    pub(super) fn listing_is_due(&self, fs: &Fs, changed: Ino) {
        let options = fs.options();
        if !options.dir_atime
            || options.atime != AtimePolicy::Relatime
            || !self.keeps_listings()
            || !fs
                .getattr(changed)
                .is_ok_and(|a| a.kind == FileType::Directory)
        {
            return;
        }
        // The whole of its page cache. Nothing is waited for that waits for us:
        // nobody writes these pages back.
        if let Some(kernel) = self.kernel.get()
            && let Err(error) = kernel.inval_inode(INodeNo(changed.0), 0, 0)
        {
            tracing::debug!("the listing of {changed} stays cached: {error}");
        }
    }
}
