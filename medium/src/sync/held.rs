//! The locks that a thread holds, in debug builds: asserts the order of [`Rank`].

use std::cell::{Cell, RefCell};
use std::fmt;
use std::marker::PhantomData;

use super::rank::{LEASE_TABLE, ORPHAN_TABLE, Rank, Ranked};

thread_local! {
    /// In the order in which they were taken.
    static HELD: RefCell<Vec<Place>> = const { RefCell::new(Vec::new()) };
    /// See [`Exempt`].
    static EXEMPT: Cell<bool> = const { Cell::new(false) };
}

/// The number of a lock without one.
pub(super) const NO_NUMBER: u64 = u64::MAX;

/// The place of a lock in the order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    rank: Rank,
    number: u64,
}

impl Place {
    /// Whether a thread that holds `self` may wait for `next`.
    fn is_before(self, next: Place) -> bool {
        self.rank < next.rank
            || (self.rank == next.rank && self.rank == Rank::Inode && self.number < next.number)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.rank)?;
        match self.number {
            NO_NUMBER => Ok(()),
            number => write!(f, " {number}"),
        }
    }
}

/// Part of each lock: its number. The type says the rank.
pub(super) struct Tag<R> {
    number: u64,
    rank: PhantomData<fn() -> R>,
}

impl<R: Ranked> Tag<R> {
    pub(super) const fn new(number: u64) -> Tag<R> {
        Tag {
            number,
            rank: PhantomData,
        }
    }

    #[inline]
    fn place(&self) -> Place {
        // The tables are files, so their locks are those of inodes.
        let rank = match R::RANK {
            Rank::Inode if self.number == ORPHAN_TABLE => Rank::OrphanTable,
            Rank::Inode if self.number == LEASE_TABLE => Rank::LeaseTable,
            rank => rank,
        };
        Place {
            rank,
            number: self.number,
        }
    }

    /// Before the thread waits for the lock.
    ///
    /// # Panics
    /// If the order forbids it.
    #[inline]
    #[track_caller]
    pub(super) fn wait(&self) -> Held {
        let next = self.place();
        // A thread that ends may have no list any more.
        let wrong = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            let wrong = held.iter().copied().find(|held| !held.is_before(next));
            held.push(next);
            wrong
        });
        let taken = Held(next);
        if let Ok(Some(wrong)) = wrong {
            out_of_order(wrong, next);
        }
        taken
    }

    /// After the thread got the lock without waiting.
    #[inline]
    pub(super) fn tried(&self) -> Held {
        let next = self.place();
        let _ = HELD.try_with(|held| held.borrow_mut().push(next));
        Held(next)
    }
}

#[cold]
#[inline(never)]
#[track_caller]
fn out_of_order(held: Place, next: Place) {
    // A second panic would end the process before the first is told.
    if !std::thread::panicking() && !EXEMPT.get() {
        panic!(
            "lock order: this thread holds {held} and would wait for {next}, which comes before \
             it or is taken alone; see medium/src/sync/rank.rs and docs/architecture.md, \"Locks \
             and their order\""
        );
    }
}

/// A lock that this thread holds, until it is dropped.
pub(super) struct Held(Place);

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            // Mostly the last one. Two of the same place count as one another.
            if let Some(at) = held.iter().rposition(|place| *place == self.0) {
                held.remove(at);
            }
        });
    }
}

/// While it exists, this thread takes a lock that cannot wait.
pub(super) struct Exempt(());

impl Exempt {
    pub(super) fn new() -> Exempt {
        EXEMPT.set(true);
        Exempt(())
    }
}

impl Drop for Exempt {
    fn drop(&mut self) {
        EXEMPT.set(false);
    }
}

/// See [`super::assert_none_held`].
#[track_caller]
pub(super) fn assert_none(from: Rank) {
    // A second panic would abort the process and hide the message of the first.
    if std::thread::panicking() {
        return;
    }
    let held = HELD.try_with(|held| held.borrow().iter().copied().find(|h| h.rank >= from));
    if let Ok(Some(held)) = held {
        panic!(
            "lock order: this thread holds {held} where it must hold no lock from {from:?} on; \
             see docs/architecture.md, \"Locks and their order\""
        );
    }
}
