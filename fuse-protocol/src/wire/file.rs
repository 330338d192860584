//! Open files: their contents, locks, and calls.

use crate::flags::{
    FsyncFlags, IoctlFlags, LkFlags, OpenInFlags, OpenOutFlags, PollFlags, ReadFlags, ReleaseFlags,
    WriteFlags,
};

wire_structs! {
    /// The body of OPEN and OPENDIR.
    OpenIn = "fuse_open_in" {
        /// Flags of open(2).
        flags: u32;
        open_flags: OpenInFlags;
    }

    /// The beginning of CREATE and TMPFILE.
    CreateIn = "fuse_create_in" {
        /// Flags of open(2).
        flags: u32;
        mode: u32;
        umask: u32;
        open_flags: OpenInFlags;
    }

    /// The reply to OPEN and OPENDIR, and the end of that to CREATE and TMPFILE.
    OpenOut = "fuse_open_out" {
        fh: u64;
        open_flags: OpenOutFlags;
        backing_id: i32 [40];
    }

    /// The body of RELEASE and RELEASEDIR.
    ReleaseIn = "fuse_release_in" {
        fh: u64;
        /// Flags of open(2).
        flags: u32;
        release_flags: ReleaseFlags;
        lock_owner: u64;
    }

    /// The body of FLUSH.
    FlushIn = "fuse_flush_in" {
        fh: u64;
        unused: u32;
        padding: u32;
        lock_owner: u64;
    }

    /// The body of READ, READDIR and READDIRPLUS.
    ReadIn = "fuse_read_in" {
        fh: u64;
        offset: u64;
        size: u32;
        read_flags: ReadFlags;
        lock_owner: u64;
        /// Flags of open(2).
        flags: u32;
        padding: u32;
    }

    /// The beginning of WRITE.
    WriteIn = "fuse_write_in" {
        fh: u64;
        offset: u64;
        size: u32;
        write_flags: WriteFlags;
        lock_owner: u64;
        /// Flags of open(2).
        flags: u32;
        padding: u32;
    }

    /// The reply to WRITE and COPY_FILE_RANGE.
    WriteOut = "fuse_write_out" {
        size: u32;
        padding: u32;
    }

    /// The body of FSYNC and FSYNCDIR.
    FsyncIn = "fuse_fsync_in" {
        fh: u64;
        fsync_flags: FsyncFlags;
        padding: u32;
    }

    /// A lock.
    FileLock = "fuse_file_lock" {
        start: u64;
        /// The last byte.
        end: u64;
        /// As in fcntl(2).
        kind = "type": u32;
        pid: u32;
    }

    /// The body of GETLK, SETLK and SETLKW.
    LkIn = "fuse_lk_in" {
        fh: u64;
        owner: u64;
        lk: FileLock;
        lk_flags: LkFlags;
        padding: u32;
    }

    /// The reply to GETLK.
    LkOut = "fuse_lk_out" {
        lk: FileLock;
    }

    /// The beginning of IOCTL.
    IoctlIn = "fuse_ioctl_in" {
        fh: u64;
        flags: IoctlFlags;
        cmd: u32;
        arg: u64;
        in_size: u32;
        out_size: u32;
    }

    /// A part of the memory of a caller of ioctl(2).
    IoctlIovec = "fuse_ioctl_iovec" {
        base: u64;
        len: u64;
    }

    /// The beginning of the reply to IOCTL.
    IoctlOut = "fuse_ioctl_out" {
        result: i32;
        flags: IoctlFlags;
        in_iovs: u32;
        out_iovs: u32;
    }

    /// The body of POLL.
    PollIn = "fuse_poll_in" {
        fh: u64;
        /// A notification repeats it.
        kh: u64;
        flags: PollFlags;
        events: u32;
    }

    /// The reply to POLL.
    PollOut = "fuse_poll_out" {
        revents: u32;
        padding: u32;
    }

    /// The body of FALLOCATE.
    FallocateIn = "fuse_fallocate_in" {
        fh: u64;
        offset: u64;
        length: u64;
        /// As in fallocate(2).
        mode: u32;
        padding: u32;
    }

    /// The body of LSEEK.
    LseekIn = "fuse_lseek_in" {
        fh: u64;
        offset: u64;
        whence: u32;
        padding: u32;
    }

    /// The reply to LSEEK.
    LseekOut = "fuse_lseek_out" {
        offset: u64;
    }

    /// The body of COPY_FILE_RANGE and COPY_FILE_RANGE_64.
    CopyFileRangeIn = "fuse_copy_file_range_in" {
        fh_in: u64;
        off_in: u64;
        nodeid_out: u64;
        fh_out: u64;
        off_out: u64;
        len: u64;
        flags: u64;
    }

    /// The reply to COPY_FILE_RANGE_64.
    CopyFileRangeOut = "fuse_copy_file_range_out" [45] {
        bytes_copied: u64;
    }

    /// The body of BMAP.
    BmapIn = "fuse_bmap_in" {
        block: u64;
        blocksize: u32;
        padding: u32;
    }

    /// The reply to BMAP.
    BmapOut = "fuse_bmap_out" {
        block: u64;
    }
}
