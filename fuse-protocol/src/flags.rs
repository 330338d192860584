//! Sets of flags.
//!
//! A set keeps bits that this crate does not know, so that a newer kernel's request can
//! be shown and refused. [`bitflags::Flags::contains_unknown_bits`] finds them.

wire_flags! {
    /// What both sides of a connection can do, over the two words `flags` and `flags2`.
    InitFlags: u64 {
        /// Reads of a file may be under way at the same time.
        ASYNC_READ = "FUSE_ASYNC_READ", 0;
        /// The server keeps POSIX locks.
        POSIX_LOCKS = "FUSE_POSIX_LOCKS", 1;
        /// Not in use.
        FILE_OPS = "FUSE_FILE_OPS", 2;
        /// The server does `O_TRUNC` in OPEN.
        ATOMIC_O_TRUNC = "FUSE_ATOMIC_O_TRUNC", 3;
        /// The server looks up `.` and `..`.
        EXPORT_SUPPORT = "FUSE_EXPORT_SUPPORT", 4;
        /// Writes may be longer than 4 KiB.
        BIG_WRITES = "FUSE_BIG_WRITES", 5;
        /// The server applies the umask.
        DONT_MASK = "FUSE_DONT_MASK", 6;
        /// The kernel can splice from the device.
        SPLICE_WRITE = "FUSE_SPLICE_WRITE", 7;
        /// The kernel can move pages of a splice.
        SPLICE_MOVE = "FUSE_SPLICE_MOVE", 8;
        /// The kernel can splice to the device.
        SPLICE_READ = "FUSE_SPLICE_READ", 9;
        /// The server keeps locks of flock(2).
        FLOCK_LOCKS = "FUSE_FLOCK_LOCKS", 10;
        /// The kernel passes ioctls of directories on.
        HAS_IOCTL_DIR = "FUSE_HAS_IOCTL_DIR", 11;
        /// The kernel drops cached pages when size or mtime differ.
        AUTO_INVAL_DATA = "FUSE_AUTO_INVAL_DATA", 12;
        /// READDIRPLUS is used.
        DO_READDIRPLUS = "FUSE_DO_READDIRPLUS", 13;
        /// The kernel chooses between READDIR and READDIRPLUS.
        READDIRPLUS_AUTO = "FUSE_READDIRPLUS_AUTO", 14;
        /// Direct I/O may be asynchronous.
        ASYNC_DIO = "FUSE_ASYNC_DIO", 15;
        /// Writes stay in the page cache for a while.
        WRITEBACK_CACHE = "FUSE_WRITEBACK_CACHE", 16;
        /// ENOSYS to OPEN means that files need no opening.
        NO_OPEN_SUPPORT = "FUSE_NO_OPEN_SUPPORT", 17;
        /// Lookups and listings of a directory may be under way at the same time.
        PARALLEL_DIROPS = "FUSE_PARALLEL_DIROPS", 18;
        /// The server clears suid and sgid at a write, chown or truncation.
        HANDLE_KILLPRIV = "FUSE_HANDLE_KILLPRIV", 19;
        /// The kernel applies POSIX ACLs.
        POSIX_ACL = "FUSE_POSIX_ACL", 20;
        /// Reading the device after an abort gives ECONNABORTED.
        ABORT_ERROR = "FUSE_ABORT_ERROR", 21;
        /// `max_pages` of the reply to INIT counts.
        MAX_PAGES = "FUSE_MAX_PAGES", 22;
        /// The kernel caches targets of symbolic links.
        CACHE_SYMLINKS = "FUSE_CACHE_SYMLINKS", 23;
        /// ENOSYS to OPENDIR means that directories need no opening.
        NO_OPENDIR_SUPPORT = "FUSE_NO_OPENDIR_SUPPORT", 24;
        /// The kernel drops cached pages only when it is told to.
        EXPLICIT_INVAL_DATA = "FUSE_EXPLICIT_INVAL_DATA", 25;
        /// `map_alignment` of the reply to INIT counts.
        MAP_ALIGNMENT = "FUSE_MAP_ALIGNMENT", 26;
        /// The kernel mounts what `ATTR_SUBMOUNT` marks.
        SUBMOUNTS = "FUSE_SUBMOUNTS", 27;
        /// As `HANDLE_KILLPRIV`, where the request says so.
        HANDLE_KILLPRIV_V2 = "FUSE_HANDLE_KILLPRIV_V2", 28;
        /// SETXATTR has the longer header.
        SETXATTR_EXT = "FUSE_SETXATTR_EXT", 29;
        /// `flags2` counts.
        INIT_EXT = "FUSE_INIT_EXT", 30;
        /// Reserved.
        INIT_RESERVED = "FUSE_INIT_RESERVED", 31;
        /// Requests that make a node carry its security context.
        SECURITY_CTX = "FUSE_SECURITY_CTX", 32;
        /// DAX is chosen for each inode.
        HAS_INODE_DAX = "FUSE_HAS_INODE_DAX", 33;
        /// Requests that make a node carry a supplementary group.
        CREATE_SUPP_GROUP = "FUSE_CREATE_SUPP_GROUP", 34, 39;
        /// The kernel can expire entries.
        HAS_EXPIRE_ONLY = "FUSE_HAS_EXPIRE_ONLY", 35;
        /// Files in direct mode may have shared mappings.
        DIRECT_IO_ALLOW_MMAP = "FUSE_DIRECT_IO_ALLOW_MMAP", 36, 39;
        /// The kernel may read and write a backing file itself.
        PASSTHROUGH = "FUSE_PASSTHROUGH", 37, 40;
        /// The file system cannot be exported.
        NO_EXPORT_SUPPORT = "FUSE_NO_EXPORT_SUPPORT", 38, 40;
        /// The kernel can send unanswered requests again.
        HAS_RESEND = "FUSE_HAS_RESEND", 39, 40;
        /// The mount may be mapped to other ids.
        ALLOW_IDMAP = "FUSE_ALLOW_IDMAP", 40, 41;
        /// Requests may come over io_uring.
        OVER_IO_URING = "FUSE_OVER_IO_URING", 41, 42;
        /// `request_timeout` of the reply to INIT counts.
        REQUEST_TIMEOUT = "FUSE_REQUEST_TIMEOUT", 42, 43;
    }

    /// Which fields of SETATTR count.
    SetattrValid: u32 {
        /// `mode`.
        MODE = "FATTR_MODE", 0;
        /// `uid`.
        UID = "FATTR_UID", 1;
        /// `gid`.
        GID = "FATTR_GID", 2;
        /// `size`.
        SIZE = "FATTR_SIZE", 3;
        /// `atime`.
        ATIME = "FATTR_ATIME", 4;
        /// `mtime`.
        MTIME = "FATTR_MTIME", 5;
        /// `fh`.
        FH = "FATTR_FH", 6;
        /// The server's time is the new atime.
        ATIME_NOW = "FATTR_ATIME_NOW", 7;
        /// The server's time is the new mtime.
        MTIME_NOW = "FATTR_MTIME_NOW", 8;
        /// `lock_owner`.
        LOCKOWNER = "FATTR_LOCKOWNER", 9;
        /// `ctime`.
        CTIME = "FATTR_CTIME", 10;
        /// Clear suid and sgid.
        KILL_SUIDGID = "FATTR_KILL_SUIDGID", 11;
    }

    /// How an open file behaves: in the reply to OPEN, OPENDIR, CREATE and TMPFILE.
    OpenOutFlags: u32 {
        /// Bypass the page cache.
        DIRECT_IO = "FOPEN_DIRECT_IO", 0;
        /// Keep what the page cache has.
        KEEP_CACHE = "FOPEN_KEEP_CACHE", 1;
        /// There is no seeking.
        NONSEEKABLE = "FOPEN_NONSEEKABLE", 2;
        /// Cache the listing.
        CACHE_DIR = "FOPEN_CACHE_DIR", 3;
        /// There is no position.
        STREAM = "FOPEN_STREAM", 4;
        /// No FLUSH at close.
        NOFLUSH = "FOPEN_NOFLUSH", 5;
        /// Direct writes may be under way at the same time.
        PARALLEL_DIRECT_WRITES = "FOPEN_PARALLEL_DIRECT_WRITES", 6;
        /// Read and write the backing file.
        PASSTHROUGH = "FOPEN_PASSTHROUGH", 7, 40;
    }

    /// What an open must do, beside its flags of open(2).
    OpenInFlags: u32 {
        /// Clear suid and sgid.
        KILL_SUIDGID = "FUSE_OPEN_KILL_SUIDGID", 0;
    }

    /// What a close must do.
    ReleaseFlags: u32 {
        /// Do what FLUSH does.
        FLUSH = "FUSE_RELEASE_FLUSH", 0;
        /// Release the lock of flock(2).
        FLOCK_UNLOCK = "FUSE_RELEASE_FLOCK_UNLOCK", 1;
    }

    /// Flags of GETATTR and STATX.
    GetattrFlags: u32 {
        /// `fh` counts.
        FH = "FUSE_GETATTR_FH", 0;
    }

    /// Flags of a lock.
    LkFlags: u32 {
        /// It is one of flock(2).
        FLOCK = "FUSE_LK_FLOCK", 0;
    }

    /// Flags of WRITE.
    WriteFlags: u32 {
        /// It comes from the page cache, and the handle is a guess.
        CACHE = "FUSE_WRITE_CACHE", 0;
        /// `lock_owner` counts.
        LOCKOWNER = "FUSE_WRITE_LOCKOWNER", 1;
        /// Clear suid and sgid.
        KILL_SUIDGID = "FUSE_WRITE_KILL_SUIDGID", 2;
    }

    /// Flags of READ.
    ReadFlags: u32 {
        /// `lock_owner` counts.
        LOCKOWNER = "FUSE_READ_LOCKOWNER", 1;
    }

    /// Flags of IOCTL, and of its reply.
    IoctlFlags: u32 {
        /// The caller is a 32-bit program on a 64-bit kernel.
        COMPAT = "FUSE_IOCTL_COMPAT", 0;
        /// The server chooses what is copied (CUSE only).
        UNRESTRICTED = "FUSE_IOCTL_UNRESTRICTED", 1;
        /// Try again with other parts (CUSE only).
        RETRY = "FUSE_IOCTL_RETRY", 2;
        /// The numbers are those of 32 bits.
        THIRTY_TWO_BIT = "FUSE_IOCTL_32BIT", 3;
        /// It is of a directory.
        DIR = "FUSE_IOCTL_DIR", 4;
        /// The caller is an x32 program.
        COMPAT_X32 = "FUSE_IOCTL_COMPAT_X32", 5;
    }

    /// Flags of POLL.
    PollFlags: u32 {
        /// Notify when something happens.
        SCHEDULE_NOTIFY = "FUSE_POLL_SCHEDULE_NOTIFY", 0;
    }

    /// Flags of FSYNC and FSYNCDIR.
    FsyncFlags: u32 {
        /// Only the contents, and what is needed to find them.
        FDATASYNC = "FUSE_FSYNC_FDATASYNC", 0;
    }

    /// Flags of a node's attributes.
    AttrFlags: u32 {
        /// The node is the root of another file system.
        SUBMOUNT = "FUSE_ATTR_SUBMOUNT", 0;
        /// Use DAX for this file.
        DAX = "FUSE_ATTR_DAX", 1;
    }

    /// Flags of SETXATTR beside those of setxattr(2).
    SetxattrFlags: u32 {
        /// Clear sgid along with the access ACL.
        ACL_KILL_SGID = "FUSE_SETXATTR_ACL_KILL_SGID", 0;
    }

    /// Flags of the notification that invalidates an entry.
    InvalEntryFlags: u32 {
        /// The entry is asked for again before its next use, and stays until then.
        EXPIRE_ONLY = "FUSE_EXPIRE_ONLY", 0;
    }

    /// Access that a mapping of a guest gives.
    MappingFlags: u64 {
        /// Writing.
        WRITE = "FUSE_SETUPMAPPING_FLAG_WRITE", 0;
        /// Reading.
        READ = "FUSE_SETUPMAPPING_FLAG_READ", 1;
    }
}

impl InitFlags {
    /// Puts the two words together.
    #[must_use]
    pub const fn join(flags: u32, flags2: u32) -> InitFlags {
        InitFlags::from_bits_retain(flags as u64 | (flags2 as u64) << 32)
    }

    /// Returns the two words `flags` and `flags2`.
    #[must_use]
    pub const fn split(self) -> (u32, u32) {
        (self.bits() as u32, (self.bits() >> 32) as u32)
    }

    /// The flags of the second word.
    #[must_use]
    pub const fn second_word(self) -> InitFlags {
        InitFlags::from_bits_retain(self.bits() & !(u32::MAX as u64))
    }
}
