//! Rules that need no file system: names, the chattr flags, suid and sgid, atimes.
//!
//! Each function decides from its arguments alone. It takes no lock and changes no inode;
//! `steps` and `ops` apply the decision.

pub(crate) mod atime;
pub(crate) mod chattr;
pub(crate) mod names;
pub(crate) mod suid;
