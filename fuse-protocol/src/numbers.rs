//! Single numbers of the protocol.

wire_numbers! {
    /// The major version.
    MAJOR: u32 = "FUSE_KERNEL_VERSION", 7;
    /// The node of the root.
    ROOT_ID: u64 = "FUSE_ROOT_ID", 1;
    /// The least room for a request that a read of `/dev/fuse` must offer.
    MIN_READ_BUFFER: usize = "FUSE_MIN_READ_BUFFER", 8192;
    /// Length of the body of a reply to INIT before 7.23.
    INIT_OUT_22_SIZE: usize = "FUSE_COMPAT_22_INIT_OUT_SIZE", 24;
    /// Length of [`SetxattrIn`](crate::wire::SetxattrIn) without `SETXATTR_EXT`.
    SETXATTR_IN_SHORT_SIZE: usize = "FUSE_COMPAT_SETXATTR_IN_SIZE", 8;
    /// Most security contexts of a request. An extension of a larger type is another one.
    MAX_NR_SECCTX: u32 = "FUSE_MAX_NR_SECCTX", 31;
    /// The type of the extension with supplementary groups.
    EXT_GROUPS: u32 = "FUSE_EXT_GROUPS", 32, 39;
    /// Most parts of an ioctl that asks for them.
    IOCTL_MAX_IOV: u32 = "FUSE_IOCTL_MAX_IOV", 256;
    /// A bit of `unique`: the request was sent before, to a server that has not answered.
    UNIQUE_RESEND: u64 = "FUSE_UNIQUE_RESEND", 1 << 63, 40;
    /// User and group of a request that makes nothing, with `ALLOW_IDMAP`.
    INVALID_UIDGID: u32 = "FUSE_INVALID_UIDGID", u32::MAX, 41;
    /// The type of the ioctls of `/dev/fuse`.
    DEV_IOC_MAGIC: u32 = "FUSE_DEV_IOC_MAGIC", 229;
    /// Makes a descriptor another channel of a connection.
    DEV_IOC_CLONE: u32 = "FUSE_DEV_IOC_CLONE", 0x8004_e500;
    /// Registers a file for passthrough.
    DEV_IOC_BACKING_OPEN: u32 = "FUSE_DEV_IOC_BACKING_OPEN", 0x4010_e501, 40;
    /// Removes such a file.
    DEV_IOC_BACKING_CLOSE: u32 = "FUSE_DEV_IOC_BACKING_CLOSE", 0x4004_e502, 40;
    /// Lets mount(2) wait for the answer to INIT.
    DEV_IOC_SYNC_INIT: u32 = "FUSE_DEV_IOC_SYNC_INIT", 0xe503, 45;
    /// Room for the header of a request or reply in io_uring.
    URING_IN_OUT_HEADER_SIZE: usize = "FUSE_URING_IN_OUT_HEADER_SZ", 128, 42;
    /// Room for the header of an operation in io_uring.
    URING_OP_IN_OUT_SIZE: usize = "FUSE_URING_OP_IN_OUT_SZ", 128, 42;
    /// Command of io_uring: registers an entry and fetches a request.
    URING_CMD_REGISTER: u32 = "FUSE_IO_URING_CMD_REGISTER", 1, 42;
    /// Command of io_uring: sends a reply and fetches the next request.
    URING_CMD_COMMIT_AND_FETCH: u32 = "FUSE_IO_URING_CMD_COMMIT_AND_FETCH", 2, 42;
}

/// The newest minor version that this crate knows.
pub const MINOR: u32 = 45;

/// The oldest minor version that this crate speaks: from here on, requests and replies
/// other than INIT have the sizes that they have today.
pub const OLDEST_MINOR: u32 = 12;

/// The bit of `unique` that an interrupt adds to the number of the request it interrupts.
pub const UNIQUE_INTERRUPT: u64 = 1;

/// The greatest length of a name in a listing that every kernel accepts.
pub const LISTED_NAME_MAX: usize = 1024;
