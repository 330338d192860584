//! Counts the requests of a mount by operation, for `pramfs requests`.
//!
//! A count is kept in several parts, so that serving threads on different processors do not
//! contend for its cache line. A reader that comes meanwhile may miss the latest requests.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use pramfs_control::RequestCounts;
use pramfs_fuse_protocol::Opcode;

use crate::takeover::memory::Memory;

/// Parts of a count. Threads share them in turn.
const PARTS: usize = 8;

/// Numbers of operations.
const NUMBERS: usize = {
    let all = Opcode::ALL;
    all[all.len() - 1].number() as usize + 1
};

/// The counts of some threads.
#[repr(align(128))]
#[derive(Debug)]
struct Part([AtomicU64; NUMBERS]);

/// How often each operation was asked for since the server started.
#[derive(Debug)]
pub struct Counts {
    parts: [Part; PARTS],
    /// Of a mount that outlives its servers, since the mount.
    memory: OnceLock<Arc<Memory>>,
}

impl Default for Counts {
    fn default() -> Counts {
        let none = |_| Part(std::array::from_fn(|_| AtomicU64::new(0)));
        Counts {
            parts: std::array::from_fn(none),
            memory: OnceLock::new(),
        }
    }
}

/// The part of this thread.
fn part() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static PART: usize = NEXT.fetch_add(1, Ordering::Relaxed) % PARTS;
    }
    PART.with(|part| *part)
}

impl Counts {
    /// Returns how many requests of this kind there were.
    pub fn of(&self, asked: Opcode) -> u64 {
        let parts = self
            .parts
            .iter()
            .map(|part| &part.0[asked.number() as usize]);
        parts.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Tells also what `memory` has counted.
    pub(super) fn tell_of(&self, memory: &Arc<Memory>) {
        let _again = self.memory.set(Arc::clone(memory));
    }

    /// Counts a request.
    pub(super) fn add(&self, asked: Opcode) {
        self.parts[part()].0[asked.number() as usize].fetch_add(1, Ordering::Relaxed);
    }
}

impl RequestCounts for Counts {
    fn counts(&self) -> BTreeMap<String, u64> {
        let named = |one: &Opcode| {
            let name = one.name().trim_start_matches("FUSE_");
            (name.to_owned(), self.of(*one))
        };
        let all = Opcode::ALL.iter().map(named);
        let of_takeovers = self.memory.get().into_iter().flat_map(|memory| {
            [
                ("takeovers", memory.deaths()),
                ("takeovers in requests on names", memory.deaths_in_names()),
                ("names asked again", memory.asked_again()),
                ("answered from records", memory.answers_from_record()),
            ]
        });
        let of_takeovers = of_takeovers.map(|(what, count)| (what.to_owned(), count));
        all.filter(|(_, count)| *count > 0)
            .chain(of_takeovers)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_all_threads_are_counted_by_name() {
        let counts = Counts::default();
        assert!(counts.counts().is_empty());
        std::thread::scope(|scope| {
            for _ in 0..2 * PARTS {
                scope.spawn(|| {
                    for asked in Opcode::ALL {
                        counts.add(*asked);
                    }
                    counts.add(Opcode::Read);
                });
            }
        });
        let counted = counts.counts();
        assert_eq!(counted.len(), Opcode::ALL.len());
        let threads = 2 * PARTS as u64;
        assert_eq!(counted["READ"], 2 * threads);
        assert_eq!(counted["COPY_FILE_RANGE_64"], threads);
    }
}
