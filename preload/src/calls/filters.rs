//! prctl(2) and seccomp(2): before a program sets a filter, the library gives its leases up.

use std::ffi::{c_int, c_long};

use crate::{lease, process, real};

/// Makes a call that may set a filter. From then on, the library makes no calls of its own.
/// `sets`: whether it can, as its arguments are. `failed`: whether it has not.
fn filtered<T>(sets: bool, call: impl FnOnce() -> T, failed: impl FnOnce(&T) -> bool) -> T {
    // A child of vfork does not seal its parent. Under a filter, nobody asks which process it is.
    let sets = sets && (process::is_sealed() || process::is_apart() || process::owns_memory());
    if sets {
        // Before: afterwards it could be killed for what it takes to end a lease, and another
        // thread for what it has begun.
        let errno = real::errno();
        process::seal(lease::give_up_all);
        real::set_errno(errno);
    }
    let done = call();
    if sets && failed(&done) {
        process::unseal();
    }
    done
}

/// Whether a filter can come of it. A null pointer asks which modes and flags the kernel has.
fn is_program(program: usize) -> bool {
    program != 0
}

/// prctl(2).
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn prctl(
    option: c_int,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
) -> c_int {
    let sets = option == libc::PR_SET_SECCOMP
        && (a == libc::SECCOMP_MODE_STRICT as usize
            || a == libc::SECCOMP_MODE_FILTER as usize && is_program(b));
    // SAFETY: the arguments are those of the program.
    let call = || unsafe { real::prctl(option, a, b, c, d) };
    filtered(sets, call, |done| *done != 0)
}

/// seccomp(2), which the C library lacks.
pub(super) unsafe fn seccomp(
    operation: c_long,
    flags: c_long,
    program: c_long,
    more: [c_long; 3],
) -> c_long {
    let sets = operation == c_long::from(libc::SECCOMP_SET_MODE_STRICT)
        || operation == c_long::from(libc::SECCOMP_SET_MODE_FILTER) && is_program(program as usize);
    let [d, e, f] = more;
    let number = libc::SYS_seccomp;
    // SAFETY: the arguments are those of the program.
    let call = || unsafe { real::syscall(number, operation, flags, program, d, e, f) };
    // With this flag alone, a success is a descriptor. With the other one, a number that is
    // not zero is a thread that cannot take the filter.
    let listens = flags as u64 & libc::SECCOMP_FILTER_FLAG_NEW_LISTENER != 0;
    filtered(sets, call, |done| *done < 0 || *done > 0 && !listens)
}
