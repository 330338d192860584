//! Which requests are done, kept by memory that outlives the process.
//!
//! A process that takes over from a dead one is asked again what the dead one had not answered.
//! Most requests can be done twice. One that makes, moves or removes a name cannot: it has to
//! know whether the dead process had done it. It had if its *deciding* record is durable. So,
//! before a deciding record is stored, its lane and LSN are noted beside the request; and
//! recovery, which sees all records, settles each note before any record becomes dead.
//!
//! The note is memory of the machine, not of the medium: when the machine fails, the requests
//! are gone, too. So nothing here is fenced, and the order of stores of one thread is enough: a
//! killed process leaves a prefix of them.

use std::fmt::Debug;

use super::last_record::RecordId;
use crate::types::Ino;

/// Notes of the records that decide requests.
pub trait Outcomes: Send + Sync + Debug {
    /// Notes that a record, once it is durable, completes the request that the calling thread
    /// serves, and has made this inode, if any. Called before the record is stored, and again
    /// if the operation runs again. Does nothing in a thread that serves no request.
    fn decided_by(&self, record: RecordId, made: Option<Ino>);

    /// Settles all notes: the process that noted them is dead, and its records have not been
    /// retired. May be called again if this process dies, too.
    fn settle(&self, is_durable: &dyn Fn(RecordId) -> bool);
}
