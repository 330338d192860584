//! close(2), dup(2), fcntl(2) and their relatives: what changes the table.

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};

use libc::{FILE, mmsghdr, msghdr, off64_t, pid_t, ssize_t};

use super::filters::{prctl, seccomp};
use super::{data, memory, times, users};
use crate::table::Entry;
use crate::{devices, durable, lease, process, real, slots, stats, table};

unsafe fn closed(fd: c_int) -> c_int {
    if table::is_own(fd) {
        // The program has not opened it.
        real::set_errno(libc::EBADF);
        return -1;
    }
    table::forget(fd);
    // SAFETY: the arguments are those of the program.
    unsafe { real::close(fd) }
}

/// close(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    // SAFETY: the arguments are those of the program.
    unsafe { closed(fd) }
}

/// close(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __close(fd: c_int) -> c_int {
    // SAFETY: the arguments are those of the program.
    unsafe { closed(fd) }
}

/// close_range(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags & libc::CLOSE_RANGE_UNSHARE as c_int != 0 {
        set_apart();
    }
    if flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0 || process::is_inside() {
        // SAFETY: the arguments are those of the program.
        return unsafe { real::close_range(first, last, flags) };
    }
    table::forget_range(first, last);
    // Around the descriptors of the library. None has a higher number than these.
    let mut from = first;
    for own in first..=last.min(1 << 16) {
        if table::is_own(own as c_int) {
            if own > from {
                // SAFETY: the arguments are those of the program.
                let done = unsafe { real::close_range(from, own - 1, flags) };
                if done != 0 {
                    return done;
                }
            }
            from = own + 1;
        }
    }
    match from <= last || first > last {
        // SAFETY: the arguments are those of the program.
        true => unsafe { real::close_range(from, last, flags) },
        false => 0,
    }
}

/// Called before this thread gets descriptors of its own: from then on a number can mean different
/// files in different threads. All calls go to the mount.
fn set_apart() {
    // A child of vfork has its own descriptors already, but not its own memory.
    if !process::is_inside() && process::owns_memory() {
        process::set_apart();
        // Threads that have not seen it may be about to note a lease.
        drop(process::Inside::enter());
        table::await_changes();
        table::pass_all();
        // Nobody would forget them later, when their numbers mean other files.
        for fd in 0..table::DESCRIPTORS as c_int {
            let entry = table::entry(fd);
            // A lease that stays, for locks or mappings, needs it.
            let has_lease = entry
                .inode()
                .is_some_and(|inode| slots::writers(inode).next().is_some());
            if entry.hides_direct() && !has_lease && table::shows(fd, entry) {
                lease::clear_direct(fd);
            }
            if entry != Entry::Unknown {
                table::set(fd, Entry::Unknown);
            }
        }
    }
}

/// unshare(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn unshare(flags: c_int) -> c_int {
    if flags & libc::CLONE_FILES != 0 {
        set_apart();
    }
    // SAFETY: the arguments are those of the program.
    unsafe { real::unshare(flags) }
}

/// closefrom(3).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let first = first.max(0) as c_uint;
    // SAFETY: the arguments are those of the program.
    unsafe { close_range(first, c_uint::MAX, 0) };
}

/// fclose(3): the C library closes the descriptor by itself.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fclose(file: *mut FILE) -> c_int {
    // A stream in memory has none: -1.
    let errno = real::errno();
    // SAFETY: the arguments are those of the program.
    let fd = unsafe { libc::fileno(file) };
    real::set_errno(errno);
    table::forget(fd);
    // SAFETY: the arguments are those of the program.
    unsafe { real::fclose(file) }
}

macro_rules! freopen {
    ($($name:ident)*) => {
        $(
            /// freopen(3): the C library replaces the descriptor by itself.
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(
                path: *const c_char,
                mode: *const c_char,
                file: *mut FILE,
            ) -> *mut FILE {
                let errno = real::errno();
                // SAFETY: the arguments are those of the program.
                let fd = unsafe { libc::fileno(file) };
                real::set_errno(errno);
                table::forget(fd);
                // SAFETY: the arguments are those of the program.
                unsafe { real::freopen64(path, mode, file) }
            }
        )*
    };
}

freopen! { freopen freopen64 }

/// dup(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    settle(fd);
    // SAFETY: the arguments are those of the program.
    let new = unsafe { real::dup(fd) };
    copied(fd, new)
}

