//! What a forked child inherits of an open region: nothing that reaches the
//! medium.
//!
//! A child has copies of all descriptors and mappings of its parent, but none of
//! its threads, and its locks stand as they stood. Two engines would write one
//! journal, and the child's copy of the descriptor would keep the region locked
//! after the parent has ended. So at every fork(2) of the C library, in the child
//! and before fork returns there:
//!
//! * each mapping of a region is replaced by private pages of zeros, so that no
//!   store of the child reaches the medium, by whatever pointer; where the system
//!   does not grant so much, by addresses without pages, and a store by a pointer
//!   is SIGSEGV;
//! * each descriptor of a region becomes one of an empty eventfd, so that the
//!   lock is the parent's alone;
//! * each [`OpenState`] says [`is_inherited`](OpenState::is_inherited), by which
//!   the layers above refuse every call.
//!
//! What does not go by way of the C library (a raw `clone`, `_Fork`) runs no
//! handler; children that exec at once (`posix_spawn`, `vfork`) need none.
//! Nothing of this is on the way of an operation, but for the load of the state.

use std::cell::RefCell;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

const OPEN: u8 = 0;
const CLOSED: u8 = 1;
const INHERITED: u8 = 2;

/// Whether what a region carries is in use: until it is closed, or until this
/// process turns out to be a forked child of the one that opened it.
#[derive(Debug)]
pub struct OpenState(Arc<AtomicU8>);

impl Default for OpenState {
    fn default() -> OpenState {
        OpenState::new()
    }
}

impl OpenState {
    /// Open, until it is closed or inherited.
    pub fn new() -> OpenState {
        let state = Arc::new(AtomicU8::new(OPEN));
        registry().states.push(Arc::clone(&state));
        OpenState(state)
    }

    /// Neither closed nor inherited by a fork.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Relaxed) == OPEN
    }

    /// This process is a forked child of the one that opened it.
    pub fn is_inherited(&self) -> bool {
        self.0.load(Ordering::Relaxed) == INHERITED
    }

    /// As in a forked child, for tests that cannot fork.
    #[cfg(any(test, feature = "testing"))]
    pub fn inherit(&self) {
        self.0.store(INHERITED, Ordering::Relaxed);
    }

    /// Closes it, and tells whether it was open.
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
    /// The registry, locked from before a fork until behind it, so that the child
    /// finds it whole: only the thread that forks lives on there.
    static HELD: RefCell<Option<MutexGuard<'static, Registry>>> = const { RefCell::new(None) };
}

fn registry() -> MutexGuard<'static, Registry> {
    static HANDLERS: Once = Once::new();
    // Miri knows no fork.
    #[cfg(not(miri))]
    HANDLERS.call_once(|| {
        // SAFETY: the handlers are functions of this program, which is not
        // unloaded; they take no arguments and do not unwind.
        let result = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
        if result != 0 {
            tracing::warn!("a forked child will not be kept from regions: error {result}");
        }
    });
    #[cfg(miri)]
    let _ = &HANDLERS;
    lock()
}

fn lock() -> MutexGuard<'static, Registry> {
    // Nothing that is done under it can panic halfway.
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A mapping that a child shall not have, from its first page on until it is
/// dropped, which comes before the addresses are given back.
#[derive(Debug)]
pub(super) struct NotInherited(Range);

impl NotInherited {
    /// Of whole pages of a mapping that the caller owns.
    ///
    /// # Safety
    /// The addresses stay the caller's until the value is dropped: a forked
    /// child replaces what is mapped there.
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

/// A descriptor that a child shall not have, until this is dropped, which comes
/// before the descriptor is closed.
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
    // A thread that is being torn down has no such place any more; the child then
    // may find the registry locked, and keeps what it has.
    let _ = HELD.try_with(|place| *place.borrow_mut() = Some(held));
}

#[cfg(not(miri))]
extern "C" fn parent() {
    let _ = HELD.try_with(|place| place.borrow_mut().take());
}

/// Only what is safe in a signal handler is called here: no memory is allocated,
/// and the lock is this thread's since [`prepare`].
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
            // Pages that can be written count against what the system grants
            // (vm.overcommit_memory=2, RLIMIT_DATA), others do not. The mapping
            // of the medium does not stay in any case.
            if !replace(range, libc::PROT_READ | libc::PROT_WRITE)
                && !replace(range, libc::PROT_NONE)
            {
                // SAFETY: ends the child at once, which is all that is safe.
                unsafe { libc::_exit(libc::EXIT_FAILURE) };
            }
        }
        if registry.descriptors.is_empty() {
            return;
        }
        // SAFETY: a new descriptor is made; no memory is passed.
        let nothing = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        for fd in &registry.descriptors {
            // SAFETY: a registered descriptor is open and stays so until it is
            // taken off under the lock. The number stays in use, so its owner
            // closes what it owns. Without an eventfd it is closed now, and the
            // owner's close fails, harmlessly, in a child that has no other
            // thread.
            unsafe {
                if nothing < 0 {
                    libc::close(*fd);
                } else {
                    libc::dup3(nothing, *fd, libc::O_CLOEXEC);
                }
            }
        }
        if nothing >= 0 {
            // SAFETY: it was made above and is nobody else's.
            unsafe { libc::close(nothing) };
        }
    });
}

/// Puts private zeros in place of a range; false where the system refuses.
#[cfg(not(miri))]
fn replace(range: &Range, protection: libc::c_int) -> bool {
    // SAFETY: whoever registered the range owns these addresses, and still does:
    // it is taken off under the lock before they are given back. What refers to
    // them finds zeros, or faults; no memory of anything else is there.
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
