//! The locks of the engine. All of its code takes them from here.
//!
//! They are parking_lot's. Miri gets a later version of the same crate: Miri checks
//! the types of the arguments of a system call, and parking_lot before 0.13 passes
//! types other than a futex's. That version needs a later compiler than the engine, so
//! only Miri uses it, whose compiler is never older. Both versions have the waiting,
//! waking and memory order of the real locks.

#[cfg(not(miri))]
pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(miri)]
pub use parking_lot_miri::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

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
