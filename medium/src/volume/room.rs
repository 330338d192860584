//! The last attempt at an operation on a host that has no more room.
//!
//! Blocks without room are refused by an error that lets the operation go, so
//! that room can be taken with no lock held (`fs::room`). Where that was in vain
//! the operation runs once more with what there is: then a block without room is
//! none, and who can do with less does so.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static FINAL: Cell<bool> = const { Cell::new(false) };
}

/// As long as it lives this thread takes the room of the host as it is.
#[derive(Debug)]
#[must_use = "it counts as long as it lives"]
pub struct RoomAsItIs {
    before: bool,
    /// It ends on the thread where it began.
    not_send: PhantomData<*const ()>,
}

impl Default for RoomAsItIs {
    fn default() -> RoomAsItIs {
        RoomAsItIs::new()
    }
}

impl RoomAsItIs {
    /// From here on.
    pub fn new() -> RoomAsItIs {
        RoomAsItIs {
            before: FINAL.replace(true),
            not_send: PhantomData,
        }
    }
}

impl Drop for RoomAsItIs {
    fn drop(&mut self) {
        FINAL.set(self.before);
    }
}

/// Whether this thread has to do with the room that there is.
#[cold]
pub fn room_is_final() -> bool {
    FINAL.get()
}
