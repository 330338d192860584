//! The device `/dev/fuse`.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// `FUSE_DEV_IOC_CLONE`.
const CLONE: libc::c_ulong = 0x8004_e500;

/// Opens another channel of a connection: requests come by either of them, and the reply goes
/// by the channel that the request came by.
///
/// # Errors
/// If `/dev/fuse` cannot be opened, or `connection` is not a mounted one.
pub fn clone_connection(connection: impl AsFd) -> io::Result<OwnedFd> {
    let channel = File::options().read(true).write(true).open("/dev/fuse")?;
    let mut number = connection.as_fd().as_raw_fd().cast_unsigned();
    // SAFETY: the descriptor is open for the call, and the kernel reads the number, which lives
    // longer.
    let done = unsafe { libc::ioctl(channel.as_raw_fd(), CLONE, &raw mut number) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(channel.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clone_of_unmounted_device_fails() {
        let Ok(device) = File::options().read(true).write(true).open("/dev/fuse") else {
            println!("SKIPPED: /dev/fuse cannot be opened");
            return;
        };
        assert!(clone_connection(&device).is_err());
        let error = clone_connection(File::open("/dev/null").unwrap()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
}
