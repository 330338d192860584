//! The locks of the engine. All of its code takes them from here.
//!
//! They are parking_lot's. Miri gets a later version of the same crate: it checks
//! the types of the arguments of a system call, and parking_lot before 0.13 passes
//! others than a futex has. That version needs a later compiler than the engine
//! does, so it is built for Miri alone, which is never older. Waiting, waking and
//! the order of what is seen are those of the real locks in both.

#[cfg(not(miri))]
pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(miri)]
pub use parking_lot_miri::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
