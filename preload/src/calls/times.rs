//! utimensat(2) and its relatives: the times that a program sets come after its stores.

use std::ffi::{c_char, c_int, c_void};

use crate::{durable, real, regions};

macro_rules! times {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {
        $(
            /// Sets the times of a file.
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> c_int {
                if regions::are_any() {
                    durable::settle_times();
                }
                // SAFETY: the arguments are those of the program.
                unsafe { real::$name($($argument),*) }
            }
        )*
    };
}

times! {
    utimensat(dir: c_int, path: *const c_char, times: *const c_void, flags: c_int);
    futimens(fd: c_int, times: *const c_void);
    futimes(fd: c_int, times: *const c_void);
    futimesat(dir: c_int, path: *const c_char, times: *const c_void);
    lutimes(path: *const c_char, times: *const c_void);
    utimes(path: *const c_char, times: *const c_void);
    utime(path: *const c_char, times: *const c_void);
}
