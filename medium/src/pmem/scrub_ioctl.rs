//! The ioctls by which a program asks the server of a mount to scrub its file system, and how
//! far the scrub is. Each returns at once.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Words that the ioctl passes in both directions.
const WORDS: usize = 48;
/// Bytes that the ioctl of a finding passes in both directions.
const FINDING_BYTES: usize = 512;

/// The ioctl of a mount that starts, cancels or only asks for a scrub:
/// `_IOWR(0xf2, 16, [u64; 48])`.
/// * In: 0 to ask, 1 to start, 2 to start where the last one stopped, 3 to cancel; the limit in
///   bytes a second, 0 for none; words that are 0.
/// * Out: a [`ScrubStatus`].
pub const SCRUB: u32 = 3 << 30 | ((WORDS * 8) as u32) << 16 | 0xf2 << 8 | 16;

/// The ioctl that returns a finding of the scrub: `_IOWR(0xf2, 17, [u8; 512])`.
/// * In: a word, the number of the finding, from 0; zeros.
/// * Out: 1 and the text with zeros behind it; or zeros if there is no such finding.
pub const SCRUB_FINDING: u32 = 3 << 30 | (FINDING_BYTES as u32) << 16 | 0xf2 << 8 | 17;

/// What a program asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScrubRequest {
    /// The status.
    Status,
    /// Start a scrub.
    Start {
        /// Where the last one stopped, if it did not finish.
        resume: bool,
        /// Most bytes to read in a second, if there is a limit.
        limit: Option<u64>,
    },
    /// Cancel the scrub.
    Cancel,
}

/// A finding as the file system keeps it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScrubMarkStatus {
    /// Seconds since the epoch, 0 = no finding.
    pub time_sec: i64,
    /// Inode, 0 = none.
    pub ino: u64,
    /// Byte in the file, for contents of files.
    pub place: u64,
    /// Code of what was found.
    pub kind: [u8; 24],
}

/// How far a scrub is, and what scrubs have found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScrubStatus {
    /// A scrub runs.
    pub running: bool,
    /// The `state` of the record in the superblock.
    pub state: u32,
    /// Position and findings are kept in the file system: it is not read-only.
    pub kept: bool,
    /// Bytes a second, 0 = no limit.
    pub limit: u64,
    /// Start of the last scrub, seconds since the epoch.
    pub started_sec: i64,
    /// Time that this run has taken, milliseconds.
    pub elapsed_ms: u64,
    /// Bytes that this run has read. `done` counts those before an interruption too.
    pub run_done: u64,
    /// Bytes that the scrub has read.
    pub done: u64,
    /// Bytes that it will have read at the end, an estimate.
    pub total: u64,
    /// Findings of the scrub.
    pub found: u64,
    /// Findings since mkfs or fsck.
    pub findings: u64,
    /// Scrubs that read all.
    pub completed: u64,
    /// End of the last of them, seconds since the epoch.
    pub completed_sec: i64,
    /// Where it is: part of the file system.
    pub phase: u32,
    /// Where it is: lane, group, table or inode.
    pub object: u64,
    /// The errno that ended it, 0 = none.
    pub errno: u32,
    /// First finding since mkfs or fsck.
    pub first: ScrubMarkStatus,
    /// Latest finding.
    pub last: ScrubMarkStatus,
}

impl ScrubMarkStatus {
    fn words(&self) -> [u64; 6] {
        let (kind, _) = self.kind.as_chunks::<8>();
        let kind = |i: usize| kind.get(i).map_or(0, |word| u64::from_le_bytes(*word));
        let time = self.time_sec as u64;
        [time, self.ino, self.place, kind(0), kind(1), kind(2)]
    }

    fn from_words(words: &[u64]) -> ScrubMarkStatus {
        let word = |i: usize| words.get(i).copied().unwrap_or(0);
        let mut kind = [0; 24];
        for (bytes, i) in kind.chunks_exact_mut(8).zip(3..) {
            bytes.copy_from_slice(&word(i).to_le_bytes());
        }
        ScrubMarkStatus {
            time_sec: word(0) as i64,
            ino: word(1),
            place: word(2),
            kind,
        }
    }
}

