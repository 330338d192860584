//! The file system as a whole, interrupts, mappings of a guest, backing files.

use crate::flags::MappingFlags;

wire_structs! {
    /// The state of the file system.
    Kstatfs = "fuse_kstatfs" {
        blocks: u64;
        bfree: u64;
        bavail: u64;
        files: u64;
        ffree: u64;
        bsize: u32;
        namelen: u32;
        frsize: u32;
        padding: u32;
        spare: [u32; 6];
    }

    /// The reply to STATFS.
    StatfsOut = "fuse_statfs_out" {
        st: Kstatfs;
    }

    /// The body of SYNCFS.
    SyncfsIn = "fuse_syncfs_in" {
        padding: u64;
    }

    /// The body of INTERRUPT.
    InterruptIn = "fuse_interrupt_in" {
        /// That of the request to interrupt.
        unique: u64;
    }

    /// The body of SETUPMAPPING.
    SetupmappingIn = "fuse_setupmapping_in" {
        fh: u64;
        /// Offset in the file.
        foffset: u64;
        len: u64;
        flags: MappingFlags;
        /// Offset in the window.
        moffset: u64;
    }

    /// The beginning of REMOVEMAPPING; `count` times [`RemovemappingOne`] follows.
    RemovemappingIn = "fuse_removemapping_in" {
        count: u32;
    }

    /// One mapping of REMOVEMAPPING.
    RemovemappingOne = "fuse_removemapping_one" {
        /// Offset in the window.
        moffset: u64;
        len: u64;
    }

    /// The argument of the ioctl that registers a backing file.
    BackingMap = "fuse_backing_map" [40] {
        fd: i32;
        flags: u32;
        padding: u64;
    }
}
