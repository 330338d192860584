//! SIGBUS: handling of pages that cannot be accessed.
//!
//! SIGBUS follows a load from poisoned memory, an access past the truncated end of a mapped
//! file, or a store into a file whose file system is full. With the guard installed, the
//! handler treats such a fault inside a guarded mapping as follows: it maps zeros over the
//! page, increments the count, records the page, and returns. The code that made the access
//! sees the count and answers EIO. A fault anywhere else goes to the handler that was
//! installed before.
//!
//! Invariants:
//! * The handler only loads and stores atomics in a fixed table and in bitmaps, and calls
//!   `mmap` and `munmap`. None of this can lock or allocate.
//! * A slot of the table names a range only while its [`Guard`] lives. Values read from a
//!   slot belong to one guard, because it changes under a sequence number.
//! * Each page counts individually, however many fault. The first faulted page of a mapping
//!   creates a bitmap of its pages, whose memory is allocated when touched.
//!
//! Not handled here: how an operation reacts to a fault. The page stays zero (stores to it
//! are lost) until the mapping is made anew; this is why [`Guard::is_faulted`] exists
//! beside the count.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use super::error::PmemError;
use super::fault_range::{Guarded, Happened, RangeCell};

/// Maximum number of guarded mappings; further ones work unguarded.
const SLOTS: usize = 4096;

#[repr(align(64))]
struct Slot {
    taken: AtomicBool,
    range: RangeCell,
    faults: AtomicU64,
    /// One bit for each unit, set once it has faulted; null: no unit has faulted.
    bad: AtomicPtr<AtomicU64>,
    /// The bitmap could not be allocated: the whole range counts as faulted.
    all: AtomicBool,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        taken: AtomicBool::new(false),
        range: RangeCell::new(),
        faults: AtomicU64::new(0),
        bad: AtomicPtr::new(std::ptr::null_mut()),
        all: AtomicBool::new(false),
    }
}; SLOTS];

/// Set once a guarded page of this process has faulted. From then on every access checks
/// for such pages.
static HAPPENED: Happened = Happened::new();

/// Whether any guarded page has faulted so far. Called after a load, the answer covers that
/// load: the handler records the page before zeros replace it.
#[inline]
pub(super) fn happened() -> bool {
    HAPPENED.is_set_after_load()
}

/// Announces that a region has faulted. Backends are asked for
/// [`faults`](super::PmemBackend::faults) only after the first announcement. A backend
/// whose count grows for a reason other than the SIGBUS guarded here, such as a failed
/// write-back, calls this after it has counted.
#[cfg_attr(
    not(feature = "testing"),
    allow(unreachable_pub, reason = "public for tests of other crates only")
)]
pub fn note_fault() {
    HAPPENED.set();
}

/// The highest slot ever taken, plus one: bounds the handler's search.
static HIGH_WATER: AtomicUsize = AtomicUsize::new(0);

/// Registers a mapping with the SIGBUS handler while it lives.
#[derive(Debug)]
pub(super) struct Guard {
    slot: Option<usize>,
}

impl Guard {
    /// Guards `base..base+len`. `unit` is the piece replaced on a fault, a power of two: a
    /// page, or more if the kernel cannot split the mapping.
    pub(super) fn new(base: *mut u8, len: usize, unit: usize) -> Guard {
        let free = TABLE.iter().position(|s| {
            !s.taken.load(Ordering::Relaxed)
                && s.taken
                    .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
        });
        let Some(i) = free else {
            tracing::warn!(
                "{SLOTS} mappings are already guarded: a bad page in another mapping ends the process"
            );
            return Guard { slot: None };
        };
        let slot = &TABLE[i];
        slot.faults.store(0, Ordering::Relaxed);
        HIGH_WATER.fetch_max(i + 1, Ordering::Relaxed);
        // Last: from here on the handler finds the slot.
        slot.range.set(Guarded {
            start: base as usize,
            len,
            unit: unit.max(rustix::param::page_size()),
        });
        Guard { slot: Some(i) }
    }

    /// Returns the number of faults so far.
    #[inline]
    pub(super) fn faults(&self) -> u64 {
        self.slot
            .map_or(0, |i| TABLE[i].faults.load(Ordering::Acquire))
    }

    /// Whether a range touches a page that has faulted.
    #[inline]
    pub(super) fn is_faulted(&self, ptr: *const u8, len: usize) -> bool {
        self.slot.is_some_and(|i| {
            TABLE[i].faults.load(Ordering::Acquire) != 0 && TABLE[i].covers(ptr as usize, len)
        })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(i) = self.slot {
            TABLE[i].clear();
            TABLE[i].taken.store(false, Ordering::Release);
        }
    }
}

