//! The system calls that a server may make, by purpose. All others give EPERM.
//!
//! An unconditional call costs almost nothing: the kernel evaluates the filter once and
//! keeps a bitmap of the always allowed calls. So the calls of the request path are
//! unconditional. A filter cannot inspect paths.

use libc::c_long;

/// A condition on one argument. Compares the lower 32 bits, except for `Null`.
#[derive(Debug, Clone, Copy)]
pub(super) enum When {
    /// Argument N equals this value.
    Is(u8, u64),
    /// These bits of argument N are all set.
    Has(u8, u64),
    /// These bits of argument N are all clear.
    HasNot(u8, u64),
    /// Argument N is a null pointer.
    Null(u8),
    /// Argument N is the number of this process.
    OurProcess(u8),
}

/// Calls that are always allowed.
pub(super) const ALWAYS: &[c_long] = &[
    // Requests and replies, the region, reads of /proc and /sys, and the writes of
    // libpmem2 for a deep flush.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_openat,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    // Who may write the region: its ACL.
    libc::SYS_fgetxattr,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_flock,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    libc::SYS_getcwd,
    libc::SYS_chdir,
    // Space of the host file system, and syncs of its medium.
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_syncfs,
    libc::SYS_fadvise64,
    libc::SYS_msync,
    // Memory. New executable memory is excluded: see `IF`.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_mlock,
    libc::SYS_munlock,
    libc::SYS_brk,
    libc::SYS_membarrier,
    // The key of a protected region is given back.
    libc::SYS_pkey_free,
    // Threads. clone3 passes its flags in memory, where a filter cannot see them: a
    // second filter answers ENOSYS, and the C library falls back to clone.
    libc::SYS_clone3,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_getcpu,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_setsid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_capget,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getrandom,
    // Time.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_restart_syscall,
    // Signals, including SIGBUS of a failed page.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigsuspend,
    libc::SYS_sigaltstack,
    // Waiting for descriptors.
    libc::SYS_ppoll,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    // The log (/dev/log) and the control socket, both local: `IF` restricts the
    // creation of sockets.
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept4,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_shutdown,
    libc::SYS_unlinkat,
    // Unmount, and read-only after damage. Neither new mounts nor flag changes:
    // `remount` runs in another process.
    libc::SYS_umount2,
    libc::SYS_fspick,
    libc::SYS_fsconfig,
];

/// Those of them that a server without a mount does not need: it logs to standard error, has no
/// control socket, and leaves the names of its sockets behind. It creates no sockets either.
pub(super) const OF_MOUNTS: &[c_long] = &[
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_unlinkat,
    libc::SYS_umount2,
    libc::SYS_fspick,
    libc::SYS_fsconfig,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
];

/// The same calls by older numbers, which newer architectures lack.
#[cfg(target_arch = "x86_64")]
pub(super) const OLDER: &[c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_dup2,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_unlink,
    libc::SYS_time,
    libc::SYS_getrlimit,
    libc::SYS_arch_prctl,
];
/// Older numbers: none on this architecture.
#[cfg(not(target_arch = "x86_64"))]
pub(super) const OLDER: &[c_long] = &[];

const AF_UNIX: u64 = libc::AF_UNIX as u64;
const PROT_EXEC: u64 = libc::PROT_EXEC as u64;
/// `FUSE_DEV_IOC_CLONE`: gives a serving thread its own descriptor of the connection.
const FUSE_CLONE: u64 = 0x8004_e500;
/// `TCGETS2`: newer C libraries use it in isatty(3).
const TCGETS2: u64 = 0x802c_542a;
/// `PR_SET_VMA`: an allocator names its memory.
const NAME_MEMORY: u64 = 0x5356_4d41;

/// Calls that are allowed if one of their conditions holds.
pub(super) const IF: &[(c_long, When)] = &[
    // Threads only: no fork, no execve, no new namespace.
    (libc::SYS_clone, When::Has(0, libc::CLONE_THREAD as u64)),
    // Data memory never becomes executable.
    (libc::SYS_mmap, When::HasNot(2, PROT_EXEC)),
    (libc::SYS_mprotect, When::HasNot(2, PROT_EXEC)),
    (libc::SYS_socket, When::Is(0, AF_UNIX)),
    (libc::SYS_socketpair, When::Is(0, AF_UNIX)),
    (libc::SYS_prctl, When::Is(0, libc::PR_SET_NAME as u64)),
    (libc::SYS_prctl, When::Is(0, libc::PR_GET_NAME as u64)),
    (libc::SYS_prctl, When::Is(0, NAME_MEMORY)),
    // Copies and flags of descriptors. Not F_SETOWN: such a descriptor can send any
    // signal to any process.
    (libc::SYS_fcntl, When::Is(1, libc::F_DUPFD as u64)),
    (libc::SYS_fcntl, When::Is(1, libc::F_DUPFD_CLOEXEC as u64)),
    (libc::SYS_fcntl, When::Is(1, libc::F_GETFD as u64)),
    (libc::SYS_fcntl, When::Is(1, libc::F_SETFD as u64)),
    (libc::SYS_fcntl, When::Is(1, libc::F_GETFL as u64)),
    (libc::SYS_fcntl, When::Is(1, libc::F_SETFL as u64)),
    // The locks of leases.
    (libc::SYS_fcntl, When::Is(1, libc::F_OFD_SETLK as u64)),
    (libc::SYS_fcntl, When::Is(1, libc::F_OFD_GETLK as u64)),
    // Reads limits; does not set them.
    (libc::SYS_prlimit64, When::Null(2)),
    // abort(3), but no signal to another process: see fcntl as well.
    (libc::SYS_tgkill, When::OurProcess(0)),
    (libc::SYS_ioctl, When::Is(1, FUSE_CLONE)),
    (libc::SYS_ioctl, When::Is(1, libc::FIONBIO)),
    (libc::SYS_ioctl, When::Is(1, libc::FIONREAD)),
    (libc::SYS_ioctl, When::Is(1, libc::TCGETS)),
    (libc::SYS_ioctl, When::Is(1, TCGETS2)),
];
