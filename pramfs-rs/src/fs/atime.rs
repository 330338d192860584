//! The atime policy of a mount. A remount may change it during running operations.
//!
//! Running operations may still apply the old policy. The threshold, which saves most
//! reads a look at the clock, is set anew at each timer tick. If the policy changes while
//! the timer sets the threshold, the next tick corrects it.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, Ordering};

use super::Engine;
use super::options::{AtimePolicy, MountOptions};

/// The policy in force.
#[derive(Debug)]
pub(super) struct AtimeRule {
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
    pub(super) fn new(options: &MountOptions) -> AtimeRule {
        let rule = AtimeRule {
            policy: AtomicU8::new(NEVER),
            dirs: AtomicBool::new(options.dir_atime),
            threshold: AtomicI64::new(i64::MIN),
        };
        rule.set(options.atime);
        rule
    }

    #[inline]
    pub(super) fn policy(&self) -> AtimePolicy {
        match self.policy.load(Ordering::Relaxed) {
            NEVER => AtimePolicy::NoAtime,
            STRICT => AtimePolicy::StrictAtime,
            _ => AtimePolicy::Relatime,
        }
    }

    /// Whether reads of directories set the atime as well.
    #[inline]
    pub(super) fn dirs(&self) -> bool {
        self.dirs.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn threshold(&self) -> i64 {
        self.threshold.load(Ordering::Relaxed)
    }

    /// Sets the threshold for the current second `sec`.
    pub(super) fn set_threshold(&self, sec: i64) {
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
