//! Translates kernel requests into calls of [`pramfs::inode::Fs`].
//!
//! Purpose: unpack the request, call the engine, reply. A transport
//! ([`transport`](crate::transport)) delivers the requests and carries the replies;
//! `dispatch.rs` maps each request to its handler; each family of requests has its own file.
//!
//! Invariants:
//! * every request is answered exactly once, even if its handler panics (EIO) or an
//!   earlier one has panicked (EIO at once, until the region is mounted again);
//! * each entry reported to the kernel, other than `.` and `..`, holds one reference on
//!   its inode in the engine; `forget` releases it;
//! * only capabilities that the kernel offers are requested (`init.rs`).
//!
//! Not here: permissions and locks, which are the kernel's (`default_permissions`, and
//! the ACLs that it requests). The engine does everything else, including the umask,
//! because a default ACL replaces it.

mod again;
mod answer;
mod attributes;
mod caller;
mod convert;
mod counts;
mod data;
mod dir;
mod dispatch;
mod enospc_retry;
mod init;
mod ioctl;
mod lent;
mod listings;
mod namespace;
mod notifier;
mod open;
mod refused_pages;
mod serve;
pub(crate) mod stores;
#[cfg(test)]
mod tests;
mod xattr;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use enospc_retry::PendingFrees;
use pramfs::inode::{Fs, Repeats};
use pramfs_fuse_protocol::flags::InitFlags;
use refused_pages::RefusedPages;

pub use answer::{Answer, Listed, Reply};
pub use counts::Counts;
pub use init::{MAX_BACKGROUND, MAX_REQUEST};
pub use notifier::Notifier;
#[cfg(test)]
pub(crate) use notifier::tests::nowhere;

use crate::direct::{Direct, Opens};
use crate::takeover::memory::Memory;

/// How many seconds the kernel may cache names and attributes: a day. While the file system is
/// mounted, all changes pass through the kernel, and it drops entries that its own requests
/// change. So the value means "until invalidated".
const CACHE_SECONDS: u64 = 86_400;

/// What the kernel's page cache serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheMode {
    /// The page cache serves hot reads; writes go through it to the medium
    /// before they return.
    #[default]
    Auto,
    /// The page cache also holds writes back: they reach the medium by fsync, at close, or
    /// when the kernel likes. Until then the kernel owns size and times of the file.
    Writeback,
    /// Every read and write reaches the medium.
    None,
}

impl CacheMode {
    /// Its name as a mount option.
    pub fn name(self) -> &'static str {
        match self {
            CacheMode::Auto => "auto",
            CacheMode::Writeback => "writeback",
            CacheMode::None => "none",
        }
    }
}

/// Who opens files and directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OpenedBy {
    /// The server, by a request for each open and each close.
    #[default]
    Server,
    /// The kernel, without a request: see `open`.
    Kernel,
}

/// One mounted file system, as the kernel sees it.
pub struct Adapter {
    fs: Arc<Fs>,
    cache: CacheMode,
    opened_by: OpenedBy,
    /// What the kernel offers, as bits of [`InitFlags`].
    offered: AtomicU64,
    counts: Arc<Counts>,
    /// Of all doors: what one frees, another waits for.
    removals: Arc<PendingFrees>,
    /// Set by the first panic; from then on every request gets EIO.
    failed: Arc<AtomicBool>,
    /// Medium failures that have been logged.
    repeats: Mutex<Repeats>,
    refused_pages: RefusedPages,
    notifier: Notifier,
    direct: Option<Arc<Direct>>,
    late_writes: attributes::LateWrites,
    opens: Option<Arc<Opens>>,
    /// Of a mount that a later server can take over.
    takeover: Option<Arc<Memory>>,
    /// The region has other doors, whose changes this kernel does not know of.
    shared: bool,
    /// Guests may map files: what makes a file durable flushes their stores, too.
    flushes: bool,
}

impl Adapter {
    /// Returns an adapter for `fs`. It notifies the kernel of changes that the kernel cannot know.
    pub fn new(fs: Arc<Fs>, cache: CacheMode, notifier: Notifier) -> Adapter {
        Adapter {
            fs,
            cache,
            opened_by: OpenedBy::default(),
            offered: AtomicU64::new(0),
            counts: Arc::default(),
            removals: Arc::default(),
            failed: Arc::default(),
            repeats: Mutex::default(),
            refused_pages: RefusedPages::new(notifier.clone()),
            notifier,
            direct: None,
            late_writes: attributes::LateWrites::default(),
            opens: None,
            takeover: None,
            shared: false,
            flushes: false,
        }
    }

    /// Serves a region that is changed through other doors too: the kernel caches no names,
    /// attributes and listings, and drops pages when the attributes show a change.
    #[must_use]
    pub fn with_other_doors(mut self, shared: bool) -> Adapter {
        self.shared = shared;
        self
    }

