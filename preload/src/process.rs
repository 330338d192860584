//! Threads that are inside the library, and forks.
//!
//! Invariant: at most one thread asks a server or changes leases ([`Inside`]). A signal
//! handler that interrupts it finds that this thread is inside, and passes its own calls to
//! the C library. A fork waits for that thread, so a child finds everything consistent.

use std::cell::Cell;
use std::sync::atomic::{AtomicI32, Ordering};

use parking_lot::Mutex;

use crate::{real, stats, table};

static ONE: Mutex<()> = Mutex::new(());
/// The process that this memory belongs to. A child of vfork uses the memory of its parent.
static PROCESS: AtomicI32 = AtomicI32::new(0);

thread_local! {
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The right to ask servers and to change leases. Keeps errno.
pub(crate) struct Inside {
    errno: i32,
}

impl Inside {
    /// `None` in a signal handler that has interrupted this thread inside.
    pub(crate) fn enter() -> Option<Inside> {
        let was = IS_INSIDE.try_with(|inside| inside.replace(true));
        if was != Ok(false) {
            return None;
        }
        let errno = real::errno();
        // The guard is given back in `drop`.
        std::mem::forget(ONE.lock());
        Some(Inside { errno })
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // SAFETY: this value stands for the guard that `enter` has forgotten.
        unsafe { ONE.force_unlock() };
        let _ = IS_INSIDE.try_with(|inside| inside.set(false));
        real::set_errno(self.errno);
    }
}

/// Whether this thread is inside: its calls are those of the library itself, or of a signal
/// handler.
pub(crate) fn is_inside() -> bool {
    IS_INSIDE.try_with(Cell::get).unwrap_or(true)
}

/// Whether this process owns its memory. A child of vfork does not: what it does to its
/// descriptors must not be noted.
pub(crate) fn owns_memory() -> bool {
    // SAFETY: takes no arguments.
    PROCESS.load(Ordering::Relaxed) == unsafe { libc::getpid() }
}

pub(crate) fn start() {
    note_process();
    // SAFETY: the handlers are functions of this library, which is not unloaded before the
    // process ends; they take no arguments and do not unwind.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}

fn note_process() {
    // SAFETY: takes no arguments.
    PROCESS.store(unsafe { libc::getpid() }, Ordering::Relaxed);
}

extern "C" fn prepare() {
    // A fork from a signal handler that has interrupted this thread inside holds it already.
    if !is_inside() {
        std::mem::forget(ONE.lock());
    }
}

extern "C" fn parent() {
    if !is_inside() {
        // SAFETY: locked by `prepare` on this thread.
        unsafe { ONE.force_unlock() };
    }
}

extern "C" fn child() {
    note_process();
    // The leases are the parent's. The descriptors are the child's, and work through the
    // mount.
    table::forget_all();
    stats::reset();
    parent();
}