impl Slot {
    fn clear(&self) {
        let words = self.range.get().map_or(0, |range| range.words());
        self.range.set(Guarded {
            start: 0,
            len: 0,
            unit: 0,
        });
        self.all.store(false, Ordering::Relaxed);
        let bad = self.bad.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !bad.is_null() {
            unmap_bits(bad, words);
        }
    }

    fn covers(&self, start: usize, len: usize) -> bool {
        let Some(range) = self.range.get() else {
            return false;
        };
        if self.all.load(Ordering::Acquire) {
            return true;
        }
        let bad = self.bad.load(Ordering::Acquire);
        if bad.is_null() || len == 0 {
            return false;
        }
        let last = range.index(start.saturating_add(len - 1)) + 1;
        let (mut at, end) = (range.index(start), last.min(range.words() * 64));
        while at < end {
            let n = (64 - at % 64).min(end - at);
            let mask = u64::MAX >> (64 - n) << (at % 64);
            // SAFETY: the bitmap has words() words, of which this is one. Only the drop of the
            // guard that this call borrows unmaps it.
            if unsafe { &*bad.add(at / 64) }.load(Ordering::Acquire) & mask != 0 {
                return true;
            }
            at += n;
        }
        false
    }

    /// Runs in the signal handler.
    fn note(&self, range: &Guarded, addr: usize) {
        match self.bits(range) {
            Some(bits) => {
                let at = range.index(addr);
                // SAFETY: the bitmap has a bit for each unit of the range, in which the address
                // lies. It lives as long as the guard, whose mapping is being accessed.
                let word = unsafe { &*bits.add(at / 64) };
                word.fetch_or(1 << (at % 64), Ordering::AcqRel);
            }
            None => self.all.store(true, Ordering::Release),
        }
        self.faults.fetch_add(1, Ordering::Release);
    }

    /// Returns the bitmap; the first caller makes it. Runs in the signal handler.
    fn bits(&self, range: &Guarded) -> Option<*mut AtomicU64> {
        let there = self.bad.load(Ordering::Acquire);
        if !there.is_null() {
            return Some(there);
        }
        // SAFETY: a new anonymous mapping at an address that the kernel chooses, zeroed;
        // any value of its words is valid.
        let made = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                range.words() * size_of::<AtomicU64>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if made == libc::MAP_FAILED {
            return None;
        }
        let made = made.cast::<AtomicU64>();
        let none = std::ptr::null_mut();
        match (self.bad).compare_exchange(none, made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Some(made),
            Err(other) => {
                unmap_bits(made, range.words());
                Some(other)
            }
        }
    }
}

fn unmap_bits(bits: *mut AtomicU64, words: usize) {
    // SAFETY: a bitmap of this many words, mapped by `Slot::bits`; no reference to it
    // remains.
    let _ = unsafe { libc::munmap(bits.cast(), words * size_of::<AtomicU64>()) };
}

/// The handler installed before ours. Written once, before our handler is in place.
struct Previous(UnsafeCell<MaybeUninit<libc::sigaction>>);
// SAFETY: written only inside `INSTALL.call_once`, before the handler that
// reads it is installed; read-only from then on.
unsafe impl Sync for Previous {}

static PREVIOUS: Previous = Previous(UnsafeCell::new(MaybeUninit::uninit()));
static INSTALL: Once = Once::new();
static INSTALL_ERRNO: AtomicUsize = AtomicUsize::new(0);
/// The previous handler was to run once (SA_RESETHAND), and has run.
static SPENT: AtomicBool = AtomicBool::new(false);

/// Installs the process-wide SIGBUS handler, once. Opening a region installs it
/// ([`RegionOptions::fault_guard`](super::RegionOptions::fault_guard)). A program calls
/// this function for a region with its own backend, or to choose the moment: after other
/// libraries have installed their handlers, which then get every fault outside regions. A
/// handler installed later replaces this one. If it does not pass on faults of regions, a
/// failed page ends the process. Each call checks for such a handler and logs a warning.
///
/// The previous handler runs as if installed alone, with its `sa_mask`, SA_SIGINFO,
/// SA_NODEFER and SA_RESETHAND. Two of its flags do not apply: it runs on the alternative
/// stack if the thread has one, and a system call interrupted by another process's signal
/// is restarted.
///
/// # Errors
/// [`PmemError::Os`] if the system refuses the handler.
pub fn install_fault_guard() -> Result<(), PmemError> {
    INSTALL.call_once(|| {
        // SAFETY: an all-zero sigaction is a valid value to fill in.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        // SAFETY: the pointers are valid for the calls. PREVIOUS is filled before our
        // handler, its only other reader, can run. The signals that the previous handler
        // blocks are blocked from the start, as the kernel would do.
        let failed = unsafe {
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, std::ptr::null(), PREVIOUS.0.get().cast()) != 0 || {
                let previous = (*PREVIOUS.0.get()).assume_init_ref();
                if !matches!(previous.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) {
                    action.sa_mask = previous.sa_mask;
                }
                libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) != 0
            }
        };
        if failed {
            let errno = std::io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EINVAL);
            INSTALL_ERRNO.store(errno as usize, Ordering::Release);
        }
    });
    match INSTALL_ERRNO.load(Ordering::Acquire) {
        0 => {
            if !is_in_place() {
                tracing::warn!(
                    "another SIGBUS handler has replaced the one for regions: unless it passes on faults that are not its own, a failed page ends the process"
                );
            }
            Ok(())
        }
        e => Err(PmemError::Os {
            what: "cannot install a handler for",
            path: "SIGBUS".into(),
            source: std::io::Error::from_raw_os_error(e as i32),
        }),
    }
}

