//! Keeps an open region from forked children: they inherit nothing that reaches the medium.
//!
//! A child has copies of all descriptors and mappings of its parent but none of its
//! threads, and its locks stay in their state at the fork. Two engines would write one
//! journal, and the child's descriptor would keep the region locked after the parent has
//! ended. So at every fork(2) of the C library, in the child and before fork returns there:
//!
//! * Private pages of zeros replace each mapping of a region, so no store of the child
//!   reaches the medium, through any pointer. If the system refuses the memory, addresses
//!   without pages replace it, and a store raises SIGSEGV.
//! * An empty eventfd replaces each descriptor of a region, so that only the parent holds
//!   the lock.
//! * Each [`OpenState`] reports [`is_inherited`](OpenState::is_inherited), and the layers
//!   above refuse every call.
//!
//! A fork that bypasses the C library (a raw `clone`, `_Fork`) runs no handler. Children
//! that exec at once (`posix_spawn`, `vfork`) need none. An operation pays for none of
//! this, except for the load of the state.

use std::cell::RefCell;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

const OPEN: u8 = 0;
const CLOSED: u8 = 1;
const INHERITED: u8 = 2;

/// State of a region in use. It ends when the region is closed, or in a forked child of the
/// process that opened it.
#[derive(Debug)]
pub struct OpenState(Arc<AtomicU8>);

impl Default for OpenState {
    fn default() -> OpenState {
        OpenState::new()
    }
}

impl OpenState {
    /// Creates the open state.
    pub fn new() -> OpenState {
        let state = Arc::new(AtomicU8::new(OPEN));
        registry().states.push(Arc::clone(&state));
        OpenState(state)
    }

    /// Whether it is neither closed nor inherited by a fork.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Relaxed) == OPEN
    }

    /// Whether this process is a forked child of the one that opened it.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.0.load(Ordering::Relaxed) == INHERITED
    }

    /// Sets the state of a forked child, for tests that cannot fork.
    #[cfg(any(test, feature = "testing"))]
    pub fn inherit(&self) {
        self.0.store(INHERITED, Ordering::Relaxed);
    }

    /// Closes it and returns whether it was open.
    pub fn close(&self) -> bool {
        self.0
            .compare_exchange(OPEN, CLOSED, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}

impl Drop for OpenState {
    fn drop(&mut self) {
        let mut registry = registry();
        if let Some(at) = registry.states.iter().position(|s| Arc::ptr_eq(s, &self.0)) {
            registry.states.swap_remove(at);
        }
    }
}

/// A range of addresses through which a medium can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    base: usize,
    len: usize,
}

#[derive(Debug, Default)]
struct Registry {
    states: Vec<Arc<AtomicU8>>,
    ranges: Vec<Range>,
    descriptors: Vec<RawFd>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    states: Vec::new(),
    ranges: Vec::new(),
    descriptors: Vec::new(),
});

thread_local! {
    /// The registry, locked from before a fork until after it, so that the child finds it
    /// consistent: only the forking thread exists there.
    static HELD: RefCell<Option<MutexGuard<'static, Registry>>> = const { RefCell::new(None) };
}

fn registry() -> MutexGuard<'static, Registry> {
    static HANDLERS: Once = Once::new();
    // Miri does not support fork.
    #[cfg(not(miri))]
    HANDLERS.call_once(|| {
        // SAFETY: the handlers are functions of this program, which is not unloaded; they
        // take no arguments and do not unwind.
        let result = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
        if result != 0 {
            tracing::warn!("forked children cannot be kept from regions: error {result}");
        }
    });
    #[cfg(miri)]
    let _ = &HANDLERS;
    lock()
}

fn lock() -> MutexGuard<'static, Registry> {
    // No operation under this lock can panic halfway.
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A mapping that a child must not inherit, whole pages from its first page on. Dropped
/// before the addresses are released.
#[derive(Debug)]
pub(super) struct NotInherited(Range);

