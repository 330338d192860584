//! Steps that several operations share.
//!
//! Invariant: a step works on inodes that the caller has locked, and most steps add to the
//! transaction of the caller. A crash then leaves all changes of the operation or none. The
//! exceptions, chains of records, are `orphans` and `resize`.
//!
//! The caller enters the operation's frame, checks names and flags, and takes the locks
//! (`ops`).

mod acl;
pub(crate) mod atime;
pub(crate) mod attributes;
pub(crate) mod entries;
mod file_map;
pub(crate) mod lease_table;
mod orphan_table;
mod orphans;
mod resize;
mod slot_table;
pub(crate) mod two_entries;
pub(crate) mod xattrs;
