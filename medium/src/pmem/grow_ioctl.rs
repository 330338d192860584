//! The ioctl by which a program asks the server of a mount to grow its file system.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Words that the ioctl passes in both directions.
const WORDS: usize = 3;

/// The ioctl of a mount that makes the file system larger: `_IOWR(0xf2, 3, [u64; 3])`.
/// * In: the size in bytes, or 0 for as large as the region is; two words that are 0.
/// * Out: the size before, the size after; a word that is 0.
pub const GROW: u32 = 3 << 30 | ((WORDS * 8) as u32) << 16 | 0xf2 << 8 | 3;

/// Parses what a caller passes: the size, or `None` for as large as the region is. The error
/// is for a request of a later version.
pub fn decode_grow(input: &[u8]) -> Result<Option<u64>, &'static str> {
    let (words, rest) = input.as_chunks::<8>();
    match (<[[u8; 8]; WORDS]>::try_from(words), rest) {
        (Ok(words), []) => match words.map(u64::from_le_bytes) {
            [size, 0, 0] => Ok((size != 0).then_some(size)),
            _ => Err("a grow with parts that this version does not know"),
        },
        _ => Err("a grow without a size"),
    }
}

/// Makes the reply.
pub fn encode_grown(from: u64, to: u64) -> Vec<u8> {
    [from, to, 0]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect()
}

/// Asks the server of a mount to grow its file system, by a descriptor of any file or
/// directory of it. Returns the sizes before and after.
///
/// # Errors
/// ENOTTY if it is not on a pramfs mount, or its server is too old; EPERM for a caller that
/// is neither root nor the user who mounted it; those of `FileSystem::grow`.
pub fn ask_to_grow(file: BorrowedFd<'_>, size: Option<u64>) -> io::Result<(u64, u64)> {
    let mut words = [size.unwrap_or(0), 0, 0];
    // SAFETY: the number declares that so many bytes are read and written. The buffer has
    // that many, and no pointer is kept.
    let done = unsafe {
        libc::ioctl(
            file.as_raw_fd(),
            libc::c_ulong::from(GROW) as _,
            words.as_mut_ptr(),
        )
    };
    match done {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok((words[0], words[1])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_of_later_version_is_refused() {
        let bytes = |words: &[u64]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        assert_eq!(decode_grow(&bytes(&[0, 0, 0])), Ok(None));
        assert_eq!(decode_grow(&bytes(&[1 << 40, 0, 0])), Ok(Some(1 << 40)));
        for bad in [&[1, 1, 0][..], &[1, 0, 1], &[1, 0], &[1, 0, 0, 0], &[]] {
            assert!(decode_grow(&bytes(bad)).is_err(), "{bad:?}");
        }
        assert!(decode_grow(&[0; 23]).is_err());
        assert_eq!(GROW, 0xc018_f203);
        assert_eq!(encode_grown(1, 2), bytes(&[1, 2, 0]));
    }
}
