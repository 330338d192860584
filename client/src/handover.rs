//! An append without a call, while the server may take the append window away.
//!
//! The server shows the holder of a lease which window is open, and the holder shows the server
//! what it does, in words of the slot (`docs/leases.md`, Appending). The server clears `open`,
//! waits while an append is announced, and loads `end`. Invariant: no byte is stored after the
//! server has found that no append is under way, and each append that was announced in time is
//! in the file.
//!
//! Where the bytes go, and what follows when a window was taken away, is left to `growth`.

use pramfs_medium::sync::atomic::fence;
use pramfs_medium::sync::order::seq_cst;

/// The words of the slot. Loads acquire and stores release.
pub(crate) trait Words {
    /// Why a word cannot be loaded or stored.
    type Error;

    /// Shows that bytes are durable.
    type Durable;

    /// Stores the word `appending`.
    fn set_appending(&self, word: u64) -> Result<(), Self::Error>;

    /// Stores the word `end`, and makes it durable.
    fn set_end(&self, word: u64, after: Self::Durable) -> Result<(), Self::Error>;

    /// Loads the number of the window that is open.
    fn open(&self) -> Result<u64, Self::Error>;
}

/// What became of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    /// The window was closed before. No byte was stored.
    Nothing,
    /// The bytes are in the file.
    Appended,
}

/// Appends in the window of a number. `word` says where the append ends. `copy` stores the
/// bytes and makes them durable.
///
/// # Errors
/// Of `copy`: nothing is appended. Of the words: it is not known.
#[inline]
pub(crate) fn append<W: Words>(
    words: &W,
    number: u64,
    word: u64,
    copy: impl FnOnce() -> Result<W::Durable, W::Error>,
) -> Result<Stored, W::Error> {
    words.set_appending(word)?;
    // The server clears `open`, and then loads `appending`, with the same fence between. So
    // either this thread sees that the window is closed, or the server waits for it.
    fence(seq_cst("append-announced"));
    if words.open()? != number {
        words.set_appending(0)?;
        return Ok(Stored::Nothing);
    }
    // Only durable bytes may be below an end that can become durable.
    let stored = copy().and_then(|durable| words.set_end(word, durable));
    // After `end`: a server that finds no append under way finds its end.
    words.set_appending(0)?;
    stored.map(|()| Stored::Appended)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// The words of a slot, and what a holder does with them.
    #[derive(Default)]
    struct Slot {
        open: Cell<u64>,
        appending: Cell<u64>,
        end: Cell<u64>,
        did: RefCell<Vec<String>>,
    }

    impl Slot {
        fn with_window(number: u64) -> Slot {
            Slot {
                open: number.into(),
                ..Slot::default()
            }
        }

        fn note(&self, what: impl Into<String>) {
            self.did.borrow_mut().push(what.into());
        }
    }

    impl Words for Slot {
        type Error = &'static str;
        type Durable = ();

        fn set_appending(&self, word: u64) -> Result<(), &'static str> {
            self.note(format!("appending {word}"));
            self.appending.set(word);
            Ok(())
        }

        fn set_end(&self, word: u64, (): ()) -> Result<(), &'static str> {
            self.note(format!("end {word}"));
            self.end.set(word);
            Ok(())
        }

        fn open(&self) -> Result<u64, &'static str> {
            self.note("open?");
            Ok(self.open.get())
        }
    }

    #[test]
    fn append_in_open_window_stores_data_before_end() {
        let slot = Slot::with_window(7);
        let stored = append(&slot, 7, 99, || {
            slot.note("data");
            Ok(())
        });
        assert_eq!(stored, Ok(Stored::Appended));
        let did = ["appending 99", "open?", "data", "end 99", "appending 0"];
        assert_eq!(*slot.did.borrow(), did);
    }

    #[test]
    fn append_in_closed_window_stores_nothing() {
        for open in [0, 8] {
            let slot = Slot::with_window(open);
            let stored = append(&slot, 7, 99, || panic!("the window is closed"));
            assert_eq!(stored, Ok(Stored::Nothing));
            assert_eq!((slot.appending.get(), slot.end.get()), (0, 0));
        }
    }

    #[test]
    fn append_whose_bytes_cannot_be_stored_sets_no_end() {
        let slot = Slot::with_window(7);
        let stored = append(&slot, 7, 99, || Err("the page has failed"));
        assert_eq!(stored, Err("the page has failed"));
        assert_eq!((slot.appending.get(), slot.end.get()), (0, 0));
    }
}
