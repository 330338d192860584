//! Stands in for `medium/src/sync.rs`: the same names, on the types of loom.
//!
//! The atomics are loom's, so a relaxed load may return any value that the memory model
//! allows. The locks have the interface of parking_lot, and the ranks of the engine, whose
//! order is not asserted here.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use atomic::{AtomicBool, AtomicUsize, Ordering};
use rank::Ranked;

#[path = "../../medium/src/sync/rank.rs"]
pub mod rank;

/// See `medium/src/sync.rs`.
///
/// loom explores the races of an access only with the last access to the same word. If a
/// thread loads a word and then stores to it, the load hides the store from the loads of other
/// threads, and loom skips the orders in which they follow the store. So each load here first
/// makes a failing compare-exchange on a separate word. It changes and orders nothing, but
/// loom also explores both orders of two of them, and so of two loads.
pub mod atomic {
    use loom::sync::atomic as loom_atomic;
    pub use loom::sync::atomic::Ordering;

    /// A fence; none if weakened.
    pub fn fence(order: Ordering) {
        if order != Ordering::Relaxed {
            loom_atomic::fence(order);
        }
    }

    macro_rules! atomic {
        ($name:ident, $value:ty) => {
            #[derive(Debug)]
            pub struct $name {
                word: loom_atomic::$name,
                /// Never changes.
                loads: loom_atomic::AtomicBool,
            }

            impl $name {
                pub fn new(value: $value) -> $name {
                    $name {
                        word: loom_atomic::$name::new(value),
                        loads: loom_atomic::AtomicBool::new(false),
                    }
                }

                pub fn load(&self, order: Ordering) -> $value {
                    let relaxed = Ordering::Relaxed;
                    let _ = self.loads.compare_exchange(true, true, relaxed, relaxed);
                    self.word.load(order)
                }

                pub fn store(&self, value: $value, order: Ordering) {
                    self.word.store(value, order);
                }

                pub fn compare_exchange(
                    &self,
                    old: $value,
                    new: $value,
                    order: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    self.word.compare_exchange(old, new, order, failure)
                }
            }

            impl Default for $name {
                fn default() -> $name {
                    $name::new(<$value>::default())
                }
            }
        };
    }

    macro_rules! arithmetic {
        ($($name:ident, $value:ty);+) => {$(
            atomic!($name, $value);

            impl $name {
                pub fn fetch_add(&self, n: $value, order: Ordering) -> $value {
                    self.word.fetch_add(n, order)
                }

                pub fn fetch_sub(&self, n: $value, order: Ordering) -> $value {
                    self.word.fetch_sub(n, order)
                }

                pub fn fetch_or(&self, bits: $value, order: Ordering) -> $value {
                    self.word.fetch_or(bits, order)
                }

                pub fn fetch_and(&self, bits: $value, order: Ordering) -> $value {
                    self.word.fetch_and(bits, order)
                }
            }
        )+};
    }

    atomic!(AtomicBool, bool);
    arithmetic!(AtomicI64, i64; AtomicU32, u32; AtomicU64, u64; AtomicUsize, usize);
}

/// The named orderings. A process can be started with one of them weakened.
pub mod order {
    use std::sync::OnceLock;

    use super::atomic::Ordering;

    static WEAKENED: OnceLock<String> = OnceLock::new();

    /// Weakens the ordering of this name in this process, or several, joined by `+`.
    pub fn weaken(name: &str) {
        let _ = WEAKENED.set(name.to_owned());
    }

    /// Returns whether the ordering of this name is weakened.
    pub fn is_weak(name: &str) -> bool {
        WEAKENED
            .get()
            .is_some_and(|weak| weak.split('+').any(|n| n == name))
    }

    fn unless_weak(name: &str, order: Ordering, weak: Ordering) -> Ordering {
        if is_weak(name) { weak } else { order }
    }

    /// Weakened: relaxed, or no fence.
    pub fn acquire(name: &'static str) -> Ordering {
        unless_weak(name, Ordering::Acquire, Ordering::Relaxed)
    }

    /// Weakened: relaxed, or no fence.
    pub fn release(name: &'static str) -> Ordering {
        unless_weak(name, Ordering::Release, Ordering::Relaxed)
    }

