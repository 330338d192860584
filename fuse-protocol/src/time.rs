//! Times in SETATTR.

use crate::flags::SetattrValid;
use crate::wire::SetattrIn;

/// A time since 1970. Before 1970 the seconds are negative, and the nanoseconds count
/// upwards from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds.
    pub sec: i64,
    /// Nanoseconds, less than 1,000,000,000.
    pub nsec: u32,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewTime {
    /// That of the server's clock.
    Now,
    /// This one.
    At(Time),
}

/// On the wire, seconds are the bits of a signed number.
fn time(sec: u64, nsec: u32) -> Time {
    Time {
        sec: sec.cast_signed(),
        nsec,
    }
}

impl SetattrIn {
    /// The new atime, if it changes.
    #[must_use]
    pub fn new_atime(&self) -> Option<NewTime> {
        self.new_time(
            SetattrValid::ATIME,
            SetattrValid::ATIME_NOW,
            time(self.atime, self.atimensec),
        )
    }

    /// The new mtime, if it changes.
    #[must_use]
    pub fn new_mtime(&self) -> Option<NewTime> {
        self.new_time(
            SetattrValid::MTIME,
            SetattrValid::MTIME_NOW,
            time(self.mtime, self.mtimensec),
        )
    }

    /// The new ctime, if it is given.
    #[must_use]
    pub fn new_ctime(&self) -> Option<Time> {
        let given = self.valid.contains(SetattrValid::CTIME);
        given.then_some(time(self.ctime, self.ctimensec))
    }

    fn new_time(&self, given: SetattrValid, now: SetattrValid, at: Time) -> Option<NewTime> {
        if self.valid.contains(now) {
            return Some(NewTime::Now);
        }
        self.valid.contains(given).then_some(NewTime::At(at))
    }

    /// Whether each time that is given has less than a second of nanoseconds.
    pub(crate) fn has_valid_times(&self) -> bool {
        let whole = |time: Time| time.nsec < 1_000_000_000;
        let new = [self.new_atime(), self.new_mtime()];
        let new = new.into_iter().flatten().filter_map(|new| match new {
            NewTime::Now => None,
            NewTime::At(time) => Some(time),
        });
        new.chain(self.new_ctime()).all(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_given_by_their_flags() {
        let mut arg = SetattrIn {
            atime: (-2i64).cast_unsigned(),
            atimensec: 800_000_000,
            mtimensec: 1_000_000_000,
            ctime: 5,
            ..SetattrIn::default()
        };
        assert_eq!((arg.new_atime(), arg.new_mtime()), (None, None));
        assert!(arg.has_valid_times());
        arg.valid = SetattrValid::ATIME | SetattrValid::CTIME;
        let before_1970 = Time {
            sec: -2,
            nsec: 800_000_000,
        };
        assert_eq!(arg.new_atime(), Some(NewTime::At(before_1970)));
        assert_eq!(arg.new_ctime(), Some(Time { sec: 5, nsec: 0 }));
        arg.valid |= SetattrValid::MTIME;
        assert!(!arg.has_valid_times());
        // The other side's time does not count.
        arg.valid |= SetattrValid::MTIME_NOW;
        assert_eq!(arg.new_mtime(), Some(NewTime::Now));
        assert!(arg.has_valid_times());
    }
}
