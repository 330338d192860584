//! An append without a call, while the server may take the append window away.
//!
//! The server shows the holder of a lease which window is open, and the holder shows the server
//! what it does, in words of the slot (`docs/leases.md`, Appending). The server clears `open`
//! and then loads `appending` and `end`. Invariant: no byte is stored after the server has
//! found that no append is under way, and an append that is reported as done is in the file.
//!
//! Where the bytes go, and what follows when a window was taken away, is left to `growth`.

use pramfs_medium::sync::atomic::fence;
use pramfs_medium::sync::order::seq_cst;

/// The words of the slot. Loads acquire and stores release.
pub(crate) trait Words {
    /// Why a word cannot be loaded or stored.
    type Error;

    /// Stores the word `appending`.
    fn set_appending(&self, word: u64) -> Result<(), Self::Error>;

    /// Stores the word `end`, and makes it durable.
    fn set_end(&self, word: u64) -> Result<(), Self::Error>;

    /// Loads the number of the window that is open.
    fn open(&self) -> Result<u64, Self::Error>;

    /// Loads the number of the window that was closed last.
    fn closed(&self) -> Result<u64, Self::Error>;

    /// Loads the size that the file had then.
    fn taken(&self) -> Result<u64, Self::Error>;
}

/// What became of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    /// The window was closed before. No byte was stored.
    Nothing,
    /// The bytes are in the file.
    Appended,
    /// All was stored, and the window is being closed. [`settled`] tells the rest.
    Closing,
}

/// Appends in the window of a number. `word` says where the append ends. `copy` stores the
/// bytes and makes them durable.
///
/// # Errors
/// Of `copy`: nothing is appended. Of the words: it is not known.
pub(crate) fn append<W: Words>(
    words: &W,
    number: u64,
    word: u64,
    copy: impl FnOnce() -> Result<(), W::Error>,
) -> Result<Stored, W::Error> {
    words.set_appending(word)?;
    // The server clears `open`, and then loads `appending`, with the same fence between. So
    // either this thread sees that the window is closed, or the server waits for it.
    fence(seq_cst("append-announced"));
    if words.open()? != number {
        words.set_appending(0)?;
        return Ok(Stored::Nothing);
    }
    if let Err(error) = copy() {
        words.set_appending(0)?;
        return Err(error);
    }
    // Only durable bytes may be below an end that can become durable.
    words.set_end(word)?;
    // After `end`: a server that finds no append under way finds its end.
    words.set_appending(0)?;
    // The server may have stopped waiting. It clears `open`, and then loads `end`.
    fence(seq_cst("append-stored"));
    Ok(match words.open()? == number {
        true => Stored::Appended,
        false => Stored::Closing,
    })
}

/// How a window was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    /// The server is still closing it.
    NotYet,
    /// The file had this size then.
    At(u64),
    /// A new server has closed all windows. It tells no size.
    All,
}

/// Whether the window of a number has been closed, and at which size of the file.
pub(crate) fn settled<W: Words>(words: &W, number: u64, all: u64) -> Result<Settled, W::Error> {
    // Acquire: `taken` was stored before.
    Ok(match words.closed()? {
        closed if closed == number => Settled::At(words.taken()?),
        closed if closed == all => Settled::All,
        _ => Settled::NotYet,
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    const ALL: u64 = u64::MAX;

    /// The words of a slot, and what a holder does with them.
    #[derive(Default)]
    struct Slot {
        open: Cell<u64>,
        closed: Cell<u64>,
        taken: Cell<u64>,
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

        fn set_appending(&self, word: u64) -> Result<(), &'static str> {
            self.note(format!("appending {word}"));
            self.appending.set(word);
            Ok(())
        }

        fn set_end(&self, word: u64) -> Result<(), &'static str> {
            self.note(format!("end {word}"));
            self.end.set(word);
            Ok(())
        }

        fn open(&self) -> Result<u64, &'static str> {
            self.note("open?");
            Ok(self.open.get())
        }

        fn closed(&self) -> Result<u64, &'static str> {
            Ok(self.closed.get())
        }

        fn taken(&self) -> Result<u64, &'static str> {
            Ok(self.taken.get())
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
        let did = [
            "appending 99",
            "open?",
            "data",
            "end 99",
            "appending 0",
            "open?",
        ];
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
    fn append_whose_window_closes_meanwhile_is_not_reported_as_done() {
        let slot = Slot::with_window(7);
        let stored = append(&slot, 7, 99, || {
            slot.open.set(0);
            Ok(())
        });
        assert_eq!((stored, slot.end.get()), (Ok(Stored::Closing), 99));
        assert_eq!(settled(&slot, 7, ALL), Ok(Settled::NotYet));
        slot.taken.set(5000);
        slot.closed.set(7);
        assert_eq!(settled(&slot, 7, ALL), Ok(Settled::At(5000)));
        slot.closed.set(ALL);
        assert_eq!(settled(&slot, 7, ALL), Ok(Settled::All));
    }

    #[test]
    fn append_whose_bytes_cannot_be_stored_sets_no_end() {
        let slot = Slot::with_window(7);
        let stored = append(&slot, 7, 99, || Err("the page has failed"));
        assert_eq!(stored, Err("the page has failed"));
        assert_eq!((slot.appending.get(), slot.end.get()), (0, 0));
    }
}
