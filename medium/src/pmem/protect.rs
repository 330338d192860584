//! Protection against stray stores: a mapping of the region for stores, closed to everybody
//! who holds no [`WriteWindow`](super::WriteWindow).
//!
//! A protected region is mapped twice. All loads go to a mapping without the right to store.
//! Stores go to the second one, which [`Protection`] owns and opens: by a key of the processor
//! for the thread that holds a window, or by mprotect(2) for all threads while any holds one.
//!
//! Invariants:
//! * The mapping for stores is open to a thread only while that thread holds a window, or, with
//!   mprotect, while some thread does.
//! * Whether a key is open is read from the processor. So a jump out of a signal handler, where
//!   the kernel has closed the key, leaves it closed, and the next window opens it again.
//! * A thread that is created inherits the rights of its creator, so no thread is created
//!   while a window is open. A thread that has a key open without a window closes it with its
//!   next window or operation.
//! * A thread drops its windows and scopes in the reverse order of their beginning. Builds with
//!   debug assertions check that.
//!
//! Not handled here: which code holds a window, and how long. [`WriteScope`] joins the windows
//! of one operation.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::mm::MprotectFlags;

use super::error::PmemError;
use super::fault::Guard;
use super::mapping::Mapping;
use super::source::Source;

mod keys;

use keys::{Key, NoKey};

/// What keeps stray stores of this process from a region: stores that go through no operation
/// of the library, by a wrong pointer in any code of the process.
///
/// ```
/// # use pramfs_medium as pramfs;
/// use pramfs::pmem::{Protect, RegionOptions};
/// let region = RegionOptions::new()
///     .protect(Protect::Auto)
///     .memfd("example", 1 << 20)?;
/// match region.info().protect {
///     Protect::Off => println!("unprotected: {:?}", region.info().protect_notice),
///     way => println!("protected by {}", way.name()),
/// }
/// # Ok::<(), pramfs::pmem::PmemError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protect {
    /// Nothing: every thread can store to the region at any time.
    #[default]
    Off,
    /// Keys of the processor where there are any, else nothing.
    /// [`RegionInfo::protect`](super::RegionInfo::protect) says which.
    Auto,
    /// A protection key of the processor, or an error. A thread can store only inside its own
    /// operation. Opening and closing write a register: `pramfs-bench protect` prints the cost.
    Pkey,
    /// mprotect(2). While a thread stores, all threads can. Each change of an idle region costs
    /// two system calls, and an interrupt on each processor that runs a thread of this process:
    /// slow. For machines without keys.
    Mprotect,
}

impl Protect {
    /// `off`, `auto`, `pkey` or `mprotect`.
    pub fn name(self) -> &'static str {
        match self {
            Protect::Off => "off",
            Protect::Auto => "auto",
            Protect::Pkey => "pkey",
            Protect::Mprotect => "mprotect",
        }
    }
}

impl fmt::Display for Protect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns how many protection keys of the processor this process can still have. Each
/// protected region takes one while it is open. To count them, this takes all of them for a
/// moment: other code of the process that asks the kernel meanwhile gets none. Regions that are
/// opened meanwhile wait.
///
/// ```
/// # use pramfs_medium as pramfs;
/// match pramfs::pmem::free_protection_keys() {
///     Ok(free) => println!("{free} keys"),
///     Err(why) => println!("none: {why}"),
/// }
/// ```
///
/// # Errors
/// Why there are none at all, as a clause.
pub fn free_protection_keys() -> Result<u32, String> {
    keys::free().map_err(|why| why.to_string())
}

/// How a region will be protected.
#[derive(Debug)]
pub(super) enum Chosen {
    /// Not at all. For [`Protect::Auto`], why.
    Off(Option<NoKey>),
    /// In this way.
    On(Way),
}