    /// Serves a region whose files guests may map. Such a mount has [`with_opens`](Self::with_opens).
    #[must_use]
    pub fn with_maps_of_guests(mut self, may_map: bool) -> Adapter {
        self.flushes = may_map;
        self
    }

    /// Returns an adapter for another door of the same file system, a guest's, which takes no
    /// notifications. After a panic in one of them, all refuse.
    #[must_use]
    pub fn of_guest(&self) -> Adapter {
        Adapter {
            failed: Arc::clone(&self.failed),
            removals: Arc::clone(&self.removals),
            ..Adapter::new(Arc::clone(&self.fs), self.cache, Notifier::of_guest())
                .with_counts(Arc::clone(&self.counts))
                .with_opens(self.opens.clone())
        }
    }

    /// Returns the file system.
    pub(crate) fn fs(&self) -> &Fs {
        &self.fs
    }

    /// Counts requests there.
    #[must_use]
    pub fn with_counts(mut self, counts: Arc<Counts>) -> Adapter {
        self.counts = counts;
        self
    }

    /// Leaves opens to the kernel. Such a mount has neither [`with_opens`](Self::with_opens)
    /// nor [`with_direct`](Self::with_direct): nobody knows which files are open.
    #[must_use]
    pub fn with_files_opened_by(mut self, opened_by: OpenedBy) -> Adapter {
        self.opened_by = opened_by;
        self
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

    /// Lets a later server go on, with this memory. The kernel must be able to send requests
    /// again then.
    #[must_use]
    pub fn with_takeover(mut self, memory: Arc<Memory>) -> Adapter {
        self.counts.tell_of(&memory);
        self.takeover = Some(memory);
        self
    }

    /// Whether another server goes on when this one ends.
    fn will_be_taken_over(&self) -> bool {
        (self.takeover.as_ref()).is_some_and(|memory| memory.is_supervised())
    }

    /// Whether a later server can go on.
    pub fn has_takeover(&self) -> bool {
        self.takeover.is_some()
    }

    /// Returns what this server asks of a kernel, whatever the transport.
    pub fn wanted(&self) -> InitFlags {
        let mut wanted = init::WANTED | self.required();
        // A shared mapping of a file that is opened with O_DIRECT uses the page cache.
        if self.opens.is_some() {
            wanted.remove(InitFlags::DIRECT_IO_ALLOW_MMAP);
        }
        if self.cache == CacheMode::Writeback {
            wanted |= InitFlags::WRITEBACK_CACHE;
        }
        if self.shared {
            wanted.remove(InitFlags::EXPLICIT_INVAL_DATA);
            wanted |= InitFlags::AUTO_INVAL_DATA;
        }
        wanted
    }

    /// Returns what the kernel must offer.
    pub fn required(&self) -> InitFlags {
        let mut required = match self.opened_by {
            OpenedBy::Server => InitFlags::empty(),
            OpenedBy::Kernel => init::REQUIRED_FOR_OPENS,
        };
        required.set(InitFlags::HAS_RESEND, self.takeover.is_some());
        required
    }

    /// Returns what it asks for beside that by a transport that passes on all of a request.
    pub fn wanted_of_whole_requests(&self) -> InitFlags {
        match self.cache {
            // A program that writes through overlayfs is told from the user who mounted it by
            // the ids, when overlayfs asks to clear set-user-ID. A write that is held back
            // comes too late for that.
            CacheMode::Writeback => {
                init::WANTED_OF_WHOLE_REQUESTS.difference(InitFlags::ALLOW_IDMAP)
            }
            CacheMode::Auto | CacheMode::None => init::WANTED_OF_WHOLE_REQUESTS,
        }
    }

    /// Whether the kernel holds writes back, and owns size and times of files meanwhile.
    pub(crate) fn holds_writes_back(&self) -> bool {
        self.cache == CacheMode::Writeback
    }

    /// For how many seconds the kernel may cache names.
    fn name_ttl(&self) -> u64 {
        match self.shared {
            true => 0,
            false => CACHE_SECONDS,
        }
    }

    /// Takes note of what the kernel offers. Called before the first request.
    pub fn note_offer(&self, offered: InitFlags) {
        self.offered.store(offered.bits(), Ordering::Relaxed);
    }

    /// Returns what the kernel offers.
    pub fn offered(&self) -> InitFlags {
        InitFlags::from_bits_retain(self.offered.load(Ordering::Relaxed))
    }

    /// Whether the kernel offers this.
    fn offers(&self, flag: InitFlags) -> bool {
        self.offered.load(Ordering::Relaxed) & flag.bits() != 0
    }

    /// Longest name that a request may have.
    pub fn name_max(&self) -> usize {
        pramfs_medium::media::htree::NAME_MAX
    }

    /// Makes the kernel ask for the attributes of a node again.
    fn attributes_have_changed(&self, node: convert::Node) {
        // A negative offset leaves the page cache alone.
        if let Err(error) = self.notifier.invalidate(node.0, -1, 0) {
            tracing::debug!("attributes of node {} stay cached: {error}", node.0);
        }
    }
}
