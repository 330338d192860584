//! Threads that are inside the library, and forks.
//!
//! Invariant: at most one thread asks a server or changes leases ([`Inside`]). A signal
//! handler that interrupts it finds that this thread is inside, and passes its own calls to
//! the C library. A fork waits for that thread, so a child finds everything consistent.
//!
//! Some forks run no handlers (`_Fork`, clone(2)). A page that the kernel clears in a child
//! tells of those.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use pramfs_medium::pmem::OpenState;

use crate::{real, settings, stats, table};

/// Set while a thread is inside. Not a lock with a queue: a child of a fork has a copy of it,
/// and none of the threads that wait.
static ONE: AtomicBool = AtomicBool::new(false);
/// Set when forks wait for the thread inside.
static FORKS_WAIT: AtomicBool = AtomicBool::new(false);
/// Set while a fork is the one inside: then nobody holds a lock of the client. The handlers of
/// other libraries run meanwhile, in a thread that [`IS_FORKING`].
static FORKS: AtomicBool = AtomicBool::new(false);
/// Set in a child of a fork that has not waited for the thread inside. That thread is not there,
/// and locks that it held stay locked for ever.
static IS_SPLIT: AtomicBool = AtomicBool::new(false);

/// Set when threads may have different descriptors under the same numbers: nothing that is known about
/// a number is right for all of them.
static IS_APART: AtomicBool = AtomicBool::new(false);

/// From now on, nothing new is noted about descriptors.
pub(crate) fn set_apart() {
    IS_APART.store(true, Ordering::SeqCst);
}

/// Whether threads may have different descriptors.
pub(crate) fn is_apart() -> bool {
    IS_APART.load(Ordering::SeqCst)
}

/// Number of seccomp filters in force, or about to be.
static SEALED: AtomicUsize = AtomicUsize::new(0);

/// Pause of a thread that waits for the one inside, which asks a server.
const PAUSE: Duration = Duration::from_micros(50);

fn lock() {
    while ONE
        .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
        .is_err()
    {
        std::thread::sleep(PAUSE);
    }
}

fn unlock() {
    ONE.store(false, Ordering::Release);
}

/// The process that this memory belongs to. A child of vfork uses the memory of its parent.
static PROCESS: AtomicI32 = AtomicI32::new(0);

thread_local! {
    /// Replacements of descriptors that this thread is making.
    static CHANGES: Cell<u32> = const { Cell::new(0) };
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    /// Set while this thread forks. What other handlers call must not wait for it.
    static IS_FORKING: Cell<bool> = const { Cell::new(false) };
    /// Set while this thread prepares a filter.
    static SEALS: Cell<bool> = const { Cell::new(false) };
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: i32, old: *mut i32) -> i32;
}

/// The number of PTHREAD_CANCEL_DISABLE.
const DISABLE: i32 = 1;

/// Keeps this thread from being cancelled. Restores the state when it is dropped.
struct NotCancelled(i32);

impl NotCancelled {
    fn begin() -> NotCancelled {
        let mut old = 0;
        // SAFETY: the old state is written to a variable of this type.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut old) };
        NotCancelled(old)
    }
}

impl Drop for NotCancelled {
    fn drop(&mut self) {
        let mut disabled = 0;
        // SAFETY: as above.
        unsafe { pthread_setcancelstate(self.0, &raw mut disabled) };
    }
}

/// The right to ask servers and to change leases. Keeps errno.
pub(crate) struct Inside {
    errno: i32,
    _thread: NotCancelled,
}

impl Inside {
    /// `None` in a signal handler that has interrupted this thread inside or in a copy, in
    /// a process that may not make system calls, in a thread that forks, and in a process that was
    /// forked off in the middle of something.
    pub(crate) fn enter() -> Option<Inside> {
        notice_fork();
        if is_sealed() || IS_SPLIT.load(Ordering::Relaxed) || COPIES.try_with(Cell::get) != Ok(0) {
            return None;
        }
        if is_forking() {
            return None;
        }
        let was = IS_INSIDE.try_with(|inside| inside.replace(true));
        if was != Ok(false) {
            return None;
        }
        let errno = real::errno();
        let thread = NotCancelled::begin();
        lock();
        let inside = Inside {
            errno,
            _thread: thread,
        };
        // A filter may have been set meanwhile.
        (!is_sealed()).then_some(inside)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        unlock();
        let _ = IS_INSIDE.try_with(|inside| inside.set(false));
        real::set_errno(self.errno);
    }
}

/// A replacement of a descriptor by this thread.
pub(crate) struct Changing {
    _thread: NotCancelled,
}

impl Changing {
    pub(crate) fn begin() -> Changing {
        let _ = CHANGES.try_with(|changes| changes.set(changes.get() + 1));
        Changing {
            _thread: NotCancelled::begin(),
        }
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        let _ = CHANGES.try_with(|changes| changes.set(changes.get().saturating_sub(1)));
    }
}

/// Whether this thread may wait for another one to replace a descriptor. A signal handler that
/// has interrupted a replacement must not.
pub(crate) fn may_wait() -> bool {
    !is_inside() && !is_forking() && CHANGES.try_with(Cell::get) == Ok(0)
}