impl ScrubStatus {
    /// Makes the reply.
    pub fn encode(&self) -> Vec<u8> {
        let mut words = vec![
            self.running.into(),
            self.state.into(),
            self.kept.into(),
            self.limit,
            self.started_sec as u64,
            self.elapsed_ms,
            self.run_done,
            self.done,
            self.total,
            self.found,
            self.findings,
            self.completed,
            self.completed_sec as u64,
            self.phase.into(),
            self.object,
            self.errno.into(),
        ];
        words.extend(self.first.words());
        words.extend(self.last.words());
        words.resize(WORDS, 0);
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn from_words(words: &[u64; WORDS]) -> ScrubStatus {
        let small = |i: usize| u32::try_from(words[i]).unwrap_or(u32::MAX);
        ScrubStatus {
            running: words[0] != 0,
            state: small(1),
            kept: words[2] != 0,
            limit: words[3],
            started_sec: words[4] as i64,
            elapsed_ms: words[5],
            run_done: words[6],
            done: words[7],
            total: words[8],
            found: words[9],
            findings: words[10],
            completed: words[11],
            completed_sec: words[12] as i64,
            phase: small(13),
            object: words[14],
            errno: small(15),
            first: ScrubMarkStatus::from_words(&words[16..22]),
            last: ScrubMarkStatus::from_words(&words[22..28]),
        }
    }
}

/// Parses what a caller passes. The error is for a request of a later version.
pub fn decode_scrub(input: &[u8]) -> Result<ScrubRequest, &'static str> {
    let (words, rest) = input.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    let words: Vec<u64> = words.collect();
    if words.len() != WORDS || !rest.is_empty() {
        return Err("a request to scrub of a wrong size");
    }
    if words[2..].iter().any(|word| *word != 0) {
        return Err("a request to scrub with parts that this version does not know");
    }
    let limit = (words[1] != 0).then_some(words[1]);
    match (words[0], limit) {
        (0, None) => Ok(ScrubRequest::Status),
        (1 | 2, limit) => Ok(ScrubRequest::Start {
            resume: words[0] == 2,
            limit,
        }),
        (3, None) => Ok(ScrubRequest::Cancel),
        _ => Err("a request to scrub that this version does not know"),
    }
}

/// Parses the number of the finding that a caller asks for.
pub fn decode_scrub_finding(input: &[u8]) -> Result<usize, &'static str> {
    match input.split_first_chunk() {
        Some((number, rest)) if rest.len() == FINDING_BYTES - 8 => {
            Ok(usize::try_from(u64::from_le_bytes(*number)).unwrap_or(usize::MAX))
        }
        _ => Err("a request for a finding of a wrong size"),
    }
}

/// Makes the reply for a finding. A long text is cut.
pub fn encode_scrub_finding(text: Option<&str>) -> Vec<u8> {
    let mut out = u64::from(text.is_some()).to_le_bytes().to_vec();
    let text = text.unwrap_or_default();
    let room = text.len().min(FINDING_BYTES - 8);
    let end = (0..=room).rev().find(|end| text.is_char_boundary(*end));
    let text = text.get(..end.unwrap_or(0)).unwrap_or_default();
    out.extend(text.as_bytes());
    out.resize(FINDING_BYTES, 0);
    out
}

