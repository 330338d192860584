//! The ioctls by which a program asks the server of a mount what is in use in each leaf of the
//! region, where the pointer blocks of a file lie, and to move what a file has in a leaf.

use std::io;
use std::os::fd::BorrowedFd;

use super::place_ioctl::{ask, bytes, nonsense, number, numbered, unknown_answer, words};

const VACATE_WORDS: usize = 3;
/// Pointer blocks in one answer. Those above one more part of the file have room too.
pub const POINTERS_MAX: usize = 112;
const POINTERS_HEAD: usize = 4;
const POINTERS_WORDS: usize = POINTERS_HEAD + 120 * 2;
const LEAF_USE_HEAD: usize = 4;
/// Leaves in one answer.
pub const LEAF_USE_MAX: usize = 960;
const LEAF_USE_WORDS: usize = LEAF_USE_HEAD + LEAF_USE_MAX / 4;

/// The ioctl of a file that moves what a part of it has in a leaf: `_IOWR(0xf2, 9, [u64; 3])`.
/// * In: an offset in the part, or past the end of the file only to keep others from the leaf; the
///   offset of the leaf in the region; a word that is 0.
/// * Out: what was done, as a number of [`Vacated`]; the bytes of a part; 0.
pub const VACATE: u32 = number(VACATE_WORDS, 9);
/// The ioctl of a file that tells its pointer blocks: `_IOWR(0xf2, 10, [u64; 244])`.
/// * In: the offset to begin at, 0 or from an answer; words that are 0.
/// * Out: where to go on, the size of the file, the number of pointer blocks, 0; for each: the
///   offset in the file from which on it covers bytes, its offset in the region.
pub const POINTERS: u32 = number(POINTERS_WORDS, 10);
/// The ioctl of a mount that tells the blocks in use in each leaf: `_IOWR(0xf2, 11, [u64; 244])`.
/// * In: the number of the first leaf; words that are 0.
/// * Out: the number of leaves that follow, at most 960; words that are 0; four leaves in each
///   further word, the first in its lowest 16 bits. Less than 960 end the region.
pub const LEAF_USE: u32 = number(LEAF_USE_WORDS, 11);

numbered! {
/// What was done with the blocks that a part of a file has in a leaf of the region. The numbers
/// are those of the ioctl of a mount.
pub enum Vacated {
    /// They were moved.
    Moved = 0,
    /// It has none there.
    Nothing = 1,
    /// Blocks there were allocated and never written.
    Unwritten = 2,
    /// A mapping of the server's process has some of the blocks.
    Mapped = 3,
    /// A process has a lease of the file.
    Leased = 4,
    /// The file is immutable.
    Immutable = 5,
    /// The file is stored to without checksums, which are still to be made.
    Unsummed = 6,
    /// No other leaf that is in use in part has room.
    NoSpace = 7,
    /// The part is the leaf.
    Whole = 8,
}
}

/// A pointer block of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PointerBlock {
    /// Offset in the file from which on it covers bytes.
    pub file_offset: u64,
    /// Its offset in the region.
    pub region_offset: u64,
}

/// Parses a request to vacate: the offsets in the file and of the leaf. The error is for a request
/// of a later version.
pub fn decode_vacate(input: &[u8]) -> Result<(u64, u64), &'static str> {
    match words::<VACATE_WORDS>(input) {
        Some([offset, leaf, 0]) => Ok((offset, leaf)),
        _ => Err("a request to vacate a leaf that this version does not know"),
    }
}

/// Makes the reply.
pub fn encode_vacated(done: Vacated, unit: u64) -> Vec<u8> {
    bytes(&[done as u64, unit, 0])
}

/// Parses a request for pointer blocks: the offset to begin at.
pub fn decode_pointers(input: &[u8]) -> Result<u64, &'static str> {
    match words::<POINTERS_WORDS>(input) {
        Some([offset, rest @ ..]) if rest.iter().all(|word| *word == 0) => Ok(offset),
        _ => Err("a request for pointer blocks that this version does not know"),
    }
}

/// Makes the reply. `next` is where to go on, and `size` that of the file.
pub fn encode_pointers(blocks: &[PointerBlock], next: u64, size: u64) -> Vec<u8> {
    let mut out = vec![next, size, blocks.len() as u64, 0];
    for block in blocks {
        out.extend([block.file_offset, block.region_offset]);
    }
    out.resize(POINTERS_WORDS, 0);
    bytes(&out)
}

/// Parses a request for the use of leaves: the number of the first.
pub fn decode_leaf_use(input: &[u8]) -> Result<u64, &'static str> {
    match words::<LEAF_USE_WORDS>(input) {
        Some([first, rest @ ..]) if rest.iter().all(|word| *word == 0) => Ok(first),
        _ => Err("a request for the use of leaves that this version does not know"),
    }
}

/// Makes the reply, of at most [`LEAF_USE_MAX`] leaves.
pub fn encode_leaf_use(used: &[u16]) -> Vec<u8> {
    let used = &used[..used.len().min(LEAF_USE_MAX)];
    let mut out = vec![used.len() as u64, 0, 0, 0];
    let word = |four: &[u16]| {
        (0..)
            .zip(four)
            .fold(0, |w, (i, n)| w | u64::from(*n) << (i * 16))
    };
    out.extend(used.chunks(4).map(word));
    out.resize(LEAF_USE_WORDS, 0);
    bytes(&out)
}

/// Most leaves of a region, and pointer blocks of a file, that a server is believed to have: those
/// of 128 TiB. Any user can mount a file system whose server answers without an end.
const MOST: usize = 1 << 26;

