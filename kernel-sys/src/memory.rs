//! Memory that stays where it is.

use std::io;

/// Reads these pages in, and keeps them in memory until they are unmapped (mlock(2)).
///
/// # Errors
/// ENOMEM or EPERM beyond RLIMIT_MEMLOCK.
pub fn lock(bytes: &[u8]) -> io::Result<()> {
    // SAFETY: the call changes no byte, and the range is mapped while it is borrowed.
    let done = unsafe { libc::mlock(bytes.as_ptr().cast(), bytes.len()) };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_pages_are_counted() {
        let locked = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
            let kib = line.unwrap().trim().trim_end_matches(" kB");
            kib.parse::<usize>().unwrap()
        };
        let before = locked();
        let bytes = vec![0; 1 << 20];
        lock(&bytes).unwrap();
        assert!(locked() >= before + 1024);
    }
}
