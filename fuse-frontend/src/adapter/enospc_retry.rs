//! Retries after ENOSPC while a removal is still freeing blocks.
//!
//! `close` and `unlink` return before the kernel has sent its last `release` or `forget`
//! of the file, and only that frees the blocks. But a program that removes a file and
//! writes another one expects the space at once. So after ENOSPC an operation
//! 1. frees orphans and retries;
//! 2. waits for frees in progress and retries;
//! 3. if none is in progress, retries up to `RETRY_COUNT` times with a delay: a request
//!    may still be in the kernel's queue, because the kernel does not wait until the
//!    server has read it.
//!
//! If step 3 fails, it is skipped for the next second (`RETRY_PAUSE`), unless a name is
//! removed meanwhile.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pramfs::{Error, Result, inode::Fs};

/// Limit of retries of an operation, and the wait for a free in progress.
const ATTEMPTS: u32 = 16;
const WAIT: Duration = Duration::from_millis(250);
/// Number and delay of retries for requests still in the kernel's queue.
const RETRY_COUNT: u32 = 4;
const RETRY_DELAY: Duration = Duration::from_millis(25);
/// After these retries have failed, further ones are skipped for this time.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The frees in progress, and the last failure of the retries.
#[derive(Debug, Default)]
pub(super) struct PendingFrees {
    under_way: Mutex<u64>,
    one_less: Condvar,
    /// When the delayed retries last failed.
    full: Mutex<Option<Instant>>,
}

impl PendingFrees {
    fn count(&self) -> MutexGuard<'_, u64> {
        // A count is never left half changed.
        self.under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work`, which may free space, and counts it as a free in progress.
    pub(super) fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        struct Done<'a>(&'a PendingFrees);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                *self.0.count() -= 1;
                self.0.one_less.notify_all();
            }
        }
        *self.count() += 1;
        let _done = Done(self);
        work()
    }

    /// Notes the removal of a name: the request that frees its file may follow.
    pub(super) fn note_removed(&self) {
        *self.full() = None;
    }

    /// Waits for the end of a free in progress. Returns false if none is.
    fn wait(&self) -> bool {
        let count = self.count();
        if *count == 0 {
            return false;
        }
        // After a wakeup or a timeout, the caller retries.
        let _woken = self.one_less.wait_timeout(count, WAIT);
        true
    }

    /// Runs an operation that needs space, with retries after ENOSPC. A failed operation
    /// must have had no effect.
    ///
    /// # Errors
    /// Errors of the operation.
    pub(super) fn wait_for_space<T>(
        &self,
        fs: &Fs,
        operation: impl Fn() -> Result<T>,
    ) -> Result<T> {
        self.wait_or(RETRY_PAUSE, || fs.free_forgotten(), operation)
    }

    /// As [`wait_for_space`](Self::wait_for_space). `free` returns whether it has freed
    /// anything; for `pause`, failed retries are not repeated.
    fn wait_or<T>(
        &self,
        pause: Duration,
        free: impl Fn() -> bool,
        operation: impl Fn() -> Result<T>,
    ) -> Result<T> {
        let (mut retries, mut helped) = (0, false);
        for _ in 0..ATTEMPTS {
            match operation() {
                // Not twice in a row: other operations may take the freed space.
                Err(Error::NoSpace(_)) if !helped && free() => {
                    helped = true;
                    continue;
                }
                Err(Error::NoSpace(_)) if self.wait() => {}
                Err(Error::NoSpace(_)) if retries < RETRY_COUNT && !self.is_full(pause) => {
                    retries += 1;
                    std::thread::sleep(RETRY_DELAY);
                }
                Err(e @ Error::NoSpace(_)) => {
                    if retries == RETRY_COUNT {
                        *self.full() = Some(Instant::now());
                    }
                    return Err(e);
                }
                result => return result,
            }
            helped = false;
        }
        operation()
    }

    fn full(&self) -> MutexGuard<'_, Option<Instant>> {
        self.full.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_full(&self, pause: Duration) -> bool {
        self.full().is_some_and(|at| at.elapsed() < pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Longer than any test takes on a loaded machine.
    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn enospc_retries_then_fails_at_once() {
        let removals = PendingFrees::default();
        let tried = std::cell::Cell::new(0);
        let operation = || {
            tried.set(tried.get() + 1);
            Err::<(), _>(Error::NoSpace("full"))
        };
        for expected in [RETRY_COUNT + 1, RETRY_COUNT + 2] {
            assert!(matches!(
                removals.wait_or(LONG, || false, operation),
                Err(Error::NoSpace(_))
            ));
            assert_eq!(tried.get(), expected);
        }
    }

    #[test]
    fn removal_restarts_enospc_retries() {
        let (removals, tried) = (PendingFrees::default(), std::cell::Cell::new(0));
        let full = || {
            tried.set(tried.get() + 1);
            Err::<(), _>(Error::NoSpace("full"))
        };
        removals.wait_or(LONG, || false, full).unwrap_err();
        removals.note_removed();
        tried.set(0);
        removals.wait_or(LONG, || false, full).unwrap_err();
        assert_eq!(tried.get(), RETRY_COUNT + 1);
    }

    #[test]
    fn enospc_retries_until_space_appears() {
        let (removals, tried) = (PendingFrees::default(), std::cell::Cell::new(0));
        let operation = || {
            tried.set(tried.get() + 1);
            if tried.get() < 3 {
                Err(Error::NoSpace("full"))
            } else {
                Ok(7)
            }
        };
        assert_eq!(removals.wait_or(LONG, || false, operation).unwrap(), 7);
    }

    #[test]
    fn enospc_waits_for_running_free() {
        let (removals, freed) = (PendingFrees::default(), AtomicBool::new(false));
        let (started, has_started) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                removals.during(|| {
                    started.send(()).unwrap();
                    std::thread::sleep(Duration::from_millis(20));
                    freed.store(true, Ordering::Release);
                });
            });
            has_started.recv().unwrap();
            let operation = || match freed.load(Ordering::Acquire) {
                true => Ok(7),
                false => Err(Error::NoSpace("full")),
            };
            assert_eq!(removals.wait_or(LONG, || false, operation).unwrap(), 7);
        });
    }
}
