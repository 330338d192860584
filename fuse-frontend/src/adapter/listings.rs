//! Directory listings cached by the kernel.
//!
//! ENOSYS to the first opendir tells the kernel that directories need no opening. It
//! then sends neither opendir nor releasedir, and lists a directory from its page cache
//! until an entry changes. It sees every change, because each one is a request. A cached
//! listing needs no requests instead of four.
//!
//! A listing in progress stays correct if the directory changes: if the kernel does not
//! find the entry at which it stopped, it asks the server.
//!
//! The kernel does not know two things about a cached listing:
//! * when a listing sets the atime. With `relatime` that is after a change of the
//!   entries, when the kernel asks anyway, or of the directory itself, when the server
//!   invalidates the listing ([`Adapter::listing_is_due`]). Remaining differences are in
//!   `docs/semantics.md`. With `strictatime`, where each listing sets the atime, and with
//!   `cache=none`, no listing is cached. With `opens=kernel` each one is, and `strictatime` is as
//!   `relatime` here.
//! * that a listing contains `..`. The server invalidates the listing of a directory that
//!   moves.
//!
//! A guest takes no invalidations, so its kernel caches no listing.
//!
//! An invalidation waits for page locks, and a reader may hold one while it faults in
//! its buffer. So the server invalidates only in a request whose caller holds the
//! directory's lock in the kernel, which excludes listings. That holds for changes of
//! attributes, and for a directory that moves to another parent, but not for a rename
//! within the same parent.
//!
//! A directory removed while open stays until the kernel forgets its node, so an open
//! directory needs no reference.

use pramfs::{
    AtimePolicy, FileType,
    inode::{Attr, Fs, Ino},
};
use pramfs_fuse_protocol::Errno;
use pramfs_fuse_protocol::flags::InitFlags;
use pramfs_fuse_protocol::wire::OpenOut;

use super::answer::{Answer, Reply};
use super::convert::{Node, ino, node};
use super::serve::Refusal;
use super::{Adapter, CacheMode};

impl Adapter {
    fn keeps_listings(&self) -> bool {
        let each_counts =
            !self.kernel_opens() && self.fs.atime_policy() == (AtimePolicy::StrictAtime, true);
        self.offers(InitFlags::NO_OPENDIR_SUPPORT)
            && self.notifier.is_heard()
            && !self.shared
            && self.cache != CacheMode::None
            && !each_counts
    }

    pub(super) fn on_opendir(&self, dir: Node, reply: impl Reply) {
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
            reply.send(Answer::Opened(OpenOut::default()));
        });
    }

    pub(super) fn on_releasedir(&self, dir: Node, reply: impl Reply) {
        // What `on_opendir` has taken. No such request comes if it took nothing.
        let work = |fs: &Fs, _: &mut _| {
            let dir = ino(dir)?;
            self.removals.during(|| fs.release(dir, 1));
            Ok(())
        };
        self.serve("releasedir", dir, reply, work, |reply, ()| {
            reply.send(Answer::Done)
        });
    }

    /// Invalidates the listing of a directory after a change other than of an entry, so
    /// that the next listing may set its atime. Ignores other inodes. The caller of this
    /// request holds its kernel lock: see the module.
    pub(super) fn listing_is_due(&self, fs: &Fs, changed: Ino) {
        if !matches!(fs.atime_policy(), (AtimePolicy::NoAtime, _) | (_, false)) {
            self.let_go_of_listing(fs, changed);
        }
    }

    /// Invalidates the listing of an inode with a new parent: the `..` of a directory has
    /// changed. The caller of this request holds its kernel lock: see the module.
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
        // Offset and length 0: all of its page cache.
        if let Err(error) = self.notifier.invalidate(node(of).0, 0, 0) {
            tracing::debug!("the listing of {of} stays cached: {error}");
        }
    }
}