/// Asks the server of a mount to move what the part of an open file that has this offset has in
/// the leaf at an offset of the region.
///
/// # Errors
/// ENOTTY if it is not on a pramfs mount, or its server is too old; EPERM for a caller that is
/// neither root nor the user who mounted it; EINVAL for an offset at which no leaf is; those of
/// the file system.
pub fn ask_to_vacate(file: BorrowedFd<'_>, offset: u64, leaf: u64) -> io::Result<Vacated> {
    let mut words = [offset, leaf, 0];
    ask(file, VACATE, &mut words)?;
    Vacated::of(words[0]).ok_or_else(unknown_answer)
}

/// Asks the server of a mount for all pointer blocks of an open file. They are of several moments
/// if the file changes meanwhile.
///
/// # Errors
/// As for [`ask_to_vacate`].
pub fn ask_for_pointers(file: BorrowedFd<'_>) -> io::Result<Vec<PointerBlock>> {
    let mut out = Vec::new();
    let mut at = 0;
    loop {
        let mut words = [0; POINTERS_WORDS];
        words[0] = at;
        ask(file, POINTERS, &mut words)?;
        let (next, size, found) = pointers(&words).ok_or_else(nonsense)?;
        out.extend(found);
        if out.len() > MOST {
            return Err(nonsense());
        }
        if next >= size || next <= at {
            return Ok(out);
        }
        at = next;
    }
}

fn pointers(words: &[u64; POINTERS_WORDS]) -> Option<(u64, u64, Vec<PointerBlock>)> {
    let rows = words[POINTERS_HEAD..].as_chunks::<2>().0;
    let rows = rows.get(..usize::try_from(words[2]).ok()?)?;
    let block = |&[file_offset, region_offset]: &[u64; 2]| PointerBlock {
        file_offset,
        region_offset,
    };
    Some((words[0], words[1], rows.iter().map(block).collect()))
}

/// Asks the server of a mount for the blocks in use in each leaf of the region, by a descriptor of
/// any file or directory.
///
/// # Errors
/// As for [`ask_to_vacate`].
pub fn ask_for_leaf_use(file: BorrowedFd<'_>) -> io::Result<Vec<u16>> {
    let mut out = Vec::new();
    loop {
        let mut words = [0; LEAF_USE_WORDS];
        words[0] = out.len() as u64;
        ask(file, LEAF_USE, &mut words)?;
        let more = leaf_use(&words).ok_or_else(nonsense)?;
        let is_last = more.len() < LEAF_USE_MAX;
        out.extend(more);
        if out.len() > MOST {
            return Err(nonsense());
        }
        if is_last {
            return Ok(out);
        }
    }
}

fn leaf_use(words: &[u64; LEAF_USE_WORDS]) -> Option<Vec<u16>> {
    let count = usize::try_from(words[0]).ok()?;
    let four = |word: &u64| {
        (0..4)
            .map(move |i| (word >> (i * 16)) as u16)
            .collect::<Vec<_>>()
    };
    let mut used: Vec<u16> = words[LEAF_USE_HEAD..].iter().flat_map(four).collect();
    if count > used.len() {
        return None;
    }
    used.truncate(count);
    Some(used)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_of_later_version_is_refused() {
        assert_eq!(decode_vacate(&bytes(&[7, 9, 0])), Ok((7, 9)));
        assert!(decode_vacate(&bytes(&[7, 9, 1])).is_err());
        assert!(decode_vacate(&bytes(&[7, 9])).is_err());
        let mut request = [0; 244];
        request[0] = 9;
        assert_eq!(decode_pointers(&bytes(&request)), Ok(9));
        assert_eq!(decode_leaf_use(&bytes(&request)), Ok(9));
        request[243] = 1;
        assert!(decode_pointers(&bytes(&request)).is_err());
        assert!(decode_leaf_use(&bytes(&request)).is_err());
        let numbers = (VACATE, POINTERS, LEAF_USE);
        assert_eq!(numbers, (0xc018_f209, 0xc7a0_f20a, 0xc7a0_f20b));
    }

    #[test]
    fn vacated_of_each_number_is_found_by_it() {
        let known: Vec<_> = (0..=9).map(Vacated::of).collect();
        assert_eq!(known.last(), Some(&None));
        for (number, done) in (0..9).zip(known) {
            assert_eq!(done.map(|done| done as u64), Some(number));
        }
        assert_eq!(encode_vacated(Vacated::Leased, 9), bytes(&[4, 9, 0]));
    }

    #[test]
    fn pointer_blocks_and_use_of_leaves_are_read_as_written() {
        let block = |i| PointerBlock {
            file_offset: i,
            region_offset: i * 4096,
        };
        let blocks: Vec<_> = (0..120).map(block).collect();
        let answer = words(&encode_pointers(&blocks, 5, 9)).unwrap();
        assert_eq!(pointers(&answer), Some((5, 9, blocks)));
        for count in [0, 1, 4, 5, 960] {
            let used: Vec<u16> = (0..count).map(|i| i * 64).collect();
            let answer = words(&encode_leaf_use(&used)).unwrap();
            assert_eq!(leaf_use(&answer), Some(used));
        }
    }

    #[test]
    fn counts_that_no_server_tells_are_refused() {
        for count in [121, u64::MAX] {
            let mut words = [0; POINTERS_WORDS];
            words[2] = count;
            assert_eq!(pointers(&words), None);
        }
        for count in [961, u64::MAX] {
            let mut words = [0; LEAF_USE_WORDS];
            words[0] = count;
            assert_eq!(leaf_use(&words), None);
        }
    }
}
