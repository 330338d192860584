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
pub(crate) mod bad_blocks;
pub(crate) mod copies;
pub(crate) mod entries;
mod extents;
mod file_map;
pub(crate) mod group_tables;
pub(crate) mod lazy_times;
pub(crate) mod lease_table;
pub(crate) mod marks;
mod orphan_table;
mod orphans;
pub(crate) mod resize;
mod slot_table;
mod sums;
pub(crate) mod two_entries;
pub(crate) mod xattrs;
