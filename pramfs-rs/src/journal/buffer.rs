//! A record while it is being built, in ordinary memory.

use std::cell::Cell;

use zerocopy::IntoBytes;

use crate::media::record::{ENTRIES_AT, EntryKind, EntryWord, RECORD_MAGIC, RecordHeader};

/// Most bytes of any record slot.
const MAX: usize = 1 << 16;
/// Usual size of a slot.
const USUAL: usize = 4096;

thread_local! {
    static SPARE: Cell<Option<Vec<u8>>> = const { Cell::new(None) };
}

/// A record under construction.
#[derive(Debug)]
pub struct RecordBuf {
    bytes: Vec<u8>,
    entries: u32,
    limit: usize,
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
    pub fn new(limit: usize) -> RecordBuf {
        let mut bytes = SPARE
            .with(Cell::take)
            .unwrap_or_else(|| Vec::with_capacity(USUAL));
        bytes.clear();
        bytes.resize(ENTRIES_AT, 0);
        RecordBuf {
            bytes,
            entries: 0,
            limit: limit.min(MAX),
        }
    }

    /// Payload bytes that still fit, in one entry.
    pub fn room(&self) -> usize {
        self.limit.saturating_sub(self.bytes.len() + 8)
    }

    /// Whether it has no entry.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Adds an entry; false when it does not fit.
    #[must_use]
    pub fn push(&mut self, kind: EntryKind, offset: u64, payload: &[u8]) -> bool {
        debug_assert!(payload.len().is_multiple_of(8) && offset.is_multiple_of(8));
        let words = payload.len() / 8;
        if payload.len() > self.room() || words > EntryWord::MAX_WORDS {
            return false;
        }
        self.bytes
            .extend_from_slice(&EntryWord::new(kind, offset, words).0.to_le_bytes());
        self.bytes.extend_from_slice(payload);
        self.entries += 1;
        true
    }

    /// Adds an entry of words; false when it does not fit.
    #[must_use]
    pub fn push_words(&mut self, kind: EntryKind, offset: u64, words: &[u64]) -> bool {
        self.push(kind, offset, words.as_bytes())
    }

    /// Completes header and CRC; the bytes to store.
    pub fn seal(&mut self, fs_seed: u64, lsn: u64, lane: u32, slot: u32) -> &[u8] {
        let mut h = RecordHeader {
            magic: RECORD_MAGIC,
            crc: 0,
            lsn,
            len: self.bytes.len() as u32,
            entries: self.entries,
            lane,
            slot,
        };
        self.bytes[..ENTRIES_AT].copy_from_slice(h.as_bytes());
        h.crc = RecordHeader::crc_of(fs_seed, &self.bytes);
        self.bytes[..ENTRIES_AT].copy_from_slice(h.as_bytes());
        &self.bytes
    }

    /// The entries in order.
    pub fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        parse(&self.bytes[ENTRIES_AT..])
    }
}

impl Drop for RecordBuf {
    fn drop(&mut self) {
        SPARE.with(|s| s.set(Some(std::mem::take(&mut self.bytes))));
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
