//! The label of a mounted file system.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `FS_IOC_SETFSLABEL`.
const SET: libc::c_ulong = 0x4100_9432;
/// Bytes that the kernel reads, with the NUL at the end.
const LEN: usize = 256;

/// Sets the label of the file system that a file or directory is in.
///
/// # Errors
/// EINVAL for a label that is too long or has a NUL, also if the file system allows fewer bytes;
/// ENOTTY if it has no label; EPERM for other users than root; EROFS.
pub fn set_label(file: impl AsFd, label: &str) -> io::Result<()> {
    let mut bytes = [0; LEN];
    match bytes[..LEN - 1].get_mut(..label.len()) {
        Some(place) if !label.contains('\0') => place.copy_from_slice(label.as_bytes()),
        _ => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
    // SAFETY: the descriptor is open for the call, and the kernel reads as many bytes as the number
    // of the call says, which the buffer has.
    let done = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), SET as _, bytes.as_ptr()) };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_that_no_file_system_takes_is_refused() {
        let file = std::fs::File::open("/dev/null").unwrap();
        for label in ["a\0b", &"x".repeat(256)] {
            let error = set_label(&file, label).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        }
        assert!(set_label(&file, "label").is_err());
    }
}