/// Asks the server of a mount, by a descriptor of any file or directory of it.
///
/// # Errors
/// ENOTTY if it is not on a pramfs mount, or its server is too old; EPERM for a caller that
/// is neither root nor the user who mounted it; EBUSY for a start while a scrub runs; ENOENT
/// for a cancel while none runs.
pub fn ask_to_scrub(file: BorrowedFd<'_>, request: ScrubRequest) -> io::Result<ScrubStatus> {
    let mut words = [0u64; WORDS];
    words[0] = match request {
        ScrubRequest::Status => 0,
        ScrubRequest::Start { resume, .. } => 1 + u64::from(resume),
        ScrubRequest::Cancel => 3,
    };
    if let ScrubRequest::Start { limit, .. } = request {
        words[1] = limit.unwrap_or(0);
    }
    // SAFETY: the number declares that so many bytes are read and written. The buffer has
    // that many, and no pointer is kept.
    let done = unsafe {
        libc::ioctl(
            file.as_raw_fd(),
            libc::c_ulong::from(SCRUB) as _,
            words.as_mut_ptr(),
        )
    };
    match done {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(ScrubStatus::from_words(&words)),
    }
}

/// Asks the server of a mount for a finding of its last scrub.
///
/// # Errors
/// As for [`ask_to_scrub`].
pub fn ask_for_scrub_finding(file: BorrowedFd<'_>, number: u64) -> io::Result<Option<String>> {
    let mut bytes = [0u8; FINDING_BYTES];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    // SAFETY: as above.
    let done = unsafe {
        libc::ioctl(
            file.as_raw_fd(),
            libc::c_ulong::from(SCRUB_FINDING) as _,
            bytes.as_mut_ptr(),
        )
    };
    if done == -1 {
        return Err(io::Error::last_os_error());
    }
    let (found, text) = bytes.split_at(8);
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(found
        .iter()
        .any(|byte| *byte != 0)
        .then(|| String::from_utf8_lossy(text).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(first: &[u64]) -> Vec<u8> {
        let mut words = first.to_vec();
        words.resize(WORDS, 0);
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn request_of_later_version_is_refused() {
        assert_eq!(decode_scrub(&bytes(&[])), Ok(ScrubRequest::Status));
        assert_eq!(decode_scrub(&bytes(&[3])), Ok(ScrubRequest::Cancel));
        for (word, resume) in [(1, false), (2, true)] {
            let limit = Some(77);
            let start = ScrubRequest::Start { resume, limit };
            assert_eq!(decode_scrub(&bytes(&[word, 77])), Ok(start));
        }
        for bad in [&[4][..], &[0, 1], &[3, 1], &[1, 1, 1]] {
            assert!(decode_scrub(&bytes(bad)).is_err(), "{bad:?}");
        }
        assert!(decode_scrub(&bytes(&[])[1..]).is_err());
        assert!(decode_scrub_finding(&[0; 8]).is_err());
        assert_eq!((SCRUB, SCRUB_FINDING), (0xc180_f210, 0xc200_f211));
    }

    #[test]
    fn status_survives_the_way_to_the_caller() {
        let mark = |n: u64| ScrubMarkStatus {
            time_sec: -(n as i64),
            ino: n + 1,
            place: n + 2,
            kind: *b"internal-inodes-differ\0\0",
        };
        let status = ScrubStatus {
            running: true,
            state: 2,
            kept: true,
            limit: 3,
            started_sec: -4,
            elapsed_ms: 5,
            run_done: 6,
            done: 7,
            total: u64::MAX,
            found: 9,
            findings: 10,
            completed: 11,
            completed_sec: 12,
            phase: 13,
            object: 14,
            errno: 15,
            first: mark(16),
            last: mark(20),
        };
        let bytes = status.encode();
        let words: Vec<u64> = (bytes.as_chunks::<8>().0.iter())
            .map(|word| u64::from_le_bytes(*word))
            .collect();
        assert_eq!(ScrubStatus::from_words(&words.try_into().unwrap()), status);
    }

    #[test]
    fn long_finding_is_cut_at_a_character() {
        let out = encode_scrub_finding(Some(&"é".repeat(400)));
        assert_eq!(out.len(), FINDING_BYTES);
        assert!(std::str::from_utf8(&out[8..]).is_ok());
        assert_eq!(encode_scrub_finding(None), vec![0; FINDING_BYTES]);
    }
}
