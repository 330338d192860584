//! Caches that threads read without a lock. `docs/development.md` lists their models.

pub(crate) mod append_cursor;
pub(crate) mod attr_cache;
pub(crate) mod attr_words;
pub(crate) mod dcache;
pub(crate) mod extent_cache;
pub(crate) mod probe;
