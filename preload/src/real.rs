//! The functions of the C library, or of the next library that was loaded before it.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{FILE, iovec, mmsghdr, mode_t, msghdr, off64_t, pid_t, size_t, ssize_t, uid_t};

/// A function that is looked up once.
struct Symbol {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
}

impl Symbol {
    const fn new(name: &'static CStr) -> Symbol {
        Symbol {
            name,
            at: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    fn get(&self) -> *mut c_void {
        let known = self.at.load(Ordering::Relaxed);
        match known.is_null() {
            false => known,
            true => self.find(),
        }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // SAFETY: the name ends with a zero. RTLD_NEXT looks behind this library.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.at.store(found, Ordering::Relaxed);
        found
    }
}

/// Defines one function for each symbol. A symbol that the C library lacks fails with
/// ENOSYS.
macro_rules! functions {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(; $($more:ident: $rest:ty),*)?) -> $out:ty;)*) => {
        $(
            /// The function of this name in the C library.
            ///
            /// # Safety
            /// As for that function.
            #[allow(non_snake_case, reason = "named as the symbol")]
            pub(crate) unsafe fn $name($($arg: $type),* $($(, $more: $rest)*)?) -> $out {
                type Function = unsafe extern "C-unwind" fn($($type),* $($(, $rest)*)?) -> $out;
                let at = symbols::$name.get();
                if at.is_null() {
                    set_errno(libc::ENOSYS);
                    return failed::<$out>();
                }
                // SAFETY: the symbol of this name has this type. On the supported machines,
                // a variadic function takes integers and pointers like any other.
                let function = unsafe { std::mem::transmute::<*mut c_void, Function>(at) };
                // SAFETY: passed on from the caller.
                unsafe { function($($arg),* $($(, $more)*)?) }
            }
        )*

        #[allow(non_upper_case_globals, reason = "named as the symbols")]
        mod symbols {
            use super::Symbol;
            $(
                pub(super) static $name: Symbol = {
                    let name = concat!(stringify!($name), "\0").as_bytes();
                    match std::ffi::CStr::from_bytes_with_nul(name) {
                        Ok(name) => Symbol::new(name),
                        Err(_) => unreachable!(),
                    }
                };
            )*
        }

        /// Looks all of them up, so that no signal handler has to.
        pub(crate) fn resolve() {
            $(symbols::$name.get();)*
        }
    };
}

/// The value that means failure: -1.
fn failed<T: From<i8>>() -> T {
    T::from(-1)
}

functions! {
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn fclose(file: *mut FILE) -> c_int;
    fn utimensat(dir: c_int, path: *const c_char, times: *const c_void, flags: c_int) -> c_int;
    fn futimens(fd: c_int, times: *const c_void) -> c_int;
    fn futimes(fd: c_int, times: *const c_void) -> c_int;
    fn futimesat(dir: c_int, path: *const c_char, times: *const c_void) -> c_int;
    fn lutimes(path: *const c_char, times: *const c_void) -> c_int;
    fn utimes(path: *const c_char, times: *const c_void) -> c_int;
    fn utime(path: *const c_char, times: *const c_void) -> c_int;
    fn dup(fd: c_int) -> c_int;
    fn dup2(fd: c_int, new: c_int) -> c_int;
    fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int;
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int;
    fn lockf64(fd: c_int, command: c_int, len: off64_t) -> c_int;
    fn read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t;
    fn write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t;
    fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    fn pread64(fd: c_int, buf: *mut c_void, n: size_t, at: off64_t) -> ssize_t;
    fn __read_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t) -> ssize_t;
    fn __pread_chk(fd: c_int, buf: *mut c_void, n: size_t, at: off64_t, room: size_t) -> ssize_t;
    fn __pread64_chk(fd: c_int, buf: *mut c_void, n: size_t, at: off64_t, room: size_t) -> ssize_t;
    fn pwrite64(fd: c_int, buf: *const c_void, n: size_t, at: off64_t) -> ssize_t;
    fn preadv64(fd: c_int, iov: *const iovec, count: c_int, at: off64_t) -> ssize_t;
    fn pwritev64(fd: c_int, iov: *const iovec, count: c_int, at: off64_t) -> ssize_t;
    fn preadv64v2(fd: c_int, iov: *const iovec, count: c_int, at: off64_t, flags: c_int) -> ssize_t;
    fn pwritev64v2(fd: c_int, iov: *const iovec, count: c_int, at: off64_t, flags: c_int) -> ssize_t;
    fn lseek64(fd: c_int, at: off64_t, whence: c_int) -> off64_t;
    fn sendfile64(to: c_int, from: c_int, at: *mut off64_t, len: size_t) -> ssize_t;
    fn splice(from: c_int, at: *mut off64_t, to: c_int, to_at: *mut off64_t, len: size_t, flags: c_uint) -> ssize_t;
    fn copy_file_range(from: c_int, at: *mut off64_t, to: c_int, to_at: *mut off64_t, len: size_t, flags: c_uint) -> ssize_t;
    fn unshare(flags: c_int) -> c_int;
    fn setuid(user: uid_t) -> c_int;
    fn setreuid(real: uid_t, effective: uid_t) -> c_int;
    fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int;
    fn flock(fd: c_int, operation: c_int) -> c_int;
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    fn _exit(status: c_int) -> c_int;
    fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int;
    fn syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long;
    fn fsync(fd: c_int) -> c_int;
    fn fdatasync(fd: c_int) -> c_int;
    fn sync_file_range(fd: c_int, at: off64_t, len: off64_t, flags: c_uint) -> c_int;
    fn syncfs(fd: c_int) -> c_int;
    fn madvise(at: *mut c_void, len: size_t, advice: c_int) -> c_int;
    fn remap_file_pages(at: *mut c_void, len: size_t, protection: c_int, page: size_t, flags: c_int) -> c_int;
    fn munmap(at: *mut c_void, len: size_t) -> c_int;
    fn msync(at: *mut c_void, len: size_t, flags: c_int) -> c_int;
    fn mprotect(at: *mut c_void, len: size_t, protection: c_int) -> c_int;
    fn pkey_mprotect(at: *mut c_void, len: size_t, protection: c_int, key: c_int) -> c_int;
    fn _Fork() -> c_int;
    fn posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    fn posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    fn pidfd_spawn(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    fn pidfd_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    fn system(command: *const c_char) -> c_int;
    fn clone(start: *const c_void, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: *mut pid_t, tls: *mut c_void, child: *mut pid_t) -> c_int;
}

