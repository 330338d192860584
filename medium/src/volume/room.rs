//! The last attempt at an operation on a host that has no room left.
//!
//! An allocation of blocks without room fails with an error. The operation then releases
//! its locks, and the room is taken with no lock held (`fs::room`). If the host refuses,
//! the operation runs once more with the room that exists. On that attempt a block without
//! room counts as not free, and operations that can do with fewer blocks do so.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static FINAL: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, this thread makes do with the room that the host has already allocated.
#[derive(Debug)]
#[must_use = "it counts as long as it lives"]
pub struct RoomAsItIs {
    before: bool,
    /// The value must be dropped on the thread that created it.
    not_send: PhantomData<*const ()>,
}

impl Default for RoomAsItIs {
    fn default() -> RoomAsItIs {
        RoomAsItIs::new()
    }
}

impl RoomAsItIs {
    /// Starts the last attempt on this thread.
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

/// Whether this thread must make do with the existing room.
#[cold]
pub fn room_is_final() -> bool {
    FINAL.get()
}
