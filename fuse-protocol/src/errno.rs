//! Errors in replies.

use std::num::NonZeroU16;

/// A number of errno(3) that a reply may carry: 1 to 511. The kernel refuses a reply with
/// any other one, and the request would never be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Errno(NonZeroU16);

impl Errno {
    /// The greatest number that a reply may carry.
    pub const MAX: i32 = 511;

    /// Operation not permitted.
    pub const EPERM: Errno = Errno::known(1);
    /// No such file or directory.
    pub const ENOENT: Errno = Errno::known(2);
    /// Input/output error.
    pub const EIO: Errno = Errno::known(5);
    /// No such address.
    pub const ENXIO: Errno = Errno::known(6);
    /// Bad file descriptor.
    pub const EBADF: Errno = Errno::known(9);
    /// Try again.
    pub const EAGAIN: Errno = Errno::known(11);
    /// Permission denied.
    pub const EACCES: Errno = Errno::known(13);
    /// Invalid argument.
    pub const EINVAL: Errno = Errno::known(22);
    /// Too many open files in the system.
    pub const ENFILE: Errno = Errno::known(23);
    /// No such ioctl.
    pub const ENOTTY: Errno = Errno::known(25);
    /// Read-only file system.
    pub const EROFS: Errno = Errno::known(30);
    /// Result too large for the buffer.
    pub const ERANGE: Errno = Errno::known(34);
    /// Name too long.
    pub const ENAMETOOLONG: Errno = Errno::known(36);
    /// Unknown operation. After this answer the kernel does not ask for most operations again.
    pub const ENOSYS: Errno = Errno::known(38);
    /// Protocol error.
    pub const EPROTO: Errno = Errno::known(71);
    /// No such attribute.
    pub const ENODATA: Errno = Errno::known(61);
    /// Value too large: an id has no number on this side.
    pub const EOVERFLOW: Errno = Errno::known(75);
    /// Operation not supported.
    pub const EOPNOTSUPP: Errno = Errno::known(95);
    /// Stale file handle.
    pub const ESTALE: Errno = Errno::known(116);

    const fn known(number: u16) -> Errno {
        match NonZeroU16::new(number) {
            Some(number) => Errno(number),
            None => panic!("0 is no error"),
        }
    }

    /// Returns the error of a positive number, if a reply may carry it.
    ///
    /// ```
    /// use pramfs_fuse_protocol::Errno;
    /// assert_eq!(Errno::new(22), Some(Errno::EINVAL));
    /// assert_eq!(Errno::new(0), None);
    /// assert_eq!(Errno::new(512), None);
    /// ```
    #[must_use]
    pub fn new(number: i32) -> Option<Errno> {
        let number = u16::try_from(number).ok().and_then(NonZeroU16::new)?;
        (i32::from(number.get()) <= Errno::MAX).then_some(Errno(number))
    }

    /// The number, which is positive.
    #[must_use]
    pub fn number(self) -> i32 {
        self.0.get().into()
    }
}