/// Called before a descriptor is copied: its description must not be replaced by then.
fn settle(fd: c_int) {
    if !process::is_inside() {
        table::settle(fd);
    }
}

fn copied(fd: c_int, new: c_int) -> c_int {
    if new >= 0 && !process::is_inside() {
        table::copy(fd, new);
    }
    new
}

unsafe fn replaced(fd: c_int, new: c_int, dup: impl FnOnce() -> c_int) -> c_int {
    if fd == new {
        return dup();
    }
    if table::is_own(new) {
        real::set_errno(libc::EBUSY);
        return -1;
    }
    // SAFETY: asks for flags.
    if !process::is_sealed() && unsafe { real::fcntl64(fd, libc::F_GETFD, 0) } < 0 {
        // It fails, and `new` stays open.
        return dup();
    }
    // Before the number means another file. If the call fails, the file goes on through the
    // mount.
    table::forget(new);
    settle(fd);
    copied(fd, dup())
}

/// dup2(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup2(fd: c_int, new: c_int) -> c_int {
    // SAFETY: the arguments are those of the program.
    unsafe { replaced(fd, new, || real::dup2(fd, new)) }
}

/// dup2(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __dup2(fd: c_int, new: c_int) -> c_int {
    // SAFETY: the arguments are those of the program.
    unsafe { replaced(fd, new, || real::dup2(fd, new)) }
}

/// dup3(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: the arguments are those of the program.
    unsafe { replaced(fd, new, || real::dup3(fd, new, flags)) }
}

unsafe fn controlled(fd: c_int, command: c_int, mut argument: usize) -> c_int {
    let direct = libc::O_DIRECT as usize;
    if !process::is_inside() && !matches!(command, libc::F_GETFL | libc::F_GETFD) {
        table::settle(fd);
    }
    match command {
        libc::F_SETLK | libc::F_SETLKW | libc::F_OFD_SETLK | libc::F_OFD_SETLKW
            if !process::is_inside() =>
        {
            table::note_lock(fd);
        }
        libc::F_SETFL if !process::is_inside() => {
            if argument as c_int & libc::O_APPEND != 0 {
                // Every write appends from now on, by each of its copies. Under a filter they are
                // not known.
                match process::is_sealed() {
                    true => table::pass_all(),
                    // A copy that is not noted: a high number, or one that came by a socket.
                    false if table::entry(fd) == Entry::Unknown => {
                        let errno = real::errno();
                        if let Some(stat) = devices::stat(fd) {
                            table::pass_file(stat.st_dev, stat.st_ino);
                        }
                        real::set_errno(errno);
                    }
                    // Descriptors that cannot be replaced go on without the page cache.
                    false if !lease::release(fd) => table::pass_copies(fd),
                    false => {}
                }
            }
            // While there is a lease to write, splice(2) must not use the page cache.
            if table::keeps_direct(fd, argument & direct != 0) || table::hides_direct(fd) {
                argument |= direct;
            }
        }
        _ => {}
    }
    // SAFETY: the arguments are those of the program.
    let done = unsafe { real::fcntl64(fd, command, argument) };
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => copied(fd, done),
        libc::F_GETFL if done >= 0 && table::hides_direct(fd) && !process::is_inside() => {
            done & !libc::O_DIRECT
        }
        _ => done,
    }
}

macro_rules! control {
    ($($name:ident)*) => {
        $(
            /// fcntl(2).
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(fd: c_int, command: c_int, argument: usize) -> c_int {
                // SAFETY: the arguments are those of the program.
                unsafe { controlled(fd, command, argument) }
            }
        )*
    };
}

control! { fcntl fcntl64 __fcntl }

macro_rules! lock {
    ($($name:ident)*) => {
        $(
            /// lockf(3).
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(fd: c_int, command: c_int, len: off64_t) -> c_int {
                table::note_lock(fd);
                // SAFETY: the arguments are those of the program.
                unsafe { real::lockf64(fd, command, len) }
            }
        )*
    };
}

lock! { lockf lockf64 }

macro_rules! exit {
    ($($name:ident)*) => {
        $(
            /// _exit(2): runs no destructor.
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(status: c_int) -> ! {
                if process::owns_memory() {
                    durable::note_all_stores();
                    stats::print();
                }
                // SAFETY: the arguments are those of the program.
                unsafe { real::_exit(status) };
                std::process::abort()
            }
        )*
    };
}

exit! { _exit _Exit }