impl Chosen {
    /// Chooses the way for a source.
    ///
    /// # Errors
    /// [`PmemError::Unusable`] with EOPNOTSUPP if [`Protect::Pkey`] is wanted and there is no
    /// key, with ENOSPC if all are in use.
    pub(super) fn of(want: Protect, source: &Source) -> Result<Chosen, PmemError> {
        // Stores to a private mapping never reach the medium.
        if source.read_only() {
            return Ok(Chosen::Off(None));
        }
        match want {
            Protect::Off => Ok(Chosen::Off(None)),
            Protect::Mprotect => Ok(Chosen::On(Way::Mprotect(Mutex::new(0)))),
            Protect::Auto => Ok(keys::take()
                .map(Way::Pkey)
                .map_or_else(|why| Chosen::Off(Some(why)), Chosen::On)),
            Protect::Pkey => match keys::take() {
                Ok(key) => Ok(Chosen::On(Way::Pkey(key))),
                Err(why) => {
                    let errno = match why {
                        NoKey::AllInUse => libc::ENOSPC,
                        _ => libc::EOPNOTSUPP,
                    };
                    Err(source.unusable(
                        errno,
                        format!(
                            "protect=pkey is impossible: {why}; use protect=auto, which then protects nothing, or protect=mprotect, which is slow"
                        ),
                    ))
                }
            },
        }
    }
}

/// How the mapping for stores is opened.
#[derive(Debug)]
pub(super) enum Way {
    /// For one thread.
    Pkey(Key),
    /// For all threads while the number of windows is not zero.
    Mprotect(Mutex<u64>),
}

/// The mapping of a region for stores, closed unless a window is open.
#[derive(Debug)]
pub struct Protection {
    // Before the mapping: the guard ends first. The key is given back when nothing has it any
    // more.
    guard: Guard,
    stores: Mapping,
    way: Way,
    /// A failure of mprotect(2) was logged.
    logged: AtomicBool,
}

/// The rights of a mapping that is open for stores.
const OPEN: MprotectFlags = MprotectFlags::READ.union(MprotectFlags::WRITE);

/// The operation of this thread whose windows are joined.
#[derive(Debug, Clone, Copy)]
struct Scope {
    /// The address of its [`Protection`]; 0 outside such operations.
    of: usize,
    /// A window was opened and is closed at the end of the operation.
    open: bool,
}

thread_local! {
    static SCOPE: Cell<Scope> = const { Cell::new(Scope { of: 0, open: false }) };
    /// The windows and operations of this thread that have begun and not ended, of all regions.
    static DEPTH: Cell<u64> = const { Cell::new(0) };
    #[cfg(any(test, feature = "testing"))]
    static REFUSE: Cell<bool> = const { Cell::new(false) };
    #[cfg(any(test, feature = "testing"))]
    static OPENINGS: Cell<u64> = const { Cell::new(0) };
}

/// Returns how often this thread has opened a protected region for stores so far.
#[cfg(any(test, feature = "testing"))]
pub fn openings() -> u64 {
    OPENINGS.get()
}

/// Lets mprotect(2) of this thread fail from now on, or no longer.
#[cfg(any(test, feature = "testing"))]
pub fn refuse_openings(refuse: bool) {
    REFUSE.set(refuse);
}

impl Protection {
    /// Closes a mapping for stores.
    ///
    /// # Errors
    /// [`PmemError::Os`].
    pub(super) fn new(way: Way, stores: Mapping, source: &Source) -> Result<Protection, PmemError> {
        let guard = Guard::new(
            stores.base(),
            stores.reserved(),
            source.alignment() as usize,
        );
        let new = Protection {
            guard,
            stores,
            way,
            logged: AtomicBool::new(false),
        };
        let closed = match &new.way {
            // SAFETY: the mapping belongs to `new`, and nothing uses it yet.
            Way::Pkey(key) => unsafe { key.protect(new.base(), new.stores.len()) },
            Way::Mprotect(_) => new.set(false),
        };
        closed.map_err(|source_error| PmemError::Os {
            what: "cannot protect the mapping of",
            path: source.path().display().to_string(),
            source: source_error,
        })?;
        Ok(new)
    }

