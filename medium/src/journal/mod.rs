//! Redo journal: lanes of two record slots, commit, retirement, recovery.
//!
//! Invariant: the homes of a lane's record N are fenced before its slot is written again
//! (by record N+2), because the fence of record N+1 completes them. After a crash, recovery
//! therefore finds the record, its homes, or both.
//!
//! Not handled here: the contents of a record (`volume::Record`), and the locks held meanwhile.

mod buffer;
mod copies;
mod dead;
mod failed;
mod lane;
mod last_record;
mod lines;
mod outcomes;
pub mod records;
pub mod recovery;
mod scrub;

pub use buffer::{Entry, RecordBuf, parse};
pub use copies::retired_copy;
pub use failed::LostData;
#[cfg(not(any(test, feature = "testing")))]
pub use lane::Rules;
pub use lane::{Change, Committed, Journal, LaneGuard, Reusable};
#[cfg(any(test, feature = "testing"))]
pub use lane::{Rules, set_thread_lane};
pub use last_record::{LastRecord, RecordId};
pub use lines::Lines;
pub use outcomes::Outcomes;
