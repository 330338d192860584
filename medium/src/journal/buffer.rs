//! A record while it is being built, in ordinary memory.

use std::cell::Cell;

use zerocopy::IntoBytes;

use crate::media::record::{ENTRIES_AT, EntryKind, EntryWord, RECORD_MAGIC, RecordHeader};
use crate::pmem::LINE;
use crate::types::RegionOffset;

/// Upper limit of a record slot, in bytes.
const MAX: usize = 1 << 16;
/// Upper limit of a record that continues in blocks, in bytes.
pub(super) const MAX_CONTINUED: usize = 1 << 24;

thread_local! {
    /// Buffer of this thread's last record, for reuse.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A record under construction.
#[derive(Debug)]
pub struct RecordBuf {
    /// As long as the longest record that fits a slot, or longer. Bytes past `len` are
    /// undefined.
    bytes: Vec<u8>,
    len: usize,
    limit: usize,
    /// Bytes reserved for entries to come.
    kept: usize,
    entries: u32,
    /// [`lines`] of the homes of all entries.
    lines: u64,
}

/// Bit set of the cache lines of a range. If two ranges share a line, their sets share a
/// bit.
#[inline]
fn lines(offset: u64, len: usize) -> u64 {
    if len as u64 > LINE {
        return u64::MAX;
    }
    let last = offset + (len as u64).saturating_sub(1);
    1 << (offset / LINE % 64) | 1 << (last / LINE % 64)
}

/// One entry of a record.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// Kind.
    pub kind: EntryKind,
    /// Home.
    pub offset: RegionOffset,
    /// Payload, a multiple of 8 bytes.
    pub payload: &'a [u8],
}

impl RecordBuf {
    /// Creates an empty record of at most `limit` bytes.
    #[inline(always)]
    pub fn new(limit: usize) -> RecordBuf {
        let limit = limit.min(MAX);
        let mut bytes = SPARE.try_with(Cell::take).unwrap_or_default();
        if bytes.len() < limit {
            grow(&mut bytes, limit);
        }
        RecordBuf {
            bytes,
            len: ENTRIES_AT,
            limit,
            kept: 0,
            entries: 0,
            lines: 0,
        }
    }

    /// Payload bytes that still fit in one entry.
    #[inline]
    pub fn room(&self) -> usize {
        self.limit.saturating_sub(self.len + self.kept + 8)
    }

    /// Reserves bytes for entries that are added last, see [`use_kept`](Self::use_kept).
    /// False if the record has too little room.
    #[inline]
    #[must_use]
    pub fn keep(&mut self, bytes: usize) -> bool {
        self.kept += bytes;
        self.len + self.kept + 8 <= self.limit
    }

    /// Makes the reserved bytes usable.
    #[inline]
    pub fn use_kept(&mut self) {
        self.kept = 0;
    }