fn is_forking() -> bool {
    IS_FORKING.try_with(Cell::get) == Ok(true)
}

/// Whether this thread is inside: its calls are those of the library itself, or of a signal
/// handler.
pub(crate) fn is_inside() -> bool {
    IS_INSIDE.try_with(Cell::get).unwrap_or(true)
}

/// Returns the number of this process, without a call.
pub(crate) fn id() -> i32 {
    PROCESS.load(Ordering::Relaxed)
}

/// Whether this process owns its memory, and its threads share their descriptors. A child of vfork
/// does not own it, and a thread can have [descriptors of its own](is_apart): what these do to their
/// descriptors must not be noted. Under a filter the question is not asked: then a descriptor may be
/// forgotten, in the parent too, which is harmless, but nothing new is noted.
pub(crate) fn owns_memory() -> bool {
    notice_fork();
    let is_own = || {
        PROCESS.load(Ordering::Relaxed) == {
            // SAFETY: takes no arguments.
            unsafe { libc::getpid() }
        }
    };
    is_sealed() || !is_apart() && is_own()
}

/// From now on, the library makes no system calls of its own: the process may be killed for
/// them. `end` runs first, and may make some.
///
/// No other thread begins anything from the first store on. Those that have begun before, which
/// are inside or change a descriptor, have ended when this returns; not so in a signal handler, or
/// while another thread does the same.
pub(crate) fn seal(end: impl FnOnce()) {
    if SEALED.fetch_add(1, Ordering::SeqCst) != 0 {
        // Another filter may be in force.
        return;
    }
    // A signal handler must not wait for the thread that it has interrupted.
    if !may_wait() || SEALS.try_with(|seals| seals.replace(true)) != Ok(false) {
        return;
    }
    drop(Inside::enter());
    table::await_changes();
    end();
    let _ = SEALS.try_with(|seals| seals.set(false));
}

/// Seals a process that was started with a filter, or has set one in a way that was not seen. It
/// has no leases yet. `/proc` tells: prctl(2) is what a filter may kill for, and the program has
/// opened a file itself. False if that cannot be found out now, as without a free descriptor.
pub(crate) fn look_for_filter() -> bool {
    static LOOKED: AtomicBool = AtomicBool::new(false);
    if LOOKED.load(Ordering::Acquire) {
        return true;
    }
    if !settings::filter_is_harmless() {
        match has_filter() {
            None => return false,
            Some(true) => drop(SEALED.fetch_add(1, Ordering::SeqCst)),
            Some(false) => {}
        }
    }
    // Only now: another thread that comes first looks as well.
    LOOKED.store(true, Ordering::Release);
    true
}

/// Whether the process has a filter. `None` if that cannot be found out now.
fn has_filter() -> Option<bool> {
    let _thread = NotCancelled::begin();
    let (path, flags) = (
        c"/proc/thread-self/status",
        libc::O_RDONLY | libc::O_CLOEXEC,
    );
    // SAFETY: the path ends with a zero.
    let fd = unsafe { real::open64(path.as_ptr(), flags, 0) };
    if fd < 0 {
        return None;
    }
    // In one piece. The groups of the user come before the line; very many leave no room for it.
    let mut text = [0u8; 8192];
    // SAFETY: writes to the buffer.
    let len = unsafe { real::read(fd, text.as_mut_ptr().cast(), text.len()) };
    // SAFETY: opened above, and nobody else knows of it.
    unsafe { real::close(fd) };
    let read = text.get(..usize::try_from(len).ok()?)?;
    let mut lines = read.split(|byte| *byte == b'\n');
    match lines.find_map(|line| line.strip_prefix(b"Seccomp:")) {
        Some(mode) => Some(mode.trim_ascii() != b"0"),
        // A kernel without filters has no such line; or there was no room for it.
        None => Some(read.len() == text.len()),
    }
}

/// Leaves everything to the mount in a program that has more rights than the user who started it (setuid,
/// file capabilities): it can be loaded there by the administrator only, and a lease to write would
/// map the whole region.
pub(crate) fn seal_if_privileged() {
    // SAFETY: asks for a number.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        SEALED.fetch_add(1, Ordering::SeqCst);
    }
}

/// Takes a [`seal`] back: no filter was set.
pub(crate) fn unseal() {
    SEALED.fetch_sub(1, Ordering::SeqCst);
}

