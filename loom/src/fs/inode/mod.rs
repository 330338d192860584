//! The lock of an inode, its leases, and references.

pub mod state {
    use crate::types::FileType;

    #[derive(Debug, Default)]
    pub struct Disk {
        pub size: u64,
        pub root: u64,
        pub height: u32,
        pub atime_sec: i64,
        pub atime_nsec: u32,
        pub mtime_sec: i64,
        pub mtime_nsec: u32,
        pub ctime_sec: i64,
        pub ctime_nsec: u32,
    }

    #[derive(Debug, Default)]
    pub struct InodeState {
        pub disk: Disk,
        pub records: u64,
        pub gone: bool,
        pub leases: super::leases::Leases,
    }

    impl InodeState {
        pub fn kind(&self) -> FileType {
            FileType::Regular
        }
    }
}

#[path = "../../../../pramfs-rs/src/fs/inode/leases.rs"]
pub mod leases;
#[path = "../../../../pramfs-rs/src/fs/inode/lock.rs"]
pub mod lock;
#[path = "../../../../pramfs-rs/src/fs/inode/refs.rs"]
pub mod refs;