/// Returns the address of vfork(2). Apart from the others: it must not be called from a frame
/// that ends.
pub(crate) fn vfork() -> *mut c_void {
    static VFORK: Symbol = Symbol::new(c"vfork");
    match VFORK.get() {
        none if none.is_null() => symbols::_Fork.get(),
        found => found,
    }
}

/// mmap(2) of the next library. Apart from the others: its failure is another value.
///
/// # Safety
/// As for mmap(2).
pub(crate) unsafe fn mmap64(
    at: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off64_t,
) -> *mut c_void {
    type Function = unsafe extern "C-unwind" fn(
        *mut c_void,
        size_t,
        c_int,
        c_int,
        c_int,
        off64_t,
    ) -> *mut c_void;
    static SYMBOL: Symbol = Symbol::new(c"mmap64");
    let found = SYMBOL.get();
    if found.is_null() {
        set_errno(libc::ENOSYS);
        return libc::MAP_FAILED;
    }
    // SAFETY: the symbol of this name has this type.
    let function = unsafe { std::mem::transmute::<*mut c_void, Function>(found) };
    // SAFETY: passed on from the caller.
    unsafe { function(at, len, protection, flags, fd, offset) }
}

/// mremap(2) of the next library.
///
/// # Safety
/// As for mremap(2).
pub(crate) unsafe fn mremap(
    at: *mut c_void,
    old: size_t,
    new: size_t,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    type Function =
        unsafe extern "C-unwind" fn(*mut c_void, size_t, size_t, c_int, *mut c_void) -> *mut c_void;
    static SYMBOL: Symbol = Symbol::new(c"mremap");
    let found = SYMBOL.get();
    if found.is_null() {
        set_errno(libc::ENOSYS);
        return libc::MAP_FAILED;
    }
    // SAFETY: the symbol of this name has this type: on the supported machines, a variadic
    // function takes pointers like any other.
    let function = unsafe { std::mem::transmute::<*mut c_void, Function>(found) };
    // SAFETY: passed on from the caller.
    unsafe { function(at, old, new, flags, to) }
}

/// sync(2) of the next library. It returns nothing.
///
/// # Safety
/// As for sync(2).
pub(crate) unsafe fn sync() {
    static SYMBOL: Symbol = Symbol::new(c"sync");
    let found = SYMBOL.get();
    if !found.is_null() {
        // SAFETY: the symbol of this name has this type.
        let function = unsafe { std::mem::transmute::<*mut c_void, extern "C-unwind" fn()>(found) };
        function();
    }
}

/// popen(3) of the next library.
///
/// # Safety
/// As for popen(3).
pub(crate) unsafe fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    type Function = unsafe extern "C-unwind" fn(*const c_char, *const c_char) -> *mut FILE;
    static SYMBOL: Symbol = Symbol::new(c"popen");
    let found = SYMBOL.get();
    if found.is_null() {
        set_errno(libc::ENOSYS);
        return std::ptr::null_mut();
    }
    // SAFETY: the symbol of this name has this type.
    let function = unsafe { std::mem::transmute::<*mut c_void, Function>(found) };
    // SAFETY: passed on from the caller.
    unsafe { function(command, mode) }
}

/// fdopen(3) of the next library.
///
/// # Safety
/// As for fdopen(3).
pub(crate) unsafe fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    type Function = unsafe extern "C-unwind" fn(c_int, *const c_char) -> *mut FILE;
    static SYMBOL: Symbol = Symbol::new(c"fdopen");
    let found = SYMBOL.get();
    if found.is_null() {
        set_errno(libc::ENOSYS);
        return std::ptr::null_mut();
    }
    // SAFETY: the symbol of this name has this type.
    let function = unsafe { std::mem::transmute::<*mut c_void, Function>(found) };
    // SAFETY: passed on from the caller.
    unsafe { function(fd, mode) }
}

/// freopen(3) of the next library.
///
/// # Safety
/// As for freopen(3).
pub(crate) unsafe fn freopen64(
    path: *const c_char,
    mode: *const c_char,
    file: *mut FILE,
) -> *mut FILE {
    type Function =
        unsafe extern "C-unwind" fn(*const c_char, *const c_char, *mut FILE) -> *mut FILE;
    static SYMBOL: Symbol = Symbol::new(c"freopen64");
    let found = SYMBOL.get();
    if found.is_null() {
        set_errno(libc::ENOSYS);
        return std::ptr::null_mut();
    }
    // SAFETY: the symbol of this name has this type.
    let function = unsafe { std::mem::transmute::<*mut c_void, Function>(found) };
    // SAFETY: passed on from the caller.
    unsafe { function(path, mode, file) }
}

pub(crate) fn errno() -> c_int {
    // SAFETY: the address of this thread's errno is valid while the thread runs.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(value: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = value };
}