/// Whether our handler is still installed: no other one was installed or restored since.
fn is_in_place() -> bool {
    // SAFETY: an all-zero sigaction is a valid value to fill in.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is changed; `now` outlives the call.
    let asked = unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut now) };
    asked != 0 || now.sa_sigaction == on_sigbus as *const () as usize
}

/// Whether `si_code` belongs to a signal that a process sent, not the processor.
fn was_sent(code: i32) -> bool {
    code <= 0
}

extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler, and
    // si_addr is set for a SIGBUS that the processor raised.
    let (code, addr) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if was_sent(code) || !cover_page(addr) {
        chain(signal, info, context, code);
    }
}

/// Maps zeros over the page of a guarded mapping that holds `addr`.
fn cover_page(addr: usize) -> bool {
    for slot in &TABLE[..HIGH_WATER.load(Ordering::Relaxed)] {
        let Some(range) = slot.range.get().filter(|range| range.holds(addr)) else {
            continue;
        };
        let unit = range.unit;
        let page = addr & !(unit - 1);
        // SAFETY: errno is thread-local and is preserved for the interrupted code.
        let errno = unsafe { *libc::__errno_location() };
        // Record the page first: another thread may load from the zeros as soon as they are
        // mapped.
        slot.note(&range, addr);
        HAPPENED.set();
        // SAFETY: the page lies in a mapping of this library (its guard lives, or the
        // faulting access would itself be outside any mapping). The users of the mapping
        // allow for changing contents, and count faults.
        let mapped = unsafe {
            libc::mmap(
                page as *mut libc::c_void,
                unit,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
        if mapped == libc::MAP_FAILED {
            return false;
        }
        return true;
    }
    false
}

/// Passes a fault outside regions to the previous handler. If there was none, the default
/// action applies when the access is repeated.
fn chain(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void, code: i32) {
    // SAFETY: PREVIOUS was filled before this handler was installed.
    let previous = unsafe { (*PREVIOUS.0.get()).assume_init_ref() };
    let once = previous.sa_flags & libc::SA_RESETHAND != 0;
    let handler = match previous.sa_sigaction {
        none @ (libc::SIG_DFL | libc::SIG_IGN) => none,
        _ if once && SPENT.swap(true, Ordering::Relaxed) => libc::SIG_DFL,
        handler => handler,
    };
    match handler {
        libc::SIG_IGN if was_sent(code) => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: sigaction and raise are async-signal-safe; a zeroed
            // action is SIG_DFL with an empty mask.
            unsafe {
                let default: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, &default, std::ptr::null_mut());
                if was_sent(code) {
                    libc::raise(signal);
                }
            }
        }
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: with SA_SIGINFO the previous owner installed a function of exactly this
            // type.
            let call: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            deferring(signal, previous, || call(signal, info, context));
        }
        handler => {
            // SAFETY: without SA_SIGINFO the handler takes the signal alone.
            let call: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
            deferring(signal, previous, || call(signal));
        }
    }
}

/// Runs the previous handler with the signal itself blocked or not, as it requested; in our
/// handler the signal is blocked. The rest of its mask is part of ours.
fn deferring(signal: i32, previous: &libc::sigaction, run: impl FnOnce()) {
    // SAFETY: a set that sigaction has filled in.
    let masked = unsafe { libc::sigismember(&previous.sa_mask, signal) } == 1;
    if masked || previous.sa_flags & libc::SA_NODEFER == 0 {
        return run();
    }
    // SAFETY: all-zero sets are valid to fill in; all calls are async-signal-safe.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    unsafe {
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
    }
    run();
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests;