/// flock(2): the lock belongs to the description.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn flock(fd: c_int, operation: c_int) -> c_int {
    table::note_lock(fd);
    // SAFETY: the arguments are those of the program.
    unsafe { real::flock(fd, operation) }
}

macro_rules! spawn {
    ($($name:ident)*) => {
        $(
            /// posix_spawn(3): the child shares descriptions, and no handler of forks runs.
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(
                pid: *mut pid_t,
                path: *const c_char,
                actions: *const c_void,
                attributes: *const c_void,
                arguments: *const *mut c_char,
                environment: *const *mut c_char,
            ) -> c_int {
                table::begin_sharing();
                // SAFETY: the arguments are those of the program.
                unsafe { real::$name(pid, path, actions, attributes, arguments, environment) }
            }
        )*
    };
}

spawn! { posix_spawn posix_spawnp pidfd_spawn pidfd_spawnp }

fn is_fork(number: c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if matches!(number, libc::SYS_fork | libc::SYS_vfork) {
        return true;
    }
    matches!(number, libc::SYS_clone | libc::SYS_clone3)
}

/// _Fork(3): runs no handlers.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _Fork() -> c_int {
    table::begin_sharing();
    // SAFETY: takes no arguments.
    unsafe { real::_Fork() }
}

/// Notes that a child will share the descriptions. Returns the address of vfork(2).
extern "C" fn note_vfork() -> *mut c_void {
    table::begin_sharing();
    real::vfork()
}

/// vfork(2): no handler of forks runs. It returns twice to its caller, so nothing of this
/// function may be left on the stack by then.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn vfork() -> pid_t {
    std::arch::naked_asm!(
        "endbr64",
        "sub rsp, 8",
        "call {note}",
        "add rsp, 8",
        "jmp rax",
        note = sym note_vfork,
    )
}

/// vfork(2): as above.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn vfork() -> pid_t {
    std::arch::naked_asm!(
        "hint #34",
        "stp x29, x30, [sp, #-16]!",
        "bl {note}",
        "ldp x29, x30, [sp], #16",
        "mov x16, x0",
        "br x16",
        note = sym note_vfork,
    )
}

/// clone(2): runs no handlers.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn clone(
    start: *const c_void,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: *mut pid_t,
    tls: *mut c_void,
    child: *mut pid_t,
) -> c_int {
    if flags & libc::CLONE_FILES == 0 {
        table::begin_sharing();
    }
    // SAFETY: the arguments are those of the program.
    unsafe { real::clone(start, stack, flags, argument, parent, tls, child) }
}

/// system(3): spawns a shell.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    table::begin_sharing();
    // SAFETY: the arguments are those of the program.
    unsafe { real::system(command) }
}

/// popen(3): spawns a shell.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    table::begin_sharing();
    // SAFETY: the arguments are those of the program.
    unsafe { real::popen(command, mode) }
}

/// sendmsg(2), which may pass descriptors on.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program gives a message for this call.
    if !message.is_null() && unsafe { (*message).msg_controllen } > 0 {
        table::begin_sharing();
    }
    // SAFETY: the arguments are those of the program.
    unsafe { real::sendmsg(fd, message, flags) }
}

/// sendmmsg(2), which may pass descriptors on.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    let messages_given = match messages.is_null() {
        true => &[],
        // SAFETY: the program gives `count` messages for this call. The kernel takes no more.
        false => unsafe { std::slice::from_raw_parts(messages, count.min(1024) as usize) },
    };
    let has_control = |message: &mmsghdr| message.msg_hdr.msg_controllen > 0;
    if messages_given.iter().any(has_control) {
        table::begin_sharing();
    }
    // SAFETY: the arguments are those of the program.
    unsafe { real::sendmmsg(fd, messages, count, flags) }
}

