//! Names: what a directory accepts.

use crate::error::{Error, Result};

/// Longest name, bytes.
pub const NAME_MAX: usize = 255;
/// Longest symlink target, bytes.
pub const TARGET_MAX: usize = 4095;

/// A name that an entry can have: 1 to 255 bytes but `/` and NUL, and neither
/// `.` nor `..`.
///
/// # Errors
/// [`Error::NameTooLong`], [`Error::NotFound`] for the empty name,
/// [`Error::Invalid`].
pub fn check(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Error::NameTooLong(name.len(), NAME_MAX));
    }
    match name {
        b"" => Err(Error::NotFound),
        b"." | b".." => Err(Error::Invalid(
            "the names . and .. cannot be made, moved or removed",
        )),
        _ if name.iter().any(|&b| b == b'/' || b == 0) => {
            Err(Error::Invalid("a name with a slash or a NUL byte"))
        }
        _ => Ok(()),
    }
}

/// A name to be looked for: as [`check`], but `.` and `..` may be asked for.
///
/// # Errors
/// As for [`check`].
pub fn check_lookup(name: &[u8]) -> Result<()> {
    if matches!(name, b"." | b"..") {
        Ok(())
    } else {
        check(name)
    }
}

/// The `DT_*` code of a mode.
pub fn dt(mode: u32) -> u8 {
    ((mode >> 12) & 15) as u8
}
