//! Answers a read directly from the medium. This is the only unsafe code of this crate.
//!
//! The transport takes the bytes as a slice and sends or copies them before it returns. The bytes
//! must not change while the slice lives. Four parties guarantee that:
//! * the engine, for stores to files through it;
//! * [`Opens::lend`](crate::direct::Opens::lend), for stores by other processes: it lends no
//!   bytes of a file that a process has leased to write, and the lease waits for reads that
//!   have begun;
//! * the doors of guests, for stores by guests: with a window they copy, and lend nothing
//!   (`DoorSettings::copies`);
//! * this program, for all other stores: it opens no window of the region, maps no file
//!   and keeps no address of the medium (`tests/unsafe_code.rs` checks this), and the
//!   region is locked against other processes.

use pramfs_medium::pmem::Lent;

use super::answer::{Answer, Reply};

/// Answers with the lent bytes.
#[allow(unsafe_code)]
pub(super) fn send(reply: impl Reply, bytes: Lent<'_>) {
    // SAFETY: only the closure of `with_contiguous` calls this. Inside it, no call of the
    // engine and no view stores to the bytes, nothing else in this program does, and no
    // other process: see the module. The slice ends with this call, which passes it to the kernel.
    reply.send(Answer::Data(unsafe { bytes.as_slice() }));
}
