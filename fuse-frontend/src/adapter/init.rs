//! What this server asks of the kernel at mount.
//!
//! Never asked for:
//! * ATOMIC_O_TRUNC: `open` would have to do O_TRUNC, but does not see all of it;
//! * POSIX_LOCKS and FLOCK_LOCKS: the kernel does locks itself;
//! * CREATE_SUPP_GROUP: a kernel that offers it needs no help with sgid of a new file (see
//!   `namespace::mode_of_new`);
//! * REQUEST_TIMEOUT: a server that is stopped for a while must not lose its connection.
//!
//! NO_OPEN_SUPPORT and NO_OPENDIR_SUPPORT only say that the kernel understands ENOSYS as the
//! answer to OPEN and OPENDIR. They are asked for with `opens=kernel` alone, although listings
//! need the second one too.
//!
//! HAS_RESEND is asked for, and needed, with `takeover=on` only: a server that takes a connection
//! over asks for the unanswered requests.
//!
//! WRITEBACK_CACHE is asked for with `cache=writeback` only: with the other modes, a completed
//! write is durable.
//!
//! With POSIX_ACL the kernel applies the ACLs that it is shown. DONT_MASK leaves the
//! umask to the server, because a default ACL of the directory replaces it.
//! With HANDLE_KILLPRIV_V2 the kernel does not look for `security.capability` before each
//! write, and the server clears set-user-ID: see `attributes::drop_rights`. A truncation by a
//! caller without CAP_FSETID says so (FATTR_KILL_SUIDGID), and with SETXATTR_EXT a new ACL says
//! that it clears set-group-ID.
//! With ALLOW_IDMAP, which needs `default_permissions`, the kernel gives the caller's ids only
//! with requests that make an inode: see `caller.rs`. Its decisions rely on those two.
//! With SECURITY_CTX a request that makes an inode carries the labels of security modules
//! (SELinux). They are in the record that makes the inode, so that it never exists without them.

use pramfs_fuse_protocol::flags::InitFlags;

/// Largest request: 1 MiB, the limit of an unchanged kernel.
pub const MAX_REQUEST: u32 = 1 << 20;

/// Limit of concurrent background requests of the kernel: read-ahead and asynchronous
/// direct I/O.
pub const MAX_BACKGROUND: u16 = 64;

/// What every transport asks for, where the kernel offers it.
pub(super) const WANTED: InitFlags = InitFlags::ASYNC_READ
    .union(InitFlags::BIG_WRITES)
    .union(InitFlags::MAX_PAGES)
    .union(InitFlags::PARALLEL_DIROPS)
    .union(InitFlags::DO_READDIRPLUS)
    .union(InitFlags::READDIRPLUS_AUTO)
    .union(InitFlags::EXPORT_SUPPORT)
    .union(InitFlags::CACHE_SYMLINKS)
    .union(InitFlags::EXPLICIT_INVAL_DATA)
    .union(InitFlags::DIRECT_IO_ALLOW_MMAP)
    .union(InitFlags::HAS_IOCTL_DIR)
    .union(InitFlags::HANDLE_KILLPRIV_V2)
    .union(InitFlags::POSIX_ACL)
    .union(InitFlags::DONT_MASK);

/// What the kernel must offer if it opens files and directories by itself.
pub(super) const REQUIRED_FOR_OPENS: InitFlags =
    InitFlags::NO_OPEN_SUPPORT.union(InitFlags::NO_OPENDIR_SUPPORT);

/// What transports ask for beside that if they pass on all of a request.
pub(super) const WANTED_OF_WHOLE_REQUESTS: InitFlags = InitFlags::SETXATTR_EXT
    .union(InitFlags::ALLOW_IDMAP)
    .union(InitFlags::SECURITY_CTX);
