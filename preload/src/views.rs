//! The mappings of the region that stand for mappings of files, and which file each shows. They
//! outlive the descriptor and the lease that they were made with.
//!
//! Invariant: the list changes together with the memory. A call that changes views has the
//! lock of the list from before the system call to after it, so no other thread maps something
//! there in between. If the call fails, the list stays. A call where no views are has no lock: a
//! view that another thread makes meanwhile gets addresses that are free.
//!
//! The thread that has the lock has all signals blocked: a handler that waited for its own thread
//! would wait for ever. Under a seccomp filter they are not, because the filter may forbid that.
//! There a handler that has interrupted such a call is refused ([`lock`]).
//!
//! A fork does not wait for the lock. It would have to keep it while the handlers of other
//! libraries run, and such a handler may wait for a thread that waits for this lock: an allocator
//! unmaps memory under locks that its handler takes. So a child may find the list locked by a
//! thread that it does not have, and does without the list.

use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_long};
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use pramfs_preload_core::{FileId, View, ViewList};

use crate::process::{is_sealed, notice_fork, pause};
use crate::{real, regions, slots};

struct Shared {
    is_locked: AtomicBool,
    list: UnsafeCell<ViewList>,
}

// SAFETY: the list is used only by the thread that has set `is_locked`.
unsafe impl Sync for Shared {}

static VIEWS: Shared = Shared {
    is_locked: AtomicBool::new(false),
    list: UnsafeCell::new(ViewList::new()),
};

/// The number of views, for a look without the lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Set in a child that was forked while another thread changed the list. The list is of no use
/// there: the kernel's own list of mappings takes its place.
static IS_LOST: AtomicBool = AtomicBool::new(false);
/// Set when stores to a view that has gone could not be made durable: an fsync must tell that.
static IS_UNSETTLED: AtomicBool = AtomicBool::new(false);
/// Set when a change could not be noted: then each view may have become writable.
static IS_UNSURE: AtomicBool = AtomicBool::new(false);

thread_local! {
    static HAS_LOCK: Cell<bool> = const { Cell::new(false) };
}

/// A set of signals, as the kernel has it.
type Signals = u64;

/// Changes the signals that the thread has blocked. Returns those of before.
fn block(how: c_int, set: Signals) -> Signals {
    let (mut old, errno): (Signals, c_int) = (0, real::errno());
    // SAFETY: the sets are of the length that is said. Not by the C library, which spares the
    // signals that it uses itself.
    unsafe {
        let (set, old) = ((&raw const set) as c_long, (&raw mut old) as c_long);
        let (number, len) = (libc::SYS_rt_sigprocmask, size_of::<Signals>() as c_long);
        real::syscall(number, how.into(), set, old, len, 0, 0);
    }
    real::set_errno(errno);
    old
}

/// The right to use the list.
struct Locked {
    /// The signals that were blocked before.
    blocked: Option<Signals>,
}

/// `None` in a signal handler that has interrupted a change of its thread, and in a child whose
/// list is lost.
fn lock() -> Option<Locked> {
    if is_lost() {
        return None;
    }
    let blocked = (!is_sealed()).then(|| block(libc::SIG_SETMASK, Signals::MAX));
    let unblock = || {
        if let Some(old) = blocked {
            block(libc::SIG_SETMASK, old);
        }
    };
    if HAS_LOCK.try_with(|has| has.replace(true)) != Ok(false) {
        unblock();
        return None;
    }
    let take = || {
        let (from, to) = (Ordering::Acquire, Ordering::Relaxed);
        VIEWS.is_locked.compare_exchange(false, true, from, to)
    };
    let mut attempts = 0;
    while take().is_err() {
        attempts += 1;
        // The other thread is in a system call.
        match attempts % 128 {
            0 if !is_sealed() => pause(Duration::from_micros(20)),
            _ => std::hint::spin_loop(),
        }
    }
    Some(Locked { blocked })
}

impl Drop for Locked {
    fn drop(&mut self) {
        COUNT.store(self.len(), Ordering::Release);
        VIEWS.is_locked.store(false, Ordering::Release);
        let _ = HAS_LOCK.try_with(|has| has.set(false));
        if let Some(old) = self.blocked {
            block(libc::SIG_SETMASK, old);
        }
    }
}

impl Deref for Locked {
    type Target = ViewList;

    fn deref(&self) -> &ViewList {
        // SAFETY: this thread has the lock.
        unsafe { &*VIEWS.list.get() }
    }
}