/// A word that is 1 in the process that has set it, and 0 in its forked children.
static NOT_WIPED: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// Makes the word. Without it, only forks that run handlers are noticed.
fn watch_forks() {
    let len = 4096;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let page = unsafe {
        real::mmap64(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    // SAFETY: the page was mapped above, if it was.
    if page == libc::MAP_FAILED || unsafe { libc::madvise(page, len, libc::MADV_WIPEONFORK) } != 0 {
        return;
    }
    let word: *mut AtomicU32 = page.cast();
    // SAFETY: the page is aligned, writable, and never unmapped.
    unsafe { (*word).store(1, Ordering::Relaxed) };
    NOT_WIPED.store(word, Ordering::Release);
}

/// Notices a fork that ran no handler: then this process knows nothing of its descriptors. False
/// if another thread is at that, or if this is a signal handler that has interrupted it.
#[inline]
pub(crate) fn notice_fork() -> bool {
    // SAFETY: null, or a word that is never unmapped.
    match unsafe { NOT_WIPED.load(Ordering::Acquire).as_ref() } {
        Some(word) if word.load(Ordering::Acquire) != 1 => forked(word),
        _ => true,
    }
}

#[cold]
fn forked(word: &AtomicU32) -> bool {
    match word.compare_exchange(0, 2, Ordering::AcqRel, Ordering::Acquire) {
        // Ends with 1.
        Ok(_) => child(),
        // Another thread of the child, or a signal handler of this one: which passes its
        // calls, since nothing is known.
        Err(_) => {
            for _ in 0..1000 {
                if word.load(Ordering::Acquire) == 1 {
                    break;
                }
                std::hint::spin_loop();
            }
        }
    }
    word.load(Ordering::Acquire) == 1
}

thread_local! {
    /// Copies that this thread is making. They hold locks of the client.
    static COPIES: Cell<u32> = const { Cell::new(0) };
}

/// A copy by this thread. A signal handler that interrupts it must not wait for the locks that
/// the copy holds.
pub(crate) struct Copying;

impl Copying {
    pub(crate) fn begin() -> Copying {
        let _ = COPIES.try_with(|copies| copies.set(copies.get() + 1));
        Copying
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        let _ = COPIES.try_with(|copies| copies.set(copies.get().saturating_sub(1)));
    }
}

/// Waits. Not a point at which the thread can be cancelled.
pub(crate) fn pause(time: Duration) {
    let _thread = NotCancelled::begin();
    std::thread::sleep(time);
}

/// Whether the library must not make system calls of its own.
#[inline]
pub(crate) fn is_sealed() -> bool {
    SEALED.load(Ordering::SeqCst) != 0 && SEALS.try_with(Cell::get) != Ok(true)
}

pub(crate) fn start() {
    note_process();
    watch_forks();
    // SAFETY: the handlers are functions of this library, which is not unloaded before the
    // process ends; they take no arguments and do not unwind.
    unsafe { libc::pthread_atfork(Some(share), None, Some(fork_child)) };
}

fn note_process() {
    // SAFETY: takes no arguments.
    PROCESS.store(unsafe { libc::getpid() }, Ordering::Relaxed);
}

/// From now on, forks wait for the thread inside. Called before the first lease.
pub(crate) fn make_forks_wait(_: &Inside) {
    if FORKS_WAIT.swap(true, Ordering::Relaxed) {
        return;
    }
    // Regions have a handler too, which locks what a thread inside locks. Handlers run in the
    // opposite order of their registration, so this one comes first.
    drop(OpenState::new());
    // SAFETY: as in `start`.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(end_fork)) };
}

extern "C" fn share() {
    table::note_sharing();
}

extern "C" fn prepare() {
    // First: a replacement of a descriptor may wait for the thread inside.
    table::begin_sharing();
    // A fork from a signal handler that has interrupted this thread inside holds it already.
    if !is_inside() && !is_forking() {
        lock();
        FORKS.store(true, Ordering::Relaxed);
        let _ = IS_FORKING.try_with(|forks| forks.set(true));
    }
}

extern "C" fn parent() {
    if is_forking() {
        let _ = IS_FORKING.try_with(|forks| forks.set(false));
        FORKS.store(false, Ordering::Relaxed);
        unlock();
    }
}

/// In a child, after the handlers of regions: until then, their locks are held.
extern "C" fn end_fork() {
    let _ = IS_FORKING.try_with(|forks| forks.set(false));
}

/// In a child, after a fork of the C library.
extern "C" fn fork_child() {
    child();
    // A handler that has interrupted the library forks: the thread goes on in the child too.
    if is_inside() || IS_SPLIT.load(Ordering::Relaxed) {
        return;
    }
    pramfs_client::give_up_inherited_descriptors(|fd| {
        // SAFETY: a descriptor of the library, of which the program does not know, and the leases
        // and connections of the parent are not used any more.
        unsafe { real::close(fd) };
    });
}

extern "C" fn child() {
    note_process();
    // The leases are the parent's. The descriptors are the child's, and work through the
    // mount.
    table::forget_all();
    stats::reset();
    // Another thread was inside, and this fork has not waited for it. If it was this one, a signal
    // handler has forked, and it goes on after that in the child too.
    if ONE.load(Ordering::Relaxed) && !FORKS.load(Ordering::Relaxed) && !is_inside() {
        IS_SPLIT.store(true, Ordering::Relaxed);
    }
    FORKS.store(false, Ordering::Relaxed);
    IS_APART.store(false, Ordering::Relaxed);
    if !is_inside() {
        unlock();
    }
    // SAFETY: null, or a word that is never unmapped.
    if let Some(word) = unsafe { NOT_WIPED.load(Ordering::Acquire).as_ref() } {
        word.store(1, Ordering::Release);
    }
}
