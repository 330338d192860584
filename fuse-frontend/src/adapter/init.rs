//! What is asked of the kernel when the file system is mounted.
//!
//! Never asked for, each for a reason found out the hard way with this version
//! of the transport: SETXATTR_EXT (a longer request that it cannot parse),
//! ALLOW_IDMAP (every request refused), ATOMIC_O_TRUNC (O_TRUNC would have to be
//! done by `open`, which does not see all of it), WRITEBACK_CACHE (a write that
//! has returned must be durable), POSIX_LOCKS and FLOCK_LOCKS (the kernel does
//! them itself).
//! With POSIX_ACL the kernel heeds the ACLs that it is shown, and DONT_MASK
//! leaves the umask to us: a directory's default ACL replaces it.
//! With HANDLE_KILLPRIV_V2 it does not look for `security.capability` before each
//! write, and we take set-user-id away: see `attributes::drop_rights`.
//! NO_OPEN_SUPPORT is not used either: whether a file is open, and whether it
//! is open through the page cache, must stay known to this process.

use fuser::{InitFlags, KernelConfig};

/// Largest request: 1 MiB, the limit of an unchanged kernel.
pub(super) const MAX_REQUEST: u32 = 1 << 20;

/// Requests that the kernel may have under way that nobody waits for:
/// read-ahead and asynchronous direct I/O.
const MAX_BACKGROUND: u16 = 64;

const WANTED: InitFlags = InitFlags::FUSE_ASYNC_READ
    .union(InitFlags::FUSE_BIG_WRITES)
    .union(InitFlags::FUSE_MAX_PAGES)
    .union(InitFlags::FUSE_PARALLEL_DIROPS)
    .union(InitFlags::FUSE_DO_READDIRPLUS)
    .union(InitFlags::FUSE_READDIRPLUS_AUTO)
    .union(InitFlags::FUSE_EXPORT_SUPPORT)
    .union(InitFlags::FUSE_CACHE_SYMLINKS)
    .union(InitFlags::FUSE_EXPLICIT_INVAL_DATA)
    .union(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP)
    .union(InitFlags::FUSE_HAS_IOCTL_DIR)
    .union(InitFlags::FUSE_HANDLE_KILLPRIV_V2)
    .union(InitFlags::FUSE_POSIX_ACL)
    .union(InitFlags::FUSE_DONT_MASK);

/// What the kernel can do without being asked to.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Offers {
    /// It opens directories itself where it is told that nobody else does
    /// (Linux 5.1).
    pub opens_directories: bool,
}

/// Settles capabilities and sizes.
pub(super) fn negotiate(config: &mut KernelConfig) -> Offers {
    let offered = config.capabilities() & WANTED;
    if let Err(refused) = config.add_capabilities(offered) {
        tracing::warn!("the kernel does not offer {refused:?}");
    }
    // Each of these can only fail by naming the nearest value that works.
    if let Err(nearest) = config.set_max_write(MAX_REQUEST) {
        tracing::warn!("requests are limited to {nearest} bytes");
    }
    if config.set_max_background(MAX_BACKGROUND).is_err() {
        tracing::warn!("the number of background requests stays as it is");
    }
    tracing::debug!(
        "kernel ABI {}, capabilities in use: {:?}",
        config.kernel_abi(),
        offered
    );
    Offers {
        opens_directories: config
            .capabilities()
            .contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT),
    }
}
