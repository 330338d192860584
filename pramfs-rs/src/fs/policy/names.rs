//! Rules for the names of directory entries.

use pramfs_medium::error::{Error, Result};
use pramfs_medium::media::htree::NAME_MAX;

/// Maximum length of a symlink target, bytes.
pub(crate) const TARGET_MAX: usize = 4095;

/// Checks that an entry can have this name: 1 to 255 bytes without `/` and NUL, and
/// neither `.` nor `..`.
///
/// # Errors
/// [`Error::NameTooLong`], [`Error::NotFound`] for the empty name,
/// [`Error::Invalid`].
pub(crate) fn check(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Error::NameTooLong(name.len(), NAME_MAX));
    }
    match name {
        b"" => Err(Error::NotFound),
        b"." | b".." => Err(Error::Invalid(
            "the names . and .. cannot be made, moved or removed",
        )),
        _ if has_slash_or_nul(name) => Err(Error::Invalid("a name with a slash or a NUL byte")),
        _ => Ok(()),
    }
}

/// Tests eight bytes at a time; the last eight may overlap those before.
#[inline]
fn has_slash_or_nul(name: &[u8]) -> bool {
    const ONES: u64 = u64::MAX / 0xff;
    const HIGH: u64 = ONES << 7;
    let nul = |w: u64| w.wrapping_sub(ONES) & !w & HIGH;
    let found = |b: &[u8; 8]| {
        let w = u64::from_le_bytes(*b);
        nul(w) | nul(w ^ (ONES * u64::from(b'/')))
    };
    match name.last_chunk::<8>() {
        Some(last) => {
            let parts = name.as_chunks::<8>().0;
            parts.iter().fold(found(last), |all, b| all | found(b)) != 0
        }
        None => name.iter().any(|&b| b == b'/' || b == 0),
    }
}

/// As [`check`], for a lookup: also accepts `.` and `..`.
pub(crate) fn check_lookup(name: &[u8]) -> Result<()> {
    if matches!(name, b"." | b"..") {
        Ok(())
    } else {
        check(name)
    }
}

/// Returns the `DT_*` code of a mode.
pub(crate) fn dt(mode: u32) -> u8 {
    ((mode >> 12) & 15) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slash_or_nul_is_found_at_any_offset() {
        for len in 1..40 {
            // Bytes that differ from a slash or NUL in one bit, and all others.
            for fill in (1..=u8::MAX).filter(|b| *b != b'/') {
                let mut name = vec![fill; len];
                assert!(!has_slash_or_nul(&name), "{fill} {len}");
                for at in 0..len {
                    for bad in [b'/', 0] {
                        name[at] = bad;
                        assert!(has_slash_or_nul(&name), "{fill} {len} {at}");
                        name[at] = fill;
                    }
                }
            }
        }
    }
}
