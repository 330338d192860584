//! What the engine leaves has no finding; each kind of damage has the one that
//! is its own; and no bytes are too odd to be checked.

mod any_bytes;
mod clean;
mod each;
mod mend;
mod plant;
mod seen;