    /// Changes the maximum size.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit.min(MAX_CONTINUED);
    }

    /// Returns the size with what is [kept](Self::keep), in bytes.
    #[inline]
    pub fn size(&self) -> usize {
        self.len + self.kept
    }

    /// Returns the bytes of all entries.
    pub fn body(&self) -> &[u8] {
        &self.bytes[ENTRIES_AT..self.len]
    }

    /// Returns the number of entries.
    pub fn count(&self) -> u32 {
        self.entries
    }

    /// Whether it has no entry.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Whether an entry may change bytes of a range. False is certain, true is not.
    #[inline]
    pub fn may_change(&self, offset: u64, len: usize) -> bool {
        self.lines & lines(offset, len) != 0
    }

    /// Adds an entry; false if it does not fit.
    #[inline]
    #[must_use]
    pub fn push(&mut self, kind: EntryKind, offset: u64, payload: &[u8]) -> bool {
        debug_assert!(payload.len().is_multiple_of(8) && offset.is_multiple_of(8));
        let words = payload.len() / 8;
        let (head, at) = (self.len, self.len + 8);
        let end = at + payload.len();
        if end + self.kept > self.limit || words > EntryWord::MAX_WORDS {
            return false;
        }
        if end > self.bytes.len() {
            // A record that continues in blocks.
            grow(&mut self.bytes, end.next_power_of_two());
        }
        let word = EntryWord::new(kind, offset, words).0;
        let to = &mut self.bytes[head..end];
        to[..8].copy_from_slice(&word.to_le_bytes());
        to[8..].copy_from_slice(payload);
        self.len = end;
        self.entries += 1;
        self.lines |= match kind {
            // The home of zeros is longer than the payload.
            EntryKind::Zero => u64::MAX,
            // Transactions do not read file data.
            EntryKind::Copy | EntryKind::More => 0,
            _ => lines(offset, payload.len()),
        };
        true
    }

    /// Replaces the payload of the entry with the same home; false if no such entry exists.
    /// No later entry may change a part of that home.
    #[inline]
    #[must_use]
    pub fn replace(&mut self, kind: EntryKind, offset: u64, payload: &[u8]) -> bool {
        if !self.may_change(offset, payload.len()) {
            return false;
        }
        let wanted = EntryWord::new(kind, offset, payload.len() / 8);
        let mut bytes = &mut self.bytes[ENTRIES_AT..self.len];
        while let Some((word, rest)) = bytes.split_first_chunk_mut::<8>() {
            let word = EntryWord(u64::from_le_bytes(*word));
            let Some((old, rest)) = rest.split_at_mut_checked(word.words() * 8) else {
                return false;
            };
            if word.0 == wanted.0 {
                old.copy_from_slice(payload);
                debug_assert!(
                    self.changes_once(offset, payload.len() as u64),
                    "another entry changes a part of the same home"
                );
                return true;
            }
            bytes = rest;
        }
        false
    }

    /// Whether exactly one entry touches the range.
    fn changes_once(&self, offset: u64, len: u64) -> bool {
        let mut all = self.entries_near(offset, offset + len).filter(|e| {
            let home = match (e.kind, e.payload.first_chunk::<8>()) {
                (EntryKind::Zero, Some(words)) => u64::from_le_bytes(*words) * 8,
                _ => e.payload.len() as u64,
            };
            e.offset.0 + home > offset
        });
        all.next().is_some() && all.next().is_none()
    }

    /// Adds an entry of words; false if it does not fit.
    #[inline]
    #[must_use]
    pub fn push_words(&mut self, kind: EntryKind, offset: u64, words: &[u64]) -> bool {
        self.push(kind, offset, words.as_bytes())
    }

    /// Completes header and CRC, and returns the bytes to store.
    pub fn seal(&mut self, fs_seed: u64, lsn: u64, lane: u32, slot: u32) -> &[u8] {
        let mut h = RecordHeader {
            magic: RECORD_MAGIC,
            crc: 0,
            lsn,
            len: self.len as u32,
            entries: self.entries,
            lane,
            slot,
        };
        let bytes = &mut self.bytes[..self.len];
        bytes[..ENTRIES_AT].copy_from_slice(h.as_bytes());
        h.crc = RecordHeader::crc_of(fs_seed, bytes);
        bytes[..ENTRIES_AT].copy_from_slice(h.as_bytes());
        bytes
    }

    /// Iterates, in order, over all entries that may change bytes of a range, and few
    /// others.
    #[inline]
    pub fn entries_near(&self, from: u64, end: u64) -> impl Iterator<Item = Entry<'_>> {
        let mut bytes = &self.bytes[ENTRIES_AT..self.len];
        std::iter::from_fn(move || {
            loop {
                let (word, rest) = bytes.split_first_chunk::<8>()?;
                let word = EntryWord(u64::from_le_bytes(*word));
                let (payload, rest) = rest.split_at_checked(word.words() * 8)?;
                bytes = rest;
                let offset = word.offset();
                // Only the home of zeros is longer than its payload.
                let behind = offset + payload.len() as u64 <= from;
                if offset >= end || behind && word.kind() != Some(EntryKind::Zero) {
                    continue;
                }
                let kind = word.kind()?;
                return Some(Entry {
                    kind,
                    offset: RegionOffset(offset),
                    payload,
                });
            }
        })
    }

    /// Iterates over the entries in order.
    #[inline]
    pub fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        parse(&self.bytes[ENTRIES_AT..self.len])
    }
}

