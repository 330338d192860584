//! Contents of shared files: words of 8 bytes that say what they are.
//!
//! A word holds who wrote it with which sequence number, and a check over that,
//! the file, and the word's place. Zero is a hole. Writes are units of
//! [`UNIT`] bytes with one writer and number: a unit that mixes two was torn.
//! Words that were stored through a view stand for themselves, as a view asks
//! nobody.

/// Bytes of a unit; every write, cut and size is a multiple of it.
pub const UNIT: u64 = 256;
const WORDS: u64 = UNIT / 8;

/// How the words came to be where they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// `write`: the writer knew the place.
    Written = 0,
    /// Stored through a view.
    Stored = 1,
    /// `append`: the writer did not know the place.
    Appended = 2,
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Identity of a file, from its inode number and generation.
pub fn identity(ino: u64, generation: u64) -> u64 {
    mix(mix(ino).wrapping_add(generation))
}

/// A word: 24 bits of check, 2 of how, 6 of the writer, 32 of the number.
pub fn word(file: u64, index: u64, how: How, writer: u64, number: u32) -> u64 {
    let low = (how as u64) << 38 | (writer & 63) << 32 | u64::from(number);
    low | check(file, index, low) << 40
}

fn check(file: u64, index: u64, low: u64) -> u64 {
    let place = if low >> 38 & 3 == How::Appended as u64 {
        index % WORDS
    } else {
        index
    };
    mix(mix(file ^ mix(place)).wrapping_add(low)) & 0xff_ffff
}

/// Bytes to be written at `offset`, a multiple of [`UNIT`].
pub fn bytes(file: u64, offset: u64, len: u64, how: How, writer: u64, number: u32) -> Vec<u8> {
    (offset / 8..(offset + len) / 8)
        .flat_map(|i| word(file, i, how, writer, number).to_le_bytes())
        .collect()
}

/// Checks bytes that were read at `offset`; `whole` if units must be.
///
/// # Errors
/// The first word that cannot be explained.
pub fn verify(file: u64, offset: u64, bytes: &[u8], whole: bool) -> Result<(), String> {
    for (u, unit) in bytes.chunks(UNIT as usize).enumerate() {
        let mut tag = None;
        for (w, b) in unit.chunks(8).enumerate() {
            let index = offset / 8 + u as u64 * WORDS + w as u64;
            let Ok(b) = <[u8; 8]>::try_from(b) else {
                return Err(format!(
                    "{} bytes at {offset}: not whole words",
                    bytes.len()
                ));
            };
            let value = u64::from_le_bytes(b);
            let low = value & ((1 << 40) - 1);
            if value != 0 && value >> 40 != check(file, index, low) {
                return Err(format!(
                    "byte {}: {value:#018x} does not belong there (foreign or stale)",
                    index * 8
                ));
            }
            if value != 0 && low >> 38 & 3 == How::Stored as u64 {
                continue;
            }
            match tag {
                Some(other) if whole && other != low => {
                    return Err(format!(
                        "byte {}: {low:#x} beside {other:#x} in one unit (torn)",
                        index * 8
                    ));
                }
                _ => tag = Some(low),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_detects_foreign_moved_and_torn_words() {
        let good = bytes(1, 512, 512, How::Written, 3, 9);
        verify(1, 512, &good, true).unwrap();
        verify(1, 512, &[0; 512], true).unwrap();
        assert!(verify(2, 512, &good, true).is_err());
        assert!(verify(1, 768, &good, true).is_err());
        let mut torn = good.clone();
        torn[..8].copy_from_slice(&word(1, 64, How::Written, 3, 10).to_le_bytes());
        assert!(verify(1, 512, &torn, true).is_err());
        verify(1, 512, &torn, false).unwrap();
        torn[..8].copy_from_slice(&word(1, 64, How::Stored, 4, 1).to_le_bytes());
        verify(1, 512, &torn, true).unwrap();
        torn[..8].fill(0);
        assert!(verify(1, 512, &torn, true).is_err());
        let appended = bytes(1, 0, 256, How::Appended, 3, 1);
        verify(1, 4096, &appended, true).unwrap();
    }
}
