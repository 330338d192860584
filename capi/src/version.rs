//! The version of the library.

use std::ffi::c_char;

const LEN: usize = pramfs::VERSION.len();

/// The version of the Rust library, as a string of C: it tells of test hooks.
static TEXT: [u8; LEN + 1] = {
    let mut text = [0; LEN + 1];
    let mut at = 0;
    while at < LEN {
        text[at] = pramfs::VERSION.as_bytes()[at];
        at += 1;
    }
    text
};

/// Returns the version of the library that runs, such as "0.1.0": a static string.
#[unsafe(no_mangle)]
pub extern "C" fn pramfs_version() -> *const c_char {
    TEXT.as_ptr().cast()
}