impl DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut ViewList {
        // SAFETY: this thread has the lock, and `self` is borrowed for change.
        unsafe { &mut *VIEWS.list.get() }
    }
}

/// Whether the list is lost, or this is a child that has not found that out yet.
fn is_lost() -> bool {
    !notice_fork() || IS_LOST.load(Ordering::Relaxed)
}

/// In a forked child. Its mappings are those of the parent, and so is the list, unless another
/// thread has the lock. If it is this one, a handler that has interrupted a change forks: the
/// thread goes on in the child.
pub(crate) fn forked() {
    if VIEWS.is_locked.load(Ordering::Relaxed) && HAS_LOCK.try_with(Cell::get) != Ok(true) {
        IS_LOST.store(true, Ordering::Relaxed);
    }
}

/// Returns the whole pages of a range.
fn pages(at: u64, len: u64) -> Range<u64> {
    let end = at.saturating_add(len);
    at..end.checked_next_multiple_of(4096).unwrap_or(u64::MAX)
}

/// Whether there are views. A thread that has learnt the address of a view sees the count, too.
#[inline]
pub(crate) fn are_any() -> bool {
    COUNT.load(Ordering::Acquire) != 0 || IS_LOST.load(Ordering::Relaxed)
}

/// Notes a mapping that this thread has just made, and nobody else knows of. False if that
/// cannot be noted.
pub(crate) fn note(at: u64, len: u64, file: FileId, stores: bool) -> bool {
    let Range { start, end } = pages(at, len);
    let Some(mut list) = lock() else {
        // The kernel's list has it.
        return is_lost();
    };
    let has_room = list.reserve(&(start..end));
    if has_room {
        list.add(View {
            start,
            end,
            file,
            stores,
        });
    }
    has_room
}

/// What a call does to the views in a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Something else is there, or nothing.
    Gone,
    /// They can be stored to.
    Writable,
    /// They are in another place, or shorter. `to`: the place that the program has chosen.
    Moved {
        len: u64,
        stays: bool,
        to: Option<u64>,
    },
}

/// Makes a call that changes memory, and notes the change if the call has made it: `done` says
/// where. `None`, with ENOMEM, if there is no memory for the note; then the call is not made.
pub(crate) fn changing<T: Copy>(
    (at, len): (u64, u64),
    change: Change,
    call: impl FnOnce() -> T,
    done: impl FnOnce(T) -> Option<u64>,
) -> Option<T> {
    if !are_any() {
        return Some(call());
    }
    let range = pages(at, len);
    let replaced = match change {
        Change::Moved {
            len, to: Some(to), ..
        } => pages(to, len),
        _ => 0..0,
    };
    let has_views = |range: &Range<u64>| {
        !range.is_empty() && lock().is_none_or(|list| !list.in_range(range).is_empty())
    };
    if !has_views(&range) && !has_views(&replaced) {
        return Some(call());
    }
    let is_settled = match change {
        Change::Gone => settle((at, len)),
        // The kernel cuts whole pages.
        Change::Moved { len: new, .. } => {
            let end = pages(at, new).end;
            settle((end, range.end.saturating_sub(end)))
                & settle((replaced.start, replaced.end - replaced.start))
        }
        Change::Writable => true,
    };
    if !is_settled {
        IS_UNSETTLED.store(true, Ordering::Release);
    }
    let Some(mut list) = lock() else {
        // What is gone may stay in the list: that costs a system call in vain.
        IS_UNSURE.store(true, Ordering::Relaxed);
        let made = call();
        if change == Change::Writable && done(made).is_some() {
            slots::views_may_be_stored_to(at, len);
        }
        return Some(made);
    };
    if !list.reserve(&range) {
        drop(list);
        real::set_errno(libc::ENOMEM);
        return None;
    }
    let made = call();
    let to = done(made);
    let is_writable = change == Change::Writable && !list.in_range(&range).is_empty();
    match (to, change) {
        (None, _) => {}
        (_, Change::Gone) => list.cut(&range),
        (_, Change::Writable) => list.allow_stores(&range),
        (Some(to), Change::Moved { len, stays, .. }) => list.moved(&range, &pages(to, len), stays),
    }
    drop(list);
    if to.is_some() && is_writable {
        slots::views_may_be_stored_to(at, len);
    }
    if to.is_some() && change != Change::Writable {
        slots::views_gone();
    }
    Some(made)
}

