//! The atime policy of a mount. A remount may change it during running operations.
//!
//! Running operations may still apply the old policy. The threshold, which saves most
//! reads a look at the clock, is set anew at each timer tick. If the policy changes while
//! the timer sets the threshold, the next tick corrects it.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, Ordering};

use crate::fs::Engine;
use crate::fs::options::{AtimePolicy, MountOptions};
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::inode::FL_NOATIME;
use pramfs_medium::types::Time;

/// Seconds after which relatime sets the atime in any case.
const DAY: i64 = 24 * 60 * 60;

/// Returns the time, in seconds, until which relatime leaves the atime of an inode
/// unchanged; `i64::MIN` if the inode has changed since its last read.
#[inline]
pub(crate) fn relatime_until(disk: &DiskInode) -> i64 {
    if disk.atime() > disk.mtime() && disk.atime() > disk.ctime() {
        // Below `i64::MAX`, the threshold at which every read checks the inode.
        disk.atime_sec.saturating_add(DAY).min(i64::MAX - 1)
    } else {
        i64::MIN
    }
}

/// The current policy.
#[derive(Debug)]
pub(crate) struct AtimeRule {
    policy: AtomicU8,
    dirs: AtomicBool,
    /// Threshold, in seconds. A read leaves the atime unchanged if the inode needs no
    /// update until this second. The values:
    ///
    /// * relatime: the second after the last timer tick
    /// * noatime: `i64::MIN`, so that no read updates
    /// * strictatime, and relatime before the first tick: `i64::MAX`, so that every read
    ///   checks the inode
    threshold: AtomicI64,
}

const NEVER: u8 = AtimePolicy::NoAtime as u8;
const STRICT: u8 = AtimePolicy::StrictAtime as u8;

impl AtimeRule {
    pub(crate) fn new(options: &MountOptions) -> AtimeRule {
        let rule = AtimeRule {
            policy: AtomicU8::new(NEVER),
            dirs: AtomicBool::new(options.dir_atime),
            threshold: AtomicI64::new(i64::MIN),
        };
        rule.set(options.atime);
        rule
    }

    #[inline]
    pub(crate) fn policy(&self) -> AtimePolicy {
        match self.policy.load(Ordering::Relaxed) {
            NEVER => AtimePolicy::NoAtime,
            STRICT => AtimePolicy::StrictAtime,
            _ => AtimePolicy::Relatime,
        }
    }

    /// Whether reads of directories set the atime as well.
    #[inline]
    pub(crate) fn dirs(&self) -> bool {
        self.dirs.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn threshold(&self) -> i64 {
        self.threshold.load(Ordering::Relaxed)
    }

    /// Whether a read at `now` sets the atime of an inode.
    #[inline]
    pub(crate) fn is_due(&self, disk: &DiskInode, now: impl FnOnce() -> Time) -> bool {
        if disk.flags & FL_NOATIME != 0 {
            return false;
        }
        match self.policy() {
            AtimePolicy::NoAtime => false,
            AtimePolicy::StrictAtime => true,
            AtimePolicy::Relatime => match relatime_until(disk) {
                i64::MIN => true,
                until => now().sec >= until,
            },
        }
    }

    /// Sets the threshold for the current second `sec`.
    pub(crate) fn set_threshold(&self, sec: i64) {
        let threshold = match self.policy() {
            AtimePolicy::NoAtime => i64::MIN,
            AtimePolicy::Relatime => sec.saturating_add(1),
            AtimePolicy::StrictAtime => i64::MAX,
        };
        self.threshold.store(threshold, Ordering::Relaxed);
    }

    fn set(&self, policy: AtimePolicy) {
        self.policy.store(policy as u8, Ordering::Relaxed);
        // Until the next timer tick every read checks the inode, with relatime as well.
        self.set_threshold(i64::MAX);
    }
}

impl Engine {
    /// Returns the atime policy, and whether directories have an atime.
    pub fn atime_policy(&self) -> (AtimePolicy, bool) {
        (self.atime.policy(), self.atime.dirs())
    }

    /// Sets the atime policy of files, as a remount does.
    ///
    /// ```
    /// # use pramfs::format::{FormatOptions, format};
    /// # use pramfs::pmem::{HeapBackend, Region};
    /// # use pramfs::{inode::Fs, AtimePolicy, MountOptions};
    /// # let region = Region::new("example", HeapBackend::boxed(4 << 20));
    /// # format(&region, &FormatOptions::default())?;
    /// let fs = Fs::open(region, MountOptions::default())?;
    /// fs.set_atime_policy(AtimePolicy::NoAtime);
    /// assert_eq!(fs.atime_policy(), (AtimePolicy::NoAtime, true));
    /// # Ok::<(), pramfs::Error>(())
    /// ```
    pub fn set_atime_policy(&self, policy: AtimePolicy) {
        self.atime.set(policy);
    }

    /// Sets whether directories have an atime.
    pub fn set_dir_atime(&self, on: bool) {
        self.atime.dirs.store(on, Ordering::Relaxed);
    }
}
