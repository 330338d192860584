//! Negotiates capabilities and sizes with the kernel at mount.
//!
//! Never requested with this version of `fuser`:
//! * SETXATTR_EXT: a longer request that `fuser` cannot parse;
//! * ALLOW_IDMAP: every request is refused;
//! * ATOMIC_O_TRUNC: `open` would have to do O_TRUNC, but does not see all of it;
//! * WRITEBACK_CACHE: a completed write must be durable;
//! * POSIX_LOCKS and FLOCK_LOCKS: the kernel does locks itself;
//! * NO_OPEN_SUPPORT: the server must know whether a file is open, and whether it is
//!   open through the page cache.
//!
//! With POSIX_ACL the kernel applies the ACLs that it is shown. DONT_MASK leaves the
//! umask to the server, because a default ACL of the directory replaces it.
//! With HANDLE_KILLPRIV_V2 the kernel does not look for `security.capability` before each
//! write, and the server clears set-user-ID: see `attributes::drop_rights`.

use fuser::{InitFlags, KernelConfig};

/// Largest request: 1 MiB, the limit of an unchanged kernel.
pub(super) const MAX_REQUEST: u32 = 1 << 20;

/// Limit of concurrent background requests of the kernel: read-ahead and asynchronous
/// direct I/O.
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

/// Capabilities that the kernel has without negotiation.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Offers {
    /// It opens directories itself after ENOSYS to opendir (Linux 5.1).
    pub opens_directories: bool,
}

/// Negotiates capabilities and sizes. `map_direct`: shared mappings of files opened with
/// O_DIRECT are allowed. Such a mapping uses the page cache.
pub(super) fn negotiate(config: &mut KernelConfig, map_direct: bool) -> Offers {
    let mut offered = config.capabilities() & WANTED;
    if !map_direct {
        offered.remove(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
    }
    if let Err(refused) = config.add_capabilities(offered) {
        tracing::warn!("the kernel does not offer {refused:?}");
    }
    // These fail only with the nearest value that works.
    if let Err(nearest) = config.set_max_write(MAX_REQUEST) {
        tracing::warn!("requests are limited to {nearest} bytes");
    }
    if config.set_max_background(MAX_BACKGROUND).is_err() {
        tracing::warn!("the limit of background requests stays at its default");
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