/// Makes the stores durable that no fsync could make durable later: the views of a range are about
/// to go. Also if the file has a lease, which would have the whole region made durable: the lease
/// may end before an fsync. Whatever fails, the memory goes, as without the library. False if that
/// failed. Keeps errno.
fn settle((at, len): (u64, u64)) -> bool {
    let range = pages(at, len);
    if range.is_empty() {
        return true;
    }
    if !are_any() || is_sealed() {
        return false;
    }
    let errno = real::errno();
    // The kernel finds what files it shows.
    let mut is_done = !is_lost() || sync(range.start, range.end);
    let mut at = range.start;
    while let Some(view) =
        lock().and_then(|list| list.next(at, |view| view.start < range.end && is_stored_to(view)))
    {
        at = view.end;
        is_done &= sync(view.start.max(range.start), view.end.min(range.end));
    }
    real::set_errno(errno);
    is_done
}

fn is_stored_to(view: &View) -> bool {
    view.stores || IS_UNSURE.load(Ordering::Relaxed)
}

/// Has the kernel make the stores to a view durable. Not a point at which a thread can be
/// cancelled. Keeps errno if that succeeds.
fn sync(start: u64, end: u64) -> bool {
    let errno = real::errno();
    // SAFETY: takes addresses, and reads and writes no memory of the process.
    let done = unsafe {
        let (at, len) = (start as c_long, (end - start) as c_long);
        let how = c_long::from(libc::MS_SYNC);
        real::syscall(libc::SYS_msync, at, len, how, 0, 0, 0)
    };
    // Not there any more, because of a call that was not seen, or in a child to which it was not
    // passed on. The kernel has gone on after the part that is not there.
    let is_done = done == 0 || real::errno() == libc::ENOMEM && has_hole(start, end);
    if is_done {
        real::set_errno(errno);
    }
    is_done
}

/// Whether a part of a range is not mapped.
fn has_hole(start: u64, end: u64) -> bool {
    const PAGES: u64 = 4096;
    let mut resident = [0u8; PAGES as usize];
    let mut at = start;
    while at < end {
        let len = (end - at).min(PAGES * 4096);
        // SAFETY: writes a byte for each page, of which there are no more than `resident` has.
        let done = unsafe {
            let (at, len) = (at as c_long, len as c_long);
            let to = resident.as_mut_ptr() as c_long;
            real::syscall(libc::SYS_mincore, at, len, to, 0, 0, 0)
        };
        if done != 0 {
            return real::errno() == libc::ENOMEM;
        }
        at += len;
    }
    real::set_errno(libc::ENOMEM);
    false
}

/// Makes the stores through views durable. False if that failed. Not under a filter: it may forbid
/// the call.
pub(crate) fn flush(is_wanted: impl Fn(FileId) -> bool) -> bool {
    if !are_any() || is_sealed() {
        return true;
    }
    // With the lock: a view that moves meanwhile would be missed.
    let Some(list) = lock() else {
        return flush_all();
    };
    let (mut at, mut is_done) = (0, true);
    while let Some(view) = list.next(at, |view| is_stored_to(view) && is_wanted(view.file)) {
        is_done &= sync(view.start, view.end);
        at = view.end;
    }
    is_done
}

/// Makes the stores through all mappings of regions durable. False if that failed.
#[cold]
fn flush_all() -> bool {
    let mut is_done = true;
    let is_whole = regions::each(|line| is_done &= sync(line.start, line.end));
    is_done & is_whole
}

/// Whether a range has a part of a view.
pub(crate) fn are_in(range: &Range<u64>) -> bool {
    are_any() && lock().is_none_or(|list| !list.in_range(range).is_empty())
}

/// Whether a range may show a part of a file.
pub(crate) fn shows(at: u64, len: u64, file: FileId) -> bool {
    let range = pages(at, len);
    are_any()
        && (IS_UNSURE.load(Ordering::Relaxed) || lock().is_none_or(|list| list.shows(&range, file)))
}

/// Whether the stores to all views that have gone are durable.
pub(crate) fn are_settled() -> bool {
    !IS_UNSETTLED.load(Ordering::Acquire)
}

/// How a file is mapped.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mapped {
    pub(crate) anyhow: bool,
    pub(crate) for_stores: bool,
}

/// Returns how a file is mapped by views, those of earlier leases too.
pub(crate) fn mapped(file: FileId) -> Mapped {
    if !are_any() {
        return Mapped::default();
    }
    let all = Mapped {
        anyhow: true,
        for_stores: true,
    };
    lock().map_or(all, |list| Mapped {
        anyhow: list.next(0, |view| view.file == file).is_some(),
        for_stores: list
            .next(0, |view| view.file == file && is_stored_to(view))
            .is_some(),
    })
}