    /// Weakened: a fence that acquires and releases.
    pub fn seq_cst(name: &'static str) -> Ordering {
        unless_weak(name, Ordering::SeqCst, Ordering::AcqRel)
    }
}

/// parking_lot's mutex.
#[derive(Debug)]
pub struct Mutex<T, R>(loom::sync::Mutex<T>, PhantomData<fn() -> R>);

pub type MutexGuard<'a, T> = loom::sync::MutexGuard<'a, T>;

impl<T, R: Ranked> Mutex<T, R> {
    pub fn new(value: T) -> Mutex<T, R> {
        Mutex(loom::sync::Mutex::new(value), PhantomData)
    }

    pub fn numbered(_number: u64, value: T) -> Mutex<T, R> {
        Mutex::new(value)
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("no holder panics")
    }
}

impl<T: Default, R: Ranked> Default for Mutex<T, R> {
    fn default() -> Mutex<T, R> {
        Mutex::new(T::default())
    }
}

/// parking_lot's lock, as seen by a thread without the lock.
///
/// parking_lot keeps all of its state in one word. An exclusive lock sets a bit there by a
/// compare-exchange with acquire ordering, and clears it by one with release ordering.
/// `is_locked_exclusive` is a relaxed load of the word. loom's lock does the waiting, and
/// orders its holders like the word does.
#[derive(Debug)]
pub struct RwLock<T, R> {
    word: AtomicUsize,
    lock: loom::sync::RwLock<T>,
    rank: PhantomData<fn() -> R>,
}

pub type RwLockReadGuard<'a, T> = loom::sync::RwLockReadGuard<'a, T>;

const FREE: usize = 0;
const WRITER: usize = 8;

impl<T, R: Ranked> RwLock<T, R> {
    pub fn new(value: T) -> RwLock<T, R> {
        RwLock {
            word: AtomicUsize::new(FREE),
            lock: loom::sync::RwLock::new(value),
            rank: PhantomData,
        }
    }

    pub fn numbered(_number: u64, value: T) -> RwLock<T, R> {
        RwLock::new(value)
    }

    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.lock.read().expect("no holder panics")
    }

    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.lock.try_read().ok()
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.locked(self.lock.write().expect("no holder panics"))
    }

    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        Some(self.locked(self.lock.try_write().ok()?))
    }

    fn locked<'a>(&'a self, state: loom::sync::RwLockWriteGuard<'a, T>) -> RwLockWriteGuard<'a, T> {
        let was = (self.word).compare_exchange(FREE, WRITER, Ordering::Acquire, Ordering::Relaxed);
        assert_eq!(was, Ok(FREE));
        let word = &self.word;
        RwLockWriteGuard { word, state }
    }

    pub fn is_locked_exclusive(&self) -> bool {
        self.word.load(Ordering::Relaxed) & WRITER != 0
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut().expect("no holder panics")
    }
}

pub struct RwLockWriteGuard<'a, T> {
    word: &'a AtomicUsize,
    state: loom::sync::RwLockWriteGuard<'a, T>,
}

impl<T> fmt::Debug for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RwLockWriteGuard")
    }
}

impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.state
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.state
    }
}

impl<T> Drop for RwLockWriteGuard<'_, T> {
    fn drop(&mut self) {
        let was = (self.word).compare_exchange(WRITER, FREE, Ordering::Release, Ordering::Relaxed);
        assert_eq!(was, Ok(WRITER));
    }
}

/// The `OnceLock` of the standard library: a value behind a flag that publishes it.
#[derive(Debug)]
pub struct OnceLock<T> {
    is_set: AtomicBool,
    making: Mutex<(), rank::Leaf>,
    value: std::sync::OnceLock<T>,
}

impl<T> OnceLock<T> {
    pub fn new() -> OnceLock<T> {
        OnceLock {
            is_set: AtomicBool::new(false),
            making: Mutex::new(()),
            value: std::sync::OnceLock::new(),
        }
    }

    pub fn get(&self) -> Option<&T> {
        match self.is_set.load(Ordering::Acquire) {
            true => self.value.get(),
            false => None,
        }
    }

    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        let _alone = self.making.lock();
        if self.value.get().is_none() {
            let _ = self.value.set(make());
            self.is_set.store(true, Ordering::Release);
        }
        self.value.get().expect("set above")
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> OnceLock<T> {
        OnceLock::new()
    }
}
