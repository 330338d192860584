//! The caches of the engine, from its own sources.

pub mod cache;
pub mod inode;
pub mod survivor;

pub mod policy {
    pub mod atime {
        use crate::fs::inode::state::Disk;

        /// As in the engine.
        pub fn relatime_until(_: &Disk) -> i64 {
            i64::MIN
        }
    }
}
