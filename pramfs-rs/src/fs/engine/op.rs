//! The frame of every operation.
//!
//! Invariant: an operation that returns success ran on an open file system without a
//! failure, under the shared gate, and without a new fault of the medium. An operation that
//! panics fails the engine. A protected region is open to the thread of a change from the
//! first store of the change to its end, through its retries. The retry for room is in
//! [`room`](crate::fs::engine::room), the reaction to damage in
//! [`damage`](crate::fs::engine::damage).

use pramfs_medium::pmem::RegionAccess as _;
use std::sync::atomic::Ordering;

use super::{Engine, Need};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::pmem::PmemError;

/// Fails the engine when an operation panics: the locks that it held may guard
/// incomplete changes.
struct FailOnPanic<'a>(&'a Engine);

impl FailOnPanic<'_> {
    /// Notes that the operation has ended without a panic. (`thread::panicking` is not
    /// enough: a destructor of an unwinding thread may call an operation, which succeeds.)
    #[inline]
    fn disarm(self) {
        std::mem::forget(self);
    }
}

impl Drop for FailOnPanic<'_> {
    #[cold]
    fn drop(&mut self) {
        self.0.vol.fail();
    }
}

impl Engine {
    /// Runs one operation. Refuses it on a failed file system, and a change on a
    /// read-only one. Returns EIO if the medium faulted meanwhile, and records
    /// damage. If a block has no room on the host, the operation
    /// [runs again](Self::retry_for_room).
    #[inline]
    pub(crate) fn op<T>(&self, need: Need, f: impl FnMut() -> Result<T>) -> Result<T> {
        self.op_or_mend(need, f, |_| false)
    }

    /// As [`op`](Self::op). If the operation fails, and `mend` has removed the reason, it runs
    /// again.
    #[inline(always)]
    pub(crate) fn op_or_mend<T>(
        &self,
        need: Need,
        mut f: impl FnMut() -> Result<T>,
        mend: impl Fn(&Error) -> bool,
    ) -> Result<T> {
        if need == Need::Write {
            self.vol.region.wait_for_aside();
        }
        // Over all attempts: room is taken through windows that the scope joins.
        let mut scope = match need {
            Need::Write => self.vol.region.write_scope(),
            Need::Read => None,
        };
        self.retry_for_room(
            || self.attempt(need, &mut f),
            |e| {
                // What mends may wait, which nobody does with the region open.
                scope.take();
                mend(e)
            },
        )
    }

    #[inline]
    fn attempt<T>(&self, need: Need, f: impl FnOnce() -> Result<T>) -> Result<T> {
        let _gate = self.enter()?;
        if need == Need::Write && self.read_only.load(Ordering::Relaxed) {
            return Err(Error::ReadOnly(
                "the mount is read-only, or damage was found",
            ));
        }
        let faults = self.vol.region.faults_seen();
        let panic = FailOnPanic(self);
        let result = f();
        let result = self.judge(result, faults);
        panic.disarm();
        result
    }

    /// Returns the final result of an operation. `faults` is the number of faults before it.
    #[inline]
    fn judge<T>(&self, result: Result<T>, faults: u64) -> Result<T> {
        if self.vol.region.faults_seen() != faults {
            let e = Error::io(format!(
                "the medium of {} failed during an access",
                self.vol.region.info().name
            ));
            self.note_error(&e);
            return Err(e);
        }
        if self.vol.has_failed() && result.is_ok() {
            // A previous holder of a lock may have failed. This result may rest
            // on its incomplete change.
            return Err(self.ended());
        }
        match &result {
            Err(e @ Error::Corrupt { .. }) => self.note_damage(e),
            // The error policy was applied when the loss was found.
            Err(Error::Lost { ino, offset }) => self.note_lost(*ino, *offset),
            Err(e @ Error::WrongSum { ino, offset, block }) => {
                self.note_wrong_sum(e, *ino, *offset, *block);
            }
            // A page that failed earlier.
            Err(e @ Error::Pmem(PmemError::Faulted { .. })) => self.note_error(e),
            _ => {}
        }
        result
    }
}