/// syscall(2). Some programs close and copy descriptors by it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    match number {
        // SAFETY: the arguments are those of the program.
        libc::SYS_close => unsafe { closed(a as c_int) }.into(),
        libc::SYS_close_range => {
            // SAFETY: the arguments are those of the program.
            unsafe { close_range(a as c_uint, b as c_uint, c as c_int) }.into()
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the arguments are those of the program.
        libc::SYS_dup2 => unsafe { dup2(a as c_int, b as c_int) }.into(),
        libc::SYS_prctl => {
            let option = a as c_int;
            // SAFETY: the arguments are those of the program.
            unsafe { prctl(option, b as usize, c as usize, d as usize, e as usize) }.into()
        }
        // SAFETY: the arguments are those of the program.
        libc::SYS_seccomp => unsafe { seccomp(a, b, c, [d, e, f]) },
        // SAFETY: the arguments are those of the program.
        libc::SYS_unshare => unsafe { unshare(a as c_int) }.into(),
        libc::SYS_setuid | libc::SYS_setreuid | libc::SYS_setresuid => {
            users::change_by(number, a, b, c);
            // SAFETY: the arguments are those of the program.
            unsafe { real::syscall(number, a, b, c, d, e, f) }
        }
        libc::SYS_lseek => {
            settle(a as c_int);
            // SAFETY: the arguments are those of the program.
            unsafe { real::syscall(number, a, b, c, d, e, f) }
        }
        libc::SYS_sendfile => {
            settle(a as c_int);
            settle(b as c_int);
            // SAFETY: the arguments are those of the program.
            unsafe { real::syscall(number, a, b, c, d, e, f) }
        }
        libc::SYS_splice | libc::SYS_copy_file_range => {
            settle(a as c_int);
            settle(c as c_int);
            // SAFETY: the arguments are those of the program.
            unsafe { real::syscall(number, a, b, c, d, e, f) }
        }
        // SAFETY: the arguments are those of the program.
        libc::SYS_fcntl => unsafe { controlled(a as c_int, b as c_int, c as usize) }.into(),
        libc::SYS_utimensat => {
            let (path, times) = (b as *const c_char, c as *const c_void);
            // SAFETY: the arguments are those of the program.
            unsafe { times::utimensat(a as c_int, path, times, d as c_int) }.into()
        }
        libc::SYS_dup => {
            settle(a as c_int);
            // SAFETY: the arguments are those of the program.
            let new = unsafe { real::syscall(number, a, b, c, d, e, f) };
            copied(a as c_int, new as c_int).into()
        }
        libc::SYS_mremap => {
            let (at, to) = (a as *mut c_void, e as *mut c_void);
            // SAFETY: the arguments are those of the program.
            let done = unsafe { memory::mremap(at, b as usize, c as usize, d as c_int, to) };
            done as c_long
        }
        libc::SYS_remap_file_pages => {
            let (at, protection) = (a as *mut c_void, c as c_int);
            // SAFETY: the arguments are those of the program.
            unsafe { memory::remap_file_pages(at, b as usize, protection, d as usize, e as c_int) }
                .into()
        }
        libc::SYS_madvise => {
            // SAFETY: the arguments are those of the program.
            unsafe { memory::madvise(a as *mut c_void, b as usize, c as c_int) }.into()
        }
        libc::SYS_munmap => {
            // SAFETY: the arguments are those of the program.
            unsafe { memory::munmap(a as *mut c_void, b as usize) }.into()
        }
        libc::SYS_mprotect => {
            // SAFETY: the arguments are those of the program.
            unsafe { memory::mprotect(a as *mut c_void, b as usize, c as c_int) }.into()
        }
        libc::SYS_pkey_mprotect => {
            let at = a as *mut c_void;
            // SAFETY: the arguments are those of the program.
            unsafe { memory::pkey_mprotect(at, b as usize, c as c_int, d as c_int) }.into()
        }
        libc::SYS_msync => {
            // SAFETY: the arguments are those of the program.
            unsafe { memory::msync(a as *mut c_void, b as usize, c as c_int) }.into()
        }
        // SAFETY: the arguments are those of the program.
        libc::SYS_fsync => unsafe { data::fsync(a as c_int) }.into(),
        // SAFETY: the arguments are those of the program.
        libc::SYS_fdatasync => unsafe { data::fdatasync(a as c_int) }.into(),
        libc::SYS_sync_file_range => {
            // SAFETY: the arguments are those of the program.
            unsafe { data::sync_file_range(a as c_int, b, c, d as c_uint) }.into()
        }
        libc::SYS_sync => {
            // SAFETY: takes no arguments.
            unsafe { data::sync() };
            0
        }
        // SAFETY: the arguments are those of the program.
        libc::SYS_syncfs => unsafe { data::syncfs(a as c_int) }.into(),
        // SAFETY: the arguments are those of the program.
        libc::SYS_dup3 => unsafe { dup3(a as c_int, b as c_int, c as c_int) }.into(),
        _ => {
            if is_fork(number) {
                table::begin_sharing();
            }
            // SAFETY: the arguments are those of the program.
            unsafe { real::syscall(number, a, b, c, d, e, f) }
        }
    }
}
