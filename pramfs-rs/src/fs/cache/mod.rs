//! Caches that threads read without a lock.
//!
//! Invariant: a cache may forget, but a valid entry is never wrong. Its file says how a
//! reader recognizes a valid entry. The caches do not read the medium: their callers fill
//! them. `docs/development.md` lists the models of the protocols.

pub(crate) mod append_cursor;
pub(crate) mod attr_cache;
pub(crate) mod attr_words;
pub(crate) mod dcache;
pub(crate) mod extent_cache;
pub(crate) mod probe;
