//! Mount options.

use std::fmt::Debug;
use std::sync::Arc;

use pramfs_medium::journal::Rules;

use crate::fs::clock::{Clock, SystemClock};
use crate::fs::survivor::Survivor;

/// The reaction to damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ErrorPolicy {
    /// The operation fails; others continue.
    Continue,
    /// The mount becomes read-only.
    #[default]
    RemountRo,
    /// The process is aborted.
    Panic,
}

/// How bytes of files change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DataMode {
    /// In place: a crash may leave a part of a write, in units of 8 aligned bytes.
    #[default]
    InPlace,
    /// Whole or not at all, up to 1 MiB. Longer changes are atomic in parts, in the order of
    /// the file; the parts end at multiples of 1 MiB in the file.
    Atomic,
}

/// When reading a file sets its atime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AtimePolicy {
    /// Never.
    NoAtime,
    /// Once after each change of the file, and at least once a day.
    #[default]
    Relatime,
    /// On each read.
    StrictAtime,
}

/// Options of [`Fs::open`](crate::fs::Fs::open).
///
/// ```
/// use pramfs::{ErrorPolicy, MountOptions};
/// let options = MountOptions { errors: ErrorPolicy::Continue, ..MountOptions::default() };
/// assert!(!options.read_only);
/// ```
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// Refuses all changes. After a crash the journal is replayed to the region if it
    /// is writable, else in private memory.
    pub read_only: bool,
    /// The reaction to damage.
    pub errors: ErrorPolicy,
    /// How bytes of all files change. A file with the flag of `chattr +j` changes atomically in
    /// either mode.
    pub data: DataMode,
    /// When reading a file sets its atime.
    pub atime: AtimePolicy,
    /// Applies the atime policy to directories.
    pub dir_atime: bool,
    /// Limit of the cache of inodes and names, bytes.
    pub cache_bytes: u64,
    /// Returns freed blocks to the host immediately, in whole pages of the host.
    /// Otherwise only [`trim`](crate::fs::Engine::trim) returns them.
    pub discard: bool,
    /// Starts a thread that writes lazy times within a second and frees orphans.
    pub background: bool,
    /// The source of time.
    pub clock: Arc<dyn Clock>,
    /// What outlives this process, if another one may take over from it.
    pub survivor: Option<Arc<dyn Survivor>>,
    /// Rules of the journal, which tests can break.
    #[cfg(any(test, feature = "testing"))]
    pub rules: Rules,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            read_only: false,
            errors: ErrorPolicy::default(),
            data: DataMode::default(),
            atime: AtimePolicy::default(),
            dir_atime: true,
            cache_bytes: 128 << 20,
            discard: false,
            background: true,
            clock: Arc::new(SystemClock),
            survivor: None,
            #[cfg(any(test, feature = "testing"))]
            rules: Rules::default(),
        }
    }
}

impl MountOptions {
    /// Returns the rules of the journal: all of them, except in tests.
    pub(crate) fn rules(&self) -> Rules {
        #[cfg(any(test, feature = "testing"))]
        let rules = self.rules;
        #[cfg(not(any(test, feature = "testing")))]
        let rules = Rules::default();
        rules
    }
}
