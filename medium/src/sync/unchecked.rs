//! The locks of a release build are those of parking_lot and crossbeam, and so are the
//! guards. They are not wrapped in functions: the compiler inlines calls only so deep.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use super::super::rank::Ranked;
use super::{Mutex, RwLock, ShardedLock, crossbeam, real};

pub use crossbeam::{ShardedLockReadGuard, ShardedLockWriteGuard};
pub use real::{Condvar, MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// The number of a lock without one.
pub(super) const NO_NUMBER: u64 = u64::MAX;

/// Part of each lock: nothing but its type.
pub(super) struct Tag<R>(PhantomData<fn() -> R>);

impl<R: Ranked> Tag<R> {
    #[inline(always)]
    pub(super) const fn new(_number: u64) -> Tag<R> {
        Tag(PhantomData)
    }
}

macro_rules! is_the_real_lock {
    ($($lock:ident = $real:ty),+) => {$(
        impl<T, R> Deref for $lock<T, R> {
            type Target = $real;
            #[inline(always)]
            fn deref(&self) -> &$real {
                &self.lock
            }
        }

        impl<T, R> DerefMut for $lock<T, R> {
            #[inline(always)]
            fn deref_mut(&mut self) -> &mut $real {
                &mut self.lock
            }
        }

        const _: () = assert!(
            size_of::<$lock<u64, super::super::rank::Leaf>>() == size_of::<Real<$lock<u64, ()>>>()
        );
    )+};
}

is_the_real_lock!(
    Mutex = real::Mutex<T>,
    RwLock = real::RwLock<T>,
    ShardedLock = crossbeam::ShardedLock<T>
);

type Real<L> = <L as Deref>::Target;
