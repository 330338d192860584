//! Redo journal: lanes of two record slots, commit, retirement, recovery.
//!
//! Invariant: the homes of a lane's record N are fenced before its slot is
//! written again (by record N+2), because record N+1's fence completes them. A
//! crash therefore finds either a record, or its homes, or both.
//!
//! Left to others: what goes into a record (`volume::Tx`), and which locks are
//! held while it does.

mod buffer;
mod lane;
mod last_record;
mod lines;
pub mod records;
pub mod recovery;

pub use buffer::{Entry, RecordBuf, parse};
#[cfg(not(any(test, feature = "testing")))]
pub use lane::Rules;
pub use lane::{Change, Committed, Journal, LaneGuard, Reusable};
#[cfg(any(test, feature = "testing"))]
pub use lane::{Rules, set_thread_lane};
pub use last_record::{LastRecord, RecordId};
pub use lines::Lines;
