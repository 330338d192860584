//! The system calls that a server may make, by what they are for. All others
//! give EPERM.
//!
//! A call without a condition costs next to nothing: the kernel looks at the
//! filter once and keeps a bitmap of those that are always allowed. So what is
//! called for each request has no condition. Paths cannot be looked at.

use libc::c_long;

/// A condition on one argument, of which the lower half is looked at unless
/// that would not do.
#[derive(Debug, Clone, Copy)]
pub(super) enum When {
    /// Argument N is just this.
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
    // Requests and replies, the region, the files of /proc and /sys that are
    // read, and what libpmem2 writes for a deep flush.
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
    // Room of the host, and what reaches its medium.
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_fadvise64,
    libc::SYS_msync,
    // Memory. New memory that can be executed is not among it: see `IF`.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_mlock,
    libc::SYS_munlock,
    libc::SYS_brk,
    libc::SYS_membarrier,
    // Threads. clone3 passes its flags in memory, where no filter sees them: it
    // is answered as if the kernel did not know it, and the C library calls
    // clone.
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
    // Signals, SIGBUS of a failed page among them.
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
    // The log (/dev/log) and the control socket, which are of this machine: see
    // `IF` for the making of one.
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
    // The mount: its end, and read-only after damage. Neither a new mount nor
    // other flags of one that is there: `remount` is another process's.
    libc::SYS_umount2,
    libc::SYS_fspick,
    libc::SYS_fsconfig,
];

/// The same by their older numbers, which newer machines do not have.
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
/// None here.
#[cfg(not(target_arch = "x86_64"))]
pub(super) const OLDER: &[c_long] = &[];

const AF_UNIX: u64 = libc::AF_UNIX as u64;
const PROT_EXEC: u64 = libc::PROT_EXEC as u64;
/// `FUSE_DEV_IOC_CLONE`: a serving thread's own end of the connection.
const FUSE_CLONE: u64 = 0x8004_e500;
/// What newer C libraries ask whether something is a terminal.
const TCGETS2: u64 = 0x802c_542a;
/// `PR_SET_VMA`: an allocator names its memory.
const NAME_MEMORY: u64 = 0x5356_4d41;

/// Calls that are allowed if one of the lines fits.
pub(super) const IF: &[(c_long, When)] = &[
    // Threads, and no processes: neither fork, nor execve, nor a new namespace.
    (libc::SYS_clone, When::Has(0, libc::CLONE_THREAD as u64)),
    // Memory that is data stays data.
    (libc::SYS_mmap, When::HasNot(2, PROT_EXEC)),
    (libc::SYS_mprotect, When::HasNot(2, PROT_EXEC)),
    (libc::SYS_socket, When::Is(0, AF_UNIX)),
    (libc::SYS_socketpair, When::Is(0, AF_UNIX)),
    (libc::SYS_prctl, When::Is(0, libc::PR_SET_NAME as u64)),
    (libc::SYS_prctl, When::Is(0, libc::PR_GET_NAME as u64)),
    (libc::SYS_prctl, When::Is(0, NAME_MEMORY)),
    // Copies and flags of descriptors. A descriptor that tells a process of its
    // readiness (F_SETOWN) sends it any signal.
    (libc::SYS_fcntl, When::Is(1, libc::F_DUPFD as u64)),
    (libc::SYS_fcntl, When::Is(1, libc::F_DUPFD_CLOEXEC as u64)),
    (libc::SYS_fcntl, When::Is(1, libc::F_GETFD as u64)),
    (libc::SYS_fcntl, When::Is(1, libc::F_SETFD as u64)),
    (libc::SYS_fcntl, When::Is(1, libc::F_GETFL as u64)),
    (libc::SYS_fcntl, When::Is(1, libc::F_SETFL as u64)),
    // Limits are read.
    (libc::SYS_prlimit64, When::Null(2)),
    // abort(3), and no signal to anybody else: see fcntl as well.
    (libc::SYS_tgkill, When::OurProcess(0)),
    (libc::SYS_ioctl, When::Is(1, FUSE_CLONE)),
    (libc::SYS_ioctl, When::Is(1, libc::FIONBIO)),
    (libc::SYS_ioctl, When::Is(1, libc::FIONREAD)),
    (libc::SYS_ioctl, When::Is(1, libc::TCGETS)),
    (libc::SYS_ioctl, When::Is(1, TCGETS2)),
];