impl NotInherited {
    /// Registers whole pages of a mapping that the caller owns.
    ///
    /// # Safety
    /// The addresses belong to the caller until the value is dropped: a forked child
    /// replaces what is mapped there.
    pub(super) unsafe fn new(base: *mut u8, len: usize) -> NotInherited {
        let range = Range {
            base: base as usize,
            len,
        };
        registry().ranges.push(range);
        NotInherited(range)
    }
}

impl Drop for NotInherited {
    fn drop(&mut self) {
        let ranges = &mut registry().ranges;
        if let Some(at) = ranges.iter().position(|r| *r == self.0) {
            ranges.swap_remove(at);
        }
    }
}

/// A descriptor that a child must not inherit. Dropped before the descriptor is closed.
#[derive(Debug)]
pub(super) struct NotInheritedFd(RawFd);

impl NotInheritedFd {
    pub(super) fn new(fd: BorrowedFd<'_>) -> NotInheritedFd {
        let fd = fd.as_raw_fd();
        registry().descriptors.push(fd);
        NotInheritedFd(fd)
    }
}

impl Drop for NotInheritedFd {
    fn drop(&mut self) {
        let descriptors = &mut registry().descriptors;
        if let Some(at) = descriptors.iter().position(|fd| *fd == self.0) {
            descriptors.swap_remove(at);
        }
    }
}

#[cfg(not(miri))]
extern "C" fn prepare() {
    let held = lock();
    // A thread that is being torn down no longer has this place. The child may then find
    // the registry locked, and keeps its mappings and descriptors.
    let _ = HELD.try_with(|place| *place.borrow_mut() = Some(held));
}

#[cfg(not(miri))]
extern "C" fn parent() {
    let _ = HELD.try_with(|place| place.borrow_mut().take());
}

/// Calls only async-signal-safe functions: it allocates no memory, and this thread has held
/// the lock since [`prepare`].
#[cfg(not(miri))]
extern "C" fn child() {
    let _ = HELD.try_with(|place| {
        let Some(registry) = place.borrow_mut().take() else {
            return;
        };
        for state in &registry.states {
            state.store(INHERITED, Ordering::Relaxed);
        }
        for range in &registry.ranges {
            // Writable pages count against the limits of the system (vm.overcommit_memory=2,
            // RLIMIT_DATA), others do not. In either case the mapping of the medium goes.
            if !replace(range, libc::PROT_READ | libc::PROT_WRITE)
                && !replace(range, libc::PROT_NONE)
            {
                // SAFETY: ends the child at once, the only safe action.
                unsafe { libc::_exit(libc::EXIT_FAILURE) };
            }
        }
        if registry.descriptors.is_empty() {
            return;
        }
        // SAFETY: creates a new descriptor and passes no memory.
        let nothing = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        for fd in &registry.descriptors {
            // SAFETY: a registered descriptor is open, and stays open until it is unregistered
            // under the lock. The number stays in use, so its owner closes what it owns.
            // Without an eventfd the descriptor is closed now. The owner's close then fails,
            // harmlessly, in a child that has no other thread.
            unsafe {
                if nothing < 0 {
                    libc::close(*fd);
                } else {
                    libc::dup3(nothing, *fd, libc::O_CLOEXEC);
                }
            }
        }
        if nothing >= 0 {
            // SAFETY: it was made above and has no other owner.
            unsafe { libc::close(nothing) };
        }
    });
}

/// Replaces a range by private zeros; false if the system refuses.
#[cfg(not(miri))]
fn replace(range: &Range, protection: libc::c_int) -> bool {
    // SAFETY: the code that registered the range owns these addresses, and still does: it
    // unregisters the range under the lock before it releases the addresses. References to
    // them find zeros, or fault; no other memory is there.
    let at = unsafe {
        libc::mmap(
            range.base as *mut libc::c_void,
            range.len,
            protection,
            libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    at != libc::MAP_FAILED
}
