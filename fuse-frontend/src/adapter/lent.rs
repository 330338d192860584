//! The answer to a read, straight from the medium: the one place of this crate
//! with unsafe code.
//!
//! The crate `fuser` sends bytes that it is given as a slice, by the one writev(2)
//! that the answer is. A slice must not change while it lives; that these bytes do
//! not is the engine's promise for whoever stores to files through it, and this
//! program's for the rest. It has no other way: it opens no window of the region,
//! maps no file and keeps no address of the medium (`tests/unsafe_code.rs` looks
//! for them), and the region is locked against other processes.

use fuser::ReplyData;
use pramfs_medium::pmem::Lent;

/// Answers with what was lent.
#[allow(unsafe_code)]
pub(super) fn send(reply: ReplyData, bytes: Lent<'_>) {
    // SAFETY: called by the closure of `with_contiguous` only, where no call of
    // the engine and no view stores to the bytes; nothing else in this program
    // does, see the module. The slice ends with the call, which hands it to the
    // kernel.
    reply.data(unsafe { bytes.as_slice() });
}
