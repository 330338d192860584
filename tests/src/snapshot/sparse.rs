//! The bytes of a file of any size: zeros but for the pieces that were written.
//!
//! Invariant: no piece is all zeros, so that equal contents are equal values.

use std::collections::BTreeMap;

const PIECE: u64 = 256;

/// Contents of a file, without its size.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Sparse {
    /// By index of the piece.
    pieces: BTreeMap<u64, Box<[u8; PIECE as usize]>>,
}

impl From<&[u8]> for Sparse {
    fn from(bytes: &[u8]) -> Sparse {
        let mut sparse = Sparse::default();
        sparse.write(0, bytes);
        sparse
    }
}

impl Sparse {
    /// Stores bytes.
    pub fn write(&mut self, mut offset: u64, mut from: &[u8]) {
        while !from.is_empty() {
            let within = (offset % PIECE) as usize;
            let n = from.len().min(PIECE as usize - within);
            self.write_piece(offset / PIECE, within, &from[..n]);
            offset += n as u64;
            from = &from[n..];
        }
    }

    fn write_piece(&mut self, i: u64, within: usize, from: &[u8]) {
        let zeros = is_zero(from);
        if zeros && !self.pieces.contains_key(&i) {
            return;
        }
        let piece = self
            .pieces
            .entry(i)
            .or_insert_with(|| Box::new([0; PIECE as usize]));
        piece[within..within + from.len()].copy_from_slice(from);
        if zeros && is_zero(&piece[..]) {
            self.pieces.remove(&i);
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
            let start = i * PIECE;
            let end = start.saturating_add(PIECE);
            let (a, b) = (from.max(start) - start, to.min(end) - start);
            let zeros = [0; PIECE as usize];
            self.write_piece(i, a as usize, &zeros[a as usize..b as usize]);
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

    /// The first `len` bytes.
    pub fn to_vec(&self, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        self.read(0, &mut bytes);
        bytes
    }

    /// The byte at an offset.
    pub fn byte(&self, offset: u64) -> u8 {
        self.pieces
            .get(&(offset / PIECE))
            .map_or(0, |p| p[(offset % PIECE) as usize])
    }

    /// The first byte that is not zero in `from..to`.
    pub fn first_set(&self, from: u64, to: u64) -> Option<u64> {
        self.first_difference(&Sparse::default(), from, to)
    }

    /// The first byte in `from..to` in which two contents differ.
    pub fn first_difference(&self, other: &Sparse, from: u64, to: u64) -> Option<u64> {
        if from >= to {
            return None;
        }
        let pieces = from / PIECE..=(to - 1) / PIECE;
        let (mine, others) = (
            self.pieces.range(pieces.clone()),
            other.pieces.range(pieces),
        );
        let differs = |i: u64| {
            let (a, b) = (self.pieces.get(&i), other.pieces.get(&i));
            if a == b {
                return None;
            }
            let start = i * PIECE;
            let last = (to - 1).min(start + (PIECE - 1));
            (from.max(start)..=last).find(|at| self.byte(*at) != other.byte(*at))
        };
        let mine = mine.map(|p| *p.0).find_map(differs);
        let others = others.map(|p| *p.0).find_map(differs);
        mine.into_iter().chain(others).min()
    }

    /// The ranges of the pieces, in order.
    pub fn ranges(&self) -> impl Iterator<Item = std::ops::Range<u64>> {
        let end = |i: u64| (i * PIECE).saturating_add(PIECE);
        self.pieces.keys().map(move |i| i * PIECE..end(*i))
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|b| *b == 0)
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

    #[test]
    fn sparse_of_zeros_equals_empty() {
        let mut s = Sparse::from(&[0; 700][..]);
        assert_eq!(s, Sparse::default());
        s.write(300, b"some");
        s.write(300, &[0; 4]);
        assert_eq!(s, Sparse::default());
        s.write(510, b"more");
        s.zero(0, 512);
        assert_eq!(s.first_set(0, 1000), Some(512));
        s.zero(512, 600);
        assert_eq!(s, Sparse::default());
    }

    #[test]
    fn sparse_finds_first_difference() {
        let (mut a, mut b) = (Sparse::default(), Sparse::default());
        for s in [&mut a, &mut b] {
            s.write(1000, &[7; 600]);
        }
        assert_eq!(a.first_difference(&b, 0, u64::MAX), None);
        b.write(1500, b"x");
        a.write(9000, b"y");
        assert_eq!(a.first_difference(&b, 0, u64::MAX), Some(1500));
        assert_eq!(b.first_difference(&a, 0, 1500), None);
        assert_eq!(b.first_difference(&a, 1501, 9001), Some(9000));
        assert_eq!(a.first_difference(&b, 1501, 9000), None);
    }
}