    /// Maps the bytes of `fd` from the present end up to `len`, closed. The caller excludes other
    /// callers.
    ///
    /// # Errors
    /// Those of mmap(2) and mprotect(2). The region is as long as before then.
    pub(super) fn grow(&self, fd: BorrowedFd<'_>, len: usize) -> Result<(), Errno> {
        let errno = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
        match &self.way {
            Way::Pkey(key) => self.stores.grow_closed(fd, len, |at, more| {
                // SAFETY: the new part of the mapping, which nobody uses yet.
                unsafe { key.protect(at, more) }.map_err(errno)
            }),
            Way::Mprotect(count) => {
                // No window opens or closes meanwhile: what it changes has one length.
                let windows = count.lock().unwrap_or_else(PoisonError::into_inner);
                self.stores.grow_closed(fd, len, |at, more| match *windows {
                    0 => Ok(()),
                    // SAFETY: as above.
                    _ => unsafe { rustix::mm::mprotect(at.cast(), more, OPEN) },
                })
            }
        }
    }

    /// Returns the bytes of address space that are reserved for stores.
    pub(super) fn reserved(&self) -> usize {
        self.stores.reserved()
    }

    /// Returns the address of the region's first byte for stores.
    pub(super) fn base(&self) -> *mut u8 {
        self.stores.base()
    }

    /// Returns the offset in the region of an address for stores, if it is one.
    #[inline]
    pub(super) fn offset_of(&self, ptr: *const u8) -> Option<usize> {
        let offset = ptr.addr().wrapping_sub(self.base().addr());
        (offset < self.stores.len()).then_some(offset)
    }

    /// Returns the way in force.
    pub(super) fn kind(&self) -> Protect {
        match self.way {
            Way::Pkey(_) => Protect::Pkey,
            Way::Mprotect(_) => Protect::Mprotect,
        }
    }

    /// Returns the number of faults of the mapping for stores.
    pub(super) fn faults(&self) -> u64 {
        self.guard.faults()
    }

    /// Whether a range of the region has faulted in the mapping for stores.
    pub(super) fn is_faulted(&self, offset: usize, len: usize) -> bool {
        (self.guard).is_faulted(self.base().wrapping_add(offset), len)
    }

