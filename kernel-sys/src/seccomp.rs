//! seccomp(2), for a filter that the crate `seccompiler` has compiled.
//!
//! That crate puts filters in force, too, but without the flag that has the
//! kernel write a line for each call that was refused.

use std::io;

use seccompiler::sock_filter;

/// Whether the kernel writes a line (audit record 1326) for each call that is
/// refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Log {
    /// It does, where the kernel knows how (Linux 4.14).
    Refused,
    /// It does not.
    Nothing,
}

/// Puts a filter in force on all threads of this process and those that they
/// start. The process, or its user namespace, must have given up new privileges
/// or have CAP_SYS_ADMIN. A filter stays for good.
///
/// # Errors
/// EINVAL and ENOSYS where the kernel knows no such filter; EACCES; ESRCH where
/// a thread has a filter of its own.
pub fn install(program: &[sock_filter], log: Log) -> io::Result<()> {
    // What the speculation of this process shows is its own memory: a filter is
    // no reason to slow it down.
    let quick = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    let logged = match log {
        Log::Refused => libc::SECCOMP_FILTER_FLAG_LOG,
        Log::Nothing => 0,
    };
    let mut result = Err(io::ErrorKind::Unsupported.into());
    // Flags are newer than filters.
    for flags in [quick | logged, logged, 0] {
        result = set(program, flags | libc::SECCOMP_FILTER_FLAG_TSYNC);
        match &result {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            _ => break,
        }
    }
    result
}

fn set(program: &[sock_filter], flags: libc::c_ulong) -> io::Result<()> {
    let mut copy: Vec<libc::sock_filter> = program
        .iter()
        .map(|i| libc::sock_filter {
            code: i.code,
            jt: i.jt,
            jf: i.jf,
            k: i.k,
        })
        .collect();
    let program = libc::sock_fprog {
        len: copy
            .len()
            .try_into()
            .map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: copy.as_mut_ptr(),
    };
    // SAFETY: seccomp(2) reads `program` and the `len` instructions behind its
    // pointer, all of which live until the call has returned, writes nothing,
    // and checks the program itself.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::c_ulong::from(libc::SECCOMP_SET_MODE_FILTER),
            flags,
            &raw const program,
        )
    };
    match result {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        // The number of a thread that cannot follow.
        _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
}
