//! `volume/verified.rs`: leaves whose checksum need not be verified again.
//!
//! The table has no named ordering. The lock of a directory orders the notes of its leaves,
//! and the free of a leaf after them. Only threads of different directories share a set.

use std::sync::Arc;

use loom::thread;

use super::{Model, explore, promise};
use crate::types::Bno;
use crate::verified::Verified;

pub const MODELS: &[Model] = &[
    Model {
        name: "forget_during_notes_of_others_forgets",
        run: forget_during_notes_of_others_forgets,
        needs: &[],
    },
    Model {
        name: "forget_after_two_notes_at_once_forgets",
        run: forget_after_two_notes_at_once_forgets,
        needs: &[],
    },
];

/// All blocks share one set of two slots. This fails, for example, if a note moves the block
/// that it replaces to a free slot.
fn forget_during_notes_of_others_forgets() {
    explore(|| {
        let verified = Arc::new(Verified::new());
        verified.note(Bno(1));
        let other = {
            let verified = verified.clone();
            thread::spawn(move || {
                verified.note(Bno(2));
                verified.note(Bno(3));
                verified.forget(Bno(2));
            })
        };
        verified.forget(Bno(1));
        promise!(!verified.knows(Bno(1)), "a freed block is known");
        other.join().unwrap();
        for n in [1, 2] {
            promise!(!verified.knows(Bno(n)), "freed block {n} is known again");
        }
    });
}

/// Two readers of a directory note its leaf while the slots of the set change, so that it may
/// be in both. Fails if only one slot forgets the block.
fn forget_after_two_notes_at_once_forgets() {
    explore(|| {
        let verified = Arc::new(Verified::new());
        verified.note(Bno(3));
        let readers = [0, 1].map(|_| {
            let verified = verified.clone();
            thread::spawn(move || verified.note(Bno(1)))
        });
        verified.forget(Bno(3));
        for reader in readers {
            reader.join().unwrap();
        }
        promise!(!verified.knows(Bno(3)), "a freed block is known");
        verified.forget(Bno(1));
        promise!(!verified.knows(Bno(1)), "a freed block is known");
    });
}
