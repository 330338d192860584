//! How a file system is mounted.

use std::fmt::Debug;
use std::sync::Arc;

use crate::journal::Rules;
use crate::types::Time;

/// What happens when damage is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ErrorPolicy {
    /// The operation fails, the rest goes on.
    Continue,
    /// Nothing is written any more.
    #[default]
    RemountRo,
    /// The process is aborted.
    Panic,
}

/// When reading a file sets its atime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AtimePolicy {
    /// Never.
    NoAtime,
    /// Once after each change of the file, and once a day.
    #[default]
    Relatime,
    /// Each time.
    StrictAtime,
}

/// Where the engine reads the time.
pub trait Clock: Send + Sync + Debug {
    /// The time now.
    fn now(&self) -> Time;
}

/// `CLOCK_REALTIME_COARSE`, which the kernel's own file systems use: exact to
/// a timer tick, and cheap.
#[derive(Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Time {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        Time {
            sec: t.tv_sec,
            nsec: t.tv_nsec as u32,
        }
    }
}

/// Options of [`Fs::open`](super::Fs::open).
///
/// ```
/// use pramfs::{ErrorPolicy, MountOptions};
/// let options = MountOptions { errors: ErrorPolicy::Continue, ..MountOptions::default() };
/// assert!(!options.read_only);
/// ```
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// No operation changes anything; what a crash left is replayed if the
    /// region can be written, or in private memory.
    pub read_only: bool,
    /// What happens when damage is found.
    pub errors: ErrorPolicy,
    /// When reading sets the atime.
    pub atime: AtimePolicy,
    /// Directories have an atime, too, by the same policy.
    pub dir_atime: bool,
    /// Bound of the cache of inodes and of the names they are found by, bytes.
    pub cache_bytes: u64,
    /// Freed blocks go back to the host at once, by whole pages of its; otherwise
    /// with [`trim`](super::Engine::trim) only.
    pub discard: bool,
    /// A thread writes lagging times within a second and removes orphans.
    pub background: bool,
    /// Where the time comes from.
    pub clock: Arc<dyn Clock>,
    /// Rules of the journal, to be broken by tests.
    #[cfg(any(test, feature = "testing"))]
    pub rules: Rules,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            read_only: false,
            errors: ErrorPolicy::default(),
            atime: AtimePolicy::default(),
            dir_atime: true,
            cache_bytes: 128 << 20,
            discard: false,
            background: true,
            clock: Arc::new(SystemClock),
            #[cfg(any(test, feature = "testing"))]
            rules: Rules::default(),
        }
    }
}

impl MountOptions {
    /// The rules of the journal: all of them, but in tests.
    pub(super) fn rules(&self) -> Rules {
        #[cfg(any(test, feature = "testing"))]
        let rules = self.rules;
        #[cfg(not(any(test, feature = "testing")))]
        let rules = Rules::default();
        rules
    }
}
