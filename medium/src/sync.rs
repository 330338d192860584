//! The locks of the engine. All of its code takes them from here.
//!
//! Each lock has a [`rank`], by its type. A debug build asserts that a thread waits for
//! locks in the order of their ranks only; a release build has nothing of it.
//!
//! The locks are parking_lot's and crossbeam's. Miri gets a later version of parking_lot: it
//! checks the types of the arguments of a system call, and parking_lot before 0.13 passes
//! others than a futex has. That version needs a later compiler than the engine
//! does, so it is built for Miri alone, which is never older. Waiting, waking and
//! the order of what is seen are those of the real locks in both.

#[cfg(debug_assertions)]
mod held;
mod locks;
pub mod rank;

pub use locks::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, ShardedLock,
    ShardedLockReadGuard, ShardedLockWriteGuard,
};

/// Takes the lock of a value that no other thread has yet. It cannot wait, so its rank may be
/// any. The thread takes no other lock in `take`.
#[inline(always)]
pub fn unshared<G>(take: impl FnOnce() -> G) -> G {
    #[cfg(debug_assertions)]
    let _exempt = held::Exempt::new();
    take()
}

/// Asserts in a debug build that this thread holds no lock of the rank `from` or a later one.
///
/// # Panics
/// If it holds one.
#[inline(always)]
#[cfg_attr(debug_assertions, track_caller)]
pub fn assert_none_held(from: rank::Rank) {
    #[cfg(debug_assertions)]
    held::assert_none(from);
    #[cfg(not(debug_assertions))]
    let _ = from;
}

/// Atomics and fences. The model checker replaces them, see [`order`].
pub mod atomic {
    pub use std::sync::atomic::{
        AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
}
pub use std::sync::OnceLock;

/// The orderings that a lock-free protocol relies on, by name.
///
/// Each function returns the ordering that it is named after. The name is for the model
/// checker alone: `make loom` compiles the same sources with another `sync` module, weakens
/// one named ordering after the other, and expects the protocol's model to fail each time.
/// `docs/development.md` lists the protocols.
pub mod order {
    use super::atomic::Ordering;

    /// [`Ordering::Acquire`].
    #[inline(always)]
    pub const fn acquire(_name: &'static str) -> Ordering {
        Ordering::Acquire
    }

    /// [`Ordering::Release`].
    #[inline(always)]
    pub const fn release(_name: &'static str) -> Ordering {
        Ordering::Release
    }

    /// [`Ordering::SeqCst`].
    #[inline(always)]
    pub const fn seq_cst(_name: &'static str) -> Ordering {
        Ordering::SeqCst
    }
}
