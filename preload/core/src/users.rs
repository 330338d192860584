//! Who uses a lease. Its last user ends it, and nobody begins to use it after that.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of users. 0: no new ones may come.
#[derive(Debug, Default)]
pub struct Users(AtomicU64);

impl Users {
    /// No users.
    pub const fn new() -> Users {
        Users(AtomicU64::new(0))
    }

    /// Counts one user more, unless there is none. What the first user has stored before
    /// [`begin`](Self::begin) is seen after that.
    #[inline]
    pub fn add(&self) -> bool {
        self.0
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |users| {
                (users != 0).then(|| users + 1)
            })
            .is_ok()
    }

    /// Takes a user back. True for the last one, which sees what the others have done.
    #[inline]
    pub fn end(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// The first user begins. Nobody else uses it.
    pub fn begin(&self) {
        self.0.store(1, Ordering::Release);
    }

    /// Nobody is left, as in a forked child.
    pub fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Returns the number of users.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use super::*;

    #[test]
    fn nobody_begins_after_the_last_user() {
        let users = Users::new();
        assert!(!users.add());
        users.begin();
        assert!(users.add() && users.count() == 2);
        assert!(!users.end() && users.end());
        assert!(!users.add() && users.count() == 0);
    }

    /// Under Miri, a race with the owner's plain stores would be found.
    #[test]
    fn one_of_many_users_is_the_last_and_sees_all() {
        for _ in 0..if cfg!(miri) { 4 } else { 200 } {
            let (users, lasts, seen) = (Users::new(), AtomicUsize::new(0), AtomicUsize::new(0));
            users.begin();
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for _ in 0..10 {
                            if !users.add() {
                                continue;
                            }
                            seen.fetch_add(1, Ordering::Relaxed);
                            if users.end() {
                                lasts.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    });
                }
                if users.end() {
                    lasts.fetch_add(1, Ordering::Relaxed);
                }
            });
            assert_eq!(lasts.load(Ordering::Relaxed), 1);
            assert!(!users.add());
        }
    }
}
