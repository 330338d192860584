//! The locks of a debug build: each that may wait asserts the order.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, PoisonError};
use std::time::Duration;

use super::super::held::Held;
pub(super) use super::super::held::{NO_NUMBER, Tag};
use super::super::rank::Ranked;
use super::{Mutex, RwLock, ShardedLock, crossbeam, real};

impl<T, R: Ranked> Mutex<T, R> {
    /// Takes the lock; waits for it.
    #[inline]
    #[track_caller]
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

impl<T, R: Ranked> RwLock<T, R> {
    /// Takes the lock shared; waits for it.
    #[inline]
    #[track_caller]
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
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let held = self.tag.wait();
        guard(self.lock.write(), held)
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

impl<T, R: Ranked> ShardedLock<T, R> {
    /// Takes the lock shared; waits for it.
    ///
    /// # Errors
    /// A holder panicked.
    #[inline]
    #[track_caller]
    pub fn read(&self) -> LockResult<ShardedLockReadGuard<'_, T>> {
        let held = self.tag.wait();
        guard_result(self.lock.read(), held)
    }

    /// Takes the lock exclusively; waits for it.
    ///
    /// # Errors
    /// A holder panicked.
    #[inline]
    #[track_caller]
    pub fn write(&self) -> LockResult<ShardedLockWriteGuard<'_, T>> {
        let held = self.tag.wait();
        guard_result(self.lock.write(), held)
    }
}

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
fn guard<G>(guard: G, held: Held) -> Guard<G> {
    Guard { guard, _held: held }
}

#[inline]
fn guard_result<G>(result: LockResult<G>, held: Held) -> LockResult<Guard<G>> {
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
