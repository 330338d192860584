//! The ioctls by which a program asks the server of a mount where files lie, what is free, and
//! to move a part of a file into blocks that follow each other.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::types::FileExtent;

pub(super) const fn number(words: usize, nr: u32) -> u32 {
    3 << 30 | ((words * 8) as u32) << 16 | 0xf2 << 8 | nr
}

const GATHER_WORDS: usize = 2;
/// Extents in one answer.
pub const EXTENTS_MAX: usize = 60;
const EXTENTS_HEAD: usize = 4;
const EXTENTS_WORDS: usize = EXTENTS_HEAD + EXTENTS_MAX * 4;
/// Powers of two in the answer about free space.
pub const FREE_POWERS: usize = 32;
const FREE_WORDS: usize = 4 + FREE_POWERS;

/// The ioctl of a file that moves a part of it: `_IOWR(0xf2, 6, [u64; 2])`.
/// * In: an offset in the part; a word that is 0.
/// * Out: what was done, as a number of [`Gathered`]; the bytes of a part.
pub const GATHER: u32 = number(GATHER_WORDS, 6);
/// The ioctl of a file that tells its extents: `_IOWR(0xf2, 7, [u64; 244])`.
/// * In: the offset to begin at; words that are 0.
/// * Out: where to go on, the size of the file, the number of extents, 0; for each: offset in the
///   file, offset in the region or all ones, bytes, flags (1 unwritten, 2 lost).
pub const EXTENTS: u32 = number(EXTENTS_WORDS, 7);
/// The ioctl of a mount that tells its free runs: `_IOWR(0xf2, 8, [u64; 36])`.
/// * In: words that are 0.
/// * Out: free blocks; free leaves of 2 MiB, or all ones in a file system without leaves; bytes of a
///   block; blocks of a part; the number of runs by the power of two of their blocks.
pub const FREE_SPACE: u32 = number(FREE_WORDS, 8);

