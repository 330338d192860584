//! What the engine leaves has no finding; each kind of damage has the one that
//! is its own; and no bytes are too odd to be checked.

mod any_bytes;
mod clean;
mod each;
mod forged;
mod many;
mod plant;
mod repair;
// Also part of the tests of the whole, which see the library from outside.
#[path = "../../../tests/src/readable.rs"]
mod readable;