    /// Opens the mapping for stores to this thread, unless it is open already. The windows of an
    /// operation leave the closing to its end.
    #[inline]
    pub(super) fn open(&self) -> Opened<'_> {
        let scope = SCOPE.get();
        let joined = scope.of == std::ptr::from_ref(self).addr();
        let mut opened = Opened {
            protection: self,
            nth: deeper(),
            closes: false,
            refused: false,
            not_send: PhantomData,
        };
        match &self.way {
            Way::Pkey(key) if key.is_open() => {
                // Open without a window of this thread: the window takes it over.
                opened.closes = opened.nth == 1;
                return opened;
            }
            Way::Pkey(key) => key.open(),
            Way::Mprotect(_) if joined && scope.open => return opened,
            Way::Mprotect(count) => {
                if !self.count_in(count) {
                    opened.refused = true;
                    return opened;
                }
            }
        }
        #[cfg(any(test, feature = "testing"))]
        OPENINGS.set(OPENINGS.get() + 1);
        match joined {
            true => SCOPE.set(Scope {
                open: true,
                ..scope
            }),
            false => opened.closes = true,
        }
        opened
    }

    fn close(&self) {
        match &self.way {
            Way::Pkey(key) => key.close(),
            Way::Mprotect(count) => self.count_out(count),
        }
    }

    /// Closes a key that this thread has open without a window: it inherited or kept it.
    #[inline]
    fn close_stray(&self) {
        if let Way::Pkey(key) = &self.way
            && key.is_open()
        {
            key.close();
        }
    }

    /// Counts a window. False if the region cannot be opened for it.
    #[must_use]
    fn count_in(&self, count: &Mutex<u64>) -> bool {
        let mut windows = count.lock().unwrap_or_else(PoisonError::into_inner);
        if *windows == 0
            && let Err(e) = self.set(true)
        {
            self.log(format_args!(
                "cannot open the protected region for stores, which fail with EIO: mprotect: {e}"
            ));
            return false;
        }
        *windows += 1;
        true
    }

    fn count_out(&self, count: &Mutex<u64>) {
        let mut windows = count.lock().unwrap_or_else(PoisonError::into_inner);
        *windows -= 1;
        if *windows == 0
            && let Err(e) = self.set(false)
        {
            self.log(format_args!(
                "cannot close the protected region, which stays open for stores: mprotect: {e}"
            ));
        }
    }

    /// Logs the first failure of the region.
    fn log(&self, what: fmt::Arguments<'_>) {
        if !self.logged.swap(true, Ordering::Relaxed) {
            tracing::error!("{what}");
        }
    }

    fn set(&self, open: bool) -> std::io::Result<()> {
        let rights = match open {
            true => OPEN,
            false => MprotectFlags::READ,
        };
        #[cfg(any(test, feature = "testing"))]
        if REFUSE.get() {
            return Err(rustix::io::Errno::NOMEM.into());
        }
        // SAFETY: the mapping belongs to this value. Stores to it are made inside windows only,
        // while it is open.
        unsafe { rustix::mm::mprotect(self.base().cast(), self.stores.len(), rights) }
            .map_err(Into::into)
    }

    /// Begins an operation of this thread, whose windows are joined.
    pub(super) fn scope(&self) -> WriteScope<'_> {
        let nth = deeper();
        if nth == 1 {
            self.close_stray();
        }
        let outer = SCOPE.replace(Scope {
            of: std::ptr::from_ref(self).addr(),
            open: false,
        });
        WriteScope {
            protection: self,
            outer,
            nth,
            not_send: PhantomData,
        }
    }

    /// Closes the region until the next window of this thread's operation, which is about to
    /// wait. No window is open.
    pub(super) fn close_for_wait(&self) {
        let scope = SCOPE.get();
        if scope.of == std::ptr::from_ref(self).addr() && scope.open {
            SCOPE.set(Scope {
                open: false,
                ..scope
            });
            self.close();
        }
    }
}

/// Begins a window or an operation. Returns how many there are now.
#[inline]
fn deeper() -> u64 {
    let nth = DEPTH.get() + 1;
    DEPTH.set(nth);
    nth
}

/// The mapping for stores is open to this thread. Closed when dropped, unless it is open for
/// longer than this.
#[derive(Debug)]
#[must_use]
pub(super) struct Opened<'a> {
    protection: &'a Protection,
    /// See [`deeper`].
    nth: u64,
    closes: bool,
    refused: bool,
    /// Rights belong to a thread.
    not_send: PhantomData<*const ()>,
}

impl Opened<'_> {
    /// Whether the system has refused to open the region: it takes no stores.
    #[inline]
    pub(super) fn is_refused(&self) -> bool {
        self.refused
    }
}

impl Drop for Opened<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.closes {
            self.protection.close();
        }
        let depth = DEPTH.replace(self.nth - 1);
        debug_assert!(
            depth == self.nth || std::thread::panicking(),
            "a window is dropped before one that was opened in it"
        );
    }
}

/// Joins the windows of an operation of this thread: the first one opens the region, and the
/// end of the operation closes it. An operation that stores nothing opens nothing.
#[derive(Debug)]
#[must_use]
pub struct WriteScope<'a> {
    protection: &'a Protection,
    outer: Scope,
    /// See [`deeper`].
    nth: u64,
    /// The scope belongs to its thread.
    not_send: PhantomData<*const ()>,
}

impl Drop for WriteScope<'_> {
    fn drop(&mut self) {
        if SCOPE.replace(self.outer).open {
            self.protection.close();
        }
        // A window that was leaked counts no more.
        DEPTH.set(self.nth - 1);
        if self.nth == 1 {
            self.protection.close_stray();
        }
    }
}

#[cfg(test)]
mod tests;
