//! The locks, each with its [rank](super::rank). In a release build they are those of
//! parking_lot and crossbeam, and so are the guards.

use std::fmt;
use std::sync::LockResult;

use crossbeam::sync as crossbeam;
#[cfg(not(miri))]
use parking_lot as real;
#[cfg(miri)]
use parking_lot_miri as real;

use super::held::{NO_NUMBER, Tag};
use super::rank::Ranked;

pub use guards::*;

/// parking_lot's mutex.
#[cfg_attr(not(debug_assertions), repr(transparent))]
pub struct Mutex<T, R> {
    tag: Tag<R>,
    lock: real::Mutex<T>,
}

impl<T, R: Ranked> Mutex<T, R> {
    /// Creates an unlocked mutex.
    #[inline]
    pub const fn new(value: T) -> Mutex<T, R> {
        Mutex::numbered(NO_NUMBER, value)
    }

    /// As [`new`](Self::new). A message about the lock order names the number.
    #[inline]
    pub const fn numbered(number: u64, value: T) -> Mutex<T, R> {
        Mutex {
            tag: Tag::new(number),
            lock: real::Mutex::new(value),
        }
    }

    /// Takes the lock; waits for it.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let held = self.tag.wait();
        guard(self.lock.lock(), held)
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let taken = self.lock.try_lock()?;
        Some(guard(taken, self.tag.tried()))
    }

    /// Returns the value without locking, for the only owner.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }
}

impl<T: Default, R: Ranked> Default for Mutex<T, R> {
    #[inline]
    fn default() -> Mutex<T, R> {
        Mutex::new(T::default())
    }
}

impl<T: fmt::Debug, R> fmt::Debug for Mutex<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}

/// parking_lot's lock for readers and writers.
#[cfg_attr(not(debug_assertions), repr(transparent))]
pub struct RwLock<T, R> {
    tag: Tag<R>,
    lock: real::RwLock<T>,
}

impl<T, R: Ranked> RwLock<T, R> {
    /// Creates an unlocked lock.
    #[inline]
    pub const fn new(value: T) -> RwLock<T, R> {
        RwLock::numbered(NO_NUMBER, value)
    }

    /// As [`new`](Self::new). A message about the lock order names the number, and locks of
    /// inodes are ordered by it.
    #[inline]
    pub const fn numbered(number: u64, value: T) -> RwLock<T, R> {
        RwLock {
            tag: Tag::new(number),
            lock: real::RwLock::new(value),
        }
    }

    /// Takes the lock shared; waits for it.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let held = self.tag.wait();
        guard(self.lock.read(), held)
    }

    /// Takes the lock shared if it is free.
    #[inline]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let taken = self.lock.try_read()?;
        Some(guard(taken, self.tag.tried()))
    }

    /// Takes the lock exclusively; waits for it.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let held = self.tag.wait();
        guard(self.lock.write(), held)
    }

    /// Takes the lock of a value that no other thread has yet, and so never waits.
    #[inline]
    pub fn write_unshared(&self) -> RwLockWriteGuard<'_, T> {
        guard(self.lock.write(), self.tag.tried())
    }

    /// Takes the lock exclusively if it is free.
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let taken = self.lock.try_write()?;
        Some(guard(taken, self.tag.tried()))
    }

    /// Whether a thread holds the lock exclusively.
    #[inline]
    pub fn is_locked_exclusive(&self) -> bool {
        self.lock.is_locked_exclusive()
    }

    /// Returns the value without locking, for the only owner.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }
}

impl<T: Default, R: Ranked> Default for RwLock<T, R> {
    #[inline]
    fn default() -> RwLock<T, R> {
        RwLock::new(T::default())
    }
}

impl<T: fmt::Debug, R> fmt::Debug for RwLock<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}

/// crossbeam's lock, whose readers do not contend with each other.
#[cfg_attr(not(debug_assertions), repr(transparent))]
pub struct ShardedLock<T, R> {
    tag: Tag<R>,
    lock: crossbeam::ShardedLock<T>,
}

impl<T, R: Ranked> ShardedLock<T, R> {
    /// Creates an unlocked lock.
    #[inline]
    pub fn new(value: T) -> ShardedLock<T, R> {
        ShardedLock {
            tag: Tag::new(NO_NUMBER),
            lock: crossbeam::ShardedLock::new(value),
        }
    }

    /// Takes the lock shared; waits for it.
    ///
    /// # Errors
    /// A holder panicked.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read(&self) -> LockResult<ShardedLockReadGuard<'_, T>> {
        let held = self.tag.wait();
        guard_result(self.lock.read(), held)
    }

    /// Takes the lock exclusively; waits for it.
    ///
    /// # Errors
    /// A holder panicked.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn write(&self) -> LockResult<ShardedLockWriteGuard<'_, T>> {
        let held = self.tag.wait();
        guard_result(self.lock.write(), held)
    }
}

