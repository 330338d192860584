//! Counts of the data calls, printed at the end if `PRAMFS_PRELOAD_STATS` is set: on standard
//! error, or at the end of a file if the variable has an absolute path.
//!
//! A data call reads, writes or maps a file of a mount. A call on another file counts
//! nowhere.

use std::ffi::{CString, c_int};
use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static ON: AtomicBool = AtomicBool::new(false);
static SERVED: AtomicU64 = AtomicU64::new(0);
static PASSED: AtomicU64 = AtomicU64::new(0);

/// A copy: some programs write over their variables.
static FILE: OnceLock<CString> = OnceLock::new();

pub(crate) fn start() {
    let Some(value) = crate::settings::set_variable(c"PRAMFS_PRELOAD_STATS") else {
        return;
    };
    ON.store(true, Ordering::Relaxed);
    if value.to_bytes().starts_with(b"/") {
        // Once in each process.
        let _ = FILE.set(value.to_owned());
    }
}

/// Notes a data call: served from memory, or passed to the mount.
#[inline]
pub(crate) fn note(served: bool) {
    if ON.load(Ordering::Relaxed) {
        let count = if served { &SERVED } else { &PASSED };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Starts anew, in a forked child.
pub(crate) fn reset() {
    SERVED.store(0, Ordering::Relaxed);
    PASSED.store(0, Ordering::Relaxed);
}

pub(crate) fn print() {
    if !ON.load(Ordering::Relaxed) {
        return;
    }
    let served = SERVED.load(Ordering::Relaxed);
    let all = served + PASSED.load(Ordering::Relaxed);
    if all == 0 {
        return;
    }
    let share = 100.0 * served as f64 / all as f64;
    let mut line = [0; 160];
    let mut rest = &mut line[..];
    let pid = crate::process::id();
    let written = writeln!(
        rest,
        "pramfs-preload: process {pid}: {served} of {all} data calls served ({share:.1} %)"
    );
    let left = rest.len();
    if written.is_ok() {
        emit(&line[..line.len() - left]);
    }
}

/// Writes the line. A failure changes nothing.
fn emit(line: &[u8]) {
    let write = |fd: c_int| {
        // SAFETY: the bytes of the line.
        let _ = unsafe { crate::real::write(fd, line.as_ptr().cast(), line.len()) };
    };
    let Some(path) = FILE.get() else {
        return write(2);
    };
    // A filter may forbid to open it.
    if crate::process::is_sealed() {
        return;
    }
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
    // SAFETY: the path ends with a zero.
    let fd = unsafe { crate::real::open64(path.as_ptr(), flags, 0o666) };
    if fd >= 0 {
        write(fd);
        // SAFETY: opened above.
        unsafe { crate::real::close(fd) };
    }
}