#[cold]
fn grow(bytes: &mut Vec<u8>, len: usize) {
    bytes.resize(len, 0);
}

impl Drop for RecordBuf {
    #[inline]
    fn drop(&mut self) {
        if self.bytes.len() > MAX {
            return;
        }
        // Fails when the thread ends; the buffer is then no longer needed.
        let _ = SPARE.try_with(|s| s.set(std::mem::take(&mut self.bytes)));
    }
}

/// Iterates over the entries in a record's bytes after the header. Stops at the first entry
/// that is truncated or of unknown kind.
#[inline]
pub fn parse(mut bytes: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    std::iter::from_fn(move || {
        let (word, rest) = bytes.split_first_chunk::<8>()?;
        let word = EntryWord(u64::from_le_bytes(*word));
        let (payload, rest) = rest.split_at_checked(word.words() * 8)?;
        bytes = rest;
        Some(Entry {
            kind: word.kind()?,
            offset: RegionOffset(word.offset()),
            payload,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn may_change_of_covered_bytes_is_true() {
        for at in (0..8192).step_by(8) {
            for words in [1, 3, 8, 9, 40] {
                let mut rec = RecordBuf::new(4096);
                assert!(!rec.may_change(at, 8), "nothing is changed yet");
                assert!(rec.push(EntryKind::Leaf, at, &vec![0; words * 8]));
                let end = at + words as u64 * 8;
                for byte in [at, at + 7, end - 8, end - 1] {
                    assert!(rec.may_change(byte, 1), "{at} {words} {byte}");
                    assert!(rec.may_change(byte & !63, 64));
                    assert!(rec.may_change(byte.saturating_sub(100), 101));
                }
            }
        }
    }

    #[test]
    fn may_change_of_other_line_in_page_is_false() {
        let mut rec = RecordBuf::new(4096);
        assert!(rec.push(EntryKind::Leaf, 4096 + 128, &[0; 64]));
        for line in (0..64).filter(|&l| l != 2) {
            assert!(!rec.may_change(4096 + line * 64, 64), "{line}");
        }
        // `may_change` cannot tell what an entry of zeros covers.
        assert!(rec.push(EntryKind::Zero, 0, &1u64.to_le_bytes()));
        assert!(rec.may_change(4096, 8));
    }

    #[test]
    fn replace_keeps_one_entry_with_new_payload() {
        let mut rec = RecordBuf::new(4096);
        for (at, byte) in [(4096, 1), (4160, 2), (8192, 3)] {
            assert!(rec.push(EntryKind::Leaf, at, &[byte; 48]));
        }
        assert!(rec.replace(EntryKind::Leaf, 4160, &[9; 48]));
        let all: Vec<_> = rec
            .entries()
            .map(|e| (e.offset.0, e.payload.to_vec()))
            .collect();
        let of = |at, byte| (at, vec![byte; 48]);
        assert_eq!(all, [of(4096, 1), of(4160, 9), of(8192, 3)]);
    }

    #[test]
    fn replace_of_unmatched_entry_changes_nothing() {
        let mut rec = RecordBuf::new(4096);
        assert!(!rec.replace(EntryKind::Leaf, 4096, &[9; 48]), "it is empty");
        assert!(rec.push(EntryKind::Leaf, 4096, &[1; 48]));
        assert!(!rec.replace(EntryKind::Leaf, 4096, &[9; 40]));
        assert!(!rec.replace(EntryKind::Leaf, 4104, &[9; 40]));
        assert!(!rec.replace(EntryKind::Inode, 4096, &[9; 48]));
        assert!(rec.entries().all(|e| e.payload == [1; 48]));
        assert_eq!(rec.entries().count(), 1);
    }
}
