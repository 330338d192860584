//! The locks, each with its [rank](super::rank).

use std::fmt;

use crossbeam::sync as crossbeam;
#[cfg(not(miri))]
use parking_lot as real;
#[cfg(miri)]
use parking_lot_miri as real;

use super::rank::Ranked;
use ops::{NO_NUMBER, Tag};

#[cfg(debug_assertions)]
#[path = "checked.rs"]
mod ops;
#[cfg(not(debug_assertions))]
#[path = "unchecked.rs"]
mod ops;

pub use ops::*;

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
}

impl<T: fmt::Debug, R> fmt::Debug for ShardedLock<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}

#[cfg(test)]
#[path = "lock_tests.rs"]
mod tests;