/// Makes an enum and the function that finds a variant by its number from one list.
macro_rules! numbered {
    ($(#[$doc:meta])* pub enum $name:ident { $($(#[$of:meta])* $variant:ident = $number:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u64)]
        pub enum $name {
            $($(#[$of])* $variant = $number,)*
        }

        impl $name {
            pub(super) fn of(number: u64) -> Option<$name> {
                match number {
                    $($number => Some($name::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

pub(super) use numbered;

numbered! {
/// What was done with a part of a file. The numbers are those of the ioctl of a mount.
pub enum Gathered {
    /// It was moved.
    Moved = 0,
    /// Its blocks follow each other already.
    Whole = 1,
    /// It has holes, or blocks that were allocated and never written, or lost ones, or the file
    /// ends in it.
    Holes = 2,
    /// A mapping of the server's process has some of its blocks.
    Mapped = 3,
    /// A process has a lease of the file.
    Leased = 4,
    /// The file is immutable.
    Immutable = 5,
    /// Somebody stores, or has stored, to some of its blocks without their checksums, which are
    /// still to be made.
    Unsummed = 6,
    /// No free run is long enough.
    NoSpace = 7,
}
}

/// The free runs of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FreeRuns {
    /// Free blocks.
    pub blocks: u64,
    /// Free leaves of 2 MiB; `None` in a file system without leaves.
    pub leaves: Option<u64>,
    /// Bytes of a block.
    pub block_size: u64,
    /// Blocks of a part that [`GATHER`] moves: those of a leaf, where there are leaves.
    pub part: u64,
    /// Number of runs by the power of two of their blocks.
    pub runs: [u64; FREE_POWERS],
}

pub(super) fn words<const N: usize>(input: &[u8]) -> Option<[u64; N]> {
    let (words, []) = input.as_chunks::<8>() else {
        return None;
    };
    let words: [[u8; 8]; N] = words.try_into().ok()?;
    Some(words.map(u64::from_le_bytes))
}

pub(super) fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Parses a request to move a part: its offset. The error is for a request of a later version.
pub fn decode_gather(input: &[u8]) -> Result<u64, &'static str> {
    match words::<GATHER_WORDS>(input) {
        Some([offset, 0]) => Ok(offset),
        _ => Err("a request to move blocks that this version does not know"),
    }
}

/// Makes the reply.
pub fn encode_gathered(done: Gathered, unit: u64) -> Vec<u8> {
    bytes(&[done as u64, unit])
}

/// Parses a request for extents: the offset to begin at.
pub fn decode_extents(input: &[u8]) -> Result<u64, &'static str> {
    match words::<EXTENTS_WORDS>(input) {
        Some([offset, rest @ ..]) if rest.iter().all(|word| *word == 0) => Ok(offset),
        _ => Err("a request for extents that this version does not know"),
    }
}

/// Makes the reply, with as many extents as have room. `size` is that of the file.
pub fn encode_extents(extents: &[FileExtent], size: u64) -> Vec<u8> {
    let shown = &extents[..extents.len().min(EXTENTS_MAX)];
    let next = match shown.last() {
        Some(last) if shown.len() < extents.len() => last.file_offset + last.len,
        _ => size,
    };
    let mut out = vec![next, size, shown.len() as u64, 0];
    for extent in shown {
        let flags = u64::from(extent.unwritten) | u64::from(extent.lost) << 1;
        out.extend([
            extent.file_offset,
            extent.region_offset.unwrap_or(u64::MAX),
            extent.len,
            flags,
        ]);
    }
    out.resize(EXTENTS_WORDS, 0);
    bytes(&out)
}

/// Checks a request for free space.
pub fn decode_free_space(input: &[u8]) -> Result<(), &'static str> {
    match words::<FREE_WORDS>(input) {
        Some(words) if words == [0; FREE_WORDS] => Ok(()),
        _ => Err("a request for free space that this version does not know"),
    }
}

/// Makes the reply.
pub fn encode_free_space(free: &FreeRuns) -> Vec<u8> {
    let leaves = free.leaves.unwrap_or(u64::MAX);
    let mut out = vec![free.blocks, leaves, free.block_size, free.part];
    out.extend(free.runs);
    bytes(&out)
}

/// An answer that no server of ours gives. The mount may be one of another user.
pub(super) fn nonsense() -> io::Error {
    io::Error::other("the server gives an answer that makes no sense; is it a server of pramfs?")
}

/// An answer with a number that only a later version knows.
pub(super) fn unknown_answer() -> io::Error {
    io::Error::other(
        "the server answers in a way that this version does not know; use the tools of its version",
    )
}

/// Parses it. A block of another size, and a part without blocks or of more than 1 GiB, are
/// none.
fn free_runs(words: &[u64; FREE_WORDS]) -> Option<FreeRuns> {
    let mut runs = [0; FREE_POWERS];
    runs.copy_from_slice(&words[4..]);
    let [blocks, leaves, block_size, part] = [words[0], words[1], words[2], words[3]];
    let sizes = [512, 1024, 2048, 4096];
    let is_valid = sizes.contains(&block_size)
        && (1..=1 << 18).contains(&part)
        && blocks.checked_mul(block_size).is_some();
    is_valid.then_some(FreeRuns {
        blocks,
        leaves: (leaves != u64::MAX).then_some(leaves),
        block_size,
        part,
        runs,
    })
}

pub(super) fn ask<const N: usize>(
    file: BorrowedFd<'_>,
    number: u32,
    words: &mut [u64; N],
) -> io::Result<()> {
    // SAFETY: the number declares that so many bytes are read and written. The buffer has
    // that many, and no pointer is kept.
    let done = unsafe {
        libc::ioctl(
            file.as_raw_fd(),
            libc::c_ulong::from(number) as _,
            words.as_mut_ptr(),
        )
    };
    match done {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Asks the server of a mount to move the part of an open file that has this offset. Returns what
/// was done, and the bytes of a part.
///
/// # Errors
/// ENOTTY if it is not on a pramfs mount, or its server is too old; EPERM for a caller that is
/// neither root nor the user who mounted it; those of the file system.
pub fn ask_to_gather(file: BorrowedFd<'_>, offset: u64) -> io::Result<(Gathered, u64)> {
    let mut words = [offset, 0];
    ask(file, GATHER, &mut words)?;
    let Some(done) = Gathered::of(words[0]) else {
        return Err(unknown_answer());
    };
    Ok((done, words[1]))
}

/// Asks the server of a mount for all extents of an open file. They are of several moments if the
/// file changes meanwhile.
///
/// # Errors
/// ENOTTY if it is not on a pramfs mount, or its server is too old; those of the file system.
pub fn ask_for_extents(file: BorrowedFd<'_>) -> io::Result<Vec<FileExtent>> {
    let mut out = Vec::new();
    let mut at = 0;
    loop {
        let mut words = [0; EXTENTS_WORDS];
        words[0] = at;
        ask(file, EXTENTS, &mut words)?;
        let [next, size, count, _] = [words[0], words[1], words[2], words[3]];
        let rows = words[EXTENTS_HEAD..].as_chunks::<4>().0;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        for [file_offset, place, len, flags] in rows.iter().take(count).copied() {
            // They follow each other, so each answer comes nearer to the end.
            let end = out
                .last()
                .map_or(0, |last: &FileExtent| last.file_offset + last.len);
            let is_valid = len > 0
                && file_offset >= end
                && file_offset.checked_add(len).is_some()
                && (place == u64::MAX || place.checked_add(len).is_some());
            if !is_valid {
                return Err(nonsense());
            }
            out.push(FileExtent {
                file_offset,
                region_offset: (place != u64::MAX).then_some(place),
                len,
                unwritten: flags & 1 != 0,
                lost: flags & 2 != 0,
            });
        }
        if next >= size || next <= at {
            return Ok(out);
        }
        if count == 0 {
            return Err(nonsense());
        }
        at = next;
    }
}

/// Asks the server of a mount for its free runs, by a descriptor of any file or directory.
///
/// # Errors
/// As for [`ask_to_gather`].
pub fn ask_for_free_space(file: BorrowedFd<'_>) -> io::Result<FreeRuns> {
    let mut words = [0; FREE_WORDS];
    ask(file, FREE_SPACE, &mut words)?;
    free_runs(&words).ok_or_else(nonsense)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_of_later_version_is_refused() {
        assert_eq!(decode_gather(&bytes(&[7, 0])), Ok(7));
        assert!(decode_gather(&bytes(&[7, 1])).is_err());
        assert!(decode_gather(&[0; 15]).is_err());
        let mut request = [0; EXTENTS_WORDS];
        request[0] = 9;
        assert_eq!(decode_extents(&bytes(&request)), Ok(9));
        request[5] = 1;
        assert!(decode_extents(&bytes(&request)).is_err());
        assert!(decode_free_space(&bytes(&[0; FREE_WORDS])).is_ok());
        assert!(decode_free_space(&bytes(&[1; FREE_WORDS])).is_err());
        assert_eq!(
            (GATHER, EXTENTS, FREE_SPACE),
            (0xc010_f206, 0xc7a0_f207, 0xc120_f208)
        );
    }

    #[test]
    fn answer_of_each_number_is_found_by_it() {
        let known: Vec<_> = (0..=8).map(Gathered::of).collect();
        assert_eq!(known.last(), Some(&None));
        for (number, done) in (0..8).zip(known) {
            assert_eq!(done.map(|done| done as u64), Some(number));
        }
        assert_eq!(Gathered::of(4), Some(Gathered::Leased));
        assert_eq!(encode_gathered(Gathered::NoSpace, 9), bytes(&[7, 9]));
    }

    #[test]
    fn free_runs_with_and_without_leaves_are_read_as_written() {
        for leaves in [None, Some(0), Some(9)] {
            let free = FreeRuns {
                blocks: 7,
                leaves,
                block_size: 512,
                part: 64,
                runs: [3; FREE_POWERS],
            };
            let read = free_runs(&words(&encode_free_space(&free)).unwrap());
            assert_eq!(read, Some(free));
        }
    }

    #[test]
    fn free_runs_that_no_server_tells_are_refused() {
        let right = FreeRuns {
            blocks: 7,
            leaves: None,
            block_size: 512,
            part: 64,
            runs: [0; FREE_POWERS],
        };
        let wrong = [
            FreeRuns {
                block_size: 0,
                ..right
            },
            FreeRuns {
                block_size: 8192,
                ..right
            },
            FreeRuns { part: 0, ..right },
            FreeRuns {
                part: u64::MAX,
                ..right
            },
            FreeRuns {
                blocks: u64::MAX,
                ..right
            },
        ];
        for wrong in wrong {
            let read = free_runs(&words(&encode_free_space(&wrong)).unwrap());
            assert_eq!(read, None, "{wrong:?}");
        }
    }

    #[test]
    fn extents_that_do_not_fit_are_left_for_the_next_answer() {
        let extent = |i: u64| FileExtent {
            file_offset: i * 10,
            region_offset: (i.is_multiple_of(2)).then_some(i),
            len: 10,
            unwritten: i.is_multiple_of(3),
            lost: false,
        };
        let many: Vec<_> = (0..100).map(extent).collect();
        let answer = words::<EXTENTS_WORDS>(&encode_extents(&many, 1000)).unwrap();
        assert_eq!(answer[..4], [600, 1000, 60, 0]);
        let answer = words::<EXTENTS_WORDS>(&encode_extents(&many[60..], 1000)).unwrap();
        assert_eq!(answer[..6], [1000, 1000, 40, 0, 600, 60]);
    }
}
