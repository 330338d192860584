//! When a read sets the atime: the policy of the mount, which a remount may
//! change under running operations.
//!
//! They may act by the policy of before for a moment. The line of seconds, which
//! spares most reads a look at the clock, is drawn anew by the timer: whoever
//! changes the policy while the timer draws it is put right by the next time.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, Ordering};

use super::Engine;
use super::options::{AtimePolicy, MountOptions};

/// The policy in force.
#[derive(Debug)]
pub(super) struct AtimeRule {
    policy: AtomicU8,
    dirs: AtomicBool,
    /// A read leaves the atime alone where it is settled for this second: the one
    /// after the timer's, if the mount sets atimes by relatime; before all times
    /// if it sets none, and behind them where somebody has to look.
    line: AtomicI64,
}

const NEVER: u8 = AtimePolicy::NoAtime as u8;
const STRICT: u8 = AtimePolicy::StrictAtime as u8;

impl AtimeRule {
    pub(super) fn new(options: &MountOptions) -> AtimeRule {
        let rule = AtimeRule {
            policy: AtomicU8::new(NEVER),
            dirs: AtomicBool::new(options.dir_atime),
            line: AtomicI64::new(i64::MIN),
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

    /// Directories have an atime, too.
    #[inline]
    pub(super) fn dirs(&self) -> bool {
        self.dirs.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn line(&self) -> i64 {
        self.line.load(Ordering::Relaxed)
    }

    /// Draws the line where it is the second `sec`.
    pub(super) fn draw_line(&self, sec: i64) {
        let line = match self.policy() {
            AtimePolicy::NoAtime => i64::MIN,
            AtimePolicy::Relatime => sec.saturating_add(1),
            AtimePolicy::StrictAtime => i64::MAX,
        };
        self.line.store(line, Ordering::Relaxed);
    }

    fn set(&self, policy: AtimePolicy) {
        self.policy.store(policy as u8, Ordering::Relaxed);
        // Until the timer comes by, everybody has to look, by relatime as well.
        self.draw_line(i64::MAX);
    }
}

impl Engine {
    /// The policy by which reads set the atime, and whether directories have one.
    pub fn atime_policy(&self) -> (AtimePolicy, bool) {
        (self.atime.policy(), self.atime.dirs())
    }

    /// Changes when reads set the atime of files, as a remount does.
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

    /// Changes whether directories have an atime.
    pub fn set_dir_atime(&self, on: bool) {
        self.atime.dirs.store(on, Ordering::Relaxed);
    }
}
