//! A region that is full while something is being removed from it.
//!
//! `close` and `unlink` return before the kernel has let go of the file, and
//! what it lets go of last is what frees the blocks. A program that removes a
//! file and writes another one expects the space to be there; so whoever is
//! told that there is none has forgotten inodes freed, waits for removals that
//! are under way, and asks again. Where nothing is under way, something may be
//! on its way here: the kernel sends what it lets go of and does not wait for us
//! to have read it. For that a moment is given, but not again for a second where
//! it was in vain and no name has been removed since.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pramfs::{Error, Result, inode::Fs};

/// How often an operation asks again at most, and waits each time.
const ATTEMPTS: u32 = 16;
const WAIT: Duration = Duration::from_millis(250);
/// How often it asks again for what may be on its way here, and waits each time.
const RETRY_COUNT: u32 = 4;
const RETRY_DELAY: Duration = Duration::from_millis(25);
/// For how long a region is full that was full after these.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// PendingFrees under way.
#[derive(Debug, Default)]
pub(super) struct PendingFrees {
    under_way: Mutex<u64>,
    one_less: Condvar,
    /// When moments were last given in vain.
    full: Mutex<Option<Instant>>,
}

impl PendingFrees {
    fn count(&self) -> MutexGuard<'_, u64> {
        // A count is never left half changed.
        self.under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what may free something.
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

    /// Notes that a name was removed: what it led to may be on its way here.
    pub(super) fn note_removed(&self) {
        *self.full() = None;
    }

    /// Waits for the end of a removal; tells whether there was one.
    fn wait(&self) -> bool {
        let count = self.count();
        if *count == 0 {
            return false;
        }
        // Woken up or not, the caller asks again.
        let _woken = self.one_less.wait_timeout(count, WAIT);
        true
    }

    /// Does what takes space, again if need be. An operation for which there
    /// was no space has done nothing.
    ///
    /// # Errors
    /// Those of the operation.
    pub(super) fn wait_for_space<T>(
        &self,
        fs: &Fs,
        operation: impl Fn() -> Result<T>,
    ) -> Result<T> {
        self.wait_or(|| fs.free_forgotten(), operation)
    }

    /// As [`wait_for_space`](Self::wait_for_space); `free` tells whether it has
    /// freed something.
    fn wait_or<T>(&self, free: impl Fn() -> bool, operation: impl Fn() -> Result<T>) -> Result<T> {
        let (mut moments, mut helped) = (0, false);
        for _ in 0..ATTEMPTS {
            match operation() {
                // Not twice in a row: others may be taking what it frees.
                Err(Error::NoSpace(_)) if !helped && free() => {
                    helped = true;
                    continue;
                }
                Err(Error::NoSpace(_)) if self.wait() => {}
                Err(Error::NoSpace(_)) if moments < RETRY_COUNT && !self.is_full() => {
                    moments += 1;
                    std::thread::sleep(RETRY_DELAY);
                }
                Err(e @ Error::NoSpace(_)) => {
                    if moments == RETRY_COUNT {
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

    fn is_full(&self) -> bool {
        self.full().is_some_and(|at| at.elapsed() < RETRY_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_full_region_is_full_after_a_moment_and_then_at_once() {
        let removals = PendingFrees::default();
        let tried = std::cell::Cell::new(0);
        let operation = || {
            tried.set(tried.get() + 1);
            Err::<(), _>(Error::NoSpace("full"))
        };
        for expected in [RETRY_COUNT + 1, RETRY_COUNT + 2] {
            assert!(matches!(
                removals.wait_or(|| false, operation),
                Err(Error::NoSpace(_))
            ));
            assert_eq!(tried.get(), expected);
        }
    }

    #[test]
    fn a_full_region_may_not_be_once_a_name_is_removed() {
        let (removals, tried) = (PendingFrees::default(), std::cell::Cell::new(0));
        let full = || {
            tried.set(tried.get() + 1);
            Err::<(), _>(Error::NoSpace("full"))
        };
        removals.wait_or(|| false, full).unwrap_err();
        removals.note_removed();
        tried.set(0);
        removals.wait_or(|| false, full).unwrap_err();
        assert_eq!(tried.get(), RETRY_COUNT + 1);
    }

    #[test]
    fn space_that_is_about_to_be_freed_is_waited_for() {
        let (removals, tried) = (PendingFrees::default(), std::cell::Cell::new(0));
        let operation = || {
            tried.set(tried.get() + 1);
            if tried.get() < 3 {
                Err(Error::NoSpace("full"))
            } else {
                Ok(7)
            }
        };
        assert_eq!(removals.wait_or(|| false, operation).unwrap(), 7);
    }

    #[test]
    fn space_that_is_being_freed_is_waited_for() {
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
            assert_eq!(removals.wait_or(|| false, operation).unwrap(), 7);
        });
    }
}
