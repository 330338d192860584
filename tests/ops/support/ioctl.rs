//! ioctl with a buffer, and a caller without rights.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use pramfs_tests::syscalls::Sys;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// An ioctl with a buffer that is large enough for all of them.
pub fn ioctl(path: &Path, cmd: u64, bytes: &mut [u8; 256]) -> Sys {
    let file = File::open(path).map_err(|e| e.raw_os_error().unwrap_or(0))?;
    // SAFETY: the length encoded in the command is at most that of the buffer.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), cmd, bytes.as_mut_ptr()) };
    if done < 0 {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0));
    }
    Ok(())
}

/// The buffer that starts with these words.
pub fn words(words: [u64; 3]) -> [u8; 256] {
    let mut bytes = [0; 256];
    for (i, word) in words.into_iter().enumerate() {
        bytes[i * 8..i * 8 + 8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Runs without administrative capabilities.
pub fn as_stranger<T>(work: impl FnOnce() -> T) -> T {
    let sets = capabilities(None).expect("capabilities of this thread");
    let mut fewer = sets;
    fewer.effective -= CapabilitySet::SYS_ADMIN;
    set_capabilities(None, fewer).expect("fewer capabilities");
    let done = work();
    set_capabilities(None, sets).expect("the old capabilities");
    done
}
