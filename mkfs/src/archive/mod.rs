//! Saved regions: a file with the blocks in use of a region (docs/save.md).
//!
//! Not here: the command lines (`commands::save`, `commands::restore`).

pub(crate) mod format;
pub(crate) mod live;
pub(crate) mod partial;
pub(crate) mod restore;
pub(crate) mod resume;
pub(crate) mod save;
#[cfg(test)]
mod tests;
pub(crate) mod writer;
