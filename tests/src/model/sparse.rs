//! The bytes of a file of any size: zeros but for the pieces that were written.

use std::collections::BTreeMap;

const PIECE: u64 = 256;

/// Contents of a file, without its size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sparse {
    /// By index of the piece. One that is missing is zeros; one that is there
    /// may be zeros too.
    pieces: BTreeMap<u64, Box<[u8; PIECE as usize]>>,
}

impl Sparse {
    /// Stores bytes.
    pub fn write(&mut self, mut offset: u64, mut from: &[u8]) {
        while !from.is_empty() {
            let within = (offset % PIECE) as usize;
            let n = from.len().min(PIECE as usize - within);
            let piece = self
                .pieces
                .entry(offset / PIECE)
                .or_insert_with(|| Box::new([0; PIECE as usize]));
            piece[within..within + n].copy_from_slice(&from[..n]);
            offset += n as u64;
            from = &from[n..];
        }
    }

    /// Zeroes the range `from..to`.
    pub fn zero(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let (first, last) = (from / PIECE, (to - 1) / PIECE);
        let touched: Vec<u64> = self.pieces.range(first..=last).map(|(i, _)| *i).collect();
        for i in touched {
            let (start, end) = (i * PIECE, (i * PIECE).saturating_add(PIECE));
            if from <= start && end <= to {
                self.pieces.remove(&i);
            } else if let Some(piece) = self.pieces.get_mut(&i) {
                let (a, b) = (from.max(start) - start, to.min(end) - start);
                piece[a as usize..b as usize].fill(0);
            }
        }
    }

    /// Copies bytes out.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        into.fill(0);
        let end = offset.saturating_add(into.len() as u64);
        if into.is_empty() {
            return;
        }
        for (i, piece) in self.pieces.range(offset / PIECE..=(end - 1) / PIECE) {
            let start = i * PIECE;
            let (a, b) = (offset.max(start), end.min(start.saturating_add(PIECE)));
            into[(a - offset) as usize..(b - offset) as usize]
                .copy_from_slice(&piece[(a - start) as usize..(b - start) as usize]);
        }
    }

    /// The byte at an offset.
    pub fn byte(&self, offset: u64) -> u8 {
        self.pieces
            .get(&(offset / PIECE))
            .map_or(0, |p| p[(offset % PIECE) as usize])
    }

    /// The first byte that is not zero in `from..to`.
    pub fn first_set(&self, from: u64, to: u64) -> Option<u64> {
        if from >= to {
            return None;
        }
        self.pieces
            .range(from / PIECE..=(to - 1) / PIECE)
            .find_map(|(i, piece)| {
                let start = i * PIECE;
                let at = piece.iter().enumerate().find(|&(j, b)| {
                    *b != 0 && start + j as u64 >= from && start + (j as u64) < to
                })?;
                Some(start + at.0 as u64)
            })
    }

    /// Offsets and bytes of the pieces that are there.
    pub fn pieces(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.pieces.iter().map(|(i, p)| (i * PIECE, &p[..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_reads_written_bytes_and_zeros() {
        let mut s = Sparse::default();
        s.write(250, b"hello, world");
        s.write(i64::MAX as u64 - 3, b"end");
        let mut b = [9; 20];
        s.read(248, &mut b);
        assert_eq!(&b, b"\0\0hello, world\0\0\0\0\0\0");
        assert_eq!(s.first_set(0, u64::MAX), Some(250));
        assert_eq!(s.first_set(262, i64::MAX as u64), Some(i64::MAX as u64 - 3));
        s.zero(252, 1 << 62);
        s.read(248, &mut b);
        assert_eq!(&b, b"\0\0he\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(s.byte(i64::MAX as u64 - 2), b'n');
    }
}