impl<T: fmt::Debug, R> fmt::Debug for ShardedLock<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}

/// Guards of a debug build: those of the locks, and the note that the thread holds them.
#[cfg(debug_assertions)]
mod guards {
    use std::fmt;
    use std::ops::{Deref, DerefMut};
    use std::sync::{LockResult, PoisonError};
    use std::time::Duration;

    use super::super::held::Held;
    use super::{crossbeam, real};

    /// A held lock.
    #[must_use]
    pub struct Guard<G> {
        guard: G,
        _held: Held,
    }

    /// Of a mutex.
    pub type MutexGuard<'a, T> = Guard<real::MutexGuard<'a, T>>;
    /// Of a lock taken shared.
    pub type RwLockReadGuard<'a, T> = Guard<real::RwLockReadGuard<'a, T>>;
    /// Of a lock taken exclusively.
    pub type RwLockWriteGuard<'a, T> = Guard<real::RwLockWriteGuard<'a, T>>;
    /// Of a sharded lock taken shared.
    pub type ShardedLockReadGuard<'a, T> = Guard<crossbeam::ShardedLockReadGuard<'a, T>>;
    /// Of a sharded lock taken exclusively.
    pub type ShardedLockWriteGuard<'a, T> = Guard<crossbeam::ShardedLockWriteGuard<'a, T>>;

    #[inline]
    pub(super) fn guard<G>(guard: G, held: Held) -> Guard<G> {
        Guard { guard, _held: held }
    }

    #[inline]
    pub(super) fn guard_result<G>(result: LockResult<G>, held: Held) -> LockResult<Guard<G>> {
        match result {
            Ok(taken) => Ok(guard(taken, held)),
            Err(poisoned) => Err(PoisonError::new(guard(poisoned.into_inner(), held))),
        }
    }

    impl<G: Deref> Deref for Guard<G> {
        type Target = G::Target;
        #[inline]
        fn deref(&self) -> &G::Target {
            &self.guard
        }
    }

    impl<G: DerefMut> DerefMut for Guard<G> {
        #[inline]
        fn deref_mut(&mut self) -> &mut G::Target {
            &mut self.guard
        }
    }

    impl<G: fmt::Debug> fmt::Debug for Guard<G> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.guard.fmt(f)
        }
    }

    /// parking_lot's condition variable.
    #[derive(Debug, Default)]
    pub struct Condvar(real::Condvar);

    impl Condvar {
        /// Creates one that no thread waits for.
        pub const fn new() -> Condvar {
            Condvar(real::Condvar::new())
        }

        /// Releases the mutex, waits, and takes it again.
        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            self.0.wait(&mut guard.guard);
        }

        /// As [`wait`](Self::wait), for a limited time.
        pub fn wait_for<T>(
            &self,
            guard: &mut MutexGuard<'_, T>,
            at_most: Duration,
        ) -> real::WaitTimeoutResult {
            self.0.wait_for(&mut guard.guard, at_most)
        }

        /// Wakes all that wait.
        pub fn notify_all(&self) -> usize {
            self.0.notify_all()
        }
    }
}

/// Guards of a release build: those of the locks.
#[cfg(not(debug_assertions))]
mod guards {
    use std::sync::LockResult;

    use super::super::held::Held;
    use super::{crossbeam, real};

    pub use crossbeam::{ShardedLockReadGuard, ShardedLockWriteGuard};
    pub use real::{Condvar, MutexGuard, RwLockReadGuard, RwLockWriteGuard};

    #[inline(always)]
    pub(super) fn guard<G>(guard: G, (): Held) -> G {
        guard
    }

    #[inline(always)]
    pub(super) fn guard_result<G>(result: LockResult<G>, (): Held) -> LockResult<G> {
        result
    }
}

#[cfg(not(debug_assertions))]
const _: () = {
    use super::rank::Leaf;
    assert!(size_of::<Mutex<u64, Leaf>>() == size_of::<real::Mutex<u64>>());
    assert!(size_of::<RwLock<u64, Leaf>>() == size_of::<real::RwLock<u64>>());
    assert!(size_of::<ShardedLock<u64, Leaf>>() == size_of::<crossbeam::ShardedLock<u64>>());
    assert!(align_of::<Mutex<u64, Leaf>>() == align_of::<real::Mutex<u64>>());
    assert!(align_of::<RwLock<u64, Leaf>>() == align_of::<real::RwLock<u64>>());
};

#[cfg(test)]
#[path = "lock_tests.rs"]
mod tests;
