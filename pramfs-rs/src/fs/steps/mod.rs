//! Steps that several operations share. Each works on inodes that the caller has locked,
//! most of them within the transaction of the caller.

mod acl;
pub(crate) mod atime;
pub(crate) mod attributes;
pub(crate) mod entries;
mod file_map;
mod orphan_table;
mod orphans;
mod resize;
pub(crate) mod two_entries;
pub(crate) mod xattrs;
