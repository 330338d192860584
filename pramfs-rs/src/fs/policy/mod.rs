//! Rules that need no file system.

pub(crate) mod atime;
pub(crate) mod chattr;
pub(crate) mod names;
pub(crate) mod suid;
