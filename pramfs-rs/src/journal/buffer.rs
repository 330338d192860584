//! A record while it is being built, in ordinary memory.

use std::cell::Cell;

use smallvec::SmallVec;
use zerocopy::IntoBytes;

use crate::media::record::{ENTRIES_AT, EntryKind, EntryWord, RECORD_MAGIC, RecordHeader};

/// Most bytes of any record slot.
const MAX: usize = 1 << 16;
/// Usual size of a slot.
const USUAL: usize = 4096;

thread_local! {
    /// The memory of the last record of this thread.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A record under construction: its bytes, and where its entries stand in them,
/// so that nobody has to take them apart again to bring them home.
#[derive(Debug)]
pub struct RecordBuf {
    /// As much as has been needed so far; what is behind `len` means nothing.
    bytes: Vec<u8>,
    len: usize,
    entries: SmallVec<[Mark; 16]>,
    limit: usize,
}

/// Where an entry stands.
#[derive(Debug, Clone, Copy)]
struct Mark {
    offset: u64,
    at: u32,
    len: u32,
    kind: EntryKind,
}

/// One entry of a record.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// Kind.
    pub kind: EntryKind,
    /// Byte offset in the region.
    pub offset: u64,
    /// Payload, a multiple of 8 bytes.
    pub payload: &'a [u8],
}

impl RecordBuf {
    /// An empty record of at most `limit` bytes.
    #[inline]
    pub fn new(limit: usize) -> RecordBuf {
        RecordBuf {
            bytes: SPARE.with(Cell::take),
            len: ENTRIES_AT,
            entries: SmallVec::new(),
            limit: limit.min(MAX),
        }
    }

    /// Payload bytes that still fit, in one entry.
    #[inline]
    pub fn room(&self) -> usize {
        self.limit.saturating_sub(self.len + 8)
    }

    /// Whether it has no entry.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds an entry; false when it does not fit.
    #[inline]
    #[must_use]
    pub fn push(&mut self, kind: EntryKind, offset: u64, payload: &[u8]) -> bool {
        debug_assert!(payload.len().is_multiple_of(8) && offset.is_multiple_of(8));
        let words = payload.len() / 8;
        if payload.len() > self.room() || words > EntryWord::MAX_WORDS {
            return false;
        }
        let (head, at) = (self.len, self.len + 8);
        self.len = at + payload.len();
        if self.bytes.len() < self.len {
            self.grow();
        }
        let word = EntryWord::new(kind, offset, words).0;
        self.bytes[head..at].copy_from_slice(&word.to_le_bytes());
        self.bytes[at..self.len].copy_from_slice(payload);
        self.entries.push(Mark {
            offset,
            at: at as u32,
            len: payload.len() as u32,
            kind,
        });
        true
    }

    #[cold]
    fn grow(&mut self) {
        let more = self.len.next_power_of_two().max(USUAL);
        self.bytes.resize(more, 0);
    }

    /// Adds an entry of words; false when it does not fit.
    #[must_use]
    pub fn push_words(&mut self, kind: EntryKind, offset: u64, words: &[u64]) -> bool {
        self.push(kind, offset, words.as_bytes())
    }

    /// Completes header and CRC; the bytes to store.
    pub fn seal(&mut self, fs_seed: u64, lsn: u64, lane: u32, slot: u32) -> &[u8] {
        if self.bytes.len() < self.len {
            self.grow();
        }
        let mut h = RecordHeader {
            magic: RECORD_MAGIC,
            crc: 0,
            lsn,
            len: self.len as u32,
            entries: self.entries.len() as u32,
            lane,
            slot,
        };
        let bytes = &mut self.bytes[..self.len];
        bytes[..ENTRIES_AT].copy_from_slice(h.as_bytes());
        h.crc = RecordHeader::crc_of(fs_seed, bytes);
        bytes[..ENTRIES_AT].copy_from_slice(h.as_bytes());
        bytes
    }

    /// The entries in order.
    #[inline]
    pub fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.entries.iter().map(|m| Entry {
            kind: m.kind,
            offset: m.offset,
            payload: &self.bytes[m.at as usize..(m.at + m.len) as usize],
        })
    }
}

impl Drop for RecordBuf {
    fn drop(&mut self) {
        SPARE.with(|s| s.set(std::mem::take(&mut self.bytes)));
    }
}

/// The entries of a record's bytes after its header; stops at the first that
/// is cut short or has no kind.
pub fn parse(bytes: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let word = EntryWord(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let payload = bytes.get(at + 8..at + 8 + word.words() * 8)?;
        at += 8 + payload.len();
        Some(Entry {
            kind: word.kind()?,
            offset: word.offset(),
            payload,
        })
    })
}
