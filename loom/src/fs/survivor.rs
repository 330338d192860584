//! The traits that references need.

#[path = "../../../pramfs-rs/src/fs/survivor/references.rs"]
pub mod references;
